"""Weights of one rank: of a model on the meta device, only the parameters of
its own stages are read from a checkpoint."""
import contextlib
import copy
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

import torch
from torch import nn

from pipeloom.hf.shards import Entry, WeightsError, find_tensors, read_tensor


def is_meta(model: nn.Module) -> bool:
    """Returns whether all parameters are on the meta device. ValueError: only
    some are."""
    meta = [p.is_meta for p in model.parameters()]
    if any(meta) and not all(meta):
        raise ValueError(
            f"{sum(meta)} of {len(meta)} parameters of "
            f"{type(model).__name__} are on the meta device: make the whole "
            "model there, or none of it")
    return any(meta)


def load_own(model: nn.Module, own: Callable[[str], bool], weights: str,
             device: Any) -> int:
    """Gives parameters and buffers of a model on the meta device their values:
    those in the places that `own` accepts, and the buffers outside of layers.
    Names are those of the model, or those that transformers takes for them.
    Returns the bytes of the parameters that were read.
    WeightsError: a tensor is missing or has another shape."""
    # Also the second names of shared parameters.
    names = {f"{path}.{name}" if path else name: p
             for path, module in model.named_modules(remove_duplicate=False)
             for name, p in module._parameters.items() if p is not None}
    wanted = [name for name in names if own(name)]
    state = set(model.state_dict(keep_vars=True))
    buffers = {name: tuple(b.shape) for name, b in model.named_buffers()
               if b.is_meta and own(name)}
    stored = sorted(state & set(buffers))
    entries = _by_own_names(model, find_tensors(weights))
    made: Dict[int, nn.Parameter] = {}
    missing: List[str] = []
    read = 0
    for name in wanted:
        meta = names[name]
        if id(meta) in made:  # Shared by two modules of this rank.
            _put(model, name, made[id(meta)])
            continue
        key = next((n for n, p in names.items()
                    if p is meta and n in entries), None)
        if key is None:
            missing.append(name)
            continue
        value = _read(entries[key], name, tuple(meta.shape)).to(
            device=device, dtype=meta.dtype)
        made[id(meta)] = nn.Parameter(value, requires_grad=meta.requires_grad)
        read += value.numel() * value.element_size()
        _put(model, name, made[id(meta)])
    missing += [name for name in stored if name not in entries]
    if missing:
        raise WeightsError(
            f"{weights} has no tensor for {', '.join(missing[:4])}"
            f"{f' and {len(missing) - 4} more' if len(missing) > 4 else ''} of "
            f"{type(model).__name__}: is it a checkpoint of this class, and "
            "complete?")
    values = {name: _read(entries[name], name, buffers[name])
              for name in stored}
    if set(buffers) - state:
        values.update(_computed_buffers(model, set(buffers) - state))
    for name, value in values.items():
        owner, last = _owner(model, name)
        owner._buffers[last] = value.to(  # type: ignore[assignment]
            device=device, dtype=owner._buffers[last].dtype)  # type: ignore
    return read


def _read(entry: Entry, name: str, shape: Tuple[int, ...]) -> torch.Tensor:
    if entry.shape != shape:
        raise WeightsError(
            f"{entry.file} has {name} with shape {list(entry.shape)}; the "
            f"model's is {list(shape)}: is config.json that of these weights?")
    return read_tensor(name, entry)


def _owner(model: nn.Module, name: str) -> Tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    here: Any = model
    for part in path.split(".") if path else ():
        here = here._modules[part]
    return here, last


def _put(model: nn.Module, name: str, value: nn.Parameter) -> None:
    owner, last = _owner(model, name)
    owner._parameters[last] = value


def _by_own_names(model: nn.Module,
                  entries: Dict[str, Entry]) -> Dict[str, Entry]:
    """Returns the tensors by the model's own names. transformers renames those
    of checkpoints that were written for earlier classes."""
    try:
        from transformers.conversion_mapping import \
            get_model_conversion_mapping
        from transformers.core_model_loading import (WeightConverter,
                                                     rename_source_key)
    except ImportError:
        return entries
    if not hasattr(model, "base_model_prefix"):
        return entries
    transforms = get_model_conversion_mapping(model)
    convert = [t for t in transforms if isinstance(t, WeightConverter)]
    rename = [t for t in transforms if not isinstance(t, WeightConverter)]
    state = model.state_dict(keep_vars=True)
    result = {}
    for key in sorted(entries):
        name, converter = rename_source_key(
            key, rename, convert, model.base_model_prefix, state)
        if converter is not None:
            raise WeightsError(
                f"{entries[key].file} has {key}, which transformers converts "
                f"to {name}: write the checkpoint once more by from_pretrained("
                "...).save_pretrained(FOLDER, save_original_format=False)")
        result[name] = entries[key]
    return result


def _computed_buffers(model: nn.Module,
                      names: Iterable[str]) -> Dict[str, torch.Tensor]:
    """Returns buffers that no checkpoint has, such as frequencies of rotary
    embeddings: those of the same class, made again without parameters."""
    wanted: Set[str] = set(names)
    config: Any = getattr(model, "config", None)
    kind: Any = type(model)
    if config is None:
        raise WeightsError(
            f"buffers {sorted(wanted)[:4]} of {kind.__name__} are on the meta "
            "device, and the model has no `config` to compute them from: make "
            "them on another device")
    make = getattr(kind, "from_config", None) or kind
    if hasattr(kind, "base_model_prefix"):  # A class of transformers.
        make = kind
    with _parameters_on_meta():
        again = make(copy.deepcopy(config))
    found = {name: b for name, b in again.named_buffers() if name in wanted}
    lost = sorted(wanted - set(found))
    if lost:
        raise WeightsError(f"{kind.__name__}(config) has no buffers "
                           f"{lost[:4]}: was the model changed after it was "
                           "made?")
    return found


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A context in which modules are made with their parameters on the meta
    device and their buffers on the CPU."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, value: Any) -> None:
        if value is not None and not value.is_meta:
            value = nn.Parameter(torch.empty_like(value, device="meta"),
                                 requires_grad=value.requires_grad)
        register(self, name, value)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        with contextlib.ExitStack() as stack:
            if hasattr(torch, "get_default_device"):
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
