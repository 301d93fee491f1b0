"""An entry of the disk cache, for tests that write it, damage it, and kill who writes it."""

from __future__ import annotations

from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.interface import Executable, Parameter, Target
from cutile.dtypes import bf16, f32, u64

EXECUTABLE = Executable(
    Target("cpu", "test", 2),
    b"\x7fELF machine code",
    "saxpy",
    (
        Parameter("y", "pointer", 0, 0, u64),
        Parameter("a", "scalar", 1, 0, f32),
        Parameter("x_map", "tensor_map", 2, 0, bf16, TensorMap((64, 64), 128, (1, 0), True)),
    ),
    {"threads": 128, "division": [["//", ["+", ["extent", 1, 1], 63], 64], [[8, 200, 16]]]},
    "def saxpy(): ...",
    "said the linker",
)
KEY = "ab" + "0" * 62
