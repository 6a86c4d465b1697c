"""Frames, size and length of videos, without decoding.

MP4, MOV, M4V and 3GP are read here (boxes.py). Matroska, WebM, AVI and others
are read by PyAV where it is installed.

A clip is a dictionary with the fields of pipeloom.v1.VideoClip: frames,
width_px, height_px, seconds; 0 where the file does not say. Width and height
are those of the decoded frames, turned as the file asks with `oriented`.
"""
import dataclasses
from typing import Any, BinaryIO, Dict, Optional, Tuple

from pipeloom.metadata import packages
from pipeloom.metadata.headers import boxes
from pipeloom.metadata.errors import Unreadable

Clip = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Film:
    """A file's picture and sound, each None if it has none."""
    clip: Optional[Clip] = None
    sound_seconds: Optional[float] = None


def is_boxed(head: bytes) -> bool:
    """Returns whether a file that begins so is made of MP4 boxes."""
    return head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide",
                         b"styp", b"pnot")


def is_other_film(head: bytes) -> bool:
    """Returns whether a file that begins so is Matroska, WebM, FLV, MPEG, ASF,
    AVI or OGG."""
    return (head.startswith((b"\x1a\x45\xdf\xa3", b"FLV\x01", b"\0\0\x01\xba",
                             b"\0\0\x01\xb3", b"\x30\x26\xb2\x75", b"OggS")) or
            head[8:12] == b"AVI ")


def read_film(stream: BinaryIO, head: bytes, oriented: bool = True) -> Film:
    """Returns what a video or audio file holds. Unreadable: it is damaged.
    MetadataError: its container needs PyAV."""
    if is_boxed(head):
        return _boxed(stream, oriented)
    if packages.optional("av") is None and not is_other_film(head):
        raise Unreadable(f"is no known video: it begins with {head[:8]!r}")
    return _by_pyav(stream, oriented)


def _boxed(stream: BinaryIO, oriented: bool) -> Film:
    clip, sound = None, None
    for track in boxes.read_tracks(stream):
        if track.kind == "vide" and clip is None:
            size = (track.width, track.height)
            if oriented and track.quarter_turned:
                size = (track.height, track.width)
            clip = _clip(track.frames, size, track.seconds())
        elif track.kind == "soun" and sound is None:
            sound = round(track.seconds(), 3)
    return Film(clip, sound)


def _by_pyav(stream: BinaryIO, oriented: bool) -> Film:
    av = packages.required("av", "av", "reading video and sound other than "
                           "MP4, MOV, WAV, FLAC, OGG and MP3")
    stream.seek(0)
    try:
        with av.open(stream) as container:
            whole = (container.duration or 0) / 1e6
            clip, sound = None, None
            for s in container.streams.video[:1]:
                clip = _pyav_clip(s, whole, oriented)
            for s in container.streams.audio[:1]:
                sound = round(_length(s, whole), 3)
            return Film(clip, sound)
    except Exception as error:  # pylint: disable=broad-except
        text = " ".join(str(error).split())[:120]
        raise Unreadable(f"PyAV cannot read it: {text}") from None


def _length(stream: Any, whole: float) -> float:
    """Returns the seconds of a stream, or of the file if it does not say."""
    if not stream.duration:
        return whole
    return float(stream.duration * stream.time_base)


def _pyav_clip(stream: Any, whole: float, oriented: bool) -> Clip:
    seconds = _length(stream, whole)
    frames = stream.frames
    if not frames and stream.average_rate:  # Containers that do not count.
        frames = round(seconds * float(stream.average_rate))
    size = (stream.codec_context.width, stream.codec_context.height)
    turn = 0
    for side in getattr(stream, "side_data", None) or ():
        if "matrix" in str(side).lower():
            turn = _rotation_of(stream, side)
    if oriented and turn % 180 == 90:
        size = (size[1], size[0])
    return _clip(frames, size, seconds)


def _rotation_of(stream: Any, side: Any) -> int:
    try:
        return int(round(float(stream.side_data[side])))
    except (TypeError, ValueError, KeyError):
        return 0


def _clip(frames: int, size: Tuple[int, int], seconds: float) -> Clip:
    if frames <= 0 and seconds <= 0:
        raise Unreadable("it has neither frames nor a length")
    return {"frames": int(frames), "width_px": int(size[0]),
            "height_px": int(size[1]), "seconds": round(seconds, 3)}
