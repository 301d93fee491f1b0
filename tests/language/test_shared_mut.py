"""A `SharedMut` against NumPy, on every backend; what is refused of it, and that races are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OwnershipError
from cutile import api, f32, i32
from cutile.errors import ArgumentTypeError, KernelError, LaunchError, RaceError
from tests.frontend.test_errors import message_of
from tests.language.shared_kernels import chunks, extremes, histogram, kept, rows, squares, total, work
from tests.support.devices import EVERYWHERE, on
from tests.support.golden import Golden
from tests.support.kernels import define, kernel

X = np.random.default_rng(0).integers(0, 8, 1024).astype(np.int32)


def zeros(*shape: int) -> Any:
    return api.zeros(shape, i32)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_grids_of_their_own(backend: str) -> None:
    with on(backend):
        x = api.from_numpy(X).sync()
        assert total(zeros(1), x, grid=7).first().sync().numpy()[0] == X.sum()
        counts = histogram(zeros(8), x, grid=(5,)).first().sync()
        np.testing.assert_array_equal(counts.numpy(), np.bincount(X, minlength=8))
        m = X.reshape(16, 64)[:, :50].copy()
        np.testing.assert_array_equal(rows(zeros(16, 50), api.from_numpy(m), grid=3).first().sync().numpy(), 2 * m)
        np.testing.assert_array_equal(
            chunks(zeros(2, 48)).grid(3).first().sync().numpy(), [np.repeat(np.arange(12), 4)] * 2
        )
        wanted = np.add.outer([0, 0, 10, 10], np.repeat([0, 1, 2], 4))
        np.testing.assert_array_equal(squares(zeros(4, 12), grid=(2, 3)).first().sync().numpy(), wanted)
        out = kept(zeros(1024), zeros(1), x, grid=64).sync()
        n = int(out.count.numpy()[0])
        np.testing.assert_array_equal(np.sort(out.out.numpy()[:n]), np.sort(X[X > 3]))
        out = work(zeros(80), zeros(1), grid=3).sync()
        np.testing.assert_array_equal(out.y.numpy(), np.repeat(np.arange(10), 8))
        assert out.ticket.numpy().tolist() == [13]  # each block asked once in vain
        assert extremes(zeros(2), x, grid=64).first().sync().numpy().tolist() == [7, 0]


HEAD = "def k(y: ct.SharedMut, c: ct.SharedMut, x: Tensor, n: i32):\n    b = ct.get_tile_block_id()[0]\n    "
REFUSED = {
    "one_tile_of_all": "y.partition((4,)).store(1, 0)",
    "tiles_that_overlap": "ct.scatter(y, ct.iota((4,)) + 3 * b, 1)",
    "indices_of_data": "ct.scatter(y, x.load_tile((4,), (b,)), 1)",
    "load_beside_updates": "ct.atomic_add(y, 0, y.partition((1,)).load(0).reshape(()))",
    "two_indices": "part = y.partition((4,))\n    part.store(part.load(b), b)\n    part.store(1, n - b)",
    "own_tile": "y.store(1)",
    "slice": "t = y.slice(0, 1).partition((4,)).load(0)",
    "slice_of_what_is_read": "ct.scatter(x.slice(0, 1), 0, 1)",
    "lanes_that_claimed_nothing": "t = x.load_tile((4,), (b,))\n"
    "    ct.scatter(y, ct.atomic_add(c, ct.constant(0, (4,), i32), 1, mask=t > 0), t)",
    "lanes_that_changed_places": "t = x.load_tile((4,), (b,)) > 0\n"
    "    p = ct.atomic_add(c, ct.constant(0, (4,), i32), 1, mask=t)\n"
    "    ct.scatter(y, p.reshape((4, 1)), 1, mask=t.reshape((1, 4)))",
    "index_of_eight_bits": "y.partition((4,)).store(1, ct.convert_tile(b, ct.i8).astype(i32))",
    "counter_that_is_set": "ct.atomic_xchg(c, 0, 0)\n    y.partition((4,)).store(1, ct.atomic_add(c, 0, 1))",
    "counter_that_stands": "y.partition((4,)).store(1, ct.atomic_add(c, 0, 0))",
    "turns_of_another_stride": "for i in range(b, n, 3):\n        y.partition((4,)).store(1, i)",
    "updates_within_a_block": "ct.atomic_add(y, 0, 1, scope=ct.scope.TILE_BLOCK)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_blocks_could_race_for_is_refused(name: str, golden: Golden) -> None:
    refused = kernel(HEAD + REFUSED[name] + "\n")
    with pytest.raises(KernelError) as error:
        refused.inspect(zeros(16).sync(), zeros(1).sync(), zeros(16).sync(), 3, stage="ir")
    golden(f"errors/shared/{name}.txt", message_of(error.value) + "\n")


RACES = {
    "one_tile_of_all": "y.partition((4,)).store(1, 0)",
    "tiles_that_overlap": "ct.scatter(y, ct.iota((4,)) + 3 * b, 1)",
    "load_beside_updates": "ct.atomic_add(y, 0, y.partition((1,)).load(0).reshape(()))",
}


@pytest.mark.parametrize("name", RACES)
def test_the_interpreter_finds_the_races_of_unsafe_kernels(name: str) -> None:
    racing = ct.entry(unsafe=True)(define(HEAD + RACES[name] + "\n"))
    with pytest.raises(RaceError, match=r"'y' is (written|read) .*by tile block"):
        racing(zeros(16), zeros(1), zeros(16), 3, grid=2).interpret().sync()


def test_the_launch_refuses_grids_whose_blocks_would_meet() -> None:
    with pytest.raises(LaunchError, match=r"'y' is written by a plain store .* axis 1 of the grid .*\(3, 2, 1\)"):
        chunks(zeros(2, 48), grid=(3, 2)).sync()
    number = kernel(HEAD + "ct.scatter(y, ct.iota((4,)) + (4 * b).astype(i32), b, mask=b < 4)\n")
    arguments = zeros(16).sync(), zeros(1).sync(), zeros(16).sync(), 3
    assert number(*arguments, grid=9).first().sync().numpy()[15] == 3
    with pytest.raises(LaunchError, match="an index, which is multiplied in 32 bits, may become too large for them"):
        number(*arguments, grid=2**29 + 1).sync()
    with pytest.raises(LaunchError, match="launch grid required"):
        total(zeros(1), zeros(64)).sync()


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (lambda: zeros(4).sync().partition((4,)), "it is not cut into tiles: pass the tensor itself"),
        (lambda: np.zeros(4, np.int32), r"y = api.from_numpy\(array\)"),
        (lambda: 3, r"make one with api.zeros\(shape, dtype\)"),
    ],
)
def test_arguments_are_tensors(argument: Callable[[], Any], said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"argument 'y' must be a tensor, which the kernel writes.*{said}"):
        total(argument(), zeros(64), grid=1)


def test_it_is_lent_as_a_mut_is() -> None:
    y, x = zeros(1).sync(), zeros(64).sync()
    op = total(y, x, grid=2)
    with pytest.raises(OwnershipError, match="its argument 'y' and has not finished"):
        y.to_numpy()
    assert op.sync().y is y
    view, shared = zeros(8).sync()[2:3], zeros(1).sync().shared()
    with pytest.raises(OwnershipError, match="a view is read-only"):
        total(view, x, grid=2)
    assert total(view.mut, api.ones((64,), i32), grid=2).sync() is not None
    assert view.base.numpy()[2] == 64
    with pytest.raises(OwnershipError, match="a shared tensor is read-only"):
        total(shared, x, grid=2)
    with pytest.raises(OwnershipError, match="the same operation writes the same memory"):
        total(x, x, grid=2)


SCALED = """
def scaled(y: ct.SharedMut[f32, ct.Dyn, N], x: Tensor, *, N: Const, TILE: Const = 1):
    part, block = y.partition((TILE, N)), ct.get_tile_block_id()[0]
    part.store(part.load((block, 0)) + x.partition((TILE, N)).load((block, 0)), (block, 0))
"""


def test_generics_searches_graphs_and_bound_launches() -> None:
    scaled, x, y = kernel(SCALED), api.ones((8, 6), f32).sync(), api.zeros((8, 6), f32).sync()
    scaled(y, x, TILE=2, grid=4).sync()
    scaled(y, x).generics([6, 4]).grid(2).sync()
    assert (y.numpy() == 2).all()
    scaled(y, x, grid=1).generics([{"TILE": 8}, {"TILE": 16}]).sync()  # trials write copies
    assert (y.numpy() == 3).all()
    stream = Device.host().new_stream()
    bound = scaled(y, x, TILE=2, grid=4).bind(stream)
    bound()
    with scaled(y, x, TILE=2, grid=4).graph_on(stream) as graph:  # records, and does not run
        graph.launch().sync_on(stream)
    assert (y.numpy() == 5).all()
