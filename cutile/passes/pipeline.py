"""The order of the target-neutral passes, and the reason for each place.

Each pass leaves valid IR, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable

from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.bounds import bounds, reach
from cutile.passes.checks import checks
from cutile.passes.fold import fold, minmax
from cutile.passes.redundancy import cse, dce, licm

Pass = Callable[[Function], Function]

PASSES: tuple[Pass, ...] = (
    fold,  # first: constants make more operations equal
    reach,  # before bounds: an index that is checked needs no clamp, and bounds removes checks
    bounds,  # while loops are as written, with folded bounds; no later pass need move the checks that it removes
    cse,  # before licm: fewer operations to move
    minmax,  # after cse: the compared operands and the selected ones are the same values now
    licm,  # after cse has merged a loop's operations with those outside
    checks,  # the remaining checks, once their operands stand before the loops in which they do not change
    cse,  # operations that left two loops may be equal
    dce,  # last: the passes above leave unused operations behind
)


def run_passes(function: Function, *, check: bool = True) -> Function:
    """The function after every pass.

    Raises:
        IRError: a pass left invalid IR; the message names it.
    """
    if check:
        verify(function)
    for pass_ in PASSES:
        function = pass_(function)
        if check:
            try:
                verify(function)
            except Exception as error:
                error.add_note(f"after the pass {pass_.__name__!r}")
                raise
    return function
