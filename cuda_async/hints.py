"""Errors of an operation that is used as if it were its result.

An example is `api.zeros((3,)).shape`, where `.sync()` was forgotten. Type checkers do not see these methods, so that
they refuse the same lines. An operation equals only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

from cuda_async.errors import ArgumentTypeError
from cuda_async.site import format_site

__all__ = ("NotItsResult",)


_RUN_IT = ", being work that yields a result when it is run: run it (.sync(), await) and use that"
_COMPUTED = "takes no part in arithmetic and comparisons"


def _words_for(op: Any) -> str:
    return f"the operation {op.label()} made at {format_site(op.site)}"


def _refusal(what: str, more: str = "") -> Callable[..., NoReturn]:
    """Make a method that raises: the message is `what`, the remedy, and `more`."""

    def refuse(op: Any, *_: object, **__: object) -> NoReturn:
        raise ArgumentTypeError(f"{_words_for(op)} {what}{_RUN_IT}{more}")

    return refuse


class NotItsResult:
    """The methods by which a `DeviceOp` refuses to be used as its result."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # Protocols look for names with an underscore; `site` is needed by the message itself.
            if name.startswith("_") or name == "site":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            remedy = f", or .map(lambda result: result.{name})"
            raise AttributeError(f"{_words_for(self)} has no attribute {name!r}{_RUN_IT}{remedy}", name=name, obj=self)

        def __getitem__(self, item: object) -> NoReturn:
            raise ArgumentTypeError(f"{_words_for(self)} has no items{_RUN_IT}, or .first(), .last() and .unzip()")

        __iter__ = __contains__ = __setitem__ = _refusal("has no items", ", or .first(), .last() and .unzip()")
        __len__ = _refusal("has no length", ", or its .arity where it yields a tuple")
        __bool__ = _refusal("is neither true nor false", "; to ask whether there is one, write `op is not None`")
        __float__ = __int__ = __complex__ = __round__ = __neg__ = __abs__ = __invert__ = _refusal("is no number")
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refusal(_COMPUTED)
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refusal(_COMPUTED)
        __divmod__ = __rdivmod__ = __matmul__ = __rmatmul__ = _refusal(_COMPUTED)
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refusal(_COMPUTED)
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refusal(_COMPUTED)
        __lt__ = __le__ = __gt__ = __ge__ = _refusal(_COMPUTED)
        __array__ = _refusal("is no array", ": op.to_numpy().sync()")
        __array_ufunc__ = __array_function__ = _refusal("is no array", ": op.to_numpy().sync()")
        __reduce_ex__ = _refusal("is neither pickled nor copied", ", or build it twice")

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Number) or (hasattr(other, "__array__") and not isinstance(other, NotItsResult)):
                raise ArgumentTypeError(f"{_words_for(self)} {_COMPUTED}{_RUN_IT}")
            return NotImplemented  # Python then compares identities

        __hash__ = object.__hash__
