"""`CompiledKernel`: launches a specialization that is compiled for a device.

Some launches run a variant of the kernel, compiled with other options. The target chooses it by the launch's
grid and by an integer of its arguments (`Loaded.variants`): on a GPU, a launch of few tile blocks with many iterations
runs a variant that divides the iterations among more blocks. A kernel without variants pays nothing for them.

The compiled kernel also needs integers of each launch, such as its number of tiles. Both kinds of integers are
described by data, not by code, so that they can be kept on disk; `counter` makes functions of them (`Executable`
describes the data).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cuda_async import ContextError
from cutile.backend.interface import Change, Target, Variants
from cutile.compile.driver import Compiled
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked
from cutile.launch.checks import condition_of, verify
from cutile.launch.fastpath import Enqueue, Repeat, enqueuer, numbers_of, repeater
from cutile.launch.target import target_of
from cutile.launch.variables import use_variables
from cutile.launch.views import Grid

if TYPE_CHECKING:
    from cuda_async import Device, Storage, Stream
    from cutile.compile.kernels import KernelCache
    from cutile.launch.fastpath import ViewUse

Counter = Callable[[Sequence[Any], Grid], int]
"""Computes an integer from a launch's checked arguments and its grid."""

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "//": int.__floordiv__,
    "min": min,
    "max": max,
}


def counter(count: Any) -> Counter:
    """Make the function that computes an integer described by data.

    Raises:
        ValueError: `count` is no such data.

    Example:
        >>> counter(["//", ["+", ["grid", 0], 63], 64])((), (100, 1, 1))
        2
    """
    match count:
        case int() if type(count) is int:  # a bool is no count
            return lambda checked, grid: count
        case ["argument", int() as position]:
            return lambda checked, grid: checked[position]
        case ["extent", int() as position, int() as axis]:
            return lambda checked, grid: checked[position].shape[axis]
        case ["grid", int() as axis]:
            return lambda checked, grid: grid[axis]
        case ["//", ["+", ["extent", int() as position, int() as axis], int() as addend], int() as divisor]:
            # Tiles along an axis, which most kernels ask for: a launch makes one call in place of three.
            return lambda checked, grid: (checked[position].shape[axis] + addend) // divisor
        case [str() as name, left, right] if name in _OPERATIONS:
            return _operation(_OPERATIONS[name], left, right)
        case _:
            raise ValueError(f"{count!r:.80} is no count")


def _operation(function: Callable[[int, int], int], left: Any, right: Any) -> Counter:
    if type(right) is int:  # most divide by a constant or add one, and that saves a call
        first = counter(left)
        return lambda checked, grid: function(first(checked, grid), right)
    first, second = counter(left), counter(right)
    return lambda checked, grid: function(first(checked, grid), second(checked, grid))


class Chooser:
    """Chooses the variant for a launch.

    Attributes:
        max_blocks: tile blocks beyond which a launch runs the kernel itself.
    """

    __slots__ = ("_choose", "_count", "max_blocks")

    def __init__(self, variants: Variants) -> None:
        self._count = counter(variants.count)
        self._choose = variants.choose
        self.max_blocks = variants.max_blocks

    def change(self, checked: Sequence[Checked], grid: Grid) -> Change:
        """The options in which the launch's variant differs; empty for the kernel itself."""
        blocks = grid[0] * grid[1] * grid[2]
        return () if blocks > self.max_blocks else self._choose(blocks, self._count(checked, grid))


def chooser_of(compiled: Compiled) -> Chooser | None:
    """The chooser of a compiled kernel; None for a kernel without variants."""
    if "chooser" not in compiled.memo:
        variants = compiled.loaded.variants
        compiled.memo["chooser"] = None if variants is None else Chooser(variants)
    return compiled.memo["chooser"]


def plan_of_launch(plan: Plan, target: Target, checked: Sequence[Checked], grid: Grid) -> Plan:
    """The plan that a launch runs: the kernel's, or a variant's.

    Compiles the kernel if that has not been done, since only the compiled kernel knows its variants.
    """
    chooser = chooser_of(plan.compiled(target))
    return plan if chooser is None else plan.variant(chooser.change(checked, grid))


class CompiledKernel:
    """Enqueues the launches of a specialization that is compiled for a device.

    Made at the first launch; later launches look it up and call it.

    Attributes:
        unchanged: whether the outer names that the kernel reads still have the values it was compiled with.
        enqueue: enqueues a launch; see `Enqueue`.
    """

    __slots__ = (
        "_chooser",
        "_compiled",
        "_condition",
        "_kernel",
        "_loaded",
        "_numbers",
        "_packed",
        "_variables",
        "_variants",
        "enqueue",
        "unchanged",
    )

    def __init__(self, plan: Plan, kernel: KernelCache, stream: Stream, backend: str | None) -> None:
        compiled = self._compiled = plan.compiled(target_of(stream.device, backend))
        self._kernel = kernel
        self.unchanged = compiled.program.captures.watch()
        self._condition = condition_of(compiled, kernel.signature.names)
        self._variables = compiled.program.variables
        self._numbers = numbers_of(compiled)
        self._loaded = compiled.loaded
        # A generated function packs the arguments and launches. It knows no variables, whose addresses depend on the
        # stream, and some targets have none (`Loaded.packed`).
        packed = self._packed = None if self._variables else self._loaded.packed(stream)
        self.enqueue: Enqueue = self._enqueue
        if packed is not None:
            self.enqueue = enqueuer(
                kernel.signature,
                compiled.executable.parameters,
                packed,
                stream.device,
                general=self._enqueue,
                verify=None if self._condition is None else self._verify,
                check_devices=check_devices,
            )
        self._variants: dict[Change, CompiledKernel] = {}
        self._chooser = chooser_of(compiled)
        if self._chooser is not None:

            def make(change: Change, stream: Stream) -> CompiledKernel:
                return CompiledKernel(plan.variant(change), kernel, stream, backend)

            self.enqueue = _itself_or_variant(self.enqueue, self._chooser, self._variants, make)

    def compiles_nothing(self, checked: Sequence[Checked], grid: Grid) -> bool:
        """Whether the launch's code, the kernel's or a variant's, is compiled and loaded."""
        if self._chooser is None:
            return True
        change = self._chooser.change(checked, grid)
        variant = self._variants.get(change)
        return not change or (variant is not None and variant.unchanged())

    def repeated(self, checked: Sequence[Checked], grid: Grid) -> Repeat | None:
        """Make a function that launches again with arguments of the same shapes.

        The function takes a stream, and each argument's address or number. It does not order the launch behind other
        streams' work. None if a launch needs more than these numbers, or if other scalars could fail a check or need a
        variant.
        """
        packed = self._packed
        if packed is None or grid[0] * grid[1] * grid[2] > packed.most:
            return None
        signature = self._kernel.signature
        scalars = any(parameter.kind not in ("tensor", "mut", "shared") for parameter in signature.parameters)
        if scalars and not (self._condition is None and self._chooser is None):
            return None
        if self._chooser is not None and self._chooser.change(checked, grid):
            return None
        return repeater(signature, self._compiled.executable.parameters, packed, checked, grid)

    def _enqueue(self, checked: Sequence[Checked], uses: Sequence[ViewUse], grid: Grid, stream: Stream) -> None:
        """Enqueue any launch; the generated function leaves rare ones to this."""
        self._verify(checked, grid)
        check_devices(self._kernel.signature.name, uses, stream.device)
        for _, storage, write, _, _ in uses:
            storage.order(stream, write)
        if self._variables:
            checked = [*checked, *(each.address for each in use_variables(self._variables, stream))]
        self._loaded.launch(grid, self._numbers(checked, grid), stream)
        stream.hold(self._loaded)  # keeps the module loaded until the launch has finished

    def _verify(self, checked: Sequence[Checked], grid: Grid) -> None:
        if self._condition is not None and not self._condition(checked, grid):
            verify(self._compiled, self._kernel.signature.names, checked, grid)  # raises, and names the argument


def _itself_or_variant(
    itself: Enqueue,
    chooser: Chooser,
    variants: dict[Change, CompiledKernel],
    make: Callable[[Change, Stream], CompiledKernel],
) -> Enqueue:
    """Make the `enqueue` of a kernel of which some launches run a variant.

    Args:
        itself: the `enqueue` of the kernel without the variants.
        chooser: chooses the variant.
        variants: the variants that have been launched, by the options in which they differ; filled here.
        make: compiles a variant for the device of a stream.
    """
    max_blocks, choose = chooser.max_blocks, chooser.change

    def enqueue(checked: Sequence[Checked], uses: Sequence[ViewUse], grid: Grid, stream: Stream) -> None:
        if grid[0] * grid[1] * grid[2] > max_blocks:
            return itself(checked, uses, grid, stream)
        change = choose(checked, grid)
        if not change:
            return itself(checked, uses, grid, stream)
        kernel = variants.get(change)
        if kernel is None or not kernel.unchanged():
            kernel = variants[change] = make(change, stream)
        return kernel.enqueue(checked, uses, grid, stream)

    return enqueue


def check_devices(kernel: str, uses: Sequence[tuple[str, Storage, bool, int, int]], device: Device) -> None:
    """Refuse arguments on another device than the launch.

    Raises:
        ContextError: names the argument.
    """
    for argument, storage, *_ in uses:
        if storage.device is not device:
            raise ContextError(
                device.ordinal,
                f"{kernel}: argument {argument!r} is on {storage.device}, the launch on {device}; "
                "run the op on a stream of that device, or copy the argument",
            )
