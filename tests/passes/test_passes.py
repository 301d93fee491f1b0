"""Each pass does what its docstring shows, and the meaning stays."""

import pytest

from cutile.dtypes import i32
from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ir.text import print_function
from cutile.ir.verify import verify
from cutile.ops.memory import LoadTile
from cutile.passes.fold import fold, minmax
from cutile.passes.pipeline import run_passes
from cutile.passes.redundancy import cse, dce, licm
from tests.support.golden import Golden
from tests.support.programs import mut, program, scalar, tensor


def names(function: Function) -> list[str]:
    return [op.name for op in function.walk()]


def kernel(body: str) -> Function:
    text = f"def kernel(y: Mut, a: f32, n: i32, x: Tensor):\n    t = ct.load_tile_like(x, y)\n{body}"
    return program(text, {"y": mut(8), "a": scalar(), "n": scalar(i32), "x": tensor(1)})


def test_constants_fold_by_their_numpy_meaning() -> None:
    folded = fold(kernel("    y.store(t * (ct.constant(3, (), f32) / ct.constant(2, (), f32)))\n"))
    verify(folded)
    constants = [op.attributes["value"] for op in folded.walk() if op.name == "constant"]
    assert 1.5 in constants
    assert "div" not in names(folded)


def test_all_of_a_tile_is_the_tile() -> None:
    folded = dce(fold(kernel("    y.store(ct.extract(t, (n,), (8,)) + ct.extract(t, (n,), (1,)))\n")))
    assert names(folded).count("extract") == 1  # the other one is a part


@pytest.mark.parametrize("expression", ["n + 0", "0 + n", "n * 1", "n // 1", "n - 0"])
def test_neutral_integers_go(expression: str) -> None:
    folded = dce(fold(kernel(f"    y.store(t + ct.convert_tile({expression}, f32))\n")))
    assert not {"mul", "floor_div", "sub"} & set(names(folded))
    assert names(folded).count("add") == 1  # of `t`


def test_adding_zero_to_a_float_stays_because_of_negative_zero() -> None:
    assert "add" in names(fold(kernel("    y.store(t + 0.0)\n")))


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">="])
def test_integers_that_a_comparison_picks_are_minima_and_maxima(relation: str) -> None:
    def picked(x: str, y: str, convert: str) -> list[str]:
        text = f"    i, j = t.astype({convert}), ct.load_tile_like(x, y).astype({convert}) + 1\n"
        function = minmax(cse(kernel(f"{text}    y.store(ct.select(i {relation} j, {x}, {y}).astype(f32))\n")))
        verify(function)
        return [name for name in names(function) if name in ("min", "max", "select")]

    first, second = ("min", "max") if relation.startswith("<") else ("max", "min")
    assert picked("i", "j", "i32") == picked("i", "j", "u8") == [first]
    assert picked("j", "i", "i32") == [second]
    assert picked("i", "i + 2", "i32") == picked("i", "j", "f32") == ["select"]  # another value; zeros and NaN


def test_equal_operations_merge_but_not_across_branches() -> None:
    merged = cse(kernel("    y.store(ct.exp(t) + ct.exp(t) + ct.exp(ct.load_tile_like(x, y)))\n"))
    verify(merged)
    assert names(merged).count("exp") == 1
    apart = cse(
        kernel("    if n > 0:\n        t = ct.exp(t)\n    else:\n        t = ct.exp(t) * 2.0\n    y.store(t)\n")
    )
    verify(apart)
    assert names(apart).count("exp") == 2


def test_loads_of_the_own_tile_do_not_merge_over_a_store() -> None:
    body = "    u = y.load()\n    y.store(t)\n    y.store(u + y.load())\n"
    assert names(cse(kernel(body))).count("load_mut") == 2


def test_what_nobody_uses_goes_loops_included() -> None:
    body = "    u = t\n    for i in range(n):\n        u = u * 2.0\n    v = ct.exp(t)\n    y.store(t)\n"
    assert names(dce(kernel(body))) == ["tile_block_id", "load_tile", "store_mut"]


def test_a_store_under_a_branch_stays() -> None:
    assert names(dce(kernel("    if n > 0:\n        y.store(t)\n"))).count("store_mut") == 1


def test_scalars_and_loads_leave_the_loop_tiles_stay() -> None:
    body = (
        "    u = t\n    for i in range(n):\n        u = u * (a * 2.0) + x.partition((8,)).load(n * n)\n    y.store(u)\n"
    )
    hoisted = licm(kernel(body))
    verify(hoisted)
    (loop,) = [op for op in hoisted.walk() if isinstance(op, For)]
    inside = [op.name for op in loop.body.walk()]
    assert "load_tile" not in inside
    assert inside.count("mul") == 1  # u * (...), a tile; a * 2.0 and n * n have left
    assert "broadcast" in inside
    assert sum(isinstance(op, LoadTile) for op in hoisted.body.operations) == 2


def test_the_pipeline(golden: Golden) -> None:
    body = (
        "    m = float('-inf')\n    for i in range(ct.num_tiles(x.partition((8,)), 0)):\n"
        "        m = max(m, ct.reduce_max(x.partition((8,)).load(i), 0))\n    y.store(ct.exp(t - m))\n"
    )
    golden("passes/online_max.ir", print_function(run_passes(kernel(body))))


def test_dce_narrows_loops_and_branches_to_what_is_needed() -> None:
    text = """
def kernel(y: Mut, x: Tensor, n: i32):
    t = y.load()
    unused = t * 2
    count, lag, before = 0, 0, 0
    for i in range(n):
        unused = unused + t
        before = lag
        lag = count
        count = count + i
        t = t + before
    if n > 3:
        t = t + 1
        unused = t * 3
    y.store(t)
    while count < 9:
        count += 1
        unused = unused * 2
        y.store(t + count)
"""
    narrowed = dce(program(text, {"y": mut(8, dtype=i32), "x": tensor(1, i32), "n": scalar(i32)}))
    verify(narrowed)
    carried = {op.name: sorted(value.name for value in op.results) for op in narrowed.walk() if op.regions}
    assert carried == {"for": ["count", "lag", "t"], "if": ["t"], "while": ["count"]}


def test_gathers_of_what_nothing_writes_are_merged() -> None:
    text = (
        "def k(y: Mut, x: Tensor, n: i32):\n"
        "    t = ct.gather({0}, ct.iota((8,))) * ct.gather({0}, ct.iota((8,)))\n"
        "    y.store(t)\n"
    )
    for source, count in (("x", 1), ("y", 2)):  # the kernel writes y
        function = run_passes(program(text.format(source), {"y": mut(8), "x": tensor(1), "n": scalar(i32)}))
        assert [op.name for op in function.walk()].count("load_pointer") == count
