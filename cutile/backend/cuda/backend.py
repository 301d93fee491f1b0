"""The manifest: this backend's verbs in one place.

Each verb imports its modules itself, so that loading a cached kernel imports neither the compiler nor Numba.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from cutile.backend.cuda.load import load
from cutile.backend.cuda.target import architecture, for_capability
from cutile.backend.interface import FAST_MATH, Attempt, CompileOptions, Executable, Loaded, Row, Source, Target
from cutile.errors import KernelTypeError
from cutile.installation import installed_version
from cutile.ir import Constant
from cutile.ir.core import Function


class CudaBackend:
    """NVIDIA GPUs from sm_80 on."""

    name = "cuda"
    options = frozenset(
        {"fast_math", "limit_waits", "num_cta_in_cga", "num_pieces", "num_worker_warps", "occupancy"},
    )

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The builds that are tried while a kernel spills registers. Needs Numba."""
        from cutile.backend.cuda.build import ATTEMPTS

        return ATTEMPTS

    def version(self) -> str:
        """The toolchain's versions."""
        return _version()

    def target(self, arch: str, units: int) -> Target:
        """The target for a device that reports an architecture such as `sm_90`.

        From sm_90 on its name has the suffix "a": code may then use instructions that only this architecture has.

        Args:
            arch: the architecture's name.
            units: multiprocessors of the device.

        Raises:
            UnsupportedTargetError: the architecture is older than sm_80, or none at all.
        """
        known = architecture(arch)
        name = known.name if known.suffix else for_capability(known.major, known.minor)
        return Target(self.name, name, units)

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function:
        """Decide layouts, conversions, access widths and shared memory.

        Raises:
            KernelTypeError: the kernel's tiles do not fit, or take minutes to compile.
        """
        from cutile.backend.cuda.early_start import start_early
        from cutile.backend.cuda.explain import unused
        from cutile.backend.cuda.lane_sums import defer_lane_sums
        from cutile.backend.cuda.long_rows import ROW_SUMS
        from cutile.backend.cuda.plans import lower
        from cutile.backend.cuda.target import FLOATS
        from cutile.passes.fast_math import exact_parts

        lowered = start_early(defer_lane_sums(lower(function, target, options)), architecture(target.arch))
        _check_elements(lowered, target.arch)
        lowered.note_unused(unused(function, lowered, options, architecture(target.arch)))
        # `exact_parts` looks at `function`. Only `lowered` has sums of row slices, to which `contract` was applied.
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


# Found by compiling x + 1 for sm_90a with nvJitLink 13.5, on a busy AMD EPYC, in seconds of CPU time: the linker takes
# 1.3 s for 256 elements a thread, 3.9 s for 512, 16.5 s for 1024, and kernels that spill are linked twice. With
# exponentials, 1024 take 26.8 s. Numba and NVVM take 2.1 s. The code is written out for each element of a thread.
MAX_THREAD_ELEMENTS = 1024
"""Elements of a tile for each thread, beyond which a kernel is refused."""
FAST_THREAD_ELEMENTS = 64
"""Elements of a tile for each thread that stay in registers, which an error recommends."""


def _check_elements(lowered: Function, arch: str) -> None:
    """Refuse tiles whose code takes minutes to compile.

    Nearly all elements of such a tile would spill to memory.

    Raises:
        KernelTypeError: a tile is too large; the message is at its operation, and names the largest accepted size.
    """
    from cutile.backend.cuda.lowering_context import layouts_of

    layouts, threads = layouts_of(lowered), lowered.facts["threads"]
    large = {name: layout for name, layout in layouts.items() if layout.registers > MAX_THREAD_ELEMENTS}
    for op in lowered.walk() if large else ():
        names = [op.attributes.get(name) for name in ("layout", "source")]
        layout = next((large[name] for name in names if isinstance(name, str) and name in large), None)
        if layout is not None and not isinstance(op, Constant):
            raise KernelTypeError(
                f"{lowered.name}: a tile of shape {layout.shape} has {layout.registers} elements for each of "
                f"{threads} threads on {arch}, whose registers hold some 100; more than {MAX_THREAD_ELEMENTS} are "
                "refused, since they take minutes to compile",
                op.location,
                f"Use tiles of at most {MAX_THREAD_ELEMENTS * threads} elements, and of "
                f"{FAST_THREAD_ELEMENTS * threads} for speed: a smaller partition, or a loop over the parts of a tile.",
            )


@cache
def _version() -> str:
    # From the packages' metadata: a cached cubin is looked up without importing Numba.
    packages = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-bindings")
    return ", ".join(f"{name} {installed_version(name) or 'from the toolkit'}" for name in packages)


BACKEND = CudaBackend()
