"""The norm of gradients over all stages of a pipeline."""
from typing import Any, Collection, List

import torch
import torch.distributed as dist
from torch import nn


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a divided tensor that this process has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum of a tensor's bits, as integers."""
    flat = local(tensor.detach()).contiguous().reshape(-1)
    return flat.view(_WORDS[flat.element_size()]).sum(dtype=torch.int64)


def clip_grad_norm(parameters: List[nn.Parameter],
                   counted_elsewhere: Collection[nn.Parameter], max_norm: float,
                   norm_type: float, group: Any, device: Any,
                   replicas: Any = None) -> torch.Tensor:
    """Does what torch.nn.utils.clip_grad_norm_ does, over all ranks of the
    group and, of divided parameters, over `replicas`. `counted_elsewhere` are
    scaled, but left out of the norm."""
    if not norm_type > 0:
        raise ValueError(f"norm_type is {norm_type}; it must be above 0")
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    elsewhere = {id(p) for p in counted_elsewhere}
    counted = [(local(p.grad), p) for p in parameters
               if p.grad is not None and id(p) not in elsewhere]
    norms = [torch.linalg.vector_norm(
        g, norm_type, dtype=torch.promote_types(g.dtype, torch.float32)
    ).double() for g, _ in counted if g.numel()]
    most = norm_type == float("inf")
    every = torch.stack(norms) if norms else torch.zeros(
        1, dtype=torch.float64, device=device)
    shared = every.max() if most else (every ** norm_type).sum()
    combine = dist.ReduceOp.MAX if most else dist.ReduceOp.SUM
    # Whole gradients are the same in all replicas.
    if any(hasattr(p, "placements") for p in parameters):
        dist.all_reduce(shared, op=combine, group=replicas)
    dist.all_reduce(shared, op=combine, group=group)
    norm = shared if most else shared ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm
