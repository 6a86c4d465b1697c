"""Layers run one after another on one input, each measured alone."""
import contextlib
import dataclasses
import statistics
import sys
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[[Any, Any], Any]
Loss = Optional[Callable[[Any], torch.Tensor]]

_CONVOLUTIONS = ("convolution", "convolution_overrideable",
                 "mkldnn_convolution", "cudnn_convolution", "miopen_convolution")


# Names of torch's operators whose operations are not those of their results,
# and are not counted.
_UNCOUNTED = ("_fft_", "_cdist", "_euclidean_dist", "_pdist", "_linalg",
              "linalg_", "cholesky", "lu_", "triangular_solve", "_transformer_",
              "_native_multi_head", "_scaled_grouped_mm", "miopen_rnn")


@dataclasses.dataclass
class Seen:
    """A layer at one size: rows and width of its output, operations of its
    forward, bytes that it keeps for its backward at 16 bits an element, and
    seconds."""
    rows: int
    hidden: int
    flops: float = 0.0
    kept: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


@dataclasses.dataclass
class Run:
    """All layers at one size, and operators whose operations are not known."""
    layers: List[Seen]
    uncounted: Set[str]


def run(name: str, layers: Sequence[Any], inputs: Callable[[], Any],
        call: Call, loss: Loss, repeats: int) -> Run:
    """Measures the layers on inputs(). ValueError: a layer returns no rows,
    or does not run without values."""
    result = Run([], set())
    known = {_storage(t) for layer in layers if isinstance(layer, nn.Module)
             for t in [*layer.parameters(), *layer.buffers()]}
    alive: List[Any] = []  # So that no storage takes the place of another.
    x = inputs()
    for i, layer in enumerate(layers):
        x = _apart(x, wants_gradient=i > 0)
        kept = 0.0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            place = _storage(tensor)
            if place not in known:
                known.add(place)
                alive.append(tensor)
                kept += _bytes_at_16_bits(tensor)
            return tensor

        counter = _Counter()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
                pack, lambda t: t), _uncompiled_flex_attention(), counter:
            try:
                y, end = _forward(layer, x, call,
                                  loss if i + 1 == len(layers) else None)
            except RuntimeError as error:
                meta = any(t.is_meta for t in
                           [*parameters_of(layer), *tensors_in(x)])
                if not meta or "meta" not in str(error).lower():
                    raise
                first = str(error).partition("\n")[0].partition(". ")[0]
                raise ValueError(
                    f"layer {i} of {name}, {type(layer).__name__}, does not "
                    "run on the meta device, which has no values to choose "
                    "rows or experts by: give the layers and their inputs "
                    f"values, on the CPU or a GPU ({first})") from error
        alive += [x, y, end]
        rows = next(tensors_in(y), None)
        if rows is None or rows.dim() == 0 or rows.numel() == 0:
            raise ValueError(
                f"layer {i} of {name}, {type(layer).__name__}, returned "
                f"{'no tensor' if rows is None else list(rows.shape)}; its "
                "output must be, or begin with, a tensor whose last axis is the "
                "width")
        result.layers.append(Seen(rows.numel() // rows.shape[-1],
                                  rows.shape[-1], counter.flops, kept))
        result.uncounted |= counter.uncounted
        x = y
    alive.clear()
    if repeats:
        # The first run warms up.
        times = [_times(layers, inputs(), call, loss)
                 for _ in range(repeats + 1)][1:]
        for i, seen in enumerate(result.layers):
            seen.forward = statistics.median(one[i][0] for one in times)
            seen.backward = statistics.median(one[i][1] for one in times)
    return result


def parameters_of(layer: Any) -> List[nn.Parameter]:
    return list(layer.parameters()) if isinstance(layer, nn.Module) else []


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def _forward(layer: Any, x: Any, call: Call,
             loss: Loss) -> Tuple[Any, Optional[torch.Tensor]]:
    y = call(layer, x)
    return y, loss(y) if loss is not None else None


def _apart(value: Any, wants_gradient: bool) -> Any:
    """Returns the value without its graph. `wants_gradient`: as the output of
    another layer, whose backward goes on."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if wants_gradient and (value.is_floating_point() or
                               value.is_complex()):
            value.requires_grad_()
        return value
    if isinstance(value, dict):
        return {k: _apart(v, wants_gradient) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_apart(v, wants_gradient) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_apart(v, wants_gradient) for v in value)
    return value


def _times(layers: Sequence[Any], x: Any, call: Call,
           loss: Loss) -> List[Tuple[float, float]]:
    """Returns the seconds of the forward and the backward of each layer.
    Parameters' gradients stay as they are."""
    device = next((t.device for layer in layers
                   for t in [*parameters_of(layer), *tensors_in(x)]),
                  torch.device("cpu"))
    if device.type == "meta":
        raise ValueError("layers on the meta device have no times: give them "
                         "values, or repeats=0")
    result = []
    for i, layer in enumerate(layers):
        x = _apart(x, wants_gradient=i > 0)
        before = _now(device)
        with torch.enable_grad():
            y, end = _forward(layer, x, call,
                              loss if i + 1 == len(layers) else None)
        between = _now(device)
        outputs = [t for t in ([end] if end is not None else tensors_in(y))
                   if t.requires_grad]
        wanted = [t for t in [*tensors_in(x), *parameters_of(layer)]
                  if t.requires_grad]
        begin = _now(device)
        if outputs and wanted:
            torch.autograd.grad(outputs, wanted,
                                [torch.ones_like(t) for t in outputs],
                                allow_unused=True)
        result.append((between - before, _now(device) - begin))
        x = y
    return result


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# -- Bytes and operations --------------------------------------------------------


def _storage(tensor: torch.Tensor) -> int:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()._cdata
    return tensor.storage()._cdata


def _bytes_at_16_bits(tensor: torch.Tensor) -> float:
    storage = (tensor.untyped_storage() if hasattr(tensor, "untyped_storage")
               else tensor.storage())
    size = tensor.element_size()
    if tensor.is_floating_point() and size > 2:
        return storage.nbytes() * 2.0 / size
    return float(storage.nbytes())


@contextlib.contextmanager
def _uncompiled_flex_attention() -> Iterator[None]:
    """flex_attention outside of torch.compile compiles itself, which newer torch
    refuses where operations are counted. Its switch for debugging is on here:
    forwards are right with it, and no backward follows."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    switch = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(module, switch, None)
    if before is not None:
        setattr(module, switch, True)
    try:
        yield
    finally:
        if before is not None:
            setattr(module, switch, before)


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations of matrix products, attention, convolutions and
    recurrent layers: two for a multiplication and an addition. Attention counts
    whole, whatever its mask."""

    supports_higher_order_operators = True  # Such as flex_attention.

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self.uncounted: Set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        space, _, rest = str(func).partition(".")
        name = rest.partition(".")[0]
        if space == "flex_attention":
            self.flops += _attention_flops(*args[:3])
        elif space == "aten" and not name.startswith(_UNCOUNTED):
            self.flops += _flops(name, args, out)
        elif space not in ("prim", "prims", "profiler"):
            self.uncounted.add(f"{space}::{name}" if name else space)
        return out


def _flops(name: str, args: Any, out: Any) -> float:
    if name in ("mm", "bmm", "linear", "mkldnn_linear", "_int_mm", "_scaled_mm",
                "_grouped_mm"):
        out = out[0] if isinstance(out, tuple) else out
        return 2.0 * out.numel() * args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * out.numel() * args[1].shape[-1]
    if name in ("mv", "dot", "vdot"):
        return 2.0 * args[0].numel()
    if name == "addmv":
        return 2.0 * args[1].numel()
    if name == "addbmm":
        return 2.0 * args[1].numel() * args[2].shape[-1]
    if name == "_trilinear":  # nn.Bilinear: rows by each element of the weight.
        return 2.0 * args[0].shape[0] * args[1].numel()
    if name in ("mkldnn_rnn_layer", "_cudnn_rnn"):
        # All weights of cuDNN in one list, the two of a oneDNN layer apart.
        weights = args[1] if name == "_cudnn_rnn" else args[1:3]
        return (2.0 * args[0][..., 0].numel() *
                sum(w.numel() for w in weights if w.dim() == 2))
    if name in _CONVOLUTIONS:
        transposed = name.startswith("convolution") and args[6]
        return (2.0 * (args[0] if transposed else out).numel() *
                args[1][0].numel())
    if name.startswith("_scaled_dot_product"):
        return _attention_flops(*args[:3])
    return 0.0


def _attention_flops(query: torch.Tensor, key: torch.Tensor,
                     value: torch.Tensor) -> float:
    """Axes are batch, head, row and width."""
    return (2.0 * query[..., 0].numel() * key.shape[-2] *
            (query.shape[-1] + value.shape[-1]))
