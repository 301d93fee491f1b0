"""No operation is run inside the submission of another.

It would wait for work that is not enqueued yet.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from cuda_async.core.lease import current_holder
from cuda_async.errors import ReentrancyError

__all__ = ("OneByOne", "allow_nested", "refuse_nested")


class OneByOne:
    """Marks a run whose operations the user records one by one: that of a graph scope."""

    __slots__ = ()


class _Nesting(threading.local):
    inside: object | None = None


_nesting = _Nesting()


@contextmanager
def allow_nested() -> Generator[None]:
    """Allow operations to be run inside the submission that goes on.

    `unsafe.then_unchecked` needs it.
    """
    before, _nesting.inside = _nesting.inside, current_holder()
    try:
        yield
    finally:
        _nesting.inside = before


def refuse_nested(what: str) -> None:
    """Refuse to run anything inside a submission of this thread.

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
