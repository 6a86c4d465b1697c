"""Folders of Megatron-Energon: WebDataset shards with a `.nv-meta` folder.

Read are split.yaml (or split.json) for the shards of a split and what is
excluded, and dataset.yaml for the field map. The sizes in index.sqlite are not
used: they leave orientation out.
"""
import json
import os
import re
from typing import Any, Dict, List, Tuple

from pipeloom.metadata.sources import yaml_subset
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.sources.units import Unit

FOLDER = ".nv-meta"

_FIELD = re.compile(r"^([^\[\]]+)((?:\[[^\[\]]+\])*)$")
_RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)$")


def units(folder: str, split: str) -> List[Unit]:
    """Returns a unit a shard of the split; "all" for every split.

    MetadataError: a file of .nv-meta is missing or not understood."""
    spec = _load(folder, ("split.yaml", "split.json"))
    parts = spec.get("split_parts")
    if not isinstance(parts, dict):
        raise MetadataError(f"{folder}/{FOLDER}/split.yaml: split_parts is "
                            "missing; run `energon prepare` again")
    if split != "all" and split not in parts:
        raise MetadataError(f"{folder}: there is no split {split!r}; --split "
                            f"takes {', '.join(sorted(parts))} or all")
    chosen = list(parts) if split == "all" else [split]
    names = [n for part in chosen for pattern in parts[part] or ()
             for n in expand_braces(str(pattern))]
    left_out = [n for pattern in spec.get("exclude") or ()
                for n in expand_braces(str(pattern))]
    if not names:
        raise MetadataError(f"{folder}: split {split!r} has no shards")
    fields = _field_map(folder)
    found = []
    for name in names:
        if name in left_out:
            continue
        keys = tuple(n[len(name) + 1:] for n in left_out
                     if n.startswith(name + "/"))
        found.append(Unit("tar", os.path.join(folder, name),
                          extra=(fields, keys)))
    return found


def expand_braces(pattern: str) -> List[str]:
    """Returns the names that a pattern with braces stands for: "a{00..02}.tar"
    or "{train,val}.tar", as shells and WebDataset expand it."""
    opened = pattern.find("{")
    closed = pattern.find("}", opened)
    if opened < 0 or closed < 0:
        return [pattern]
    body = pattern[opened + 1:closed]
    between = _RANGE.match(body)
    if between:
        first, last = int(between.group(1)), int(between.group(2))
        width = max((len(g.lstrip("-")) for g in between.groups()
                     if g.lstrip("-").startswith("0")), default=0)
        step = 1 if last >= first else -1
        items = [f"{n:0{width}d}" for n in range(first, last + step, step)]
    elif "," in body:
        items = body.split(",")
    else:
        return [pattern[:closed + 1] + rest
                for rest in expand_braces(pattern[closed + 1:])]
    return [pattern[:opened] + item + rest for item in items
            for rest in expand_braces(pattern[closed + 1:])]


def _load(folder: str, names: Tuple[str, ...]) -> Dict[str, Any]:
    for name in names:
        path = os.path.join(folder, FOLDER, name)
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            value = (json.loads(text) if name.endswith(".json") else
                     yaml_subset.load(text, path))
        except ValueError as error:
            raise MetadataError(f"{path}: is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise MetadataError(f"{path}: must be a map of names to values")
        return value
    raise MetadataError(f"{folder}: there is no {FOLDER}/{names[0]}; run "
                        "`energon prepare` first, or name the tar files")


def _field_map(folder: str) -> Tuple[Tuple[Tuple[str, ...], ...], ...]:
    """Returns the fields of dataset.yaml, each its alternatives; none if there
    is no field map (crude data, or a loader written in Python)."""
    path = os.path.join(folder, FOLDER, "dataset.yaml")
    if not os.path.exists(path):
        return ()
    fields = _load(folder, ("dataset.yaml",)).get("field_map")
    if not isinstance(fields, dict):
        return ()
    found = []
    for name, value in fields.items():
        alternatives = []
        for option in str(value).split(","):
            match = _FIELD.match(option.strip())
            if not match:
                raise MetadataError(f"{path}: field_map.{name} is {value!r}; "
                                    "expected an extension such as jpg or "
                                    "json[caption]")
            inner = match.group(2)[1:-1].split("][") if match.group(2) else []
            alternatives.append((match.group(1).lower(), *inner))
        found.append(tuple(alternatives))
    return tuple(found)
