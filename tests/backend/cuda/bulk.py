"""The smallest kernels with tensor maps, and with clusters and a workspace.

In the first, each block copies one box from a tensor to another through shared memory. In the second, each block counts
itself by the size of its cluster.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.intrinsics.fragment import POINTER, frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import I32, I64, VOID, asm, barrier, i32c, shared, thread
from cutile.backend.cuda.intrinsics.tma import TENSOR_MAP, map_address
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.interface import Executable, Parameter, Source, Target
from cutile.dtypes import DTypeLike, i32, u64

TEXT = """\
from cutile.backend.cuda.intrinsics import tma
from tests.backend.cuda import bulk

prefetch = tma.prefetch()
block = bulk.block_number()
copy_box = bulk.copy_box({nbytes})


def bulk_copy(columns, source, target):
    prefetch(source)
    row = block() // columns
    copy_box(source, target, block() % columns * {width}, row * {height})
"""


CENSUS = """\
from tests.backend.cuda import bulk

count = bulk.count()


def census(out, workspace, grid_x):
    count(out, workspace)
"""


@cache
def count() -> Any:
    """`f(out, workspace)`: add 1 to out[blocks in the cluster], and the launch's blocks to the workspace's word."""

    def generate(b: Any, values: list[Any]) -> None:
        out, workspace = values
        cluster = asm(b, I32, [], "mov.u32 $0, %cluster_nctarank;", "=r")
        blocks = asm(b, I32, [], "mov.u32 $0, %nctaid.x;", "=r")
        place = b.add(b.ptrtoint(out, I64), b.zext(b.mul(cluster, i32c(4)), I64))
        add = "{ .reg .u32 t; atom.global.add.u32 t, [$0], $1; }"
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            asm(b, VOID, [place, i32c(1)], add, "l,r,~{memory}", effect=True)
            asm(b, VOID, [b.ptrtoint(workspace, I64), blocks], add, "l,r,~{memory}", effect=True)

    return intrinsic("count", None, [POINTER, POINTER], generate)


def census(**more: Any) -> Executable:
    """The kernel that counts, compiled with these facts. It takes (out, workspace, grid_x)."""
    parameters = (
        Parameter("out", "pointer", 0, 0, u64),
        Parameter("workspace", "workspace", -1, 0, u64),
        Parameter("grid_x", "grid", -1, 0, i32),
    )
    facts = {"threads": 128, "shared_bytes": 0, "min_blocks": 0, "noalias": False} | more
    return BACKEND.build(Source(CENSUS, "census", parameters, {}, facts), Target("cuda", "sm_90a"))


@cache
def block_number() -> Any:
    """`f()`: the block's number in the launch."""
    text = "mov.u32 $0, %ctaid.x;"
    return intrinsic("block_number", frag(i32, 0), [], lambda b, _: asm(b, I32, [], text, "=r"))


@cache
def copy_box(nbytes: int) -> Any:
    """`f(source, target, x, y)`: copy the box of `nbytes` at (x, y), innermost first, by one thread."""

    def generate(b: Any, values: list[Any]) -> None:
        source, target, x, y = values
        box = b.ptrtoint(shared(b, 0), I32)
        arrived = b.add(box, i32c(nbytes))
        first = b.icmp_unsigned("==", thread(b), i32c(0))
        with b.if_then(first):
            asm(b, VOID, [arrived], "mbarrier.init.shared::cta.b64 [$0], 1;", "r,~{memory}", effect=True)
            asm(b, VOID, [], "fence.mbarrier_init.release.cluster;", "~{memory}", effect=True)
            expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            asm(b, VOID, [arrived, i32c(nbytes)], expect, "r,r,~{memory}", effect=True)
            load = (
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[$0], [$1, {$2, $3}], [$4];"
            )
            asm(b, VOID, [box, map_address(b, source), x, y, arrived], load, "r,l,r,r,r,~{memory}", effect=True)
        barrier(b)
        wait = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], 0; @p bra D; bra W; D: }"
        asm(b, VOID, [arrived], wait, "r,~{memory}", effect=True)
        with b.if_then(first):
            store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$2, $3}], [$1];"
            asm(b, VOID, [map_address(b, target), box, x, y], store, "l,r,r,r,~{memory}", effect=True)
            asm(b, VOID, [], "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;", "~{memory}", effect=True)

    integer = frag(i32, 0)
    return intrinsic("copy_box", None, [TENSOR_MAP, TENSOR_MAP, integer, integer], generate)


def bulk_copy(dtype: DTypeLike, source: TensorMap, target: TensorMap, arch: str = "sm_90a") -> Executable:
    """The kernel, compiled. It takes (boxes from left to right, source, target), and a block per box."""
    order = source.memory_order
    height, width = (source.box[axis] for axis in order)
    nbytes = height * width * dtype.bits // 8
    parameters = (
        Parameter("columns", "scalar", 0, 0, i32),
        Parameter("source", "tensor_map", 1, 0, dtype, source),
        Parameter("target", "tensor_map", 2, 0, dtype, target),
    )
    facts = {"threads": 128, "shared_bytes": nbytes + 1024, "min_blocks": 0, "noalias": False}
    text = TEXT.format(nbytes=nbytes, width=width, height=height)
    return BACKEND.build(Source(text, "bulk_copy", parameters, {}, facts), Target("cuda", arch))
