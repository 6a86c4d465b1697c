"""Calls into the planner that is built into this package: options as the
arguments of the `pipeloom` command, values as files, errors as exceptions."""
import dataclasses
import importlib
import json
import math
import numbers
import os
import re
import tempfile
import warnings
from typing import (Any, Callable, Dict, Iterable, List, Mapping, Optional,
                    Sequence, Tuple, Union)

from pipeloom.sample import Sample

Progress = Optional[Callable[[str], object]]
Path = Union[str, "os.PathLike[str]"]
Samples = Union[Path, Iterable[Union[Sample, Mapping[str, Any]]]]
Value = Union[None, bool, int, float, str, Sequence[Any]]


# Arguments that are not called as the option is, with _ for -.
_ARGUMENTS = {"for": "for_trainer", "slow": "slow_ranks",
              "slow-link": "slow_links"}
_DATA_SETS = (".tar", ".tar.gz", ".tgz", ".parquet", ".arrow")


def _argument(option: str) -> str:
    return _ARGUMENTS.get(option, option.replace("-", "_"))


def _as_arguments(text: str) -> str:
    """Returns the text with the command's options as arguments."""
    # Without an argument of that name here.
    text = text.replace("; --warm-up 0s plans without", "")
    text = re.sub(
        r"(?<![\w-])--([a-z][a-z-]*) (\S+)(?= plans without| all have as many)",
        lambda m: f"{_argument(m.group(1))}=" + (
            m.group(2) if m.group(2).isdigit() else f"'{m.group(2)}'"), text)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)",
                  lambda m: _argument(m.group(1)), text)


class PlanningWarning(UserWarning):
    """A note of the planner, such as a step that is short of samples."""


def native() -> Any:
    """Returns the extension module. ImportError says how to get it."""
    try:
        return importlib.import_module("pipeloom._native")
    except ImportError as error:
        raise ImportError(
            "the planner is not built into this package; `pip install .` at "
            f"the root of the Pipeloom project builds it ({error})") from error


def data_dir() -> str:
    """Returns the folder of the shipped jobs, models, clusters and batches:
    PIPELOOM_DATA_DIR, else this package's, else the source tree's."""
    variable = os.environ.get("PIPELOOM_DATA_DIR")
    if variable:
        return variable
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "_prefix", "share", "pipeloom")
    if os.path.isdir(installed):
        return installed
    return os.path.normpath(os.path.join(package, "..", "..", "workloads"))


def to_json(value: Any, indent: Optional[int] = None) -> str:
    """Returns `value` as JSON; numbers of numpy count as numbers."""
    def plain(item: Any) -> Any:
        if hasattr(item, "tolist"):
            return item.tolist()
        raise TypeError(f"{type(item).__name__} {item!r} is no JSON value")
    return json.dumps(value, indent=indent, default=plain)


def from_json(text: str) -> Dict[str, Any]:
    """Returns the JSON object of a text."""
    value: Dict[str, Any] = json.loads(text)
    return value


class Files:
    """A folder with the values of one call as files, until the `with` block
    ends."""

    def __enter__(self) -> "Files":
        self._folder = tempfile.TemporaryDirectory(prefix="pipeloom.")
        return self

    def __exit__(self, *_: Any) -> None:
        self._folder.cleanup()

    def path(self, name: str) -> str:
        return os.path.join(self._folder.name, name)

    def add(self, name: str, content: Union[str, bytes]) -> str:
        """Writes a file and returns its path."""
        data = content.encode() if isinstance(content, str) else content
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def clean(self, message: str) -> str:
        """Returns the message as a caller from Python knows things: without
        this folder, without lines of JSON that the caller did not write, with
        options as arguments."""
        samples = re.escape(self.path("samples.jsonl"))
        message = re.sub(samples + r":(\d+)",
                         lambda m: f"samples[{int(m.group(1)) - 1}]", message)
        message = re.sub(rf"(the samples of )?{samples}", "samples", message)
        message = message.replace(self._folder.name + os.sep, "")
        message = re.sub(r"\b(job|model|cluster|partition)\.json:(\d+:)? ", "",
                         message)
        # Commands that are quoted as a whole stay.
        return "".join(
            part if part.startswith("`") else _as_arguments(part)
            for part in re.split("(`[^`]*`)", re.sub(
                "`pipeloom partition [^`]* --layouts`",
                "pipeloom.search_layout", message)))


def _check_finite(value: Any, name: str) -> None:
    """ValueError: there is a number in the value that JSON cannot say; `name`
    is the value's."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_finite(item, f"{name}[{i}]")
    elif (isinstance(value, numbers.Real) and not isinstance(value, int) and
          not math.isfinite(value)):
        raise ValueError(f"{name} is {float(value)}; it must be a finite "
                         "number that is not negative")


def _fields(sample: Sample) -> Dict[str, Any]:
    """Returns the sample as in a batch file. TypeError or AttributeError: a
    field is no sequence of what it should hold."""
    return {
        "text_tokens": sample.text_tokens,
        "images": [list(size) for size in sample.images],
        "videos": [{name[:-3] if name.endswith("_px") else name: size
                    for name, size in clip.items()}
                   for clip in sample.videos],
        "audio_seconds": list(sample.audio_seconds)}


def sample_lines(samples: Iterable[Union[Sample, Mapping[str, Any]]]) -> str:
    """Returns the samples as JSON Lines, in the format of a batch file."""
    lines = []
    for i, sample in enumerate(samples):
        if isinstance(sample, Sample):
            try:
                fields = _fields(sample)
            except (AttributeError, TypeError):
                raise TypeError(
                    f"samples[{i}] is {sample}; images must be a list of pairs "
                    "(width, height), such as [(640, 480)], videos a list of "
                    "dicts, and audio_seconds a list of numbers") from None
            _check_finite(dataclasses.asdict(sample), f"samples[{i}]")
            lines.append(to_json(fields))
        elif isinstance(sample, Mapping):
            _check_finite(sample, f"samples[{i}]")
            lines.append(to_json(dict(sample)))
        else:
            raise TypeError(f"samples[{i}] is {sample!r}; give a "
                            "pipeloom.Sample or a dict as in a batch file")
    return "".join(line + "\n" for line in lines)


def samples_argument(samples: Samples, files: Files) -> str:
    """Returns the value of --batch: a path, the name of a shipped batch, or a
    file with the samples."""
    if isinstance(samples, (str, os.PathLike)):
        path = os.fspath(samples)
        if os.path.isdir(path) or path.endswith(_DATA_SETS):
            raise ValueError(
                f"samples: {path} is a data set, no batch file; give "
                f"pipeloom.metadata.read({path!r})")
        return path
    if isinstance(samples, (Sample, Mapping)):
        raise TypeError("samples: one sample is no batch; give a list of them")
    if not isinstance(samples, Iterable):
        raise TypeError(f"samples is {samples!r}; give a list of "
                        "pipeloom.Sample, a batch file or the name of a "
                        "shipped batch")
    lines = sample_lines(samples)
    if not lines:
        raise ValueError("samples has none; an iterator that was read before "
                         "is empty: keep its samples as a list")
    return files.add("samples.jsonl", lines)


def flags(options: Mapping[str, Value]) -> List[str]:
    """Returns options as arguments. None and False are left out, lists have
    commas."""
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        elif isinstance(value, (list, tuple)):
            arguments.append(f"{flag}={','.join(str(v) for v in value)}")
        else:
            arguments.append(f"{flag}={value}")
    return arguments


def seconds(value: Union[None, str, int, float]) -> Optional[str]:
    """Returns a time as the command takes it: "100ms" as it is, a number as
    seconds."""
    if value is None or isinstance(value, str):
        return value
    return f"{float(value):.9f}s"


def partition_argument(partition: Union[None, Path, Mapping[str, Any]],
                       files: Files, name: str = "partition.json"
                       ) -> Optional[str]:
    """Returns the value of --partition: a source as it is, or a file with the
    dict."""
    if partition is None:
        return None
    if isinstance(partition, Mapping):
        return files.add(name, to_json(dict(partition)))
    return os.fspath(partition)


def raise_for(kind: str, message: str) -> None:
    """Raises the exception that `kind` names; none for ""."""
    if kind == "ValueError":
        raise ValueError(message)
    if kind:
        raise RuntimeError(message)


def tell(notes: Sequence[str]) -> None:
    """Issues the planner's notes as warnings."""
    for note in notes:
        text = note[len("note: "):] if note.startswith("note: ") else note
        warnings.warn(text, PlanningWarning, stacklevel=4)


def run(arguments: Sequence[str], files: Files,
        progress: Progress = None) -> Tuple[Dict[str, Any], List[str]]:
    """Runs a command that prints JSON. Returns the JSON and its notes."""
    kind, message, printed, notes = native().run(
        [*arguments, "--format=json"], progress)
    notes = [files.clean(note) for note in notes]
    if kind and printed:  # Such as a comparison in which nothing fits.
        for row in from_json(printed).get("rows", ()):
            if "error" in row:
                message += f"\n{row['strategy']}: {row['error']}"
    raise_for(kind, files.clean(message))
    return from_json(printed), notes
