"""Python functions in the order of a CUDA stream, without driver callbacks.

A callback would take the interpreter's lock on the driver's thread. Another thread that holds this lock may be inside a
driver call, which waits for the driver's thread: a deadlock. Instead the stream records an event, and then waits for a
word of page-locked memory. One thread polls the events. The workers of the host driver's pool call the functions and
write the words.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.context import PrimaryContext
from cuda_async.driver.pool import worker_pool
from cuda_async.errors import ContextError
from cuda_async.locks import new_lock, start_thread

if TYPE_CHECKING:
    from cuda_async.driver.cuda.checks import RunErrors
    from cuda_async.driver.cuda.device import CudaDriver
    from cuda_async.driver.cuda.stream import CudaStream
    from cuda_async.driver.interface import DriverEvent

__all__ = ("HostFunctions",)

_SLEEP_S = 20e-6  # seconds between two polls; Python sleeps about 95 us if asked for 20 (as in `stream.py`)
_WORDS = 1024  # words of 4 bytes in one allocation: a page of 4 KiB


class _Entry:
    """A function, the event before it, its word's address, and its run's errors."""

    __slots__ = ("_unclaimed", "errors", "event", "function", "word")

    def __init__(self, event: DriverEvent, function: Callable[[], None], word: int, errors: RunErrors) -> None:
        self.event = event
        self.function = function
        self.word = word
        self.errors = errors
        self._unclaimed = [True]  # `pop` is atomic

    def claim(self) -> bool:
        """Whether the caller is the first to ask: to call the function, or to give it up."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False


class HostFunctions:
    """Functions that streams of one device wait for, and the thread that calls them."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._new: SimpleQueue[_Entry] = SimpleQueue()  # not `Queue`, into which a signal's handler may not always put
        self._lock = new_lock()
        self._thread: threading.Thread | None = None
        # Addresses of words that no entry has, though a stream may still wait for one.
        self._words: deque[int] = deque()

    @property
    def _context(self) -> PrimaryContext:
        return self._driver.context

    def enqueue(self, stream: CudaStream, function: Callable[[], None]) -> None:
        """Have `function` called when the work enqueued so far is done.

        Later work of the stream waits until it has returned.
        """
        # The thread first: if it cannot be started, the stream must not yet wait for a word that nobody writes.
        if self._thread is None:
            self._start()
        stream.errors.used = True  # the stream's next run begins with an object of its own
        word = self._take_word()
        event = self._driver.create_event()
        stream.record(event)
        entry = _Entry(event, function, word, stream.errors)
        equal = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        try:
            self._context.call(cu.cuStreamWaitValue32, stream.handle, word, 1, int(equal))
            # When the stream has passed the word it writes 0. The word may then be taken again.
            self._context.call(cu.cuStreamWriteValue32, stream.handle, word, 0, 0)
            self._new.put(entry)
        except BaseException:
            # The driver refused a call, or Ctrl-C came: the stream must not wait for a function that nobody calls. The
            # word is not used again, since the stream may never set it back to 0. If Ctrl-C came after `put`, and a
            # worker has claimed the entry already, the stream waits for that worker.
            if entry.claim():
                ctypes.c_uint32.from_address(word).value = 1
            raise

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                # If Ctrl-C comes while it starts, a later call starts a second one. Both take entries from the queue.
                thread = threading.Thread(target=self._call_for_ever, name="cuda_async-host-functions", daemon=True)
                start_thread(thread)
                self._thread = thread

    def _take_word(self) -> int:
        with self._lock:
            # A word that is still 1 was given back by a worker, but its stream has not passed it yet.
            for _ in range(len(self._words)):
                try:
                    word = self._words.popleft()
                except IndexError:  # a signal's handler, which the lock lets in, has taken the last one
                    break
                if ctypes.c_uint32.from_address(word).value == 0:
                    return word
                self._words.append(word)
            address = self._driver.pin(4 * _WORDS)
            ctypes.memset(address, 0, 4 * _WORDS)
            self._words.extend(address + 4 * index for index in range(1, _WORDS))
            return address

    def _call_for_ever(self) -> None:
        pending: list[_Entry] = []
        while True:
            while not (pending and self._new.empty()):
                try:
                    pending.append(self._new.get(block=not pending))
                except Empty:  # a second thread, left by an interrupted `_start`, has taken the entry
                    break
            pending = [entry for entry in pending if not self._dispatch(entry)]
            if pending:
                time.sleep(_SLEEP_S)

    def _dispatch(self, entry: _Entry) -> bool:
        """Have a worker call a function if its turn has come; return whether it has.

        It has a frame of its own: the frame of the thread's loop would keep the entry, and all that its function refers
        to, while the thread sleeps.
        """
        if not entry.event.query():
            return False
        try:
            worker_pool().put(partial(self._call, entry))
        except ContextError as error:  # the interpreter exits, and the pool takes no more calls: waiters are told
            if not entry.claim():
                entry.event.close()
                return True
            if entry.event.failure() is None:
                entry.errors.error = error
            self._finish(entry)
        return True

    def _call(self, entry: _Entry) -> None:
        if not entry.claim():  # `enqueue` was interrupted, and has let the stream go on
            entry.event.close()
            return
        # Behind work that has failed the function is not called. The run's waiters have that failure already.
        if entry.event.failure() is None:
            try:
                entry.function()
            except BaseException as error:
                entry.errors.error = error
        self._finish(entry)

    def _finish(self, entry: _Entry) -> None:
        """Let the stream go on."""
        # The word is written before the event is closed. The driver may delay a call, such as the one that destroys the
        # event, until another thread's call is over, such as one that loads a module. That may wait for this stream.
        ctypes.c_uint32.from_address(entry.word).value = 1
        self._words.append(entry.word)
        entry.event.close()
