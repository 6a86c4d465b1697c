"""Samples from texts and media."""
import base64
import binascii
import collections
import dataclasses
import io
import os
import urllib.parse
from typing import BinaryIO, Counter, List, Sequence, Tuple

from pipeloom.metadata.errors import (BrokenFileError, MetadataError,
                                      Unreadable)
from pipeloom.metadata.headers.measure import Sizes, measure
from pipeloom.metadata.records import Parts, Reference
from pipeloom.metadata.text import BYTES_PER_TOKEN, TokenCounter, Tokenizer
from pipeloom.sample import Sample

# The limits of the reader of batch metadata (formats/job/batch_reader.cc).
_MAX_SIDE = 100_000  # Pixels.
_MAX_FRAMES = 100_000_000
_MAX_SECONDS = 1e7
_MAX_TOKENS = 100_000_000


@dataclasses.dataclass(frozen=True)
class Options:
    """How samples are read; see pipeloom.metadata.read."""
    media_root: str = ""
    split: str = "train"
    text_fields: Tuple[str, ...] = ()
    tokenizer: Tokenizer = None
    bytes_per_token: float = BYTES_PER_TOKEN
    oriented: bool = True
    video_sound: bool = False


class Builder:
    """Makes samples. `ignored` counts what was passed over, by its kind."""

    def __init__(self, options: Options) -> None:
        """MetadataError: the tokenizer cannot be loaded."""
        self.options = options
        self.tokens = TokenCounter(options.tokenizer, options.bytes_per_token)
        self.ignored: Counter[str] = collections.Counter()

    def measure(self, stream: BinaryIO, kind: str, file: str,
                member: str) -> Sizes:
        """Returns the sizes of a media file. BrokenFileError: it is damaged."""
        try:
            return measure(stream, kind, oriented=self.options.oriented,
                           video_sound=self.options.video_sound)
        except Unreadable as error:
            raise BrokenFileError(file, member, error.why,
                                  error.remedy) from None
        except MetadataError as error:
            where = f"{file}: {member}" if member else file
            raise MetadataError(f"{where}: {error}") from None
        except (OSError, ValueError, OverflowError, EOFError) as error:
            raise BrokenFileError(file, member, f"cannot be read: {error}",
                                  ) from None

    def sample(self, texts: Sequence[str], sizes: Sequence[Sizes], file: str,
               member: str) -> Sample:
        """Returns the sample. BrokenFileError: a size is beyond all limits."""
        images = tuple(i for s in sizes for i in s.images)
        videos = tuple(v for s in sizes for v in s.videos)
        sounds = tuple(a for s in sizes for a in s.audio_seconds)
        tokens = sum(self.tokens.count(text) for text in texts)
        found = Sample(tokens, images, videos, sounds)
        why = beyond_limits(found)
        if why:
            raise BrokenFileError(file, member, why)
        return found

    def record(self, parts: Parts, roots: Sequence[str], file: str,
               member: str) -> Sample:
        """Returns the sample of a record. Files are looked for in `roots`."""
        sizes = [self._reference(r, roots, file, member) for r in parts.media]
        return self.sample(parts.texts, sizes, file, member)

    def _reference(self, reference: Reference, roots: Sequence[str], file: str,
                   member: str) -> Sizes:
        name = _shortened(reference.name)
        data = reference.data
        if data is None and reference.name.startswith("data:"):
            data = _decoded(reference.name, file, member)
            name = "data URI"
        if data is not None:
            return self.measure(io.BytesIO(data), reference.kind, file,
                                f"{member}: {name}" if name else member)
        path = _find(reference.name, roots, file, member)
        if reference.frames:
            with open_file(path) as stream:
                size = self.measure(stream, "image", path, "").images[0]
            return Sizes(videos=({"frames": reference.frames,
                                  "width_px": size[0], "height_px": size[1],
                                  "seconds": 0.0},))
        with open_file(path) as stream:
            return self.measure(stream, reference.kind, path, "")


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading. MetadataError: it cannot be opened."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise MetadataError(f"{path}: cannot be opened: "
                            f"{error.strerror}") from None


def beyond_limits(sample: Sample) -> str:
    """Returns which value the reader of batch metadata would refuse, or ""."""
    for size in sample.images:
        if not all(1 <= side <= _MAX_SIDE for side in size):
            return (f"an image of {size[0]} x {size[1]} pixels; sides of 1 to "
                    f"{_MAX_SIDE} are accepted")
    for clip in sample.videos:
        sides = (clip.get("width_px", 0), clip.get("height_px", 0))
        if not all(0 <= side <= _MAX_SIDE for side in sides):
            return (f"a video of {sides[0]} x {sides[1]} pixels; at most "
                    f"{_MAX_SIDE} are accepted")
        if not 0 <= clip.get("frames", 0) <= _MAX_FRAMES:
            return f"a video of {clip['frames']} frames"
        if not 0 <= clip.get("seconds", 0) <= _MAX_SECONDS:
            return f"a video of {clip['seconds']:g} seconds"
    for seconds in sample.audio_seconds:
        if not 0 <= seconds <= _MAX_SECONDS:
            return f"sound of {seconds:g} seconds"
    if not 0 <= sample.text_tokens <= _MAX_TOKENS:
        return f"a text of {sample.text_tokens} tokens"
    return ""


def _shortened(name: str) -> str:
    return name if len(name) <= 120 else name[:100] + "..."


def _decoded(uri: str, file: str, member: str) -> bytes:
    head, comma, body = uri.partition(",")
    try:
        if not comma:
            raise ValueError("no comma")
        if head.endswith(";base64"):
            return base64.b64decode(body, validate=False)
        return urllib.parse.unquote_to_bytes(body)
    except (ValueError, binascii.Error) as error:
        raise BrokenFileError(file, member, f"its data URI cannot be decoded: "
                              f"{error}") from None


def _find(name: str, roots: Sequence[str], file: str, member: str) -> str:
    """Returns the path of a media file that a record names."""
    if "://" in name and not name.startswith("file://"):
        raise BrokenFileError(
            file, member, f"{_shortened(name)} is on the network",
            "download the media and name the files in the record, or leave "
            "such samples out with --skip-broken (skip_broken=True)")
    if name.startswith("file://"):
        name = urllib.parse.unquote(name[len("file://"):])
    looked: List[str] = []
    for root in roots:
        path = os.path.join(root, name)
        if os.path.isfile(path):
            return path
        looked.append(root or ".")
    where = ("" if os.path.isabs(name) else
             f" in {' or '.join(dict.fromkeys(looked))}")
    raise BrokenFileError(
        file, member, f"there is no file {_shortened(name)}{where}",
        "name the folder of the media with --media-root (media_root=), or "
        "leave such samples out with --skip-broken (skip_broken=True)")
