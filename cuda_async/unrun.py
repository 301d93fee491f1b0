"""What an operation says when it is taken for what it yields: `api.zeros((3,)).shape`, where `.sync()` was forgotten.

Type checkers see none of this, so that they refuse the same lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from cuda_async.site import format_site

__all__ = ("NotItsResult",)


class NotItsResult:
    """The part of `DeviceOp` that refuses to be its result, and says how to get at that."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name == "site":  # what protocols look for, and what the words need
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            remedy = f", or .map(lambda result: result.{name})"
            raise AttributeError(f"{_words_for(self)} has no attribute {name!r}{_RUN_IT}{remedy}", name=name, obj=self)

        def __getitem__(self, item: object) -> NoReturn:
            raise TypeError(f"{_words_for(self)} has no items{_RUN_IT}, or .first(), .last() and .unzip()")

        def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
            raise TypeError(f"{_words_for(self)} is no array{_RUN_IT}: op.to_numpy().sync()")


_RUN_IT = ", being work that yields a result when it is run: run it (.sync(), await) and use that"


def _words_for(op: Any) -> str:
    return f"the operation {op.label()} made at {format_site(op.site)}"
