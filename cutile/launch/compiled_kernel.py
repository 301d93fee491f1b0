"""`CompiledKernel`: a specialization compiled for a device; which one is taken.

A launch takes the kernel itself, or one that was compiled with other options. The target says which, and why it pays
(`Loaded.variants`): on a GPU, launches of few tile blocks with many iterations take a kernel that divides these. The
kernel itself asks nothing, so that it costs other launches nothing. The integers that a compiled kernel asks of its
launches are computed from data (`Executable` says what that is).
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

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "//": int.__floordiv__,
    "min": min,
    "max": max,
}


def counter(count: Any) -> Counter:
    """What computes an integer from checked arguments and a grid.

    Raises:
        ValueError: it is no such data.

    Example:
        >>> counter(["//", ["+", ["grid", 0], 63], 64])((), (100, 1, 1))
        2
    """
    match count:
        case int() if type(count) is int:
            return lambda checked, grid: count
        case ["argument", int() as position]:
            return lambda checked, grid: checked[position]
        case ["extent", int() as position, int() as axis]:
            return lambda checked, grid: checked[position].shape[axis]
        case ["grid", int() as axis]:
            return lambda checked, grid: grid[axis]
        case ["//", ["+", ["extent", int() as position, int() as axis], int() as more], int() as divisor]:
            # tiles along an axis, which is what nearly all count: one call in place of three
            return lambda checked, grid: (checked[position].shape[axis] + more) // divisor
        case [str() as name, left, right] if name in _OPERATIONS:
            return _operation(_OPERATIONS[name], left, right)
        case _:
            raise ValueError(f"{count!r:.80} is no count")


def _operation(function: Callable[[int, int], int], left: Any, right: Any) -> Counter:
    if type(right) is int:  # most divide by a number, or add one
        first = counter(left)
        return lambda checked, grid: function(first(checked, grid), right)
    first, second = counter(left), counter(right)
    return lambda checked, grid: function(first(checked, grid), second(checked, grid))


class Chooser:
    """Asks a target's variants with what a launch counts.

    Attributes:
        max_blocks: tile blocks beyond which a launch takes the kernel itself.
    """

    __slots__ = ("_choose", "_count", "max_blocks")

    def __init__(self, variants: Variants) -> None:
        self._count = counter(variants.count)
        self._choose = variants.choose
        self.max_blocks = variants.max_blocks

    def change(self, checked: Sequence[Checked], grid: Grid) -> Change:
        """What is different in what a launch takes; nothing for the kernel itself."""
        blocks = grid[0] * grid[1] * grid[2]
        return () if blocks > self.max_blocks else self._choose(blocks, self._count(checked, grid))


def chooser_of(compiled: Compiled) -> Chooser | None:
    """What chooses for the launches of a compiled kernel; None where all take it."""
    if "chooser" not in compiled.memo:
        variants = compiled.loaded.variants
        compiled.memo["chooser"] = None if variants is None else Chooser(variants)
    return compiled.memo["chooser"]


def plan_of_launch(plan: Plan, target: Target, checked: Sequence[Checked], grid: Grid) -> Plan:
    """The plan that a launch takes: the kernel's, or a variant's.

    Compiles the kernel where that has not been done.
    """
    chooser = chooser_of(plan.compiled(target))
    return plan if chooser is None else plan.variant(chooser.change(checked, grid))


class CompiledKernel:
    """What is looked up once and then called by each launch.

    Attributes:
        unchanged: whether the names that were compiled in still mean the same.
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
    )  # fmt: skip

    def __init__(self, plan: Plan, kernel: KernelCache, stream: Stream, backend: str | None) -> None:
        compiled = self._compiled = plan.compiled(target_of(stream.device, backend))
        self._kernel = kernel
        self.unchanged = compiled.program.captures.watch()
        self._condition = condition_of(compiled, kernel.signature.names)
        self._variables = compiled.program.variables
        self._numbers = numbers_of(compiled)
        self._loaded = compiled.loaded
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
        """Whether all that a launch takes is there.

        Also the variant of the kernel, where it takes one.
        """
        if self._chooser is None:
            return True
        change = self._chooser.change(checked, grid)
        variant = self._variants.get(change)
        return not change or (variant is not None and variant.unchanged())

    def repeated(self, checked: Sequence[Checked], grid: Grid) -> Repeat | None:
        """Make what launches again with these arguments, at other addresses.

        Numbers may differ, too.

        It takes a stream, and of each argument its address or its number, and orders nothing. None where a launch is
        more than these numbers, or where others of them have to be verified.
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
        """Enqueue a launch of any kernel."""
        self._verify(checked, grid)
        check_devices(self._kernel.signature.name, uses, stream.device)
        for _, storage, write, _, _ in uses:
            storage.order(stream, write)
        if self._variables:
            checked = [*checked, *(each.address for each in use_variables(self._variables, stream))]
        self._loaded.launch(grid, self._numbers(checked, grid), stream)
        stream.hold(self._loaded)

    def _verify(self, checked: Sequence[Checked], grid: Grid) -> None:
        if self._condition is not None and not self._condition(checked, grid):
            verify(self._compiled, self._kernel.signature.names, checked, grid)  # which says what fails


def _itself_or_variant(
    itself: Enqueue,
    chooser: Chooser,
    variants: dict[Change, CompiledKernel],
    make: Callable[[Change, Stream], CompiledKernel],
) -> Enqueue:
    """Make the `enqueue` of a kernel of which some launches take a variant.

    Args:
        itself: the `enqueue` of all others.
        chooser: says which is which.
        variants: what launches these, by what is different in them; is filled.
        make: makes what launches a variant, on the device of a stream.
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
