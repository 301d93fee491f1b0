"""Refusal of operations that are run inside the submission of another.

Such a run would wait for work that is not enqueued yet.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from cuda_async.core.lease import current_holder
from cuda_async.errors import ReentrancyError

__all__ = ("OneByOne", "allow_nested", "is_closure", "refuse_nested")


class OneByOne:
    """Marks the run of a graph scope, whose operations the user records one by one."""

    __slots__ = ()


class _Nesting(threading.local):
    inside: object | None = None
    """The run inside whose submission this thread may run others; None for no run."""


_nesting = _Nesting()


@contextmanager
def allow_nested() -> Generator[None]:
    """Let this thread run operations inside the submission that it is in.

    For `unsafe.then_unchecked`.
    """
    before, _nesting.inside = _nesting.inside, current_holder()
    try:
        yield
    finally:
        _nesting.inside = before


def is_closure() -> bool:
    """Whether this thread runs a function given to `then()`, `map()` or `inspect()`."""
    holder = current_holder()
    return holder is not None and holder is not _nesting.inside and not isinstance(holder, OneByOne)


def refuse_nested(what: str) -> None:
    """Refuse a call that runs an operation, where this thread submits another.

    Args:
        what: the call, for the error, such as `sync()`.

    Raises:
        ReentrancyError: this thread is submitting an operation.
    """
    holder = current_holder()
    if holder is not None and holder is not _nesting.inside:
        if isinstance(holder, OneByOne):
            raise ReentrancyError(
                f"{what} was called inside a graph scope, which records operations and runs none: "
                "write scope.record(operation), and run others before it or behind it"
            )
        raise ReentrancyError(
            f"{what} was called inside the submission of another operation (in a function given to then(), map() "
            "or inspect(), or in execute()); waiting there would wait for work that is not enqueued yet. "
            "Return the operation from then() instead, or use cuda_async.unsafe.then_unchecked()."
        )
