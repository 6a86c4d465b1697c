"""A model file from a trainer's own modules, measured layer by layer.

    vision = capture.module("vision", vision_layers, images_of,
                            sizes=[(256, 1), (1024, 1), (1024, 4)],
                            role="encoder", token_rules=[{...}])
    text = capture.module("text", text_layers, text_of, loss=mean_loss,
                          sizes=[(512, 1), (2048, 1), (2048, 4)])
    print(text)
    capture.save("my_model.json", "my-vlm", [vision, text],
                 feeds=[("vision", "text")])

Each layer becomes one of LAYER_KIND_FIXED_WORK (proto/pipeloom/v1/model.proto):
its parameters, and operations and bytes kept for the backward as

    a x tokens + b x instances,

fitted to the measured sizes; the table shows how far the fit is off at worst.
Attention grows with the square of a sequence: choose sizes like those of the
training, or write such layers by hand as LAYER_KIND_TRANSFORMER.

Nothing needs to be computed: layers on torch.device("meta") are captured as
well. Times need values: with `repeats` each layer is timed too, `cost` prices
the tasks of pipeloom.local and static_plan by these times, and `save_times`
writes them for `pipeloom plan --costs-from`.
"""
import dataclasses
import json
import os
from typing import (Any, Callable, Dict, List, Mapping, Optional, Sequence,
                    Set, Tuple)

import torch

from pipeloom.capture.lines import Line, fit
from pipeloom.capture.runs import Seen, parameters_of, run
from pipeloom.plan import Microbatch, SubMicrobatch
from pipeloom.static_schedule import Cost, Graph, Stage

Size = Tuple[int, int]  # Tokens and instances of a run.

_ROLES = {"encoder": "MODULE_ROLE_ENCODER", "backbone": "MODULE_ROLE_BACKBONE",
          "generator": "MODULE_ROLE_GENERATOR"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer's totals. Lines are coefficients of tokens (of output tokens, if
    `on_output`) and of instances; times are in seconds, None if not measured.
    `off` and `off_times` are the largest relative errors of the lines at the
    measured sizes."""
    name: str
    hidden: int
    parameters: int
    flops: Line
    kept_bytes: Line
    forward: Optional[Line]
    backward: Optional[Line]
    on_output: bool
    off: float
    off_times: float = 0.0
    # Input and output width of a product that makes logits for a loss.
    head: Optional[Tuple[int, int]] = None


@dataclasses.dataclass(frozen=True)
class Timed:
    """The seconds of all layers of a module, one after another, at one size."""
    tokens: int
    instances: int
    output_tokens: int
    forward: float
    backward: float


@dataclasses.dataclass(frozen=True)
class Captured:
    """A module's layers, in data-flow order. `uncounted` are operators of other
    libraries, whose operations are not known. `times` are those of each size,
    none if they were not measured, and `device` names where they were."""
    name: str
    role: str
    layers: Tuple[Layer, ...]
    token_rules: Tuple[Mapping[str, Any], ...]
    source: str
    trained: int
    uncounted: Tuple[str, ...]
    has_loss: bool = False
    times: Tuple[Timed, ...] = ()
    device: str = ""

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    def __str__(self) -> str:
        timed = any(layer.forward for layer in self.layers)
        head = ["layer", "parameters", "GFLOP", "an instance", "kept MB",
                "an instance", "off by"]
        if timed:
            head += ["forward ms", "an instance", "backward ms", "an instance",
                     "off by"]
        rows = [head]
        for layer in self.layers:
            row = [layer.name, f"{layer.parameters:,}",
                   *_cells(layer.flops, 1e-9), *_cells(layer.kept_bytes, 1e-6),
                   f"{layer.off * 100:.1f} %"]
            if layer.forward and layer.backward:
                row += [*_cells(layer.forward, 1e3),
                        *_cells(layer.backward, 1e3),
                        f"{layer.off_times * 100:.1f} %"]
            rows.append(row)
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [f"{self.name}: {self.parameters:,} parameters, of which "
                 f"{self.trained:,} are trained; for 1,000 tokens:"]
        for row in rows:
            lines.append("  ".join(
                text.ljust(width) if i == 0 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths))).rstrip())
        if self.uncounted:
            lines.append("Operations are not counted of " +
                         ", ".join(self.uncounted))
        return "\n".join(lines)

    def to_json(self) -> Dict[str, Any]:
        """Returns the module of a model file."""
        groups: List[Dict[str, Any]] = []
        for layer in self.layers:
            fields: Dict[str, Any] = {
                "kind": "LAYER_KIND_FIXED_WORK", "name": layer.name,
                "hidden": layer.hidden, "vector_parameters": layer.parameters,
                "fixed_flops_per_token": layer.flops[0],
                "fixed_flops_per_instance": layer.flops[1],
                "fixed_activation_bytes_per_token": layer.kept_bytes[0],
                "fixed_activation_bytes_per_instance": layer.kept_bytes[1]}
            if layer.head is not None:
                width, vocab = layer.head
                tied = layer.parameters < width * vocab
                fields = {"kind": "LAYER_KIND_LOSS_HEAD", "name": layer.name,
                          "hidden": width, "vocab": vocab,
                          "vector_parameters": layer.parameters -
                          (0 if tied else width * vocab), "tied": tied}
            if layer.on_output:
                fields["on_output_tokens"] = True
            if groups and groups[-1]["layer"] == fields:
                groups[-1]["count"] = groups[-1].get("count", 1) + 1
            else:
                groups.append({"layer": fields})
        result: Dict[str, Any] = {"name": self.name, "role": _ROLES[self.role],
                                  "layers": groups, "source": self.source}
        if self.token_rules:
            result["token_rules"] = [dict(rule) for rule in self.token_rules]
        return result

    def part(self, first_layer: int, num_layers: int) -> Tuple[Layer, ...]:
        """Returns some layers. ValueError: the module does not have them."""
        if first_layer < 0 or first_layer + num_layers > len(self.layers):
            raise ValueError(
                f"a stage has the layers {first_layer} to "
                f"{first_layer + num_layers - 1} of {self.name}, which was "
                f"captured with {len(self.layers)}, counted from 0")
        return self.layers[first_layer:first_layer + num_layers]

    def seconds(self, kind: str, first_layer: int, num_layers: int,
                tokens: int, instances: int, output_tokens: int = 0) -> float:
        """Returns how long some layers take by the measured times. `kind`: "F"
        or "B". ValueError: there are no times, or another kind."""
        if kind not in ("F", "B"):
            raise ValueError(
                f"the time of a {kind} is not known: a backward was measured "
                "with its weight gradients; make the graph without "
                "split_backward")
        total = 0.0
        for layer in self.part(first_layer, num_layers):
            line = layer.forward if kind == "F" else layer.backward
            if line is None:
                raise ValueError(f"{self.name} was captured without times: give "
                                 "capture.module repeats=5, and layers with "
                                 "values")
            total += _at(layer, line, tokens, instances, output_tokens)
        return total


def _cells(line: Line, unit: float) -> Tuple[str, str]:
    return f"{line[0] * 1e3 * unit:.4g}", f"{line[1] * unit:.4g}"


def cost(modules: Sequence[Captured], stages: Sequence[Stage],
         microbatches: Sequence[Microbatch]) -> Cost:
    """Returns the nanoseconds of tasks by the measured times, for
    pipeloom.local.graph_of and static_plan. The microbatches' `subs` must have
    tokens and instances. Stages number the layers of `modules`."""
    sizes = _sizes(microbatches)

    def of(kind: str, stage: int, m: int, sub: int) -> int:
        part = stages[stage]
        size = sizes[m, part.module, sub]
        return max(1, round(1e9 * modules[part.module].seconds(
            kind, part.first_layer, part.num_layers, size.tokens,
            size.instances, size.output_tokens)))

    return of


def activation_bytes(modules: Sequence[Captured], stages: Sequence[Stage],
                     microbatches: Sequence[Microbatch], graph: Graph,
                     element_bytes: int = 2) -> Dict[int, int]:
    """Returns the bytes that each forward keeps, indexed by task, for
    pipeloom.local.search_orders. `element_bytes`: of a number; 2 with bf16."""
    sizes = _sizes(microbatches)
    result = {}
    for i, task in enumerate(graph.tasks):
        if task.kind == "F":
            part = stages[task.stage]
            size = sizes[task.microbatch, part.module, task.sub]
            layers = modules[part.module].part(part.first_layer,
                                               part.num_layers)
            result[i] = round(element_bytes / 2 * sum(
                _at(layer, layer.kept_bytes, size.tokens, size.instances,
                    size.output_tokens)
                for layer in layers))
    return result


def _sizes(microbatches: Sequence[Microbatch]
           ) -> Dict[Tuple[int, int, int], SubMicrobatch]:
    for m, micro in enumerate(microbatches):
        for s in micro.subs:
            if s.tokens < 1:
                raise ValueError(
                    f"microbatch {m}: sub-microbatch {s.index} of module "
                    f"{s.module} has {s.tokens} tokens; its time is that of "
                    "its tokens, which must be at least 1")
    return {(m, s.module, s.index): s for m, micro in enumerate(microbatches)
            for s in micro.subs}


def _at(layer: Layer, line: Line, tokens: int, instances: int,
        output_tokens: int) -> float:
    rows = (output_tokens or tokens) if layer.on_output else tokens
    return line[0] * rows + line[1] * instances


def save(path: str, name: str, modules: Sequence[Captured],
         feeds: Sequence[Tuple[str, str]] = ()) -> None:
    """Writes the model file, whole or not at all. `feeds` are pairs of names: a module, and the one
    that its output goes to. ValueError: a name is not there, or twice; or the
    planner would not know of a module's loss."""
    names = [m.name for m in modules]
    for i, one in enumerate(names):
        if one in names[:i]:
            raise ValueError(f"two modules are named {one!r}; each needs a name "
                             "of its own")
    for pair in feeds:
        for end in pair:
            if end not in names:
                raise ValueError(f"feeds names {end!r}; the modules are "
                                 f"{', '.join(names)}")
        first = modules[names.index(pair[0])]
        if first.has_loss and first.layers[-1].head is None:
            raise ValueError(
                f"{pair[0]} has a loss and feeds {pair[1]}; the planner knows "
                "of such a loss by a loss head: let the last layer be the "
                "nn.Linear that makes the logits, and the loss no layer; or "
                "leave `loss` away here and name the module in losses of "
                "Executor, with loss_over \"text\"")
    model = {"name": name, "modules": [m.to_json() for m in modules],
             "edges": [{"from": a, "to": b} for a, b in feeds],
             "source": "Captured from modules of torch " + torch.__version__}
    _write(path, model)


def save_times(path: str, modules: Sequence[Captured]) -> None:
    """Writes the modules' measured times, whole or not at all, for
    `pipeloom plan --costs-from PATH` and `compare`: tasks of each module are
    priced as much longer or shorter as these runs took than priced on one GPU.
    They must be measured on a GPU like those of the job's cluster, in the
    precision of the training. ValueError: a module has no times."""
    for one in modules:
        if not one.times:
            raise ValueError(f"{one.name} was captured without times: give "
                             "capture.module repeats=5, and layers with values")
    times = [{"module": one.name, "layers": len(one.layers),
              "device": one.device, "runs": [
                  {"tokens": t.tokens, "instances": t.instances,
                   "output_tokens": t.output_tokens,
                   "forward_us": t.forward * 1e6,
                   "backward_us": t.backward * 1e6} for t in one.times]}
             for one in modules]
    _write(path, {"captured_times": times})


def _write(path: str, value: Mapping[str, Any]) -> None:
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(partial, path)


def module(name: str, layers: Sequence[Callable[..., Any]],
           inputs: Callable[[int, int], Any], sizes: Sequence[Size], *,
           role: str = "backbone",
           token_rules: Sequence[Mapping[str, Any]] = (),
           call: Callable[[Any, Any], Any] = lambda layer, x: layer(x),
           loss: Optional[Callable[[Any], torch.Tensor]] = None,
           repeats: int = 0) -> Captured:
    """Runs the layers one after another and measures each.

    layers    modules or functions, in data-flow order
    inputs    (tokens, instances) -> the first layer's input of that size, a
              tensor or a structure of tensors, new with every call
    sizes     two or more (tokens, instances), like those of a microbatch
    role      encoder, backbone or generator
    token_rules  of the model file: how samples become tokens
    call      (layer, x) -> its output, if a layer takes more than x
    loss      (output) -> the loss, as a part of the last layer, which becomes a
              LAYER_KIND_LOSS_HEAD if it is an nn.Linear
    repeats   timed runs of each size; 0: times are not measured

    A parameter that several layers have counts in the first. Layers keep what
    they keep as they are: frozen parameters and evaluation mode keep less.
    ValueError: an argument is wrong, or a layer returns no tensor."""
    if role not in _ROLES:
        raise ValueError(f"role is {role!r}; it must be one of "
                         f"{', '.join(_ROLES)}")
    if not layers:
        raise ValueError(f"{name} has no layers")
    if len(set(sizes)) < 2 or any(min(size) < 1 for size in sizes):
        raise ValueError(f"sizes are {list(sizes)}; two or more different pairs "
                         "of tokens and instances, each at least 1, are needed")
    if repeats < 0:
        raise ValueError(f"repeats is {repeats}; it must be 0 or more")
    runs = [run(name, layers, lambda s=size: inputs(*s),  # type: ignore
                call, loss, repeats) for size in sizes]
    seen: Set[int] = set()
    result = []
    for i, layer in enumerate(layers):
        own = {id(p): p for p in parameters_of(layer) if id(p) not in seen}
        seen.update(own)
        fitted = _fitted(layer, sum(p.numel() for p in own.values()), sizes,
                         [one.layers[i] for one in runs], repeats > 0)
        if loss is not None and i + 1 == len(layers) and \
                type(layer) is torch.nn.Linear:
            fitted = dataclasses.replace(
                fitted, head=(layer.in_features, layer.out_features))
        result.append(fitted)
    every = {id(p): p for layer in layers for p in parameters_of(layer)}
    where = ", ".join(sorted({p.device.type for p in every.values()}) or ["cpu"])
    times = tuple(Timed(
        tokens, instances,
        one.layers[-1].rows if result[-1].on_output else tokens,
        sum(layer.forward for layer in one.layers),
        sum(layer.backward for layer in one.layers))
        for one, (tokens, instances) in zip(runs, sizes)) if repeats else ()
    return Captured(
        name, role, tuple(result), tuple(token_rules),
        f"Captured from its layers at tokens and instances of {list(sizes)} "
        f"on {where}.",
        sum(p.numel() for p in every.values() if p.requires_grad),
        tuple(sorted(set().union(*(one.uncounted for one in runs)))),
        loss is not None, times, _device_name(where))


def _device_name(kind: str) -> str:
    return torch.cuda.get_device_name() if kind == "cuda" else kind


def _fitted(layer: Any, parameters: int, sizes: Sequence[Size],
            seen: Sequence[Seen], timed: bool) -> Layer:
    """Returns a layer by what was seen of it at these sizes."""
    # A layer behind a merge of tokens has other rows than the module.
    on_output = any(one.rows != tokens for one, (tokens, _)
                    in zip(seen, sizes))
    at = [(one.rows if on_output else tokens, instances)
          for one, (tokens, instances) in zip(seen, sizes)]
    flops, off_flops = fit(at, [one.flops for one in seen])
    kept, off_kept = fit(at, [one.kept for one in seen])
    forward = backward = None
    off_times = 0.0
    if timed:
        forward, off_forward = fit(at, [one.forward for one in seen])
        backward, off_backward = fit(at, [one.backward for one in seen])
        off_times = max(off_forward, off_backward)
    return Layer(
        type(layer).__name__ if isinstance(layer, torch.nn.Module) else
        getattr(layer, "__name__", "layer").strip("<>"), seen[0].hidden,
        parameters, flops, kept, forward, backward, on_output,
        max(off_flops, off_kept), off_times)


__all__ = ["Captured", "Layer", "Timed", "activation_bytes", "cost", "module",
           "save", "save_times"]
