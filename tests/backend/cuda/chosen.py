"""Every product that the library may launch on a GPU, by its own calls, with tensors without memory.

    python -m tests.backend.cuda.chosen                       # all for sm_90a: what spills, if anything does
    python -m tests.backend.cuda.chosen --arch sm_80 --processes 16 --only residual

It needs no GPU. Tests compile some of these kernels, and check that the library's choices are among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product, repeat
from multiprocessing import get_context
from typing import Any, Literal

from cuda_async import Device, DeviceOp
from cuda_async.driver.interface import DeviceProperties
from cuda_async.driver.sim import SimDriver
from cutile import CompileOptions, DType, Tensor, api, bf16, config, f8e4m3fn, f32, i8, i32, launches_of, tf32
from cutile.backend.interface import Executable
from cutile.backend.registry import backend
from cutile.compile import driver
from cutile.compile.driver import Request, front, lower
from cutile.errors import KernelError
from cutile.passes.pipeline import run_passes
from kernels.gemm import facts_of, matmul
from kernels.gemm_choice import Choice, Lie, every_choice, how_they_lie
from kernels.gemm_fused import ACTIVATIONS, Activation
from kernels.gemm_variants import batched_matmul, gemm_batched, integer_matmul, stackable, stacked, tf32_matmul

Call = Literal["matmul", "batched", "integer", "tf32"]
Extents = tuple[int, int, int]
UNITS = {"sm_90a": 132, "sm_80": 108, "sm_100a": 148}
RESULTS: dict[type[DType], type[DType]] = {f8e4m3fn: bf16, i8: i32}
LIES: tuple[Lie, ...] = ("along", "right across", "left across", "both across", "otherwise")
SIZE = (1024, 1024, 1024)
"""Extents of a product of which only the tile matters."""


@cache
def described(arch: str) -> Device:
    """A device with a GPU's properties, on the simulated driver."""
    device = Device.from_driver(SimDriver())
    device.properties = DeviceProperties("cuda", 0, f"a described {arch}", arch, UNITS[arch], 50 << 20, 80 << 30)
    return device


@dataclass(frozen=True)
class Kind:
    """A kind of product: one call of the library, but for the extents.

    Attributes:
        call: the function.
        dtype: of the operands.
        lie: their layout in memory; "otherwise": rows begin at odd places.
        bias, activation, residual: the epilogue.
        fast: whether the tensor cores accumulate 8-bit floats, without partial accumulators.
    """

    call: Call
    dtype: type[DType]
    lie: Lie = "right across"
    bias: bool = False
    activation: Activation = "none"
    residual: bool = False
    fast: bool = False

    def __str__(self) -> str:
        after = (
            ["fast"] * self.fast
            + ["bias"] * self.bias
            + [self.activation] * (self.activation != "none")
            + ["residual"] * self.residual
        )
        return f"{self.call} of {self.dtype}, {self.lie}" + "".join(f", {each}" for each in after)

    def tensors(self, device: Device, extents: Extents) -> tuple[Tensor, Tensor, Tensor]:
        """Its operands and its result."""
        m, n, k = (extent | 1 if self.lie == "otherwise" else extent for extent in extents)
        lead = (8,) if self.call == "batched" else ()
        meta = partial(api.meta, device=device)
        turned = self.lie in ("left across", "both across"), self.lie in ("along", "left across")
        x = meta((k, m), self.dtype).transpose() if turned[0] else meta((*lead, m, k), self.dtype)
        y = meta((n, k), self.dtype).transpose() if turned[1] else meta((*lead, k, n), self.dtype)
        return x, y, meta((*lead, m, n), RESULTS.get(self.dtype, self.dtype))

    def request(self, device: Device, extents: Extents, tile: Choice | None = None) -> Request:
        """The request to compile such a product, with the library's tile, or with another one."""
        (launch,) = launches_of(lambda: self._op(*self.tensors(device, extents), tile), device=device)
        request = launch.request()
        assert request is not None
        return request if tile is None else replace(request, options=tile.options or CompileOptions())

    def _op(self, x: Tensor, y: Tensor, z: Tensor, tile: Choice | None) -> DeviceOp[Any]:
        said: dict[str, Any] = {} if tile is None else {"tile": (tile.rows, tile.columns), "depth": tile.depth}
        if self.call == "matmul":
            meta = partial(api.meta, dtype=z.dtype, device=x.device)
            bias, residual = meta(z.shape[1:]) if self.bias else None, meta(z.shape) if self.residual else None
            said |= {"activation": self.activation, "use_fast_acc": self.fast}
            return matmul(x, y, out=z, bias=bias, residual=residual, **said)
        if self.call != "batched":
            return (integer_matmul if self.call == "integer" else tf32_matmul)(x, y, out=z, **said)
        if tile is None:
            return batched_matmul(x, y, out=z)
        if stackable(x, y, tile):
            return stacked(x, y, z.reshape((-1, z.shape[2])).mut.partition((tile.rows, tile.columns)), tile)
        return gemm_batched(z.partition((1, tile.rows, tile.columns)), x, y, BK=tile.depth)

    def choices(self, device: Device) -> list[Choice]:
        """The tiles that the library may choose, whatever the extents."""
        if self.call == "batched":  # whose hints are left out
            found = every_choice(self.dtype, device.arch, batch=8)
            return [each for each in found if each.options is None]
        x, y, z = self.tensors(device, SIZE)
        if self.call == "matmul":
            alone = not (self.bias or self.residual or self.fast) and self.activation == "none"
            facts = facts_of(x, y, z, bias=self.bias, residual=self.residual, fast=self.fast, alone=alone)
            return every_choice(self.dtype, device.arch, **facts)
        return every_choice(tf32 if self.call == "tf32" else self.dtype, device.arch, lie=how_they_lie(x, y))


def kinds() -> Iterator[Kind]:
    """All kinds, but for dtypes and activations that take the same registers as others."""
    floats = (bf16, f8e4m3fn, f32)
    for dtype, lie in product(floats, LIES):
        yield Kind("matmul", dtype, lie)
        for bias, activation, residual in product((False, True), ACTIVATIONS, (False, True)):
            if bias or residual or activation != "none":
                yield Kind("matmul", dtype, lie, bias, activation, residual)
    for lie in LIES:
        yield Kind("matmul", f8e4m3fn, lie, fast=True)
        yield Kind("matmul", f8e4m3fn, lie, bias=True, activation="silu", residual=True, fast=True)
        yield Kind("integer", i8, lie)
        yield Kind("tf32", f32, lie)
    for dtype, lie in product((bf16, f32), ("right across", "otherwise")):
        yield Kind("batched", dtype, lie)


def machine_code(request: Request) -> Executable:
    """Compile through all stages, without the caches."""
    made_by, function = backend(request.target.backend), run_passes(front(request).function)
    source = made_by.emit(lower(request, function, True), request.target, request.options)
    return driver.machine_code(function, source, request.target, request.options, made_by.build, config.load())


def faults(executable: Executable) -> str:
    """The faults of machine code, as text; empty if there are none."""
    facts = executable.facts
    if not facts["registers"]:
        return f"the linker said nothing: {executable.log!r}"  # a log that is not there has no complaints
    found = [f"{facts[name]} bytes of {name}" for name in ("spills", "stack") if facts[name]]
    return "; ".join([*found, *facts["remarks"]])


def _tried(kind: Kind, tile: Choice, arch: str) -> str:
    """A line with a kernel's faults; empty if it has none."""
    try:
        found = faults(machine_code(kind.request(described(arch), SIZE, tile)))
    except KernelError as error:
        found = str(error).splitlines()[0]
    return found and f"{kind}, {tile.rows} x {tile.columns} x {tile.depth}, {tile.options}: {found}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile; return 1 if a kernel has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.backend.cuda.chosen", description="compile the products")
    parser.add_argument("--arch", default="sm_90a", choices=sorted(UNITS), help="what for (default sm_90a)")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with this in their names")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N tiles")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time")
    options = parser.parse_args(arguments)
    chosen = [each for each in kinds() if options.only in str(each)]
    work = [(kind, tile) for kind in chosen for tile in kind.choices(described(options.arch))][:: options.every]
    print(f"{len(work)} kernels of {len(chosen)} kinds for {options.arch}", flush=True)
    wrong = 0
    with ExitStack() as stack:
        tried = map(_tried, *zip(*work, strict=True), repeat(options.arch))
        if options.processes > 1:
            pool = stack.enter_context(ProcessPoolExecutor(options.processes, get_context("spawn")))
            tried = pool.map(_tried, *zip(*work, strict=True), repeat(options.arch), chunksize=4)
        for line in tried:
            if line:
                print(line, flush=True)
                wrong += 1
    print(f"{len(work) - wrong} are as they should be, {wrong} are not")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
