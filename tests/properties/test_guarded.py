"""Memory between inaccessible pages: it holds what it is given, and who leaves it is ended and told."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from cutile.dtypes import DTYPES
from tests.properties.generator.arguments import random_values
from tests.properties.guarded import PAGE, Guarded, guarded


@pytest.mark.parametrize("at_end", [True, False])
def test_guarded_tensors_hold_their_values(at_end: bool) -> None:
    for dtype in DTYPES:
        if dtype.format is None or dtype.kind == "float":
            values = random_values(np.random.default_rng(1), dtype, (3, 5))
            assert np.array_equal(guarded(values, at_end).to_numpy().sync(), values), dtype


def test_guarded_memory_touches_a_guard_page() -> None:
    assert (Guarded(24, at_end=True).address + 24) % PAGE == 0
    assert Guarded(24, at_end=False).address % PAGE == 0


BESIDE = """
import ctypes
from tests.properties.guarded import Guarded
memory = Guarded(24, at_end={at_end})
ctypes.c_char.from_address(memory.address + {inside}).value
print("inside", flush=True)
ctypes.c_char.from_address(memory.address + {outside}).value
print("outside", flush=True)
"""
KERNEL = """
from tests.properties.generator.arguments import Output, Pointer
from tests.properties.generator.kernel import RandomKernel
from tests.properties.running import run
from cutile import f32
body = "    out.store((p + (ct.iota(4) + {first})).load())\\n"
case = RandomKernel(body, (Output("out", f32, (4,), tile=(4,)), Pointer("p", f32, 4)), 0, unsafe=True)
run(case, "guarded")
print("inside", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (BESIDE.format(at_end=True, inside=23, outside=24), "inside\n"),
        (BESIDE.format(at_end=False, inside=0, outside=-1), "inside\n"),
        (KERNEL.format(first=1), ""),
    ],
)
def test_a_byte_beside_the_memory_ends_the_process(program: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert done.stdout == said


@pytest.mark.slow
def test_a_kernel_that_stays_inside_runs() -> None:
    command = [sys.executable, "-c", KERNEL.format(first=0)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=500, check=False).stdout == "inside\n"
