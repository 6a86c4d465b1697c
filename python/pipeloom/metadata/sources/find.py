"""The units of data sets, by what lies at a path."""
import glob
import os
from typing import Dict, Iterator, List, Sequence, Tuple

from pipeloom.metadata.sources import energon, folders, lines, shards, tables
from pipeloom.metadata.build import Builder
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.headers.measure import kind_of_name, suffix_of
from pipeloom.metadata.sources.units import Entry, Unit

KINDS = ("auto", "webdataset", "energon", "parquet", "arrow", "jsonl", "folder")

_LINES = (".jsonl", ".ndjson", ".jsonl.gz")
_READERS = {"tar": shards.entries, "lines": lines.entries,
            "array": lines.entries, "parquet": tables.entries,
            "arrow": tables.entries, "files": folders.entries}


def entries(unit: Unit, builder: Builder) -> Iterator[Entry]:
    """Yields the samples of a unit."""
    return _READERS[unit.kind](unit, builder)


def knows_count(unit: Unit) -> bool:
    """Returns whether the file says how many samples the unit has."""
    return unit.kind in ("parquet", "arrow")


def count(unit: Unit) -> int:
    """Returns the number of samples. REQUIRES: knows_count(unit)."""
    return tables.count(unit)


def units(paths: Sequence[str], kind: str, split: str) -> List[Unit]:
    """Returns the units of data sets, in the order of `paths`. A path may have
    braces and wildcards: "shards-{000..127}.tar", "data/*.parquet".

    MetadataError: a path does not exist, or is no data set of the kind."""
    found: List[Unit] = []
    for given in paths:
        for path in _expanded(given):
            here = _units_of(path, kind, split)
            if not here:
                raise MetadataError(f"{path}: no samples were found in it; "
                                    "--help lists what is read")
            found += here
    return found


def _expanded(given: str) -> List[str]:
    if os.path.exists(given):
        return [given]
    found: List[str] = []
    for name in energon.expand_braces(given):
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            if "://" in name:
                raise MetadataError(f"{name}: is on the network; only local "
                                    "files are read: mount or copy them first")
            raise MetadataError(f"{name}: there is no such file or folder")
        found += matches
    return found


def _units_of(path: str, kind: str, split: str) -> List[Unit]:
    if os.path.isdir(path):
        return _folder_units(path, kind, split)
    kind_here = _kind_of_file(path)
    if kind_here == "folder":
        return folders.units(os.path.dirname(path) or ".",
                             [os.path.basename(path)])
    if not kind_here:
        raise MetadataError(_unknown_file(path))
    return _file_units(path, kind_here, os.path.dirname(path))


def _unknown_file(path: str) -> str:
    if path.endswith((".yaml", ".yml")):
        return (f"{path}: is YAML; if it is an Energon metadataset, name the "
                "data sets in it instead")
    if path.endswith((".tar.zst", ".tar.zstd")):
        return f"{path}: is compressed by zstd; unpack it first: zstd -d"
    return (f"{path}: is of no known kind; known are .tar, .parquet, .arrow, "
            ".jsonl, .json and media files")


def _kind_of_file(path: str) -> str:
    name = path.lower()
    if name.endswith(shards.SUFFIXES):
        return "webdataset"
    if name.endswith(_LINES) or name.endswith(".json"):
        return "jsonl"
    if name.endswith((".parquet", ".arrow")):
        return suffix_of(name)
    return "folder" if kind_of_name(name) else ""


def _file_units(path: str, kind: str, root: str) -> List[Unit]:
    if kind == "webdataset":
        return [Unit("tar", path)]
    if kind == "jsonl":
        return lines.units(path, root)
    return tables.units(path, root)


def _folder_units(path: str, kind: str, split: str) -> List[Unit]:
    is_energon = os.path.isdir(os.path.join(path, energon.FOLDER))
    if kind == "energon" or (kind == "auto" and is_energon):
        return energon.units(path, split)
    names = _files_in(path)
    by_kind = _by_kind(names)
    if kind == "auto":
        kind = _choose(path, by_kind)
    chosen = by_kind.get(kind, [])
    if kind == "folder":
        return folders.units(path, names)
    if kind in ("parquet", "arrow"):
        chosen = _of_split(path, chosen, split)
    found: List[Unit] = []
    for name in chosen:
        whole = os.path.join(path, name)
        root = (os.path.dirname(whole)
                if os.path.basename(name) == "metadata.jsonl" else path)
        found += _file_units(whole, kind, root)
    return found


def _files_in(root: str) -> List[str]:
    """Returns all files below a folder, sorted, without hidden ones."""
    found: List[str] = []
    for folder, inner, names in os.walk(root, followlinks=True):
        inner[:] = sorted(n for n in inner if not n.startswith("."))
        below = os.path.relpath(folder, root)
        found += [n if below == "." else os.path.join(below, n)
                  for n in names if not n.startswith(".")]
    return sorted(found)


def _by_kind(names: Sequence[str]) -> Dict[str, List[str]]:
    """Returns the files by kind. A .json file of the name of a media file
    belongs to that, and those that describe a data set to none."""
    stems = {os.path.splitext(n)[0] for n in names if kind_of_name(n)}
    found: Dict[str, List[str]] = {}
    for name in names:
        kind = _kind_of_file(name)
        if name.lower().endswith(".json") and (
                os.path.splitext(name)[0] in stems or os.path.basename(name) in
                ("dataset_info.json", "state.json", "dataset_dict.json",
                 "dataset_infos.json")):
            continue
        if kind:
            found.setdefault(kind, []).append(name)
    if not found and any(suffix_of(n) in ("txt", "text") for n in names):
        found["folder"] = list(names)
    return found


def _choose(path: str, by_kind: Dict[str, List[str]]) -> str:
    """Returns the kind of a folder. Media in a folder of JSON are those that
    its records name."""
    data = [k for k in ("webdataset", "parquet", "arrow", "jsonl")
            if k in by_kind]
    if len(data) > 1:
        shown = ", ".join(f"{len(by_kind[k])} of {k}" for k in data)
        raise MetadataError(f"{path}: has files of several kinds ({shown}); "
                            "choose one by --kind, or name the files")
    return data[0] if data else "folder"


def _of_split(path: str, names: List[str], split: str) -> List[str]:
    """Returns the files of a split, where names say it: "train-00000-of-...",
    "train/data-...". Otherwise all."""
    if split == "all":
        return names
    by_split: Dict[str, List[str]] = {}
    for name in names:
        for part in _split_names(name):
            by_split.setdefault(part, []).append(name)
    if split in by_split:
        return by_split[split]
    if by_split:
        raise MetadataError(f"{path}: there is no split {split!r}; --split "
                            f"takes {', '.join(sorted(by_split))} or all")
    return names


def _split_names(name: str) -> Tuple[str, ...]:
    known = ("train", "test", "validation", "val", "dev", "eval")
    base = os.path.basename(name)
    parts = os.path.dirname(name).split(os.sep) + [base.split("-")[0],
                                                   os.path.splitext(base)[0]]
    return tuple(dict.fromkeys(p for p in parts if p in known))
