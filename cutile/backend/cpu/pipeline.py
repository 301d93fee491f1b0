"""The order of this target's passes, and the reason for each place. Pure: IR in, IR out."""

from __future__ import annotations

from cutile.backend.cpu.lowering.function import lower_function
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import f32, f64
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.dce import dce
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.lower_scaled_mma import lower_scaled_mma


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """Tiles to loops.

    Of the options, `fast_math` alone applies to a CPU: it fuses multiply-adds of f32 and f64, by its own instruction.
    Those of 16-bit floats would take several, to be rounded once; quotients and roots cost no less for being inexact.

    Raises:
        IRError: an operation is unknown here, or what came out breaks a rule of the IR.
    """
    del target
    parts = [part for part in options.fast_math_parts if part == "contract"]
    relaxed = fast_math(lower_scaled_mma(function, f32), parts, (f32, f64))
    lowered = lower_function(relaxed)
    lowered.facts |= {key: value for key, value in relaxed.facts.items() if key == FACT}
    verify(lowered)
    return dce(lowered)  # last: lowering computes every offset and extent that may be needed
