"""`Ready`: a specialization compiled for a device, with everything that a launch of it evaluates and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.launch.checks import condition_of
from cutile.launch.numbers import numbers_of
from cutile.launch.target import target_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cuda_async import Device
    from cutile.compile.kernels import Plan


class Ready:
    """What is looked up once and then called by each launch.

    Attributes:
        compiled: the kernel.
        captures: the names that were compiled in; a launch asks whether they still mean the same.
        condition: what must hold of the checked arguments and the grid; None where nothing is to be verified.
        variables: device memory of the kernel's own, whose addresses follow those of the arguments.
        numbers: makes the numbers of a launch from checked arguments and the grid.
        loaded: launches.
    """

    __slots__ = ("captures", "compiled", "condition", "loaded", "numbers", "variables")

    def __init__(self, plan: Plan, device: Device, backend: str | None, names: Sequence[str]) -> None:
        compiled = self.compiled = plan.compiled(target_of(device, backend))
        self.captures = compiled.program.captures
        self.condition = condition_of(compiled, names)
        self.variables = compiled.program.variables
        self.numbers = numbers_of(compiled)
        self.loaded = compiled.loaded
