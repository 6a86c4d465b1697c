"""The kind of a media file, and its sizes."""
import dataclasses
import os
from typing import BinaryIO, Tuple

from pipeloom.metadata.headers.audio import audio_seconds, is_mp3
from pipeloom.metadata.errors import Unreadable
from pipeloom.metadata.headers.images import Size, image_size
from pipeloom.metadata.headers.video import (Clip, is_boxed,
                                             is_other_film, read_film)

_KIND_OF_SUFFIX = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff",
                     "avif", "heic", "jp2", "ppm", "jfif"), "image"),
    **dict.fromkeys(("mp4", "mov", "m4v", "3gp", "webm", "mkv", "avi", "mpg",
                     "mpeg", "ts", "flv", "wmv", "ogv"), "video"),
    **dict.fromkeys(("wav", "flac", "ogg", "oga", "opus", "mp3", "m4a", "aac",
                     "aiff", "aif", "wma", "weba"), "audio"),
}
_HEAD = 64  # Bytes that tell the kind.


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one media file."""
    images: Tuple[Size, ...] = ()
    videos: Tuple[Clip, ...] = ()
    audio_seconds: Tuple[float, ...] = ()


def kind_of_name(name: str) -> str:
    """Returns "image", "video", "audio" or "" by the suffix of a file name."""
    return _KIND_OF_SUFFIX.get(suffix_of(name), "")


def suffix_of(name: str) -> str:
    """Returns the suffix in small letters, without its dot."""
    return os.path.splitext(name)[1][1:].lower()


def kind_of_head(head: bytes) -> str:
    """Returns the kind by the first bytes; "film" for containers that may hold
    pictures, sound or both."""
    if (head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0",
                         b"MM\0*", b"\0\0\0\x0cjP  ")) or
            (head[:2] == b"BM" and head[6:10] == b"\0\0\0\0")):
        return "image"
    if head[:4] in (b"RIFF", b"RF64"):
        return {b"WEBP": "image", b"WAVE": "audio"}.get(head[8:12], "film")
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"heic",
                                               b"heix", b"mif1", b"msf1"):
        return "image"
    if head[:4] == b"OggS":
        return "film" if b"theora" in head else "audio"
    if head[:4] == b"fLaC" or head[:3] == b"ID3":
        return "audio"
    if is_boxed(head) or is_other_film(head):
        return "film"
    return "audio" if is_mp3(head) else ""


def measure(stream: BinaryIO, wanted: str, *, oriented: bool = True,
            video_sound: bool = False) -> Sizes:
    """Returns the sizes of a media file.

    `wanted`: the kind that its name or field says, "" if none does; a film
    wanted as audio gives its sound. `video_sound`: gives the sound of a video
    in addition to its frames. Unreadable: the file is damaged or of another
    kind. MetadataError: its format needs an optional package."""
    stream.seek(0)
    head = stream.read(_HEAD)
    if not head:
        raise Unreadable("it is empty")
    kind = kind_of_head(head)
    if kind == "film":
        kind = wanted if wanted == "audio" else "video"
    kind = kind or wanted
    if not kind:
        raise Unreadable(f"is no known image, video or audio file: it begins "
                         f"with {head[:8]!r}")
    if head.lstrip()[:1] == b"<" and head.lstrip()[:5].lower() in (
            b"<html", b"<!doc", b"<?xml", b"<svg "):
        raise Unreadable(f"is text and no {kind}: it begins with {head[:8]!r}")
    if wanted and kind != wanted:
        raise Unreadable(f"is an {kind} file, where {wanted} is expected")
    if kind == "image":
        return Sizes(images=(image_size(stream, oriented),))
    if kind == "audio":
        return Sizes(audio_seconds=(audio_seconds(stream, head),))
    film = read_film(stream, head, oriented)
    if film.clip is None:
        if wanted or film.sound_seconds is None:
            raise Unreadable("it has no pictures")
        return Sizes(audio_seconds=(film.sound_seconds,))
    sound = ((film.sound_seconds,)
             if video_sound and film.sound_seconds else ())
    return Sizes(videos=(film.clip,), audio_seconds=sound)
