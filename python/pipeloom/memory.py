"""The memory that a plan's ranks take, also with microbatches of other sizes
than those that the plan was made for.

The account is that of docs/plan_format.md. What a task keeps and hands on grows
in proportion to the tokens of its sub-microbatch, and counts in full where
there are fewer, as parts of it do not depend on tokens.
"""
import math
from typing import Dict, Mapping, Optional, Sequence, Tuple

from pipeloom.plan import Microbatch, Plan, SubMicrobatch

# Ratios, at least 1, by microbatch, module and sub-microbatch.
Growth = Mapping[Tuple[int, int, int], float]


def growth(old: Sequence[Microbatch],
           new: Sequence[Microbatch]) -> Optional[Growth]:
    """Returns by how much each sub-microbatch of `new` is larger than that of
    `old`, which has the same ones. None: the tokens of one are not known."""
    result: Dict[Tuple[int, int, int], float] = {}
    for m, (before, after) in enumerate(zip(old, new)):
        known = {(s.module, s.index): s for s in before.subs}
        for sub in after.subs:
            was = known[sub.module, sub.index]
            if sub.tokens <= 0 or was.tokens <= 0:
                return None
            result[m, sub.module, sub.index] = max(
                1.0, sub.tokens / was.tokens, _output_growth(was, sub))
    return result


def _output_growth(was: SubMicrobatch, now: SubMicrobatch) -> float:
    return now.output_tokens / was.output_tokens if was.output_tokens else 1.0


def peak_bytes(plan: Plan, rank: int, sizes: Optional[Growth] = None) -> int:
    """Returns the most that the rank's GPU holds while it runs its program,
    with sub-microbatches that have grown by `sizes`."""
    factors = sizes or {}

    def factor(task: int) -> float:
        t = plan.tasks[task]
        return factors.get((t.microbatch, t.module, t.sub), 1.0)

    payload: Dict[int, int] = {}
    made: Dict[int, int] = {}  # Less what the task takes from its own rank.
    for e, edge in plan.edges.items():
        payload[e] = math.ceil(edge.payload_bytes * max(factor(edge.source),
                                                        factor(edge.target)))
        made[edge.source] = made.get(edge.source, 0) + payload[e]
        if plan.tasks[edge.source].rank == plan.tasks[edge.target].rank:
            made[edge.target] = made.get(edge.target, 0) - payload[e]
    held = most = plan.memory[rank].static
    for op, arg in plan.programs[rank]:
        after = 0  # Given back once the instruction is done.
        if op == "compute":
            task = plan.tasks[arg]
            held += math.ceil(task.alloc_bytes * factor(arg))
            held += made.get(arg, 0)
            after = math.ceil(task.free_bytes * factor(arg))
        elif op == "recv":
            held += payload[arg]
        elif op in ("free", "wait_send"):
            held -= payload[arg]
        elif op in ("offload", "fetch"):
            moved = math.ceil(plan.copies[arg] * factor(arg))
            held, after = ((held, moved) if op == "offload"
                           else (held + moved, 0))
        most = max(most, held)
        held -= after
    return most


def shortage(plan: Plan, old: Sequence[Microbatch],
             new: Sequence[Microbatch]) -> Optional[str]:
    """Returns why the memory of a rank in the plan, which was made for the
    microbatches `old`, may not suffice for `new`, or None."""
    limits = {r: m.limit for r, m in plan.memory.items()
              if r in plan.programs and m.limit > 0}
    if not limits:
        return None
    sizes = growth(old, new)
    if sizes is None:
        return ("SubMicrobatch.tokens is 0; without the tokens of all "
                "sub-microbatches the memory that they take is not known")
    if all(ratio == 1.0 for ratio in sizes.values()):
        return None
    for rank, limit in sorted(limits.items()):
        need = peak_bytes(plan, rank, sizes)
        if need > limit:
            return (f"rank {rank} would hold {need} bytes; its limit is "
                    f"{limit}")
    return None
