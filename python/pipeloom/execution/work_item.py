"""The work of one call of a stage."""
import dataclasses
from typing import Any, List, Optional, Tuple

import torch

from pipeloom.sample import Sample


class AddedLosses:
    """Losses that the layers of a stage add, each with its weight, while the
    stage runs. A layer that runs again within a backward adds nothing."""

    def __init__(self) -> None:
        self._is_open = False
        self._losses: List[Tuple[torch.Tensor, float]] = []

    def begin(self) -> None:
        self._is_open, self._losses = True, []

    def add(self, loss: torch.Tensor, weight: float) -> None:
        if self._is_open:
            self._losses.append((loss, weight))

    def end(self) -> List[Tuple[torch.Tensor, float]]:
        """Returns the losses that were added since begin()."""
        losses, self._losses, self._is_open = self._losses, [], False
        return losses


@dataclasses.dataclass(frozen=True)
class WorkItem:
    """The work of one call of a stage. `loss_weight` is the weight of the mean
    loss of this sub-microbatch; if its module has none, the part of the
    microbatch's weight that the sub-microbatch has by its tokens. `pieces` are
    those of Microbatch: which samples are here in part."""
    task: int
    module: str
    stage: int
    microbatch: int
    sub: int
    samples: Tuple[int, ...]
    first_instance: int
    instances: int
    loss_weight: float
    batch: Any
    pieces: Tuple[Optional[Sample], ...] = ()
    added: AddedLosses = dataclasses.field(default_factory=AddedLosses,
                                           repr=False, compare=False)

    def add_loss(self, loss: torch.Tensor,
                 weight: Optional[float] = None) -> None:
        """Adds a loss of this stage to that of the step, such as the balance of
        its experts or a contrastive loss of an encoder: any stage of any module
        may call it. `weight` is its share in the step's loss; by default
        loss_weight, that of a mean. TypeError: not a tensor with one number."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = (f"a tensor of shape {tuple(loss.shape)}"
                    if isinstance(loss, torch.Tensor) else
                    f"a {type(loss).__name__}")
            raise TypeError(f"add_loss got {what} in stage {self.stage} of "
                            f"{self.module}; it must be a tensor with one "
                            "number")
        self.added.add(loss, self.loss_weight if weight is None else weight)
