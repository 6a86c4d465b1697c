"""Lines of a training's log about trouble with its planner."""
import logging
import threading
import time
from typing import Set

_log = logging.getLogger("pipeloom")


class Trouble:
    """Logs one line when the first of several causes of trouble begins, and one
    when the last has ended. Threads: any."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._causes: Set[str] = set()
        self._noted: Set[str] = set()
        self._began = 0.0
        self._lock = threading.Lock()

    def begin(self, cause: str, why: str) -> None:
        with self._lock:
            if not self._causes:
                self._began = time.monotonic()
                _log.log(self._level, "pipeloom: %s; training goes on without "
                         "new plans where it has to, and asks again", why)
            self._causes.add(cause)

    def end(self, cause: str, what: str) -> None:
        with self._lock:
            if cause in self._causes:
                self._causes.remove(cause)
                if not self._causes:
                    self._noted.clear()
                    _log.log(self._level, "pipeloom: %s, after %.1f s", what,
                             time.monotonic() - self._began)

    def note(self, topic: str, why: str) -> None:
        """Logs a warning, once for each topic until trouble ends."""
        with self._lock:
            if topic not in self._noted:
                self._noted.add(topic)
                _log.warning("pipeloom: %s", why)
