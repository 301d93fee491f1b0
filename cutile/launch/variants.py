"""Which compilation of a kernel a launch takes.

The kernel itself, or one with other compile options.

The target says which, and why it pays (`Loaded.variants`): on a GPU, launches of few tile blocks with many iterations
take a kernel that divides these. The kernel itself asks nothing, so that it costs other launches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.interface import Change, Target, Variants
from cutile.compile.driver import Compiled
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked
from cutile.launch.counts import counter
from cutile.launch.views import Grid


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
