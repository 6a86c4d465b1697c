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
from typing import Any, Callable, Iterator, List, Optional

import torch
import torch.distributed as dist

from pipeloom.weight_gradients import WeightGradients


def _enter(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Adds a gradient, with the hooks that a backward would call."""
    if hasattr(parameter, "grad_added_to_main_grad"):
        parameter.grad_added_to_main_grad = False
    torch.autograd.backward([parameter], [gradient])


def _delays(module: Any) -> bool:
    store = getattr(module, "wgrad_store", None)
    return store is not None and hasattr(module, "backward_dw") and bool(
        store.delay_wgrad_compute())


class WeightStore:
    """Puts off the weight gradients of a chunk's layers inside of split()."""

    def __init__(self) -> None:
        self._linears = WeightGradients(_enter)
        self._themselves: dict = {}  # Modules with backward_dw, by chunk.

    def attach(self, chunk: torch.nn.Module) -> None:
        """Prepares the layers of a chunk. May be called again."""
        if chunk in self._themselves:
            return
        self._linears.attach(chunk)
        self._themselves[chunk] = [m for m in chunk.modules() if _delays(m)]
        _replace_parallel_linear()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """A context around a forward whose backward may be split."""
        global _STORE  # pylint: disable=global-statement
        before, _STORE = _STORE, self._linears
        try:
            yield
        finally:
            _STORE = before

    @contextlib.contextmanager
    def split(self, chunk: torch.nn.Module
              ) -> Iterator[List[Callable[[], None]]]:
        """A context around a backward. Gives what is left to do."""
        with self._linears.collect() as later:
            yield later
        later.extend(m.backward_dw for m in reversed(self._themselves[chunk]))

    def whole(self, chunk: torch.nn.Module) -> None:
        """Follows a backward that was not split."""
        for module in reversed(self._themselves[chunk]):
            module.backward_dw()


# The store of the forward that runs, for Megatron's own linear function.
_STORE: Optional[WeightGradients] = None


def _replace_parallel_linear() -> None:
    try:
        from megatron.core.tensor_parallel import layers
    except ImportError:
        return
    own = layers.linear_with_grad_accumulation_and_async_allreduce
    if hasattr(own, "pipeloom"):
        return

    @functools.wraps(own)  # Also its attributes.
    def linear(input, weight, bias, *args: Any,  # pylint: disable=W0622
               **kwargs: Any) -> torch.Tensor:
        if _STORE is None or not torch.is_grad_enabled() or args or \
                kwargs.get("grad_output_buffer") is not None:
            return own(input, weight, bias, *args, **kwargs)
        group = kwargs.get("tp_group")
        if group is None:
            group = layers.get_tensor_model_parallel_group_if_none(None)
        return _ParallelLinear.apply(
            input, weight, bias, bool(kwargs.get("allreduce_dgrad")),
            bool(kwargs.get("sequence_parallel")), group, _STORE)

    linear.pipeloom = True  # type: ignore[attr-defined]
    layers.linear_with_grad_accumulation_and_async_allreduce = linear


def _gathered(part: torch.Tensor, group: Any) -> torch.Tensor:
    whole = part.new_empty(part.shape[0] * dist.get_world_size(group),
                           *part.shape[1:])
    dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


class _ParallelLinear(torch.autograd.Function):
    """A linear layer of a tensor-parallel group whose weight gradient may come
    later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor,
                bias: Optional[torch.Tensor], sum_input: bool,
                sequence: bool, group: Any,
                store: WeightGradients) -> torch.Tensor:
        ctx.save_for_backward(x)
        # Not saved: hooks on saved tensors would replace it by another tensor.
        ctx.weight, ctx.bias, ctx.store = weight, bias, store
        ctx.sum_input, ctx.sequence, ctx.group = sum_input, sequence, group
        whole = _gathered(x, group) if sequence else x
        output = torch.matmul(whole, weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad = grads[0]
        (x,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias
        sequence, group = ctx.sequence, ctx.group
        flat = grad.reshape(-1, grad.shape[-1])

        def of_weight() -> torch.Tensor:
            whole = _gathered(x, group) if sequence else x
            return flat.t().matmul(whole.reshape(-1, whole.shape[-1]))

        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad.matmul(weight)
            if ctx.sum_input and dist.get_world_size(group) > 1:
                dist.all_reduce(grad_x, group=group)
            if sequence:
                part = torch.empty_like(x)
                dist.reduce_scatter_tensor(part, grad_x.contiguous(),
                                           group=group)
                grad_x = part
        if ctx.store.open is None:
            return (grad_x, of_weight(), None if bias is None else flat.sum(0),
                    None, None, None, None)

        def later() -> None:
            with torch.no_grad():
                wanted = [(p, make) for p, make in
                          ((weight, of_weight), (bias, lambda: flat.sum(0)))
                          if p is not None and p.requires_grad]
                made = [(p, make()) for p, make in wanted]
            for parameter, gradient in made:
                _enter(parameter, gradient)

        ctx.store.open.append(later)
        return grad_x, None, None, None, None, None, None
