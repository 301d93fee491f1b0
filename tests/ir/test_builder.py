"""`Builder`: where operations go, what their results and places are, and which values may be used."""

from __future__ import annotations

import pytest

from cutile.dtypes import bool_, f32, i32
from cutile.errors import IRError, Location
from cutile.ir.builder import Builder
from cutile.ir.constant import Constant
from cutile.ir.control import If, Yield
from cutile.ir.core import Block, Value
from cutile.ir.types import TileType
from cutile.ops.arith import Add

HERE, THERE = (Location("kernels.py", line, 0, 1, "x") for line in (3, 4))


def test_results_come_into_being_with_the_inferred_types() -> None:
    x = Value(TileType(f32, (4,)), "x")
    builder = Builder(Block((x,)))
    op = builder.add(Add(x=x, y=x), "total")
    assert [(value.type, value.name) for value in op.results] == [(TileType(f32, (4,)), "total")]
    assert builder.value(Add(x=op.result, y=x)).type == TileType(f32, (4,))
    assert [type(each) for each in builder.current.operations] == [Add, Add]


def test_operations_go_to_the_block_that_is_open() -> None:
    body = Block()
    builder = Builder(body)
    builder.constant(1)
    with builder.block() as inner:
        builder.constant(2)
        with builder.block() as innermost:
            builder.constant(3)
        assert builder.current is inner
        builder.constant(4)
    builder.constant(5)
    values = [[op.attributes["value"] for op in block.operations] for block in (body, inner, innermost)]
    assert values == [[1, 5], [2, 4], [3]]


def test_a_block_is_closed_where_something_raises() -> None:
    builder = Builder(Block())
    with pytest.raises(ZeroDivisionError), builder.block():
        _ = 1 // 0
    assert len(builder.open_blocks) == 1


def test_a_block_that_is_there_is_appended_to() -> None:
    builder = Builder(Block())
    later = Block()
    with builder.within(later):
        builder.constant(1)
    with builder.within(later):
        builder.constant(2)
    assert [op.attributes["value"] for op in later.operations] == [1, 2]
    assert builder.current.operations == []


def test_an_isolated_part_reads_no_block_from_outside() -> None:
    builder = Builder(Block())
    outer = builder.current
    with builder.block() as middle:
        assert builder.open_blocks == (outer, middle)
        with builder.isolated(), builder.block() as inner:
            assert builder.open_blocks == (inner,)
        assert builder.open_blocks == (outer, middle)


def test_an_operation_is_where_the_builder_is_unless_it_says_so_itself() -> None:
    builder = Builder(Block())
    builder.location = HERE
    placed = Constant(value=1, dtype=i32, shape=())
    placed.location = THERE
    assert builder.add(placed).location == THERE
    assert builder.add(Constant(value=1, dtype=i32, shape=())).location == HERE


def test_a_block_ends_with_what_it_passes_on() -> None:
    builder = Builder(Block())
    with builder.block() as block:
        one = builder.constant(1)
        builder.yield_(one)
    assert isinstance(block.terminator, Yield)
    assert block.terminator.operands == (one,)


def test_a_constant_is_an_integer_scalar_unless_it_is_said() -> None:
    builder = Builder(Block())
    assert builder.constant(7).type == TileType(i32)
    assert builder.constant(0.5, f32, (2, 3)).type == TileType(f32, (2, 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "constant: attribute 'value' is missing"),
        ({"value": 1}, "constant: attribute 'dtype' is missing"),
        ({"value": 1, "dtype": i32, "sign": 1}, r"constant: unexpected fields \['sign'\]"),
    ],
)
def test_an_operation_has_its_fields_and_no_others(fields: dict[str, object], message: str) -> None:
    with pytest.raises(IRError, match=message):
        Constant(**fields)  # type: ignore[arg-type]


def test_an_operand_that_is_missing_is_named() -> None:
    with pytest.raises(IRError, match="add: operand 'y' is missing"):
        Add(x=Value(TileType(f32)))  # type: ignore[call-arg]


def test_a_branch_yields_what_its_functions_return_and_stands_where_it_was_asked_for() -> None:
    builder = Builder(Block())
    condition = builder.constant(True, bool_)
    builder.location = HERE

    def one() -> tuple[Value]:
        builder.location = THERE
        return (builder.constant(1),)

    (result,) = builder.branch(condition, one, lambda: (builder.constant(2),))
    op = builder.current.operations[-1]
    assert isinstance(op, If)
    assert (op.location, builder.location, op.results) == (HERE, HERE, (result,))
    assert [nested.attributes["value"] for block in op.regions for nested in block.operations[:-1]] == [1, 2]
    assert builder.branch(condition, None, lambda: None) == ()
    assert [len(block.operations) for block in builder.current.operations[-1].regions] == [1, 1]
