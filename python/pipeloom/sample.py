"""The metadata of samples, which planning needs instead of their data."""
import dataclasses
from typing import Any, Dict, Tuple


_NAMES = {"width": "width_px", "height": "height_px"}


@dataclasses.dataclass(frozen=True)
class Sample:
    """The metadata of a sample before it is loaded: sizes, no data."""
    text_tokens: int = 0
    images: Tuple[Tuple[int, int], ...] = ()  # Width and height; pixels.
    #: frames, width_px, height_px, seconds; width and height are taken, too, as
    #: in a batch file.
    videos: Tuple[Dict[str, Any], ...] = ()
    audio_seconds: Tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any("width" in v or "height" in v for v in self.videos):
            object.__setattr__(self, "videos", tuple(
                {_NAMES.get(name, name): value for name, value in v.items()}
                for v in self.videos))
