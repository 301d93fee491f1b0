"""Every operation that is listed has its values tested, with every type that it is listed with, on every backend."""

from __future__ import annotations

import re

import pytest

from cutile.command.ops import Entry, catalogue
from cutile.dtypes import DTypeLike
from tests.docs.pages import ROOT
from tests.ops.test_samples import ROWS
from tests.samples.moves import MAPPED, MOVES
from tests.samples.values import CASES

SAMPLES: list[tuple[str, str, tuple[DTypeLike, ...]]] = [
    *((row.op, row.expression, row.dtypes) for row in ROWS),
    *((case.op, case.expression, case.dtypes) for case in CASES),
]
"""The operation, the expression, and the types that it is tested with: tests/ops/test_samples.py, test_values.py."""

MOVED = {*MAPPED, *(name for move in MOVES for name in move.names)}
"""With every type: tests/ops/test_moves.py."""

CONVERSIONS, ATOMICS = "tests/ops/test_conversion.py", "tests/language/test_atomics.py"
UPDATES = ("atomic_add", "atomic_sub", "atomic_and", "atomic_or", "atomic_xor", "atomic_max", "atomic_min")
OF_ITS_OWN: dict[str, str] = {
    "bitcast": f"{CONVERSIONS}::test_bitcast_keeps_every_bit_that_means_something",
    "convert_tile": f"{CONVERSIONS}::test_from_a_type_to_every_other",
    "Tile.astype": f"{CONVERSIONS}::test_from_a_type_to_every_other",
    **dict.fromkeys(("ftof", "ftoi", "itof"), f"{CONVERSIONS}::test_every_rounding"),
    **dict.fromkeys(("exti", "trunci", "convert_scalar"), f"{CONVERSIONS}::test_integers_by_width"),
    **dict.fromkeys(("pack", "unpack"), f"{CONVERSIONS}::test_pack_and_unpack_go_by_the_bytes_of_memory"),
    **dict.fromkeys(("Tile.pack", "Tile.unpack"), f"{CONVERSIONS}::test_pairs_of_4_bit_floats"),
    **dict.fromkeys(UPDATES, f"{ATOMICS}::test_updates_by_index"),
    **dict.fromkeys(("philox", "rand", "randint", "randn"), "tests/ops/test_random_numbers.py::test_numbers"),
    **dict.fromkeys(("matmul", "x @ y"), "tests/ops/test_products.py::test_matmul"),
    "atomic_xchg": f"{ATOMICS}::test_an_exchange_by_index_gives_what_was_there",
    "atomic_cas": f"{ATOMICS}::test_each_place_is_taken_once",
    "atomic_rmw_tko": f"{ATOMICS}::test_integer_updates",
    "atomic_cas_tko": f"{ATOMICS}::test_a_comparison_is_of_bits",
    "atomic_red_view_tko": f"{ATOMICS}::test_tiles_of_the_whole_tensor_are_updated",
    **dict.fromkeys(("mma", "mmaf", "mmai"), "tests/ops/test_products.py::test_one_product"),
    "mmaf_scaled": "tests/ops/test_products.py::test_a_scaled_product",
    **dict.fromkeys(("cuda_tile_print", "print_tko"), "tests/language/test_printing.py::test_every_dtype_has_a_text"),
    "Tensor.slice": "tests/language/test_tensor_values.py::test_ragged_segments",
    "store_gather_scatter_view_tko": "tests/language/test_tensor_values.py::test_lists_of_tensors_and_windows",
    "cuda_tile_assert": "tests/language/test_printing.py::test_what_holds_says_nothing",
    "constant": "tests/ops/test_moves.py::test_a_constant_of_every_type",
    **dict.fromkeys(
        ("assume_bounds", "assume_bounds_lower", "assume_bounds_upper", "assume_div_by", "assume_div_by_every_along"),
        "tests/language/test_views.py::test_assumptions_that_hold_change_nothing",
    ),
}
"""Tests that go through an operation's types themselves, or are of no type in particular."""


def uses(name: str, expression: str) -> bool:
    """Whether an expression is written with a function, a method, or an operator."""
    word = name.rpartition(".")[2]
    if word.isidentifier():
        return re.search(rf"\b{word}\b", expression) is not None
    operator = name.replace("x", "").replace("y", "").replace("abs(, )", "abs(").strip(" (),")
    return operator in expression


def sampled(entry: Entry) -> set[str]:
    """The types with which samples compute what a name stands for; empty where none is written with it."""
    if not any(uses(entry.name, text) for _, text, _ in SAMPLES):
        return set()
    named = {dtype.name for _, text, dtypes in SAMPLES if uses(entry.name, text) for dtype in dtypes}
    by_operation = {
        each: {dtype.name for op, _, dtypes in SAMPLES if op == each for dtype in dtypes} for each in entry.operations
    }
    return named | {dtype for dtype in entry.dtypes if all(dtype in found for found in by_operation.values())}


@pytest.mark.parametrize(
    "entry", [each for each in catalogue() if each.operations or each.composed], ids=lambda entry: entry.name
)
def test_its_values_are_tested(entry: Entry) -> None:
    if entry.name in MOVED:
        return
    if entry.name in OF_ITS_OWN:
        where, _, function = OF_ITS_OWN[entry.name].partition("::")
        text = (ROOT / where).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"{entry.name}: there is no {OF_ITS_OWN[entry.name]}"
        assert uses(entry.name, text), f"{entry.name}: {where} does not use it"
        assert "BACKENDS" in text, f"{where} does not run on every backend"
        return
    missing = set(entry.dtypes) - sampled(entry)
    assert sampled(entry) or not entry.dtypes, f"no sample is written with {entry.name}"
    assert not missing, f"no sample of {entry.name} has the types {', '.join(sorted(missing))}"
