"""Forwards that run a second time, for their backward, and must come to the
same results: with the inputs, random numbers and buffers of the first time.

A second run must leave no trace either: batch norm counts a batch once, however
often a plan runs it.
"""
import contextlib
from typing import (Any, Dict, Iterator, List, Mapping, NamedTuple, Optional,
                    Sequence, Set, Tuple)

import torch
from torch import nn

from pipeloom.execution.randomness import GeneratorState, Generators

_Place = Tuple[nn.Module, str]
_SMALL = 4096  # Elements; copies cost no more than a look at the values.


class _Value(NamedTuple):
    """A buffer, and a copy of its values."""
    buffer: torch.Tensor
    values: torch.Tensor

    def put_back(self, place: _Place) -> None:
        owner, name = place
        owner._buffers[name] = self.buffer
        # Not a change for graphs of other microbatches that have saved it.
        self.buffer.data.copy_(self.values)


def _places(module: nn.Module) -> List[_Place]:
    return [(m, name) for m in module.modules()
            for name, buffer in m._buffers.items() if buffer is not None]


def _value(place: _Place) -> _Value:
    owner, name = place
    buffer = owner._buffers[name]
    assert buffer is not None
    return _Value(buffer, buffer.detach().clone())


def _changed(place: _Place, before: _Value) -> bool:
    now = place[0]._buffers[place[1]]
    return now is not before.buffer or not torch.equal(now, before.values)


class _Others:
    """Buffers that have not changed so far."""

    def __init__(self, module: nn.Module, known: Sequence[_Place]) -> None:
        without = set(known)
        self._before = [(p, buffer, buffer._version) for p in _places(module)
                        if p not in without
                        for buffer in (p[0]._buffers[p[1]],)
                        if buffer is not None and not buffer.is_inference()]

    def changed(self) -> List[_Place]:
        """Returns those whose values have changed in place."""
        return [place for place, buffer, version in self._before
                if buffer._version != version]

    def replaced(self) -> Dict[_Place, _Value]:
        """Returns those in whose place there is another tensor by now."""
        return {place: _Value(buffer, buffer)
                for place, buffer, version in self._before
                if place[0]._buffers[place[1]] is not buffer and
                buffer._version == version}


class Habits:
    """Knows what modules change in their forwards. The values of buffers are
    looked at in the first forward of a module, and when it goes from training
    to evaluation or back: kernels change some without saying so. Small buffers
    are taken to change at any time, as a module may have a branch that runs
    later; others may be replaced, but a change in place is an error."""

    def __init__(self) -> None:
        # Indexed by module and whether it and those below it train.
        self._buffers: Dict[Any, List[_Place]] = {}
        # Whether a module changes its inputs; absent: not known.
        self._inputs: Dict[Any, bool] = {}
        # Those that were seen to leave the batch as it is.
        self._leave_batch: Set[Any] = set()
        self.generators = Generators()

    def buffers(self, module: nn.Module,
                part: Any) -> Tuple[List[_Place], Any]:
        """Returns the buffers that a part of a module's forward may change, and
        None or, if that is all of them as it is not known yet, what to tell
        learn()."""
        key = module, part, tuple(m.training for m in module.modules())
        known = self._buffers.get(key)
        return (_places(module), key) if known is None else (known, None)

    def learn(self, key: Any, values: Dict[_Place, _Value]) -> None:
        """`values`: those of all buffers before the forward."""
        self._buffers[key] = [
            place for place, before in values.items()
            if before.values.numel() <= _SMALL or _changed(place, before)]

    def learn_late(self, module: nn.Module, part: Any, place: _Place) -> None:
        """A buffer has changed in place for the first time. RuntimeError."""
        key = module, part, tuple(m.training for m in module.modules())
        self._buffers[key] = [*self._buffers[key], place]
        owner, name = place
        raise RuntimeError(
            f"a {type(owner).__name__} that runs again for its backward has "
            f"changed its buffer {name!r} in place, which it did not do when "
            "it ran first, so that its second run would begin with other values: "
            "replace the buffer in place of changing it (self."
            f"{name} = self.{name} + change), or change it in all forwards")

    def copies(self, key: Any) -> Optional[bool]:
        """Whether a forward must get copies of its inputs, so that they are
        there for its second run; None: not known."""
        return self._inputs.get(key)

    def learn_inputs(self, key: Any, changes: bool) -> None:
        """RuntimeError: the inputs were no copies, and are lost."""
        if changes and self.copies(key) is False:
            raise RuntimeError(
                "a layer that runs again for its backward has changed its input "
                "in place, which it did not do when it ran first: give it a "
                "copy (x = x.clone()) in its forward")
        self._inputs.setdefault(key, changes)


    @contextlib.contextmanager
    def leaving_batch(self, key: Any, batch: Any) -> Iterator[None]:
        """A context around the first run of what `key` names. RuntimeError: it
        has changed a tensor of the batch in place, so that its second run would
        begin with other values. Later runs of the same key are not looked
        at."""
        if batch is None or key in self._leave_batch:
            yield
            return
        before = [(t, t._version) for t in _tensors_within(batch)
                  if not t.is_inference()]
        yield
        for t, version in before:
            if t._version != version:
                raise RuntimeError(
                    "a stage or loss_fn that runs again for its backward has "
                    f"changed a tensor of the batch in place ({t.dtype}, shape "
                    f"{list(t.shape)}), so that its second run would begin with "
                    "other values: change a copy (x = x.clone())")
        self._leave_batch.add(key)


class TwoRuns:
    """The first and the second run of some modules, one after another, on one
    input; or of a part of their forwards. `batch`: that they may read, too."""

    def __init__(self, habits: Habits, modules: Sequence[nn.Module],
                 part: Any = None, batch: Any = None) -> None:
        self._habits = habits
        self._modules = tuple(modules)
        self._part = part
        self._batch = batch
        self._before: Dict[_Place, _Value] = {}
        self._generators: List[GeneratorState] = []
        self._is_first = True

    @contextlib.contextmanager
    def run(self, value: Any) -> Iterator[List[Any]]:
        """A context around either run. Gives a list with what the modules are
        to take: `value`, a tensor or a structure of tensors, or a copy if they
        change it. The list should be emptied: the first run may be the last to
        need it."""
        key = self._modules[:1], self._part, _form(value)
        copies = self._habits.copies(key)
        given = [_copy(value) if copies is not False else value]
        seen = []
        if self._is_first and copies is not True:
            seen = [(t, t._version) for t in _tensors(given[0])]
        del value
        with self._first() if self._is_first else self._second():
            self._is_first = False
            yield given
        if seen:
            self._habits.learn_inputs(key, any(
                t._version != version for t, version in seen))

    @contextlib.contextmanager
    def _first(self) -> Iterator[None]:
        watched, others = [], []
        for module in self._modules:
            places, key = self._habits.buffers(module, self._part)
            watched.append((key, {p: _value(p) for p in places}))
            if key is None:
                others.append((module, _Others(module, places)))
            self._generators += self._habits.generators.states(module)
        training = tuple(m.training for module in self._modules
                         for m in module.modules())
        with self._habits.leaving_batch((self._modules[:1], training),
                                        self._batch):
            yield
        for key, values in watched:
            if key is not None:
                self._habits.learn(key, values)
                values = {p: v for p, v in values.items() if _changed(p, v)}
            self._before.update(values)
        for module, its in others:
            self._before.update(its.replaced())
            for place in its.changed():
                self._habits.learn_late(module, self._part, place)

    @contextlib.contextmanager
    def _second(self) -> Iterator[None]:
        now = {p: _value(p) for p in self._before}
        drawn = [state for module in self._modules
                 for state in self._habits.generators.states(module)]
        for place, before in self._before.items():
            before.put_back(place)
        for state in self._generators:
            state.put_back()
        try:
            yield
        finally:
            for place, latest in now.items():
                latest.put_back(place)
            for state in drawn:
                state.put_back()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _tensors_within(batch: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """Yields the tensors of a batch of any class, without those of modules that
    it may have."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, nn.Module) or depth == 0:
        return
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors_within(part, depth - 1)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors_within(part, depth - 1)
    elif hasattr(batch, "__dict__") and not callable(batch):
        for part in list(vars(batch).values()):
            yield from _tensors_within(part, depth - 1)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_copy(part) for part in value])
    return value


def _form(value: Any) -> Any:
    """Returns what a module does with a value may depend on."""
    return tuple(value) if isinstance(value, dict) else type(value)
