# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Cases of experts for `benchmarks.loops`: many, uneven, with rows by a list; gradients of their weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import cutile as ct
from benchmarks.loops.cases import Arms, GraphArm, Loop, OurArm, TorchArm, drawn, poisoned
from cutile import Const, Mut, Tensor, api, f32
from kernels.experts import experts, grouped

# -- kernels --------------------------------------------------------------------------------------


@ct.entry
def weight_gradients(z: Mut, x: Tensor, dy: Tensor, ends: Tensor, *, BK: Const = 64):
    """z[e] = x[first:end]^T @ dy[first:end], with first = ends[e] and end = ends[e + 1], multiples of BK."""
    _, BM, BN = z.shape
    e, i, j = ct.get_tile_block_id()
    first, end = ct.load_tile(ends, (1,), (e,)).reshape(()), ct.load_tile(ends, (1,), (e + 1,)).reshape(())
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(first // BK, end // BK):
        acc = ct.mma(ct.load_tile(x, (BK, BM), (k, i)).transpose(), ct.load_tile(dy, (BK, BN), (k, j)), acc)
    z.store(acc.astype(z.dtype).reshape(z.shape))


# -- arms -----------------------------------------------------------------------------------------

ROWS, N, K = 16384, 14336, 4096
TILE = 128
"""Rows of a tile; all of them belong to one expert."""
STEP = 64
"""Rows that gradients multiply at once; the rows of an expert are padded to a multiple of it."""
SCALE = 1 / 8  # so that sums of products have a deviation of some 1


def shares(count: int, skewed: bool) -> list[int]:
    """The number of rows of each expert: equal, or by Zipf's law; then the last but one has none.

    Example:
        >>> shares(4, skewed=True)
        [8938, 4468, 0, 2978]
    """
    if not skewed:
        return [ROWS // count] * count
    weights = [1 / (1 + place) for place in range(count - 1)]
    rows = [int(ROWS * weight / sum(weights)) for weight in weights]
    rows[0] += ROWS - sum(rows)
    return [*rows[:-1], 0, rows[-1]]


def padded(torch: Any, x: Any, rows: Sequence[int], step: int) -> Any:
    """The rows of all experts, those of each padded with zeros to a multiple of `step`."""
    parts = [torch.nn.functional.pad(part, (0, 0, 0, -len(part) % step)) for part in x.split(list(rows))]
    return torch.cat(parts)


def ends_of(torch: Any, rows: Sequence[int], step: int = 1) -> Any:
    """The end of each expert's rows, if each expert's are padded to a multiple of `step`."""
    ends = itertools.accumulate(-(-count // step) * step for count in rows)
    return torch.tensor(list(ends), device="cuda", dtype=torch.int32)


def exact_products(torch: Any, x: Any, w: Any, rows: Sequence[int]) -> Any:
    """The products of all experts in float64."""
    return torch.cat([part.double() @ w[e].double() for e, part in enumerate(x.split(list(rows)))])


def expert_arms(torch: Any, count: int, skewed: bool, listed: bool) -> Arms:
    """Products of experts, beside torch's grouped product; for rows by a list, beside torch's gather and product."""
    rows = shares(count, skewed)
    tokens, w = drawn(torch, ROWS, K, scale=SCALE), drawn(torch, count, K, N, scale=SCALE)
    order = torch.randperm(ROWS, device="cuda") if listed else torch.arange(ROWS, device="cuda")
    x, ends = tokens[order], ends_of(torch, rows)
    exact = exact_products(torch, x, w, rows)
    tiles = torch.tensor([-(-each // TILE) for each in rows], device="cuda")
    expert = torch.arange(count, device="cuda").repeat_interleave(tiles).to(torch.int32)
    left = padded(torch, x, rows, TILE)
    out, ours = poisoned(torch, len(left), N)
    whole = padded(torch, exact, rows, TILE)
    torch.cuda.synchronize()
    matrices, which = api.from_dlpack(w), api.from_dlpack(expert)
    if listed:
        op = grouped(api.from_dlpack(tokens), matrices, which, rows=api.from_dlpack(order.to(torch.int32)), out=ours)
        copied = TorchArm(torch, "torch, two kernels", lambda: torch._grouped_mm(tokens[order], w, offs=ends), exact)
        peers = [copied, TorchArm(torch, "torch, rows in order", lambda: torch._grouped_mm(x, w, offs=ends), exact)]
        return GraphArm([op], out, whole), peers
    op = experts(ours.mut.partition((TILE, 256)), api.from_dlpack(left), matrices, which)
    return OurArm(op, out, whole), [TorchArm(torch, "torch", lambda: torch._grouped_mm(x, w, offs=ends), exact)]


def gradient_arms(torch: Any, count: int) -> Arms:
    """Gradients of the weights of experts with uneven numbers of rows, beside torch's grouped product."""
    rows = shares(count, skewed=True)
    x, dy = (padded(torch, drawn(torch, ROWS, width, scale=SCALE), rows, STEP) for width in (K, N))
    ends = ends_of(torch, rows, STEP)
    exact = torch.zeros(count, K, N, device="cuda", dtype=torch.float64)
    for e, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        exact[e] = x[first:end].double().T @ dy[first:end].double()
    out, ours = poisoned(torch, count, K, N)
    bounds = torch.nn.functional.pad(ends, (1, 0))
    torch.cuda.synchronize()
    inputs = [api.from_dlpack(each) for each in (x, dy, bounds)]
    op = weight_gradients(ours.mut.partition((1, 128, 256)), *inputs)
    return OurArm(op, out, exact), [TorchArm(torch, "torch", lambda: torch._grouped_mm(x.T, dy, offs=ends), exact)]


def case(name: str, what: str, count: int, *, skewed: bool = False, listed: bool = False) -> Loop:
    """A case of products of experts; its arithmetic does not count padding."""
    arms = partial(expert_arms, count=count, skewed=skewed, listed=listed)
    return Loop(name, f"{count} experts, {what}, {ROWS} x {N} x {K}, bf16", 2 * ROWS * N * K, arms)


CASES = (
    case("experts-8", "as many rows each", 8),
    case("experts-zipf", "rows by Zipf's law and one without", 8, skewed=True),
    case("experts-128", "as many rows each", 128),
    case("experts-listed", "rows by a list", 8, listed=True),
    Loop(
        "experts-gradient",
        f"gradients of 8 experts' weights, rows by Zipf's law and one without, {K} x {N} x {ROWS}, bf16",
        2 * ROWS * N * K,
        partial(gradient_arms, count=8),
    ),
)
