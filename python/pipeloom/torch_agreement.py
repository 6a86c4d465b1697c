"""Agreement between the ranks of a training, over torch.distributed."""
import datetime
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from pipeloom.transport import global_ranks


class Agreement:
    """An all-gather of a few words over a process group of its own, on CPUs, so
    that it overlaps with the trainer's messages. See agreement()."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self([0])  # Connects, so that the first step does not wait for it.

    def __call__(self, words: Sequence[int]) -> List[List[int]]:
        mine = torch.tensor(list(words), dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self._group)
        return [[int(w) for w in g] for g in gathered]


def agreement(ranks: Optional[Sequence[int]] = None, *,
              patience: float = 86400.0) -> Agreement:
    """Returns the all-gather for PlanProvider. Every process of the training
    must call it, at the same place, as it makes a process group (gloo). `ranks`
    are all ranks that run plans, including those of all replicas and
    tensor-parallel groups; by default all processes. `patience`: seconds within
    which the slowest rank must come to a step (it may write a checkpoint); a
    rank that died is noticed at once."""
    return Agreement(dist.new_group(
        None if ranks is None else list(ranks), backend="gloo",
        timeout=datetime.timedelta(seconds=patience)))


def of_first_rank(make: Callable[[], Any], group: Any = None) -> Any:
    """Calls `make` on the first rank of the group only and returns its result
    on all ranks, so that, for example, a job's partition is the same
    everywhere. An exception of `make` is raised on all ranks."""
    first = dist.get_rank(group) == 0
    answer: List[Any] = [None, None]
    if first:
        try:
            answer[0] = make()
        except Exception as error:  # pylint: disable=broad-except
            answer[1] = f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(
        answer, global_ranks(group, dist.get_world_size(group))[0],
        group=group)
    if answer[1] is not None:
        raise RuntimeError(f"on the first rank: {answer[1]}")
    return answer[0]


def same_everywhere(checksum: Tuple[int, int], refuses: bool, group: Any,
                    device: str) -> Tuple[bool, List[int]]:
    """Returns whether all ranks of the group hold this checksum, and which of
    them refuse. `device`: where the group's tensors live."""
    words = []
    for half in checksum:  # Words of 32 bits, as int64 is signed.
        words += [half >> 32, half & 0xffffffff]
    mine = torch.tensor(words + [int(refuses)], dtype=torch.int64,
                        device=device)
    gathered = [torch.empty_like(mine)
                for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    every = [[int(word) for word in other] for other in gathered]
    return (all(other[:-1] == words for other in every),
            [r for r, other in enumerate(every) if other[-1]])
