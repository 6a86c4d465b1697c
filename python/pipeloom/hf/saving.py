"""Checkpoints written in parts, one from each rank."""
import os
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from pipeloom.hf.shards import INDEX, WeightsError, write_index, write_tensors


def raise_everywhere(error: Optional[Exception], group: Any) -> None:
    """Raises an error on all ranks if one of them has one: its own, or
    WeightsError with the first rank's words."""
    size = dist.get_world_size(group)
    every: List[Optional[str]] = [None] * size
    dist.all_gather_object(
        every, None if error is None else f"{type(error).__name__}: {error}",
        group=group)
    if error is not None:
        raise error
    for rank, words in enumerate(every):
        if words is not None:
            raise WeightsError(f"on rank {rank}: {words}")


def save_all(state: Dict[str, torch.Tensor], model: Any, folder: str,
             tied: Optional[Tuple[str, ...]], rank: int, group: Any) -> None:
    """Writes this rank's tensors and, on the first rank, the index and the
    configuration. `tied` are the names of one shared weight."""
    size = dist.get_world_size(group)
    if tied is not None:
        state = {name: t for name, t in state.items() if name != tied[1]}
    # Those of diffusers have another name.
    stem = "model" if hasattr(model, "base_model_prefix") else \
        "diffusion_pytorch_model"
    file = f"{stem}-{rank + 1:05d}-of-{size:05d}.safetensors"
    error: Optional[Exception] = None
    written = 0
    try:
        os.makedirs(folder, exist_ok=True)
        written = write_tensors(os.path.join(folder, file), state)
    except (OSError, KeyError) as caught:
        error = caught
    raise_everywhere(error, group)
    every: List[Any] = [None] * size
    dist.all_gather_object(every, (file, sorted(state), written), group=group)
    try:
        if rank == 0:
            write_index(os.path.join(folder, stem + INDEX),
                        {name: owner for owner, names, _ in every
                         for name in names}, sum(n for _, _, n in every))
            if hasattr(model, "save_config"):
                model.save_config(folder)
            elif hasattr(getattr(model, "config", None), "save_pretrained"):
                model.config.architectures = [type(model).__name__]
                model.config.save_pretrained(folder)
    except OSError as caught:
        error = caught
    raise_everywhere(error, group)


__all__ = ["raise_everywhere", "save_all"]
