"""Gradients over all stages of a pipeline."""
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def clip_grad_norm(parameters: List[nn.Parameter],
                   counted_elsewhere: Optional[nn.Parameter], max_norm: float,
                   norm_type: float, group: Any, device: Any) -> torch.Tensor:
    """Does what torch.nn.utils.clip_grad_norm_ does, over all ranks of the
    group. `counted_elsewhere` is scaled, but left out of the norm."""
    if not norm_type > 0:
        raise ValueError(f"norm_type is {norm_type}; it must be above 0")
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(
        p.grad, norm_type, dtype=torch.promote_types(
            p.grad.dtype, torch.float32)).double()
             for p in parameters
             if p.grad is not None and p is not counted_elsewhere]
    most = norm_type == float("inf")
    every = torch.stack(norms) if norms else torch.zeros(
        1, dtype=torch.float64, device=device)
    shared = every.max() if most else (every ** norm_type).sum()
    dist.all_reduce(shared, op=dist.ReduceOp.MAX if most else dist.ReduceOp.SUM,
                    group=group)
    norm = shared if most else shared ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm


def check_same(weight: nn.Parameter, names: Sequence[str],
               group: Any) -> None:
    """Raises RuntimeError on both ranks of a shared weight if its two ends are
    no longer equal to the bit."""
    flat = weight.detach().contiguous().reshape(-1)
    # Sums of integers do not depend on their order.
    word = flat.view(_WORDS[flat.element_size()]).sum(dtype=torch.int64)
    ends = torch.stack([word, -word])
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    if int(ends[0]) != -int(ends[1]):
        raise RuntimeError(
            f"{names[0]} and {names[1]} are one weight, but its ends on two "
            "ranks differ: give both the same options in the optimizer "
            "(learning rate, weight decay), and load checkpoints into both")


def check_whole(named: Iterable[Tuple[str, nn.Parameter]]) -> None:
    """Raises ValueError for a parameter that is divided among processes, as
    fully_shard does: separate weight gradients and the sum over a shared
    weight's ends need it whole."""
    for name, parameter in named:
        if hasattr(parameter, "placements"):
            raise ValueError(
                f"{name} is a {type(parameter).__name__}: parameters of a "
                "pipeline cannot be divided by fully_shard; keep replicas "
                "whole, and average their gradients in reduce_fn")


__all__ = ["check_same", "check_whole", "clip_grad_norm"]
