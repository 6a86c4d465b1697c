"""Weight gradients of Megatron-Core's layers apart from their backwards, for
plan_runner.py.

Put off are those of nn.Linear, of ColumnParallelLinear and RowParallelLinear
without Transformer Engine, and of modules that do it themselves: those with
`backward_dw` whose `wgrad_store` is on (delay_wgrad_compute). All others are
computed with the backward, which is as exact. Gradients enter parameters by
autograd, so Megatron's DistributedDataParallel gets them as it does otherwise.
"""
import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn


class _Layer(NamedTuple):
    """A linear layer. `sum_input`: input gradients are summed over the group;
    `sequence`: its input is divided over it by rows."""
    weight: torch.Tensor
    bias: Optional[torch.Tensor] = None
    sum_input: bool = False
    sequence: bool = False
    group: Any = None


class WeightStore:
    """Puts off the weight gradients of a chunk's layers inside of split()."""

    def __init__(self) -> None:
        # Calls that a split backward leaves to do; None outside of one.
        self.open: Optional[List[Callable[[], None]]] = None
        # Modules with backward_dw, by chunk.
        self._themselves: Dict[nn.Module, List[Any]] = {}

    def attach(self, chunk: nn.Module) -> None:
        """Prepares the layers of a chunk. May be called again."""
        if chunk in self._themselves:
            return
        self._themselves[chunk] = [m for m in chunk.modules() if _delays(m)]
        for layer in chunk.modules():
            if type(layer) is nn.Linear and not hasattr(layer, "_pipeloom"):
                layer._pipeloom = True  # type: ignore[assignment]
                layer.forward = functools.partial(  # type: ignore
                    _forward, layer)
        _replace_parallel_linear()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context around the passes of chunks with split backwards."""
        global _STORE  # pylint: disable=global-statement
        before, _STORE = _STORE, self
        try:
            yield
        finally:
            _STORE = before

    @contextlib.contextmanager
    def split(self, chunk: nn.Module) -> Iterator[List[Callable[[], None]]]:
        """A context around a backward. Gives what is left to do."""
        later: List[Callable[[], None]] = []
        self.open = later
        try:
            yield later
        finally:
            self.open = None
        later.extend(m.backward_dw for m in reversed(self._themselves[chunk]))

    def whole(self, chunk: nn.Module) -> None:
        """Follows a backward that was not split."""
        for module in reversed(self._themselves[chunk]):
            module.backward_dw()


# The store of the chunk that runs.
_STORE: Optional[WeightStore] = None


def _delays(module: Any) -> bool:
    store = getattr(module, "wgrad_store", None)
    return store is not None and hasattr(module, "backward_dw") and bool(
        store.delay_wgrad_compute())


def _forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if _STORE is None or not torch.is_grad_enabled() or \
            not layer.weight.requires_grad:
        return nn.functional.linear(x, layer.weight, layer.bias)
    return _apply(x, _Layer(layer.weight, layer.bias))


def _replace_parallel_linear() -> None:
    """Replaces the function that Megatron's own parallel layers call."""
    try:
        from megatron.core.tensor_parallel import layers
    except ImportError:
        return
    own = layers.linear_with_grad_accumulation_and_async_allreduce
    if hasattr(own, "pipeloom"):
        return

    @functools.wraps(own)  # Also its attributes.
    def linear(input: torch.Tensor,  # pylint: disable=redefined-builtin
               weight: torch.Tensor, bias: Optional[torch.Tensor], *args: Any,
               **kwargs: Any) -> torch.Tensor:
        if _STORE is None or not torch.is_grad_enabled() or args or \
                kwargs.get("grad_output_buffer") is not None:
            return own(input, weight, bias, *args, **kwargs)
        group = kwargs.get("tp_group")
        if group is None:
            group = layers.get_tensor_model_parallel_group_if_none(None)
        return _apply(input, _Layer(
            weight, bias, bool(kwargs.get("allreduce_dgrad")),
            bool(kwargs.get("sequence_parallel")), group))

    linear.pipeloom = True  # type: ignore[attr-defined]
    layers.linear_with_grad_accumulation_and_async_allreduce = linear


def _apply(x: torch.Tensor, layer: _Layer) -> torch.Tensor:
    # The function has no edge to the parameters, whose hooks would run in a
    # backward that gives them nothing; the empty tensor makes it differentiable
    # where x is not.
    result: torch.Tensor = _Linear.apply(
        x, torch.zeros(0, device=x.device, requires_grad=True), layer, _STORE)
    return result


def _enter(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Adds a gradient, with the hooks that a backward would call."""
    if hasattr(parameter, "grad_added_to_main_grad"):
        parameter.grad_added_to_main_grad = False
    torch.autograd.backward([parameter], [gradient])


def _gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    whole = part.new_empty(part.shape[0] * dist.get_world_size(group),
                           *part.shape[1:])
    dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


class _Linear(torch.autograd.Function):
    """A linear layer whose weight gradient may come later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor,  # type: ignore[override]
                _: torch.Tensor, layer: _Layer,
                store: WeightStore) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.store = layer, store
        whole = _gathered(x, layer.group) if layer.sequence else x
        output = torch.matmul(whole, layer.weight.t())
        return output if layer.bias is None else output + layer.bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor  # type: ignore[override]
                 ) -> Any:
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        weight, bias, group = layer.weight, layer.bias, layer.group

        def enter() -> None:
            flat = grad.reshape(-1, grad.shape[-1])
            with torch.no_grad():
                whole = _gathered(x, group) if layer.sequence else x
                gradient = flat.t().matmul(whole.reshape(-1, whole.shape[-1]))
            _enter(weight, gradient)
            if bias is not None and bias.requires_grad:
                _enter(bias, flat.sum(0))

        if ctx.store.open is None:
            enter()
        else:
            ctx.store.open.append(enter)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        grad_x = grad.matmul(weight)
        if layer.sum_input and dist.get_world_size(group) > 1:
            dist.all_reduce(grad_x, group=group)
        if layer.sequence:
            part = torch.empty_like(x)
            dist.reduce_scatter_tensor(part, grad_x.contiguous(), group=group)
            grad_x = part
        return grad_x, None, None, None
