"""Recomputation of results that are thrown away in the forward and made again
in the backward.

A layer lists its parts for which that is possible, by the plan's names of
operator groups:

    class Block(nn.Module):
        operator_groups = ("norms", "activations")  # The layer has no others.

        def forward(self, x, item):
            y = again("norms", self.norm, x)
            u = self.up(y)                    # Saves y for its weights.
            return x + self.down(again("activations", F.gelu, u))

If the plan recomputes a group of the layer, autograd keeps nothing that the
function makes: neither the tensors that it saves for itself, nor its result,
wherever that is saved. When the first operator of the backward needs one of
them, the function runs again, from its inputs, or from their inputs if they
were thrown away, too. Elsewhere again(group, f, *x) is f(*x).
"""
import contextlib
import functools
import threading
from typing import (Any, Callable, Collection, Dict, Iterator, List, Optional,
                    Tuple)

import torch
from torch import nn

from pipeloom.execution.second_run import Habits, TwoRuns
from pipeloom.weight_gradients import autocast_of

GROUPS = ("core_attention", "norms", "activations", "moe_activations",
          "projections")


class _Packed:
    """A saved tensor: the tensor itself, or the region that makes it again."""
    __slots__ = ("kept", "version", "requires_grad", "region", "output",
                 "index", "view")

    def __init__(self) -> None:
        self.kept: Any = None
        self.version = 0
        self.requires_grad = False
        self.region: Optional["_Region"] = None
        self.output = False  # Else a tensor that the region saved.
        self.index = 0
        self.view: Any = None  # Sizes, strides and offset.

    def unpack(self) -> Any:
        if self.region is None:
            if self.kept._version != self.version:
                raise RuntimeError(
                    "a tensor that the backward needs, or that again() makes "
                    "results from again, was changed in place after the "
                    "forward has used it; change a copy of it")
            return self.kept
        self.region.make_again()
        if not self.output:
            return self.region.saved[self.index]
        made = self.region.outputs[self.index]
        # Divided tensors have no other views of their storage.
        return (made if self.view == _view_of(made) else
                made.as_strided(*self.view))


def _view_of(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()


class _Region:
    """A call whose results are thrown away."""

    def __init__(self, make: Callable[..., Any], inputs: List[Any],
                 surroundings: "_Surroundings", runs: TwoRuns) -> None:
        self.make = make
        self.inputs = inputs
        self.surroundings = surroundings
        self.runs = runs
        self.made = False
        self.outputs: Tuple[Any, ...] = ()
        self.saved: List[torch.Tensor] = []

    def make_again(self) -> None:
        if self.made:
            return
        self.made = True
        inputs = []
        for packed in self.inputs:
            if not isinstance(packed, _Packed):
                inputs.append(packed)
                continue
            inputs.append(packed.unpack().detach().requires_grad_(
                packed.requires_grad))

        def collect(tensor: torch.Tensor) -> torch.Tensor:
            self.saved.append(tensor.detach())
            return self.saved[-1]

        with self.surroundings.restored(), torch.enable_grad(), \
                self.runs.run(None), \
                torch.autograd.graph.saved_tensors_hooks(collect, lambda t: t):
            outputs = self.make(*inputs)
        self.outputs = tuple(t.detach() if isinstance(t, torch.Tensor) else t
                             for t in _as_tuple(outputs))
        self.inputs = []


class _Surroundings:
    """The states of random numbers and autocast when a call begins."""

    def __init__(self, device: torch.device) -> None:
        self.rng = rng_state(device)
        self.device = device
        self.gpu = autocast_of("cuda")
        self.cpu = autocast_of("cpu")

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(with_rng(self.rng, self.device))
            if self.device.type == "cuda":
                stack.enter_context(torch.autocast(
                    "cuda", dtype=self.gpu[1], enabled=self.gpu[0]))
            stack.enter_context(torch.autocast(
                "cpu", dtype=self.cpu[1], enabled=self.cpu[0]))
            yield


class _Scope:
    """A layer's calls while its forward runs, and the storages of their
    results."""

    def __init__(self, groups: Collection[str], device: torch.device,
                 runs: Callable[[int], TwoRuns]) -> None:
        self.groups = frozenset(groups)
        self.device = device
        self.runs = runs
        self.calls = 0
        # Indexed by storage, with the version that was made; a weak reference
        # keeps its address from being reused.
        self.made: Dict[Any, Tuple[Any, _Region, int, int]] = {}
        self.inside: Optional[_Region] = None
        self.inside_inputs: Collection[Any] = ()
        self.saved_inside = 0

    def pack(self, tensor: torch.Tensor) -> _Packed:
        packed = _Packed()
        packed.requires_grad = tensor.requires_grad
        key = _key_of(tensor)
        made = self.made.get(key)
        if made is not None and not made[0].expired() and (
                made[3] == tensor._version):
            _, packed.region, packed.index, _ = made
            packed.output = True
            packed.view = _view_of(tensor)
        elif self.inside is not None and key not in self.inside_inputs:
            packed.region = self.inside
            packed.index = self.saved_inside
        else:
            packed.kept = tensor.detach()
            packed.version = tensor._version
        return packed

    def pack_saved(self, tensor: torch.Tensor) -> _Packed:
        packed = self.pack(tensor)
        self.saved_inside += 1
        return packed

    def run(self, make: Callable[..., Any], inputs: Tuple[Any, ...]) -> Any:
        if self.inside is not None:
            raise RuntimeError("again() inside of again()")
        packed = [self.pack(t) if isinstance(t, torch.Tensor) else t
                  for t in inputs]
        region = _Region(make, packed, _Surroundings(self.device),
                         self.runs(self.calls))
        self.calls += 1
        self.inside = region
        self.inside_inputs = {_key_of(t) for t in inputs
                              if isinstance(t, torch.Tensor)} - {None}
        self.saved_inside = 0
        try:
            with region.runs.run(None):
                outputs = make(*inputs)
        finally:
            self.inside = None
        for index, t in enumerate(_as_tuple(outputs)):
            if not isinstance(t, torch.Tensor):
                continue
            key = _key_of(t)
            if key is not None and key not in self.inside_inputs:
                self.made[key] = (_WeakStorage(t), region, index, t._version)
        return outputs


class _WeakStorage:

    def __init__(self, tensor: torch.Tensor) -> None:
        self._kind = type(storage_of(tensor))
        self._weak = storage_of(tensor)._weak_ref()

    def expired(self) -> bool:
        return self._kind._expired(self._weak)

    def __del__(self) -> None:
        self._kind._free_weak_ref(self._weak)


def storage_of(tensor: torch.Tensor) -> Any:
    """Returns the untyped storage."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor.storage().untyped()  # torch 1.13


def is_one_array(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in one storage of the tensor's own, unlike those
    of sparse and nested tensors."""
    return tensor.layout == torch.strided and not tensor.is_nested


def _key_of(tensor: torch.Tensor) -> Optional[int]:
    return storage_of(tensor)._cdata if is_one_array(tensor) else None


def _as_tuple(outputs: Any) -> Tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


class _Current(threading.local):
    scope: Optional[_Scope] = None


_CURRENT = _Current()


def again(group: str, make: Callable[..., Any], *inputs: Any) -> Any:
    """Returns make(*inputs), a tensor or a tuple, which is made again in the
    backward if the plan recomputes the group. REQUIRES: all tensors that `make`
    reads are inputs, except parameters and tensors that outlive the backward;
    it may use random numbers of torch. ValueError: there is no such group."""
    if group not in GROUPS:
        raise ValueError(f"operator group {group!r}; there are "
                         f"{', '.join(GROUPS)}")
    scope = _CURRENT.scope
    if (scope is None or group not in scope.groups or
            not torch.is_grad_enabled()):
        return make(*inputs)
    return scope.run(make, inputs)


@contextlib.contextmanager
def making_again(groups: Collection[str], device: torch.device,
                 layer: Tuple[nn.Module, ...] = (),
                 habits: Optional[Habits] = None) -> Iterator[None]:
    """A context around a layer's forward in which results of these groups are
    thrown away and made again, with the layer's buffers as they were."""
    runs = functools.partial(TwoRuns, habits or Habits(), layer)
    before = _CURRENT.scope
    scope = _Scope(groups, device, runs)
    _CURRENT.scope = scope
    try:
        with torch.autograd.graph.saved_tensors_hooks(
                scope.pack_saved, lambda packed: packed.unpack()):
            yield
    finally:
        _CURRENT.scope = before
        # The hooks live as long as the graph; results that are made again live
        # only as long as the operators that saved them.
        scope.made.clear()


def rng_state(device: torch.device) -> Any:
    return (torch.get_rng_state(),
            torch.cuda.get_rng_state(device) if device.type == "cuda"
            else None)


@contextlib.contextmanager
def with_rng(state: Any, device: torch.device) -> Iterator[None]:
    """A context with an earlier state of random numbers; restores the current
    state afterwards."""
    now = rng_state(device)
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
    try:
        yield
    finally:
        torch.set_rng_state(now[0])
        if now[1] is not None:
            torch.cuda.set_rng_state(now[1], device)
