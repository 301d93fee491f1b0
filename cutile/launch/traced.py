"""A launch that was found by tracing an operation.

What it compiles, and how it is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_async import Device
from cuda_async.site import Site, format_site
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.driver import Request
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked, words_of_argument
from cutile.launch.checks import Grid
from cutile.launch.compiled_kernel import plan_of_launch
from cutile.launch.launchable import Launchable
from cutile.launch.notebook import Listing
from cutile.launch.target import INTERPRET, target_of

__all__ = ("TracedLaunch", "launch_words", "without_places")

_PLACE = re.compile(r"  // \d[^\"\n]*$", re.MULTILINE)
"""The line of the source at the end of a line of IR."""


def without_places(ir: str) -> str:
    """The text of IR without the lines of its source."""
    return _PLACE.sub("", ir)


def launch_words(launchable: Launchable, checked: Sequence[Checked], grid: Grid | None, options: CompileOptions) -> str:
    """A launch as text: layouts, extents and numbers of its arguments, grid, options."""
    names = launchable.kernel.signature.names
    arguments = [f"{name} {words_of_argument(argument)}" for name, argument in zip(names, checked, strict=True)]
    return f"{launchable.name}({', '.join(arguments)}) grid {grid} {options}"


@dataclass(frozen=True, eq=False)
class TracedLaunch:
    """One launch of an operation that was traced. Holds no argument.

    Made by `launches_of`.
    """

    _launchable: Launchable
    _plan: Plan
    _checked: tuple[Checked, ...]
    _grid: Grid
    _options: CompileOptions
    _device: Device
    _backend: str | None
    _site: Site

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._launchable.name

    @property
    def grid(self) -> Grid:
        """Tile blocks along three axes."""
        return self._grid

    @property
    def generics(self) -> Mapping[str, Any]:
        """What the kernel's generics are, by name."""
        return self._plan.specialization.generics

    @property
    def site(self) -> Site:
        """The file and line that made the launch."""
        return self._site

    def _target(self, arch: str | None) -> Target | None:
        """What it is compiled for; None where it is interpreted."""
        if arch is None and self._backend == INTERPRET:
            return None
        return target_of(self._device, None if self._backend == INTERPRET else self._backend, arch)

    def request(self, arch: str | None = None) -> Request | None:
        """What is to be compiled, for the device or for an architecture.

        None where the launch is interpreted.

        Raises:
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        target = self._target(arch)
        return None if target is None else self._plan.request(target)

    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel now, and the variant that a launch over this grid takes.

        Raises:
            KernelError: the kernel does not compile; shows the place.
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        target = self._target(arch)
        if target is not None:
            plan_of_launch(self._plan, target, self._checked, self._grid).compiled(target)

    def render(self, stage: str, arch: str | None = None) -> str:
        """The text of one stage of the compilation; see `Kernel.inspect`.

        Raises:
            ValueError: there is no such stage.
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        target = self._target(arch) or target_of(self._device, None, arch)
        return Listing(self._plan.render(target, stage))

    def explain(self, arch: str | None = None) -> str:
        """What the launch is compiled to, and why it is not faster; see `Kernel.explain`."""
        return self.render("plan", arch)

    def code(self) -> str:
        """The kernel's IR, the same wherever it is in its file."""
        return without_places(self.render("ir"))

    def words(self) -> str:
        """Its arguments' layouts, extents and numbers, its grid and options, as text."""
        return launch_words(self._launchable, self._checked, self._grid, self._options)

    def __repr__(self) -> str:
        generics = ", ".join(f"{name}={value}" for name, value in self.generics.items())
        return f"<launch of {self.name}({generics}) grid {self._grid} made at {format_site(self._site)}>"
