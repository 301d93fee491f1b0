"""The manifest: this backend's verbs in one place.

A verb imports what it needs: cached kernels are only loaded.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from cutile.backend.cuda.load import load
from cutile.backend.cuda.target import architecture, for_capability
from cutile.backend.interface import FAST_MATH, CompileOptions, Executable, Loaded, Row, Source, Target
from cutile.installation import installed_version
from cutile.ir.core import Function


class CudaBackend:
    """NVIDIA GPUs from sm_80 on."""

    name = "cuda"
    options = frozenset(
        {"fast_math", "limit_waits", "num_cta_in_cga", "num_pieces", "num_worker_warps", "occupancy"},
    )

    def version(self) -> str:
        """The toolchain's versions."""
        return _version()

    def target(self, arch: str, units: int) -> Target:
        """The target for a device that reports `sm_90` and the like.

        Its own instructions are used where it has any.

        Raises:
            UnsupportedTargetError: the architecture is older than sm_80, or none at all.
        """
        known = architecture(arch)
        name = known.name if known.suffix else for_capability(known.major, known.minor)
        return Target(self.name, name, units)

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function:
        """Decide layouts, conversions, access widths and shared memory."""
        from cutile.backend.cuda.early_start import start_early
        from cutile.backend.cuda.explain import unused
        from cutile.backend.cuda.long_rows import ROW_SUMS
        from cutile.backend.cuda.plans import lower
        from cutile.backend.cuda.target import FLOATS
        from cutile.passes.fast_math import exact_parts

        lowered = start_early(lower(function, target, options), architecture(target.arch))
        lowered.note_unused(unused(function, lowered, options, architecture(target.arch)))
        permitted = [part for part in options.fast_math_parts if part != "contract" or not lowered.facts.get(ROW_SUMS)]
        lowered.note_unused(exact_parts(function, permitted, FAST_MATH, FLOATS))
        return lowered

    def prove(self, lowered: Function) -> None:
        """Run the models of barriers, stages, results and layouts.

        Raises:
            ProtocolError: a warp waits for ever, or writes what another one reads; the message names the operation.
        """
        from cutile.backend.cuda.model.layouts import check_layouts
        from cutile.backend.cuda.model.pipelines import check_function

        check_function(lowered)
        check_layouts(lowered)

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source:
        """Write the Python file that Numba compiles."""
        from cutile.analysis.structure import require_shallow
        from cutile.backend.cuda.emit import emit
        from cutile.backend.cuda.explain import plan

        require_shallow(function)
        source = emit(function, target, options)
        return replace(source, facts={**source.facts, "plan": plan(function, architecture(target.arch))})

    def explain(self, facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
        """The plan in words."""
        from cutile.backend.cuda.explain import explain

        return explain(facts, target)

    def build(self, source: Source, target: Target) -> Executable:
        """Compile to a cubin. Needs Numba, no device."""
        from cutile.backend.cuda.build import build

        return build(source, target)

    def load(self, executable: Executable) -> Loaded[Any]:
        """Make a cubin launchable. Needs no Numba."""
        return load(executable)


@cache
def _version() -> str:
    """Read without importing Numba: a cached cubin is found without it."""
    packages = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-bindings")
    return ", ".join(f"{name} {installed_version(name) or 'from the toolkit'}" for name in packages)


BACKEND = CudaBackend()
