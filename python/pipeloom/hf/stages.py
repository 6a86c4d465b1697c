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
        self.is_divided = False
        vars(self)["chain"] = chain
        self.paths: List[str] = []
        for path, part in parts:
            self.paths.append(path)
            name = path.replace(".", "/")
            if isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.add_module(name, part)

    def divided(self) -> None:
        """Says that fully_shard has divided the parameters of this layer, which
        it gathers while forward runs."""
        from torch.utils import _pytree
        if State not in _pytree.SUPPORTED_NODES:
            # So that fully_shard finds the tensors between layers.
            _pytree.register_pytree_node(
                State, lambda state: ([state.main, *state.extras.values()],
                                      list(state.extras)),
                lambda tensors, names: State(
                    *tensors[:1], dict(zip(names, list(tensors)[1:]))))
        self.is_divided = True
        for name in self._parameters:
            self._lend(name, None)

    def _lend(self, name: str, parameter: Any) -> None:
        self.chain.family.skeleton.lend(name.replace("/", "."), parameter)

    def forward(self, x: Any, item: Any = None) -> Any:
        if item is None:  # Runs a function while parameters are gathered.
            return x(self)
        if not self.is_divided or not self._parameters:
            return self._run(x, item)
        for name, parameter in self._parameters.items():
            self._lend(name, parameter)
        try:
            return self._run(x, item)
        finally:
            for name in self._parameters:
                self._lend(name, None)

    def _run(self, x: Any, item: Any) -> Any:
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
