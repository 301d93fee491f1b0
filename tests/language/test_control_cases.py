"""Concrete cases of control flow, with what comes of them: scalars of the launch decide, on every backend."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Const, Mut, Tensor, bool_, f32, i32
from cutile.entry import Kernel
from tests.language.functions import relu, square
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch


@ct.entry
def chosen_by_a_flag(y: Mut, flag: bool_):
    if flag:  # noqa: SIM108
        t = y.load() + 3
    else:
        t = y.load() + 5
    y.store(t)


@ct.entry
def left_by_break(y: Mut):
    total = 0.0 * y.load()
    i = 0
    while True:
        total = total + y.load()
        i += 1
        if i == 4:
            break
    y.store(total)


@ct.entry
def carried_through_a_loop_in_a_branch(y: Mut, flag: i32):
    count = 0
    if flag > 0:
        for _ in range(10):
            count = count + 1
    y.store(ct.broadcast(count, y.shape))


@ct.entry
def decided_when_compiled(y: Mut, *, FLAG: Const):
    count = 0
    if FLAG > 0:
        for _ in range(10):
            count = count + 1
    else:
        count = y.load().no_such_thing  # pyright: ignore
    y.store(ct.broadcast(count, y.shape))  # pyright: ignore


@ct.entry
def an_expression(y: Mut, flag: i32):
    y.store(ct.broadcast(1 if flag > 0 else 2, y.shape))


@ct.entry
def three_ways(y: Mut, value: i32):
    if value < 0:
        result = 1
    elif value == 0:
        result = 2
    else:
        result = 3
    y.store(ct.broadcast(result, y.shape))


@ct.entry
def a_loop_or_not(y: Mut, flag: i32):
    count = 0
    if flag > 0:
        for _ in range(2):
            for _ in range(5):
                count += 1
    else:
        count = 1
    y.store(ct.broadcast(count, y.shape))


@ct.entry
def a_branch_in_a_loop_in_a_branch(y: Mut, flag: i32):
    count = 0
    if flag > 0:
        for i in range(8):
            if i >= 4:
                count += 3
    y.store(ct.broadcast(count, y.shape))


@ct.entry
def leaves_early(y: Mut, last: i32):
    pid = ct.get_tile_block_id()[0]
    if pid > last:
        return
    y.store(y.load() + 1)


ONES = np.ones(16, np.int64)
CASES: list[tuple[Kernel, Any, int | bool | None, float]] = [
    (chosen_by_a_flag, ONES, True, 4),
    (chosen_by_a_flag, ONES, False, 6),
    (left_by_break, ONES.astype(np.float32), None, 4.0),
    (carried_through_a_loop_in_a_branch, ONES.astype(np.int32), 1, 10),
    (carried_through_a_loop_in_a_branch, ONES.astype(np.int32), 0, 0),
    (an_expression, ONES.astype(np.int32), 1, 1),
    (an_expression, ONES.astype(np.int32), 0, 2),
    (three_ways, ONES.astype(np.int32), -1, 1),
    (three_ways, ONES.astype(np.int32), 0, 2),
    (three_ways, ONES.astype(np.int32), 1, 3),
    (a_loop_or_not, ONES.astype(np.int32), 1, 10),
    (a_loop_or_not, ONES.astype(np.int32), -1, 1),
    (a_branch_in_a_loop_in_a_branch, ONES.astype(np.int32), 1, 12),
    (a_branch_in_a_loop_in_a_branch, ONES.astype(np.int32), 0, 0),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kernel", "start", "scalar", "element"), CASES)
def test_a_scalar_decides(kernel: Kernel, start: Any, scalar: int | bool | None, element: float, backend: str) -> None:
    y = start.copy()
    launch(kernel, (y, (4,)), *(() if scalar is None else (scalar,)), backend=backend)
    assert (y == element).all(), y


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_generic_decides_when_the_kernel_is_compiled(backend: str) -> None:
    y = np.ones(16, np.int32)
    launch(decided_when_compiled, (y, (4,)), backend=backend, FLAG=1)
    assert (y == 10).all()
    with pytest.raises(ct.KernelTypeError, match="no_such_thing"):  # the other branch is compiled, and wrong
        launch(decided_when_compiled, (y, (4,)), backend=backend, FLAG=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_may_return_early(backend: str) -> None:
    y = np.zeros(16, np.float32)
    launch(leaves_early, (y, (4,)), 1, backend=backend)
    assert y.tolist() == [1] * 8 + [0] * 8


@pytest.mark.parametrize("count", [3, 20])
def test_a_type_goes_from_variable_to_variable(count: int) -> None:
    names = [f"v{k}" for k in range(count)]
    before = "".join(f"    {name} = 0\n" for name in names)
    moves = "".join(f"        {one} = {other}\n" for one, other in itertools.pairwise(names))
    body = f"{before}    for _ in range({count}):\n{moves}        {names[-1]} = t\n    y.store(2 * v0)\n"
    y = np.full(4, 1.5, np.float32)
    launch(kernel(f"def k(y: Mut):\n    t = y.load()\n{body}"), (y, (4,)))
    assert y.tolist() == [3.0] * 4


@ct.entry
def by_a_step(y: Mut, step: i32):
    count = 0
    for _ in range(0, 7 * step, step):  # pyright: ignore
        count += 1
    for i in range(0, 7, step):  # pyright: ignore
        count += 100
        if i > 100:
            break
    y.store(ct.broadcast(count, y.shape))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_0_gives_no_turns(backend: str) -> None:
    for step, total in ((0, 0), (2, 7 + 400), (-2, 7)):
        y = np.ones(4, np.int32)
        launch(by_a_step, (y, (4,)), step, backend=backend)
        assert (y == total).all(), (step, y)


@ct.entry
def relu_then_square(y: Mut, x: Tensor):
    y.store(square(relu(ct.load_tile_like(x, y))))


@ct.entry
def only_relu(y: Mut, x: Tensor):
    y.store(relu(ct.load_tile_like(x, y)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_of_other_modules(backend: str) -> None:
    x = np.arange(128, dtype=np.float32)
    y = np.empty_like(x)
    launch(relu_then_square, (y, (64,)), x, backend=backend)
    np.testing.assert_array_equal(y, x * x)
    launch(only_relu, (y, (64,)), -x, backend=backend)
    np.testing.assert_array_equal(y, 0 * x)


@ct.entry
def newton(y: Mut, x: Tensor, tolerance: f32):
    """The square root of each row's largest element, by Newton's iteration: a loop whose length depends on data."""
    row = ct.reduce_max(ct.load_tile_like(x, y), 1)
    value = ct.reduce_max(row, 0)
    guess = value
    for _ in range(100):
        better = 0.5 * (guess + value / guess)
        done = abs(better - guess) < tolerance * guess
        guess = better
        if done:
            break
    y.store(ct.broadcast(guess, y.shape))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_that_ends_when_the_data_says(backend: str) -> None:
    x = np.random.default_rng(0).uniform(1, 100, (6, 16)).astype(np.float32)
    y = np.empty_like(x)
    launch(newton, (y, (1, 16)), x, 1e-6, backend=backend)
    np.testing.assert_allclose(y, np.sqrt(x.max(1, keepdims=True)).repeat(16, 1), rtol=1e-6)
