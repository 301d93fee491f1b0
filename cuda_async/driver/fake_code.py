"""Python functions in place of loaded kernels, for the simulated driver.

A fake kernel declares the C types of its parameters, as the driver of a GPU reports their sizes. It is called in
stream order, once for each launch, with the grid, the block and the values that were in the parameter array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from cuda_async.driver.interface import DriverFunction, DriverModule
from cuda_async.errors import DriverError, LaunchError

__all__ = ("FakeFunction", "FakeModule")

Shape = tuple[int, int, int]


class FakeFunction(DriverFunction):
    """A kernel in Python.

    Args:
        name: its name in the module.
        types: the C type of each parameter; `ctypes.c_uint64` for a pointer.
        body: `body(grid, block, *values)`.
        reports_sizes: False for a driver that is too old to report the sizes of parameters.
        largest_block: the most threads of a block; a launch with more is refused, as a GPU does it.
    """

    __slots__ = ("_body", "_reports_sizes", "_types", "largest_block", "name", "shared_allowed", "shared_used")

    def __init__(
        self,
        name: str,
        types: Sequence[type[ctypes._SimpleCData[Any]]],  # pyright: ignore[reportPrivateUsage]
        body: Callable[..., None],
        *,
        reports_sizes: bool = True,
        largest_block: int = 1024,
    ) -> None:
        self.name = name
        self._types = tuple(types)
        self._body = body
        self._reports_sizes = reports_sizes
        self.largest_block = largest_block
        self.shared_allowed = 48 << 10  # bytes that a GPU allows without `allow_shared`
        self.shared_used = 0

    @property
    def parameter_sizes(self) -> tuple[int, ...] | None:
        return tuple(ctypes.sizeof(kind) for kind in self._types) if self._reports_sizes else None

    def allow_shared(self, nbytes: int) -> None:
        self.shared_allowed = max(self.shared_allowed, nbytes)

    @property
    def raw(self) -> int:
        return id(self)

    def prepare(self, grid: Shape, block: Shape, shared_bytes: int, parameters: int) -> Callable[[], None]:
        """Read the parameters now, as a driver does; return the call in stream order.

        Raises:
            LaunchError: the launch shape is refused.
        """
        threads = block[0] * block[1] * block[2]
        if threads > self.largest_block or shared_bytes > self.shared_allowed:
            raise LaunchError(
                f"{self.name}: {threads} threads and {shared_bytes} bytes of shared memory; at most "
                f"{self.largest_block} and {self.shared_allowed}"
            )
        pointers = (ctypes.c_void_p * len(self._types)).from_address(parameters) if self._types else ()
        values = [kind.from_address(address or 0).value for kind, address in zip(self._types, pointers, strict=True)]

        def call() -> None:
            self.shared_used = shared_bytes
            self._body(grid, block, *values)

        return call


class FakeModule(DriverModule):
    """Fake kernels by name."""

    __slots__ = ("functions",)

    def __init__(self, functions: Sequence[FakeFunction]) -> None:
        self.functions = {function.name: function for function in functions}

    def function(self, name: str) -> DriverFunction:
        body = self.functions.get(name)
        if body is None:
            raise DriverError(500, "SIM_NOT_FOUND", f"the module has no function {name!r}")
        return body

    @property
    def raw(self) -> int:
        return id(self)
