"""A product whose pipeline is broken on purpose, on a GPU, in its own process: it ends, and names the wait.

    CUTILE_CACHE_DIR=$(mktemp -d) python -m tests.backend.cuda.fault_run "never given up"

Without the limit on waits such a kernel never ends. What it compiles is wrong, and must not stay in anybody's cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cuda_async import Device, DeviceError
from cutile import CompileOptions, api, bf16
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.ops import PipelineAcquire, PipelineRelease, TmaLoad
from cutile.ir.core import Block, Function, Op
from kernels.gemm import gemm


def _blocks(block: Block) -> list[Block]:
    return [block, *(each for op in block.operations for nested in op.regions for each in _blocks(nested))]


def _without(function: Function, unwanted: Callable[[Op], bool]) -> None:
    for block in _blocks(function.body):
        block.operations[:] = [op for op in block.operations if not unwanted(op)]


def never_given_up(function: Function) -> None:
    """No stage is released, so that the producer waits in its second round."""
    _without(function, lambda op: isinstance(op, PipelineRelease))


def never_arrives(function: Function) -> None:
    """More bytes are announced than are loaded, so that the consumers wait."""
    (acquire,) = (op for op in function.walk() if isinstance(op, PipelineAcquire))
    acquire.attributes["nbytes"] += 16


def not_loaded(function: Function) -> None:
    """One operand is not loaded at all."""
    _without(function, lambda op: isinstance(op, TmaLoad) and op.x.name == "y")


FAULTS: dict[str, Callable[[Function], None]] = {
    "never given up": never_given_up,
    "never arrives": never_arrives,
    "not loaded": not_loaded,
}


def run(fault: str) -> None:
    """Launch the product; print the error that it ends with."""
    lower: Callable[..., Function] = BACKEND.lower

    def lower_and_break(*given: Any) -> Function:
        made = lower(*given)
        FAULTS[fault](made)
        return made

    setattr(BACKEND, "lower", lower_and_break)  # noqa: B010  for the rest of this process
    with Device(0):
        x, y = api.ones((256, 1024), bf16).sync(), api.ones((1024, 512), bf16).sync()
        op = gemm(api.zeros((256, 512), bf16).partition((128, 256)), x, y, BK=64)
        try:
            op.compile_options(CompileOptions(limit_waits=True)).sync()
        except DeviceError as error:
            print(type(error).__name__, error)
        else:
            print("it came to an end")


if __name__ == "__main__":
    run(sys.argv[1])
