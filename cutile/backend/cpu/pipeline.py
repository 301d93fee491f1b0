"""The order of this target's passes, and the reason for each place. Pure: IR in, IR out."""

from __future__ import annotations

from cutile.backend.cpu.lowering.function import lower_function
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import f32
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.dce import dce
from cutile.passes.unscale import unscale


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """Tiles to loops.

    None of the options apply to a CPU; they are in the cache key all the same.

    Raises:
        IRError: an operation is unknown here, or what came out breaks a rule of the IR.
    """
    del target, options
    lowered = lower_function(unscale(function, f32))
    verify(lowered)
    return dce(lowered)  # last: lowering computes every offset and extent that may be needed
