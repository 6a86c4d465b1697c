"""Sizes of training samples, read without decoding their media.

    for sample in pipeloom.metadata.read("shards-{000..127}.tar"):
        print(sample.text_tokens, sample.images)
    pipeloom.metadata.write(
        pipeloom.metadata.read("train.jsonl", media_root="media"),
        "batch.jsonl")

`python -m pipeloom.metadata --help` is the same on the command line. Needs the
standard library only; Pillow, PyAV, pyarrow, tokenizers and others are used
where a format asks for them.
"""
from pipeloom.metadata.api import read
from pipeloom.metadata.batch_file import write
from pipeloom.metadata.errors import BrokenFileError, MetadataError

__all__ = ["BrokenFileError", "MetadataError", "read", "write"]
