"""A store that keeps tensors saved by autograd in host memory from the forward
to the backward."""
import contextlib
import functools
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch

from pipeloom.execution.gradients import local
from pipeloom.recompute import is_one_array, storage_of


class _Held:
    """All elements of one storage, as one dimension."""
    __slots__ = ("whole", "away", "version")

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole
        self.away = False
        # The version that has left; None: none has.
        self.version: Optional[int] = None


class HostStore:
    """Tensors saved inside of saving() go to the host at leave() and return at
    back(), both at the times that the plan says. Parameters stay on the
    device, and so do tensors made of several others, such as sparse, nested and
    quantized ones."""

    def __init__(self, device: torch.device,
                 parameters: Iterable[torch.Tensor]) -> None:
        self._device = device
        self._stays = {storage_of(own)._cdata for p in parameters
                       for own in (local(p.detach()),) if _can_leave(own)}
        # Indexed by storage; the tensor keeps its address from being reused.
        self._saved: Dict[int, _Held] = {}
        self._away: List[_Held] = []

    def saving(self) -> Any:
        """Returns a context manager around a layer's forward."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> Tuple[
            Optional[_Held], Any]:
        if hasattr(tensor, "placements"):
            own = tensor.detach()
            held, view = self._pack(local(own))
            return held, _Divided(view, own) if held is not None else tensor
        if not _can_leave(tensor):
            return None, tensor.detach()
        storage = storage_of(tensor)
        if storage._cdata in self._stays:
            return None, tensor
        held = self._saved.get(storage._cdata)
        if held is None:
            elements = storage.nbytes() // tensor.element_size()
            held = _Held(tensor.detach().as_strided((elements,), (1,), 0))
            self._saved[storage._cdata] = held
        return held, (tensor._version, tensor.size(), tensor.stride(),
                      tensor.storage_offset())

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype,
                           pin_memory=self._device.type == "cuda")
        return host.copy_(tensor)

    def leave(self) -> None:
        """Moves all saved tensors to the host."""
        for held in self._saved.values():
            held.version = held.whole._version
            held.whole = self._to_host(held.whole)
            held.away = True
            self._away.append(held)
        self._saved = {}

    def back(self) -> None:
        """Moves all tensors back to the device."""
        for held in self._away:
            held.whole = held.whole.to(self._device, copy=True)
            held.away = False
        self._away = []


def _can_leave(tensor: torch.Tensor) -> bool:
    return (is_one_array(tensor) and
            not hasattr(tensor, "__tensor_flatten__"))  # A wrapper of others.


class _Divided:
    """The view of the part that this process has of a divided tensor."""
    __slots__ = ("view", "_make")

    def __init__(self, view: Any, whole: Any) -> None:
        self.view = view
        self._make = functools.partial(
            type(whole).from_local, device_mesh=whole.device_mesh,
            placements=whole.placements, run_check=False, shape=whole.shape,
            stride=whole.stride())

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self._make(part)
        return made


def _unpack(packed: Tuple[Optional[_Held], Any]) -> torch.Tensor:
    held, view = packed
    if held is None:
        return view
    if isinstance(view, _Divided):
        return view.whole(_unpack((held, view.view)))
    if held.away:
        raise RuntimeError("a tensor is needed that is still on the host")
    version, *place = view
    if version != (held.whole._version if held.version is None
                   else held.version):
        raise RuntimeError("a tensor that the backward needs was changed in "
                           "place after the forward has used it, and before it "
                           "was offloaded; change a copy of it")
    return held.whole.as_strided(*place)


def saving(host: Optional[HostStore]) -> Any:
    """Returns a context manager around a forward whose saved tensors go to the
    store, if there is one."""
    return contextlib.nullcontext() if host is None else host.saving()
