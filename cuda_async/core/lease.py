"""Leases: which operation holds which bytes of a storage; refusals of conflicts.

Building an operation lends it its arguments: reads share, a write is exclusive, per storage and
byte range. A lease ends when the run that executed the operation has finished or failed, when the
operation is discarded, and when it is collected unrun. Leases of one run (of operations in a `then`
closure, say) do not conflict: its work is ordered on one stream. Two uses of one operation do conflict.

The upstream system leaves this check to Rust's borrow checker. Here it is made when an operation is built. It does not
order work on streams; `storage.py` does that.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from cuda_async.errors import OwnershipError
from cuda_async.locks import new_lock
from cuda_async.site import Place, format_site, kept_by_notebook

__all__ = (
    "ExportLease",
    "GuardLease",
    "Holder",
    "Lease",
    "LeaseList",
    "Lendable",
    "PlainUse",
    "Settling",
    "Use",
    "check_guards",
    "contested",
    "current_holder",
    "end",
    "enter",
    "holders",
    "is_lent_elsewhere",
    "lend",
    "link",
    "refuse_conflicts",
    "settle",
    "words_of",
)


class Holder(Protocol):
    """A run: it holds the leases of the operations that it executed."""

    @property
    def allies(self) -> set[object]:
        """Holders whose leases do not conflict: this run's work is ordered behind theirs."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A run that can be asked whether the device is done with it."""

    def settle(self) -> bool:
        """Complete the run if the device has finished it. Whether it is done."""
        ...


class Lendable(Protocol):
    """Memory that can be lent: a storage."""

    @property
    def leases(self) -> list[Lease]: ...

    @property
    def nbytes(self) -> int: ...


class Use(NamedTuple):
    """One argument of an operation: bytes [start, stop) of a storage, read or written.

    `stop` None means to its end. `argument` is the name that an error shows.

    Example:
        >>> from cuda_async import Device, Storage, Use
        >>> storage = Storage.allocate(Device.host().new_stream(), 256)
        >>> use = Use("x", storage, write=True, start=64)  # all bytes but the first 64, to be written
        >>> use.start, use.stop
        (64, None)
    """

    argument: str
    storage: Lendable
    write: bool
    start: int = 0
    stop: int | None = None


PlainUse = tuple[str, Lendable, bool, int, "int | None"]
"""A `Use` as a plain tuple, which costs less to make."""


class _SortedUses(tuple[Use | PlainUse, ...]):
    """Uses of one lease, with an index by their storages' lists of leases.

    Attributes:
        by_list: the positions of uses, and the uses, by the `id` of their storage's list.
    """

    by_list: dict[int, list[tuple[int, Use | PlainUse]]]

    def __new__(cls, uses: Sequence[Use | PlainUse]) -> Self:
        self = super().__new__(cls, uses)
        self.by_list = {}
        for position, use in enumerate(self):
            self.by_list.setdefault(id(use[1].leases), []).append((position, use))
        return self


class Lease:
    """The bytes of storages that an operation holds until its run is over.

    Attributes:
        uses: the operation's arguments.
        owner: a token of the operation, compared by identity.
        site: the line that made the operation.
        run: the operation's run; None before it runs.
        active: whether the lease has not ended.
        guarded: the arguments that conflict with operands of a graph, each with the graph's lease.
    """

    __slots__ = ("active", "guarded", "owner", "run", "site", "uses")

    exported: ClassVar[bool] = False
    """Whether another library holds it, over DLPack: there is no operation to wait for."""

    guards: ClassVar[bool] = False
    """Whether a graph holds it: a conflicting use may be built, for `graph.update`, but not run elsewhere."""

    def __init__(self, uses: Sequence[Use | PlainUse], owner: object, site: Place) -> None:
        self.uses = uses
        self.owner = owner
        self.site = site
        self.run: object | None = None
        self.active = True
        self.guarded: tuple[tuple[str, Lease], ...] = ()

    def give_back(self) -> None:
        """End the lease. For finalizers, too: it takes no lock.

        The storages remove it from their lists when they are next lent.
        """
        self.active = False
        self.run = None  # until then the lists must keep neither the run alive,
        self.guarded = self.uses = ()  # nor, where several storages share a list, the other storages

    def __repr__(self) -> str:
        parts = [f"{use[0]!r} {'write' if use[2] else 'read'} [{use[3]}, {use[4]})" for use in self.uses]
        state = "" if self.active else ", given back"
        return f"<{type(self).__name__} {', '.join(parts)} of {format_site(self.site)}{state}>"


FEW_USES = 8
"""Uses of a lease up to which each is compared. Of more, only those of the same list are; a launch seldom has more."""


class LeaseList(list[Lease]):
    """The leases of imported memory, which may overlap the memory of other lists.

    `foreign.py` makes these lists.
    """

    __slots__ = ("__weakref__",)


class _Neighbours(Lease):
    """An entry of a list that refers to other lists whose memory overlaps.

    It is no operation's lease. With it a list is never empty, so each lease that is entered there is compared.
    """

    __slots__ = ("lists",)

    def __init__(self) -> None:
        super().__init__((), None, ("", 0))
        self.lists: list[weakref.ref[LeaseList]] = []


def link(leases: LeaseList, others: LeaseList) -> None:
    """Have leases of either list compared with those of the other.

    The memory of the two overlaps. Called before anything is entered in `leases`. So each lease of `leases` is compared
    with the leases that `others` has by now, and a later lease of `others` is compared with those of `leases`.
    """
    for home, neighbour in ((leases, others), (others, leases)):
        entry = next((lease for lease in home if isinstance(lease, _Neighbours)), None)
        if entry is None:
            entry = _Neighbours()
            home.append(entry)
        for ended in [reference for reference in entry.lists if reference() is None]:
            entry.lists.remove(ended)
        entry.lists.append(weakref.ref(neighbour))


class ExportLease(Lease):
    """The lease of a tensor that was given to another library."""

    __slots__ = ()

    exported = True


class GuardLease(Lease):
    """The lease of a graph on its operands."""

    __slots__ = ()

    guards = True


_lock = new_lock()


holders: dict[int, Holder] = {}
"""The run that each thread is submitting, by the thread's number; mostly empty. A function that enters a run removes it
in a `finally`. The removal is the first call there: at an earlier call a signal could come, and leave the run there for
ever."""


def current_holder() -> Holder | None:
    """The run that this thread is submitting, if any."""
    return holders.get(threading.get_ident()) if holders else None


def _after_fork() -> None:
    """Forget the submissions of other threads.

    The child has none of these threads, and gives their numbers to new ones.
    """
    mine = current_holder()
    holders.clear()
    if mine is not None:
        holders[threading.get_ident()] = mine


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


def lend(
    uses: Sequence[Use | PlainUse],
    owner: object,
    site: Place,
    *,
    allies: Set[object] = frozenset(),
    kind: type[Lease] = Lease,
) -> Lease:
    """Lend all of `uses` to `owner`, or nothing.

    Args:
        uses: the arguments.
        owner: a token of the operation (not the operation, which a lease must not keep alive). Two uses of one
            owner may conflict, too.
        site: the user's line, named in the error of a later conflict.
        allies: holders of leases that do not conflict, beside the run that this thread submits.
        kind: the class of the lease: an operation's, an export's or a graph's.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    lease = kind(uses, owner, site)
    enter(lease, allies)
    return lease


def enter(lease: Lease, allies: Set[object] = frozenset()) -> None:
    """Lend the uses of a lease.

    The caller must have stored the lease where it is given back: Ctrl-C may come when half of it is lent.

    Raises:
        OwnershipError: as `lend`.
    """
    if not _enter(lease) or (holders and current_holder() is not None):
        settle(lease, allies)


def settle(lease: Lease, allies: Set[object] = frozenset()) -> None:
    """Check a lease that was entered and is not alone on its storages.

    Where it conflicts, it is removed, and this raises as `lend` does.

    Called by `enter`, and by code that enters leases itself, for speed. Such code appends the lease to the `leases` of
    each storage. It calls this if the lease is not alone there, or if this thread submits a run.
    """
    run = current_holder()
    if run is not None:
        allies = {run, *run.allies, *allies}
    collected = False
    while True:
        with _lock:
            refused = _find_conflict(lease, allies)
            if refused is None:
                break
            _remove(lease)
        use, conflict, held = refused
        holder = conflict.run
        if holder is None and not collected and conflict.owner is not lease.owner and not conflict.exported:
            # The operation may have been dropped in a cycle, which only a collection ends: an exception's frames, which
            # a task holds, hold the operation and the exception itself.
            collected = True
            gc.collect()
            _enter(lease)
            continue
        # The device may be done with the holder's run, although no thread has noticed yet.
        if not isinstance(holder, Settling) or not holder.settle():
            raise _refusal(use, conflict, held, same_operation=conflict.owner is lease.owner)
        if conflict.active:  # its run is over: Ctrl-C came between the run's end and the lease's
            end((conflict,))
        _enter(lease)
    if run is not None:
        try:
            check_guards((lease,), run)
        except OwnershipError:
            end((lease,))
            raise


def _enter(lease: Lease) -> bool:
    """Enter a lease on its storages. Whether it is alone there, so has no conflict.

    A lease is entered before it is compared with others: of two threads that enter at once, at least one then sees the
    other. No lock is needed, since a list's methods are atomic.
    """
    alone = True
    for use in lease.uses:
        held = use[1].leases
        held.append(lease)
        if len(held) > 1:
            alone = False
    return alone


def _find_conflict(lease: Lease, allies: Set[object]) -> tuple[Use, Lease, Use] | None:
    """The first conflict of an entered lease: its use, the other lease, its use.

    Called under the lock. So of two leases that conflict with each other, only the first that is compared is removed.
    """
    lease.guarded = ()
    for position, use in enumerate(lease.uses):
        conflict = _conflict(lease, position, use[1].leases, allies)
        if conflict is not None:
            return (Use(*use), *conflict)
    return None


def _remove(lease: Lease) -> None:
    """Remove an active lease from its storages; it may be entered again."""
    for use in lease.uses:
        with suppress(ValueError):  # gone already, where another thread gave the lease back meanwhile
            use[1].leases.remove(lease)


def _uses_in(lease: Lease, held: list[Lease], before: int) -> Sequence[Use | PlainUse]:
    """The uses of a lease before a position whose storages have the list `held`.

    For leases of many uses, which are sorted once. A graph has hundreds of operands, and each later operation on one of
    them is compared with the graph's lease.
    """
    uses = lease.uses
    if not isinstance(uses, _SortedUses):
        lease.uses = uses = _SortedUses(uses)
    return [use for position, use in uses.by_list.get(id(held), ()) if position < before]


def _conflict(
    lease: Lease, position: int, held: list[Lease], allies: Set[object], *, neighbours: bool = True
) -> tuple[Lease, Use] | None:
    """The lease that conflicts with a lease's use at `position`, and its use.

    The use is compared with other leases, and with the lease's own uses before it. Conflicts with graphs are added to
    `lease.guarded`.

    Args:
        lease: the lease.
        position: the position of its use.
        held: the list of leases to compare with.
        allies: holders of leases that do not conflict.
        neighbours: whether to compare with lists of overlapping memory, too.
    """
    use = lease.uses[position]
    write = use[2]
    for other in reversed(held):  # backwards: where another thread removes a lease meanwhile, none is skipped
        if not other.active:
            with suppress(ValueError):
                held.remove(other)  # `give_back` ended it, and leaves it in the list
            continue
        if other.owner is not lease.owner and other.run is not None and other.run in allies:
            continue
        held_uses: Sequence[Use | PlainUse] = other.uses
        if not held_uses and neighbours and isinstance(other, _Neighbours):
            for leases in filter(None, [reference() for reference in tuple(other.lists)]):
                conflict = _conflict(lease, position, leases, allies, neighbours=False)
                if conflict is not None:
                    return conflict
        elif len(held_uses) > FEW_USES:
            held_uses = _uses_in(other, held, position if other is lease else len(held_uses))
        elif other is lease:
            held_uses = held_uses[:position]
        for held_use in held_uses:
            if (write or held_use[2]) and held_use[1].leases is held and _overlap(use, held_use):
                if not other.guards:
                    return other, Use(*held_use)
                lease.guarded = (*lease.guarded, (use[0], other))
                break
    return None


def _overlap(use: Use | PlainUse, other: Use | PlainUse) -> bool:
    return max(use[3], other[3]) < min(_stop(use), _stop(other))


def _stop(use: Use | PlainUse) -> int:
    stop = use[4]
    return use[1].nbytes if stop is None else stop


def words_of(uses: Sequence[Use | PlainUse]) -> str:
    """The uses in words, for drawings: `writes y, reads x`."""
    named = {write: [use[0] for use in uses if use[2] is write] for write in (True, False)}
    words = {True: "writes", False: "reads"}
    return ", ".join(f"{words[write]} {', '.join(names)}" for write, names in named.items() if names)


def end(leases: Iterable[Lease]) -> None:
    """End leases and remove them from their storages: the next lending is quick.

    Not for finalizers, which may run amid this module's own code: they call `give_back` of each lease.
    """
    for lease in leases:
        for use in lease.uses:
            try:
                use[1].leases.remove(lease)
            except ValueError:
                continue  # it was given back before
        lease.active = False
        lease.run = None
        lease.guarded = lease.uses = ()


def contested(held: Sequence[Lease], write: bool) -> bool:
    """Whether leases of a list may conflict with work that holds no lease itself.

    Leases of graphs conflict with writes only.
    """
    return any(write or not lease.guards for lease in held)


def refuse_conflicts(uses: Sequence[Use], owner: object, site: Place) -> None:
    """Raise as `lend` and a run would, but lend nothing.

    For work that is ordered by streams alone, and holds no lease while it runs.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes, or is a write of a graph's operand.
    """
    lease = Lease(uses, owner, site)
    try:
        enter(lease)
        if lease.guarded:
            check_guards((lease,), current_holder())
    finally:
        end((lease,))


def is_lent_elsewhere(leases: Sequence[Lease]) -> bool:
    """Whether any of these leases is not of the run that this thread submits.

    Leases that have ended count, too.
    """
    run = current_holder() if leases else None
    for lease in reversed(leases):  # noqa: SIM110 - backwards, as in `_conflict`; `any` would make a generator
        if run is None or lease.run is not run:
            return True
    return False


def check_guards(leases: Iterable[Lease], run: Holder | None) -> None:
    """Refuse to run a writer of a graph's operand, except by `graph.update`.

    Args:
        leases: the operation's leases.
        run: its run; None for an operation that runs without one.

    Raises:
        OwnershipError: the graph is not an ally of the run.
    """
    for lease in leases:
        for argument, guard in lease.guarded:
            if guard.active and (run is None or guard.run not in run.allies):
                raise OwnershipError(
                    f"argument {argument!r} would be written, but the graph captured at "
                    f"{format_site(guard.site)} uses the same memory at each launch. Pass the operation to "
                    "graph.update(), or close() the graph."
                )


def _refusal(use: Use, lease: Lease, held: Use, *, same_operation: bool) -> OwnershipError:
    verb = "written" if use.write else "read"
    holds = "writes" if held.write else "reads"
    if same_operation:
        return OwnershipError(
            f"argument {use.argument!r} would be {verb}, but the same operation {holds} the same memory "
            f"as argument {held.argument!r}. Pass a copy (dup()) for one of the two."
        )
    if lease.exported:
        return OwnershipError(
            f"argument {use.argument!r} would be {verb}, but the memory was given to another library at "
            f"{format_site(lease.site)}, which {holds} it. Delete what was made of it there first, or pass a copy "
            "(dup())."
        )
    remedy = "Run it or wait for it (sync(), await), discard() it if it has not run, or pass a copy (dup())."
    if isinstance(lease.run, Settling):  # at work: perhaps nobody has it any more, after Ctrl-C or a cancelled `await`
        remedy = (
            "It is at work: await its future, if there is one, or wait for its stream (stream.synchronize(), or "
            "tensor.device.synchronize() for all streams of the default policy), or pass a copy (dup())."
        )
    return OwnershipError(
        f"argument {use.argument!r} would be {verb}, but the operation made at {format_site(lease.site)} "
        f"{holds} the same memory as its argument {held.argument!r} and has not finished. {remedy}"
        f"{kept_by_notebook(lease.site)}"
    )
