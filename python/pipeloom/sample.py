"""The metadata of samples, which planning needs instead of their data."""
import dataclasses
from typing import Any, Dict, Tuple


@dataclasses.dataclass(frozen=True)
class Sample:
    """The metadata of a sample before it is loaded: sizes, no data."""
    text_tokens: int = 0
    images: Tuple[Tuple[int, int], ...] = ()  # Width and height; pixels.
    videos: Tuple[Dict[str, Any], ...] = ()  # frames, width_px, height_px, ...
    audio_seconds: Tuple[float, ...] = ()
