"""Pieces of a data set that are read on their own."""
import dataclasses
from typing import Any, Callable, Tuple

from pipeloom.sample import Sample


@dataclasses.dataclass(frozen=True)
class Unit:
    """A shard, a part of a file, or some files of a folder. A data set's units
    in order have its samples in order."""
    kind: str  # "tar", "lines", "array", "parquet", "arrow" or "files".
    path: str
    first: int = 0  # Byte, or row group.
    last: int = 0  # The end, exclusive.
    root: str = ""  # Folder where relative names of media are looked for.
    extra: Tuple[Any, ...] = ()  # Depends on the kind.


@dataclasses.dataclass(frozen=True)
class Entry:
    """A sample whose sizes are not read yet. `build` is to be called before the
    next entry is asked for; it raises BrokenFileError or MetadataError."""
    name: str
    build: Callable[[], Sample]
