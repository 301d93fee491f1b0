"""The manifest: this backend's verbs in one place.

A verb imports its modules itself: loading a cached kernel imports no compiler.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from cutile.backend.cpu.load import load
from cutile.backend.cpu.target import arch as host_arch
from cutile.backend.interface import Attempt, Backend, CompileOptions, Executable, Loaded, Row, Source, Target
from cutile.config import usable_cores
from cutile.installation import installed_version
from cutile.ir.core import Function


class CpuBackend:
    """The processor that this process runs on."""

    name = "cpu"
    options = frozenset({"fast_math", "streaming_stores"})
    attempts: tuple[Attempt, ...] = ()

    def version(self) -> str:
        """The toolchain's versions."""
        return _version()

    def target(self, arch: str, units: int) -> Target:
        """This machine, whatever a device calls it: the CPU that compiles runs the code."""
        del arch
        return Target(self.name, host_arch(), units or usable_cores())

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function:
        """Turn tiles into loops.

        Decides which tile blocks run as one, and which products the BLAS computes.
        """
        from cutile.backend.cpu.pipeline import lower

        return lower(function, target, options)

    def prove(self, lowered: Function) -> None:
        """Nothing: a tile block runs on one thread, in order."""
        del lowered

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source:
        """Write the Python file that Numba compiles."""
        from cutile.analysis.structure import require_shallow
        from cutile.backend.cpu.emit.module import emit_module
        from cutile.backend.cpu.explain import plan

        require_shallow(function)
        source = emit_module(function, target)
        facts = {**source.facts, "plan": plan(function), "streaming": bool(options.streaming_stores)}
        if options.streaming_stores is False:
            facts["results"] = ()  # without results no launch takes the variant
        return replace(source, facts=facts)

    def explain(self, facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
        """The plan in words."""
        from cutile.backend.cpu.explain import explain

        return explain(facts, target)

    def build(self, source: Source, target: Target) -> Executable:
        """Compile to an object file. Needs Numba."""
        from cutile.backend.cpu.build import build

        return build(source, target)

    def load(self, executable: Executable) -> Loaded[Any]:
        """Link the object. Needs no Numba."""
        return load(executable)


@cache
def _version() -> str:
    """The versions of Numba and llvmlite.

    Numba is not imported: a kernel from the disk cache needs its version, and no more of it.
    """
    return ", ".join(f"{name} {installed_version(name)}" for name in ("numba", "llvmlite"))


BACKEND: Final[Backend] = CpuBackend()
