"""`Pending`: the place of a value that the host can read once a run completes.

An operation that brings data to the host yields one. Functions given to `then`, `map` and `inspect` get the `Pending`
itself, and reading it there raises `NotReadyError`. `.sync()` and `await` return the value in its place.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from cuda_async.errors import NotReadyError
from cuda_async.site import Site, format_site, user_site

__all__ = ("Pending", "resolve")

T = TypeVar("T")


class Pending(Generic[T]):
    """A value to come.

    Args:
        what: the value's name in errors.
        site: the `site` of the operation that brings the value, for errors; by default the caller's line.
    """

    __slots__ = ("_site", "_value", "_what", "ready")

    def __init__(self, what: str, site: Site | None = None) -> None:
        self._what = what
        self._site = user_site() if site is None else site
        self._value: T | None = None
        self.ready = False

    def set(self, value: T) -> None:
        """Set the value. For the operation that made this, in its `on_complete`."""
        self._value = value
        self.ready = True

    @property
    def value(self) -> T:
        """The value.

        Raises:
            NotReadyError: the run has not completed.
        """
        if not self.ready:
            self._refuse()
        return cast("T", self._value)

    def _refuse(self) -> None:
        raise NotReadyError(
            f"too early to read {self._what}, requested at {format_site(self._site)}: functions given to then(), map() "
            "and inspect() are called at submission, with handles, when the device has computed nothing yet. "
            "Read after sync() or await."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols are looked for before the value is there, by `copy` or NumPy
            raise AttributeError(name)
        if not self.ready:
            self._refuse()
        return getattr(self._value, name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.array(self.value, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(cast("Any", self.value))

    def __getitem__(self, index: object) -> Any:
        return cast("Any", self.value)[index]

    def __iter__(self) -> Any:
        return iter(cast("Any", self.value))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"<Pending {self._what}>"


_LOOKED_INTO = frozenset((Pending, tuple, list, dict))


def resolve(result: Any) -> Any:
    """Return `result` with values in place of each `Pending`.

    Tuples, lists and values of dicts are searched. A container without a `Pending` stays the object that it is.
    """
    return _resolve(result, set())


def _resolve(result: Any, outer: set[int]) -> Any:
    """As `resolve`, within containers whose `id`s are in `outer`."""
    kind = cast("Any", type(result))
    if kind is Pending:
        return result.value
    if kind is list or isinstance(result, tuple):
        items = cast("tuple[Any, ...] | list[Any]", result)
        for item in items:
            if type(item) in _LOOKED_INTO or isinstance(item, tuple):
                break
        else:
            return items
        if id(items) in outer:  # it contains itself: it stays as it is there
            return items
        resolved = [_resolve(item, {*outer, id(items)}) for item in items]
        if all(new is old for new, old in zip(resolved, items, strict=True)):
            return items
        make: Any = getattr(kind, "_make", kind)  # a named tuple takes its items one by one
        return make(resolved)
    if kind is dict:
        entries = cast("dict[Any, Any]", result)
        if id(entries) in outer:
            return entries
        values = {key: _resolve(item, {*outer, id(entries)}) for key, item in entries.items()}
        return entries if all(values[key] is entries[key] for key in entries) else values
    return result
