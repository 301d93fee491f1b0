"""The names of cuda-async 0.0.1, for programs written against them.

Each is a thin wrapper of today's name:

| then | now |
| --- | --- |
| `DeviceOperation` | `DeviceOp` |
| `zip((a, x, y))`, `(a, x, y).zip()` | `zip(a, x, y)` |
| `op.apply(kernel)` | `op.then(lambda arguments: kernel(*arguments))` |
| `op.and_then(f)` | `op.then(f)` |
| `op.and_then_with_context(f)` | `op.then(lambda x: with_context(lambda context: f(context, x)))` |
| `op.arc()` | `op.map(lambda tensor: tensor.shared())` |
| `op.unwrap()`, `unwrap_partition(op)` | `op.unpartition()`, `op.unwrap_arc()` |
| `device_operation(x)` | `value(x)` |
| `stream_operation(f)` | `with_context(f)` |

The methods are on every `DeviceOp`. The old methods of tensors are in `cutile.host.compat`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.op import DeviceOp
    from cuda_async.op import DeviceOp as DeviceOperation

__all__ = ("DeviceOperation", "OldMethods", "device_operation", "stream_operation", "unwrap_partition", "zip")

T = TypeVar("T")
U = TypeVar("U")


def __getattr__(name: str) -> Any:
    if name == "DeviceOperation":  # imported late: `op.py` imports this module
        from cuda_async.op import DeviceOp

        return DeviceOp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class OldMethods:
    """The old methods of operations, for `DeviceOp` to inherit."""

    __slots__ = ()

    def apply(self, function: Callable[..., DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, with a tuple as the result spread over the function's parameters.

        So a kernel may be applied to zipped arguments: `zip(y, a, x).apply(saxpy)`.

        >>> from cuda_async import value, zip
        >>> zip(value(2), value(3)).apply(lambda a, b: value(a * b)).sync()
        6
        """
        this = cast("DeviceOp[Any]", self)
        return this.then(lambda result: function(*result) if isinstance(result, tuple) else function(result))

    def and_then(self, function: Callable[[Any], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`."""
        return cast("DeviceOp[Any]", self).then(function)

    def and_then_with_context(self, function: Callable[[ExecutionContext, Any], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, with a function that also sees the context, and so the stream."""
        from cuda_async.combinators import with_context

        return cast("DeviceOp[Any]", self).then(lambda result: with_context(lambda context: function(context, result)))

    def arc(self) -> DeviceOp[Any]:
        """The result, shared: its `arc()`, or the result itself where it has none.

        A tensor, and a partition once it is unpartitioned, give their `shared()`.
        """
        return cast("DeviceOp[Any]", self).map(_arc)

    def unwrap(self) -> DeviceOp[Any]:
        """The result's `unwrap()`: a partition's tensor, or the tensor of a single owner."""
        return cast("DeviceOp[Any]", self).map(lambda result: result.unwrap())


def _arc(result: Any) -> Any:
    share = getattr(result, "arc", None)
    return result if share is None else share()  # any Python object is shared by referring to it


def zip(*operations: Any) -> DeviceOp[tuple[Any, ...]]:
    """`cuda_async.zip`, which here also takes one tuple.

    >>> zip((1, 2)).sync()
    (1, 2)
    """
    from cuda_async.combinators import zip as zip_now

    if len(operations) == 1 and isinstance(operations[0], tuple):
        return zip_now(*cast("tuple[Any, ...]", operations[0]))
    return zip_now(*operations)


def device_operation(item: DeviceOp[T] | T) -> DeviceOp[T]:
    """`into_op`: an operation as it is, anything else as `value(it)`."""
    from cuda_async.op import into_op

    return into_op(item)


def stream_operation(function: Callable[[ExecutionContext], DeviceOp[T]]) -> DeviceOp[T]:
    """`with_context`."""
    from cuda_async.combinators import with_context

    return with_context(function)


def unwrap_partition(operation: DeviceOp[Any]) -> DeviceOp[Any]:
    """`operation.unpartition()`."""
    return operation.unpartition()
