"""A pipeline stage: the layers of the plan that it has, as modules."""
from typing import Any, Dict, List

from torch import nn

from pipeloom.hf.state import State, pack, unpack


class Layer(nn.Module):
    """One layer of the plan. The first layer of a stage takes what came from
    other stages, the last one gives the tensor that goes on; the others hand on
    a State. `parts` are the modules and parameters at these paths."""

    def __init__(self, chain: Any, position: int, parts: Any) -> None:
        super().__init__()
        self.position = position
        self.first = self.last = False
        vars(self)["chain"] = chain
        self.paths: List[str] = []
        for path, part in parts:
            self.paths.append(path)
            name = path.replace(".", "/")
            if isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.add_module(name, part)

    def forward(self, x: Any, item: Any) -> Any:
        chain, position = self.chain, self.position
        work = item.batch.work(chain, item)
        if position == 0:
            state = chain.begin(work, x or {})
        else:
            if self.first:
                x = unpack(x, chain.layout(work, position - 1))
            state = chain.layer(work, position, x)
        if position == chain.length - 1:
            return chain.end(work, state)
        return pack(state) if self.last else state


class StageModule(nn.Sequential):
    """The layers of a stage, which the executor may also run one by one."""

    def __init__(self, layers: List[Layer]) -> None:
        super().__init__(*layers)
        layers[0].first = True
        layers[-1].last = True

    def forward(self, x: Any, item: Any) -> Any:  # type: ignore[override]
        for layer in self:
            x = layer(x, item)
        return x

    def real_names(self) -> Dict[str, str]:
        """Returns the names of the parameters and of the buffers that are saved
        in the real model, indexed by their names here."""
        names = {}
        for i, layer in enumerate(self):
            for name in layer.state_dict(keep_vars=True):
                path, _, rest = name.partition(".")
                path = path.replace("/", ".")
                names[f"{i}.{name}"] = f"{path}.{rest}" if rest else path
        return names


__all__ = ["Layer", "StageModule", "State"]
