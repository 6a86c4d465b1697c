"""Files of batch metadata: JSON Lines, a sample a line (docs/tutorial.md)."""
import json
import os
from typing import Any, Dict, Iterable

from pipeloom.metadata.errors import MetadataError
from pipeloom.sample import Sample


def line_of(sample: Sample) -> str:
    """Returns the line of a sample, without its end."""
    fields: Dict[str, Any] = {"text_tokens": sample.text_tokens}
    if sample.images:
        fields["images"] = [list(size) for size in sample.images]
    if sample.videos:
        fields["videos"] = [_clip(clip) for clip in sample.videos]
    if sample.audio_seconds:
        fields["audio_seconds"] = list(sample.audio_seconds)
    return json.dumps(fields)


def _clip(clip: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the clip with the names of the file; 0 is what is not known."""
    named = {"frames": clip.get("frames", 0), "width": clip.get("width_px", 0),
             "height": clip.get("height_px", 0),
             "seconds": clip.get("seconds", 0)}
    return {name: value for name, value in named.items() if value}


def sample_of(line: str) -> Sample:
    """Returns the sample of a line that `line_of` made."""
    fields = json.loads(line)
    return Sample(
        fields.get("text_tokens", 0),
        tuple((w, h) for w, h in fields.get("images", ())),
        tuple({"frames": v.get("frames", 0), "width_px": v.get("width", 0),
               "height_px": v.get("height", 0),
               "seconds": v.get("seconds", 0.0)}
              for v in fields.get("videos", ())),
        tuple(fields.get("audio_seconds", ())))


def write(samples: Iterable[Sample], path: str) -> int:
    """Writes samples to a file and returns their number. The file appears as a
    whole at the end; until then it is PATH.partial.

    MetadataError: it cannot be written, or there are no samples."""
    partial = path + ".partial"
    count = 0
    try:
        with open(partial, "w", encoding="utf-8") as file:
            for sample in samples:
                file.write(line_of(sample) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if not count:
            os.remove(partial)
            raise MetadataError(f"{path}: is not written: there are no samples")
        os.replace(partial, path)
    except OSError as error:
        raise MetadataError(f"{path}: cannot be written: "
                            f"{error.strerror}") from None
    return count
