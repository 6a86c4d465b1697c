"""Sizes of images from their headers; pixels are never decoded.

Pillow reads them where it is installed. Without it, PNG, JPEG, GIF, WebP and
BMP are read here, with equal results.

Orientation: a file may ask to be shown turned (EXIF tag 0x0112). With
`oriented`, width and height are those of the picture as shown, which is also
what datasets.Image and transformers.load_image hand to a model; without it,
those of the stored pixels, which Pillow's Image.open hands on.
"""
import struct
import warnings
from typing import Any, BinaryIO, Optional, Tuple

from pipeloom.metadata import packages
from pipeloom.metadata.errors import MetadataError, Unreadable
from pipeloom.metadata.headers.streams import read_at, read_exactly, size_of

Size = Tuple[int, int]  # Width and height; pixels.

_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)  # Values of the tag that swap width and height.
# Starts of TIFF and of JPEG 2000; AVIF and HEIC are boxes.
_BY_PILLOW = (b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_MAX_HEADER = 1 << 20  # Bytes of EXIF data that are read.
_MAX_PARTS = 100_000  # Chunks or segments ahead of the pixels.


def image_size(stream: BinaryIO, oriented: bool = True) -> Size:
    """Returns width and height of an image in pixels. Cost: its header; files
    of WebP and AVIF are read as a whole by Pillow.

    Unreadable: the header is damaged. MetadataError: the format needs Pillow.
    """
    pillow = packages.optional("PIL.Image")
    if pillow is None:
        return own_size(stream, oriented)
    return _pillow_size(pillow, stream, oriented)


def own_size(stream: BinaryIO, oriented: bool = True) -> Size:
    """Returns the size without Pillow."""
    stream.seek(0)
    head = stream.read(16)
    reader = None
    for magic, found in _READERS:
        if head.startswith(magic):
            reader = found
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        reader = _webp
    if reader is None:
        if head.startswith(_BY_PILLOW) or head[4:8] == b"ftyp":
            packages.required("PIL.Image", "pillow",
                              "reading images other than PNG, JPEG, GIF, WebP "
                              "and BMP")
        raise Unreadable(f"is no known image: it begins with {head[:8]!r}")
    try:
        (width, height), orientation = reader(stream)
    except struct.error:
        raise Unreadable("its header is too short") from None
    if width < 1 or height < 1:
        raise Unreadable(f"its header says {width} x {height} pixels")
    if oriented and orientation in _TURNED:
        return height, width
    return width, height


def _pillow_size(pillow: Any, stream: BinaryIO, oriented: bool) -> Size:
    stream.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(stream) as image:
                width, height = image.size
                if image.format == "TIFF":  # Some versions swap the size.
                    width, height = image.tag_v2[256], image.tag_v2[257]
                orientation = _pillow_orientation(pillow, image)
    except pillow.DecompressionBombError:
        return own_size(stream, oriented)  # Only the header is read here.
    except MetadataError:
        raise
    except Exception as error:  # pylint: disable=broad-except
        raise Unreadable(f"Pillow cannot read it: {_short(error)}") from None
    if width < 1 or height < 1:
        raise Unreadable(f"its header says {width} x {height} pixels")
    if oriented and orientation in _TURNED:
        return height, width
    return width, height


def _pillow_orientation(pillow: Any, image: Any) -> int:
    if image.format == "PNG":  # getexif() would decode the pixels.
        return _exif_orientation(image.info.get("exif", b""))
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # pylint: disable=broad-except
        return 1  # As viewers do with EXIF data that is damaged.


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:120] if text else type(error).__name__


def _exif_orientation(data: bytes) -> int:
    """Returns the orientation in EXIF data; 1 if it has none or is damaged."""
    if data.startswith(b"Exif\0\0"):
        data = data[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return 1
    try:
        at, = struct.unpack_from(order + "I", data, 4)
        count, = struct.unpack_from(order + "H", data, at)
        for i in range(count):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", data,
                                                     at + 2 + 12 * i)
            if tag == _ORIENTATION and kind == 3:
                return int(value)
    except struct.error:
        pass
    return 1


def _png(stream: BinaryIO) -> Tuple[Size, int]:
    head = read_at(stream, 8, 16, "the PNG header")
    if head[4:8] != b"IHDR":
        raise Unreadable("its first chunk is not IHDR")
    size = struct.unpack(">II", head[8:16])
    at, end, orientation = 33, size_of(stream), 1
    for _ in range(_MAX_PARTS):
        length, kind = struct.unpack(">I4s", read_at(stream, at, 8,
                                                     "its chunks"))
        if kind == b"IDAT":
            return size, orientation
        if kind == b"eXIf" and length <= _MAX_HEADER:
            orientation = _exif_orientation(
                read_exactly(stream, length, "its EXIF chunk"))
        at += 12 + length
        if at >= end:
            break
    raise Unreadable("it has no pixels (IDAT)")


def _jpeg(stream: BinaryIO) -> Tuple[Size, int]:
    size: Optional[Size] = None
    orientation = 1
    stream.seek(2)
    for _ in range(_MAX_PARTS):
        byte = read_exactly(stream, 1, "its JPEG segments")
        if byte != b"\xff":
            continue
        marker = 0xFF
        while marker == 0xFF:
            marker = read_exactly(stream, 1, "its JPEG segments")[0]
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            continue
        if marker in (0xD9, 0xDA):
            break
        length = struct.unpack(">H", read_exactly(stream, 2, "a segment"))[0]
        if length < 2:
            raise Unreadable("a JPEG segment has no length")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            data = read_exactly(stream, length - 2, "its JPEG frame header")
            height, width = struct.unpack_from(">HH", data, 1)
            size = (width, height)
        elif marker == 0xE1:
            data = read_exactly(stream, length - 2, "its EXIF data")
            if data.startswith(b"Exif\0\0"):
                orientation = _exif_orientation(data)
        else:
            read_exactly(stream, length - 2, "its JPEG segments")
    if size is None:
        raise Unreadable("it has no JPEG frame header")
    return size, orientation


def _gif(stream: BinaryIO) -> Tuple[Size, int]:
    return struct.unpack("<HH", read_at(stream, 6, 4, "the GIF header")), 1


def _bmp(stream: BinaryIO) -> Tuple[Size, int]:
    header = struct.unpack("<I", read_at(stream, 14, 4, "the BMP header"))[0]
    if header == 12:
        return struct.unpack("<HH", read_at(stream, 18, 4, "its header")), 1
    width, height = struct.unpack("<ii", read_at(stream, 18, 8, "its header"))
    return (width, abs(height)), 1


def _webp(stream: BinaryIO) -> Tuple[Size, int]:
    kind, _, head = struct.unpack("<4sI10s", read_at(stream, 12, 18,
                                                     "the WebP header"))
    if kind == b"VP8 ":
        if head[3:6] != b"\x9d\x01\x2a":
            raise Unreadable("its VP8 frame has no start code")
        width, height = struct.unpack("<HH", head[6:10])
        return (width & 0x3FFF, height & 0x3FFF), 1
    if kind == b"VP8L":
        if head[0] != 0x2F:
            raise Unreadable("its VP8L frame has no signature")
        bits = struct.unpack("<I", head[1:5])[0]
        return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1), 1
    if kind != b"VP8X":
        raise Unreadable("its first WebP chunk is not known")
    size = (int.from_bytes(head[4:7], "little") + 1,
            int.from_bytes(head[7:10], "little") + 1)
    if not head[0] & 0x08:  # It has no EXIF data.
        return size, 1
    at, end = 30, size_of(stream)
    for _ in range(_MAX_PARTS):
        if at + 8 > end:
            break
        kind, length = struct.unpack("<4sI", read_at(stream, at, 8, "a chunk"))
        if kind == b"EXIF":
            data = read_exactly(stream, min(length, _MAX_HEADER),
                                "its EXIF chunk")
            return size, _exif_orientation(data)
        at += 8 + length + length % 2
    return size, 1


_READERS = ((b"\x89PNG\r\n\x1a\n", _png), (b"\xff\xd8\xff", _jpeg),
            (b"GIF8", _gif), (b"BM", _bmp))
