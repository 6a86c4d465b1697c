"""The part of YAML that .nv-meta files use, for machines without PyYAML.

Maps and lists by indentation, empty or simple lists and maps in brackets,
plain and quoted scalars. Anything else is an error that names PyYAML.
"""
import json
import re
from typing import Any, List, Tuple

from pipeloom.metadata import packages
from pipeloom.metadata.errors import MetadataError

_PAIR = re.compile(r"""^("[^"]*"|'[^']*'|[^\s:#\[\]{}&*!|>][^#]*?)"""
                   r""":(?:\s+(.*))?$""")
_Line = Tuple[int, str, int]  # Indentation, text, number of the line.


def load(text: str, file: str) -> Any:
    """Returns the value of a document. MetadataError: it cannot be read."""
    yaml = packages.optional("yaml")
    if yaml is not None:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise MetadataError(f"{file}: is no YAML: {error}") from None
    lines: List[_Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if bare.strip() and bare.strip() != "---":
            lines.append((len(bare) - len(bare.lstrip()), bare.strip(), number))
    try:
        value, rest = _block(lines, 0)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{file}: {error}; install PyYAML to read all of "
                            "YAML: pip install pyyaml") from None
    if rest != len(lines):
        raise MetadataError(f"{file}: line {lines[rest][2]} is not understood; "
                            "install PyYAML to read all of YAML: pip install "
                            "pyyaml")
    return value


def _block(lines: List[_Line], at: int) -> Tuple[Any, int]:
    if at >= len(lines):
        return None, at
    if lines[at][1] == "-" or lines[at][1].startswith("- "):
        return _list(lines, at)
    if _PAIR.match(lines[at][1]):
        return _map(lines, at)
    return _scalar(lines[at][1], lines[at][2]), at + 1


def _list(lines: List[_Line], at: int) -> Tuple[List[Any], int]:
    indent, found = lines[at][0], []
    while at < len(lines) and lines[at][0] == indent and (
            lines[at][1] == "-" or lines[at][1].startswith("- ")):
        rest = lines[at][1][1:].strip()
        if not rest:
            value, at = _block(lines, at + 1)
        elif _PAIR.match(rest):  # A map that begins after the dash.
            inner = lines[at][1].index(rest)
            lines[at] = (indent + inner, rest, lines[at][2])
            value, at = _map(lines, at)
        else:
            value, at = _scalar(rest, lines[at][2]), at + 1
        found.append(value)
    return found, at


def _map(lines: List[_Line], at: int) -> Tuple[dict, int]:
    indent, found = lines[at][0], {}
    while at < len(lines) and lines[at][0] == indent:
        pair = _PAIR.match(lines[at][1])
        if not pair:
            break
        name = str(_scalar(pair.group(1), lines[at][2]))
        if pair.group(2):
            found[name] = _scalar(pair.group(2), lines[at][2])
            at += 1
            continue
        at += 1
        deeper = at < len(lines) and (
            lines[at][0] > indent or
            (lines[at][0] == indent and lines[at][1].startswith("-")))
        found[name] = None
        if deeper:
            found[name], at = _block(lines, at)
    return found, at


def _scalar(text: str, number: int) -> Any:
    if text[:1] in "[{":
        return _flow(text, number)
    if text[:1] in "&*!|>%@`":
        raise ValueError(f"line {number} uses {text[0]!r}, which is not "
                         "understood")
    if text[:1] == '"' and text[-1:] == '"' and len(text) > 1:
        return json.loads(text)
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text in ("null", "~", ""):
        return None
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return text


def _flow(text: str, number: int) -> Any:
    closing = {"[": "]", "{": "}"}[text[0]]
    if text[-1] != closing or any(c in text[1:-1] for c in "[]{}"):
        raise ValueError(f"line {number} nests brackets, which is not "
                         "understood")
    items = [i.strip() for i in text[1:-1].split(",") if i.strip()]
    if closing == "]":
        return [_scalar(i, number) for i in items]
    pairs = [_PAIR.match(i) for i in items]
    if not all(pairs):
        raise ValueError(f"line {number} is not understood")
    return {str(_scalar(p.group(1), number)): _scalar(p.group(2) or "", number)
            for p in pairs if p}
