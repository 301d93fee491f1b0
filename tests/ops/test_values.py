"""Every element-wise operation on ordinary, edge and special values: many in each kernel."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cutile.command.ops import accuracy_of
from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, from_numpy, i32
from cutile.ops import OPS
from cutile.ops.registry import family
from tests.samples.row import FLOATS, INTS
from tests.samples.values import CASES, Case
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch
from tests.support.values import Array, differences, exact_sign, is_rounded, operands, ulps_from, zero_is_negative

COUNT = 2048
AT_ONCE = 12  # expressions in a kernel: few compilations, and none of them long
MARGIN = 1e-3  # of the judge: long double has eleven bits more than f64
TINY = np.finfo(np.float32).tiny


def _fused(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


PLAIN: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": _fused,
    "sqrt": np.sqrt,
}


def text_of(cases: list[Case]) -> str:
    """A kernel that stores each case's expression into an output of its own."""
    outputs = ", ".join(f"o{i}: Mut" for i in range(len(cases)))
    lines = [f"    {name} = ct.load_tile_like({name}_in, o0)" for name in "xyz"]
    lines += [f"    o{i}.store({case.expression})" for i, case in enumerate(cases)]
    return f"def values({outputs}, x_in: Tensor, y_in: Tensor, z_in: Tensor):\n" + "\n".join(lines) + "\n"


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def _wrong_sides(case: Case, got: Array, operands: list[Array]) -> Array:
    """Where a directed result is not the neighbour on its side."""
    arity = {"fma": 3, "sqrt": 1}.get(case.exact, 2)
    operands = operands[:arity]
    plain = np.asarray(PLAIN[case.exact](*operands))
    wrong = differences(got, plain.astype(got.dtype))  # for what is no finite number
    for at in range(len(got)):
        row = [float(each[at]) for each in operands]
        sign = exact_sign(case.exact, *row)
        if sign is None:
            if case.exact == "fma" and all(map(np.isfinite, row[:2])) and not np.isfinite(row[2]):
                wrong[at] = differences(got[at : at + 1], operands[2][at : at + 1])[0]
            continue
        if _is_zero(sign):
            wrong[at] = got[at] != 0 or bool(np.signbit(got[at])) != zero_is_negative(case.exact, case.side, *row)
        elif case.ftz and abs(float(got[at])) < TINY:
            wrong[at] = got[at] != 0 or not _is_tiny(sign, float(got[at]))
        else:
            wrong[at] = not is_rounded(got[at], sign, case.side)
    return wrong


def _is_zero(sign: Any) -> bool:
    return sign(0) == 0


def _is_tiny(sign: Any, zero: float) -> bool:
    """Whether a result that was flushed to a zero is below the smallest normal number, and of the zero's sign."""
    negative = np.signbit(zero)
    return (sign(0) < 0) == negative and (sign(-float(TINY)) > 0 if negative else sign(float(TINY)) < 0)


def _errors(case: Case, got: Array, operands: list[Array]) -> Array:
    """The distances from the exact results in ulp; 0 where a case leaves the result open."""
    assert case.wide is not None
    exact = np.asarray(case.wide(*(each.astype(np.float64).astype(np.longdouble) for each in operands)))
    error = ulps_from(got, exact, case.least)
    if case.fast:
        divisor = np.abs(operands[1].astype(np.float64))
        open_ = (divisor > 2.0**126) | ((divisor < 2.0**-126) & (divisor > 0))
        error[open_] = 0
    if case.ftz:
        small = np.abs(exact) < np.longdouble(TINY) * (1 + 2.0**-20)
        flushed = (got == 0) & (np.signbit(got) == np.signbit(exact.astype(np.float64)))
        error[small & flushed & (exact != 0)] = 0
    return error


_VERDICTS: dict[tuple[int, bytes], Array] = {}
"""By case and result. Backends that agree bit by bit are judged once: some judgements take as long as compiling."""


def wrong(case: Case, got: Array, operands: list[Array]) -> Array:
    """Where a case's result is not what it should be. A dtype's operands are always the same."""
    key = CASES.index(case), got.dtype.str.encode() + got.tobytes()
    if key not in _VERDICTS:
        _VERDICTS[key] = _judged(case, got, operands)
    return _VERDICTS[key]


def _judged(case: Case, got: Array, operands: list[Array]) -> Array:
    if case.ftz and case.numpy is None:
        operands = [_flushed(each) for each in operands]
    if case.exact:
        return _wrong_sides(case, got, operands)
    if case.wide is not None:
        bound = case.bound or accuracy_of(case.op).of(from_numpy(got.dtype).name)
        return _errors(case, got, operands) > bound + MARGIN
    assert case.numpy is not None
    return differences(got, np.asarray(case.numpy(*operands)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_values(dtype: DTypeLike, backend: str) -> None:
    cases = [case for case in CASES if dtype in case.dtypes]
    if dtype in (f16, bf16) and backend == "cpu":
        cases = cases[::3]  # computed in f32, of which all are compiled
    elif dtype not in (f32, f64, i32) and backend == "cpu":
        cases = cases[INTS.index(dtype) % 2 :: 2]  # each is compiled for half of the integers
    inputs = list(operands(dtype, COUNT))
    results = [np.full(COUNT, 77).astype(dtype.numpy) for _ in cases]
    for at in range(0, len(cases), AT_ONCE):
        outputs = [(each, (COUNT,)) for each in results[at : at + AT_ONCE]]
        launch(kernel(text_of(cases[at : at + AT_ONCE])), *outputs, *inputs, backend=backend)
    failures: list[str] = []
    for case, got in zip(cases, results, strict=True):
        with np.errstate(all="ignore"):
            where = np.flatnonzero(wrong(case, got, inputs))
        if len(where):
            x, y, z = (each[where[0]] for each in inputs)
            failures.append(f"{case}: {len(where)} wrong, such as x={x!r}, y={y!r}, z={z!r}: {got[where[0]]!r}")
    assert not failures, f"{dtype} on {backend}:\n" + "\n".join(failures)


ELEMENTWISE = ("arith", "rounding", "math", "compare")


def test_every_operation_has_cases_for_its_dtypes() -> None:
    missing = [
        f"{name} of {dtype}"
        for name, op in OPS.items()
        if family(op) in ELEMENTWISE
        for dtype in op.dtypes()
        if dtype in (*FLOATS, *INTS) and not any(case.op == name and dtype in case.dtypes for case in CASES)
    ]
    assert not missing, f"no case in tests/samples/values.py for: {', '.join(missing)}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_square_roots_of_f64_are_rounded_once(backend: str) -> None:
    """Beside the largest number the root lies so close to the middle of two that 64 bits cannot tell the side."""
    most = np.finfo(np.float64).max
    x = np.array([most, np.nextafter(most, 0), np.nextafter(1.0, 0), np.nextafter(4.0, 0)])
    y = np.zeros(4)
    root_of = kernel("def k(y: Mut, x: Tensor):\n    y.store(ct.sqrt(ct.load_tile_like(x, y)))\n")
    launch(root_of, (y, (4,)), x, backend=backend)
    for number, root in zip(x, y, strict=True):
        exact = Fraction(float(number))
        below, above = (Fraction(float(root)) + Fraction(float(np.nextafter(root, end))) for end in (0, np.inf))
        assert (below / 2) ** 2 < exact < (above / 2) ** 2
