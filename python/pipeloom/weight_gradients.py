"""Weight gradients of nn.Linear layers, separate from their input gradients.

Gradients enter a parameter by autograd: in the parameter's data type, with its
hooks, and once for all calls of such layers in one forward. Gradients that
would be wrong or lost later are computed with the backward. They are those of
layers

- whose weight or bias is computed from other parameters (weight_norm, prune) or
  is a parameter of a module of another kind, too;
- whose `forward` was replaced;
- inside of modules that FSDP shards or torch.compile compiles, and in calls
  within torch.func.vmap, grad and the like.

A stage may also use a layer's weight without the layer. The weight's hooks are
then called twice for one forward, each time with a part of the gradient. A
stage or loss that asks torch.autograd.grad for the gradient of a weight that
waits gets autograd's error that the weight was not used.
"""
import contextlib
import functools
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional,
                    Tuple)

import torch
from torch import nn


class _Waiting(NamedTuple):
    """A parameter, and the functions that compute parts of its gradient."""
    parameter: torch.Tensor
    parts: List[Callable[[], torch.Tensor]]


class WeightGradients:
    """Puts off the weight gradients of nn.Linear layers while a stage's
    backward is split: B computes input gradients, W the rest."""

    def __init__(self) -> None:
        # Indexed by parameter; None outside of collect().
        self.open: Optional[Dict[int, _Waiting]] = None
        # The layers of a stage, and their forwards inside of attached().
        self._layers: Dict[nn.Module, List[Tuple[nn.Linear, Any]]] = {}

    def begin_step(self) -> None:
        """Looks at the modules again, as they may have changed."""
        self._layers = {}

    @contextlib.contextmanager
    def attached(self, module: nn.Module) -> Iterator[None]:
        """A context around the forward, and another around the backward, of a
        stage whose backward is split. Outside of them the module is as it was,
        so that copies of it have nothing of the step."""
        layers = self._layers.get(module)
        if layers is None:
            layers = [(layer, functools.partial(_forward, self, layer))
                      for layer in _layers_of(module)]
            self._layers[module] = layers
        for layer, forward in layers:
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer, _ in layers:
                layer.__dict__.pop("forward", None)

    @contextlib.contextmanager
    def collect(self) -> Iterator[List[Callable[[], None]]]:
        """A context around a split backward. When it ends, the list has what
        is left to do, one call for each parameter."""
        later: List[Callable[[], None]] = []
        waiting: Dict[int, _Waiting] = {}
        self.open = waiting
        try:
            yield later
        finally:
            self.open = None
        later.extend(functools.partial(_enter, *w) for w in waiting.values())

    def add(self, parameter: torch.Tensor,
            part: Callable[[], torch.Tensor]) -> None:
        """Adds a part of a parameter's gradient: at W inside of collect(), else
        at once."""
        if self.open is None:
            _enter(parameter, [part])
        else:
            self.open.setdefault(id(parameter), _Waiting(parameter, [])
                                 ).parts.append(part)


# Classes of wrappers that take gradients away when the backward of their module
# ends, and of modules in which torch.compile would find code that it cannot
# compile.
_WHOLE = ("FSDPModule", "FullyShardedDataParallel", "OptimizedModule")

# Whether a transform of torch.func, such as vmap, runs a function.
_is_transformed: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False)
_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _is_whole(module: nn.Module) -> bool:
    """Whether the module and all below it need a whole backward."""
    names = [c.__name__ for c in type(module).__mro__]
    if any(name in names for name in _WHOLE):
        return True
    return getattr(module, "_compiled_call_impl", None) is not None


def _is_plain(layer: nn.Module) -> bool:
    return (type(layer) is nn.Linear and "forward" not in layer.__dict__ and
            set(layer._parameters) <= {"weight", "bias"})


def _layers_of(module: nn.Module) -> List[nn.Linear]:
    """Returns the layers whose gradients can wait, as far as that is the same
    in all calls."""
    layers: List[nn.Linear] = []
    others = set()  # Parameters of other modules.
    left, seen = [module], {module}
    while left:
        m = left.pop()
        if _is_whole(m):
            others.update(id(p) for p in m.parameters())
            continue
        if _is_plain(m):
            layers.append(m)  # type: ignore[arg-type]
        else:
            others.update(id(p) for p in m._parameters.values()
                          if p is not None)
        for child in m.children():
            if child not in seen:
                seen.add(child)
                left.append(child)
    return [m for m in layers
            if id(getattr(m, "weight", None)) not in others and
            id(getattr(m, "bias", None)) not in others]


def _forward(store: WeightGradients, layer: nn.Linear,
             x: torch.Tensor) -> torch.Tensor:
    """nn.Linear.forward; the weight's gradient waits if it can."""
    weight, bias = layer.weight, layer.bias
    dtype = None if _is_compiling() else _type_of(x, weight, bias)
    if (dtype is None or not torch.is_grad_enabled() or
            not weight.requires_grad or not _can_wait(weight) or
            not _can_wait(bias) or _is_transformed()):
        return nn.functional.linear(x, weight, bias)
    use = _Use(store, weight, bias, dtype)
    gate = _Gate.apply(weight.new_zeros(0).requires_grad_(True), use)
    result: torch.Tensor = _Linear.apply(x.to(dtype), gate, use)
    return result


def _can_wait(parameter: Optional[torch.Tensor]) -> bool:
    return parameter is None or not parameter.requires_grad or (
        type(parameter) is nn.Parameter and parameter.is_leaf)


def _type_of(x: torch.Tensor, weight: torch.Tensor,
             bias: Optional[torch.Tensor]) -> Optional[torch.dtype]:
    """Returns the data type in which nn.functional.linear computes; None if
    that is not sure, or the layer is of a kind that _Linear does not compute.
    """
    tensors = [x, weight] + ([] if bias is None else [bias])
    if (type(x) not in (torch.Tensor, nn.Parameter) or x.is_nested or
            x.layout != torch.strided or weight.numel() == 0 or
            not all(t.is_floating_point() for t in tensors)):
        return None
    dtypes = {t.dtype for t in tensors}
    enabled, dtype = autocast_of(x.device.type)
    if not enabled:
        return dtypes.pop() if len(dtypes) == 1 else None
    # Autocast leaves tensors of 64 bits as they are.
    return None if torch.float64 in dtypes else dtype


def autocast_of(device: str) -> Tuple[bool, Optional[torch.dtype]]:
    """Returns whether autocast is enabled for a type of devices, and its data
    type; None: not known."""
    if hasattr(torch, "get_autocast_dtype"):
        try:
            return (torch.is_autocast_enabled(device),
                    torch.get_autocast_dtype(device))
        except RuntimeError:  # Autocast does not know such devices.
            return False, None
    if device == "cpu":
        return (torch.is_autocast_cpu_enabled(),
                torch.get_autocast_cpu_dtype())
    if device == "cuda":
        return torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return True, None


def _without_autocast(device: str) -> Any:
    """Returns a context in which operators keep the types of their inputs, as
    a whole step may run inside of autocast."""
    if autocast_of(device)[0]:
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


class _Use:
    """A layer's parameters in one call. They are neither inputs of _Linear, as
    a backward that gives them nothing would call their hooks, nor saved by
    save_for_backward, as hooks on saved tensors would replace them."""

    def __init__(self, store: WeightGradients, weight: torch.Tensor,
                 bias: Optional[torch.Tensor], dtype: torch.dtype) -> None:
        self.store = store
        self.weight = weight
        self.bias = bias
        self.dtype = dtype
        self.version = weight._version
        # The output's gradient and the input, once a backward has them.
        self.ready: Optional[Tuple[torch.Tensor, torch.Tensor]] = None

    def add(self) -> None:
        """Adds this call's parts of the gradients."""
        assert self.ready is not None
        grad, x = self.ready
        self.ready = None
        versions = grad._version, x._version

        def rows() -> Tuple[torch.Tensor, torch.Tensor]:
            if (grad._version, x._version) != versions:
                raise RuntimeError(
                    "the input of a linear layer, or the gradient of its "
                    "output, was changed in place after the backward and "
                    "before the weight gradient was computed from it")
            return (grad.reshape(-1, grad.shape[-1]),
                    x.reshape(-1, x.shape[-1]))

        def of_weight() -> torch.Tensor:
            down, up = rows()
            return down.t().matmul(up)

        self.store.add(self.weight, of_weight)
        if self.bias is not None and self.bias.requires_grad:
            self.store.add(self.bias, lambda: rows()[0].sum(0))


class _Gate(torch.autograd.Function):
    """Stands for a layer's parameters in the graph: runs after _Linear in a
    backward that computes the gradients of all leaves, but not in one that
    only computes those of some inputs (torch.autograd.grad)."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor,  # type: ignore[override]
                use: _Use) -> torch.Tensor:
        ctx.use = use
        return leaf.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor  # type: ignore[override]
                 ) -> Tuple[None, None]:
        ctx.use.add()
        return None, None


class _Linear(torch.autograd.Function):
    """nn.functional.linear whose weight gradient may come later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor,  # type: ignore[override]
                _: torch.Tensor, use: _Use) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.use = use
        # Cast here, as autocast would keep its copies of the parameters for
        # operators whose gradients they do not pass on.
        return nn.functional.linear(
            x, use.weight.to(use.dtype),
            None if use.bias is None else use.bias.to(use.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor  # type: ignore[override]
                 ) -> Tuple[Optional[torch.Tensor], torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        use = ctx.use
        use.ready = grad.detach() if grad.requires_grad else grad, x.detach()
        grad_x = None
        if ctx.needs_input_grad[0]:
            if use.weight._version != use.version:
                raise RuntimeError(
                    "the weight of a linear layer was changed in place between "
                    "its forward and its backward")
            with _without_autocast(grad.device.type):
                grad_x = grad.matmul(use.weight.to(use.dtype))
        return grad_x, grad.new_zeros(0), None


class _Enter(torch.autograd.Function):
    """The point from which a gradient enters a parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor,  # type: ignore[override]
                parts: List[Callable[[], torch.Tensor]]) -> torch.Tensor:
        ctx.dtype = parameter.dtype
        ctx.parts = parts
        return parameter.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor  # type: ignore[override]
                 ) -> Tuple[torch.Tensor, None]:
        with _without_autocast(grad.device.type):
            total = ctx.parts.pop(0)().to(ctx.dtype)
            while ctx.parts:
                total += ctx.parts.pop(0)().to(ctx.dtype)
        return total, None


def _enter(parameter: torch.Tensor,
           parts: List[Callable[[], torch.Tensor]]) -> None:
    """Adds the sum of the parts to a parameter's gradient. That is computed in
    a backward, as autograd copies a gradient that others hold."""
    if not parameter.requires_grad:
        return
    with torch.enable_grad():
        point = _Enter.apply(parameter, parts)
    torch.autograd.backward([point], [torch.zeros_like(point)])
