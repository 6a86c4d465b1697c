"""Tokens of a text."""
import math
import os
import re
from typing import Any, Callable, Dict, Optional, Union

from pipeloom.metadata import packages
from pipeloom.metadata.errors import MetadataError

# A function from a text to its number of tokens, the path of a Hugging Face
# tokenizer.json, or None for an estimate.
Tokenizer = Union[None, str, Callable[[str], int]]

# English, in common vocabularies. In UTF-8, Chinese characters have 3 bytes,
# so that one counts 0.75.
BYTES_PER_TOKEN = 4.0

# Places of media in a text: the token rule of the model counts these.
_PLACEHOLDER = re.compile(r"<(?:image|video|audio)>")


class TokenCounter:
    """Counts tokens of texts; without chat template, begin, end or media."""

    def __init__(self, tokenizer: Tokenizer = None,
                 bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        """MetadataError: the tokenizer cannot be loaded."""
        self._count: Optional[Callable[[str], int]] = None
        self._bytes_per_token = bytes_per_token
        self.texts = 0  # Texts that were counted.
        if callable(tokenizer):
            self._count = tokenizer
        elif tokenizer is not None:
            loaded = _load(tokenizer)
            self._count = lambda text: len(
                loaded.encode(text, add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        """Returns the number of tokens, at least 1 for a text of one byte."""
        self.texts += 1
        text = _PLACEHOLDER.sub("", text)
        if self._count is not None:
            text = text.encode("utf-8", "replace").decode("utf-8")
            return int(self._count(text)) if text else 0
        size = len(text.encode("utf-8", "surrogatepass"))
        return math.ceil(size / self._bytes_per_token)


def describe(tokenizer: Tokenizer, bytes_per_token: float) -> Dict[str, Any]:
    """Returns how tokens are counted, for a summary."""
    if tokenizer is None:
        return {"counting": "estimate", "bytes_per_token": bytes_per_token}
    name = (getattr(tokenizer, "__name__", "function") if callable(tokenizer)
            else os.path.basename(os.path.normpath(tokenizer)))
    return {"counting": "tokenizer", "tokenizer": name}


def _load(path: str) -> Any:
    tokenizers = packages.required("tokenizers", "tokenizers",
                                   f"counting by {path}")
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not os.path.exists(path):
        raise MetadataError(f"{path}: there is no such file; --tokenizer takes "
                            "a tokenizer.json of Hugging Face")
    try:
        loaded = tokenizers.Tokenizer.from_file(path)
        loaded.no_truncation()
        loaded.no_padding()
        return loaded
    except Exception as error:  # pylint: disable=broad-except
        raise MetadataError(f"{path}: is no tokenizer.json of Hugging Face: "
                            f"{error}") from None
