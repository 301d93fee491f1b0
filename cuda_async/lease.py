"""Leases: who holds which bytes of which storage, and the refusal of a conflicting use.

Building an operation lends it its arguments: reads share, a write is exclusive, per storage and
byte range. A lease ends when the run that executed the operation has finished or failed, when the
operation is discarded, and when it is collected unrun. Within one run (in a `then` closure, say)
the run's own leases do not conflict: its work is ordered on one stream. Within one operation they
do, run or not.

This is the check that Rust's borrow checker makes for the upstream system, made when an operation
is built. It is not what orders work on streams: see `storage.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from cuda_async.errors import OwnershipError
from cuda_async.site import Site, format_site

__all__ = ("Holder", "Lease", "Lendable", "Use", "current_holder", "lend", "set_current_holder")


class Holder(Protocol):
    """A run: what holds the leases of the operations that it executed."""

    @property
    def allies(self) -> set[object]:
        """Whose leases do not conflict with this run's work, since it is ordered behind theirs."""
        ...


class Lendable(Protocol):
    """What a lease can be on: a storage."""

    @property
    def leases(self) -> list[Lease]: ...

    @property
    def nbytes(self) -> int: ...


class Use(NamedTuple):
    """One argument of an operation: bytes [start, stop) of a storage, read or written.

    `stop` None means to its end. `argument` is the name that an error shows.
    """

    argument: str
    storage: Lendable
    write: bool
    start: int = 0
    stop: int | None = None


class Lease:
    """Bytes [start, stop) of a storage, held by an operation (`owner`), and by its run once it runs."""

    __slots__ = ("active", "argument", "owner", "run", "site", "start", "stop", "storage", "write")

    def __init__(self, storage: Lendable, use: tuple[str, bool, int, int], owner: object, site: Site) -> None:
        self.storage = storage
        self.argument, self.write, self.start, self.stop = use
        self.owner = owner
        self.site = site
        self.run: object | None = None
        self.active = True

    def give_back(self) -> None:
        """End the lease. Safe in a finalizer: takes no lock; the storage forgets it at its next lending."""
        self.active = False

    def __repr__(self) -> str:
        kind = "write" if self.write else "read"
        state = "" if self.active else ", given back"
        return f"<Lease {self.argument!r} {kind} [{self.start}, {self.stop}) of {format_site(self.site)}{state}>"


_lock = threading.Lock()


class _Holder(threading.local):
    run: Holder | None = None


_holder = _Holder()


def current_holder() -> Holder | None:
    """The run that this thread is submitting, if any."""
    return _holder.run


def set_current_holder(run: Holder | None) -> Holder | None:
    """Say which run this thread is submitting; return what it was before."""
    before = _holder.run
    _holder.run = run
    return before


def lend(uses: Iterable[Use], owner: object, site: Site) -> list[Lease]:
    """Lend all of `uses` to `owner`, or nothing.

    Args:
        uses: the arguments.
        owner: stands for the operation (not the operation itself, which a lease must not keep alive); two of
            its own uses conflict like anybody's.
        site: the user's line, named in the error of whoever conflicts later.

    Raises:
        OwnershipError: a use overlaps one that is held and one of the two writes.
    """
    taken: list[Lease] = []
    run = _holder.run
    with _lock:
        for use in uses:
            storage = use.storage
            stop = storage.nbytes if use.stop is None else use.stop
            held = storage.leases
            if held:
                held[:] = [lease for lease in held if lease.active]
                conflict = _conflict(held, use.write, use.start, stop, owner, run)
                if conflict is not None:
                    for lease in taken:
                        lease.active = False
                    raise _refusal(use, conflict, same_operation=conflict.owner is owner)
            lease = Lease(storage, (use.argument, use.write, use.start, stop), owner, site)
            held.append(lease)
            taken.append(lease)
    return taken


def _conflict(
    held: Sequence[Lease], write: bool, start: int, stop: int, owner: object, run: Holder | None
) -> Lease | None:
    for lease in held:
        if not (write or lease.write) or start >= lease.stop or lease.start >= stop:
            continue
        if (
            run is not None
            and lease.owner is not owner
            and (lease.run is run or (lease.run is not None and lease.run in run.allies))
        ):
            continue
        return lease
    return None


def _refusal(use: Use, lease: Lease, *, same_operation: bool) -> OwnershipError:
    wanted = "written" if use.write else "read"
    holds = "writes" if lease.write else "reads"
    if same_operation:
        return OwnershipError(
            f"argument {use.argument!r} would be {wanted}, but the same operation {holds} the same memory "
            f"as argument {lease.argument!r}. Pass a copy (dup()) for one of the two."
        )
    return OwnershipError(
        f"argument {use.argument!r} would be {wanted}, but the operation made at {format_site(lease.site)} "
        f"{holds} the same memory as its argument {lease.argument!r} and has not finished. "
        "Wait for that operation (await it, or sync()), discard() it, or pass a copy (dup())."
    )
