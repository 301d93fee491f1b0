"""Kernels as type checkers see them: calls are checked by the parameters.

The first eight arguments of a call are checked; further arguments, and arguments by name, are not. Nothing imports this
module when a program runs. An annotation's class says what a launch takes for it (`__launch_argument__`), and
`KernelN[A1, ..., AN]` is a kernel whose first `N` parameters have these annotations. Arguments by name, and the named
tuple that a launch yields, are beyond Python's types: a signature's names cannot become a named tuple's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, Protocol, TypeVar, overload

from cutile.entry import Kernel
from cutile.launch.kernel_op import KernelOp

__all__ = (
    "Declares",
    "EntryDecorator",
    "Kernel1",
    "Kernel2",
    "Kernel3",
    "Kernel4",
    "Kernel5",
    "Kernel6",
    "Kernel7",
    "Kernel8",
)

A1 = TypeVar("A1", covariant=True)
A2 = TypeVar("A2", covariant=True)
A3 = TypeVar("A3", covariant=True)
A4 = TypeVar("A4", covariant=True)
A5 = TypeVar("A5", covariant=True)
A6 = TypeVar("A6", covariant=True)
A7 = TypeVar("A7", covariant=True)
A8 = TypeVar("A8", covariant=True)
H1 = TypeVar("H1")
H2 = TypeVar("H2")
H3 = TypeVar("H3")
H4 = TypeVar("H4")
H5 = TypeVar("H5")
H6 = TypeVar("H6")
H7 = TypeVar("H7")
H8 = TypeVar("H8")
B1 = TypeVar("B1", bound="Declares[Any]")
B2 = TypeVar("B2", bound="Declares[Any]")
B3 = TypeVar("B3", bound="Declares[Any]")
B4 = TypeVar("B4", bound="Declares[Any]")
B5 = TypeVar("B5", bound="Declares[Any]")
B6 = TypeVar("B6", bound="Declares[Any]")
B7 = TypeVar("B7", bound="Declares[Any]")
B8 = TypeVar("B8", bound="Declares[Any]")
H_co = TypeVar("H_co", covariant=True)


class Declares(Protocol[H_co]):
    """An annotation of a launch parameter, for which a launch takes a `H_co`."""

    def __launch_argument__(self) -> H_co: ...


class Kernel1(Kernel, Generic[A1]):
    """A kernel of 1 parameter, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel1[Declares[H1]],
        a1: H1 = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel2(Kernel, Generic[A1, A2]):
    """A kernel of 2 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel2[Declares[H1], Declares[H2]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel3(Kernel, Generic[A1, A2, A3]):
    """A kernel of 3 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel3[Declares[H1], Declares[H2], Declares[H3]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel4(Kernel, Generic[A1, A2, A3, A4]):
    """A kernel of 4 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel4[Declares[H1], Declares[H2], Declares[H3], Declares[H4]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        a4: H4 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel5(Kernel, Generic[A1, A2, A3, A4, A5]):
    """A kernel of 5 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel5[Declares[H1], Declares[H2], Declares[H3], Declares[H4], Declares[H5]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        a4: H4 | None = ...,
        a5: H5 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel6(Kernel, Generic[A1, A2, A3, A4, A5, A6]):
    """A kernel of 6 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel6[Declares[H1], Declares[H2], Declares[H3], Declares[H4], Declares[H5], Declares[H6]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        a4: H4 | None = ...,
        a5: H5 | None = ...,
        a6: H6 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel7(Kernel, Generic[A1, A2, A3, A4, A5, A6, A7]):
    """A kernel of 7 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel7[Declares[H1], Declares[H2], Declares[H3], Declares[H4], Declares[H5], Declares[H6], Declares[H7]],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        a4: H4 | None = ...,
        a5: H5 | None = ...,
        a6: H6 | None = ...,
        a7: H7 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class Kernel8(Kernel, Generic[A1, A2, A3, A4, A5, A6, A7, A8]):
    """A kernel of 8 parameters, or more of which the others are not checked."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrower, on purpose
        self: Kernel8[
            Declares[H1],
            Declares[H2],
            Declares[H3],
            Declares[H4],
            Declares[H5],
            Declares[H6],
            Declares[H7],
            Declares[H8],
        ],
        a1: H1 = ...,
        a2: H2 | None = ...,
        a3: H3 | None = ...,
        a4: H4 | None = ...,
        a5: H5 | None = ...,
        a6: H6 | None = ...,
        a7: H7 | None = ...,
        a8: H8 | None = ...,
        /,
        *more: Any,
        **named: Any,
    ) -> KernelOp: ...


class EntryDecorator(Protocol):
    """The result of `@entry(...)`, which makes a kernel of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, B7, B8, ...], None], /
    ) -> Kernel8[B1, B2, B3, B4, B5, B6, B7, B8]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, B7, ...], None], /
    ) -> Kernel7[B1, B2, B3, B4, B5, B6, B7]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, ...], None], /
    ) -> Kernel6[B1, B2, B3, B4, B5, B6]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[B1, B2, B3, B4, B5, ...], None], /
    ) -> Kernel5[B1, B2, B3, B4, B5]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[B1, B2, B3, B4, ...], None], /) -> Kernel4[B1, B2, B3, B4]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[B1, B2, B3, ...], None], /) -> Kernel3[B1, B2, B3]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[B1, B2, ...], None], /) -> Kernel2[B1, B2]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[B1, ...], None], /) -> Kernel1[B1]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # for parameters that are groups, or may be None
        self, function: Callable[..., None], /
    ) -> Kernel: ...
