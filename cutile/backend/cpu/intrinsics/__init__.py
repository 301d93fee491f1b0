# pyright: reportUnusedImport=false
# (generated code imports these)
"""The functions that generated CPU code calls, as LLVM IR behind Numba intrinsics.

In the CPU backend, only `build.py` and this folder use Numba.

No file in this folder knows tiles: everything works on single elements, indices and pointers. Generated code may import
the two constants, Numba's types, the functions that are imported here, and the keys of the tables FUNCTIONS and
CONVERSIONS. `emit/_text.py` reads these import lines, and `__all__` of the starred files, as text: it imports no Numba.
"""

from math import inf, nan

import numba

from cutile.backend.cpu.intrinsics.arith import *
from cutile.backend.cpu.intrinsics.atomic import *
from cutile.backend.cpu.intrinsics.calls import *
from cutile.backend.cpu.intrinsics.cast import (
    CONVERSIONS,
    bf16_bits,
    bf16_round,
    bf16_value,
    f16_bits,
    f16_round,
    f16_value,
    to_odd,
)
from cutile.backend.cpu.intrinsics.math import FUNCTIONS
from cutile.backend.cpu.intrinsics.pointer import (
    address_of,
    copy_transposed,
    elements_at,
    load_at,
    load_at_acquire,
    store_at,
    store_at_release,
)
from cutile.backend.cpu.intrinsics.rounding import *
from cutile.backend.cpu.intrinsics.sort import *

bool_, f32, f64 = numba.bool_, numba.float32, numba.float64
i8, i16, i32, i64 = numba.int8, numba.int16, numba.int32, numba.int64
u8, u16, u32, u64 = numba.uint8, numba.uint16, numba.uint32, numba.uint64


def __getattr__(name: str) -> object:
    """The functions of floats; the conversions, one for each type and rounding."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in CONVERSIONS:
        return CONVERSIONS[name]
    raise AttributeError(name)
