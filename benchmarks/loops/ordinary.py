# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""More cases of `benchmarks.loops`: products whose loads depend on numbers from memory, or on control flow."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import cutile as ct
from benchmarks.loops.cases import Arms, GraphArm, Loop, OurArm, TorchArm, drawn, poisoned
from cuda_async import Device
from cutile import CompileOptions, Const, KernelOp, Mut, Tensor, api, bf16, f32, u16
from kernels.convolution import convolution
from kernels.experts import experts
from kernels.gemm import facts_of, gemm
from kernels.gemm_choice import choose
from kernels.prepacked import prepack, prepacked_weights
from kernels.quantised import FEW_ROWS, int4_weights, int8_weights

# -- kernels --------------------------------------------------------------------------------------


@ct.entry
def stream(z: ct.MappedPartitionMut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = x @ w; each tile block loops over its own tiles."""
    BM, BN = z.shape
    for index in z.iter_indices():
        i, j = index.coords()
        acc = ct.constant(0, (BM, BN), f32)
        for k in range(ct.ceil_div(x.shape[1], BK)):
            acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
        z.store(acc.astype(z.dtype), index)


@ct.entry
def counted(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = x @ w, in a `while` loop with a counter of its own."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    k = 0
    while k < ct.ceil_div(x.shape[1], BK):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
        k += 1
    z.store(acc.astype(z.dtype))


@ct.entry
def masked(z: Mut, x: Tensor, w: Tensor, mask: Tensor, *, BK: Const = 64):
    """z = the sum of x[:, k] @ w[k] over the steps k that a mask in memory selects."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        if ct.load_tile(mask, (1,), (k,)).reshape(()) != 0:
            acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    z.store(acc.astype(z.dtype))


@ct.entry
def paged(z: Mut, x: Tensor, w: Tensor, table: Tensor, *, BK: Const = 64):
    """z = x @ w, with the rows of w in pages whose numbers are in a table."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        page = ct.load_tile(table, (1,), (k,)).reshape(())
        right = ct.load_tile(w, (1, BK, BN), (page, 0, j)).reshape((BK, BN))
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), right, acc)
    z.store(acc.astype(z.dtype))


@ct.entry
def batched(z: Mut, x: Tensor, w: Tensor, length: Tensor, *, BK: Const = 64):
    """z[b] = x[b, :, :n] @ w[b, :n], where n is length[b]."""
    _, BM, BN = z.shape
    b, i, j = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(ct.load_tile(length, (1,), (b,)).reshape(()), BK)):
        left = ct.load_tile(x, (1, BM, BK), (b, i, k)).reshape((BM, BK))
        right = ct.load_tile(w, (1, BK, BN), (b, k, j)).reshape((BK, BN))
        acc = ct.mma(left, right, acc)
    z.store(acc.astype(z.dtype).reshape(z.shape))


@ct.entry
def normed(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = rms_norm(x) @ w: the rows' squares are added up beside the product."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc, squares = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, 1), f32)
    for k in range(ct.ceil_div(x.shape[1], BK)):
        left = ct.load_tile(x, (BM, BK), (i, k))
        wide = left.astype(f32)
        squares = squares + ct.reduce_sum(wide * wide, 1).reshape((BM, 1))
        acc = ct.mma(left, ct.load_tile(w, (BK, BN), (k, j)), acc)
    z.store((acc * ct.rsqrt(squares / x.shape[1])).astype(z.dtype))


# -- arms -----------------------------------------------------------------------------------------

M, N, K, EXPERTS, BATCH = 8192, 8192, 4096, 8, 8
SCALE = 1 / 8


def plain_arm(torch: Any, left: Any, right: Any) -> OurArm:
    """Our plain product of two matrices."""
    out, ours = poisoned(torch, left.shape[0], right.shape[1])
    product = plain_op(ours, api.from_dlpack(left), api.from_dlpack(right))
    return OurArm(product, out, left.double() @ right.double(), "our plain product")


def plain_op(z: Tensor, x: Tensor, w: Tensor) -> KernelOp:
    """Our plain product."""
    (rows, columns), depth = z.shape, x.shape[1]
    tile = choose(rows, columns, depth, bf16, Device(0), **facts_of(x, w, z))
    op = gemm(z.mut.partition((tile.rows, tile.columns)), x, w, BK=tile.depth)
    return op if tile.options is None else op.compile_options(tile.options)


def beside_plain(torch: Any, kernel: Callable[[Tensor, Tensor, Tensor], KernelOp]) -> Arms:
    """A kernel that computes x @ w in its own way, beside our plain product and cuBLAS."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE)
    out, ours = poisoned(torch, M, N)
    torch.cuda.synchronize()
    plain = plain_arm(torch, x, w)
    op = kernel(ours, api.from_dlpack(x), api.from_dlpack(w))
    return OurArm(op, out, plain.exact), [plain, TorchArm(torch, "cublas", lambda: x @ w, plain.exact)]


def stream_arms(torch: Any) -> Arms:
    """Tile blocks that loop over tiles."""
    blocks = Device(0).multiprocessor_count
    return beside_plain(torch, lambda z, x, w: stream(z.mut.partition((128, 256)).map((16, 1), blocks), x, w))


def counted_arms(torch: Any) -> Arms:
    """A `while` loop."""
    return beside_plain(torch, lambda z, x, w: counted(z.mut.partition((128, 256)), x, w))


def masked_arms(torch: Any) -> Arms:
    """A product under a branch that a mask in memory decides; it is always taken."""
    mask = torch.ones(K // 64, device="cuda", dtype=torch.int32)
    return beside_plain(torch, lambda z, x, w: masked(z.mut.partition((128, 256)), x, w, api.from_dlpack(mask)))


def paged_arms(torch: Any) -> Arms:
    """Rows of w in pages, in any order."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE)
    table = torch.randperm(K // 64, device="cuda").to(torch.int32)
    pages = torch.empty(K // 64, 64, N, device="cuda", dtype=torch.bfloat16)
    pages[table.long()] = w.reshape(K // 64, 64, N)
    out, ours = poisoned(torch, M, N)
    torch.cuda.synchronize()
    plain = plain_arm(torch, x, w)
    inputs = [api.from_dlpack(each) for each in (x, pages, table)]
    return OurArm(paged(ours.mut.partition((128, 256)), *inputs), out, plain.exact), [plain]


def batched_arms(torch: Any) -> Arms:
    """A batch of products, each with a K from a list in memory, beside one plain product of as much arithmetic."""
    rows = M // 4
    x, w = drawn(torch, BATCH, rows, K, scale=SCALE), drawn(torch, BATCH, K, N // 2, scale=SCALE)
    length = torch.full((BATCH,), K, device="cuda", dtype=torch.int32)
    out, ours = poisoned(torch, BATCH, rows, N // 2)
    exact = x.double() @ w.double()
    torch.cuda.synchronize()
    inputs = [api.from_dlpack(each) for each in (x, w, length)]
    plain = plain_arm(torch, drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE))
    peers = [plain, TorchArm(torch, "torch.bmm", lambda: torch.bmm(x, w), exact)]
    return OurArm(batched(ours.mut.partition((1, 128, 256)), *inputs), out, exact), peers


def experts_arms(torch: Any) -> Arms:
    """Products of experts, beside torch's grouped product, and our plain product of as much arithmetic."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, EXPERTS, K, N, scale=SCALE)
    tiles = torch.multinomial(torch.ones(EXPERTS, device="cuda"), M // 128, replacement=True).sort().values
    ends = torch.bincount(tiles, minlength=EXPERTS).cumsum(0).to(torch.int32) * 128
    exact = torch.cat([x[128 * i : 128 * (i + 1)].double() @ w[e].double() for i, e in enumerate(tiles.tolist())])
    out, ours = poisoned(torch, M, N)
    torch.cuda.synchronize()
    inputs = [api.from_dlpack(each) for each in (x, w, tiles.to(torch.int32))]
    peers = [
        TorchArm(torch, "torch", lambda: torch._grouped_mm(x, w, offs=ends), exact),
        plain_arm(torch, x, w[0]),
    ]
    return OurArm(experts(ours.mut.partition((128, 256)), *inputs), out, exact), peers


def normed_arms(torch: Any) -> Arms:
    """A norm of the rows, and their product, beside our plain product, and torch's norm and product."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE)
    out, ours = poisoned(torch, M, N)
    exact = (x.double() @ w.double()) * x.double().square().mean(1, keepdim=True).rsqrt()
    torch.cuda.synchronize()
    op = normed(ours.mut.partition((128, 256)), api.from_dlpack(x), api.from_dlpack(w))
    by_torch = TorchArm(torch, "torch", lambda: torch.nn.functional.rms_norm(x, (K,)) @ w, exact)
    return OurArm(op, out, exact), [plain_arm(torch, x, w), by_torch]


class RotatingArm(GraphArm):
    """Launches of one kernel over several sets of operands, all of them as one CUDA graph.

    Args:
        make: returns a launch, given the number of its set and the tensor for its result.
        count: the number of sets, so many that they do not fit the L2 cache together.
        exact: the expected result, in float64.
    """

    def __init__(
        self, torch: Any, make: Callable[[int, Tensor], KernelOp], count: int, exact: Any, name: str = "cutile"
    ) -> None:
        results = [poisoned(torch, *exact.shape) for _ in range(count)]
        torch.cuda.synchronize()
        launches = [make(number, out) for number, (_, out) in enumerate(results)]
        super().__init__(launches, results[0][0], exact, name)
        self._count = count

    def run(self, repeats: int) -> float:
        """Launch the graph `repeats` times; return the device's seconds for one set of operands in each."""
        return super().run(repeats) / self._count


@dataclass(frozen=True)
class Quantised:
    """A launch of a product with quantised weights; tile, groups and options are the fastest on an H200, by tuning.

    Attributes:
        rows: rows of x.
        bits: bits of a weight.
        tile: rows and columns of a tile.
        groups: groups of 64 of K that are loaded at once.
        options: compile options; launches choose the number of splits (split-K) by themselves.
        columns: columns of the result.
        prepacked: whether weights are stored in the order of threads (`kernels/prepacked.py`), or column-major.
    """

    rows: int
    bits: int
    tile: tuple[int, int]
    groups: int = 2
    options: CompileOptions | None = None
    columns: int = 8192
    prepacked: bool = False

    @property
    def name(self) -> str:
        """The name of the case."""
        kind = "prepacked" if self.prepacked else "int"
        return f"{kind}{self.bits}-{self.rows}" + (f"-{self.columns}" if self.columns != DEPTH else "")

    @property
    def what(self) -> str:
        """The computation, in words."""
        return f"x @ w^T with {'prepacked ' if self.prepacked else ''}w of {self.bits} bits"


DEPTH = 8192
"""K of products with quantised weights."""
TWICE = CompileOptions(occupancy=2)
"""Two thread blocks on a multiprocessor: with few rows, one alone converts weights too slowly."""
QUANTISED = (
    Quantised(4096, 8, (256, 128)),
    Quantised(128, 8, (128, 128)),
    Quantised(16, 8, (16, 64), options=TWICE),
    Quantised(16, 8, (16, 64), groups=4, options=TWICE, columns=28672),
    Quantised(4096, 4, (256, 128)),
    Quantised(128, 4, (128, 128)),
    Quantised(16, 4, (16, 64), groups=4, options=TWICE),
    Quantised(16, 4, (16, 256), groups=4, columns=28672),
    Quantised(4096, 8, (256, 128), prepacked=True),
    Quantised(128, 8, (128, 128), prepacked=True),
    Quantised(16, 8, (16, 64), options=TWICE, prepacked=True),
    Quantised(16, 8, (16, 64), groups=4, options=TWICE, columns=28672, prepacked=True),
    Quantised(4096, 4, (256, 128), prepacked=True),
    Quantised(128, 4, (128, 128), prepacked=True),
    Quantised(16, 4, (16, 64), groups=4, options=TWICE, prepacked=True),
    Quantised(16, 4, (16, 256), groups=4, columns=28672, prepacked=True),
)
ROTATING_BYTES = 1 << 28
"""Bytes of weights that rotate if rows are few; far more than the L2 cache holds."""
MANY_ROWS = 512
"""Rows from which on a product takes longer than reading its weights, so that these need not rotate."""


def quantised_arms(torch: Any, how: Quantised) -> Arms:
    """Weights of 8 or 4 bits with scales, beside our plain product with the same weights in bf16."""
    k, n = DEPTH, how.columns
    x = drawn(torch, how.rows, k)
    w = torch.randint(0, 256, (n, k * how.bits // 8), device="cuda", dtype=torch.uint8)
    scale = (torch.rand(k // 64, n, device="cuda") / 64).bfloat16()
    whole = w.view(torch.int8).double()
    if how.bits == 4:
        halves = w.reshape(n, k // 64, 32)
        whole = torch.cat((halves & 15, halves >> 4), 2).reshape(n, k).double() - 8
    wide = (whole * scale.double().repeat_interleave(64, 0).T).bfloat16()
    kernel, weights = (int8_weights, w.view(torch.int8)) if how.bits == 8 else (int4_weights, w)
    if how.prepacked:
        kernel, weights = prepacked_weights, torch.from_numpy(prepack(weights.cpu().numpy()).view(np.int16)).cuda()
    copies = [weights, *(weights.clone() for _ in range(_rotating(how.rows, weights) - 1))]
    wides = [wide, *(wide.clone() for _ in range(_rotating(how.rows, wide) - 1))]
    exact = x.double() @ wide.double().T
    left, by = api.from_dlpack(x), api.from_dlpack(scale)

    def quantised(number: int, out: Tensor) -> KernelOp:
        at_once = {"GROUPS": how.groups, "LEFT": how.groups if how.tile[0] < FEW_ROWS else 1}
        stored = api.from_dlpack(copies[number])
        if how.prepacked:  # torch's arrays of 16 bits have signs
            at_once["BITS"], stored = how.bits, stored.reinterpret(u16, stored.shape)
        op = kernel(out.mut.partition(how.tile), left, stored, by, **at_once)
        return op if how.options is None else op.compile_options(how.options)

    def plain(number: int, out: Tensor) -> KernelOp:
        return plain_op(out, left, api.from_dlpack(wides[number].T))

    ours = RotatingArm(torch, quantised, len(copies), exact)
    return ours, [RotatingArm(torch, plain, len(wides), exact, "our plain product")]


def _rotating(rows: int, weights: Any) -> int:
    """Copies of the weights that a graph goes through; one if reading the weights does not decide the time."""
    return 1 if rows >= MANY_ROWS else max(1, ROTATING_BYTES // weights.nbytes)


IMAGES, SIDE, CHANNELS, FILTERS = 16, 64, 256, 256


def convolution_arms(torch: Any) -> Arms:
    """A convolution of images that have a border, beside cuDNN's of the same images, without padding."""
    functional = importlib.import_module("torch.nn.functional")
    x = drawn(torch, IMAGES, SIDE + 2, SIDE + 2, CHANNELS, scale=SCALE)
    w = drawn(torch, 3, 3, CHANNELS, FILTERS, scale=SCALE)
    out, ours = poisoned(torch, IMAGES * SIDE, SIDE, FILTERS)
    exact = torch.zeros(IMAGES, SIDE, SIDE, FILTERS, device="cuda", dtype=torch.float64)
    for r in range(3):
        for s in range(3):
            exact += x[:, r : r + SIDE, s : s + SIDE].double() @ w[r, s].double()
    exact = exact.reshape(out.shape)
    torch.cuda.synchronize()
    inputs = [api.from_dlpack(each) for each in (x, w)]
    op = convolution(ours.mut.partition((8, 16, 256)), *inputs, SIDE)
    torch.backends.cudnn.benchmark = True
    images = x.permute(0, 3, 1, 2)  # channels last, for which cuDNN has its fastest kernels
    filters = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    def cudnn() -> Any:
        return functional.conv2d(images, filters).permute(0, 2, 3, 1).reshape(out.shape)

    return OurArm(op, out, exact), [TorchArm(torch, "cudnn", cudnn, exact)]


FLOPS = 2 * M * N * K
CASES = (
    Loop("experts", f"products of {EXPERTS} experts, {M} x {N} x {K}, bf16", FLOPS, experts_arms),
    Loop("stream", f"x @ w by streams of tiles, {M} x {N} x {K}, bf16", FLOPS, stream_arms),
    Loop("counted", f"x @ w in a loop of while, {M} x {N} x {K}, bf16", FLOPS, counted_arms),
    Loop("masked", f"x @ w under a branch by a mask, {M} x {N} x {K}, bf16", FLOPS, masked_arms),
    Loop("paged", f"x @ w with w in pages by a table, {M} x {N} x {K}, bf16", FLOPS, paged_arms),
    Loop("batched", f"{BATCH} products as deep as a list says, {M // 4} x {N // 2} x {K}, bf16", FLOPS, batched_arms),
    Loop("normed", f"rms_norm(x) @ w, {M} x {N} x {K}, bf16", FLOPS, normed_arms),
    *(
        Loop(
            how.name,
            f"{how.what}, {how.rows} x {how.columns} x {DEPTH}, bf16",
            2 * how.rows * how.columns * DEPTH,
            partial(quantised_arms, how=how),
        )
        for how in QUANTISED
    ),
    Loop(
        "convolution",
        f"3 x 3, {IMAGES} images of {SIDE} x {SIDE} x {CHANNELS}, {FILTERS} filters, bf16",
        2 * IMAGES * SIDE * SIDE * CHANNELS * FILTERS * 9,
        convolution_arms,
    ),
)
