"""The reference backend: it walks the IR and computes with NumPy.

Tile blocks run one by one, in order, and each operation has its NumPy meaning.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cutile.analysis.structure import late_loads
from cutile.backend.common.abi import HostStream, RepeatedLaunch, kernel_parameters
from cutile.backend.interface import (
    Argument,
    Attempt,
    Backend,
    CompileOptions,
    Executable,
    Grid,
    Row,
    Source,
    Target,
    unused_rows,
)
from cutile.backend.reference.interpret import bind_parameters, run_block
from cutile.ir.core import UNUSED, Function
from cutile.ir.text import parse, print_function
from cutile.ops import OPS


class ReferenceKernel:
    """A kernel that runs by a walk over its IR."""

    variants = None

    def __init__(self, executable: Executable) -> None:
        self._function = parse(executable.image.decode(), OPS)
        self._parameters = executable.parameters

    def packed(self, stream: HostStream) -> None:
        """No packed launch: each launch walks the IR."""

    def prepare(self, grid: Grid, arguments: Sequence[Argument], stream: HostStream) -> RepeatedLaunch:
        """A launch that can be repeated."""
        return RepeatedLaunch(self, grid, arguments, stream)

    def launch(self, grid: Grid, arguments: Sequence[Argument], stream: HostStream) -> None:
        """Enqueue all blocks, in linear order."""
        values = bind_parameters(self._function, self._parameters, arguments)
        gx, gy, gz = grid

        def body(first: int, last: int) -> None:
            for block in range(first, last):
                run_block(self._function, values, (block // (gy * gz), block // gz % gy, block % gz), grid)

        # One range: the blocks run in order, so that each launch gives the same results.
        stream.parallel_for(body, gx * gy * gz, gx * gy * gz)


class ReferenceBackend:
    """`lower` changes nothing, `emit` prints IR, `build` keeps it, `load` parses it."""

    name = "reference"
    options = frozenset[str]()
    attempts: tuple[Attempt, ...] = ()

    def version(self) -> str:
        """A constant: the results depend on no other package's version."""
        return "reference 1"

    def target(self, arch: str, units: int) -> Target:
        """The one target: any device whose memory the CPU can reach."""
        del arch, units
        return Target(self.name, "numpy")

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function:
        """The same function."""
        del target, options
        return function

    def prove(self, lowered: Function) -> None:
        """Nothing to prove: one thread does everything in order."""
        del lowered

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source:
        """The IR's text."""
        del target, options
        late = late_loads(function, lambda _: (0, "since NumPy loads nothing ahead"))
        lines = tuple(dict.fromkeys((*function.facts.get(UNUSED, ()), *late)))
        facts = {UNUSED: lines} if lines else {}
        return Source(print_function(function), function.name, kernel_parameters(function), facts=facts)

    def explain(self, facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
        """One row that is the same for every kernel, then the hints without effect."""
        del target
        return (
            ("schedule", "tile blocks one by one, in order; each operation by NumPy, on whole tiles"),
            *unused_rows(facts),
        )

    def build(self, source: Source, target: Target) -> Executable:
        """The text as bytes."""
        return Executable(target, source.text.encode(), source.entry, source.parameters, source.facts, source.text)

    def load(self, executable: Executable) -> ReferenceKernel:
        """Parse the text."""
        return ReferenceKernel(executable)


BACKEND: Final[Backend] = ReferenceBackend()
