"""Lengths of audio files from their headers.

WAV, FLAC, OGG (Vorbis, Opus) and MP3 are read here; M4A by boxes.py; others by
mutagen or PyAV where one is installed.
"""
import struct
from typing import BinaryIO, Optional, Tuple

from pipeloom.metadata import packages
from pipeloom.metadata.errors import MetadataError, Unreadable
from pipeloom.metadata.headers.mp3 import mp3_seconds
from pipeloom.metadata.headers.streams import read_at, size_of
from pipeloom.metadata.headers.video import is_boxed, read_film

_MAX_CHUNKS = 100_000
_UNKNOWN_SIZE = (0, 0xFFFFFFFF, 0x7FFFFFFF)  # As programs write into a pipe.
# Starts of AIFF, AAC, AMR, ASF, Matroska, AU and APE.
_KNOWN_OTHERS = (b"FORM", b"\xff\xf1", b"\xff\xf9", b"#!AMR",
                 b"\x30\x26\xb2\x75", b"\x1a\x45\xdf\xa3", b".snd", b"MAC ")
_OGG_TAIL = 128 << 10  # Bytes; a page has at most 65,307.


def audio_seconds(stream: BinaryIO, head: bytes) -> float:
    """Returns the length in seconds, to 1 ms. `head`: the first 64 bytes.

    Unreadable: the header is damaged or does not say a length. MetadataError:
    the format needs mutagen or PyAV."""
    try:
        seconds = _seconds(stream, head)
    except struct.error:
        raise Unreadable("its header is too short") from None
    if not 0 < seconds < 1e7:
        raise Unreadable(f"its header says {seconds:g} seconds")
    return round(seconds, 3)


def _seconds(stream: BinaryIO, head: bytes) -> float:
    start = 0
    if head[:3] == b"ID3":  # Tags ahead of MP3, and sometimes of FLAC.
        start = _id3_end(head)
        head = _peek(stream, start)
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return _wav(stream)
    if head[:4] == b"fLaC":
        return _flac(stream, start)
    if head[:4] == b"OggS":
        return _ogg(stream)
    if is_boxed(head):
        sound = read_film(stream, head).sound_seconds
        if sound is None:
            raise Unreadable("it has no sound track")
        return sound
    if is_mp3(head) or start:
        return mp3_seconds(stream, start)
    return _by_package(stream, head)


def is_mp3(head: bytes) -> bool:
    """Returns whether these bytes begin a frame of MPEG layer I to III."""
    return (len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and
            head[1] & 0x18 != 0x08 and head[1] & 0x06 != 0 and
            head[2] & 0xF0 != 0xF0 and head[2] & 0x0C != 0x0C)


def _id3_end(head: bytes) -> int:
    if len(head) < 10:
        raise Unreadable("it ends inside its ID3 tag")
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size + (10 if head[5] & 0x10 else 0)


def _peek(stream: BinaryIO, at: int) -> bytes:
    stream.seek(at)
    return stream.read(64)


def _wav(stream: BinaryIO) -> float:
    at, end = 12, size_of(stream)
    bytes_per_second, frames, rate, big = 0, 0, 0, 0
    for _ in range(_MAX_CHUNKS):
        if at + 8 > end:
            break
        kind, size = struct.unpack("<4sI", read_at(stream, at, 8, "a chunk"))
        if kind == b"ds64":
            big = struct.unpack("<QQ", read_at(stream, at + 8, 16, "ds64"))[1]
        elif kind == b"fmt ":
            _, _, rate, bytes_per_second = struct.unpack(
                "<HHII", read_at(stream, at + 8, 12, "the fmt chunk"))
        elif kind == b"fact":  # Frames of compressed sound.
            frames, = struct.unpack("<I", read_at(stream, at + 8, 4, "fact"))
        elif kind == b"data":
            return _wav_length(size, big, end - at - 8, bytes_per_second,
                               frames, rate)
        at += 8 + size + size % 2
    raise Unreadable("it has no sound (data chunk)")


def _wav_length(size: int, big: int, left: int, bytes_per_second: int,
                frames: int, rate: int) -> float:
    if size in _UNKNOWN_SIZE:
        size = big or left
    if size > left:
        raise Unreadable(f"it ends inside its sound: {left} of {size} bytes")
    if bytes_per_second > 0:
        return size / bytes_per_second
    if frames and rate:
        return frames / rate
    raise Unreadable("it has no rate (fmt chunk)")


def _flac(stream: BinaryIO, start: int) -> float:
    head = read_at(stream, start + 4, 38, "its FLAC header")
    if head[0] & 0x7F:
        raise Unreadable("its first FLAC block is not STREAMINFO")
    packed = int.from_bytes(head[14:22], "big")
    rate, samples = packed >> 44, packed & ((1 << 36) - 1)
    if not rate or not samples:
        raise Unreadable("its header does not say a length (STREAMINFO)",
                         "encode it again, for example: flac --best")
    return samples / rate


def _ogg(stream: BinaryIO) -> float:
    rate, skipped, serial = _ogg_start(read_at(stream, 0, 64, "its first page"))
    if rate is None:
        film = _whole_film(stream)
        if film is None:
            raise Unreadable("its sound is neither Vorbis nor Opus")
        return film
    end = size_of(stream)
    at = max(0, end - _OGG_TAIL)
    tail = read_at(stream, at, end - at, "its last page")
    found = len(tail)
    while True:
        found = tail.rfind(b"OggS", 0, found)
        if found < 0:
            raise Unreadable("it has no last page")
        page = tail[found:found + 27]
        if len(page) == 27:
            position, number = struct.unpack_from("<QI", page, 6)
            if number == serial and position not in (0, (1 << 64) - 1):
                return max(0, position - skipped) / rate


def _ogg_start(page: bytes) -> Tuple[Optional[int], int, int]:
    """Returns rate (None if not known), samples to skip, serial number."""
    serial = struct.unpack_from("<I", page, 14)[0]
    data = page[27 + page[26]:]
    if data.startswith(b"\x01vorbis"):
        rate = struct.unpack_from("<I", data, 12)[0]
        if not rate:
            raise Unreadable("its Vorbis header has no rate")
        return rate, 0, serial
    if data.startswith(b"OpusHead"):
        return 48_000, struct.unpack_from("<H", data, 10)[0], serial
    return None, 0, serial


def _whole_film(stream: BinaryIO) -> Optional[float]:
    packages.required("av", "av", "reading this kind of OGG")
    return read_film(stream, b"OggS").sound_seconds


def _by_package(stream: BinaryIO, head: bytes) -> float:
    mutagen = packages.optional("mutagen")
    if mutagen is not None:
        try:
            stream.seek(0)
            found = mutagen.File(stream)
            if found is not None and found.info.length > 0:
                return float(found.info.length)
        except Exception:  # pylint: disable=broad-except
            pass  # PyAV may know it.
        if packages.optional("av") is None:
            raise Unreadable("mutagen cannot read it")
    if packages.optional("av") is None:
        if not head.startswith(_KNOWN_OTHERS):
            raise Unreadable(f"is no known sound: it begins with {head[:8]!r}")
        raise MetadataError(
            "reading sound other than WAV, FLAC, OGG, MP3 and M4A needs the "
            "package mutagen or av; install one: pip install mutagen")
    sound = read_film(stream, head).sound_seconds
    if sound is None:
        raise Unreadable("it has no sound")
    return sound
