"""`CompileOptions(fast_math=...)`: what it rewrites, what it leaves, and how far results may be from exact ones."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import CompileOptions, f16, f32, f64
from cutile.backend.cuda.backend import BACKEND as CUDA
from cutile.backend.cuda.build import to_llvm
from cutile.backend.cuda.target import architecture
from cutile.backend.interface import FAST_MATH, Target
from cutile.compile.key import cache_key
from cutile.dtypes import i32
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.pipeline import run_passes
from tests.support.programs import mut, program, scalar, tensor
from tests.support.values import ulps_from

TARGET = Target("cuda", "sm_90a")


def relaxed(body: str, parts: tuple[str, ...] = FAST_MATH, dtype: Any = f32, **more: Any) -> Function:
    """A kernel `y = body` of tiles `x` and `t` after the pass."""
    text = f"def k(y: Mut, x: Tensor, a: {dtype}):\n    t = ct.load_tile_like(x, y)\n    u = y.load()\n{body}"
    parameters = {"y": mut(64, dtype=dtype), "x": tensor(1, dtype), "a": scalar(dtype)}
    function = fast_math(run_passes(program(text, parameters)), parts, more.get("contracted", (f16, f32, f64)))
    verify(function)
    return function


def counted(function: Function) -> Counter[str]:
    return Counter(op.name for op in function.walk())


@pytest.mark.parametrize(
    ("expression", "negations"),
    [("t * u + a", 0), ("a + t * u", 0), ("t * u - a", 1), ("a - t * u", 1), ("t * u + t * a", 0)],
)
@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
def test_a_sum_takes_a_product_that_nothing_else_uses(expression: str, negations: int, dtype: Any) -> None:
    function = relaxed(f"    y.store({expression})\n", ("contract",), dtype)
    ops = counted(function)
    assert (ops["fma"], ops["add"], ops["sub"], ops["neg"]) == (1, 0, 0, negations)
    assert ops["mul"] == expression.count("*") - 1
    assert function.facts[FACT] == ("contracted multiply-adds: 1",)


@pytest.mark.parametrize(
    "body",
    [
        "    p = t * u\n    y.store(p + p * a)\n",  # used twice: the first product is needed as it is
        "    p = t * u\n    s = t\n    for i in range(4):\n        s = p + ct.sqrt(s)\n    y.store(s)\n",  # of a loop
        "    y.store(t + u)\n",
    ],
)
def test_other_products_and_sums_stay(body: str) -> None:
    ops = counted(relaxed(body, ("contract",)))
    products = body.count("*")
    assert (ops["fma"], ops["mul"]) == ((1, 1) if "p * a" in body else (0, products))


def test_integers_and_dtypes_that_the_target_does_not_name_stay() -> None:
    assert counted(relaxed("    y.store(t * u + a)\n", dtype=i32))["fma"] == 0
    assert counted(relaxed("    y.store(t * u + a)\n", dtype=f16, contracted=(f32,)))["fma"] == 0


def test_nothing_is_relaxed_that_is_not_asked_for() -> None:
    body = "    y.store(ct.exp(t * u + a) / t + ct.sqrt(u) * ct.rsqrt(t) * ct.exp2(t) * ct.tanh(t))\n"
    for parts, counts in {
        (): {},
        ("contract",): {"fma": 2},
        ("div",): {"rounded_div": 1},
        ("sqrt",): {"rounded_sqrt": 1},
        ("exp",): {"exp2": 2},
        ("tanh",): {"rounded_tanh": 1, "rounded_sqrt": 0},
        ("ftz",): {"rounded_div": 1, "rounded_sqrt": 1, "exp2": 1, "rsqrt": 1},
    }.items():
        function = relaxed(body, parts)
        named = {name: counted(function)[name] for name in counts}
        assert named == counts, parts
        flushed = sum(bool(op.attributes.get("ftz")) for op in function.walk())
        assert flushed == (4 if parts == ("ftz",) else 0)
    function = relaxed(body)
    assert sum(bool(op.attributes.get("ftz")) for op in function.walk()) == 5
    assert counted(function)["fma"] == 2
    assert not sum(counted(function)[name] for name in ("div", "exp", "sqrt", "tanh"))


def test_the_code_of_a_gpu_has_the_fast_forms_only_where_they_are_asked_for() -> None:
    text = (
        "def k(y: Mut, x: Tensor, a: f32):\n    t = ct.load_tile_like(x, y)\n"
        "    y.store(ct.exp(t * a + a) / t + ct.sqrt(t) + ct.tanh(t))\n"
    )
    function = run_passes(program(text, {"y": mut(256), "x": tensor(1), "a": scalar()}))
    fast = ("llvm.fma.f32", "div.full.ftz.f32", "sqrt.approx.ftz.f32", "ex2.approx.ftz.f32", "tanh.approx.f32")

    def code(options: CompileOptions) -> str:
        lowered = CUDA.lower(function, TARGET, options)
        return "\n".join(to_llvm(CUDA.emit(lowered, TARGET, options), architecture("sm_90a")))

    plain, all_parts = code(CompileOptions()), code(CompileOptions(fast_math=True))
    assert [each for each in fast if each in plain] == []
    assert [each for each in fast if each not in all_parts] == []
    keys = {
        cache_key(function, CompileOptions(fast_math=parts), TARGET, "1")
        for parts in ((), True, ("div",), ("contract",), ["contract"])
    }
    assert len(keys) == 4


def test_options_have_one_form() -> None:
    assert CompileOptions(fast_math=True).fast_math == FAST_MATH == tuple(sorted(FAST_MATH))
    assert CompileOptions(fast_math={"div", "contract"}) == CompileOptions(fast_math=["contract", "div"])
    assert CompileOptions(fast_math=False) == CompileOptions()
    for wrong in ("contract", ("fma",), 1, None):
        with pytest.raises(ct.ArgumentError, match="expected True, or some of contract, div, exp, ftz, sqrt, tanh"):
            CompileOptions(fast_math=wrong)  # type: ignore[arg-type]


def test_the_bound_of_exp_by_exp2_holds_before_exp2_rounds() -> None:
    """Of a rounded product the exponent is off by what the bound leaves beside the 2 ulp of `exp2`."""
    x = np.random.default_rng(2).uniform(-87, 88, 1 << 16).astype(np.float32)
    power = np.exp2((x * np.float32(math.log2(math.e))).astype(np.float64))
    error = ulps_from(power.astype(np.float32), np.exp(x.astype(np.float64)))
    assert (error <= 0.5 + 1.25 * np.abs(x)).all()
    assert error.max() > 30  # as the bound says, it is no small one for large x
