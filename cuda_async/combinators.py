"""Operations made of operations: value, then, map, inspect, zip, first, last.

Each runs its parts on one stream, its own, from left to right, and stops at the first error. Users' functions are
called at submission, with handles. Operations with several consumers are in `shared.py`.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar, cast, overload

from cuda_async.core.context import ExecutionContext
from cuda_async.core.operation import Operation
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream
from cuda_async.errors import ArgumentTypeError, as_text
from cuda_async.fastpath import enqueue_chain
from cuda_async.op import DeviceOp, into_op
from cuda_async.site import site_of

__all__ = (
    "Forwarded", "Inspect", "Map", "Select", "Then", "Titled", "Value", "Zip",
    "empty", "value", "with_context", "zip",
)  # fmt: skip

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


def _name_of(function: Callable[..., object]) -> str:
    """A function's name in drawings; of a lambda, its line."""
    name: str = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"lambda of line {code.co_firstlineno}" if name == "<lambda>" and code is not None else name


class Value(DeviceOp[T]):
    """Yields a value; enqueues nothing."""

    __slots__ = ("_value",)

    graph_node = True

    def __init__(self, item: T) -> None:
        super().__init__()
        self._value = item

    def detail(self) -> str:
        return reprlib.repr(self._value)

    def execute(self, context: ExecutionContext) -> T:
        return self._value


def value(item: T) -> DeviceOp[T]:
    """An operation that yields `item` and enqueues nothing.

    >>> value(7).sync()
    7
    """
    return Value(item)


class _Step(DeviceOp[U]):
    """An operation that does something with the result of another."""

    __slots__ = ("failed", "parent")

    is_step = True

    plain: ClassVar[bool] = False
    """Whether the step calls no function that the user wrote."""

    def __init__(self, parent: DeviceOp[Any], frames: int = 3) -> None:
        # Three frames up from this one, mostly: `__init__` of the subclass, the method of `DeviceOp`, the user's line.
        place = site_of(sys._getframe(frames))  # pyright: ignore[reportPrivateUsage]
        parent.claim(place)  # first: if it raises, no operation exists yet that would warn of not having run
        self.parent = parent
        super().__init__(place)

    @property
    def graph_node(self) -> bool:  # type: ignore[override]  # a property for an attribute
        """Whether a graph may record the parent: a step enqueues nothing of its own."""
        op: DeviceOp[Any] = self.parent
        while isinstance(op, _Step) and not isinstance(op, Then):  # a loop, since chains may be long
            op = op.parent
        return op.graph_node

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return (self.parent,)

    def unfold(self, context: ExecutionContext) -> Generator[DeviceOp[Any], Any, U]:
        __tracebackhide__ = True  # notebooks show the user's own lines
        # A chain of ten thousand steps is a loop here, not ten thousand frames.
        steps: list[_Step[Any]] = [self]
        parent = self.parent
        while isinstance(parent, _Step):
            parent.begin(composed=True)  # the context begins what is yielded to it; a step has no leases to adopt
            steps.append(parent)
            parent = parent.parent
        result: Any = yield parent
        for step in reversed(steps):
            try:
                result = step.transform(result)
                if isinstance(step, Then):
                    result = yield cast("DeviceOp[Any]", result)
            except BaseException:
                if step is not self:  # the context adds `self`
                    context.run.trail.append(step)
                raise
        return result

    def execute(self, context: ExecutionContext) -> U:
        __tracebackhide__ = True
        return context.drive(self)

    def fast_path(self, *, waited: bool) -> Callable[[Stream], U] | None:
        if not self.plain:
            return None
        steps: list[_Step[Any]] = [self]
        base: Any = self.parent
        while base.is_step:  # quicker than `isinstance`, which asks an ABC
            if not base.plain:
                return None
            steps.append(base)
            base = base.parent
        steps.reverse()
        fast = base.fast_steps(steps, waited=waited)
        return None if fast is None else partial(enqueue_chain, steps, base, *fast)

    def failed_part(self) -> Operation[Any] | None:
        return getattr(self, "failed", None)  # set where enqueueing failed, and only there

    def written(self) -> Iterable[Storage]:
        op: Any = self.parent
        while op.is_step:
            op = op.parent
        return op.written()

    def transform(self, result: Any) -> Any:
        """This step's result from its parent's; for `Then`, the operation that yields it."""
        raise NotImplementedError


class _Applied(_Step[U]):
    """A step that calls a function with the result."""

    __slots__ = ("_function",)

    def __init__(self, parent: DeviceOp[T], function: Callable[[T], object]) -> None:
        if not callable(function):
            raise ArgumentTypeError(
                f"{self.label()}: expected a function of the result, got {type(function).__name__}; write "
                f".{self.label()}(lambda result: ...)"
            )
        super().__init__(parent)
        self._function: Callable[[Any], Any] = function

    def detail(self) -> str:
        return _name_of(self._function)


class Then(_Applied[U]):
    """Runs the operation that a function makes of the parent's result."""

    __slots__ = ()

    @property
    def graph_node(self) -> bool:
        """False: what the function returns is not known before it is called."""
        return False

    def transform(self, result: Any) -> DeviceOp[U]:
        """The operation that the function returns."""
        __tracebackhide__ = True
        return _checked(self._function(result), "then")


def _checked(op: object, method: str) -> DeviceOp[Any]:
    if isinstance(op, DeviceOp):
        return cast("DeviceOp[Any]", op)
    if inspect.iscoroutine(op):
        op.close()  # else Python warns that it was never awaited
        raise ArgumentTypeError(
            f"{method}: the function returned a coroutine; it is called while the operation is submitted and "
            "cannot wait. Pass a plain function that returns an operation, and await the whole."
        )
    raise ArgumentTypeError(
        f"{method}: the function must return an operation (DeviceOp), got {type(op).__name__}. "
        "Return value(...) to yield it as it is, or use map()."
    )


class Map(_Applied[U]):
    """Transforms the parent's result on the host."""

    __slots__ = ()

    def transform(self, result: Any) -> U:
        __tracebackhide__ = True
        return _value_of(self._function(result))


def _value_of(mapped: Any) -> Any:
    """The value that a function given to `map` returned.

    Raises:
        ArgumentTypeError: it is a coroutine or an operation, which would never run.
    """
    kind = cast("type[Any]", type(mapped))
    if kind in _value_types:
        return mapped
    if inspect.iscoroutine(mapped):
        mapped.close()
        raise ArgumentTypeError(
            "map: the function returned a coroutine; it is called while the operation is submitted and "
            "cannot wait. Pass a plain function, and await the whole."
        )
    if isinstance(mapped, DeviceOp):
        raise ArgumentTypeError("map: the function returned an operation, which would never run; use then().")
    if len(_value_types) < _MAX_VALUE_TYPES:
        _value_types.add(kind)
    return mapped


_MAX_VALUE_TYPES = 256
"""Types that `_value_types` remembers: `isinstance` of an ABC takes longer than most functions given to `map`."""

_value_types: set[type] = set()
"""Types that are neither coroutines nor operations."""


class Forwarded(_Step[U]):
    """A `Map` that calls a method of the parent's result.

    Attributes:
        method: the method's name.
        arguments: its arguments.
    """

    __slots__ = ("arguments", "method")

    plain = True

    def __init__(self, parent: DeviceOp[Any], method: str, *arguments: Any) -> None:
        super().__init__(parent, 4)  # one frame more: `_forwarded` of `extension.py`
        self.method = method
        self.arguments = arguments

    def label(self) -> str:
        return "map"

    def detail(self) -> str:
        return self.method

    def is_call(self, method: str) -> bool:
        """Whether it calls a method without arguments."""
        return self.method == method and not self.arguments

    def outline(self) -> Any:
        method = getattr(self.parent.outline(), self.method, None)
        return None if method is None else method(*self.arguments)

    def transform(self, result: Any) -> U:
        __tracebackhide__ = True
        return _value_of(getattr(result, self.method)(*self.arguments))


class Titled(Map[U]):
    """A `Map` at the end of a library's composition.

    It has the name of the function that the user has called. Its own function is the library's, and runs nothing.
    """

    __slots__ = ("_title",)

    titled = plain = True

    def __init__(self, parent: DeviceOp[T], function: Callable[[T], object], title: str) -> None:
        self._title = title
        super().__init__(parent, function)

    def label(self) -> str:
        return self._title


class Inspect(_Applied[T]):
    """Calls a function with the parent's result and passes the result on."""

    __slots__ = ()

    def transform(self, result: Any) -> T:
        __tracebackhide__ = True
        self._function(result)
        return result


class Select(_Step[U]):
    """One element of the tuple that the parent yields.

    Attributes:
        index: the element's index; a negative one counts from the end.
    """

    __slots__ = ("index",)

    plain = True

    def __init__(self, parent: DeviceOp[tuple[U, ...]], index: int) -> None:
        super().__init__(parent)
        self.index = index

    def label(self) -> str:
        return {0: "first", -1: "last"}.get(self.index, f"element {self.index}")

    def transform(self, result: Any) -> U:
        if not isinstance(result, tuple) or not result:
            got = "an empty tuple" if isinstance(result, tuple) else type(result).__name__
            raise ArgumentTypeError(
                f"{self.label()}: expected an operation that yields a tuple, got {got} from {self.parent!r}; leave "
                f".{self.label()}() out, or yield a tuple"
            )
        return cast("tuple[U, ...]", result)[self.index]


class Zip(DeviceOp[tuple[Any, ...]]):
    """Runs operations from left to right on one stream.

    Yields the tuple of their results.
    """

    __slots__ = ("_parts", "arity")

    def __init__(self, parts: tuple[DeviceOp[Any], ...]) -> None:
        for done, part in enumerate(parts):
            try:
                part.claim()
            except BaseException:
                for claimed in parts[:done]:  # no operation has these now, so that their arguments must be free
                    claimed.discard()
                raise
        self._parts = parts
        self.arity = len(parts)
        super().__init__()

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return self._parts

    def unfold(self, context: ExecutionContext) -> Generator[DeviceOp[Any], Any, tuple[Any, ...]]:
        results: list[Any] = []
        for part in self._parts:
            results.append((yield part))
        return tuple(results)

    def execute(self, context: ExecutionContext) -> tuple[Any, ...]:
        __tracebackhide__ = True
        return context.drive(self)


@overload
def zip(a: DeviceOp[A], b: DeviceOp[B], /) -> DeviceOp[tuple[A, B]]: ...
@overload
def zip(a: DeviceOp[A], b: DeviceOp[B], c: DeviceOp[C], /) -> DeviceOp[tuple[A, B, C]]: ...
@overload
def zip(a: DeviceOp[A] | A, b: DeviceOp[B] | B, /) -> DeviceOp[tuple[A, B]]: ...
@overload
def zip(a: DeviceOp[A] | A, b: DeviceOp[B] | B, c: DeviceOp[C] | C, /) -> DeviceOp[tuple[A, B, C]]: ...
@overload
def zip(
    a: DeviceOp[A] | A, b: DeviceOp[B] | B, c: DeviceOp[C] | C, d: DeviceOp[D] | D, /
) -> DeviceOp[tuple[A, B, C, D]]: ...
@overload
def zip(*ops: DeviceOp[T] | T) -> DeviceOp[tuple[T, ...]]: ...
def zip(*ops: Any) -> DeviceOp[Any]:
    """Run operations from left to right on one stream; yield the tuple of results.

    There may be any number of arguments; one gives a 1-tuple. An argument that is no operation stands for
    `value(argument)`.

    Raises:
        OwnershipError: one of the operations was used before.
        TypeError: an argument is a list or tuple of operations.

    >>> from cuda_async import value, zip
    >>> zip(value(1), value("a"), 2.5).sync()
    (1, 'a', 2.5)
    """
    for op in ops:
        items = cast("list[Any]", op) if isinstance(op, list | tuple) else ()
        if any(isinstance(item, DeviceOp) for item in items):
            raise ArgumentTypeError(
                f"zip: expected operations, got a {type(items).__name__} of them, which would be yielded without being "
                "run; write zip(*ops)"
            )
    return Zip(tuple(into_op(op) for op in ops))


class _WithContext(DeviceOp[T]):
    """Runs the operation that a function makes of the context.

    `name` is what users call it.
    """

    __slots__ = ("_function", "_name")

    def __init__(self, function: Callable[[ExecutionContext], DeviceOp[T]], name: str) -> None:
        super().__init__()
        self._function = function
        self._name = name

    def label(self) -> str:
        return self._name

    def unfold(self, context: ExecutionContext) -> Generator[DeviceOp[Any], Any, T]:
        return (yield _checked(self._function(context), self._name))

    def execute(self, context: ExecutionContext) -> T:
        __tracebackhide__ = True
        return context.drive(self)


def with_context(function: Callable[[ExecutionContext], DeviceOp[T]]) -> DeviceOp[T]:
    """An operation that `function` builds from the context: the stream and the device.

    The function is called when the operation runs.

    >>> from cuda_async import Device
    >>> with_context(lambda context: value(context.device.kind)).sync_on(Device.host().new_stream())
    'host'
    """
    return _WithContext(function, "with_context")


def empty(function: Callable[[], DeviceOp[T]]) -> DeviceOp[T]:
    """An operation built by `function` only when it runs.

    Raises:
        ArgumentTypeError: `function` cannot be called.

    >>> empty(lambda: value(3)).sync()
    3
    """
    if not callable(function):
        raise ArgumentTypeError(
            f"empty: expected a function that makes an operation, got {as_text(function)}; memory for a tensor is made "
            "by cutile.api.empty(shape, dtype)"
        )
    return _WithContext(lambda context: function(), "empty")
