"""Tensors that autograd saves, in host memory from the forward to the
backward."""
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch

from pipeloom.recompute import storage_of


class _Held:
    """All elements of one storage, in a row."""
    __slots__ = ("whole", "away")

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole
        self.away = False


class HostStore:
    """What is saved inside of saving() goes to the host at leave() and is back
    after back(), both whenever the plan says. Parameters stay where they
    are."""

    def __init__(self, device: torch.device,
                 parameters: Iterable[torch.Tensor]) -> None:
        self._device = device
        self._stays = {storage_of(p)._cdata for p in parameters}
        # By storage; the tensor keeps its address from being used again.
        self._saved: Dict[int, _Held] = {}
        self._away: List[_Held] = []

    def saving(self) -> Any:
        """A context manager around a layer's forward."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> Tuple[
            Optional[_Held], Any]:
        storage = storage_of(tensor)
        if storage._cdata in self._stays:
            return None, tensor
        held = self._saved.get(storage._cdata)
        if held is None:
            elements = storage.nbytes() // tensor.element_size()
            held = _Held(tensor.detach().as_strided((elements,), (1,), 0))
            self._saved[storage._cdata] = held
        return held, (tensor.size(), tensor.stride(), tensor.storage_offset())

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype,
                           pin_memory=self._device.type == "cuda")
        return host.copy_(tensor)

    def leave(self) -> None:
        for held in self._saved.values():
            held.whole = self._to_host(held.whole)
            held.away = True
            self._away.append(held)
        self._saved = {}

    def back(self) -> None:
        for held in self._away:
            held.whole = held.whole.to(self._device, copy=True)
            held.away = False
        self._away = []


def _unpack(packed: Tuple[Optional[_Held], Any]) -> torch.Tensor:
    held, view = packed
    if held is None:
        return view
    if held.away:
        raise RuntimeError("a tensor is needed that is still on the host")
    return held.whole.as_strided(*view)
