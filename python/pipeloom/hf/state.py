"""Activations between layers: a main tensor, and named tensors for layers
further on."""
import dataclasses
from typing import Dict, List, Sequence, Tuple

import torch

Layout = Sequence[Tuple[str, Sequence[int]]]
MAIN = "main"


@dataclasses.dataclass
class State:
    """The activations between two layers. `extras` are taken up by layers
    further on; their order is that of the layout."""
    main: torch.Tensor
    extras: Dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def with_main(self, main: torch.Tensor) -> "State":
        return State(main, dict(self.extras))


def pack(state: State) -> torch.Tensor:
    """Returns one tensor for the transport: the main tensor, or all tensors in
    a row if there are extras. ValueError: their types differ."""
    if not state.extras:
        return state.main
    tensors = [state.main, *state.extras.values()]
    for name, tensor in state.extras.items():
        if tensor.dtype != state.main.dtype:
            raise ValueError(
                f"activation {name!r} is {tensor.dtype}, the main one "
                f"{state.main.dtype}: train the model in one type, or cast it "
                "in the family's begin()")
    return torch.cat([t.reshape(-1) for t in tensors])


def unpack(tensor: torch.Tensor, layout: Layout) -> State:
    """Returns the state that pack() has made. `layout` names all tensors with
    their shapes, the main one first. ValueError: the size is another."""
    if len(layout) == 1:
        return State(tensor)
    sizes: List[int] = []
    for _, shape in layout:
        size = 1
        for n in shape:
            size *= int(n)
        sizes.append(size)
    if sum(sizes) != tensor.numel():
        raise ValueError(
            f"a stage got {tensor.numel()} elements where its layout "
            f"{[(n, tuple(s)) for n, s in layout]} has {sum(sizes)}: do all "
            "ranks have the same samples?")
    parts = [p.reshape(tuple(shape)) for p, (_, shape) in zip(
        torch.split(tensor, sizes), layout)]
    return State(parts[0], {name: part for (name, _), part in zip(
        layout[1:], parts[1:])})
