"""The pool of worker threads that all host streams share: one for the process.

They are daemon threads, which start at the first task. A fixed number is enough, since tasks do not wait for one
another: a queue that waits is parked (`queue.py`). A child of `fork` gets new threads. At exit threads are joined, for
a limited time.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from cuda_async.config import config
from cuda_async.errors import ContextError
from cuda_async.locks import EXITING, new_lock, start_thread

__all__ = ("WorkerPool", "WorkerStatistics", "worker_pool")

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """The state of the workers.

    Attributes:
        threads: the number of threads.
        waiting: the number of tasks that wait for one: queues that can go on, and kernels with pieces left.
    """

    threads: int
    waiting: int


class WorkerPool:
    """Threads that take tasks from one queue, first in, first out.

    Args:
        width: their number.

    Attributes:
        closed: whether the interpreter is exiting. Enqueued tasks, and tasks that they put, still run; no others do.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.reset()

    def reset(self) -> None:
        """Start anew, without threads and tasks: in a child of `fork`."""
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._workers: set[int] = set()
        self._started = False
        self._lock = new_lock()
        self._resting = threading.Condition(new_lock())
        self._rests = self._rounds = 0  # the workers that rest now; how many times all of them have rested
        self._drained = False  # whether no task was left when all workers last rested
        self.closed = False

    def put(self, task: Task) -> None:
        """Run `task` on some worker.

        Raises:
            ContextError: the interpreter is exiting.
        """
        if not self._started:
            self._start()
        self._tasks.put(task)

    def statistics(self) -> WorkerStatistics:
        """The present state of the workers."""
        return WorkerStatistics(len(self._threads), self._tasks.qsize())

    def waiting(self) -> bool:
        """Whether a task waits for a worker."""
        return not self._tasks.empty()

    def is_worker(self) -> bool:
        """Whether the calling thread is a worker of this pool."""
        return threading.get_ident() in self._workers

    def _start(self) -> None:
        with self._lock:
            if self.closed:
                if threading.current_thread() in self._threads:
                    return  # a task puts another one, which the workers still run
                raise ContextError(0, EXITING)
            # Ctrl-C in here leaves too few threads, or one that is not in the list: the next call starts the others.
            for _ in range(self.width - len(self._threads)):
                thread = threading.Thread(
                    target=self._work, name=f"cuda_async-worker-{len(self._threads)}", daemon=True
                )
                start_thread(thread)
                self._threads.append(thread)
            self._started = True

    def _work(self) -> None:
        take, thread = self._tasks.get, threading.get_ident()
        self._workers.add(thread)
        while True:
            task = take()
            if task is None:  # `close` has put one for each thread
                if self._rest():
                    self._workers.discard(thread)  # another thread may get the number
                    return
                continue
            try:
                task()
            except BaseException as error:
                # Tasks keep their errors; one that escapes is a bug here, and the worker must live on.
                sys.excepthook(type(error), error, error.__traceback__)
            del task  # or this frame would keep its arguments until the next task comes

    def _rest(self) -> bool:
        """Wait, at exit, until all workers rest; return whether no task is left.

        Each worker takes one None from the queue. A task that still runs on another worker may put further tasks behind
        them. So the last worker that comes to rest looks for tasks, and if there are any, all workers go on.
        """
        with self._resting:
            self._rests += 1
            if self._rests < len(self._threads):
                rounds = self._rounds
                while rounds == self._rounds:
                    self._resting.wait()
                return self._drained
            self._drained = self._tasks.empty()
            if not self._drained:
                for _ in self._threads:
                    self._tasks.put(None)
            self._rests = 0
            self._rounds += 1
            self._resting.notify_all()
            return self._drained

    def close(self, limit_s: float) -> bool:
        """Run the enqueued tasks, and those that they put; end the threads.

        It takes at most `limit_s` seconds. Returns whether all threads ended.
        """
        with self._lock:
            self.closed, self._started = True, False
            threads = list(self._threads)
        for _ in threads:
            self._tasks.put(None)
        end = time.monotonic() + limit_s
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


_pool: WorkerPool | None = None
_lock = new_lock()


def worker_pool() -> WorkerPool:
    """The pool of this process."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = WorkerPool(config().workers)
                atexit.register(_pool.close, config().exit_limit_s)
    return _pool


def _after_fork() -> None:
    if _pool is not None:
        _pool.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
