"""Constants that no dtype, or not the dtype beside them, can hold: each operation refuses them at the user's line.

A table has a call for each parameter of the language that takes a tile or a number. It is complete: a declared
function with such a parameter is in it, or in the list of those that give the number no dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest

import cutile as ct
from cutile import api
from cutile.errors import KernelTypeError
from cutile.language.declare import DECLARED, FLOATS, Declaration
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import define

ALONE = {
    "broadcast": "ct.broadcast(N, (8,))",
    "broadcast and store": "y.store(ct.broadcast(N, (8,)))",
    "broadcast_scalar": "ct.broadcast_scalar(N, (8,))",
    "scalar_to_tile": "ct.scalar_to_tile(N)",
    "select": "ct.select(t > 1, N, N)",
    "min_tile": "ct.min_tile(N, N)",
    "max_tile": "ct.max_tile(N, N)",
    "eq_tile": "ct.eq_tile(N, N)",
    "ne_tile": "ct.ne_tile(N, N)",
    "lt_tile": "ct.lt_tile(N, N)",
    "le_tile": "ct.le_tile(N, N)",
    "gt_tile": "ct.gt_tile(N, N)",
    "ge_tile": "ct.ge_tile(N, N)",
    "convert_tile": "ct.convert_tile(N, ct.i32)",
    "convert_scalar": "ct.convert_scalar(N, ct.u8)",
    "itof": "ct.itof(N, ct.f64)",
    "exti": "ct.exti(N, ct.i64)",
    "trunci": "ct.trunci(N, ct.i8)",
    "bitcast": "ct.bitcast(N, ct.f64)",
    "i64": "ct.i64(N)",
    "philox": "ct.philox(N << 1, t)",
    "rand": "ct.rand(1, N << 1)",
    "randn": "ct.randn(1, N << 1)",
    "randint": "ct.randint(1, t, 0, N)",
    "range": "for j in range(n, N): y.store(t + j)",
    "choice": "N if n > 2 else 1",
    "choice by a function": "longer(n, N)",
    "and": "n > 2 and N > k",
    "plain number": "k + N",
    "plain number, compared": "k < N",
    "plain number, in a tuple": "k in (1, N)",
    "plain number, tuples compared": "(k, 1) == (N, 1)",
    "plain number, smallest": "min(k, N)",
    "ceil_div": "ct.ceil_div(N, k)",
}
"""Calls whose number gets a dtype of its own. An i64 is the widest: i64 and u64 do not mix."""

BESIDE = {
    **{f"t {sign} N": f"t {sign} N" for sign in ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")},
    **{f"t {sign} N": f"t {sign} N" for sign in ("==", "!=", "<", "<=", ">", ">=")},
    "N - t": "N - t",
    "n + N": "n + N",
    "n == N": "n == N",
    "n in": "n in (1, N)",
    "min": "min(n, N)",
    "max": "max(t, N)",
    "select": "ct.select(t > 1, t, N)",
    "min_tile": "ct.min_tile(t, N)",
    "max_tile": "ct.max_tile(t, N)",
    "clamp": "ct.clamp(t, 0, N)",
    "eq_tile": "ct.eq_tile(t, N)",
    "ne_tile": "ct.ne_tile(t, N)",
    "lt_tile": "ct.lt_tile(t, N)",
    "le_tile": "ct.le_tile(t, N)",
    "gt_tile": "ct.gt_tile(t, N)",
    "ge_tile": "ct.ge_tile(t, N)",
    "constant": "ct.constant(N, (8,), {dtype})",
    "cast": "{dtype}(N)",
    "iota, start": "ct.iota((8,), {dtype}, start=N)",
    "iota, step": "ct.iota((8,), {dtype}, step=N)",
    "store": "y.store(N)",
    "store_tile": "ct.store_tile(y, N)",
    "gather": "ct.gather(x, t, padding_value=N)",
    "scatter": "ct.scatter(y, t, N)",
    "store_view_tko": "ct.store_view_tko(ct.make_partition_view_mut(y, (8,)), N, (0,))",
    "load_ptr_tko": "ct.load_ptr_tko(p, mask=n > 2, pad=N)",
    "store_ptr_tko": "ct.store_ptr_tko(p, N)",
    **{
        f"atomic_{name}": f"ct.atomic_{name}(y, 0, N)"
        for name in ("add", "sub", "and", "or", "xor", "max", "min", "xchg")
    },
    "atomic_cas": "ct.atomic_cas(y, 0, 1, N)",
    "atomic_cas, expected": "ct.atomic_cas(y, 0, N, 1)",
    "atomic_rmw_tko": "ct.atomic_rmw_tko(p, N, ct.atomic.ADD)",
    "atomic_cas_tko": "ct.atomic_cas_tko(p, N, 1)",
    "atomic_red_view_tko": "ct.atomic_red_view_tko(ct.make_partition_view_mut(y, (8,)), N, (0,), ct.atomic.ADD)",
    "store_gather_scatter_view_tko": "ct.store_gather_scatter_view_tko(ct.make_gather_scatter_view(y, (8,)), N, (t,))",
    "reduce, identity": "ct.reduce(t, 0, N, lambda a, b: min(a, b))",
    "reduce, function": "ct.reduce(t, 0, 0, lambda a, b: a + N)",
    "scan, identity": "ct.scan(t, 0, ct.reverse.FORWARD, N, lambda a, b: min(a, b))",
}
"""Calls whose number takes the dtype of a tile, a scalar or a tensor."""

WIDE = ["t + ct.broadcast(N, (8,))", "y.store(ct.broadcast(N, (8,)))"]
"""A broadcast constant is a plain number: it takes the dtype beside it if that may hold it."""

WITHOUT_DTYPE = {
    "addptr": "a count of elements, as an i64: tests/language/test_pointers.py",
    "int_to_ptr": "an address, as a u64",
    "cuda_tile_print": "Python formats a constant when the kernel is compiled",
    "print_tko": "as cuda_tile_print",
}
"""Functions of the language that are not in the tables, and why."""

PYTHONS_OWN = {"range", "choice", "choice by a function", "and", "plain number, in a tuple"}
"""Calls that the interpreter leaves to Python, whose integers have no end."""


def number_parameters(declaration: Declaration) -> list[str]:
    """The parameters that take a tile or a number and have no default."""
    parameters = declaration.signature.parameters.values()
    return [
        each.name
        for each in parameters
        if re.match(r"Tile \| (int|float)", str(each.annotation)) and (each.default is each.empty)
    ]


def element_wise() -> Iterator[tuple[str, Declaration]]:
    """The functions whose declaration says which numbers they take."""
    return ((name, each) for name, each in DECLARED.items() if each.takes is not None and number_parameters(each))


def call(name: str, first: str) -> str:
    """A call with `N` for each number but the first, which is `first`."""
    declaration = DECLARED[name]
    numbers = number_parameters(declaration)
    required = [each.name for each in declaration.signature.parameters.values() if each.default is each.empty]
    values = {"predicate": "ct.predicate.LESS_THAN", **dict.fromkeys(numbers, "N"), numbers[0]: first}
    return f"ct.{name}({', '.join(values[each] for each in required)})"


WHOLE_ALONE = ALONE | {name: call(name, "N") for name, each in element_wise() if each.takes is not FLOATS}
WHOLE_BESIDE = BESIDE | {
    name: call(name, "t")
    for name, each in element_wise()
    if each.takes is not FLOATS and len(number_parameters(each)) > 1
}
FLOAT_ALONE = {name: call(name, "N") for name, each in element_wise() if each.takes is FLOATS} | {
    "ftof": "ct.ftof(N, ct.f64)",
    "ftoi": "ct.ftoi(N, ct.i32)",
}

CASES = [
    *product(WHOLE_ALONE.values(), ["2**63", "-(2**63) - 1", "2**70", "10**5000"], ["i32"]),
    *product(WHOLE_BESIDE.values(), ["2**31", "-(2**31) - 1", "10**5000"], ["i32"]),
    *product(WHOLE_BESIDE.values(), ["-1", "256"], ["u8"]),
    *product(WIDE, ["2**31", "10**5000"], ["i32"]),
    *product(FLOAT_ALONE.values(), ["1e39", "-1e300"], ["f32"]),
]


def refusal(line: str, dtype: str, backend: str) -> str:
    """The message of the error that a kernel with this line raises; empty if it raises none."""
    text = (
        "def longer(a, b):\n    return a if a > 2 else b\n"
        f"def f(y: Mut, x: Tensor, p: ct.Ptr[{dtype}], n: {dtype}):\n"
        f"    t = x.load_tile((8,), (0,))\n    k = x.shape[0]\n    y.store(t)\n    {line}\n"
    )
    kernel = ct.entry(unsafe=True)(define(text))
    with on(backend):
        x = api.zeros((8,), getattr(ct, dtype)).sync()
        y = api.zeros((8,), getattr(ct, dtype)).sync()
        op = kernel(y.partition((8,)), x, x.device_pointer(), 3)
        try:
            op.sync()
        except KernelTypeError as error:
            return str(error)
    return ""


def refused(line: str, number: str, dtype: str, backend: str) -> str:
    """Why a case is not refused as it should be; empty if it is."""
    text = re.sub(r"\bN\b", f"({number})", line.replace("{dtype}", dtype))
    message = refusal(text, dtype, backend)
    return "" if "does not fit" in message and "^" in message else f"{text}: {message}"


def test_the_tables_have_every_function_that_takes_a_number() -> None:
    called = {
        name
        for text in (*ALONE.values(), *BESIDE.values(), *FLOAT_ALONE.values())
        for name in re.findall(r"ct\.(\w+)", text)
    }
    takes = {name for name, each in DECLARED.items() if number_parameters(each) and each.takes is None}
    assert takes - called == {*WITHOUT_DTYPE}


@pytest.mark.parametrize("part", range(8))
def test_a_constant_that_does_not_fit_is_refused_at_its_line(part: int) -> None:
    """The reference backend has the front end of all the others."""
    assert list(filter(None, (refused(*case, "reference") for case in CASES[part::8]))) == []


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_backends_and_the_interpreter_refuse_alike(backend: str) -> None:
    """The first case of each call that the interpreter does not leave to Python."""
    lines = [line for name, line in WHOLE_ALONE.items() if name not in PYTHONS_OWN]
    cases = [*((line, "2**70", "i32") for line in lines), *((line, "2**31", "i32") for line in WHOLE_BESIDE.values())]
    assert list(filter(None, (refused(*case, backend) for case in cases))) == []
