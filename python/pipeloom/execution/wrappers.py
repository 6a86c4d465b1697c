"""Wrappers of modules that a stage must not have, as they sum gradients
themselves."""
from typing import Mapping, Optional

from torch import nn

try:
    from torch.distributed._composable.contract import REGISTRY_KEY
except ImportError:  # torch 1.13.
    REGISTRY_KEY = ""

_DIVIDE = ("FullyShardedDataParallel", "FSDPModule")
_NAMES = (*_DIVIDE, "DistributedDataParallel", "ReplicateModule")


def _wrapper_of(module: nn.Module) -> Optional[str]:
    """Returns the name of the class or function that has wrapped a module, or
    None."""
    if "replicate" in (vars(module).get(REGISTRY_KEY) or ()):
        return "replicate"
    # pipeloom.hf divides its layers with fully_shard, and has it sum gradients
    # once, at the end of a step.
    if getattr(module, "is_divided", False):
        return None
    classes = [c.__name__ for c in type(module).__mro__]
    return next((name for name in _NAMES if name in classes), None)


def check_wrappers(stages: Mapping[int, nn.Module]) -> None:
    """ValueError: a stage has a module that sums gradients over replicas in
    each backward."""
    for stage, module in stages.items():
        for m in module.modules():
            name = _wrapper_of(m)
            if name is None:
                continue
            called = "fully_shard" if name == "FSDPModule" else name
            raise ValueError(
                f"stages[{stage}] has a module of {called}, which averages "
                "gradients over the replicas in each backward, in an order "
                "that plans of replicas do not share; give the module without it, "
                "and add up gradients in reduce_fn" +
                ("; for models of transformers, pipeloom.hf.Pipeline divides "
                 "parameters by shard=" if name in _DIVIDE else ""))
