"""`Pending`: the place of a value that the host can read once a run completes.

An operation that brings data to the host yields one. Functions given to `then`, `map` and `inspect` get the `Pending`
itself, and reading it there raises `NotReadyError`. `.sync()` and `await` return the value in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    Example:
        >>> from cuda_async import Device, Pending, value, with_context
        >>> def answer(context):
        ...     pending = Pending("the answer")
        ...     context.on_complete(lambda: pending.set(42))
        ...     return value(pending).inspect(print)
        >>> with_context(answer).sync_on(Device.host().new_stream())
        <Pending the answer>
        42
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


_SEARCHED = frozenset((Pending, tuple, list, dict))
"""Types of items for which a tuple or list is searched further, besides subclasses of tuple."""


def resolve(result: Any) -> Any:
    """Return `result` with values in place of each `Pending`.

    Tuples, lists and values of dicts are searched, however deeply they nest. A container without a `Pending` stays the
    object that it is, and so does a container where it stands within itself.
    """
    kind = cast("Any", type(result))
    if kind is Pending:
        return result.value
    if kind is list or isinstance(result, tuple):
        for item in cast("tuple[Any, ...] | list[Any]", result):  # most results have none of these
            if type(item) in _SEARCHED or isinstance(item, tuple):
                break
        else:
            return cast("Any", result)
    elif kind is not dict:
        return result
    # By the container's `id`: the container, its items, and its replacement. The replacement is the container itself
    # until all items within it are resolved, and stays so where a container holds itself.
    containers: dict[int, tuple[Any, list[Any], Any]] = {}
    resolved: set[int] = set()
    stack: list[Any] = [result]
    while stack:
        container = stack[-1]
        if id(container) not in containers:
            items = [*_items(container)]
            containers[id(container)] = (container, items, container)
            stack += [item for item in items if _is_searched(item) and id(item) not in containers]
            continue
        stack.pop()
        if id(container) not in resolved:  # else it was in two containers, and on the stack twice
            resolved.add(id(container))
            items = containers[id(container)][1]
            containers[id(container)] = (container, items, _rebuilt(container, items, containers))
    return containers[id(cast("Any", result))][2]


def _is_searched(item: Any) -> bool:
    """Whether an item is a container in which a `Pending` is looked for.

    Subclasses of tuple are, such as named tuples: `_make` builds another one. Other subclasses of list and dict may
    have state of their own, which a copy would lose.
    """
    return type(item) in (list, dict) or isinstance(item, tuple)


def _items(container: Any) -> Iterable[Any]:
    return cast("dict[Any, Any]", container).values() if type(container) is dict else container


def _rebuilt(container: Any, items: list[Any], containers: dict[int, tuple[Any, list[Any], Any]]) -> Any:
    """A container with values in place of each `Pending`; maybe itself."""
    values: list[Any] = []
    for item in items:
        if type(item) is Pending:
            values.append(cast("Any", item).value)
        else:
            values.append(containers[id(item)][2] if _is_searched(item) else item)
    if all(value is item for value, item in zip(values, items, strict=True)):
        return container
    kind = cast("Any", type(container))
    if kind is dict:
        return dict(zip(container, values, strict=True))
    make: Any = getattr(kind, "_make", kind)  # a named tuple takes its items one by one
    return make(values)
