"""The length of an MP3 file from its headers."""
import struct
from typing import BinaryIO, NamedTuple, Optional

from pipeloom.metadata.errors import Unreadable
from pipeloom.metadata.headers.streams import size_of

_BITRATES = {  # kbit/s by (MPEG 1?, layer) and index.
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416,
                448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
                384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
                320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224,
                 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44_100, 48_000, 32_000)
_MAX_JUNK = 64 << 10  # Bytes ahead of the first frame.
_SAME_FRAMES = 50  # Frames that must agree to call the bitrate constant.
_BLOCK = 1 << 20


class Frame(NamedTuple):
    """The header of a frame."""
    size: int  # Bytes.
    samples: int
    rate: int  # Samples a second.
    bitrate: int  # Bits a second.
    side_bytes: int  # Between the header and a table of lengths.


def parse_frame(data: bytes, at: int) -> Optional[Frame]:
    """Returns the frame whose header begins at `at`, or None."""
    if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] & 0xE0 != 0xE0:
        return None
    version, layer = data[at + 1] >> 3 & 3, 4 - (data[at + 1] >> 1 & 3)
    index, rate_index = data[at + 2] >> 4, data[at + 2] >> 2 & 3
    if version == 1 or layer == 4 or index in (0, 15) or rate_index == 3:
        return None
    first = version == 3
    bitrate = _BITRATES[(first, layer)][index] * 1000
    rate = _RATES[rate_index] >> (0 if first else 1 if version == 2 else 2)
    padding = data[at + 2] >> 1 & 1
    if layer == 1:
        return Frame((12 * bitrate // rate + padding) * 4, 384, rate, bitrate,
                     0)
    samples = 1152 if layer == 2 or first else 576
    mono = data[at + 3] >> 6 == 3
    side = (17 if mono else 32) if first else (9 if mono else 17)
    return Frame(samples // 8 * bitrate // rate + padding, samples, rate,
                 bitrate, side)


def mp3_seconds(stream: BinaryIO, start: int) -> float:
    """Returns the length of the sound that begins after byte `start`.

    Cost: the first frames, if one holds the number of frames or all have one
    bitrate; else the headers of all frames. Unreadable: there is no frame."""
    stream.seek(start)
    data = stream.read(_MAX_JUNK)
    at = _first_frame(data)
    frame = parse_frame(data, at)
    assert frame is not None
    counted = _counted(data, at, frame)
    if counted is not None:
        return counted
    first, same = frame.bitrate, 0
    here = at
    while same < _SAME_FRAMES:
        frame = parse_frame(data, here)
        if frame is None:
            break
        if frame.bitrate != first:
            return _walk(stream, start + at)
        same += 1
        here += frame.size
    end = size_of(stream)
    stream.seek(max(0, end - 128))
    if stream.read(3) == b"TAG":
        end -= 128
    return max(0, end - start - at) * 8 / first


def _first_frame(data: bytes) -> int:
    """Returns where two frames follow each other, or one that fills `data`."""
    at = data.find(b"\xff")
    while at >= 0:
        frame = parse_frame(data, at)
        if frame is not None and (at + frame.size >= len(data) or
                                  parse_frame(data, at + frame.size)):
            return at
        at = data.find(b"\xff", at + 1)
    raise Unreadable("it has no MP3 frame")


def _counted(data: bytes, at: int, frame: Frame) -> Optional[float]:
    """Returns the length by a Xing, Info or VBRI table, or None."""
    table = at + 4 + frame.side_bytes
    frames, trimmed = 0, 0
    if data[table:table + 4] in (b"Xing", b"Info"):
        flags, = struct.unpack_from(">I", data, table + 4)
        after = table + 8
        if flags & 1:
            frames, = struct.unpack_from(">I", data, after)
        after += 4 * bin(flags & 0x0B).count("1") + (100 if flags & 4 else 0)
        if data[after:after + 4] in (b"LAME", b"Lavf", b"Lavc"):
            packed = int.from_bytes(data[after + 21:after + 24], "big")
            trimmed = (packed >> 12) + (packed & 0xFFF)
    elif data[at + 36:at + 40] == b"VBRI":
        frames, = struct.unpack_from(">I", data, at + 50)
    if not frames:
        return None
    return max(0, frames * frame.samples - trimmed) / frame.rate


def _walk(stream: BinaryIO, at: int) -> float:
    """Returns the sum of the lengths of all frames from byte `at`."""
    seconds, data, base = 0.0, b"", at
    counts: dict = {}
    end = size_of(stream)
    while at + 4 <= end:
        if at + 4 > base + len(data):
            stream.seek(at)
            data, base = stream.read(_BLOCK), at
        frame = parse_frame(data, at - base)
        if frame is None:
            break
        key = (frame.samples, frame.rate)
        counts[key] = counts.get(key, 0) + 1
        at += frame.size
    for (samples, rate), count in sorted(counts.items()):
        seconds += count * samples / rate
    return seconds
