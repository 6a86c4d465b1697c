"""Weight gradients of nn.Linear layers, separate from their input gradients."""
import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn


class WeightGradients:
    """Puts off the weight gradients of nn.Linear layers while a stage's
    backward is split: B computes input gradients, W the rest."""

    def __init__(self) -> None:
        self.open: Optional[List[Callable[[], None]]] = None
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
            layers = [(m, functools.partial(_forward, self, m))
                      for m in module.modules()
                      if type(m) is nn.Linear and "forward" not in m.__dict__]
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
        self.open = []
        try:
            yield self.open
        finally:
            self.open = None


def _forward(store: WeightGradients, layer: nn.Linear,
             x: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled() or not layer.weight.requires_grad:
        return nn.functional.linear(x, layer.weight, layer.bias)
    result: torch.Tensor = _Linear.apply(x, layer.weight, layer.bias, store)
    return result


class _Linear(torch.autograd.Function):
    """nn.functional.linear whose weight gradient may come later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor,
                bias: Optional[torch.Tensor],
                store: WeightGradients) -> torch.Tensor:
        ctx.save_for_backward(x)
        # Not passed to save_for_backward: hooks on saved tensors would replace
        # the weight by another tensor, whose gradient would be lost.
        ctx.weight = weight
        ctx.bias = bias
        ctx.store = store
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad = grads[0]
        (x,) = ctx.saved_tensors
        weight = ctx.weight
        bias = ctx.bias
        grad_x = grad.matmul(weight) if ctx.needs_input_grad[0] else None

        def of_weight() -> torch.Tensor:
            return grad.reshape(-1, grad.shape[-1]).t().matmul(
                x.reshape(-1, x.shape[-1]))

        def of_bias() -> torch.Tensor:
            return grad.reshape(-1, grad.shape[-1]).sum(0)

        if ctx.store.open is None:
            return (grad_x, of_weight(),
                    of_bias() if bias is not None else None, None)

        def later() -> None:
            with torch.no_grad():
                for parameter, gradient in ((weight, of_weight),
                                            (bias, of_bias)):
                    if parameter is None or not parameter.requires_grad:
                        continue
                    if parameter.grad is None:
                        parameter.grad = gradient()
                    else:
                        parameter.grad += gradient()

        ctx.store.open.append(later)
        return grad_x, None, None, None
