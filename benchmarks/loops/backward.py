# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""The cases of `benchmarks.loops` that are gradients of attention, beside those of cuDNN and FlashAttention-2 in torch.

Ours are three or four kernels, launched as one CUDA graph. For ours and for the peers, device time is measured.
"""

from __future__ import annotations

import importlib
import math
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.loops.cases import AT_ONCE, Arms, GraphArm, Loop, OurArm, TorchArm, drawn
from cutile import api
from kernels.attention_backward import attend_backward

SUMS = "our sums as they come"
"""The name of our form with `repeats=False`, whose results do not repeat to the bit."""


class Joined(TorchArm):
    """A call that returns dq, dk and dv; they are joined to one tensor for the comparison."""

    @property
    def out(self) -> Any:
        """The rows of all three."""
        return None if self._three is None else rows_of(*self._three)

    @out.setter
    def out(self, three: Any) -> None:
        self._three = three


def rows_of(*tensors: Any) -> Any:
    """The rows of tensors, one after the other."""
    return importlib.import_module("torch").cat([each.reshape(-1, each.shape[-1]) for each in tensors])


def backward_arms(
    torch: Any, heads: int, key_heads: int, rows: int, width: int, causal: bool, repeats: bool = True
) -> Arms:
    """The form that repeats to the bit, beside all others; or, with `repeats=False`, the other form beside cuDNN."""
    aten = torch.ops.aten
    do, q = (drawn(torch, heads, rows, width) for _ in range(2))
    k, v = (drawn(torch, key_heads, rows, width) for _ in range(2))
    o, lse, exact = exact_gradients(torch, do, q, k, v, causal)
    torch.cuda.synchronize()

    def ours(name: str, repeats: bool) -> OurArm:
        # One tensor for all three, so that they are judged together.
        out = torch.full(exact.shape, math.nan, device="cuda", dtype=torch.bfloat16)
        ends = (0, heads * rows, (heads + key_heads) * rows, (heads + 2 * key_heads) * rows)
        parts = [out[first:end].view(-1, rows, width) for first, end in pairwise(ends)]
        inputs = [api.from_dlpack(x) for x in (do, q, k, v, o, lse)]
        op = attend_backward(*inputs, out=tuple(map(api.from_dlpack, parts)), causal=causal, repeats=repeats)
        return GraphArm([op], out, exact, name)

    def gradients(kind: str) -> TorchArm:
        forward = getattr(aten, f"_scaled_dot_product_{kind}_attention")
        backward = getattr(aten, f"_scaled_dot_product_{kind}_attention_backward")
        batch = [x[None] for x in (q, k, v)]
        if kind == "cudnn":
            results = forward(*batch, None, True, 0.0, causal, False)
            result, sums, *ends, seed, offset = results[:8]
            result.copy_(o[None])
            sums.copy_(lse.view(sums.shape))
            call = partial(backward, do[None], *batch, result, sums, seed, offset, None, *ends, 0.0, causal)
        else:
            results = forward(*batch, 0.0, causal)
            result, sums, *ends, seed, offset = results[:8]
            result.copy_(o[None])
            sums.copy_(lse.view(sums.shape))
            call = partial(backward, do[None], *batch, result, sums, *ends, 0.0, causal, seed, offset)
        return Joined(torch, "flash 2" if kind == "flash" else kind, call, exact)

    peers: list[Any] = [gradients("cudnn")]
    if not repeats:
        return ours("cutile", repeats=False), peers
    if heads == key_heads and not causal:
        peers.append(gradients("flash"))
        peers += [ours(SUMS, repeats=False)] if width == 128 else []
    return ours("cutile", repeats=True), peers


def exact_gradients(torch: Any, do: Any, q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any, Any]:
    """o in bf16, lse, and dq, dk and dv of them in float64, a head at a time, as one tensor of rows."""
    heads, rows, width = q.shape
    group, scale = heads // k.shape[0], 1 / math.sqrt(width)
    o, lse = torch.empty_like(q), torch.empty(heads, rows, device="cuda")
    dq, dk, dv = (torch.zeros(each.shape, device="cuda", dtype=torch.float64) for each in (q, k, v))
    step = max(1, AT_ONCE // rows)  # rows of scores at once
    for head in range(heads):
        key, value = k[head // group].double(), v[head // group].double()
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            query, gradient = q[head, part].double(), do[head, part].double()
            scores = (query @ key.T) * scale
            if causal:
                numbers = torch.arange(part.start, part.stop, device="cuda")[:, None]
                scores.masked_fill_(torch.arange(rows, device="cuda") > numbers, -math.inf)
            sums = torch.logsumexp(scores, 1, keepdim=True)
            weights = scores.sub_(sums).exp_()
            result = weights @ value
            o[head, part], lse[head, part] = result, sums[:, 0]
            # The gradient is computed from the rounded o, as the kernels do. Its rounding can move dq by a third of the
            # norm, in a row in which one of two keys has all the weight.
            result = o[head, part].double()
            dv[head // group] += weights.T @ gradient
            weights.mul_(gradient @ value.T - (gradient * result).sum(1, keepdim=True)).mul_(scale)
            dq[head, part] = weights @ key
            dk[head // group] += weights.T @ query
    return o, lse, rows_of(dq, dk, dv)


def backward_case(
    name: str, heads: int, rows: int, width: int, causal: bool = False, key_heads: int = 0, repeats: bool = True
) -> Loop:
    """A case of gradients."""
    key_heads = key_heads or heads
    shared = f"/{key_heads}" if key_heads != heads else ""
    seen = "causal" if causal else "full"
    what = f"attention backward, {heads}{shared} heads x {rows}, width {width}, {seen}, bf16"
    what += "" if repeats else ", sums as they come"
    sizes = {"heads": heads, "key_heads": key_heads, "rows": rows, "width": width}
    arms = partial(backward_arms, **sizes, causal=causal, repeats=repeats)
    return Loop(name, what, 10 * heads * rows * rows * width // (2 if causal else 1), arms)


def both_forms(name: str, heads: int, rows: int, width: int, causal: bool = False, key_heads: int = 0) -> list[Loop]:
    """A case of gradients by the form that repeats to the bit, and by the other."""
    names = {True: name, False: f"{name}-sums"}
    return [backward_case(names[repeats], heads, rows, width, causal, key_heads, repeats) for repeats in names]


CASES = (
    *both_forms("backward-128", 64, 4096, 128),
    *both_forms("backward-128-causal", 64, 4096, 128, causal=True),
    *both_forms("backward-128-16384", 64, 16384, 128),
    *both_forms("backward-128-16384-causal", 64, 16384, 128, causal=True),
    *both_forms("backward-128-shared", 64, 4096, 128, key_heads=8),
    *both_forms("backward-128-grouped", 64, 4096, 128, causal=True, key_heads=8),
    *both_forms("backward-128-16384-shared", 64, 16384, 128, key_heads=8),
    *both_forms("backward-128-16384-grouped", 64, 16384, 128, causal=True, key_heads=8),
    *both_forms("backward-64", 64, 4096, 64),
    *both_forms("backward-64-causal", 64, 4096, 64, causal=True),
    *both_forms("backward-64-16384", 64, 16384, 64),
    *both_forms("backward-64-16384-causal", 64, 16384, 64, causal=True),
)
