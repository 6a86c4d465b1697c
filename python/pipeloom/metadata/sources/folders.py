"""Plain folders of media files, with captions in text files of equal names."""
import json
import os
from typing import Dict, Iterator, List, Sequence, Tuple

from pipeloom.metadata.build import Builder, open_file
from pipeloom.metadata.errors import BrokenFileError
from pipeloom.metadata.headers.measure import kind_of_name, suffix_of
from pipeloom.metadata.records import parts_of
from pipeloom.metadata.sources.units import Entry, Unit
from pipeloom.sample import Sample

_TEXT = ("txt", "caption", "text")
_FILES = 128  # Samples of a unit.

# Files of one sample: their names in the unit's folder.
Group = Tuple[str, ...]


def units(root: str, names: Sequence[str]) -> List[Unit]:
    """Returns units of the files `names` in `root`: files whose names differ
    only in the suffix make a sample. Texts without media are samples only where
    there are no media at all."""
    groups: Dict[str, List[str]] = {}
    for name in sorted(names):
        if kind_of_name(name) or suffix_of(name) in _TEXT + ("json",):
            groups.setdefault(os.path.splitext(name)[0], []).append(name)
    media = [tuple(g) for g in groups.values() if any(map(kind_of_name, g))]
    if not media:
        media = [tuple(g) for g in groups.values()
                 if any(suffix_of(n) in _TEXT for n in g)]
    return [Unit("files", root, at, at + _FILES,
                 extra=tuple(media[at:at + _FILES]))
            for at in range(0, len(media), _FILES)]


def entries(unit: Unit, builder: Builder) -> Iterator[Entry]:
    """Yields the samples of some files."""
    for group in unit.extra:
        yield Entry(group[0], lambda group=group: _sample(unit.path, group,
                                                          builder))


def _sample(root: str, group: Group, builder: Builder) -> Sample:
    sizes, texts, record_texts = [], [], []
    for name in group:
        path = os.path.join(root, name)
        kind = kind_of_name(name)
        with open_file(path) as file:
            if kind:
                sizes.append(builder.measure(file, kind, path, ""))
                continue
            text = file.read().decode("utf-8", "replace")
        if suffix_of(name) != "json":
            texts.append(text)
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BrokenFileError(path, "", f"is no JSON: {error}") from None
        if isinstance(record, dict):
            record_texts += parts_of(record, builder.options.text_fields).texts
    return builder.sample(texts or record_texts, sizes,
                          os.path.join(root, group[0]), "")
