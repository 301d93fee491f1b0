"""`Rewriter`: a changed copy. What a rule sees, what becomes of what it returns, and that the original stays."""

from __future__ import annotations

from cutile.dtypes import i32
from cutile.errors import Location
from cutile.ir.builder import ERASE, KEEP, Builder, Copier, Replacement, Rewriter, rewrite
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.text import print_function
from cutile.ir.types import TileType
from cutile.ir.verify import verify
from cutile.ops.arith import Add, Mul

I32 = TileType(i32)
PLACE = Location("kernels.py", 5, 0, 1, "x")


def sample() -> Function:
    """A loop that adds `2 * i` to what it carries."""
    n = Value(I32, "n")
    builder = Builder(Block((n,)))
    builder.location = PLACE
    zero, one, two = (builder.constant(number) for number in (0, 1, 2))
    i, total = Value(I32, "i"), Value(I32, "total")
    with builder.block(i, total) as body:
        twice = builder.value(Mul(x=two, y=i), "twice")
        builder.yield_(builder.value(Add(x=total, y=twice)))
    carried = builder.value(For(zero, n, one, carried=(zero,), body=body), "sum")
    builder.value(Add(x=carried, y=n), "result")
    function = Function("f", builder.current, {5: "x"}, "kernels.py", "ir", {"threads": 128})
    verify(function)
    return function


def doubled(op: Op, rewriter: Rewriter) -> Replacement:
    """Products by two become sums."""
    if isinstance(op, Mul):
        return rewriter.builder.value(Add(x=op.y, y=op.y))
    return KEEP


def test_a_copy_is_equal_and_shares_nothing_that_changes() -> None:
    before = sample()
    copy = rewrite(before, lambda op, rewriter: KEEP)
    assert copy == before
    assert not {id(op) for op in copy.walk()} & {id(op) for op in before.walk()}
    assert not set(copy.parameters) & set(before.parameters)
    copy.facts["threads"] = 256
    next(copy.walk()).attributes["value"] = 9
    assert before == sample()


def test_what_a_rule_builds_takes_the_place() -> None:
    before = sample()
    text = print_function(before)
    after = rewrite(before, doubled)
    verify(after)
    assert not [op for op in after.walk() if isinstance(op, Mul)]
    (loop,) = (op for op in after.walk() if isinstance(op, For))
    sum_of_two, total = (op for op in loop.body.operations if isinstance(op, Add))
    assert sum_of_two.operands == (loop.induction, loop.induction)
    assert total.operands[1] is sum_of_two.result  # who used the old result uses the new one
    assert print_function(before) == text


def test_names_and_places_carry_over() -> None:
    (loop,) = (op for op in rewrite(sample(), doubled).walk() if isinstance(op, For))
    replaced = loop.body.operations[0]
    assert (replaced.result.name, replaced.location) == ("twice", PLACE)

    def renamed(op: Op, rewriter: Rewriter) -> Replacement:
        return rewriter.builder.value(Add(x=op.y, y=op.y), "own") if isinstance(op, Mul) else KEEP

    (loop,) = (op for op in rewrite(sample(), renamed).walk() if isinstance(op, For))
    assert loop.body.operations[0].result.name == "own"


def test_a_rule_sees_operands_of_the_copy_and_the_original_beside() -> None:
    before = sample()
    originals = {id(value) for op in before.walk() for value in (*op.operands, *op.results)}
    seen: list[Op] = []

    def look(op: Op, rewriter: Rewriter) -> Replacement:
        assert not originals & {id(value) for value in op.operands}
        assert type(rewriter.original) is type(op)
        seen.append(rewriter.original)
        return KEEP

    rewrite(before, look)
    assert {id(op) for op in seen} == {id(op) for op in before.walk()}


def test_nested_blocks_come_before_their_operation() -> None:
    order: list[str] = []

    def note(op: Op, rewriter: Rewriter) -> Replacement:
        order.append(op.name)
        return KEEP

    rewrite(sample(), note)
    assert order == ["constant", "constant", "constant", "mul", "add", "yield", "for", "add"]


def test_an_operation_may_become_values_that_are_there() -> None:
    """The loop, for one, the value that it begins with."""
    after = rewrite(sample(), lambda op, rewriter: op.carried if isinstance(op, For) else KEEP)
    verify(after)
    last = after.body.operations[-1]
    assert not [op for op in after.walk() if isinstance(op, For)]
    assert last.operands[0] is after.body.operations[0].result


def test_what_nobody_uses_may_be_erased() -> None:
    before = sample()
    erased = rewrite(before, lambda op, rewriter: ERASE if op.name == "add" and op.result.name == "result" else KEEP)
    dropped = rewrite(before, lambda op, rewriter: KEEP, drop=lambda op: op is before.body.operations[-1])
    assert erased == dropped
    assert len(erased.body.operations) == len(before.body.operations) - 1


def test_what_is_dropped_is_not_shown_to_the_rule() -> None:
    """With its nested blocks: the rule is not asked about what is in them."""
    before = sample()
    ends = [op for op in before.body.operations if isinstance(op, For) or op.operands]
    names: list[str] = []

    def note(op: Op, rewriter: Rewriter) -> Replacement:
        names.append(op.name)
        return KEEP

    rewrite(before, note, drop=lambda op: any(op is end for end in ends))
    assert names == ["constant"] * 3


def test_facts_and_stage_are_kept() -> None:
    after = rewrite(sample(), doubled)
    assert (after.name, after.file, after.stage, after.facts) == ("f", "kernels.py", "ir", {"threads": 128})
    assert after.source == {5: "x"}
    assert isinstance(after.body.operations[0], Constant)


def test_a_copier_copies_regions_too_and_leaves_the_values_of_others() -> None:
    function = sample()
    loop = next(op for op in function.body.operations if isinstance(op, For))
    other = Value(I32, "other")
    builder = Builder(Block())
    Copier(builder, {loop.stop: other}).operation(loop)
    (copy,) = builder.current.operations
    assert isinstance(copy, For)
    assert copy.stop is other
    assert copy.start is loop.start
    assert copy.location == PLACE
    assert [type(op) for op in copy.body.operations] == [type(op) for op in loop.body.operations]
    assert {id(value) for op in [copy, *copy.body.operations] for value in op.results}.isdisjoint(map(id, loop.results))
