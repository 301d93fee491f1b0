"""Methods that an operation forwards to its result.

`op.reshape(s)` is `op.map(lambda r: r.reshape(s))`.

With them a chain reads in one line: `gemm(...).first().unpartition().to_numpy()`. This package gives the names no
meaning: the method of the result is called at submission, whichever package it is from. Type checkers know the type
that it returns, and refuse a forwarded method that the result's type does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cuda_async.errors import ArgumentTypeError

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.op import DeviceOp

__all__ = ("ResultMethods", "combinators")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class _Yields(Protocol[T_co]):
    """An operation that yields a `T_co`."""

    def map(self, function: Callable[[T_co], U]) -> DeviceOp[U]: ...
    def then(self, function: Callable[[T_co], DeviceOp[U]]) -> DeviceOp[U]: ...


class _HasReshape(Protocol[R_co]):
    def reshape(self, shape: Any, *more: Any) -> R_co: ...


class _HasView(Protocol[R_co]):
    def view(self, shape: Any, *more: Any) -> R_co: ...


class _HasSlice(Protocol[R_co]):
    def slice(self, *ranges: Any) -> R_co: ...


class _HasTranspose(Protocol[R_co]):
    def transpose(self, axes: Any = None, *more: Any) -> R_co: ...


class _HasPartition(Protocol[R_co]):
    def partition(self, shape: Any) -> R_co: ...


class _HasTryPartition(Protocol[R_co]):
    def try_partition(self, shape: Any) -> R_co: ...


class _HasUnpartition(Protocol[R_co]):
    def unpartition(self) -> R_co: ...


class _HasUnwrapArc(Protocol[R_co]):
    def unwrap_arc(self) -> R_co: ...


class _HasDup(Protocol[R_co]):
    def dup(self) -> DeviceOp[R_co]: ...


class _HasToDevice(Protocol[R_co]):
    def to_device(self, device: Any) -> DeviceOp[R_co]: ...


class _HasToHostVec(Protocol[R_co]):
    def to_host_vec(self) -> DeviceOp[R_co]: ...


class _HasToNumpy(Protocol[R_co]):
    def to_numpy(self) -> DeviceOp[R_co]: ...


OpT = TypeVar("OpT")


def _single(op: OpT, method: str) -> OpT:
    """Return `op`, or refuse it if it yields a tuple, which has no such methods.

    Raises:
        TypeError: `op` yields a tuple.
    """
    arity: int | None = getattr(op, "arity", None)
    if arity is not None:
        raise ArgumentTypeError(
            f"{method}: {op!r} yields a tuple of {arity}; choose one of them first: .first().{method}(...), .last(), "
            ".unzip()"
        )
    return op


def _forwarded(op: Any, method: str, *arguments: Any) -> DeviceOp[Any]:
    """The operation that yields what a method of the result of `op` returns."""
    if op.arity is not None:
        _single(op, method)
    return combinators().Forwarded(op, method, *arguments)


@cache
def combinators() -> Any:
    """The module `combinators`, which imports this one.

    It is looked up once: an import statement takes longer than making a step.
    """
    from cuda_async import combinators

    return combinators


class ResultMethods:
    """The methods that `DeviceOp` forwards to its result.

    Raises:
        TypeError: the operation is known to yield a tuple.
        AttributeError: (at submission) the result has no such method.
    """

    __slots__ = ()

    # -- metadata: no work on the device ------------------------------------------------------

    def reshape(self: _Yields[_HasReshape[R]], shape: int | tuple[int, ...] | list[int], *more: int) -> DeviceOp[R]:
        """The result's `reshape(shape)`."""
        return _forwarded(self, "reshape", shape, *more)

    def view(self: _Yields[_HasView[R]], shape: int | tuple[int, ...] | list[int], *more: int) -> DeviceOp[R]:
        """The result's `view(shape)`."""
        return _forwarded(self, "view", shape, *more)

    def slice(self: _Yields[_HasSlice[R]], *ranges: Any) -> DeviceOp[R]:
        """The result's `slice(*ranges)`."""
        return _forwarded(self, "slice", *ranges)

    def transpose(
        self: _Yields[_HasTranspose[R]], axes: int | tuple[int, ...] | None = None, *more: int
    ) -> DeviceOp[R]:
        """The result's `transpose(axes)`."""
        return _forwarded(self, "transpose", axes, *more)

    def partition(
        self: _Yields[_HasPartition[R]], shape: int | str | tuple[int | str, ...] | list[int | str]
    ) -> DeviceOp[R]:
        """The result's `partition(shape)`."""
        return _forwarded(self, "partition", shape)

    def try_partition(self: _Yields[_HasTryPartition[R]], shape: int | tuple[int, ...] | list[int]) -> DeviceOp[R]:
        """The result's `try_partition(shape)`."""
        return _forwarded(self, "try_partition", shape)

    def unpartition(self: _Yields[_HasUnpartition[R]]) -> DeviceOp[R]:
        """The result's `unpartition()`."""
        return _forwarded(self, "unpartition")

    def unwrap_arc(self: _Yields[_HasUnwrapArc[R]]) -> DeviceOp[R]:
        """The result's `unwrap_arc()`."""
        return _forwarded(self, "unwrap_arc")

    # -- work on the device: operations on the same stream ------------------------------------

    def dup(self: _Yields[_HasDup[R]]) -> DeviceOp[R]:
        """Then the result's `dup()`."""
        return _single(self, "dup").then(lambda result: result.dup())

    def to_device(self: _Yields[_HasToDevice[R]], device: Device | int | str) -> DeviceOp[R]:
        """Then the result's `to_device(device)`."""
        return _single(self, "to_device").then(lambda result: result.to_device(device))

    def to_host_vec(self: _Yields[_HasToHostVec[R]]) -> DeviceOp[R]:
        """Then the result's `to_host_vec()`."""
        return _single(self, "to_host_vec").then(lambda result: result.to_host_vec())

    def to_numpy(self: _Yields[_HasToNumpy[R]]) -> DeviceOp[R]:
        """Then the result's `to_numpy()`."""
        return _single(self, "to_numpy").then(lambda result: result.to_numpy())
