"""Pipeloom: a pipeline schedule for every training step.

    client = pipeloom.Client("127.0.0.1:50551")
    job = client.open_job("dip-vlm-s", samples)
    session = pipeloom.Session(client, job, rank=rank)
    provider = pipeloom.PlanProvider(session, static, agree=agreement())
    for step, batch in pipeloom.MetadataPrefetcher(loader, provider,
                                                   microbatches, samples_of):
        result = executor.run(provider.get(step), batch)
        provider.report(step, result.spans)

`Client` makes single calls, which wait and raise; a training uses `Session` and
`PlanProvider`, which do neither. `pipeloom.torch` carries plans out with
torch.distributed.
"""
from pipeloom.client import (Client, Job, PlannerError, Sample,
                             address_file)
from pipeloom.plan import (Edge, Instruction, Microbatch, Plan, SubMicrobatch,
                           Task, loss_weights, read_plan)
from pipeloom.provider import (AgreementError, MetadataPrefetcher,
                               PlanProvider)
from pipeloom.session import Session
from pipeloom.static_schedule import Stage, static_plan

__version__ = "0.1.0"
__all__ = [
    "AgreementError", "Client", "Edge", "Instruction", "Job",
    "MetadataPrefetcher", "Microbatch", "Plan", "PlanProvider", "PlannerError",
    "Sample", "Session", "Stage", "SubMicrobatch", "Task", "address_file",
    "loss_weights", "read_plan", "static_plan",
]
