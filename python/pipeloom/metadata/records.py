"""Texts and media that a record names: a row of a table or a JSON object.

Known are records of LLaVA kind (`image`, `conversations`), of ShareGPT and
OpenAI kind (`messages` with content lists, `images`, `videos`, `audios`), of
interleaved documents (`texts` and `images`, `text_list` and `image_info`), of
captions and questions, and batch metadata that Pipeloom itself reads.
"""
import dataclasses
import json
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from pipeloom.metadata.errors import Unreadable
from pipeloom.metadata.headers.measure import kind_of_name
from pipeloom.sample import Sample

# Fields that hold text, where a record has no conversation.
TEXT_FIELDS = ("text", "texts", "text_list", "caption", "captions", "prompt",
               "system", "instruction", "input", "question", "context",
               "choices", "output", "response", "completion", "chosen",
               "answer", "answers", "transcript", "transcription", "sentence")
TURN_FIELDS = ("conversations", "messages", "conversation")
MEDIA_FIELDS = {
    "image": "image", "images": "image", "image_path": "image",
    "image_paths": "image", "video": "video", "videos": "video",
    "video_path": "video", "audio": "audio", "audios": "audio",
    "audio_path": "audio", "file_name": "",
}
_BATCH_FIELDS = ("text_tokens", "audio_seconds")
_PART_KINDS = {"image": "image", "image_url": "image", "input_image": "image",
               "video": "video", "video_url": "video", "audio": "audio",
               "audio_url": "audio", "input_audio": "audio"}
_REFERENCE_KEYS = ("bytes", "path", "url", "data", "image", "video", "audio",
                   "image_name", "file_name")


@dataclasses.dataclass(frozen=True)
class Reference:
    """A media file that a record names or holds. `frames`: the file is the
    first of this number of pictures that make a video."""
    kind: str  # "image", "video", "audio", or "" if only the file tells.
    name: str = ""
    data: Optional[bytes] = None
    frames: int = 0


@dataclasses.dataclass
class Parts:
    """Texts and media of a record."""
    texts: List[str] = dataclasses.field(default_factory=list)
    media: List[Reference] = dataclasses.field(default_factory=list)
    is_conversation: bool = False


def parts_of(record: Dict[str, Any],
             text_fields: Sequence[str] = ()) -> Parts:
    """Returns texts and media of a record. `text_fields`: the fields to count,
    in the place of those that are known."""
    parts = Parts()
    if text_fields:
        for name in text_fields:
            _add_texts(_field(record, name), parts.texts)
        _add_turns(record, Parts(media=parts.media))
    else:
        parts.is_conversation = _add_turns(record, parts)
        for name in (("system",) if parts.is_conversation else TEXT_FIELDS):
            _add_texts(record.get(name), parts.texts)
    named = {r.name for r in parts.media if r.name}
    for name, value in record.items():
        for reference in _references_of(name, value):
            if not reference.name or reference.name not in named:
                parts.media.append(reference)
    return parts


def unknown_fields(record: Dict[str, Any],
                   text_fields: Sequence[str] = ()) -> str:
    """Returns the names of the fields of a record none of whose fields is
    known; "" if one is, or if there are none."""
    known = {*TEXT_FIELDS, *TURN_FIELDS, *MEDIA_FIELDS, *_BATCH_FIELDS}
    if any(name in known for name in record):
        return ""
    if any(_field(record, name) is not None for name in text_fields):
        return ""
    names = sorted(record)
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def sample_of_metadata(record: Dict[str, Any]) -> Optional[Sample]:
    """Returns the sample of a line of batch metadata, or None if the record is
    none. Unreadable: it is one with a value that is not right."""
    sizes = record.get("images")
    sized = (isinstance(sizes, list) and bool(sizes) and
             all(isinstance(s, list) and len(s) == 2 and
                 all(isinstance(v, int) for v in s) for s in sizes))
    if not sized and "text_tokens" not in record:
        if "audio_seconds" not in record:
            return None
    try:
        videos = tuple({"frames": int(v.get("frames", 0)),
                        "width_px": int(v.get("width", 0)),
                        "height_px": int(v.get("height", 0)),
                        "seconds": float(v.get("seconds", 0))}
                       for v in record.get("videos") or ())
        return Sample(int(record.get("text_tokens", 0)),
                      tuple((int(w), int(h)) for w, h in sizes or ()), videos,
                      tuple(float(s)
                            for s in record.get("audio_seconds") or ()))
    except (TypeError, ValueError, AttributeError):
        raise Unreadable("is no line of batch metadata: a field has a value of "
                         "a wrong kind") from None


def _field(record: Any, path: str) -> Any:
    """Returns a field by its name, or by names with dots: "json.caption"."""
    if isinstance(record, dict) and path in record:
        return record[path]
    for name in path.split("."):
        if isinstance(record, dict):
            record = record.get(name)
        elif isinstance(record, list) and name.isdigit():
            record = record[int(name)] if int(name) < len(record) else None
        else:
            return None
    return record


def _add_texts(value: Any, texts: List[str]) -> None:
    if isinstance(value, str):
        if value:
            texts.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add_texts(item, texts)
    elif isinstance(value, dict):
        for name in ("content", "value", "text", "question", "answer"):
            _add_texts(value.get(name), texts)


def _add_turns(record: Dict[str, Any], parts: Parts) -> bool:
    found = False
    for name in TURN_FIELDS:
        turns = record.get(name)
        if isinstance(turns, str) and turns[:1] == "[":
            try:  # Some tables hold conversations as JSON.
                turns = json.loads(turns)
            except ValueError:
                pass
        if not isinstance(turns, list):
            continue
        for turn in turns:
            found = True
            if isinstance(turn, dict):
                _add_content(turn.get("content", turn.get("value")), parts)
            else:
                _add_texts(turn, parts.texts)
    return found


def _add_content(content: Any, parts: Parts) -> None:
    """Adds the content of a turn: a text, or a list of parts with types."""
    if isinstance(content, str):
        _add_texts(content, parts.texts)
        return
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            _add_texts(part, parts.texts)
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind is None:  # Told by the only field: {"image": "a.jpg"}.
            kind = next((k for k in _PART_KINDS if part.get(k)), "text")
        if kind not in _PART_KINDS:
            _add_texts(part.get("text"), parts.texts)
            continue
        value = part.get(kind)
        if value is None:
            value = {k: part[k] for k in ("path", "url", "data", "bytes")
                     if part.get(k)} or None
        parts.media.extend(_references(_PART_KINDS[kind], value))


def _references_of(name: str, value: Any) -> Iterator[Reference]:
    if name in MEDIA_FIELDS:
        yield from _references(MEDIA_FIELDS[name], value)
    elif name == "image_info":
        yield from _references("image", value)
    elif isinstance(value, bytes):
        yield Reference("", name, value)
    elif isinstance(value, dict) and "bytes" in value:
        yield from _references("", value)
    elif isinstance(value, (list, tuple)):
        if any(isinstance(v, dict) and "bytes" in v for v in value):
            yield from _references("", value)


def _references(kind: str, value: Any) -> Iterator[Reference]:
    """Yields the references of a field: a name, a list of them, or objects with
    bytes, a path or a URL. None and empty names are places without media."""
    if isinstance(value, (list, tuple)):
        if kind == "video" and _are_frames(value):
            yield Reference("video", value[0], frames=len(value))
            return
        for item in value:
            yield from _references(kind, item)
    elif isinstance(value, str):
        if value:
            yield Reference(kind, value)
    elif isinstance(value, bytes):
        yield Reference(kind, "", value)
    elif isinstance(value, dict):
        name, data = _name_and_data(value)
        if data is not None or name:
            yield Reference(kind, name, data)


def _are_frames(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(v, str) and
                               kind_of_name(v) == "image" for v in value)


def _name_and_data(value: Dict[str, Any]) -> Tuple[str, Optional[bytes]]:
    data = value.get("bytes")
    if not isinstance(data, bytes):
        data = None
    if isinstance(value.get("data"), str) and not value["data"].startswith(
            "data:"):
        return "data:;base64," + value["data"], data
    for key in _REFERENCE_KEYS:
        if isinstance(value.get(key), str) and value[key]:
            return value[key], data
    return "", data
