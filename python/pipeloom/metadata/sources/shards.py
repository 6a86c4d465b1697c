"""WebDataset shards: tar files, where files of one key make a sample.

The key of a member is its path up to the first dot of the file name, the rest
is its extension: `a/0001.left.jpg` and `a/0001.txt` are one sample. Members of
a sample follow each other. Bodies are read in place; nothing but text and
headers is loaded. Members of compressed shards go through a temporary file.
"""
import dataclasses
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from typing import (Any, BinaryIO, Callable, Dict, Iterator, List, Optional,
                    Tuple)

from pipeloom.metadata.build import Builder, open_file
from pipeloom.metadata.errors import BrokenFileError
from pipeloom.metadata.headers.measure import Sizes, kind_of_name
from pipeloom.metadata.records import Parts, parts_of, sample_of_metadata
from pipeloom.metadata.headers.streams import size_of
from pipeloom.metadata.sources.units import Entry, Unit
from pipeloom.sample import Sample

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_MEMBER = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_HIDDEN = re.compile(r"__[^/]*__($|/)")
_TEXT = ("txt", "text", "caption", "transcript")
_MAX_TEXT = 64 << 20  # Bytes of one text or JSON member.
_IN_MEMORY = 8 << 20  # Bytes of a member of a compressed shard.

# A field of a sample: extension, then names inside its JSON.
Field = Tuple[str, ...]


@dataclasses.dataclass
class _Member:
    name: str
    extension: str
    size: int  # Bytes.
    open: Callable[[], BinaryIO]
    close: Callable[[], None] = lambda: None


def entries(unit: Unit, builder: Builder) -> Iterator[Entry]:
    """Yields the samples of a shard. `extra` of the unit is the fields to read
    (each a tuple of alternatives; none: all) and the keys to leave out.

    BrokenFileError: the shard is cut off or damaged; raised after the whole
    samples ahead of the damage."""
    fields, excluded = unit.extra if unit.extra else ((), ())
    shard = _Shard(unit.path, builder, fields)
    key, group = "", []
    with open_file(unit.path) as file:
        walk = _Walk(unit.path, file)
        for member in walk:
            named = _MEMBER.match(member.name)
            if named is None:
                builder.ignored["members without an extension"] += 1
                continue
            if named.group(1) != key and group:
                if key not in excluded:
                    yield shard.entry(key, group)
                _close(group)
                group = []
            key = named.group(1)
            member.extension = named.group(2).lower()
            group.append(member)
            if not walk.is_whole(member):
                break
        if group and key not in excluded and not walk.damage:
            yield shard.entry(key, group)
        _close(group)
        if walk.damage:
            raise BrokenFileError(unit.path, "", walk.damage)


def _close(group: List[_Member]) -> None:
    for member in group:
        member.close()


class _Walk:
    """The members of a tar file in order. `damage` says what is wrong, if
    anything is."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.damage = ""
        self._file, self._end = file, size_of(file)
        try:
            self._tar = tarfile.open(fileobj=file, mode="r:*")
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            text = " ".join(str(error).split())[:120]
            raise BrokenFileError(path, "", f"is no tar file: {text}") from None
        self._compressed = self._tar.fileobj is not file

    def __iter__(self) -> Iterator[_Member]:
        try:
            before = -1
            while True:
                info = self._tar.next()
                self._tar.members = []  # Else it keeps all of them.
                if info is None:
                    break
                if self._tar.offset <= before:
                    self.damage = f"the header at byte {before} is damaged"
                    return
                before = self._tar.offset
                if info.isfile() and not _HIDDEN.match(info.name):
                    yield self._member(info)
                    if self.damage:
                        return
            self._check_end()
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError,
                ValueError, OverflowError) as error:
            text = " ".join(str(error).split())[:120]
            self.damage = f"is no whole tar file: {text}"

    def _check_end(self) -> None:
        """tarfile takes a damaged header for the end."""
        self._tar.fileobj.seek(self._tar.offset)
        block = self._tar.fileobj.read(512)
        if len(block) < 512:
            self.damage = "it has no end mark: its end is missing"
        elif block.count(0) != 512:
            self.damage = f"the header at byte {self._tar.offset} is damaged"

    def _member(self, info: tarfile.TarInfo) -> _Member:
        def in_place() -> BinaryIO:
            stream = self._tar.extractfile(info)
            assert stream is not None
            return stream  # type: ignore[return-value]

        if not self._compressed:
            return _Member(info.name, "", info.size, in_place)
        # To go back in a compressed file would unpack it from its start again.
        copy = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)
        shutil.copyfileobj(in_place(), copy)

        def copied() -> BinaryIO:
            copy.seek(0)
            return copy  # type: ignore[return-value]

        return _Member(info.name, "", info.size, copied, copy.close)

    def is_whole(self, member: _Member) -> bool:
        """Returns whether the body is there; notes the damage if it is not."""
        if not self._compressed and self._tar.offset > self._end:
            self.damage = (f"it ends inside {member.name}: {self._end} bytes, "
                           f"of at least {self._tar.offset}")
        return not self.damage


class _Shard:

    def __init__(self, path: str, builder: Builder,
                 fields: Tuple[Tuple[Field, ...], ...]) -> None:
        self._path, self._builder, self._fields = path, builder, fields

    def entry(self, key: str, group: List[_Member]) -> Entry:
        def build() -> Sample:
            members: Dict[str, _Member] = {}
            for member in group:
                if member.extension in members:
                    raise BrokenFileError(self._path, member.name,
                                          "is there twice in its sample")
                members[member.extension] = member
            if self._fields:
                return self._by_fields(key, members)
            return self._by_kind(key, members)

        return Entry(key, build)

    def _read(self, member: _Member) -> str:
        if member.size > _MAX_TEXT:
            raise BrokenFileError(self._path, member.name,
                                  f"is a text of {member.size} bytes")
        return member.open().read().decode("utf-8", "replace")

    def _json(self, member: _Member) -> Any:
        try:
            return json.loads(self._read(member))
        except (ValueError, RecursionError) as error:
            raise BrokenFileError(self._path, member.name,
                                  f"is no JSON: {error}") from None

    def _sizes(self, kind: str, member: _Member) -> Sizes:
        return self._builder.measure(member.open(), kind, self._path,
                                     member.name)

    def _by_kind(self, key: str,
                 members: Dict[str, _Member]) -> Sample:
        """Reads all members. The text of a sample is that of the conversation
        in its JSON, else that of its text files, else that of known fields of
        its JSON: most writers give a caption twice."""
        sizes: List[Sizes] = []
        texts: List[str] = []
        record = Parts()
        embedded: Optional[Sample] = None
        for extension, member in members.items():
            suffix = extension.rsplit(".", 1)[-1]
            kind = kind_of_name(member.name)
            if kind:
                sizes.append(self._sizes(kind, member))
            elif suffix in _TEXT:
                texts.append(self._read(member))
            elif suffix == "json":
                value = self._json(member)
                if isinstance(value, dict):
                    found = parts_of(value, self._builder.options.text_fields)
                    record.texts += found.texts
                    record.media += found.media
                    record.is_conversation |= found.is_conversation
                    if len(members) == 1:
                        embedded = sample_of_metadata(value)
                elif isinstance(value, str):
                    record.texts.append(value)
            else:
                self._builder.ignored[f".{suffix}"] += 1
        if embedded is not None:
            return embedded
        chosen = texts
        if (record.is_conversation or not texts or
                self._builder.options.text_fields):
            chosen = record.texts
        if not sizes:  # The record may name files outside of the shard.
            roots = [self._builder.options.media_root or
                     os.path.dirname(self._path)]
            return self._builder.record(Parts(chosen, record.media), roots,
                                        self._path, key)
        return self._builder.sample(chosen, sizes, self._path, key)

    def _by_fields(self, key: str,
                   members: Dict[str, _Member]) -> Sample:
        """Reads the fields of an Energon field map."""
        sizes: List[Sizes] = []
        texts: List[str] = []
        for alternatives in self._fields:
            value: Any = None
            for field in alternatives:
                member = members.get(field[0])
                if member is None:
                    continue
                kind = kind_of_name(member.name)
                if kind:
                    sizes.append(self._sizes(kind, member))
                    break
                if field[0].rsplit(".", 1)[-1] != "json":
                    value = self._read(member)
                    break
                value = self._json(member)
                for name in field[1:]:
                    if isinstance(value, dict):
                        value = value.get(name)
                    elif isinstance(value, list) and name.isdigit():
                        value = dict(enumerate(value)).get(int(name))
                    else:
                        value = None
                if value is not None:
                    break
            texts += parts_of({"text": value}).texts
        return self._builder.sample(texts, sizes, self._path, key)


