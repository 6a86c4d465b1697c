"""Random numbers that torch does not restore for a forward that runs again:
those of Python and NumPy, and of generators that modules have as attributes."""
import contextlib
import random
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch import nn


def _numpy_random() -> Any:
    """Returns numpy.random if the trainer has imported NumPy, else None."""
    return getattr(sys.modules.get("numpy"), "random", None)


class HostRandom:
    """The states of random and numpy.random when it is made."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy_random = _numpy_random()
        self._numpy = (None if numpy_random is None else
                       numpy_random.get_state())

    def _set(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """A context with these states; the present ones are back after it."""
        now = HostRandom()
        self._set()
        try:
            yield
        finally:
            now._set()


class GeneratorState(NamedTuple):
    """A generator's state, and the function that sets it."""
    state: Any
    set_state: Callable[[Any], Any]

    def put_back(self) -> None:
        self.set_state(self.state)


def _state_of(generator: Any) -> GeneratorState:
    if isinstance(generator, random.Random):
        return GeneratorState(generator.getstate(), generator.setstate)
    if hasattr(generator, "bit_generator"):  # numpy.random.Generator.
        bits = generator.bit_generator
        return GeneratorState(
            bits.state, lambda state: setattr(bits, "state", state))
    return GeneratorState(generator.get_state(), generator.set_state)


class Generators:
    """The generators that modules have as attributes. Each module is looked
    through once."""

    def __init__(self) -> None:
        self._of: Dict[nn.Module, List[Tuple[nn.Module, str]]] = {}

    def states(self, module: nn.Module) -> List[GeneratorState]:
        """Returns the states of a module's generators and of those below it."""
        places = self._of.get(module)
        if places is None:
            kinds: Tuple[Any, ...] = (torch.Generator, random.Random)
            numpy_random = _numpy_random()
            if numpy_random is not None:
                kinds += numpy_random.Generator, numpy_random.RandomState
            places = [(m, name) for m in module.modules()
                      for name, value in vars(m).items()
                      if isinstance(value, kinds)]
            self._of[module] = places
        return [_state_of(vars(m)[name]) for m, name in places
                if vars(m).get(name) is not None]


__all__ = ["GeneratorState", "Generators", "HostRandom"]
