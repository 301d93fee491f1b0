"""Index checks: proved, moved to the launch, or left in the kernel; and what a launch says that fails one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile.ir.text import print_function
from cutile.ir.types import Type
from cutile.passes.bounds import bounds
from cutile.passes.fold import fold
from cutile.passes.pipeline import run_passes
from tests.support.kernels import define, kernel
from tests.support.memory import CPU_BACKENDS, launch
from tests.support.programs import mut, program, scalar, tensor

GEMM = """
def gemm(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((64, 32)), y.partition((32, 64))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 64), ct.f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(acc)
"""


def placed(text: str, parameters: dict[str, Type], **facts: Any) -> tuple[list[tuple[Any, ...]], int]:
    """The launch checks, and how many checks stay in the kernel."""
    function = fold(program(text, parameters))
    function.facts.update(facts)
    made = bounds(function)
    stay = sum(op.name in ("check_tile", "check_index") for op in made.walk())
    return list(made.facts.get("launch_checks", ())), stay


def one(expression: str, **facts: Any) -> tuple[list[str], int]:
    """Of `x.partition((8,)).load((expression,))`: the launch checks as text, and how many stay."""
    lines = expression.splitlines()
    text = (
        "def f(y: Mut, x: Tensor, t: Tensor, n: i32):\n"
        "    part, i = x.partition((8,)), ct.get_tile_block_id()[0]\n"
        + "".join(f"    {line}\n" for line in lines[:-1])
        + f"    {' ' * (len(lines[-1]) - len(lines[-1].lstrip()))}y.store(part.load(({lines[-1].strip()},)))\n"
    )
    checks, stay = placed(text, {"y": mut(8), "x": tensor(1), "t": tensor(1, ct.i32), "n": scalar(ct.i32)}, **facts)
    said = [
        " and ".join(
            [*[f"{low} >= 0"] * bool(low), *[f"{high} < {count}"] * bool(high), *(f"if {guard}" for guard in guards)]
        )
        for _, _, _, low, high, count, guards, _ in checks
    ]
    return said, stay


def test_a_product_checks_its_operands_at_the_launch_alone() -> None:
    checks, stay = placed(GEMM, {"z": mut(64, 64), "x": tensor(2), "y": tensor(2)})
    assert stay == 0
    assert [check[:6] for check in checks] == [
        ("x", 0, 64, "", "(z.shape[0] + 63) // 64 - 1", "(x.shape[0] + 63) // 64"),
        ("y", 0, 32, "", "(x.shape[1] + 31) // 32 - 1", "(y.shape[0] + 31) // 32"),
        ("y", 1, 64, "", "(z.shape[1] + 63) // 64 - 1", "(y.shape[1] + 63) // 64"),
    ]


def test_known_extents_leave_nothing_to_check() -> None:
    x, y = (ct_tensor(shape) for shape in ((256, 128), (128, 192)))
    z = mut(64, 64)
    exact = type(z)(ct_tensor((256, 192)), (64, 64))
    assert placed(GEMM, {"z": exact, "x": x, "y": y}) == ([], 0)


def ct_tensor(shape: tuple[int, ...]) -> Any:
    dynamic = tensor(len(shape))
    return type(dynamic)(dynamic.dtype, shape, dynamic.strides, dynamic.alignment)


COUNT = "(x.shape[0] + 7) // 8"
BLOCKS = "(y.shape[0] + 7) // 8"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0", []),  # there always is a first tile
        ("3", [f"3 < {COUNT}"]),
        ("n", [f"n >= 0 and n < {COUNT}"]),
        ("i", [f"{BLOCKS} - 1 < {COUNT}"]),
        ("i // 2", [f"({BLOCKS} - 1) // 2 < {COUNT}"]),
        ("2 * i + 1", [f"2 * ({BLOCKS}) - 1 < {COUNT}"]),
        ("ct.num_tiles(part, 0) - 1", []),
        ("i % ct.num_tiles(part, 0)", []),
        ("min(i, ct.num_tiles(part, 0) - 1)", []),
        ("i - 1", [f"-1 >= 0 and {BLOCKS} - 2 < {COUNT}"]),
        ("for k in range(ct.num_tiles(part, 0)):\n    k", []),
        ("for k in range(n):\n    k", [f"n - 1 < {COUNT} and if 0 < n"]),
        ("for k in range(n, 10):\n    k", [f"n >= 0 and 9 < {COUNT} and if n < 10"]),
        ("for k in range(10, n, -1):\n    k", [f"n + 1 >= 0 and 10 < {COUNT} and if n < 10"]),
        ("for k in range(4):\n    2 * k + 1", [f"7 < {COUNT}"]),
        ("for k in range(0, n, 3):\n    k", [f"3 * ((n - 1) // 3) < {COUNT} and if 0 < n"]),
        ("for k in range(0, ct.num_tiles(part, 0), 3):\n    k", []),
        ("for k in range(9, n, -2):\n    k", [f"-(2 * ((-n + 8) // 2)) + 9 >= 0 and 9 < {COUNT} and if n < 9"]),
        ("for k in range(i, n, ct.get_num_tile_blocks()[0]):\n    k", [f"n - 1 < {COUNT} and if 0 < n"]),
        ("for k in range(n):\n    for j in range(3):\n        k + j", [f"n + 1 < {COUNT} and if 0 < n"]),
    ],
)
def test_what_the_launch_knows_it_checks(expression: str, said: list[str]) -> None:
    assert one(expression) == (said, 0)


@pytest.mark.parametrize(
    "expression",
    [
        "ct.reduce_max(t.load_tile((8,), (0,)), 0)",  # data
        "if n > 3:\n    n",  # maybe not reached
        "if i == 0:\n    3",
        "k = n\nwhile k > 3:\n    k = k - 1\n    k",
        "for k in range(i, n, 3):\n    k",  # n - 1 may not be reached
        "n * n",  # may wrap round to a tile
        "i * i - i",
        "i % 5 + i",
        "min(i, n)",  # with n above the last block, n is never the index
    ],
)
def test_what_the_launch_cannot_decide_stays(expression: str) -> None:
    if expression == "min(i, n)":
        assert one(expression) == ([f"min(0, n) >= 0 and min({BLOCKS} - 1, n) < {COUNT}"], 0)
        return
    assert one(expression) == ([], 1)


@pytest.mark.parametrize(
    ("expression", "preconditions", "said"),
    [
        ("i", ("x.shape[0] == y.shape[0]",), []),
        ("i", ("y.shape[0] % 8 == 0", "x.shape[0] % 8 == 0"), ["y.shape[0] // 8 - 1 < x.shape[0] // 8"]),
        ("i", ("y.shape[0] % 8 == 0", "x.shape[0] % 8 == 0", "y.shape[0] // 8 <= x.shape[0] // 8"), []),
        ("n", ("n < x.shape[0] // 8", "n >= 0", "x.shape[0] % 8 == 0"), []),
        ("n", ("n >= 0",), [f"n < {COUNT}"]),
    ],
)
def test_preconditions_prove(expression: str, preconditions: tuple[str, ...], said: list[str]) -> None:
    assert one(expression, preconditions=preconditions) == (said, 0)


@pytest.mark.parametrize(
    ("precondition", "message"),
    [
        ("x.shape[0] % 0 == 0", "divides by zero"),
        ("x.shape[0] // (2 - 2) == 1", "divides by zero"),
        ("x.shape[0]", "is no comparison"),
        ("x.shape[0] = 3", "is no comparison"),
        ("a.shape[0] == 1", r"has 'a.shape\[0\]', which the launch does not know"),
        ("x.shape[3] == 1", r"has 'x.shape\[3\]'"),
        ("x.sum() == 1", r"has 'x.sum\(\)'"),
    ],
)
def test_preconditions_that_mean_nothing(precondition: str, message: str) -> None:
    with pytest.raises(ct.KernelTypeError, match=message):
        one("0", preconditions=(precondition,))


def test_assumptions_prove() -> None:
    assert one("ct.assume_bounds(ct.reduce_max(t.load_tile((8,), (0,)), 0), 0, 0)") == ([], 0)
    assert one("ct.assume_bounds_lower(n, 0)") == ([f"n < {COUNT}"], 0)


def test_denied_checks_are_errors() -> None:
    with pytest.raises(ct.KernelTypeError, match="deny_in_kernel_checks refuses"):
        one("n * n", checks="deny")
    assert one("n", checks="deny") == ([f"n >= 0 and n < {COUNT}"], 0)


def test_unchecked_accesses_have_no_checks_and_the_debug_mode_keeps_all() -> None:
    assert one("n * n", checks="none") == ([], 0)
    assert one("0", checks="keep") == ([], 1)


# Launches

PICK = "def pick(y: Mut, x: Tensor, n: i32):\n    y.store(x.partition((8,)).load((n,)))\n"


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_launch_names_argument_index_and_extent(backend: str) -> None:
    y, x = np.zeros(8, np.float32), np.arange(20, dtype=np.float32)
    launch(kernel(PICK), (y, (8,)), x, 2, backend=backend)
    np.testing.assert_array_equal(y, [16, 17, 18, 19, 0, 0, 0, 0])
    with pytest.raises(
        ct.LaunchError, match=r"goes up to 3 .*argument 'x' has 3 tiles of 8 along axis 0 \(extent 20\)"
    ):
        launch(kernel(PICK), (y, (8,)), x, 3, backend=backend)
    with pytest.raises(
        ct.LaunchError,
        match=r"index goes down to -1, and argument 'x' has 3 tiles .*; the first one is 0(.|\n)*line 2, in (.|\n)*\^",
    ):
        launch(kernel(PICK), (y, (8,)), x, -1, backend=backend)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_unchecked_accesses_give_padding_outside(backend: str) -> None:
    y = np.ones(8, np.float32)
    pick = ct.entry(unchecked_accesses=True)(define(PICK))
    launch(pick, (y, (8,)), np.arange(20, dtype=np.float32), 3, backend=backend)
    np.testing.assert_array_equal(y, np.zeros(8))


def test_preconditions_are_verified_at_each_launch() -> None:
    text = "def f(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n"
    f = ct.entry(preconditions=("x.shape[0] % 64 == 0", "x.shape[1] % 64 == 0"))(define(text))
    launch(f, (np.zeros((128, 128), np.float32), (64, 64)), np.ones((128, 128), np.float32))
    with pytest.raises(ct.LaunchError, match=r"x.shape\[0\] % 64 == 0 failed: x.shape\[0\] is 100"):
        launch(f, (np.zeros((100, 128), np.float32), (64, 64)), np.ones((100, 128), np.float32))


def test_a_precondition_that_divides_by_an_argument() -> None:
    text = "def f(y: Mut, n: i32):\n    y.store(y.load() + n)\n"
    f = ct.entry(preconditions=("8 // n == 4",))(define(text))
    y = np.zeros(4, np.int32)
    launch(f, (y, (4,)), 2)
    with pytest.raises(ct.LaunchError, match="the precondition 8 // n == 4 failed: n is 3"):
        launch(f, (y, (4,)), 3)
    with pytest.raises(ct.LaunchError, match="the precondition 8 // n == 4 divides by 0: n is 0"):
        launch(f, (y, (4,)), 0)
    np.testing.assert_array_equal(y, 2)


def test_preconditions_may_be_about_generics() -> None:
    text = "def f(y: Mut, x: Tensor, *, BK: Const = 32):\n    y.store(x.partition((8,)).load((0,)))\n"
    f = ct.entry(preconditions=("x.shape[0] % BK == 0",))(define(text))
    launch(f, (np.zeros(8, np.float32), (8,)), np.ones(64, np.float32))
    with pytest.raises(ct.LaunchError, match="% 32 == 0 failed"):
        launch(f, (np.zeros(8, np.float32), (8,)), np.ones(48, np.float32))


def test_how_accesses_are_checked_is_said_once() -> None:
    with pytest.raises(ValueError, match="exclude one another"):
        ct.entry(unchecked_accesses=True, deny_in_kernel_checks=True)(define(PICK))


def test_a_guarded_loop_without_turns_checks_nothing() -> None:
    text = (
        "def f(y: Mut, x: Tensor, n: i32):\n"
        "    acc = y.load()\n"
        "    for k in range(n, 3):\n"
        "        acc = acc + x.partition((8,)).load((k,))\n"
        "    y.store(acc)\n"
    )
    x = np.ones(8, np.float32)
    launch(kernel(text), (np.zeros(8, np.float32), (8,)), x, 3)
    with pytest.raises(ct.LaunchError, match="goes up to 2"):
        launch(kernel(text), (np.zeros(8, np.float32), (8,)), x, 0)


@pytest.mark.parametrize(
    ("expression", "n", "fails"),
    [
        ("x.partition((8, 4)).load((j, i))", 0, True),  # axes exchanged on a tensor that is no square
        ("x.partition((8, 4)).load((i, j + 1))", 0, True),  # off by one
        ("x.partition((8, 4)).load((i, j - n))", 0, False),
        ("x.partition((8, 4)).load((i, j // n))", 0, False),  # a division by zero is 0
        ("x.partition((8, 4)).load((i, 2147483647 + n))", 1, True),  # wraps to the smallest i32
        ("x.partition((8, 4)).load((i, n * 65536 * 65536))", 1, True),  # wraps to 0, which is refused, too
        ("x.partition((8, 4)).load((i, n % 3))", -1, False),
        ("x.partition((8, 4)).load((i, n // 3))", -1, True),
        ("x.partition_permuted((4, 8), (1, 0)).load((j, i)).reshape((8, 4))", 0, False),
        ("x.partition_permuted((4, 8), (1, 0)).load((i, j)).reshape((8, 4))", 0, True),
    ],
)
def test_indices_that_go_wrong_are_found(expression: str, n: int, fails: bool) -> None:
    text = f"def f(y: Mut, x: Tensor, n: i32):\n    i, j, _ = ct.get_tile_block_id()\n    y.store({expression})\n"
    x = np.arange(16 * 12, dtype=np.float32).reshape(16, 12)
    if not fails:
        launch(kernel(text), (np.zeros((16, 12), np.float32), (8, 4)), x, n)
        return
    with pytest.raises((ct.LaunchError, ct.KernelAssertionError)):
        launch(kernel(text), (np.zeros((16, 12), np.float32), (8, 4)), x, n)


def test_an_axis_too_long_for_a_launch_is_refused() -> None:
    long = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**31 - 2**20,), (0,))
    text = "def f(y: Mut, x: Tensor):\n    y.store(x.load_tile((8,), (0,)))\n"
    with pytest.raises(ct.ArgumentError, match=r"has the shape .* at most 2146435071 elements along an axis"):
        launch(kernel(text), (np.zeros(8, np.float32), (8,)), long)


# What stays in the kernel

GATHER = """
def gather(y: Mut, x: Tensor, indices: Tensor):
    part = x.partition((8,))
    i = ct.get_tile_block_id()[0]
    y.store(part.load((ct.reduce_max(indices.load_tile((1,), (i,)), 0),)))
"""


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_check_in_the_kernel_says_where(backend: str) -> None:
    x, y = np.arange(20, dtype=np.float32), np.zeros(24, np.float32)
    launch(kernel(GATHER), (y, (8,)), x, np.array([2, 0, 1], np.int32), backend=backend)
    np.testing.assert_array_equal(y, np.concatenate([x[16:], np.zeros(4), x[:16]]))
    for wrong in (3, -1):
        with pytest.raises(ct.KernelAssertionError) as caught:
            launch(kernel(GATHER), (y, (8,)), x, np.array([0, wrong, 1], np.int32), backend=backend)
        said = str(caught.value)
        assert "gather: the tile index along axis 0 of 'x', in tiles of 8, is out of range" in said
        assert "in tile block (1, 0, 0)" in said
        assert "y.store(part.load((ct.reduce_max(" in said


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_nested_index_is_checked(backend: str) -> None:
    text = "def f(y: Mut, n: i32):\n    y.partition_mut((2,)).store(1.0, (n,))\n"
    y = np.zeros(20, np.float32)
    launch(kernel(text), (y, (5,)), 2, backend=backend)
    np.testing.assert_array_equal(y.reshape(4, 5)[:, 4], 1)
    with pytest.raises(ct.LaunchError, match=r"along axis 0 into the nested partition of 'y' is 3; .* below 3"):
        launch(kernel(text), (y, (5,)), 3, backend=backend)


def final(text: str, parameters: dict[str, Type], **facts: Any) -> str:
    function = program(text, parameters)
    function.facts.update(facts)
    return print_function(run_passes(function))


def test_a_check_leaves_the_loops_in_which_it_does_not_change() -> None:
    text = (
        "def f(y: Mut, x: Tensor, t: Tensor):\n"
        "    at = ct.reduce_max(t.load_tile((8,), (0,)), 0)\n"
        "    part = x.partition((8, 8))\n"
        "    acc = y.load()\n"
        "    for j in range(4):\n"
        "        for k in range(ct.num_tiles(part, 1)):\n"
        "            acc = acc + part.load((at, k))\n"
        "    y.store(acc)\n"
    )
    said = final(text, {"y": mut(8, 8), "x": tensor(2), "t": tensor(1, ct.i32)}).splitlines()
    asserts = [i for i, line in enumerate(said) if "assert(" in line]
    loops = [i for i, line in enumerate(said) if "= for(" in line]
    assert len(asserts) == 1
    assert asserts[0] > loops[0]  # the inner loop may have no turn: it is under a condition
    assert asserts[0] < loops[1]


def test_a_check_of_what_counts_with_the_loop_is_made_of_its_first_and_last_turn() -> None:
    text = (
        "def f(y: Mut, x: Tensor, t: Tensor):\n"
        "    first = ct.reduce_max(t.load_tile((8,), (0,)), 0)\n"
        "    part = x.partition((8,))\n"
        "    acc = y.load()\n"
        "    for k in range(ct.get_tile_block_id()[0] + 1):\n"
        "        acc = acc + part.load((k,)) + part.load((first + k,))\n"
        "    y.store(acc)\n"
    )
    said = final(text, {"y": mut(8), "x": tensor(1), "t": tensor(1, ct.i32)})
    loop = said.index("= for(")
    assert "assert(" not in said[loop:]
    assert said[:loop].count("assert(") == 3  # first, last, and the way; the launch knows how far k alone goes


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(
    ("bounds", "first", "fails"),
    [
        ("0, n", 1, False),
        ("0, n", 2, True),
        ("0, n", -1, True),
        ("n, 0, -1", 0, False),
        ("n, 0, -1", 1, True),
        ("n, 0, -1", -2, True),
        ("n, n", 99, False),
        ("-2147483648, 2147483647", 0, True),
    ],
)
def test_the_first_and_the_last_turn_decide(bounds: str, first: int, fails: bool, backend: str) -> None:
    text = (
        "def f(y: Mut, x: Tensor, t: Tensor):\n"
        "    first, n = ct.reduce_max(t.load_tile((1,), (0,)), 0), ct.reduce_max(t.load_tile((1,), (1,)), 0)\n"
        "    acc = y.load()\n"
        f"    for k in range({bounds}):\n"
        "        acc = acc + x.partition((2,)).load((first + k,))\n"
        "    y.store(acc)\n"
    )
    y, x = np.zeros(2, np.float32), np.arange(6, dtype=np.float32)
    arguments = ((y, (2,)), x, np.array([first, 2], np.int32))
    if fails:
        with pytest.raises(ct.KernelAssertionError):
            launch(kernel(text), *arguments, backend=backend)
        return
    launch(kernel(text), *arguments, backend=backend)
    turns = range(*(int(each) for each in bounds.replace("n", "2").split(",")))
    np.testing.assert_array_equal(y, sum((x[2 * (first + k) :][:2] for k in turns), start=np.zeros(2)))


def test_the_debug_mode_checks_everything_in_the_kernel() -> None:
    said = final(PICK, {"y": mut(8), "x": tensor(1), "n": scalar(ct.i32)}, checks="keep")
    assert "launch_checks" not in said
    assert said.count("assert(") == 1
    pick = ct.entry(check_accesses=True)(define(PICK))
    with pytest.raises(ct.KernelAssertionError, match="out of range"):
        launch(pick, (np.zeros(8, np.float32), (8,)), np.zeros(20, np.float32), 3)


def test_the_debug_mode_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_FORCE_CHECKS", "1")
    with pytest.raises(ct.KernelAssertionError, match="out of range"):
        launch(kernel(PICK), (np.zeros(8, np.float32), (8,)), np.zeros(20, np.float32), 3)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("ct.assume_bounds(n, 0, 4)", "an element is above 4"),
        ("ct.assume_bounds_lower(n, 6)", "an element is below 6"),
        ("ct.assume_div_by(n, 2)", "no multiple of 2"),
        ("ct.assume_bounds_upper(ct.iota((8,)) * n, 30)", "an element is above 30"),
        ("ct.assume_div_by_every_along(ct.iota((8,)) * n, 2, 4, 0)", "a group does not count up"),
        ("ct.assume_div_by_every_along(ct.iota((8,)) + n, 2, 4, 0)", "no multiple of 2"),
        ("ct.assume_same_elements(ct.iota((8,)), (2,))", "the elements of a group differ"),
    ],
)
def test_assumptions_that_do_not_hold(expression: str, message: str, backend: str) -> None:
    text = f"def f(y: Mut, n: i32):\n    y.store(ct.broadcast(ct.convert_tile({expression}, y.dtype), y.shape))\n"
    y = np.zeros(8, np.float32)
    launch(kernel(text), (y, (8,)), 5, backend=backend)  # believed
    with pytest.raises(ct.KernelAssertionError, match=message):
        launch(ct.entry(check_accesses=True)(define(text)), (y, (8,)), 5, backend=backend)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(
    ("expression", "elements", "dtype"),
    [
        ("ct.assume_bounds(t, -1, 1000)", [0, 255], np.uint8),
        ("ct.assume_bounds(t, -(2**70), 2**70)", [-128, 127], np.int8),
        ("ct.assume_div_by(t, 300)", [0, 0], np.int8),
        ("ct.assume_div_by(t, 128)", [-128, 0], np.int8),
        ("ct.assume_div_by_every_along(t, 3, 3, 0)", [0, 1, 2] * 86, np.int8),
        ("ct.assume_same_elements(t, (2,))", [np.nan, np.nan, -0.0, 0.0], np.float32),
        ("ct.assume_same_elements(t.astype(ct.f8e4m3fn), (2,)).astype(ct.f32)", [1.0, 1.0], np.float32),
        ("ct.bitcast(ct.assume_same_elements(ct.bitcast(t, ct.f4e2m1fnx2), (2,)), ct.u8)", [7, 7, 128, 128], np.uint8),
    ],
)
def test_assumptions_that_hold_at_the_ends_of_a_dtype(
    expression: str, elements: list[float], dtype: Any, backend: str
) -> None:
    """The bounds and divisors need not be numbers of the tile's dtype."""
    x = np.array(elements, dtype)
    y, shape = np.ones_like(x), (len(x),)
    text = f"def f(y: Mut, x: Tensor):\n    t = x.load_tile({shape}, (0,))\n    y.store({expression})\n"
    launch(ct.entry(check_accesses=True)(define(text)), (y, shape), x, backend=backend)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(
    ("expression", "elements", "dtype", "message"),
    [
        ("ct.assume_bounds_lower(t, 256)", [255, 255], np.uint8, "below 256"),
        ("ct.assume_bounds_upper(t, -1)", [0, 0], np.uint8, "above -1"),
        ("ct.assume_div_by(t, 256)", [0, 1], np.uint8, "no multiple of 256"),
        ("ct.assume_div_by(t, 300)", [44, 0], np.int8, "no multiple of 300"),
        ("ct.assume_same_elements(t, (2,))", [1.0, np.nan], np.float32, "a group differ"),
    ],
)
def test_assumptions_that_no_number_of_the_dtype_keeps(
    expression: str, elements: list[float], dtype: Any, message: str, backend: str
) -> None:
    x = np.array(elements, dtype)
    text = f"def f(y: Mut, x: Tensor):\n    y.store({expression.replace('t,', 'x.load_tile((2,), (0,)),')})\n"
    with pytest.raises(ct.KernelAssertionError, match=message):
        launch(ct.entry(check_accesses=True)(define(text)), (np.ones_like(x), (2,)), x, backend=backend)


def test_a_group_of_no_elements_is_refused() -> None:
    text = "def f(y: Mut):\n    y.store(ct.assume_div_by_every_along(ct.iota((8,)), 2, 0, 0))\n"
    with pytest.raises(ct.KernelTypeError, match="at least 1 element, got 0"):
        launch(kernel(text), (np.zeros(8, np.int32), (8,)))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_loop_whose_start_wraps_is_checked(backend: str) -> None:
    """The third block begins at 2 * (2**31 - 1), which wraps to -2: its range begins at 0 all the same."""
    text = """
def f(y: Mut, x: Tensor):
    part = x.partition((2,))
    t = ct.constant(0, (2,), ct.i32)
    for i in range(ct.get_tile_block_id()[0] * ct.constant(2**31 - 1, (), ct.i32), 4):
        t += part.load(i)
    y.store(t)
"""
    x, two_blocks, three_blocks = np.arange(8, dtype=np.int32), np.ones(4, np.int32), np.ones(6, np.int32)
    launch(kernel(text), (two_blocks, (2,)), x, backend=backend)
    np.testing.assert_array_equal(two_blocks, [12, 16, 0, 0])
    with pytest.raises(ct.KernelAssertionError, match="out of range"):
        launch(kernel(text), (three_blocks, (2,)), x, backend=backend)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_launch_does_not_count_iterations_to_a_stop_that_wraps(backend: str) -> None:
    """The stop wraps to 0. The loop has no iterations, and its wrong index is never used."""
    text = """
def f(y: Mut, x: Tensor, n: i32):
    t = ct.constant(0, (2,), ct.i32)
    for i in range(0, n * 4):
        t += x.partition((2,)).load(7)
    y.store(t)
"""
    x, y = np.arange(8, dtype=np.int32), np.ones(2, np.int32)
    launch(kernel(text), (y, (2,)), x, 2**30, backend=backend)
    np.testing.assert_array_equal(y, [0, 0])
    with pytest.raises((ct.LaunchError, ct.KernelAssertionError)):
        launch(kernel(text), (y, (2,)), x, 1, backend=backend)
