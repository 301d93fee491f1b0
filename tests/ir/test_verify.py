"""Each rule of the IR, broken in one place: `verify` names the operation and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.dtypes import bool_, f32, i32
from cutile.errors import IRError, KernelTypeError, Location
from cutile.ir.builder import Builder
from cutile.ir.constant import Constant
from cutile.ir.control import For, If, While, Yield
from cutile.ir.core import FLOAT_TILE, INT_TILE, Block, Function, Op, Value, operand, region
from cutile.ir.types import TileType, Type
from cutile.ir.verify import verify
from cutile.ops.arith import Add

F32, I32, BOOL = TileType(f32), TileType(i32), TileType(bool_)


class Negate(Op, name="negate"):
    """An operation that says what its operand has to be."""

    x: Value = operand(FLOAT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Alone(Op, name="alone"):
    """Its block reads nothing from outside."""

    isolated = True
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Pair(Op, name="pair"):
    """Two results."""

    x: Value = operand(INT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, self.x.type)


def add(x: Value, y: Value, name: str = "") -> Op:
    """A sum whose result is there already, as text and rewriters make it."""
    op = Add(x=x, y=y)
    op.results = (Value(x.type, name),)
    return op


def function(*operations: Op, parameters: tuple[Value, ...] = ()) -> Function:
    return Function("f", Block(parameters, operations))


def yields(*values: Value) -> Op:
    return Yield(values=values)


def loop(x: Value, *body: Op, argument: Value) -> Op:
    """`for` over one carried value."""
    bounds = [Value(I32, name) for name in ("start", "stop", "step")]
    op = For(*bounds, carried=(x,), body=Block((Value(I32, "i"), argument), body))
    op.results = (Value(x.type),)
    return op


def refused(*operations: Op, parameters: tuple[Value, ...] = ()) -> str:
    with pytest.raises(IRError) as caught:
        verify(function(*operations, parameters=parameters))
    return str(caught.value)


def test_a_use_before_the_definition() -> None:
    x, later = Value(F32, "x"), add(Value(F32, "x"), Value(F32), "later")
    assert refused(add(x, x)) == "add: operand %x is used before it is defined"
    early = add(x, later.results[0])
    assert refused(early, later, parameters=(x,)) == "add: operand %later is used before it is defined"


def test_a_value_of_a_nested_block_ends_with_it() -> None:
    flag, x = Value(BOOL, "flag"), Value(F32, "x")
    inner = add(x, x, "inner")
    branch = If(flag, then=Block((), [inner, yields()]), orelse=Block((), [yields()]))
    verify(function(branch, parameters=(flag, x)))
    message = refused(branch, add(inner.results[0], x), parameters=(flag, x))
    assert message == "add: operand %inner is used before it is defined"


def test_an_isolated_block_reads_nothing_from_outside() -> None:
    x = Value(F32, "x")
    verify(function(Alone(body=Block((Value(F32, "own"),), [yields()])), parameters=(x,)))
    own = Value(F32, "own")
    verify(function(Alone(body=Block((own,), [add(own, own), yields()])), parameters=(x,)))
    message = refused(Alone(body=Block((), [add(x, x), yields()])), parameters=(x,))
    assert message == "add: operand %x is used before it is defined"


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([], "a nested block is empty: it must end with yield"),
        (["add"], "add: a nested block must end with yield"),
        (["yield", "yield"], "yield: a terminator belongs at the end of a nested block"),
        (["yield", "add"], "yield: a terminator belongs at the end of a nested block"),
    ],
)
def test_a_nested_block_ends_with_one_terminator(operations: list[str], message: str) -> None:
    own = Value(F32, "own")
    body = Block((own,), [add(own, own) if name == "add" else yields() for name in operations])
    assert refused(Alone(body=body)) == message


def test_a_kernels_body_has_no_terminator() -> None:
    assert refused(yields()) == "yield: a terminator belongs at the end of a nested block"


def test_a_value_is_defined_once() -> None:
    x = Value(F32, "x")
    first, second = add(x, x), add(x, x)
    first.results = second.results = (Value(F32, "twice"),)
    assert refused(first, second, parameters=(x,)) == "add: %twice is defined twice"
    again = add(x, x)
    again.results = (x,)
    assert refused(again, parameters=(x,)) == "add: %x is defined twice"


def test_results_are_as_the_operation_gives_them() -> None:
    x, n = Value(F32, "x"), Value(I32, "n")
    wrong = Add(x=x, y=x)
    wrong.results = (Value(I32),)
    assert refused(wrong, parameters=(x,)) == "add: results have the types ['i32'], the operation gives ['f32']"
    pair = Pair(n)
    pair.results = (Value(I32),)
    assert refused(pair, parameters=(n,)) == "pair: results have the types ['i32'], the operation gives ['i32', 'i32']"


def test_an_operand_is_what_its_field_declares() -> None:
    n = Value(I32, "n")
    op = Negate(n)
    op.results = (Value(I32),)
    assert refused(op, parameters=(n,)).startswith("negate: negate: operand 'x' must be a tile of floats, got i32")


def test_the_place_in_the_users_source_is_named() -> None:
    x = Value(F32, "x")
    op = add(x, x)
    op.location = Location("kernels.py", 7, 4, 9, "    y = x + x")
    assert refused(op) == "add (from kernels.py:7): operand %x is used before it is defined"


def test_what_a_loop_carries_keeps_its_type() -> None:
    x, argument, other = Value(F32, "x"), Value(F32, "acc"), Value(I32, "n")
    good = loop(x, yields(argument), argument=argument)
    parameters = (x, other, *good.operands[:3])
    verify(function(good, parameters=parameters))
    wrong_argument = loop(x, yields(x), argument=Value(I32, "acc"))
    said = refused(wrong_argument, parameters=(x, other, *wrong_argument.operands[:3]))
    assert said == "for: for: block arguments: expected ['f32'], got ['i32']"
    wrong_yield = loop(x, yields(other), argument=argument)
    said = refused(wrong_yield, parameters=(x, other, *wrong_yield.operands[:3]))
    assert said == "for: for: yielded values: expected ['f32'], got ['i32']"


def test_bounds_and_the_loop_variable_have_one_type() -> None:
    wide, n, i = Value(F32, "wide"), Value(I32, "n"), Value(TileType(bool_), "i")
    op = For(n, n, n, carried=(), body=Block((i,), [yields()]))
    assert "start, stop, step and the loop variable must have one type" in refused(op, parameters=(wide, n))
    op = For(n, wide, n, carried=(), body=Block((Value(I32, "i"),), [yields()]))
    assert "operand 'stop' must be an integer scalar, got f32" in refused(op, parameters=(wide, n))


def test_branches_yield_the_same_types() -> None:
    flag, x, n = Value(BOOL, "flag"), Value(F32, "x"), Value(I32, "n")
    op = If(flag, then=Block((), [yields(x)]), orelse=Block((), [yields(n)]))
    op.results = (Value(F32),)
    said = refused(op, parameters=(flag, x, n))
    assert said == "if: if: the values of the two branches: expected ['f32'], got ['i32']"


@pytest.mark.parametrize("values", [(), ("n",), ("flag", "flag")])
def test_a_condition_yields_one_bool(values: tuple[str, ...]) -> None:
    named: dict[str, Any] = {"flag": Value(BOOL, "flag"), "n": Value(I32, "n")}
    condition = Block((), [yields(*(named[name] for name in values))])
    op = While(carried=(), condition=condition, body=Block((), [yields()]))
    said = refused(op, parameters=tuple(named.values()))
    assert said == "while: while: the condition block must yield one bool scalar"


def test_what_a_builder_makes_is_accepted() -> None:
    flag, x = Value(BOOL, "flag"), Value(F32, "x")
    builder = Builder(Block((flag, x)))
    with builder.block() as then:
        builder.yield_(builder.value(Add(x=x, y=x)))
    with builder.block() as orelse:
        builder.yield_(builder.value(Constant(value=0.0, dtype=f32, shape=())))
    builder.value(If(flag, then=then, orelse=orelse))
    verify(Function("f", builder.current))


def test_a_builder_refuses_what_does_not_fit_and_adds_nothing() -> None:
    n = Value(I32, "n")
    builder = Builder(Block((n,)))
    with pytest.raises(KernelTypeError, match="operand 'x' must be a tile of floats, got i32"):
        builder.add(Negate(n))
    assert builder.current.operations == []
