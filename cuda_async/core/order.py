"""`Order`: the uses of a piece of memory, and their order among threads.

A submission is the time for which a thread holds the lock of a stream (`Stream.submission`) to enqueue pieces of work.
A use has three steps, all in one submission:

    note       the memory's record (`Order`) gets the stream, and the number of the piece that it enqueues next
    follow     the stream waits, by events, for the uses that were noted before
    enqueue    the driver's call; after it the stream counts the piece, and the thread releases the lock

Each thread notes its use before it reads the notes of other threads. So if two threads use the memory at once, at least
one of them sees the other's note. It waits until the other thread has enqueued its work (`settle`), and then follows
that work. Nobody has to mark a note as enqueued, or to wake a thread that waits for it: the lock is free once the
submission is over, whether it succeeded or failed.

Threads may come to wait for each other in a ring: one has noted a use of x and comes to y, another one has noted a use
of y and comes to x. The thread that would close the ring goes first. It follows the work that the others have enqueued
so far, and leaves their notes in the record beside its own. The others then follow all of its work.

A ring may also lead through other locks that are taken amid submissions: that of another stream (`Nested`),
or that of an operation with several consumers (`SubmissionLock`). Only a thread that waits in `settle` looks for rings,
and goes first. So locks of streams must not form a ring by themselves.

A write replaces the uses that it has followed. Until then they stay in the record beside it.
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

__all__ = ("Nested", "Order", "Replay", "SubmissionLock", "forget_wait", "holds", "settle")

_MAX_READERS = 16
"""Streams that a record keeps as readers. If there are more, it forgets those whose reads are done. Otherwise a program
that makes a new stream for each read would keep all of its streams. Few programs use more streams at once."""

_lock = new_lock()  # guards changes of records with several writers, and `_waits`; its holder waits for nothing

_waits: dict[object, tuple[Stream | SubmissionLock, int]] = {}
"""The submissions in which a thread waits for another one. The key is the lock of a submission's stream, which parts of
`spread` share. The value is the stream of the other submission and the number of the piece there, or a lock that the
other submission holds."""

_EVERY = sys.maxsize  # in place of a piece's number: the wait is for a lock, whoever holds it


class _Lock(Protocol):
    """A lock that tells whether this thread holds it; `threading.RLock` is one."""

    def _is_owned(self) -> bool: ...


def holds(stream: Stream) -> bool:
    """Whether this thread holds the submission lock of a stream."""
    lock: _Lock = stream.submission  # pyright: ignore[reportAssignmentType]
    return lock._is_owned()  # pyright: ignore[reportPrivateUsage]


# -- waiting for another thread's submission -------------------------------------------------------


def settle(stream: Stream | None, source: Stream, sequence: int) -> bool:
    """Wait for the submission in which `source` has noted a piece of work.

    Args:
        stream: the stream whose next work follows the piece; None if it is this thread that waits for the piece.
        source: the stream of the note.
        sequence: the number of the piece.

    Returns:
        Whether that submission is over. If not, this thread goes first: the submission is its own, or waits for it.
    """
    if sequence <= source.begun:  # the note is from a submission that is over
        return True
    if holds(source):
        return False
    if _is_free(source, 0):
        return True
    outer: Stream | None = getattr(current_holder(), "stream", None)
    if stream is None or not holds(stream):
        stream = outer
    if stream is None or not holds(stream):
        return _wait_over(None, source, sequence)  # this thread submits nothing, so no thread waits for it
    around = _waits.get(stream.submission)  # noted by `Nested` if `stream` has a submission around the present one
    if (outer is None or outer.submission is not stream.submission) and around is None:
        # A launch without a run, which need not have set `begun`. It enqueues one piece, and has not done so yet. A run
        # has set `begun`, and may have enqueued pieces since.
        stream.begun = stream.sequence
    try:
        with Nested(outer, stream):  # the run around a launch without a run is not over before this launch
            return _wait_over(stream, source, sequence)
    finally:
        if around is None:
            _waits.pop(stream.submission, None)
        else:
            _waits[stream.submission] = around


def _wait_over(stream: Stream | None, source: Stream, sequence: int) -> bool:
    """Wait for `settle`. The loop has a function of its own: see `event.wait_done`."""
    while True:
        if stream is not None:
            with _lock:
                _waits[stream.submission] = source, sequence
                if _is_ring(stream):
                    del _waits[stream.submission]  # under the lock, so that only one thread of the ring goes first
                    return False
        if _is_free(source, WAIT_SLICE_S, stream) or sequence <= source.begun:
            return True


def _is_free(source: Stream, timeout_s: float, waiting: Stream | None = None) -> bool:
    """Whether no other thread submits on `source` at some moment of the timeout.

    If so, the submission on the stream `waiting` is removed from those that wait.
    """
    try:
        is_free = source.submission.acquire(timeout=timeout_s)
        if is_free and waiting is not None:
            # Before the lock is released: the next submission there must not think that this thread waits for it.
            _waits.pop(waiting.submission, None)
        return is_free
    finally:
        try:  # noqa: SIM105 - `suppress` could be interrupted halfway
            source.submission.release()
        except RuntimeError:  # another thread has it
            pass


def _is_ring(stream: Stream) -> bool:
    """Whether the waits of submissions lead from `stream` back to it."""
    source = _awaited(stream)
    for _ in range(len(_waits)):  # each wait once: there may be a ring without `stream`, which has no end
        if source is None:
            return False
        if source.submission is stream.submission:
            return True
        source = _awaited(source)
    return False


def _awaited(stream: Stream) -> Stream | None:
    """The submission that the one on `stream` waits for, by its stream."""
    wait = _waits.get(stream.submission)
    if wait is None:
        return None
    source, sequence = wait
    if isinstance(source, SubmissionLock):
        holder = source.holder
        # A holder of the lock has waited for it.
        return None if holder is None or holder.submission is stream.submission else holder
    return None if sequence <= source.begun else source  # that submission is over: its waiter is about to go on


class SubmissionLock:
    """A lock that threads take amid submissions, and hold while they enqueue work.

    Work that a holder has enqueued is followed by each later holder, by an event that was recorded before the release.

    A thread takes it so:

        with Nested(run, lock), lock.mutex:
            before, lock.holder = lock.holder, run.stream
            try:
                ...
            finally:
                lock.holder = before  # before the release: nobody must think that others still wait for this thread

    Attributes:
        mutex: the lock itself.
        holder: the stream of the submission that holds it; None if there is none.
    """

    __slots__ = ("holder", "mutex")

    def __init__(self) -> None:
        self.mutex = new_lock()
        self.holder: Stream | None = None


class Nested:
    """A block inside a submission, in which a thread takes another lock.

    The submission around it counts as waiting for the lock, which is that of another stream or a `SubmissionLock`.

    Args:
        outer: the run of the submission around it; None if there is none.
        inner: the other stream, or the lock. If it is the same stream, nothing is noted.
    """

    __slots__ = ("_before", "_inner", "_outer")

    def __init__(self, outer: object, inner: Stream | SubmissionLock) -> None:
        stream: Stream | None = getattr(outer, "stream", None)
        self._outer: object = None if stream is None else stream.submission
        if not isinstance(inner, SubmissionLock) and inner.submission is self._outer:
            self._outer = None
        self._inner = inner
        self._before: tuple[Stream | SubmissionLock, int] | None = None

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


def forget_wait(stream: Stream) -> None:
    """Note that the submission on a stream waits for nothing, after it has failed.

    Ctrl-C may end `Nested` before it has removed its note. Later submissions on the stream would seem to wait.
    """
    _waits.pop(stream.submission, None)


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_waits.clear)  # the threads that wait are not in the child


# -- the record ------------------------------------------------------------------------------------


class _Writers:
    """Several last writers, of which none has followed all others.

    Either their threads write different bytes of the memory at the same time, which leases keep apart. Or one of them
    has noted its write, and has not followed the others yet. Later work follows each of them. This object is no stream,
    so `Storage.order` never takes its shortcut.

    Attributes:
        last: the number of the last write on each stream.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: dict[Stream, int] = {}


class Replay:
    """Launches of one graph on one stream, noted once in the record of each operand.

    A graph may have hundreds of operands. While `valid` is true, a launch only sets `last`.

    Attributes:
        stream: the stream of the launches.
        last: the sequence number of the last launch.
        valid: whether the next launch may skip `Storage.order` for each operand. It becomes false for good when another
            stream uses an operand, or has noted a use ahead of which this launch goes (`settle`); when an
            operation that was to write one fails; or when the graph is closed.
    """

    __slots__ = ("last", "stream", "valid")

    def __init__(self, stream: Stream, *, valid: bool = True) -> None:
        self.stream = stream
        self.last = stream.sequence + 1
        self.valid = valid


class Order:
    """The record of a piece of memory: its last writer, and the readers since then.

    The interpreter switches threads only at calls and where a loop jumps back. So lines without either are one step; a
    comment says where this matters.

    Attributes:
        writer: the stream of the last write; None for memory that nothing has written here.
        written: the sequence number of the last write on `writer`, if that is a stream.
        readers: the sequence number of the last read on each stream since that write.
        replays: graphs whose launches use the memory, all on one stream, each with whether it writes. Only the first
            launch of each has its number in `written` or `readers`. The `Replay` has the last one's.
    """

    __slots__ = ("readers", "replays", "writer", "written")

    def __init__(self) -> None:
        self.writer: Stream | _Writers | None = None
        self.written = 0
        self.readers: dict[Stream, int] = {}
        self.replays: tuple[tuple[Replay, bool], ...] = ()

    # -- uses ---------------------------------------------------------------------------------

    def read(self, stream: Stream) -> None:
        """Order the piece that `stream` enqueues next, which reads the memory.

        The caller holds the lock of `stream`.
        """
        self.readers[stream] = stream.sequence + 1  # covers earlier reads there, whose numbers are lower
        if self.replays and self.replays[0][0].stream is not stream:
            self.end_replays()
        if self.writer is not stream:
            for source, sequence in self.writers():
                if not stream.follow(source, sequence) and self.replays:
                    self.end_replays()  # this thread went first: the next launch has to follow that write, too
        if len(self.readers) > _MAX_READERS:
            self.forget_readers()

    def write(self, stream: Stream, *, depend: bool = True) -> None:
        """Order the piece that `stream` enqueues next, which writes the memory.

        Args:
            stream: the stream of the write, whose lock the caller holds.
            depend: whether the write fails if an earlier write failed, since it may leave bytes as that one left them.
        """
        if self.writer is stream:  # no call up to the next line
            self.written = stream.sequence + 1
            self.readers.pop(stream, None)  # after the note: the record always has this stream's reads or its write
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
        goes_first = False
        for source, sequence in writes:
            if source is stream:
                continue
            if stream.follow(source, sequence, depend=depend):
                followed.append((source, sequence))
            else:
                goes_first = True
        for reader, sequence in reads:
            # Only in order (`depend`): a write needs no result of a read, and is right even if the read failed.
            if reader is stream:
                continue
            if not stream.follow(reader, sequence, depend=False):
                goes_first = True
                continue
            # No call up to the next line: a later read is not forgotten with this one.
            if reader in readers and readers[reader] <= sequence:
                del readers[reader]
        if followed:
            with _lock:
                self._forget_writes(followed)
        if goes_first and self.replays:
            self.end_replays()  # the next launch has to follow the uses ahead of which this one goes

    def _note_write(self, stream: Stream) -> None:
        """Note a write beside those that it has yet to follow.

        The caller holds `_lock`, unless it is a finalizer.
        """
        writers = _Writers()
        number, last = stream.sequence + 1, writers.last
        writer: Any = self.writer
        # No call up to the end of the branches: at a call another thread or a finalizer could note a write.
        if writer is None or writer is stream:
            self.written = number
            self.writer = stream
        elif writer.__class__ is _Writers:
            writer.last[stream] = number
        else:
            last[stream] = number
            last[writer] = self.written
            self.writer = writers
        self.readers.pop(stream, None)  # after the note, as in `write`

    def _forget_writes(self, writes: list[tuple[Stream, int]]) -> None:
        """Forget writes that a later write has followed.

        The caller holds `_lock`, unless it is a finalizer.
        """
        writers = self.writer
        if not isinstance(writers, _Writers):
            return  # another write has replaced all of them
        last = writers.last
        for source, sequence in writes:
            if source in last and last[source] <= sequence and len(last) > 1:
                del last[source]
        writer, *others = last  # no call up to the end: at a call a finalizer could note a write
        if not others and self.writer is writers:  # else finalizers have put another object there meanwhile
            self.written = last[writer]
            self.writer = writer

    def write_unseen(self, stream: Stream) -> None:
        """Note that another library may have written, by its work on `stream` so far.

        For finalizers: it takes no lock and does not call the driver. A write that `stream` has not followed stays in
        the record: the library may have written one part of the memory, and that write another part.
        """
        followed = [(source, sequence) for source, sequence in self.writers() if stream.follows(source, sequence)]
        self._note_write(stream)
        stream.sequence += 1  # behind the note, which has the number of the next piece
        self._forget_writes([use for use in followed if use[0] is not stream])
        self.end_replays()

    def forget_readers(self) -> None:
        """Forget reads that are done, so that streams which nothing else holds are freed."""
        for reader in list(self.readers):
            # A thread that submits a read on `reader` holds this lock. So while this thread holds it, no new read is
            # added, which would be forgotten with the old one.
            try:
                # 0 if another thread has removed the read meanwhile: then there is nothing to remove. A stream of
                # `replays` stays: later launches there note nothing, and could not enter it again.
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
        # Read before the records: a thread that ends replays notes their last launches in the records first.
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
        replays = self.replays  # before the records, as in `writers`
        reads = dict(self.readers)
        for replay, write in replays:
            if not write:  # even if it is not in `readers`: a later write on its stream removes it there
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
        """Let later launches of a graph note nothing.

        That ends when another stream uses the memory. The caller holds the lock of `replay.stream`. After this call it
        orders its launch behind the noted uses.
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
        """Have the next launches of graphs order themselves anew.

        Another stream uses the memory, or an operation that was to write it has failed. A caller that uses the memory
        notes its use before or after this call, and follows the noted launches then. Meanwhile another thread may
        launch a graph. It sets `Replay.last` before it reads `Replay.valid`. So either it sees that `valid` is false,
        or its launch is noted here.
        """
        while self.replays:
            replays = self.replays
            for replay, write in replays:
                replay.valid = False
                self._note_last(replay, write)
            if self.replays is replays:  # else another thread has added to them meanwhile
                self.replays = ()

    def _note_last(self, replay: Replay, write: bool) -> None:
        """Note the last launch of a graph in `written` or `readers`.

        There is no call between a test and its assignment. At a call another thread could note a later number, which
        the assignment would overwrite with an earlier one.
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
