"""Reads of headers from binary streams that can seek."""
import os
from typing import BinaryIO

from pipeloom.metadata.errors import Unreadable


def size_of(stream: BinaryIO) -> int:
    """Returns the stream's length in bytes. The position is kept."""
    here = stream.tell()
    size = stream.seek(0, os.SEEK_END)
    stream.seek(here)
    return size


def read_exactly(stream: BinaryIO, count: int, of: str) -> bytes:
    """Returns the next `count` bytes. Unreadable: the stream ends first."""
    data = stream.read(count)
    if len(data) != count:
        raise Unreadable(f"it ends inside {of}")
    return data


def read_at(stream: BinaryIO, at: int, count: int, of: str) -> bytes:
    """Returns `count` bytes from position `at`. Unreadable: there are fewer."""
    stream.seek(at)
    return read_exactly(stream, count, of)
