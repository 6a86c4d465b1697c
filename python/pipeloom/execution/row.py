"""A stage that is a row of layers, each called as `layer(x, item)`, and the
calls of any stage."""
import contextlib
from typing import Any, List, Optional, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeloom.execution.randomness import HostRandom
from pipeloom.execution.second_run import Habits, TwoRuns
from pipeloom.execution.work_item import WorkItem
from pipeloom.host_store import HostStore, saving
from pipeloom.recompute import making_again

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
          "_backward_pre_hooks")


def is_row(module: nn.Module) -> bool:
    """Whether a stage is an nn.Sequential without a forward of its own, which
    might do more than call the layers."""
    return (isinstance(module, nn.Sequential) and
            type(module).forward is nn.Sequential.forward and
            "forward" not in vars(module))


def layers_of(module: nn.Module) -> List[nn.Module]:
    """Returns the layers of a row; one that is there twice is called twice,
    unlike in children()."""
    layers: Any = module
    return [*layers]


def output_of(module: nn.Module, given: List[Any], item: WorkItem) -> Any:
    """Calls a stage. Empties `given`."""
    if not is_row(module):
        return module(given.pop(), item)

    def layers(its: List[Any], item: WorkItem) -> Any:
        x = its.pop()
        for layer in layers_of(module):
            x = layer(x, item)
        return x

    return _with_hooks(module, given, item, layers)


def _with_hooks(module: nn.Module, given: List[Any], item: WorkItem,
                layers: Any) -> Any:
    """Returns layers(given, item), within the hooks of the row itself if it
    has some. Empties `given`."""
    if not any(getattr(module, name, None) for name in _HOOKS):
        return layers(given, item)
    own = vars(module)
    own["forward"] = lambda x, its: layers([x], its)
    try:
        call: Any = module._call_impl
        return call(given.pop(), item)
    finally:
        del own["forward"]


class _Span:
    """Layers that share a checkpoint, called for either run of them."""

    def __init__(self, layers: Sequence[nn.Module], item: WorkItem,
                 runs: TwoRuns) -> None:
        self._layers = layers
        self._item = item
        self._runs = runs
        self._random: Optional[HostRandom] = None  # Set by the first run.
        self._error: Optional[BaseException] = None  # Of the first run.

    def checkpointed(self, value: Any) -> Any:
        """Returns the output of the first run. Its error is raised behind
        checkpoint(), which else leaves hooks on saved tensors in force for as
        long as the error's traceback exists."""
        output = checkpoint(self, value, use_reentrant=False)
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return output
        finally:
            del error

    def __call__(self, value: Any) -> Any:
        first = self._random is None
        try:
            return self._run(value)
        except BaseException as error:  # pylint: disable=broad-except
            if not first:
                raise
            self._error = error
            return None

    def _run(self, value: Any) -> Any:
        before, self._random = self._random, self._random or HostRandom()
        with (contextlib.nullcontext() if before is None else
              before.restored()), self._runs.run(value) as given:
            value = given.pop()
            for layer in self._layers:
                value = layer(value, self._item)
        return value


class Choices:
    """Calls the layers of a row one by one, with what a plan chose for each to
    keep. A fully recomputed layer shares a checkpoint with up to `period` - 1
    that follow it."""

    def __init__(self, module: nn.Module, choice: Sequence[str], period: int, *,
                 habits: Habits, batch: Any, device: torch.device,
                 host: Optional[HostStore]) -> None:
        self._module = module
        self._choice = choice
        self._period = period
        self._habits = habits
        self._batch = batch
        self._device = device
        self._host = host

    def output(self, given: List[Any], item: WorkItem) -> Any:
        """Empties `given`."""
        return _with_hooks(self._module, given, item, self._run)

    def _run(self, given: List[Any], item: WorkItem) -> Any:
        layers, choice, at = layers_of(self._module), self._choice, 0
        x = given.pop()
        while at < len(layers):
            what, _, names = choice[at].partition(":")
            groups = names.split("+") if names else ()
            apart = getattr(layers[at], "operator_groups", None)
            end = at + 1
            if what == "RECOMPUTE" and (not groups or apart is None):
                while (not groups and
                       end < min(at + self._period, len(layers)) and
                       choice[end] == "RECOMPUTE"):
                    end += 1
                span = layers[at:end]
                x = _Span(span, item, TwoRuns(
                    self._habits, span, batch=self._batch)).checkpointed(x)
            elif groups:
                with making_again(groups, self._device, (layers[at],),
                                  self._habits):
                    x = layers[at](x, item)
            else:
                with saving(self._host if what == "OFFLOAD" else None):
                    x = layers[at](x, item)
            at = end
        return x
