"""A line in the log of each rank that has been at one instruction for long: a
rank that hangs is found by what the others wait for, long before
torch.distributed gives up."""
import logging
import threading
import time
import weakref
from typing import Any, Optional, Tuple

from pipeloom.execution.failure import place

_log = logging.getLogger("pipeloom")
PATIENCE = 60.0  # Seconds.


class Watch:
    """A thread that looks at times at what the step of an executor is at. It
    ends with the executor's process, or once nobody has the watch."""

    def __init__(self) -> None:
        # The plan, rank and instruction; None between steps. A new object for
        # each instruction.
        self.at: Optional[Tuple[Any, int, int]] = None
        self._thread: Optional[threading.Thread] = None

    def begin(self) -> None:
        """Starts the thread if it does not run, as after a fork."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=_look, args=(weakref.ref(self),), daemon=True,
                name="pipeloom-watch")
            self._thread.start()


def _look(watch: "weakref.ref[Watch]") -> None:
    seen: Any = None
    since, told = 0.0, False
    while True:
        time.sleep(PATIENCE / 10)
        alive = watch()
        if alive is None:
            return
        at = alive.at
        del alive
        now = time.monotonic()
        if at is not seen:
            seen, since, told = at, now, False
        elif at is not None and not told and now - since >= PATIENCE:
            told = True
            _log.warning("pipeloom: %s has lasted for %.0f s and goes on",
                         place(*at), now - since)
