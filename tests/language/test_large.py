"""Tensors beyond 2**31 and 2**32 elements: on a GPU, in a process that gives the memory back; small ones on the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cuda_async import Device
from tests.language.large_run import GIB, check_copies, check_operand, check_result
from tests.support.devices import on


def test_the_checks_hold_of_small_tensors() -> None:
    with on("reference"):
        check_copies(5000)
        check_operand(200, 130, 64)
        check_result(200, 300, 64)


@pytest.mark.gpu
def test_what_32_bits_do_not_count() -> None:
    free = Device(0).memory_info().free
    if free < 14 * GIB:
        pytest.skip(f"needs 14 GiB of device memory, {free / GIB:.1f} are free")
    command = [sys.executable, "-m", "tests.language.large_run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout == "right: copies\nright: operand\nright: result\n", done.stdout + done.stderr
