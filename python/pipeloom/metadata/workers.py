"""Tasks in several processes, with results in the order of tasks."""
import collections
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from typing import Any, Deque, Dict, Iterator, List, Sequence, Tuple

from pipeloom.metadata.build import Options
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.reading import Batch, Reader, Task, in_process

# Tasks a worker that are begun ahead of the one whose results are next. Their
# results wait in memory: about 200 bytes a sample.
_AHEAD = 2


def run(tasks: Sequence[Task], options: Options, skip_broken: bool,
        workers: int) -> Iterator[Tuple[int, Batch, bool]]:
    """Yields (number of the task, batch, whether it is the task's last) in the
    order of tasks: the same for any number of workers, errors included.

    Closing the iterator ends the workers."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from in_process(tasks, options, skip_broken)
        return
    pool = _Pool(tasks, options, skip_broken, workers)
    try:
        yield from pool.results()
    finally:
        pool.close()


def _work(connection: Any, inherited: List[Any], options: Options,
          skip_broken: bool) -> None:
    """Runs tasks until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends workers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    try:
        reader = None
        while True:
            task = connection.recv()
            try:
                if reader is None:
                    reader = Reader(options, skip_broken)
                held = None
                for batch in reader.run(task):
                    if held is not None:
                        connection.send((held, False, None))
                    held = batch
                connection.send((held, True, None))
            except MetadataError as error:
                connection.send((None, True, error))
    except (EOFError, OSError):
        pass  # The parent is gone.


class _Pool:

    def __init__(self, tasks: Sequence[Task], options: Options,
                 skip_broken: bool, workers: int) -> None:
        self._tasks = tasks
        self._next = 0  # The task to begin next.
        self._results: Dict[int, Deque[Any]] = {}
        self._task_of: Dict[Any, int] = {}  # By connection.
        self._idle: List[Any] = []
        self._ahead = _AHEAD * workers
        self._processes: List[Any] = []
        # A fork of a process with threads may deadlock.
        fork = (threading.active_count() == 1 and
                "fork" in multiprocessing.get_all_start_methods())
        context = multiprocessing.get_context("fork" if fork else "spawn")
        for _ in range(workers):
            here, there = context.Pipe()
            inherited = [*self._idle, here] if fork else []
            process = context.Process(
                target=_work, args=(there, inherited, options, skip_broken),
                daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._idle.append(here)

    def results(self) -> Iterator[Tuple[int, Batch, bool]]:
        for number in range(len(self._tasks)):
            finished = False
            while not finished:
                self._begin(number)
                queue = self._results[number]
                if not queue:
                    self._receive()
                    continue
                batch, finished, error = queue.popleft()
                if error is not None:
                    raise error
                yield number, batch, finished
            del self._results[number]

    def _begin(self, current: int) -> None:
        while (self._idle and self._next < len(self._tasks) and
               self._next < current + self._ahead):
            connection = self._idle.pop()
            self._task_of[connection] = self._next
            self._results[self._next] = collections.deque()
            connection.send(self._tasks[self._next])
            self._next += 1

    def _receive(self) -> None:
        for connection in multiprocessing.connection.wait(list(self._task_of)):
            number = self._task_of[connection]
            try:
                message = connection.recv()  # type: ignore[union-attr]
            except (EOFError, OSError):
                raise MetadataError(
                    f"a worker process ended while it read "
                    f"{self._tasks[number].unit.path}; if memory ran out, use "
                    "fewer --workers") from None
            self._results[number].append(message)
            if message[1]:
                del self._task_of[connection]
                self._idle.append(connection)

    def close(self) -> None:
        for process in self._processes:
            process.kill()  # Workers hold nothing that is to be kept.
        for process in self._processes:
            process.join(0.2)
        for connection in [*self._idle, *self._task_of]:
            connection.close()


def available() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
