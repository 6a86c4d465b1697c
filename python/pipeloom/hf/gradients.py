"""Gradients over all stages of a pipeline."""
from typing import Any, Iterable, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.execution.gradients import clip_grad_norm, local, words_of


def add_up(one: nn.Parameter, other: Optional[nn.Parameter],
           group: Any) -> None:
    """Gives both ends of a shared weight the sum of their gradients. `group` is
    that of the other end's rank; None: both are here."""
    ends = [one] if group is not None or other is None else [one, other]
    for end in ends:
        if end.grad is None:
            end.grad = torch.zeros_like(end)
    if group is not None:
        dist.all_reduce(local(one.grad), group=group)  # type: ignore[arg-type]
    elif len(ends) == 2:
        a, b = (local(end.grad) for end in ends)  # type: ignore[arg-type]
        a += b
        b.copy_(a)


def check_same(weight: nn.Parameter, other: Optional[nn.Parameter],
               names: Sequence[str], group: Any) -> None:
    """Raises RuntimeError on both ranks of a shared weight if its two ends are
    no longer equal to the bit. `other` is its second end if that is here."""
    if group is None:
        assert other is not None
        same = torch.equal(local(weight.detach()), local(other.detach()))
    else:
        # Sums of integers do not depend on their order.
        word = words_of(weight)
        ends = torch.stack([word, -word])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
        same = int(ends[0]) == -int(ends[1])
    if not same:
        raise RuntimeError(
            f"{names[0]} and {names[1]} are one weight, but its two ends "
            "differ: give both the same options in the optimizer (learning "
            "rate, weight decay), and load checkpoints into both")


def check_whole(named: Iterable[Tuple[str, nn.Parameter]]) -> None:
    """Raises ValueError for a parameter that is divided among processes, as
    fully_shard does: separate weight gradients and the sum over a shared
    weight's ends need it whole."""
    for name, parameter in named:
        if hasattr(parameter, "placements"):
            raise ValueError(
                f"{name} is a {type(parameter).__name__}: parameters of a "
                "pipeline cannot be divided by fully_shard beforehand; leave "
                "them whole, and give replicas= and shard=")


__all__ = ["add_up", "check_same", "check_whole", "clip_grad_norm", "local",
           "words_of"]
