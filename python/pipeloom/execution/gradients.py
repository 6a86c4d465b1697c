"""The norm of gradients over all stages of a pipeline."""
from typing import Any, Collection, Dict, Iterable, List

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


def meshes_of(parameters: Iterable[nn.Parameter]) -> List[Any]:
    """Returns the meshes of processes that divide some parameters, each once,
    in an order that is the same on all of a mesh's processes."""
    return list(dict.fromkeys(p.device_mesh for p in parameters
                              if hasattr(p, "device_mesh")))


def reduce_over(mesh: Any, value: torch.Tensor, op: Any) -> None:
    """Reduces a value over all processes of a mesh."""
    for dimension in range(mesh.ndim):
        dist.all_reduce(value, op=op, group=mesh.get_group(dimension))


def summed(gradient: Any) -> torch.Tensor:
    """Returns a divided tensor with the sum of what its processes have, if each
    has a term of it."""
    placements = getattr(gradient, "placements", ())
    if not any(p.is_partial() for p in placements):
        result: torch.Tensor = gradient
        return result
    from torch.distributed.tensor import Replicate
    result = gradient.redistribute(
        placements=[Replicate() if p.is_partial() else p for p in placements])
    return result


def clip_grad_norm(parameters: List[nn.Parameter],
                   counted_elsewhere: Collection[nn.Parameter], max_norm: float,
                   norm_type: float, group: Any, device: Any) -> torch.Tensor:
    """Does what torch.nn.utils.clip_grad_norm_ does, over all ranks of the
    group and, of divided parameters, over the processes that divide them.
    `counted_elsewhere` are scaled, but left out of the norm."""
    if not norm_type > 0:
        raise ValueError(f"norm_type is {norm_type}; it must be above 0")
    most = norm_type == float("inf")
    combine = dist.ReduceOp.MAX if most else dist.ReduceOp.SUM
    elsewhere = {id(p) for p in counted_elsewhere}
    # Indexed by mesh, None for whole parameters. All processes of a mesh reduce
    # its terms, whatever gradients they have.
    terms: Dict[Any, List[torch.Tensor]] = {None: []}
    terms.update((mesh, []) for mesh in meshes_of(parameters))
    gradients = []
    for p in parameters:
        if p.grad is None:
            continue
        whole = summed(p.grad)
        gradients.append(local(p.grad))
        if id(p) not in elsewhere and local(whole).numel():
            terms[getattr(p, "device_mesh", None)].append(
                _term(whole, norm_type, 1 if most else _equal(whole)))
    shared = torch.zeros((), dtype=torch.float64, device=device)
    for mesh, its in terms.items():
        every = torch.stack(its) if its else shared.new_zeros(1)
        part = every.max() if most else every.sum()
        if mesh is not None:
            reduce_over(mesh, part, combine)
        shared = torch.maximum(shared, part) if most else shared + part
    dist.all_reduce(shared, op=combine, group=group)
    norm = shared if most else shared ** (1.0 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm


def _term(gradient: torch.Tensor, norm_type: float,
          equal: int) -> torch.Tensor:
    """Returns what a gradient adds to the power of the norm on each of `equal`
    processes that have the same part of it; with the maximum norm, its norm."""
    own = local(gradient)
    norm = torch.linalg.vector_norm(
        own, norm_type, dtype=torch.promote_types(own.dtype, torch.float32)
    ).double()
    return norm if norm_type == float("inf") else norm ** norm_type / equal


def _equal(gradient: torch.Tensor) -> int:
    """Returns how many processes have the same part of a gradient, which may be
    divided otherwise than its parameter."""
    count = 1
    for dimension, placement in enumerate(getattr(gradient, "placements", ())):
        if placement.is_replicate():
            count *= gradient.device_mesh.size(  # type: ignore[attr-defined]
                dimension)
    return count
