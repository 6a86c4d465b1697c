"""The modules that have had a loss so far, and those that have had none."""
from typing import Set


class MetLosses:
    """The losses of modules that one rank has seen, in steps whose trainer
    has not said which modules have one. Plans of the service say so for a
    module that feeds another; plans without loss_shares, such as static ones,
    do not, and a fallback to one must not drop a loss.

    `feeding` are the modules with a loss whose output another took."""

    def __init__(self) -> None:
        self.feeding: Set[str] = set()
        self._with: Set[str] = set()
        self._without: Set[str] = set()

    def loss(self, module: str, feeds: bool) -> None:
        """loss_fn returned a loss of the module."""
        self._with.add(module)
        if feeds:
            self.feeding.add(module)
        self._check(module)

    def none(self, module: str) -> None:
        """loss_fn was not called: by the plan the module has no loss."""
        self._without.add(module)
        self._check(module)

    def _check(self, module: str) -> None:
        if module in self._with and module in self._without:
            raise RuntimeError(
                f"loss_fn returned a loss of {module}, but was not called for "
                f"other passes of it: other modules take the output of {module}"
                ", and a plan has no loss_shares of it (those of static_plan "
                "have none); give Executor the names of all modules with a "
                "loss, losses=[...], or return None for the others")
