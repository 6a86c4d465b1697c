"""Weights with an end on each of several ranks."""
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.execution.gradients import local, words_of
from pipeloom.transport import has_local_groups, new_group


class TiedWeights:
    """Sums the gradients of weights that several ranks of a pipeline share.
    `mine` are those of this rank, by names that all its ends give. ValueError,
    on all ranks: ends differ in shape, type or values. Every process of the
    group must make one."""

    def __init__(self, mine: Mapping[str, nn.Parameter], rank: int,
                 ranks: Sequence[int], group: Any, device: str) -> None:
        self._mine = dict(mine)
        self._device = device
        self._groups: Dict[str, Any] = {}
        # Gradients of earlier runs, as only those of this run are summed.
        self._before: Dict[str, Any] = {}
        self._reduced = True
        self.elsewhere: List[nn.Parameter] = []  # Those that others count.
        every: List[Any] = [None] * len(ranks)
        dist.all_gather_object(every, {
            name: (tuple(p.shape), str(p.dtype), p.requires_grad,
                   int(words_of(p))) for name, p in self._mine.items()},
            group=group)
        if not has_local_groups() and len(ranks) < dist.get_world_size():
            raise ValueError(f"tied= in one of several pipelines needs torch "
                             f"2.1 or later; this is {torch.__version__}")
        for name in sorted(set().union(*every)):
            ends = [r for r, its in enumerate(every) if name in its]
            for r in ends[1:]:
                if every[r][name] != every[ends[0]][name]:
                    raise ValueError(
                        f"tied[{name!r}] differs on ranks {ends[0]} and {r}, in "
                        "shape, type, requires_grad or values: the ends of a "
                        "weight must begin alike")
            if len(ends) < 2:
                continue
            # The names of later groups count the groups that a rank has made,
            # so that a rank without an end makes a group of itself.
            alone = has_local_groups() and rank not in ends
            made = new_group([ranks[rank]] if alone else
                             [ranks[r] for r in ends])
            if rank in ends:
                self._groups[name] = made
                if rank != ends[0]:
                    self.elsewhere.append(self._mine[name])

    def begin(self) -> Optional[RuntimeError]:
        """Begins a run. Returns an error, on all ends, if they are not equal.
        """
        different = []
        for name, group in self._groups.items():
            word = words_of(self._mine[name]).to(self._device)
            ends = torch.stack([word, -word])
            dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
            if int(ends[0]) != -int(ends[1]):
                different.append(name)
        if different:
            return RuntimeError(
                f"the ends of the weight {', '.join(different)} of `tied` are "
                "no longer equal: give them the same options in the optimizers "
                "of all their ranks (learning rate, weight decay), and load "
                "checkpoints into all")
        for name in self._groups:
            p = self._mine[name]
            self._before[name], p.grad = p.grad, None
        self._reduced = False
        return None

    def reduce(self) -> None:
        """Gives all ends the sum of their gradients in this run, once."""
        if self._reduced:
            return
        self._reduced = True
        for name, group in self._groups.items():
            p = self._mine[name]
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                # A lookup may give a divided table a whole gradient.
                placements = getattr(p, "placements", None)
                whole: Any = p.grad
                if placements != getattr(whole, "placements", None):
                    p.grad = whole.redistribute(placements=placements)
                dist.all_reduce(local(p.grad), group=group)
        self.end()

    def end(self) -> None:
        """Adds the gradients of earlier runs again, once, after a run that has
        failed, too."""
        for name, before in self._before.items():
            p = self._mine[name]
            if before is not None:
                p.grad = before if p.grad is None else p.grad.add_(before)
        self._before = {}
