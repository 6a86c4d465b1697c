"""JSON Lines, and JSON files that are one list, a part at a time.

Both are cut into parts of some megabytes at the ends of records, so that
several processes can read one file and none holds it as a whole.
"""
import codecs
import gzip
import json
import os
from typing import Any, BinaryIO, Iterator, List, Tuple

from pipeloom.metadata.build import Builder, beyond_limits, open_file
from pipeloom.metadata.errors import (BrokenFileError, MetadataError,
                                      Unreadable)
from pipeloom.metadata.records import (parts_of, sample_of_metadata,
                                       unknown_fields)
from pipeloom.metadata.sources.units import Entry, Unit
from pipeloom.sample import Sample

_PART = 4 << 20  # Bytes.
_MAX_RECORD = 256 << 20  # Bytes; media inside of records make them large.
_BLOCK = 1 << 20


def units(path: str, root: str) -> List[Unit]:
    """Returns the parts of a file. BrokenFileError: it is one JSON list, and
    damaged. MetadataError: it is neither JSON Lines nor a list."""
    if path.endswith(".gz"):
        return [Unit("lines", path, 0, -1, root)]
    with open_file(path) as file:
        first = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if first == b"[":
        return _list_units(path, root)
    if first not in (b"{", b""):
        raise MetadataError(f"{path}: begins with {first!r}; expected JSON "
                            "Lines (an object a line) or a list of objects")
    size = os.path.getsize(path)
    return [Unit("lines", path, at, min(at + _PART, size), root)
            for at in range(0, size, _PART)]


def entries(unit: Unit, builder: Builder) -> Iterator[Entry]:
    """Yields the records of a part, named by line or number."""
    source = _list_items(unit) if unit.kind == "array" else _lines(unit)
    roots = ([builder.options.media_root] if builder.options.media_root else
             [unit.root])
    for name, text in source:
        yield Entry(name, _build(unit.path, name, text, roots, builder))


def _build(path: str, name: str, text: Any, roots: List[str],
           builder: Builder) -> Any:
    def build() -> Sample:
        try:
            return read()
        except BrokenFileError as error:
            if error.file != path or not name.startswith("byte "):
                raise
            line = f"line {_line_number(path, int(name[5:]))}"
            raise BrokenFileError(path, error.member.replace(name, line, 1),
                                  error.why, error.remedy) from None

    def read() -> Sample:
        record = text
        if isinstance(text, bytes):
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise BrokenFileError(path, name,
                                      f"is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise BrokenFileError(path, name, "is no JSON object")
        try:
            sample = sample_of_metadata(record)
        except Unreadable as error:
            raise BrokenFileError(path, name, error.why) from None
        if sample is not None:
            why = beyond_limits(sample)
            if why:
                raise BrokenFileError(path, name, why)
            return sample
        parts = parts_of(record, builder.options.text_fields)
        if not parts.texts and not parts.media:
            names = unknown_fields(record, builder.options.text_fields)
            if names:
                raise BrokenFileError(
                    path, name, f"has no text or media under a known name; "
                    f"its fields are {names}",
                    "name those that hold text with --text-field "
                    "(text_fields=[...]), call media images, videos or audios, "
                    "or leave such samples out with --skip-broken "
                    "(skip_broken=True)")
            builder.ignored["records without known text or media"] += 1
        return builder.record(parts, roots, path, name)

    return build


def _line_number(path: str, at: int) -> int:
    """Returns the number of the line that begins at a byte, from 1."""
    number = 1
    with _opened(path) as file:
        while at > 0:
            block = file.read(min(at, _BLOCK))
            if not block:
                break
            at -= len(block)
            number += block.count(b"\n")
    return number


def _lines(unit: Unit) -> Iterator[Tuple[str, bytes]]:
    """Yields the lines that begin in a part."""
    with _opened(unit.path) as file:
        at = unit.first
        if at:
            file.seek(at - 1)  # A line that began before belongs to the part
            at += len(_line(file, unit.path, at - 1)) - 1  # before.
        whole = unit.last < 0
        while whole or at < unit.last:
            try:
                line = _line(file, unit.path, at)
            except (OSError, EOFError) as error:
                raise BrokenFileError(unit.path, "",
                                      f"ends early: {error}") from None
            if not line:
                return
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield f"byte {at}", line.lstrip(b"\xef\xbb\xbf")
            at += len(line)


def _opened(path: str) -> BinaryIO:
    file = open_file(path)
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    return file


def _line(file: BinaryIO, path: str, at: int) -> bytes:
    line = file.readline(_MAX_RECORD + 1)
    if len(line) > _MAX_RECORD:
        raise BrokenFileError(path, f"byte {at}", "a line has more than "
                              f"{_MAX_RECORD} bytes")
    return line


def _list_units(path: str, root: str) -> List[Unit]:
    """Returns parts of a JSON list: `extra` is the number of the first record
    and the number of records."""
    found: List[Unit] = []
    first = start = count = 0
    end = 0
    for number, (start_at, end) in enumerate(_spans(path)):
        if count and end - start > _PART:
            found.append(Unit("array", path, start, start_at, root,
                              (first, count)))
            count = 0
        if count == 0:
            first, start = number, start_at
        count += 1
    if count:
        found.append(Unit("array", path, start, end, root, (first, count)))
    return found


def _spans(path: str) -> Iterator[Tuple[int, int]]:
    """Yields the first byte and the end of each record of a JSON list."""
    decoder = json.JSONDecoder()
    text, at, done, position = "", 0, False, 0
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    with open_file(path) as file:
        if file.read(3) == b"\xef\xbb\xbf":
            position = 3
        file.seek(0)
        block, opened = _BLOCK, False
        while True:
            # Skips blanks and commas, and counts their bytes.
            while at < len(text) and text[at] in " \t\r\n,[]":
                character = text[at]
                if character == "[" and opened:
                    break
                opened = opened or character == "["
                at, position = at + 1, position + 1
                if character == "]":
                    return
            if at < len(text):
                try:
                    _, end = decoder.raw_decode(text, at)
                    size = len(text[at:end].encode("utf-8", "surrogateescape"))
                    if end < len(text) or done:
                        yield position, position + size
                        at, position = end, position + size
                        block = _BLOCK
                        continue
                except (ValueError, RecursionError) as error:
                    if done or len(text) - at > _MAX_RECORD:
                        raise BrokenFileError(
                            path, f"byte {position}",
                            f"is no JSON: {error}") from None
            if done:
                raise BrokenFileError(path, f"byte {position}",
                                      "the list has no end: ] is missing")
            data = file.read(block)
            block *= 2
            done = not data
            text, at = text[at:] + utf8.decode(data, done), 0


def _list_items(unit: Unit) -> Iterator[Tuple[str, Any]]:
    with open_file(unit.path) as file:
        file.seek(unit.first)
        data = file.read(unit.last - unit.first)
    text = data.decode("utf-8", "replace")
    first, count = unit.extra
    decoder, at = json.JSONDecoder(), 0
    for number in range(first, first + count):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        record, at = decoder.raw_decode(text, at)
        yield f"record {number}", record
