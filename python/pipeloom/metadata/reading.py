"""Samples of units, in this process or in several."""
import collections
import dataclasses
import time
from typing import Counter, Iterator, List, Optional, Sequence, Tuple

from pipeloom.metadata.sources import find
from pipeloom.metadata.build import Builder, Options
from pipeloom.metadata.errors import BrokenFileError
from pipeloom.metadata.sources.units import Entry, Unit
from pipeloom.sample import Sample

_BATCH = 256  # Samples.
_BATCH_SECONDS = 0.2


@dataclasses.dataclass
class Batch:
    """Consecutive samples of a unit, less broken ones."""
    samples: List[Sample] = dataclasses.field(default_factory=list)
    broken: List[str] = dataclasses.field(default_factory=list)  # Names.
    ignored: Counter[str] = dataclasses.field(
        default_factory=collections.Counter)
    texts: int = 0  # Texts whose tokens were counted.
    position: int = 0  # Samples of the unit up to the end of this batch.


@dataclasses.dataclass(frozen=True)
class Task:
    """A unit to read: from sample `first` on, and of those the `chosen` (in
    ascending order) if not None. `counting`: only counts samples."""
    unit: Unit
    first: int = 0
    chosen: Optional[Tuple[int, ...]] = None
    counting: bool = False


class Reader:
    """Reads tasks, one after another."""

    def __init__(self, options: Options, skip_broken: bool) -> None:
        """MetadataError: the tokenizer cannot be loaded."""
        self._builder = Builder(options)
        self._skip_broken = skip_broken

    def run(self, task: Task) -> Iterator[Batch]:
        """Yields what a task holds; the last batch has the last position.

        BrokenFileError: a file is broken and not to be skipped."""
        batch, began = Batch(position=task.first), time.monotonic()
        wanted = None if task.chosen is None else set(task.chosen)
        last = None if not task.chosen else task.chosen[-1]
        found = iter(())
        position = -1
        try:
            if task.counting and find.knows_count(task.unit):
                batch.position = find.count(task.unit)
            elif wanted is None or wanted:
                found = find.entries(task.unit, self._builder)
            for position, entry in enumerate(found):
                if position < task.first:
                    continue
                if not task.counting and (wanted is None or position in wanted):
                    self._add(entry, batch)
                batch.position = position + 1
                if last is not None and position >= last:
                    break
                if (len(batch.samples) >= _BATCH or
                        time.monotonic() - began > _BATCH_SECONDS):
                    yield self._closed(batch)
                    batch = Batch(position=position + 1)
                    began = time.monotonic()
        except BrokenFileError as error:  # The rest of the unit.
            if not self._skip_broken:
                raise
            batch.broken.append(error.name())
        yield self._closed(batch)

    def _add(self, entry: Entry, batch: Batch) -> None:
        try:
            batch.samples.append(entry.build())
        except BrokenFileError as error:
            if not self._skip_broken:
                raise
            batch.broken.append(error.name())

    def _closed(self, batch: Batch) -> Batch:
        batch.ignored = self._builder.ignored.copy()
        self._builder.ignored.clear()
        batch.texts, self._builder.tokens.texts = self._builder.tokens.texts, 0
        return batch


def in_process(tasks: Sequence[Task], options: Options,
               skip_broken: bool) -> Iterator[Tuple[int, Batch, bool]]:
    """Yields (number of the task, batch, whether it is the task's last) in the
    order of tasks."""
    reader = Reader(options, skip_broken)
    for number, task in enumerate(tasks):
        held: Optional[Batch] = None
        for batch in reader.run(task):
            if held is not None:
                yield number, held, False
            held = batch
        assert held is not None
        yield number, held, True
