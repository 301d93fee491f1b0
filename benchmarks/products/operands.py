"""Random inputs and poisoned outputs of a case on a device; and the comparison of results with float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from benchmarks.products.cases import Operand, Product
from cuda_async import Device, Stream
from cutile import DType, Tensor, api, bf16, f8e4m3fn, f16, f32, i8, i32

DTYPES: dict[Operand, type[DType]] = {"bf16": bf16, "f16": f16, "f32": f32, "tf32": f32, "fp8": f8e4m3fn, "int8": i8}
RESULTS: dict[Operand, type[DType]] = {"bf16": bf16, "f16": f16, "f32": f32, "tf32": f32, "fp8": bf16, "int8": i32}

IN_A_GRAPH = 20
ROWS_CHECKED = 32
VECTORS = 4
POISON = -77
"""The poison of integer outputs; float outputs are poisoned with NaN."""


@dataclass(frozen=True)
class Operands:
    """One set of tensors.

    Attributes:
        x: the left operand, (m, k), or (batch, m, k).
        stored: the right operand in its stored shape, contiguous.
        y: the right operand as (k, n), a view of `stored`.
        z: the output.
    """

    x: Tensor
    stored: Tensor
    y: Tensor
    z: Tensor


def draw(case: Product, device: Device, stream: Stream, random: np.random.Generator) -> list[Operands]:
    """Sets of operands, one for each product of a round: 20 for a graph, else so many that no cache holds them all."""
    l2 = device.properties.l2_cache_bytes
    count = IN_A_GRAPH if case.graph else min(4, max(1, -(-2 * l2 // case.nbytes)))
    lead = (case.batch,) if case.batch else ()
    right = (*lead, case.k, case.n) if case.stored == "kn" else (*lead, case.n, case.k)
    sets: list[Operands] = []
    result = RESULTS[case.operand]
    poison = float("nan") if result.kind == "float" else POISON
    for _ in range(count):
        x, stored = (_random(case.operand, shape, stream, random) for shape in ((*lead, case.m, case.k), right))
        y = stored if case.stored == "kn" else stored.transpose()
        sets.append(Operands(x, stored, y, api.full(poison, (*lead, case.m, case.n), result).sync_on(stream)))
    return sets


def _random(operand: Operand, shape: tuple[int, ...], stream: Stream, random: np.random.Generator) -> Tensor:
    """Standard normal numbers; integers over the whole range."""
    if operand == "int8":
        return api.from_numpy(random.integers(-128, 128, shape, dtype=np.int8)).sync_on(stream)
    if operand == "fp8":
        drawn = random.standard_normal(shape, dtype=np.float32).astype(f8e4m3fn.numpy)
        return api.from_numpy(drawn).sync_on(stream)
    return api.randn(0.0, 1.0, shape, int(random.integers(1 << 62)), DTYPES[operand]).sync_on(stream)


@dataclass(frozen=True)
class Verdict:
    """How far a result is from the product in float64.

    Attributes:
        error: relative error of all elements in Frobenius norm, estimated by the product with a random vector.
        elements: the largest error in some rows, relative to their largest element.
        wrong: why the result is not acceptable; "" if it is.
    """

    error: float
    elements: float
    wrong: str


def judge(case: Product, x: Any, y: Any, z: Any, random: np.random.Generator) -> Verdict:
    """Compare a result with float64, every element of it.

    For vectors `v` of random signs, `z v - x (y v)` has on average the norm of `z - x y`, and costs next to nothing. In
    addition, some rows are computed in full.

    Args:
        case: what was computed.
        x, y, z: NumPy arrays, or torch's on a GPU.
        random: draws the signs and the rows.
    """
    rows = sorted(random.choice(z.shape[-2], min(ROWS_CHECKED, z.shape[-2]), replace=False).tolist())
    exact = _wide(x[..., rows, :]) @ _wide(y)
    elements = float(abs(_wide(z[..., rows, :]) - exact).max()) / (float(abs(exact).max()) or 1.0)
    signs = _like(x, random.integers(0, 2, (z.shape[-1], VECTORS)) * 2.0 - 1.0)
    off = _wide(z) @ signs - _wide(x) @ (_wide(y) @ signs)
    scale = float((exact * exact).sum(-1).mean()) ** 0.5 or 1.0  # of a row; what a row times signs has in the mean
    error = float((off * off).mean()) ** 0.5 / scale
    worst = float(abs(off).max()) / scale
    allowed = case.tolerance
    # One wrong element in a row of thousands changes the row's product by a hundredth: the worst row is checked, too.
    limits = (
        ("", error, allowed),
        (" in some elements", elements, 4 * allowed),
        (" in the worst row", worst, 2.5 * allowed),
    )
    wrong = [f"error {each:.2e}{where}, {limit:.1e} allowed" for where, each, limit in limits if not each <= limit]
    return Verdict(error, elements, "; ".join(wrong))


def _wide(array: Any) -> Any:
    """In float64."""
    return cast("Any", array).astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def _like(array: Any, values: Any) -> Any:
    """Values on the same device, in the same library."""
    if isinstance(array, np.ndarray):
        return values
    return array.new_tensor(values, dtype=_wide(array[..., :1, :1]).dtype)
