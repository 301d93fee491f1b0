# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Cases of attention for `benchmarks.loops`: shared heads, odd lengths, wide heads, windows, and decoding."""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import numpy as np

import cutile as ct
from benchmarks.loops.cases import AT_ONCE, Arms, GraphArm, Loop, OurArm, TorchArm, drawn, poisoned
from benchmarks.products.peers import recorded
from cutile import CompileOptions, Const, KernelOp, Mut, Tensor, api, f32
from kernels.attention import LOG2_E, LOW, add_keys, attention, tile_of
from kernels.decode import decode, decode_of_pages
from kernels.packed import packed, ranges

# -- forward --------------------------------------------------------------------------------------


def forward_arms(
    torch: Any, heads: int, shared: int, rows: int, keys: int, width: int, causal: bool, window: int, sets: int
) -> Arms:
    """Attention forward, beside cuDNN; with a window, beside flex_attention and our dense attention of as many scores.

    With several `sets` of operands, ours and the peer's are graphs that go through all sets. So no operand is found in
    the L2 cache, and launches take no time.
    """
    q = drawn(torch, sets * heads, rows, width)
    k, v = (drawn(torch, sets * shared, keys, width) for _ in range(2))
    out, _ = poisoned(torch, *q.shape)
    exact = exact_rows(torch, q, k, v, causal, window)
    torch.cuda.synchronize()
    tile = tile_of(width, rows, causal=causal)
    constants = {"BN": tile[1], "CAUSAL": int(causal), "WINDOW": window}
    operands = list(zip(*(tensor.chunk(sets) for tensor in (out, q, k, v)), strict=True))

    def launch(*operands: Any) -> KernelOp:
        z, q, k, v = (api.from_dlpack(operand) for operand in operands)
        return attention(z.mut.partition((1, tile[0], width)), q, k, v, 1 / math.sqrt(width), **constants)

    if window:
        peer = TorchArm(torch, "flex_attention", flex(torch, q, k, v, window), exact)
        return OurArm(launch(out, q, k, v), out, exact), [peer, dense_arm(torch, heads * rows * window, width)]
    calls = [cudnn(torch, query, key, value, causal) for _, query, key, value in operands]
    if sets == 1:
        return OurArm(launch(out, q, k, v), out, exact), [TorchArm(torch, "cudnn", calls[0], exact)]
    replay = recorded(torch, lambda: [call() for call in calls])
    peer = TorchArm(torch, "cudnn", lambda: replay()[0], exact[:heads])
    return GraphArm((launch(*chunks) for chunks in operands), out, exact), [peer]


def cudnn(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    """A call of cuDNN, by torch."""
    nn = importlib.import_module("torch.nn.attention")

    def call() -> Any:
        with nn.sdpa_kernel(nn.SDPBackend.CUDNN_ATTENTION):
            options = {"is_causal": causal, "enable_gqa": len(q) != len(k)}
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], **options)[0]

    return call


def flex(torch: Any, q: Any, k: Any, v: Any, window: int) -> Any:
    """A call of compiled flex_attention with a causal window."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    rows, keys = q.shape[1], k.shape[1]

    def seen(_b: Any, _h: Any, row: Any, key: Any) -> Any:
        return (key <= row) & (key > row - window)

    mask = module.create_block_mask(seen, None, None, rows, keys, device="cuda")
    compiled = torch.compile(module.flex_attention, dynamic=False)
    return lambda: compiled(q[None], k[None], v[None], block_mask=mask, enable_gqa=len(q) != len(k))[0]


def exact_rows(torch: Any, q: Any, k: Any, v: Any, causal: bool, window: int) -> Any:
    """Attention in float64, as many rows of a head at a time as fit memory."""
    heads, rows, width = q.shape
    keys = k.shape[1]
    exact = torch.empty(q.shape, device=q.device, dtype=torch.float64)
    step = max(1, min(rows, AT_ONCE // keys))
    place = torch.arange(keys, device=q.device)
    for head in range(heads):
        key, value = (each[head * len(k) // heads].double() for each in (k, v))
        for first in range(0, rows, step):
            scores = (q[head, first : first + step].double() @ key.T).div_(math.sqrt(width))
            if causal:
                last = torch.arange(first, first + len(scores), device=q.device)[:, None] + keys - rows
                scores.masked_fill_((place > last) | (place <= last - (window or keys + rows)), -math.inf)
            exact[head, first : first + step] = torch.softmax(scores, -1) @ value
    return exact


def forward(
    name: str,
    heads: int,
    shared: int,
    rows: int,
    keys: int,
    width: int,
    *,
    causal: bool = False,
    window: int = 0,
    sets: int = 1,
) -> Loop:
    """A case of attention forward; with a window, its arithmetic counts the scores inside of the window."""
    sees = f"a window of {window}" if window else "causal" if causal else "full"
    of = f"{heads} heads" if heads == shared else f"{heads} heads over {shared}"
    what = f"attention forward, {of} x {rows}{f' x {keys}' if rows != keys else ''}, width {width}, {sees}, bf16"
    if sets > 1:
        what = f"{what}, {sets} of them as a graph"
    shape = {"heads": heads, "shared": shared, "rows": rows, "keys": keys, "width": width}
    arms = partial(forward_arms, **shape, causal=causal, window=window, sets=sets)
    scores = rows * window if window else rows * keys // (2 if causal else 1)
    return Loop(name, what, 4 * sets * heads * scores * width, arms)


LENGTHS = (4096, 512, 3000, 1024, 2048, 700, 4096, 130, 2500, 1500, 3333, 64, 4000, 1765, 1000, 3000)
"""Lengths of packed sequences, 32768 rows in all."""
SPREAD = tuple(round(128 * 64 ** (at * 11 % 32 / 31)) for at in range(32))
"""32 lengths from 128 to 8192, spread evenly on a logarithmic scale, in mixed order."""


def packed_arms(torch: Any, lengths: tuple[int, ...], heads: int, width: int) -> Arms:
    """Causal attention of packed sequences, beside torch's FlashAttention."""
    rows = sum(lengths)
    q, k, v = (drawn(torch, heads, rows, width) for _ in range(3))
    out, ours = poisoned(torch, heads, rows, width)
    ends = np.cumsum(lengths)
    exact = torch.empty(q.shape, device="cuda", dtype=torch.float64)
    for length, end in zip(lengths, ends, strict=True):
        one = slice(int(end) - length, int(end))
        exact[:, one] = exact_rows(torch, q[:, one], k[:, one], v[:, one], True, 0)
    bounds = [torch.from_numpy(each).cuda() for each in ranges(np.array(lengths), causal=True)]
    cumulative = torch.tensor([0, *ends.tolist()], device="cuda", dtype=torch.int32)
    by_rows = [each.transpose(0, 1).contiguous() for each in (q, k, v)]
    torch.cuda.synchronize()
    tile = tile_of(width, max(lengths), causal=True)
    inputs = [api.from_dlpack(each) for each in (q, k, v, *bounds)]
    op = packed(ours.mut.partition((1, tile[0], width)), *inputs, 1 / math.sqrt(width), BN=tile[1])

    def flash() -> Any:
        limits = (cumulative, cumulative, max(lengths), max(lengths), 0.0, True, False)
        return torch.ops.aten._flash_attention_forward(*by_rows, *limits)[0].transpose(0, 1)

    return OurArm(op, out, exact), [TorchArm(torch, "torch, flash", flash, exact)]


def packed_case(name: str, lengths: tuple[int, ...], heads: int, width: int) -> Loop:
    """A case of packed sequences."""
    scores = sum(length**2 for length in lengths) // 2
    what = f"causal attention of {len(lengths)} packed sequences of {min(lengths)} to {max(lengths)} rows"
    arms = partial(packed_arms, lengths=lengths, heads=heads, width=width)
    return Loop(name, f"{what}, {heads} heads, width {width}, bf16", 4 * heads * scores * width, arms)


CAP = 30
"""The cap of scores, by tanh."""


def capped_arms(torch: Any, heads: int, rows: int, width: int) -> Arms:
    """Attention with capped scores, beside ours without a cap, and beside flex_attention."""
    q, k, v = (drawn(torch, heads, rows, width, scale=2.0) for _ in range(3))  # scores of 4, of which some are capped
    scale = 1 / math.sqrt(width)
    out, ours = poisoned(torch, heads, rows, width)
    free, our_free = poisoned(torch, heads, rows, width)
    exact = torch.empty(q.shape, device="cuda", dtype=torch.float64)
    for head in range(heads):
        scores = q[head].double() @ k[head].double().T * scale
        exact[head] = torch.softmax(torch.tanh(scores / CAP) * CAP, -1) @ v[head].double()
    torch.cuda.synchronize()
    tile = tile_of(width, rows, causal=False)
    inputs = [api.from_dlpack(each) for each in (q, k, v)]
    tiles, other_tiles = (each.mut.partition((1, tile[0], width)) for each in (ours, our_free))
    op = attention(tiles, *inputs, scale, BN=tile[1], CAP=CAP)
    plain = OurArm(attention(other_tiles, *inputs, scale, BN=tile[1]), free, exact_rows(torch, q, k, v, False, 0), FREE)
    module = importlib.import_module("torch.nn.attention.flex_attention")
    compiled = torch.compile(module.flex_attention, dynamic=False)

    def capped(score: Any, _b: Any, _h: Any, _row: Any, _key: Any) -> Any:
        return CAP * torch.tanh(score / CAP)

    peer = TorchArm(torch, "flex_attention", lambda: compiled(q[None], k[None], v[None], score_mod=capped)[0], exact)
    return OurArm(op.compile_options(CompileOptions(fast_math=("tanh",))), out, exact), [plain, peer]


FREE = "ours without a cap"

# -- blocks of keys by a list -------------------------------------------------------------------------


@ct.entry
def listed(o: Mut, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, counts: Tensor, scale: f32, *, BN: Const = 128):
    """Attention in which tile i of rows sees the blocks of BN keys whose numbers are blocks[i, :counts[i]]."""
    _, BM, D = o.shape
    h, i, _ = ct.get_tile_block_id()
    rows = ct.load_tile(q, (1, BM, D), (h, i, 0)).reshape((BM, D))
    by_two = scale * LOG2_E  # exp(x) is 2 ** (x * log2(e))
    top, total, acc = ct.constant(LOW, (BM, 1), f32), ct.constant(0, (BM, 1), f32), ct.constant(0, (BM, D), f32)
    for n in range(ct.load_tile(counts, (1,), (i,)).reshape(())):
        j = ct.load_tile(blocks, (1, 1), (i, n)).reshape(())
        key = ct.load_tile(k, (1, BN, D), (h, j, 0)).reshape((BN, D)).transpose()
        scores = ct.mma(rows, key, ct.constant(0, (BM, BN), f32))
        value = ct.load_tile(v, (1, BN, D), (h, j, 0)).reshape((BN, D))
        top, total, acc = add_keys(scores, value, by_two, top, total, acc)
    o.store((acc * (1.0 / total)).astype(o.dtype).reshape((1, BM, D)))


BLOCK, SEEN = 128, 32
"""Keys of a block, and blocks that a tile of rows sees on average."""


def listed_arms(torch: Any, heads: int, rows: int, width: int) -> Arms:
    """Some blocks of keys for each block of rows, beside flex_attention, and our dense attention."""
    q, k, v = (drawn(torch, heads, rows, width) for _ in range(3))
    count = rows // BLOCK
    sees = torch.rand(count, count, device="cuda") < SEEN / count
    sees.fill_diagonal_(True)
    counts = sees.sum(1).to(torch.int32)
    # The numbers of the seen blocks, in ascending order, ahead of the others.
    blocks = torch.argsort((~sees).to(torch.int32), dim=1, stable=True).to(torch.int32)
    hidden = ~sees.repeat_interleave(BLOCK, 1)
    exact = torch.empty(q.shape, device="cuda", dtype=torch.float64)
    for head in range(heads):
        for i, part in enumerate(q[head].double().split(BLOCK)):
            scores = (part @ k[head].double().T).div_(math.sqrt(width)).masked_fill_(hidden[i], -math.inf)
            exact[head, BLOCK * i : BLOCK * (i + 1)] = torch.softmax(scores, -1) @ v[head].double()
    out, ours = poisoned(torch, heads, rows, width)
    torch.cuda.synchronize()
    inputs = [api.from_dlpack(each) for each in (q, k, v, blocks, counts)]
    op = listed(ours.mut.partition((1, BLOCK, width)), *inputs, 1 / math.sqrt(width), BN=BLOCK)
    module = importlib.import_module("torch.nn.attention.flex_attention")
    none = torch.zeros_like(counts), torch.zeros_like(blocks)
    lists = [each[None, None] for each in (*none, counts, blocks)]
    mask = module.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK)
    compiled = torch.compile(module.flex_attention, dynamic=False)
    peer = TorchArm(torch, "flex_attention", lambda: compiled(q[None], k[None], v[None], block_mask=mask)[0], exact)
    return OurArm(op, out, exact), [peer, dense_arm(torch, heads * rows * SEEN * BLOCK, width)]


def dense_arm(torch: Any, scores: int, width: int) -> OurArm:
    """Our attention without a mask, in heads of 4096 rows, with `scores` scores in all."""
    heads, rows = scores // 4096**2, 4096
    q, k, v = (drawn(torch, heads, rows, width) for _ in range(3))
    out, ours = poisoned(torch, heads, rows, width)
    exact = exact_rows(torch, q, k, v, False, 0)
    torch.cuda.synchronize()
    tile = tile_of(width, rows, causal=False)
    inputs = [api.from_dlpack(each) for each in (q, k, v)]
    op = attention(ours.mut.partition((1, tile[0], width)), *inputs, 1 / math.sqrt(width), BN=tile[1])
    return OurArm(op, out, exact, "our dense attention")


# -- decoding -------------------------------------------------------------------------------------


def decode_arms(torch: Any, heads: int, keys: int, parts: int, page: int) -> Arms:
    """Eight queries for each head of keys, beside `torch.sum` of keys and values, which reads as many bytes."""
    q, k, v = drawn(torch, heads, 8, 128), drawn(torch, heads, keys, 128), drawn(torch, heads, keys, 128)
    out, ours = poisoned(torch, heads, 8, 128)
    exact = exact_rows(torch, q, k, v, False, 0)
    if page:
        count = keys // page
        table = torch.randperm(count, device="cuda").to(torch.int32)
        pages = [torch.empty(count, heads, page, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        for each, source in zip(pages, (k, v), strict=True):
            each[table.long()] = source.reshape(heads, count, page, 128).transpose(0, 1)
        counts = torch.full((1,), keys, device="cuda", dtype=torch.int32)
        inputs = (q, *pages, table[None], counts)
    else:
        inputs = (q, k, v)
    torch.cuda.synchronize()
    kernels = decode_of_pages if page else decode
    op = kernels(*(api.from_dlpack(each) for each in inputs), out=ours, parts=parts)
    words = k.view(torch.float32), v.view(torch.float32)
    peer = TorchArm(torch, "torch.sum of both", lambda: (torch.sum(words[0]), torch.sum(words[1])) and exact, exact)
    return GraphArm([op], out, exact), [peer]


def decoding(name: str, heads: int, keys: int, parts: int, page: int = 0) -> Loop:
    """A case of decoding."""
    where = f" in pages of {page}" if page else ""
    what = f"decoding, 8 queries of each of {heads} heads over {keys} keys{where}, width 128, {parts} parts, bf16"
    arms = partial(decode_arms, heads=heads, keys=keys, parts=parts, page=page)
    return Loop(name, what, 4 * heads * 8 * keys * 128, arms)


CASES = (
    forward("attention-shared-causal", 64, 8, 8192, 8192, 128, causal=True),
    forward("attention-shared-16384", 64, 8, 16384, 16384, 128),
    forward("attention-ragged", 128, 16, 4096, 5000, 128),
    forward("attention-1024", 128, 128, 1024, 1024, 128, sets=2),
    forward("attention-1024-causal", 128, 128, 1024, 1024, 128, causal=True, sets=2),
    forward("attention-64-1024", 128, 128, 1024, 1024, 64, sets=4),
    forward("attention-64-1024-causal", 128, 128, 1024, 1024, 64, causal=True, sets=4),
    forward("attention-256", 32, 32, 8192, 8192, 256),
    forward("attention-256-causal", 32, 32, 8192, 8192, 256, causal=True),
    forward("attention-window", 16, 16, 32768, 32768, 128, causal=True, window=1024),
    packed_case("attention-packed", LENGTHS, 32, 128),
    packed_case("attention-packed-8192", SPREAD, 16, 128),
    Loop(
        "attention-capped",
        f"attention forward, 128 heads x 4096, width 128, full, scores capped to {CAP}, bf16",
        4 * 128 * 4096**2 * 128,
        partial(capped_arms, heads=128, rows=4096, width=128),
    ),
    Loop(
        "attention-listed",
        f"attention over about {SEEN} listed blocks of {BLOCK} keys of 16384, 16 heads, width 128, bf16",
        4 * 16 * 16384 * SEEN * BLOCK * 128,
        partial(listed_arms, heads=16, rows=16384, width=128),
    ),
    decoding("decode-131072", 8, 131072, 33),
    decoding("decode-16384", 64, 16384, 8),
    decoding("decode-pages", 64, 16384, 8, page=64),
)
