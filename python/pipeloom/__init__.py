"""Pipeloom: a pipeline schedule for every training step.

In this process (`pip install .` at the project's root), without a service:

    model = pipeloom.Model.load("dip-vlm-s")
    cluster = pipeloom.Cluster("h100-sxm", nodes=2)
    job = pipeloom.Job(model, cluster, tp=4, pp=4, microbatches=16,
                       microbatch_tokens=8192)
    plan = pipeloom.plan(job, "mixed", evaluations=200)

With a service, for trainings:

    client = pipeloom.Client("127.0.0.1:50551")
    job = client.open_job("dip-vlm-s", samples, job_id=run)
    session = pipeloom.Session(client, job, rank=rank)
    provider = pipeloom.PlanProvider(session, static, agree=agreement())
    for step, batch in pipeloom.MetadataPrefetcher(loader, provider,
                                                   microbatches, samples_of):
        result = executor.run(provider.get(step), batch)
        provider.report(step, result.spans)

`Client` makes single calls, which wait and raise; a training uses `Session` and
`PlanProvider`, which do neither. `pipeloom.torch` carries plans out with
torch.distributed.

Names are imported when they are first used: planning needs neither grpcio nor
protobuf, the client does not need the planner.
"""
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from pipeloom.client import (Client, MisfitError, PlannerError,
                                 address_file)
    from pipeloom.connection import connect
    from pipeloom.loss import LossShare
    from pipeloom.plan import (Edge, Instruction, Microbatch, Plan,
                               SubMicrobatch, Task, loss_weights, read_plan)
    from pipeloom import planner
    from pipeloom.planner import (Cluster, Job, Model, compare, emulate, plan,
                                  search_layout, whatif)
    from pipeloom.provider import (AgreementError, MetadataPrefetcher,
                                   PlanProvider)
    from pipeloom.sample import Sample
    from pipeloom.session import Session
    from pipeloom.static_schedule import Stage, static_plan
    from pipeloom.trace_file import TraceFile

__version__ = "0.1.0"
__all__ = [
    "AgreementError", "Client", "Cluster", "Edge", "Instruction", "Job",
    "LossShare", "MetadataPrefetcher", "Microbatch", "MisfitError", "Model",
    "Plan", "PlanProvider", "PlannerError", "Sample", "Session", "Stage",
    "SubMicrobatch", "Task", "TraceFile", "address_file", "compare", "connect", "emulate",
    "loss_weights", "plan", "planner", "read_plan", "search_layout",
    "static_plan", "whatif",
]

_MODULES = {
    "client": ("Client", "MisfitError", "PlannerError", "address_file"),
    "connection": ("connect",),
    "loss": ("LossShare",),
    "plan": ("Edge", "Instruction", "Microbatch", "Plan", "SubMicrobatch",
             "Task", "loss_weights", "read_plan"),
    "planner": ("Cluster", "Job", "Model", "compare", "emulate",
                "search_layout", "whatif"),
    "provider": ("AgreementError", "MetadataPrefetcher", "PlanProvider"),
    "sample": ("Sample",),
    "session": ("Session",),
    "static_schedule": ("Stage", "static_plan"),
    "trace_file": ("TraceFile",),
}
_SUBMODULES = {*_MODULES, "agreement", "fit", "memory", "messages", "metadata",
               "trouble"}
# These import grpc and google.protobuf.
_CLIENT_MODULES = {"client", "connection", "provider", "session"}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    # "plan" is a module that can be called.
    if name in _SUBMODULES:
        return importlib.import_module(f"pipeloom.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'pipeloom' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"pipeloom.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("google", "grpc"):
            raise
        raise ImportError(
            f"pipeloom.{name} needs grpcio and protobuf ({error}); install "
            "them, or the package with [client]", name=error.name) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    """Returns the names that are there, without those of the client if grpcio or
    protobuf is missing: help() takes the value of each."""
    missing = set()
    if not (_is_installed("grpc") and _is_installed("google.protobuf")):
        missing = {name for name, module in _HOME.items()
                   if module in _CLIENT_MODULES}
    return sorted((set(globals()) | set(__all__)) - missing)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The package around it is missing.
        return False
