"""A step that fails on one rank ends on all of them.

The rank that fails goes through the rest of its program without its tasks: it
takes what others send, and sends the reason in place of each tensor that it
owes. A rank that gets a reason does the same. Before it reduces gradients, and
before its optimizer steps, each rank learns whether all have come so far; those
of the other replicas, too, if the executor knows them. So none waits for a
tensor that does not come, and no message is left that a later step would take
for its own.
"""
import contextlib
import logging
from typing import Any, Iterator, NamedTuple, Optional

import torch
import torch.distributed as dist

from pipeloom.plan import Plan

_log = logging.getLogger("pipeloom")
_MAX_REASON = 1000


class StepFailed(RuntimeError):
    """Another rank has failed in this step, or is lost; the message names it,
    what it was at, and its error. Gradients have parts of the step: zero them
    before the next, which may follow unless a rank is lost."""


class Told(RuntimeError):
    """The reason of another rank, which has come in place of a tensor."""


class Lost(RuntimeError):
    """torch.distributed has failed: a rank is gone, or silent for too long."""


@contextlib.contextmanager
def finding_lost() -> Iterator[None]:
    """A context around calls of torch.distributed. Raises Lost."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(str(error)) from error


def place(plan: Plan, rank: int, at: int) -> str:
    """Returns where a rank is in its program, in words."""
    program = plan.programs[rank]
    if not 0 <= at < len(program):
        return (f"rank {rank}, step {plan.step}, " +
                ("before its first instruction" if at < 0 else "at its end"))
    op, arg = program[at]
    what = op
    if op in ("compute", "offload", "fetch"):
        what = f"{op} of {_task(plan, arg)}"
    elif arg in plan.edges:
        edge = plan.edges[arg]
        ends = (f"to rank {plan.tasks[edge.target].rank}" if "send" in op else
                f"from rank {plan.tasks[edge.source].rank}")
        what = f"{op} of edge {arg}, what {_task(plan, edge.source)} makes, "
        what += ends
    return (f"rank {rank}, step {plan.step}, instruction {at} of "
            f"{len(program)} ({what})")


def _task(plan: Plan, t: int) -> str:
    task = plan.tasks[t]
    return (f"task {t}, {task.kind} of {plan.module_names[task.module]} stage "
            f"{task.stage} microbatch {task.microbatch}" +
            (f" sub-microbatch {task.sub}" if task.sub else ""))


def reason(plan: Plan, rank: int, at: int, error: BaseException) -> str:
    name = "" if isinstance(error, Lost) else f"{type(error).__name__}: "
    text = f"{place(plan, rank, at)}: {name}{error}"
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + " ..."


def log(text: str) -> None:
    """The trainer may not see the error for a while, or at all."""
    _log.error("pipeloom: %s", text)


class Failed(NamedTuple):
    """The rank that has failed, and the replica that it is of."""
    rank: int
    replica: int


def first_failed(rank: int, failed: bool, group: Any, replicas: Any,
                 device: Any) -> Optional[Failed]:
    """Returns a rank that has failed, or None. All ranks must call it, those of
    all replicas if `replicas` has the processes with this rank in each."""
    size = dist.get_world_size(group)
    replica = 0 if replicas is None else dist.get_rank(replicas)
    flag = torch.tensor([replica * size + rank + 1 if failed else 0],
                        device=device)
    with finding_lost():
        # The largest of each pipeline, and then of all.
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        if replicas is not None:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=replicas)
    first = int(flag) - 1
    return Failed(first % size, first // size) if first >= 0 else None
