"""The tracks of MP4, MOV, M4A and 3GP files from their boxes (ISO 14496-12).

Only boxes that describe are read; the box of the media data is skipped, so the
cost does not grow with the length of the film, but for fragmented files, which
have one description a fragment.
"""
import dataclasses
import struct
from typing import BinaryIO, Dict, Iterator, List, Tuple

from pipeloom.metadata.errors import Unreadable
from pipeloom.metadata.headers.streams import read_at, size_of

_MAX_BOXES = 1_000_000
_MAX_TABLE = 64 << 20  # Bytes of one description.
_UNKNOWN_DURATION = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


@dataclasses.dataclass
class Track:
    """A track. Lengths in units of 1 / timescale seconds; 0 if not known."""
    kind: str = ""  # "vide", "soun" or another handler.
    number: int = 0
    timescale: int = 0
    duration: int = 0
    frames: int = 0  # Frames, or samples of sound.
    total: int = 0  # Sum of the lengths of all frames.
    width: int = 0  # Stored pixels.
    height: int = 0
    quarter_turned: bool = False  # Shown turned by 90 or 270 degrees.
    default_delta: int = 0  # Length of a frame in fragments.

    def seconds(self) -> float:
        length = self.total or self.duration
        return length / self.timescale if self.timescale else 0.0


def read_tracks(stream: BinaryIO) -> List[Track]:
    """Returns the tracks. Unreadable: there is no whole description."""
    end = size_of(stream)
    tracks: List[Track] = []
    movie_at = -1
    fragments: List[Tuple[int, int]] = []
    for kind, start, stop in _boxes(stream, 0, end):
        if kind == b"moov":
            movie_at = start
            tracks = _movie(stream, start, stop)
        elif kind == b"moof":
            fragments.append((start, stop))
    if movie_at < 0:
        raise Unreadable("it has no description (moov box): its recording was "
                         "not finished, or its end is missing")
    if fragments:
        _add_fragments(stream, tracks, fragments)
    return tracks


def _boxes(stream: BinaryIO, at: int,
           end: int) -> Iterator[Tuple[bytes, int, int]]:
    """Yields kind, start and end of the contents of each box."""
    for _ in range(_MAX_BOXES):
        if at + 8 > end:
            return
        size, kind = struct.unpack(">I4s", read_at(stream, at, 8, "a box"))
        header = 8
        if size == 1:
            size = struct.unpack(">Q", read_at(stream, at + 8, 8, "a box"))[0]
            header = 16
        elif size == 0:
            size = end - at
        if size < header:
            raise Unreadable(f"a box at byte {at} has the size {size}")
        if at + size > end:
            name = kind.decode("latin-1")
            raise Unreadable(f"it ends inside its {name!r} box: {end} bytes, "
                             f"of at least {at + size}")
        yield kind, at + header, at + size
        at += size


def _table(stream: BinaryIO, start: int, stop: int) -> bytes:
    if stop - start > _MAX_TABLE:
        raise Unreadable(f"a table has {stop - start} bytes")
    return read_at(stream, start, stop - start, "a box")


def _movie(stream: BinaryIO, start: int, stop: int) -> List[Track]:
    tracks: List[Track] = []
    deltas: Dict[int, int] = {}
    for kind, a, b in _boxes(stream, start, stop):
        if kind == b"trak":
            track = Track()
            try:
                _read_track(stream, a, b, track)
            except struct.error:
                raise Unreadable("a box of a track is too short") from None
            tracks.append(track)
        elif kind == b"mvex":
            for inner, c, d in _boxes(stream, a, b):
                if inner == b"trex":
                    data = _table(stream, c, d)
                    if len(data) >= 20:
                        number, _, delta = struct.unpack_from(">III", data, 4)
                        deltas[number] = delta
    for track in tracks:
        track.default_delta = deltas.get(track.number, 0)
    return tracks


def _read_track(stream: BinaryIO, start: int, stop: int, track: Track) -> None:
    for kind, a, b in _boxes(stream, start, stop):
        if kind in (b"mdia", b"minf", b"stbl"):
            _read_track(stream, a, b, track)
        elif kind == b"tkhd":
            data = _table(stream, a, b)
            wide = data[:1] == b"\x01"
            track.number, = struct.unpack_from(">I", data, 20 if wide else 12)
            m = struct.unpack_from(">9i", data, 52 if wide else 40)
            track.quarter_turned = m[0] == 0 and m[4] == 0 and m[1] != 0
        elif kind == b"mdhd":
            data = _table(stream, a, b)
            form, at = ((">IQ", 20) if data[:1] == b"\x01" else (">II", 12))
            track.timescale, duration = struct.unpack_from(form, data, at)
            track.duration = 0 if duration in _UNKNOWN_DURATION else duration
        elif kind == b"hdlr" and not track.kind:
            track.kind = _table(stream, a, b)[8:12].decode("latin-1")
        elif kind == b"stsd":
            _read_description(_table(stream, a, b), track)
        elif kind == b"stts":
            _read_times(_table(stream, a, b), track)
        elif kind == b"stsz":
            count, = struct.unpack_from(">I", _table(stream, a, b), 8)
            track.frames = max(track.frames, count)


def _read_description(data: bytes, track: Track) -> None:
    if track.kind == "vide" and len(data) >= 44:
        track.width, track.height = struct.unpack_from(">HH", data, 40)


def _read_times(data: bytes, track: Track) -> None:
    entries, = struct.unpack_from(">I", data, 4)
    if 8 + 8 * entries > len(data):
        raise Unreadable("its table of frame times is cut off")
    frames = total = 0
    for count, delta in struct.iter_unpack(">II", data[8:8 + 8 * entries]):
        frames += count
        total += count * delta
    track.frames = max(track.frames, frames)
    track.total = total


def _add_fragments(stream: BinaryIO, tracks: List[Track],
                   fragments: List[Tuple[int, int]]) -> None:
    by_number = {track.number: track for track in tracks}
    try:
        for start, stop in fragments:
            for kind, a, b in _boxes(stream, start, stop):
                if kind == b"traf":
                    _add_fragment(stream, a, b, by_number)
    except struct.error:
        raise Unreadable("a box of a fragment is too short") from None


def _add_fragment(stream: BinaryIO, start: int, stop: int,
                  by_number: Dict[int, Track]) -> None:
    track, delta = Track(), 0
    for kind, a, b in _boxes(stream, start, stop):
        if kind == b"tfhd":
            data = _table(stream, a, b)
            flags, number = struct.unpack_from(">II", data)
            track = by_number.get(number, track)
            delta = track.default_delta
            at = 8 + (8 if flags & 0x01 else 0) + (4 if flags & 0x02 else 0)
            if flags & 0x08:
                delta, = struct.unpack_from(">I", data, at)
        elif kind == b"trun":
            data = _table(stream, a, b)
            flags, count = struct.unpack_from(">II", data)
            at = 8 + (4 if flags & 0x01 else 0) + (4 if flags & 0x04 else 0)
            step = 4 * bin(flags & 0xF00).count("1")
            if at + count * step > len(data):
                raise Unreadable("its table of a fragment is cut off")
            track.frames += count
            if flags & 0x100:
                track.total += sum(
                    struct.unpack_from(">I", data, at + step * i)[0]
                    for i in range(count))
            else:
                track.total += count * delta
