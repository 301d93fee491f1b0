"""The interface between a launch and its kernel, on every backend.

The launch passes plain parameters: addresses, extents, strides, scalars and the grid. Kernels on the host also get the
stream. A kernel of a GPU returns the report of a failed assertion, in memory that the host reads once the launch is
over. The function's fact `failures` describes the assertions, by their numbers. A report has words of 32 bits:

word 0       0; 1 while a thread writes the other words; 2 when they are written
word 1       the assertion's number
words 2-4    the tile block's index
words 5-7    unused
words 8-15   up to four numbers that the assertion's message shows, two words each; floats by their bits
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cutile.backend.interface import Argument, Grid, Loaded, Parameter
from cutile.dtypes import i32, i64, u64
from cutile.errors import KernelAssertionError
from cutile.ir import Function, TileType, Value
from cutile.ops.debug import failure_text

GRID_NAMES = ("grid_x", "grid_y", "grid_z")
WORKSPACE = "workspace"
"""The parameter with the workspace's address, in kernels whose blocks share memory of the launch."""
REPORT = "report"
"""The parameter with the report's address, in kernels whose assertions may fail."""


def tensor_parameters(position: int, value: Value) -> list[Parameter]:
    """The parameters of one tensor: its address, then its dynamic extents and strides."""
    tensor, name = value.tensor, value.name
    parameters = [Parameter(name, "pointer", position, 0, u64)]
    for axis, extent in enumerate(tensor.shape):
        if extent is None:
            parameters.append(Parameter(f"{name}_extent_{axis}", "extent", position, axis, i32))
    for axis, stride in enumerate(tensor.strides):
        if stride is None:
            parameters.append(Parameter(f"{name}_stride_{axis}", "stride", position, axis, i64))
    return parameters


def kernel_parameters(function: Function) -> tuple[Parameter, ...]:
    """Every parameter of a kernel, in order.

    The kernel's arguments come first, then the three extents of the logical grid, then the addresses of the workspace
    and of the report, if the kernel has them.
    """
    parameters: list[Parameter] = []
    for position, value in enumerate(function.parameters):
        if isinstance(value.type, TileType):
            parameters.append(Parameter(value.name, "scalar", position, 0, value.type.dtype))
        else:
            parameters.extend(tensor_parameters(position, value))
    parameters.extend(Parameter(name, "grid", -1, axis, i32) for axis, name in enumerate(GRID_NAMES))
    if function.facts.get("workspace"):
        parameters.append(Parameter(WORKSPACE, "workspace", -1, 0, u64))
    if function.facts.get("failures"):
        parameters.append(Parameter(REPORT, "report", -1, 0, u64))
    return tuple(parameters)


# The report of a failed assertion.

SITE, BLOCK, NUMBERS = 1, 2, 8
"""The words of a report at which the assertion's number, the block's index and the shown numbers begin."""
WRITING, WRITTEN = 1, 2
"""Values of word 0: while a thread writes the report, and when the report is written."""


def failure(sites: Sequence[Any], report: bytes) -> KernelAssertionError:
    """The exception for a report that was written.

    Args:
        sites: the fact `failures`: for each assertion its message, its place, the names and the dtypes of its numbers.
        report: the bytes of the report.
    """
    (site,) = struct.unpack_from("=I", report, 4 * SITE)
    block = struct.unpack_from("=3i", report, 4 * BLOCK)
    message, (kernel, file, line, text), names, dtypes = sites[site]
    words = struct.unpack_from(f"={len(dtypes)}q", report, 4 * NUMBERS)
    return KernelAssertionError(failure_text(message, (kernel, file, line, text), block, names, dtypes, words))


# Launches of kernels that run on the host.


class HostStream(Protocol):
    """The part of a stream that a loaded kernel uses; `cuda_async.Stream` has it."""

    @property
    def threads(self) -> int:
        """How many threads one call of a body may use, the calling thread included."""
        ...

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Enqueue `body(first, last)` over ranges that cover `[0, count)`.

        The ranges have about `grain` numbers each. They run in any order, on any threads.
        """
        ...


class RepeatedLaunch:
    """A launch that can be repeated, also with other arguments."""

    def __init__(self, loaded: Loaded[Any], grid: Grid, arguments: Sequence[Argument], stream: Any) -> None:
        self._loaded = loaded
        self._grid = grid
        self._arguments = list(arguments)
        self._stream = stream

    def launch(self) -> None:
        """Enqueue the kernel; never wait."""
        # A copy: a later `set` must not change the arguments of launches that are already enqueued.
        self._loaded.launch(self._grid, tuple(self._arguments), self._stream)

    def set(self, position: int, number: Argument) -> None:
        """Change one argument for the launches to come."""
        self._arguments[position] = number
