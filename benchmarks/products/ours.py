"""Our arm: rounds of products, recorded once as a graph and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.products.cases import Product
from benchmarks.products.operands import DTYPES, RESULTS, Operands
from cuda_async import CudaGraph, Device, Stream
from cuda_async.graph import Scope
from cutile import KernelError, KernelOp, api, tf32
from cutile.bench import DeviceArm
from kernels.gemm import gemm
from kernels.gemm_choice import Choice, choose, how_they_lie, may_be_halved
from kernels.gemm_fused import gemm_fused
from kernels.gemm_variants import gemm_batched, gemm_integers, gemm_tf32, stackable, stacked

SMALL = 32
"""Extents of a product that is only compiled, to see whether it can be."""


class NotThereError(Exception):
    """The library has no such product; the message says what is missing."""


class OurArm:
    """Products by the kernels of `kernels/`.

    Args:
        case: the case.
        sets: the operands of a round.
        device: the device.
        stream: the stream.
        tile: replaces the library's choice.
    """

    name = "cutile"

    def __init__(
        self, case: Product, sets: Sequence[Operands], device: Device, stream: Stream, tile: Choice | None = None
    ) -> None:
        self.sets = sets
        lie = "otherwise" if case.batch else how_they_lie(sets[0].x, sets[0].y)
        dtype = tf32 if case.operand == "tf32" else sets[0].x.dtype
        facts: Any = {"batch": max(case.batch, 1), "lie": lie, "halves": may_be_halved(sets[0].x, sets[0].y, sets[0].z)}
        facts["fast"] = case.fast
        self.choice = tile or choose(case.m, case.n, case.k, dtype, device, **facts)

        def record(scope: Scope) -> None:
            for each in sets:
                scope.record(product(case, each, self.choice))

        product(case, sets[0], self.choice).sync_on(stream)  # compiled outside of the recording
        self._graph = CudaGraph.scope(stream, record)
        self._arm = DeviceArm(self._graph, stream, clear_l2=False)

    def run(self, repeats: int) -> float:
        """Replay the round; return the seconds of the device."""
        return self._arm.run(repeats)

    def close(self) -> None:
        """Let go of the operands."""
        self._graph.close()


def require(case: Product) -> None:
    """Refuse a case before its inputs are drawn.

    Raises:
        NotThereError: there is no kernel for its operands, or it does not compile for them.
    """
    lead = (1,) if case.batch else ()
    x, y, z = (api.meta((*lead, SMALL, SMALL), each) for each in (*[DTYPES[case.operand]] * 2, RESULTS[case.operand]))
    op = product(case, Operands(x, y, y, z), Choice(SMALL, SMALL, SMALL))
    try:
        op.render("passes")
    except KernelError as error:
        raise NotThereError(str(error).splitlines()[0]) from error
    finally:
        op.discard()


def product(case: Product, operands: Operands, choice: Choice) -> KernelOp:
    """The launch of one product."""
    tile = (choice.rows, choice.columns)
    if case.batch and stackable(operands.x, operands.y, choice):
        return stacked(
            operands.x, operands.y, operands.z.reshape((-1, operands.z.shape[2])).mut.partition(tile), choice
        )
    if case.batch:
        return gemm_batched(operands.z.mut.partition((1, *tile)), operands.x, operands.y, BK=choice.depth)
    if case.fast:
        leave = {"BIAS": 0, "RESIDUAL": 0, "FAST_ACC": 1}
        op = gemm_fused(
            operands.z.mut.partition(tile), operands.x, operands.y, operands.y, operands.y, BK=choice.depth, **leave
        )
    else:
        kernel = {"int8": gemm_integers, "tf32": gemm_tf32}.get(case.operand, gemm)
        op = kernel(operands.z.mut.partition(tile), operands.x, operands.y, BK=choice.depth)
    return op if choice.options is None else op.compile_options(choice.options)
