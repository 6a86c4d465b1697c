"""Descriptions of model families: where the layers of a model are, and what its
forward needs to run without them."""
import inspect
from typing import (Any, Callable, Dict, List, Mapping, Optional, Sequence,
                    Set, Tuple)

import torch
from torch import nn

from pipeloom.hf.skeleton import Run, Skeleton, module_at
from pipeloom.hf.state import MAIN, State

Sample = Mapping[str, Any]


class SampleError(ValueError):
    """A sample lacks a field, or two of its fields do not fit together."""


class Chain:
    """A module of the plan. Its layers there are, in this order: one for what
    precedes the blocks, the blocks, those of `after` one by one, and one for
    what follows.

    name    of the plan's module
    layers  path of the list of blocks
    entry   paths of the modules and parameters of the first layer
    after   paths of modules that are layers of their own, after the blocks
    exit    paths of the modules and parameters of the last layer
    feeds   name of the plan's module that gets its output
    """
    feeds = ""

    def __init__(self, family: "Family", name: str, layers: str,
                 entry: Sequence[str], exit: Sequence[str],
                 after: Sequence[str] = ()) -> None:
        self.family, self.name, self.layers = family, name, layers
        self.entry, self.exit = tuple(entry), tuple(exit)
        self.after = tuple(after)
        self.blocks = len(module_at(family.model, layers))  # type: ignore
        self.length = self.blocks + len(self.after) + 2

    def places(self, position: int) -> Tuple[str, ...]:
        """Returns the paths that are in a layer of the plan."""
        if position == 0:
            return self.entry
        if position <= self.blocks:
            return (f"{self.layers}.{position - 1}",)
        if position == self.length - 1:
            return self.exit
        return (self.after[position - self.blocks - 1],)

    # -- Described by the family -----------------------------------------------

    def call(self, work: "Work", fed: Any) -> Any:
        """Calls the real forward on the work. `fed` has the outputs of feeding
        modules in real runs, None elsewhere."""
        raise NotImplementedError

    def values(self, work: "Work") -> Dict[str, Callable[..., Any]]:
        """Returns results of stand-ins that cannot hand their input on."""
        return {}

    def layout(self, work: "Work", position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        """Returns names and shapes of the activations after a layer."""
        return [(MAIN, ())]

    def extras(self, work: "Work", run: Run) -> Dict[str, torch.Tensor]:
        """Returns what the first layer hands on for later ones."""
        return {}

    def block(self, work: "Work", index: int, block: nn.Module,
              state: State) -> State:
        """Returns the state after a block."""
        args, kwargs = work.arguments(index)
        out = block(state.main, *args, **kwargs)
        return state.with_main(out[0] if isinstance(out, tuple) else out)

    def later(self, work: "Work", index: int, module: nn.Module,
              state: State) -> State:
        """Returns the state after the index-th layer of `after`."""
        raise NotImplementedError

    def output(self, work: "Work", out: Any, state: State) -> torch.Tensor:
        """Returns the tensor that the module gives, from the result of the real
        forward."""
        return out

    # -- Execution --------------------------------------------------------------

    def run(self, work: "Work", fed: Any = None, real: Sequence[str] = (),
            inject: Optional[torch.Tensor] = None) -> Tuple[Run, Any]:
        run = Run(self.layers, frozenset(real), self.values(work), inject)
        with self.family.skeleton.running(run):
            out = self.call(work, fed)
        return run, out

    def begin(self, work: "Work", fed: Any) -> State:
        run, _ = self.run(work, fed, self.entry)
        assert run.first is not None
        return State(run.first, self.extras(work, run))

    def layer(self, work: "Work", position: int, state: State) -> State:
        if position == self.length - 1:
            return state
        place = self.places(position)[0]
        module = self.family.skeleton.real(place)
        if position <= self.blocks:
            return self.block(work, position - 1, module, state)
        return self.later(work, position - self.blocks - 1, module, state)

    def end(self, work: "Work", state: State) -> torch.Tensor:
        work.state = state
        _, out = self.run(work, None, self.exit, state.main)
        work.state = None
        return self.output(work, out, state)


class Work:
    """The samples and instances of one task."""

    def __init__(self, chain: Chain, item: Any, samples: Sequence[Sample],
                 first: int, count: int) -> None:
        self.chain, self.item, self.samples = chain, item, samples
        self.first, self.count = first, count
        self.state: Optional[State] = None
        self._inputs: Any = None
        self._arguments: Optional[Run] = None

    @property
    def inputs(self) -> Dict[str, Any]:
        """The arguments of the real forward for these samples."""
        if self._inputs is None:
            self._inputs = {
                name: self.here(value)
                for name, value in self.chain.family.inputs(self).items()}
        return self._inputs

    def here(self, value: Any) -> Any:
        """Returns a tensor on the model's device."""
        skeleton = self.chain.family.skeleton
        if skeleton is None or not isinstance(value, torch.Tensor):
            return value
        return value.to(skeleton.device)

    def probe(self) -> Run:
        """Returns a run without any parameters, made once."""
        if self._arguments is None:
            with torch.no_grad():
                self._arguments, _ = self.chain.run(self)
        return self._arguments

    def arguments(self, index: int) -> Any:
        """Returns the arguments of a block, without its input."""
        return self.probe().arguments[index]


class Family:
    """A family of models. Derived classes set `classes`, the names of the real
    classes, and describe chains, samples and the loss."""
    classes: Tuple[str, ...] = ()
    # Arguments of the real forward that samples may have. Others would be
    # ignored, and are an error.
    arguments: Tuple[str, ...] = ()

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.check_model()
        self.chains = self.describe()
        self.skeleton: Skeleton = None  # type: ignore[assignment]
        self._places: Optional[Set[str]] = None

    def take_apart(self, own: Callable[[str], bool],
                   device: Any = None) -> None:
        places = []
        for c in self.chains:
            for place in (*c.entry, *c.after, *c.exit):
                if place not in places:
                    places.append(place)
        self.skeleton = Skeleton(self.model, places,
                                 [c.layers for c in self.chains], own, device)

    def place_of(self, name: str) -> str:
        """Returns the path of the place that a parameter or buffer is in, ""
        for one outside of all."""
        if self._places is None:
            self._places = {place for c in self.chains
                            for i in range(c.length) for place in c.places(i)}
        at = name
        while at and at not in self._places:
            at = at.rpartition(".")[0]
        return at

    def check_model(self) -> None:
        """Raises ValueError for a model that cannot be split exactly."""

    def describe(self) -> List[Chain]:
        """Returns the chains in data-flow order."""
        raise NotImplementedError

    def tied(self) -> Optional[Tuple[str, str]]:
        """Returns the paths of two modules that share their weight."""
        return None

    def check_sample(self, sample: Sample) -> None:
        """Raises SampleError for a sample that the real forward would not take
        or would take for another."""

    def check_arguments(self, sample: Sample) -> None:
        """Raises SampleError for a field that the real forward takes and the
        description does not pass on."""
        if not self.arguments:
            return
        for name, value in sample.items():
            if value is not None and name not in self.arguments and \
                    accepts(type(self.model).forward, name):
                raise SampleError(
                    f"{name!r} would be ignored: remove it; fields of a "
                    f"{type(self.model).__name__} are "
                    f"{', '.join(self.arguments)}")

    def instances(self, chain: Chain, sample: Sample) -> int:
        """Returns how many instances of a module a sample has."""
        return 1

    def sizes(self, sample: Sample) -> Any:
        """Returns the pipeloom.Sample of a sample's sizes."""
        raise NotImplementedError

    def inputs(self, work: Work) -> Dict[str, Any]:
        """Returns the arguments of the real forward for a task."""
        raise NotImplementedError

    def count(self, sample: Sample) -> int:
        """Returns of how many terms the sample's loss is the sum."""
        raise NotImplementedError

    def loss(self, output: torch.Tensor, work: Work) -> torch.Tensor:
        """Returns the sum of the loss terms of a task."""
        raise NotImplementedError


_FAMILIES: List[type] = []


def register(family: type) -> type:
    """Adds a family; also those of users: a class derived from Family."""
    _FAMILIES.insert(0, family)
    return family


def supported() -> List[str]:
    return sorted(name for f in _FAMILIES for name in f.classes)


def family_of(model: nn.Module) -> Family:
    """Returns the description of a model. TypeError: there is none for its
    class, or the class is derived from a known one and has its own forward."""
    for kind in type(model).__mro__:
        for family in _FAMILIES:
            if kind.__name__ not in family.classes:
                continue
            if type(model).forward is not kind.forward:
                raise TypeError(
                    f"{type(model).__name__} has its own forward, which the "
                    f"description of {kind.__name__} would not run in full, "
                    "such as another loss: pass a loss_fn and the plain class, "
                    "or register a Family for it")
            return family(model)
    raise TypeError(
        f"no description of {type(model).__name__}. There are: "
        f"{', '.join(supported())}. To add one, derive a class from "
        "pipeloom.hf.Family that names the lists of layers, the modules before "
        "and after them, and the loss, and decorate it with "
        "pipeloom.hf.register (tests/python/hf/tiny_model.py has a small one)")


def accepts(function: Any, name: str) -> bool:
    """Returns whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
