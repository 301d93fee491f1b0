# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""The cases of `benchmarks.loops`: kernels with loops of several products, their inputs, and their peers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cutile as ct
from cuda_async import Device, DeviceOp, Stream
from cuda_async import zip as zip_ops
from cutile import Const, KernelOp, Mut, Tensor, api, bf16, f32
from kernels.attention import attention, tile_of
from kernels.gemm import gemm
from kernels.gemm_choice import choose, how_they_lie
from kernels.swiglu import swiglu

AT_ONCE = 1 << 28
"""Scores in float64 that are held at once to check attention: 2 GiB."""


ERROR = 6e-3
"""The default of the allowed error, relative to the norm: some roundings to bf16, of 1.6e-3 each."""

# -- kernels --------------------------------------------------------------------------------------


@ct.entry
def lora(z: Mut, x: Tensor, w: Tensor, u: Tensor, v: Tensor, *, BK: Const = 64):
    """z = x @ w + u @ v: two loops into one sum."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(x.partition((BM, BK)), 1)):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    for k in range(ct.num_tiles(u.partition((BM, BK)), 1)):
        acc = ct.mma(ct.load_tile(u, (BM, BK), (i, k)), ct.load_tile(v, (BK, BN), (k, j)), acc)
    z.store(acc.astype(z.dtype))


@ct.entry
def taps(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    """z = the sum of x @ w[t] over all t: a loop in a loop, as in a convolution."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for t in range(w.shape[0]):
        for k in range(ct.num_tiles(x.partition((BM, BK)), 1)):
            right = ct.load_tile(w, (1, BK, BN), (t, k, j)).reshape((BK, BN))
            acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), right, acc)
    z.store(acc.astype(z.dtype))


@ct.entry
def branch(z: Mut, x: Tensor, w: Tensor, count: ct.i32, *, BK: Const = 64):
    """z = x @ w if count > 3, else 0: a loop under a branch."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    if count > 3:
        for k in range(ct.num_tiles(x.partition((BM, BK)), 1)):
            acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(w, (BK, BN), (k, j)), acc)
    z.store(acc.astype(z.dtype))


# -- who is timed ---------------------------------------------------------------------------------


class Bindable(Protocol):
    """A kernel's launch, or a graph's."""

    def bind(self, stream: Stream, /) -> Callable[[], object]: ...


class OurArm:
    """A kernel, compiled and bound once and launched over and over.

    Args:
        op: the launch of the kernel, or of a graph.
        out: torch's view of the output.
        exact: the expected output, in float64.
        device: the device; the first GPU by default.
    """

    def __init__(
        self, op: Bindable, out: Any, exact: Any, name: str = "cutile", *, device: Device | None = None
    ) -> None:
        device = device or Device(0)
        self.name, self.out, self.exact = name, out, exact
        self._stream: Stream = device.new_stream()
        self._start, self._end = (device.new_event(timing=True) for _ in range(2))
        self._launch = op.bind(self._stream)

    def run(self, repeats: int) -> float:
        """Launch `repeats` times; return the seconds of the device."""
        self._start.record(self._stream)
        for _ in range(repeats):
            self._launch()
        self._end.record(self._stream)
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3


class GraphArm(OurArm):
    """Operations that run one after the other, as one CUDA graph; arguments as for `OurArm`."""

    def __init__(self, ops: Iterable[DeviceOp[Any]], out: Any, exact: Any, name: str = "cutile", **more: Any) -> None:
        device: Device = more.get("device") or Device(0)
        self._graph = zip_ops(*ops).graph_on(device.new_stream())  # kept: launches need the graph
        super().__init__(self._graph.launch(), out, exact, name, device=device)


class TorchArm:
    """A call of torch, which returns its result."""

    def __init__(self, torch: Any, name: str, call: Callable[[], Any], exact: Any) -> None:
        self.name, self.exact, self._call = name, exact, call
        self.out: Any = None
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(self, repeats: int) -> float:
        """Call `repeats` times; return the seconds of the device."""
        self.out = None
        self._start.record()
        for _ in range(repeats):
            self.out = self._call()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3


Arms = tuple[OurArm, Sequence["OurArm | TorchArm"]]
"""The kernel and its peers."""


@dataclass(frozen=True)
class Loop:
    """A case.

    Attributes:
        name: its name on the command line.
        what: the computation, in words.
        flops: operations of one computation; causal attention counts half of the scores.
        arms: a function of the module torch that draws inputs and returns the kernel and its peers.
        long: whether it is timed in long turns too.
        allowed: the allowed error of a result, relative to its norm.
    """

    name: str
    what: str
    flops: int
    arms: Callable[[Any], Arms]
    long: bool = False
    allowed: float = ERROR


def drawn(torch: Any, *shape: int, scale: float = 1.0) -> Any:
    """Standard normal bf16 numbers on the GPU, times `scale`."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale


def poisoned(torch: Any, *shape: int) -> tuple[Any, Tensor]:
    """An output of NaN: torch's tensor, and ours over the same memory."""
    out = torch.full(shape, math.nan, device="cuda", dtype=torch.bfloat16)
    return out, api.from_dlpack(out)


# -- attention ------------------------------------------------------------------------------------


def attention_arms(torch: Any, heads: int, rows: int, width: int, causal: bool) -> Arms:
    """Attention forward, beside cuDNN's."""
    nn = importlib.import_module("torch.nn.attention")
    q, k, v = (drawn(torch, heads, rows, width) for _ in range(3))
    out, ours = poisoned(torch, heads, rows, width)
    exact = exact_attention(torch, q, k, v, causal)
    torch.cuda.synchronize()
    tensors = (api.from_dlpack(each) for each in (q, k, v))
    tile = tile_of(width, rows, causal=causal)
    partition = ours.mut.partition((1, tile[0], width))
    op = attention(partition, *tensors, 1 / math.sqrt(width), BN=tile[1], CAUSAL=int(causal))

    def cudnn() -> Any:
        with nn.sdpa_kernel(nn.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

    return OurArm(op, out, exact), [TorchArm(torch, "cudnn", cudnn, exact)]


def exact_attention(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention in float64, a few heads at a time."""
    heads, rows, width = q.shape
    keys = k.shape[1]
    exact = torch.empty(q.shape, device=q.device, dtype=torch.float64)
    hidden = torch.ones(rows, keys, device=q.device, dtype=torch.bool).triu(keys - rows + 1) if causal else None
    step = max(1, AT_ONCE // (rows * keys))
    for first in range(0, heads, step):
        part = slice(first, first + step)
        scores = (q[part].double() @ k[part].double().transpose(1, 2)).div_(math.sqrt(width))
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        exact[part] = torch.softmax(scores, -1) @ v[part].double()
    return exact


def attention_case(name: str, heads: int, rows: int, width: int, causal: bool = False, long: bool = False) -> Loop:
    """A case of attention."""
    what = f"attention forward, {heads} heads x {rows}, width {width}, {'causal' if causal else 'full'}, bf16"
    arms = partial(attention_arms, heads=heads, rows=rows, width=width, causal=causal)
    return Loop(name, what, 4 * heads * rows * rows * width // (2 if causal else 1), arms, long)


# -- products -------------------------------------------------------------------------------------

M, N, K, WIDE, RANK, TAPS, DEPTH = 4096, 4096, 4096, 14336, 64, 9, 512
SCALE = 1 / 8  # sums of 4096 products then have a deviation of 1, where silu bends


def swiglu_arms(torch: Any) -> Arms:
    """silu(x @ gate) * (x @ up), beside torch's two products, and beside our plain product of as much arithmetic."""
    x, both = drawn(torch, M, K, scale=SCALE), drawn(torch, K, 2 * WIDE, scale=SCALE)
    gate, up = both[:, :WIDE].contiguous(), both[:, WIDE:].contiguous()
    plain = x.double() @ both.double()
    exact = torch.nn.functional.silu(plain[:, :WIDE]) * plain[:, WIDE:]
    out, ours = poisoned(torch, M, WIDE)
    wide, ours_wide = poisoned(torch, M, 2 * WIDE)
    torch.cuda.synchronize()
    left, right = api.from_dlpack(x), api.from_dlpack(both)
    op = swiglu(ours.mut.partition((128, 128)), left, api.from_dlpack(gate), api.from_dlpack(up))
    tile = choose(M, 2 * WIDE, K, bf16, Device(0), lie=how_they_lie(left, right))
    product = gemm(ours_wide.mut.partition((tile.rows, tile.columns)), left, right, BK=tile.depth)
    product = product if tile.options is None else product.compile_options(tile.options)
    peers = [
        TorchArm(torch, "torch", lambda: torch.nn.functional.silu(x @ gate) * (x @ up), exact),
        OurArm(product, wide, plain, "our plain product"),
    ]
    return OurArm(op, out, exact), peers


def beside_cublas(torch: Any, kernel: Callable[[Tensor], KernelOp], left: Any, right: Any) -> Arms:
    """A kernel that computes left @ right in its own way, beside cuBLAS, which computes it in one product."""
    out, ours = poisoned(torch, left.shape[0], right.shape[1])
    exact = left.double() @ right.double()
    torch.cuda.synchronize()
    peer = TorchArm(torch, "cublas", lambda: left @ right, exact)
    return OurArm(kernel(ours), out, exact), [peer]


def lora_arms(torch: Any) -> Arms:
    """x @ w + u @ v, beside [x u] @ [w; v]."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE)
    u, v = drawn(torch, M, RANK, scale=SCALE), drawn(torch, RANK, N, scale=SCALE)
    inputs = [api.from_dlpack(each) for each in (x, w, u, v)]
    joined = torch.cat((x, u), 1), torch.cat((w, v), 0)
    return beside_cublas(torch, lambda z: lora(z.mut.partition((128, 256)), *inputs), *joined)


def taps_arms(torch: Any) -> Arms:
    """The sum of x @ w[t], beside [x x ...] @ [w[0]; w[1]; ...]."""
    x, w = drawn(torch, M, DEPTH, scale=SCALE), drawn(torch, TAPS, DEPTH, N, scale=SCALE)
    inputs = [api.from_dlpack(each) for each in (x, w)]
    joined = x.repeat(1, TAPS), w.reshape(TAPS * DEPTH, N)
    return beside_cublas(torch, lambda z: taps(z.mut.partition((128, 256)), *inputs), *joined)


def branch_arms(torch: Any) -> Arms:
    """x @ w under a branch that is taken, beside x @ w."""
    x, w = drawn(torch, M, K, scale=SCALE), drawn(torch, K, N, scale=SCALE)
    inputs = [api.from_dlpack(each) for each in (x, w)]
    return beside_cublas(torch, lambda z: branch(z.mut.partition((128, 256)), *inputs, 5), x, w)


CASES = (
    attention_case("attention-128", 128, 4096, 128, long=True),
    attention_case("attention-128-causal", 128, 4096, 128, causal=True),
    attention_case("attention-64", 128, 4096, 64, long=True),
    attention_case("attention-64-causal", 128, 4096, 64, causal=True),
    attention_case("attention-128-16384", 32, 16384, 128),
    attention_case("attention-128-8192-causal", 64, 8192, 128, causal=True),
    Loop("swiglu", f"silu(x @ gate) * (x @ up), {M} x {WIDE} x {K}, bf16", 4 * M * WIDE * K, swiglu_arms, True),
    Loop("lora", f"x @ w + u @ v, {M} x {N} x {K}, rank {RANK}, bf16", 2 * M * N * (K + RANK), lora_arms),
    Loop("taps", f"{TAPS} taps of {M} x {N} x {DEPTH}, bf16", 2 * M * N * DEPTH * TAPS, taps_arms),
    Loop("branch", f"a product under a branch, {M} x {N} x {K}, bf16", 2 * M * N * K, branch_arms),
)
