"""A model without its layers, whose own forward still computes what lies around
them: position ids, masks, the place of images in the text, and the order of
patches.

Its layers and other modules with parameters are replaced by stand-ins. A run
calls the real forward; a stand-in then acts as the real module, gives a value
that the run has for it, or hands its input on. The stand-in of a layer notes
the arguments that the layer would get, and the last one can give the output of
all layers. So positions and masks are those of the model's own code.
"""
import contextlib
import dataclasses
import types
from typing import (Any, Callable, Collection, Dict, Iterable, Iterator, List,
                    Mapping, Optional, Tuple)

import torch
from torch import nn

Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]


@dataclasses.dataclass
class Run:
    """One call of a model's forward without the layers of a chain."""
    layers: str
    real: Collection[str] = ()
    values: Mapping[str, Callable[..., Any]] = dataclasses.field(
        default_factory=dict)
    inject: Optional[torch.Tensor] = None
    # Filled in by the stand-ins.
    first: Optional[torch.Tensor] = None
    arguments: Dict[int, Arguments] = dataclasses.field(default_factory=dict)
    notes: Dict[str, Any] = dataclasses.field(default_factory=dict)


def _plain(module: nn.Module) -> Dict[str, Any]:
    """Returns the attributes of a module that a model's forward may read: those
    without tensors."""
    return {k: v for k, v in vars(module).items()
            if not k.startswith("_") and k != "training" and
            isinstance(v, (int, float, str, bool, tuple, list, type(None)))}


class StandIn(nn.Module):
    """Takes the place of a module. `place` is its path; `index` and `count` are
    set for layers."""

    def __init__(self, skeleton: "Skeleton", place: str, real: nn.Module,
                 layers: str = "", index: int = -1, count: int = 0) -> None:
        super().__init__()
        vars(self).update(_plain(real))
        vars(self).update(_skeleton=skeleton, _place=place, _layers=layers,
                          _index=index, _count=count)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = self._skeleton.current
        if run is None:
            raise RuntimeError(
                f"{self._place} was moved to a pipeline stage: the model can "
                "only run by Pipeline.step now")
        if self._place in run.real:
            return self._skeleton.real(self._place)(*args, **kwargs)
        if self._index >= 0 and self._layers == run.layers:
            return self._layer(run, args, dict(kwargs))
        if self._place in run.values:
            return run.values[self._place](*args, **kwargs)
        return args[0] if args else next(iter(kwargs.values()))

    def _layer(self, run: Run, args: Tuple[Any, ...],
               kwargs: Dict[str, Any]) -> Any:
        if args:
            x, args = args[0], args[1:]
        else:
            x = kwargs.pop("hidden_states")
        run.arguments[self._index] = (args, kwargs)
        if self._index == 0:
            run.first = x
        if self._index == self._count - 1 and run.inject is not None:
            return run.inject
        return x


class Skeleton:
    """Takes a model apart, in place. `places` are the paths of modules with
    parameters outside of layers and of single parameters; `layers` those of the
    lists of layers; `own` says whether this rank keeps what is at a path.
    Activations are made on `device`, by default that of the parameters."""

    def __init__(self, model: nn.Module, places: Iterable[str],
                 layers: Iterable[str], own: Callable[[str], bool],
                 device: Any = None) -> None:
        self.model = model
        self.current: Optional[Run] = None
        self._real: Dict[str, nn.Module] = {}
        self._parameters: Dict[str, nn.Parameter] = {}
        self._shapes: Dict[str, torch.Size] = {}
        self.types = {name: p.dtype for name, p in model.named_parameters()}
        self.device = (torch.device(device) if device is not None else
                       next(iter(model.parameters())).device)
        self._keep_types(model)
        for path in layers:
            kept = module_at(model, path)
            count = len(kept)  # type: ignore[arg-type]
            for i in range(count):
                place = f"{path}.{i}"
                layer = kept[i]  # type: ignore[index]
                if own(place):
                    self._real[place] = layer
                kept[i] = StandIn(self, place, layer,  # type: ignore[index]
                                  path, i, count)
        for place in places:
            self._take(place, own(place))
        left = [name for name, p in model.named_parameters() if p.numel() > 0]
        if left:
            raise ValueError(
                f"parameters {left[:4]} of {type(model).__name__} belong to no "
                "layer of its family's description: name their modules there, "
                "in `entry` or `exit` of a chain")

    def _keep_types(self, model: nn.Module) -> None:
        """Makes `model.dtype` and `model.device` go on working without
        parameters."""
        for module in list(model.modules()):
            if not isinstance(getattr(type(module), "dtype", None), property):
                continue
            first = next(iter(module.parameters()), None)
            if first is not None:
                module.register_parameter("_pipeloom_type", nn.Parameter(
                    torch.zeros(0, dtype=first.dtype, device=self.device),
                    requires_grad=False))

    def _take(self, place: str, own: bool) -> None:
        parent, name = parent_of(self.model, place)
        if name in parent._parameters:
            parameter = parent._parameters[name]
            assert parameter is not None
            if own:
                self._parameters[place] = parameter
            # The owner's stage registers it; here it is a plain tensor.
            del parent._parameters[name]
            vars(parent)[name] = (parameter if own else
                                  self.zeros(place, *parameter.shape))
            return
        real = parent._modules[name]
        assert real is not None
        if own:
            self._real[place] = real
        parent._modules[name] = StandIn(self, place, real)

    def lend(self, place: str, parameter: Optional[torch.Tensor]) -> None:
        """Gives the model's own forward the parameter at a path; None: zeros
        until the next call."""
        if place in self._parameters:  # Whole; only its shape is needed now.
            self._shapes[place] = self._parameters.pop(place).shape
        parent, name = parent_of(self.model, place)
        vars(parent)[name] = (self.zeros(place, *self._shapes[place])
                              if parameter is None else parameter)

    def zeros(self, like: str, *shape: int) -> torch.Tensor:
        """Returns zeros without memory, of the type of a parameter."""
        return torch.zeros(1, dtype=self.types[like],
                           device=self.device).expand(*shape)

    def real(self, place: str) -> nn.Module:
        """Returns the module that was at the path. KeyError: this rank does not
        keep it."""
        return self._real[place]

    def keeps(self, place: str) -> bool:
        """Returns whether this rank keeps the module at the path."""
        return place in self._real

    def parts(self, places: Iterable[str]) -> List[Tuple[str, Any]]:
        """Returns the modules and parameters at the paths."""
        return [(p, self._real[p] if p in self._real else self._parameters[p])
                for p in places]

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[None]:
        before, self.current = self.current, run
        try:
            yield
        finally:
            self.current = before


def module_at(model: nn.Module, path: str) -> nn.Module:
    """Returns the module at a path of names and indices with dots."""
    here: Any = model
    for name in path.split("."):
        here = here._modules[name]
    return here


def parent_of(model: nn.Module, path: str) -> Tuple[nn.Module, str]:
    """Returns the module that has the last name of the path."""
    head, _, name = path.rpartition(".")
    return (module_at(model, head) if head else model), name


class Output(types.SimpleNamespace):
    """Tensors by name, as a replaced part of a model returns them."""

    def to_tuple(self) -> Tuple[Any, ...]:
        """Models of transformers 5.24 and later read their parts so."""
        return tuple(vars(self).values())


@contextlib.contextmanager
def replaced(owner: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """A context in which methods of one object are others."""
    vars(owner).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(owner)[name]
