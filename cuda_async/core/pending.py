"""`Pending`: the place of a value that the host can read once a run completes.

An operation that brings data to the host yields one. Inside `then`, `map` and `inspect` it is what
it is: a handle, and reading it raises `NotReadyError`. The run that executed it puts the value in
its place in what `.sync()` and `await` return.
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
        what: its name in the error.
        site: where it was asked for, for the error: the `site` of the operation.
    """

    __slots__ = ("_site", "_value", "_what", "ready")

    def __init__(self, what: str, site: Site | None = None) -> None:
        self._what = what
        self._site = user_site() if site is None else site
        self._value: T | None = None
        self.ready = False

    def set(self, value: T) -> None:
        """Put the value in; for the `on_complete` of the operation that made this."""
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
        if name.startswith("__"):
            raise AttributeError(name)
        if not self.ready:
            self._refuse()
        return getattr(self._value, name)

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        self._refuse()

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
    """Put values in place of each `Pending` in `result`, through its containers.

    Tuples, lists and dicts.
    """
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
        resolved = [resolve(item) for item in items]
        if all(new is old for new, old in zip(resolved, items, strict=True)):
            return items  # the very object: you get back what you put in
        make: Any = getattr(kind, "_make", kind)
        return make(resolved)
    if kind is dict:
        held = cast("dict[Any, Any]", result)
        values = {key: resolve(item) for key, item in held.items()}
        return held if all(values[key] is held[key] for key in held) else values
    return result
