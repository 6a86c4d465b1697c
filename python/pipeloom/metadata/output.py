"""An output file that an interrupted run can continue.

Until the end there are OUT.partial, with the lines so far, and
OUT.partial.json, with how far they go. Both are consistent at any moment: the
second is replaced as a whole, after its lines were written.
"""
import dataclasses
import hashlib
import json
import os
import time
from typing import Any, Callable, Dict, List, Sequence

from pipeloom.metadata.batch_file import line_of, sample_of
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.sources.units import Unit
from pipeloom.sample import Sample

try:
    import fcntl
except ImportError:  # Not on this system.
    fcntl = None  # type: ignore[assignment]

_STATE_SECONDS = 2.0  # Between states.
MAX_NAMES = 1000  # Broken files that are kept by name.


@dataclasses.dataclass
class Progress:
    """How far a run is."""
    task: int = 0  # Tasks that are done.
    position: int = 0  # Samples of the next task that are done.
    size: int = 0  # Bytes of lines.
    texts: int = 0  # Texts whose tokens were counted.
    broken_count: int = 0
    broken: List[str] = dataclasses.field(default_factory=list)
    ignored: Dict[str, int] = dataclasses.field(default_factory=dict)

    def add_broken(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.broken[-100:]:
                self.broken_count += 1
                if len(self.broken) < MAX_NAMES:
                    self.broken.append(name)


def fingerprint(units: Sequence[Unit], options: Dict[str, Any]) -> str:
    """Returns a text that changes with the options and with the names, sizes
    and times of the files of the units."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    seen: Dict[str, str] = {}
    for unit in units:
        if unit.path not in seen:
            try:
                found = os.stat(unit.path)
                seen[unit.path] = f"{found.st_size} {found.st_mtime_ns}"
            except OSError:
                seen[unit.path] = "missing"
        digest.update(f"{unit!r} {seen[unit.path]}\n".encode("utf-8",
                                                             "replace"))
    return digest.hexdigest()


class Output:
    """Lines on their way into a file."""

    def __init__(self, path: str, fingerprint_: str, *, resume: bool,
                 force: bool, on_sample: Callable[[Sample], None]) -> None:
        """Opens the output. With `resume`, an interrupted run of the same
        fingerprint is continued; `on_sample` gets the samples it has.

        MetadataError: it cannot be written, an interrupted run is there and
        neither `resume` nor `force` is set, or it was of other sources."""
        self._path, self._fingerprint = path, fingerprint_
        self._partial, self._state = path + ".partial", path + ".partial.json"
        self.progress = Progress()
        self._saved = time.monotonic()
        if os.path.isdir(path):
            raise MetadataError(f"{path}: is a folder; -o takes a file name")
        found = os.path.exists(self._partial)
        if found and not resume and not force:
            raise MetadataError(
                f"{self._partial}: an interrupted run left it; continue with "
                "--resume, or begin anew with --force")
        if found and resume:
            self.progress = self._load()
        self.resumed = found and resume
        try:
            self._file = open(self._partial, "r+b" if self.resumed else "wb")
        except OSError as error:
            raise MetadataError(f"{path}: cannot be written: "
                                f"{error.strerror}") from None
        self._lock()
        if self.resumed:
            self._take_lines(on_sample)
        self._save()

    def add(self, samples: Sequence[Sample]) -> None:
        """Writes samples. MetadataError: there is no room, or no right."""
        data = "".join(line_of(s) + "\n" for s in samples).encode()
        try:
            self._file.write(data)
        except OSError as error:
            raise MetadataError(f"{self._partial}: cannot be written: "
                                f"{error.strerror}") from None
        self.progress.size += len(data)

    def passed(self, task: int, position: int) -> None:
        """Notes that all before `position` of a task is written."""
        self.progress.task, self.progress.position = task, position
        if time.monotonic() - self._saved > _STATE_SECONDS:
            self._save()

    def pause(self) -> None:
        """Closes the output so that it can be continued, from the last state if
        there is no room for a new one."""
        try:
            self._save()
        except MetadataError:
            pass
        self._close()

    def finish(self) -> None:
        """Gives the file its name. MetadataError: it cannot."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self._path)
            os.remove(self._state)
        except OSError as error:
            raise MetadataError(f"{self._path}: cannot be written: "
                                f"{error.strerror}") from None

    def discard(self) -> None:
        """Removes what was written."""
        self._close()
        for path in (self._partial, self._state, self._state + ".new"):
            if os.path.exists(path):
                os.remove(path)

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # The state says how far the lines go.

    def _lock(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MetadataError(f"{self._partial}: another process writes "
                                    "it; wait for its end, or choose another "
                                    "-o") from None

    def _load(self) -> Progress:
        try:
            with open(self._state, encoding="utf-8") as file:
                fields = json.load(file)
            if fields.pop("fingerprint") != self._fingerprint:
                raise MetadataError(
                    f"{self._partial}: was begun with other sources or "
                    "options; give the same ones, or begin anew with --force")
            return Progress(**fields)
        except (OSError, ValueError, TypeError, KeyError):
            raise MetadataError(f"{self._state}: cannot be read; begin anew "
                                "with --force") from None

    def _take_lines(self, on_sample: Callable[[Sample], None]) -> None:
        left = self.progress.size
        for line in self._file:
            if len(line) > left:
                break
            left -= len(line)
            try:
                on_sample(sample_of(line.decode()))
            except (ValueError, TypeError, AttributeError):
                left = -1
                break
        if left:
            raise MetadataError(f"{self._partial}: is not what the interrupted "
                                "run wrote; begin anew with --force")
        self._file.truncate(self.progress.size)
        self._file.seek(self.progress.size)

    def _save(self) -> None:
        self._saved = time.monotonic()
        try:
            self._file.flush()
            with open(self._state + ".new", "w", encoding="utf-8") as file:
                json.dump({"fingerprint": self._fingerprint,
                           **dataclasses.asdict(self.progress)}, file)
            os.replace(self._state + ".new", self._state)
        except OSError as error:
            raise MetadataError(f"{self._state}: cannot be written: "
                                f"{error.strerror}") from None
