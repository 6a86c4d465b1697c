"""Partitions: which layers of the plan are on which rank."""
import dataclasses
import json
import os
from typing import Any, Sequence, Tuple

from pipeloom.hf.family import family_of
from pipeloom.static_schedule import Stage


@dataclasses.dataclass(frozen=True)
class Partition:
    """Stages in data-flow order; `module` of a stage is an index of
    `module_names`."""
    module_names: Tuple[str, ...]
    stages: Tuple[Stage, ...]

    @property
    def num_ranks(self) -> int:
        return 1 + max(s.rank for s in self.stages)


class PartitionError(ValueError):
    """A partition is not one of the model."""


def read_partition(path: str) -> Partition:
    """Reads a file of `pipeloom partition --out`. PartitionError: it is no such
    file."""
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise PartitionError(f"{path}: {error}") from None
    if not isinstance(content, dict) or \
            content.get("format") != "pipeloom.partition":
        raise PartitionError(f"{path}: no file of `pipeloom partition --out`: "
                             "`format` must be pipeloom.partition")
    names = tuple(m["module"] for m in content["modules"])
    return Partition(names, tuple(
        Stage(names.index(s["module"]), s["first_layer"], s["layers"],
              s["rank"], s.get("segment", 0)) for s in content["stages"]))


def partition_of(job: Any) -> Partition:
    """Returns the partition of a pipeloom.Job, of a file's path, or itself."""
    if isinstance(job, Partition):
        return job
    if isinstance(job, (str, os.PathLike)):
        return read_partition(os.fspath(job))
    return Partition(tuple(job.module_names), tuple(job.stages))


def check_partition(partition: Partition, chains: Sequence[Any],
                    model: str) -> None:
    """Checks that the stages hold every layer of the model once. PartitionError
    names the module and what it should have."""
    expected = [c.name for c in chains]
    if sorted(partition.module_names) != sorted(expected):
        raise PartitionError(
            f"the plan's modules are {list(partition.module_names)}; those of "
            f"{model} are {expected}: make the job's model file from the "
            "model's config.json, with `pipeloom model CONFIG --out FILE`")
    for chain in chains:
        module = partition.module_names.index(chain.name)
        at = 0
        for stage in partition.stages:
            if stage.module != module:
                continue
            if stage.first_layer != at:
                raise PartitionError(
                    f"a stage of {chain.name} begins at layer "
                    f"{stage.first_layer}, not {at}")
            at += stage.num_layers
        if at != chain.length:
            more = f", {len(chain.after)} after them" if chain.after else ""
            raise PartitionError(
                f"the plan has {at} layers of {chain.name}; this {model} has "
                f"{chain.length} (1 before the blocks, {chain.blocks} blocks"
                f"{more}, 1 at the end): make the job's model file from this "
                "model's config.json, with `pipeloom model CONFIG --out FILE`")


def even_partition(model: Any, num_ranks: int) -> Partition:
    """Returns a partition without a planner: each module in equal numbers of
    layers over all ranks. PartitionError: a module has fewer layers than there
    are ranks."""
    chains = family_of(model).chains
    stages = []
    for module, chain in enumerate(chains):
        if chain.length < num_ranks:
            raise PartitionError(
                f"{chain.name} has {chain.length} layers for {num_ranks} "
                "ranks: use fewer ranks, or a partition that leaves some out")
        for r in range(num_ranks):
            first = chain.length * r // num_ranks
            end = chain.length * (r + 1) // num_ranks
            stages.append(Stage(module, first, end - first, r, module))
    return Partition(tuple(c.name for c in chains), tuple(stages))
