"""`Order`: the uses of a piece of memory, and their order among threads.

A use has three steps, all under the lock of its stream (`Stream.submission`):

    note       the memory's record names the stream, and the number of the piece that the stream enqueues next
    follow     the stream waits, by events, for the uses that were noted before
    enqueue    the driver's call; behind it the stream counts the piece, and the thread gives the lock back

Each thread notes before it looks at the notes of others. So of two threads that use the memory at once, one at least
sees the other's note. It waits until that thread has enqueued (`settle`), and follows then. A note needs no mark that
it is enqueued, and nobody to wake: the lock of its stream is free when the submission is over, however it ended.

Threads may wait for each other in a ring: one has noted x and comes to y, another one has noted y and comes to x. The
last that would wait goes first. It follows what the others have enqueued so far, and leaves their notes in the record
beside its own. The others follow all that it enqueues.

A write stands in place of the uses that it has followed. Until then they stay in the record beside it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from cuda_async.core.event import WAIT_SLICE_S
from cuda_async.core.lease import current_holder
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from cuda_async.core.stream import Stream

__all__ = ("Nested", "Order", "Replay", "holds", "settle")

_MAX_READERS = 16
"""Streams that a record keeps as readers. With more, those whose reads are done are forgotten: a program that makes a
stream for each read would keep all its streams. Few programs have more streams at once."""

_lock = new_lock()  # held while records of several writers change, and over a look at `_waits`; waits for nothing

_waits: dict[Stream, tuple[Stream, int]] = {}
"""Streams in whose submission a thread waits for the submission of another stream: that one, and the piece's number."""

_EVERY = sys.maxsize  # in place of a number: the wait is for whatever the other stream's submission is


class _Lock(Protocol):
    """A lock that tells whether this thread holds it; `threading.RLock` is one."""

    def _is_owned(self) -> bool: ...


def holds(stream: Stream) -> bool:
    """Whether this thread submits on a stream."""
    lock: _Lock = stream.submission  # pyright: ignore[reportAssignmentType]
    return lock._is_owned()  # pyright: ignore[reportPrivateUsage]


# -- waiting for another thread's submission -------------------------------------------------------


def settle(stream: Stream | None, source: Stream, sequence: int) -> bool:
    """Wait for the submission in which `source` has noted a piece of work.

    Args:
        stream: the stream whose work is ordered; None where this thread itself is to wait for the piece.
        source: the stream of the note.
        sequence: the number of the piece.

    Returns:
        Whether the submission is over. If not, this thread is to go first: the submission is its own, or waits for this
        thread.
    """
    if sequence <= source.begun:  # the note is of an earlier submission
        return True
    if holds(source):
        return False
    if _is_free(source, 0):
        return True
    outer: Stream | None = getattr(current_holder(), "stream", None)
    if stream is None or not holds(stream):
        stream = outer
    if stream is None or not holds(stream):
        return _wait_over(None, source, sequence)  # it holds up nobody
    if stream is not outer:  # else the run has set it, and may have enqueued pieces since
        stream.begun = stream.sequence  # launches do not, which enqueue one piece
    try:
        return _wait_over(stream, source, sequence)
    finally:
        _waits.pop(stream, None)


def _wait_over(stream: Stream | None, source: Stream, sequence: int) -> bool:
    """Wait as `settle`; a function of its own, as `wait_done` of `event.py`."""
    while True:
        if stream is not None:
            with _lock:
                _waits[stream] = source, sequence
                if _is_ring(stream):
                    del _waits[stream]  # under the lock: of several threads that could go first, one does
                    return False
        if _is_free(source, WAIT_SLICE_S, stream) or sequence <= source.begun:
            return True


def _is_free(source: Stream, timeout_s: float, waiting: Stream | None = None) -> bool:
    """Whether no other thread submits on a stream, at some moment before time is up.

    If so, the submission on the stream `waiting` waits no longer.
    """
    try:
        is_free = source.submission.acquire(timeout=timeout_s)
        if is_free and waiting is not None:
            # While the lock is held: the next submission there must not take this thread for one that waits for it.
            _waits.pop(waiting, None)
        return is_free
    finally:
        try:  # noqa: SIM105 - `suppress` could be interrupted halfway
            source.submission.release()
        except RuntimeError:  # another thread has it
            pass


def _is_ring(stream: Stream) -> bool:
    """Whether a submission that `stream` waits for waits for `stream`."""
    wait = _waits.get(stream)
    for _ in range(len(_waits)):
        if wait is None or wait[1] <= wait[0].begun:  # that submission is over: its waiter is about to go on
            return False
        if wait[0] is stream:
            return True
        wait = _waits.get(wait[0])
    return False


class Nested:
    """In the block, a thread submits on another stream amid a submission.

    Args:
        outer: the run of the submission.
        inner: the other stream; it may be the same one.
    """

    __slots__ = ("_before", "_inner", "_outer")

    def __init__(self, outer: object, inner: Stream) -> None:
        stream: Stream | None = getattr(outer, "stream", None)
        self._outer = None if stream is inner else stream
        self._inner = inner
        self._before: tuple[Stream, int] | None = None

    def __enter__(self) -> None:
        if self._outer is not None:
            self._before = _waits.get(self._outer)
            _waits[self._outer] = self._inner, _EVERY

    def __exit__(self, *error: object) -> None:
        if self._outer is not None:
            if self._before is None:
                _waits.pop(self._outer, None)
            else:
                _waits[self._outer] = self._before


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_waits.clear)  # the threads that wait are not in the child


# -- the record ------------------------------------------------------------------------------------


class _Writers:
    """Several streams in place of the last writer: none follows all others.

    Their threads may write parts of the memory at the same time, whose bytes leases keep apart. Or one of them has
    noted a write, and has not followed the others yet. Later work follows each of them. It is no stream:
    `Storage.order` never takes its shortcut.

    Attributes:
        last: the number of the last write on each stream.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: dict[Stream, int] = {}


class Replay:
    """Launches of one graph on one stream, which its operands are told of once.

    A graph has hundreds of operands, perhaps. While the order is valid, each launch only sets `last`.

    Attributes:
        stream: the stream of the launches.
        last: the sequence number of the last launch.
        valid: whether the next launch may skip the order with uses of the operands one by one. False for good where
            another stream has used one, an operation that was to write one has failed, or the graph was closed.
    """

    __slots__ = ("last", "stream", "valid")

    def __init__(self, stream: Stream, *, valid: bool = True) -> None:
        self.stream = stream
        self.last = stream.sequence + 1
        self.valid = valid


class Order:
    """The record of a piece of memory: its last writer, and the readers since then.

    Threads change at calls alone. So lines without a call between them are one step; a comment says where this counts.

    Attributes:
        writer: the stream of the last write; None for memory that nothing has written here.
        written: the sequence number of the last write on `writer`, if that is a stream.
        readers: the sequence number of the last read on each stream since that write.
        replays: launches of graphs that use the memory, all on one stream, each with whether they write. They note
            nothing here: `written` and `readers` have the first one's number, and the `Replay` has the last one's.
    """

    __slots__ = ("readers", "replays", "writer", "written")

    def __init__(self) -> None:
        self.writer: Stream | _Writers | None = None
        self.written = 0
        self.readers: dict[Stream, int] = {}
        self.replays: tuple[tuple[Replay, bool], ...] = ()

    # -- uses ---------------------------------------------------------------------------------

    def read(self, stream: Stream) -> None:
        """Order the piece that `stream` enqueues next, a reader."""
        self.readers[stream] = stream.sequence + 1  # covers earlier reads there, whose numbers are lower
        if self.replays and self.replays[0][0].stream is not stream:
            self.end_replays()
        if self.writer is not stream:
            for source, sequence in self.writers():
                stream.follow(source, sequence)
        if len(self.readers) > _MAX_READERS:
            self.forget_readers()

    def write(self, stream: Stream, *, depend: bool = True) -> None:
        """Order the piece that `stream` enqueues next, a writer.

        Args:
            stream: the stream of the write, whose lock the caller holds.
            depend: whether the write fails where an earlier one failed, since it leaves some bytes as they are.
        """
        if self.writer is stream:  # no call up to the next line
            self.written = stream.sequence + 1
            self.readers.pop(stream, None)  # behind the note: the record has this thread's reads, or its write
            if not self.readers:
                return
        readers = self.readers
        with _lock:
            self._note_write(stream)
            if self.replays and self.replays[0][0].stream is not stream:
                self.end_replays()
            writes = () if self.writer is stream else self.writers()
            reads = self.reads() if readers or self.replays else ()
        # Without the lock from here on: `follow` may wait for other threads.
        followed: list[tuple[Stream, int]] = []
        for source, sequence in writes:
            if source is not stream and stream.follow(source, sequence, depend=depend):
                followed.append((source, sequence))
        for reader, sequence in reads:
            # A write behind a read needs no result of it: it is right where the read failed.
            if reader is stream or not stream.follow(reader, sequence, depend=False):
                continue
            # No call up to the next line: a later read is not forgotten with this one.
            if reader in readers and readers[reader] <= sequence:
                del readers[reader]
        if followed:
            with _lock:
                self._forget_writes(followed)

    def _note_write(self, stream: Stream) -> None:
        """Note a write beside those that it is to follow. The caller holds `_lock`."""
        writers = _Writers()
        number, last = stream.sequence + 1, writers.last
        writer: Any = self.writer
        # No call up to the end of the branches, where another stream's thread or a finalizer could note a write.
        if writer is None or writer is stream:
            self.written = number
            self.writer = stream
        elif writer.__class__ is _Writers:
            writer.last[stream] = number
        else:
            last[stream] = number
            last[writer] = self.written
            self.writer = writers
        self.readers.pop(stream, None)  # behind the note, as in `write`

    def _forget_writes(self, writes: list[tuple[Stream, int]]) -> None:
        """Forget writes for which a write behind them stands. The caller holds `_lock`."""
        writers = self.writer
        if not isinstance(writers, _Writers):
            return  # another thread's write stands for all
        last = writers.last
        for source, sequence in writes:
            if source in last and last[source] <= sequence and len(last) > 1:
                del last[source]
        writer, *others = last  # no call up to the end, where a finalizer could note a write
        if not others and self.writer is writers:  # else finalizers have replaced the record in the loop above
            self.written = last[writer]
            self.writer = writer

    def write_unseen(self, stream: Stream) -> None:
        """Note that another library may have written.

        Its work is what it has enqueued on `stream` until now. For finalizers: no lock, no call of the driver. Other
        writes stay in the record where `stream` is not ordered behind them: the library may have had a part of the
        memory alone, and somebody else have written another part.
        """
        followed = [(source, sequence) for source, sequence in self.writers() if stream.follows(source, sequence)]
        self._note_write(stream)
        stream.sequence += 1  # behind the note, which has the number of the next piece
        self._forget_writes([use for use in followed if use[0] is not stream])
        self.end_replays()

    def forget_readers(self) -> None:
        """Forget reads that are done, and with them streams that nobody else may hold."""
        for reader in list(self.readers):
            # A thread that submits a read holds this lock. So no read is added while we hold it: another thread's new
            # read must not be forgotten with an old one.
            try:
                # 0 where another thread has removed it meanwhile: then there is nothing to remove. A graph's later
                # launches on the stream note nothing, so that it stays a reader.
                if (
                    reader.submission.acquire(blocking=False)
                    and self.readers.get(reader, 0) <= reader.completed
                    and not (self.replays and self.replays[0][0].stream is reader)
                ):
                    self.readers.pop(reader, None)
            finally:
                try:  # noqa: SIM105 - as in `_is_free`
                    reader.submission.release()
                except RuntimeError:  # another thread has it
                    pass

    # -- questions ----------------------------------------------------------------------------

    def writers(self) -> list[tuple[Stream, int]]:
        """The streams of the last writes, each with the sequence number of its write."""
        # Ahead of the records here: who ends the replays of a graph notes them there first.
        last = {replay.stream: replay.last for replay, write in self.replays if write}
        writer, written = self.writer, self.written
        if writer is None:
            return []
        if isinstance(writer, _Writers):
            return [(stream, max(number, last.get(stream, 0))) for stream, number in list(writer.last.items())]
        return [(writer, max(written, last.get(writer, 0)))]

    def reads(self) -> list[tuple[Stream, int]]:
        """The streams that have read since the last write.

        Each has the sequence number of its last read.
        """
        replays = self.replays  # ahead of the records, as in `writers`
        reads = dict(self.readers)
        for replay, write in replays:
            if not write:  # also where it has no record here: a later write on the stream has removed that
                reads[replay.stream] = max(reads.get(replay.stream, 0), replay.last)
        return list(reads.items())

    def in_use(self, *, but: Stream | None = None) -> bool:
        """Whether work that uses the memory may be unfinished.

        A write on the stream `but` does not count.
        """
        users = [user for user in self.writers() if user[0] is not but] + self.reads()
        return any(sequence > user.completed for user, sequence in users)

    # -- launches of graphs -------------------------------------------------------------------

    def replay(self, replay: Replay, write: bool) -> None:
        """Let later launches of a graph on a stream note nothing.

        That is until another stream uses the memory. The caller, who holds the lock of `replay.stream`, orders its
        launch behind the uses that there are, after this call.
        """
        while True:
            others = self.replays
            if others and others[0][0].stream is not replay.stream:
                self.end_replays()
                continue
            for other in others:
                if not other[0].valid:
                    self._note_last(*other)
            replays = (*(other for other in others if other[0].valid), (replay, write))
            if self.replays is others:  # else another thread has set it meanwhile
                self.replays = replays
                return

    def end_replays(self) -> None:
        """Have launches of graphs order themselves anew.

        Another stream uses the memory. The caller has noted its use, or does so behind this. Another thread may be
        launching the graph. It notes its launch first (`Replay.last`), and then looks whether the order still holds. So
        either it finds out here, or that launch is waited for.
        """
        while self.replays:
            replays = self.replays
            for replay, write in replays:
                replay.valid = False
                self._note_last(replay, write)
            if self.replays is replays:  # else another thread has added to them meanwhile
                self.replays = ()

    def _note_last(self, replay: Replay, write: bool) -> None:
        """Note the last launch of a graph in the records of the memory.

        There is no call, where threads could change: else an older number would go over another thread's number.
        """
        stream, last, readers = replay.stream, replay.last, self.readers
        writer: Any = self.writer
        if write and writer is stream:
            if self.written < last:
                self.written = last
        elif write and writer.__class__ is _Writers and stream in writer.last:
            if writer.last[stream] < last:
                writer.last[stream] = last
        elif stream not in readers or readers[stream] < last:
            readers[stream] = last
