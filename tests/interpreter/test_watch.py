"""The checker: each kind of mistake is found, with both lines; what is right passes."""

from __future__ import annotations

import numpy as np
import pytest

import cutile as ct
from cutile import Mut, Tensor, api, f32, i32
from cutile.errors import Location
from cutile.interpreter.live import EagerBuilder, EagerValue
from cutile.interpreter.watch import Watch
from cutile.ir.core import Block
from cutile.ops.memory import LoadMut, StoreMut
from tests.support.programs import mut


@ct.entry
def shifted(y: Mut, x: Tensor) -> None:
    i = ct.get_tile_block_id()[0]
    y.store(x.load_tile((4,), (i + 1,)))


@ct.entry
def add_one(y: Mut) -> None:
    y.store(y.load() + 1)


@ct.entry
def fills_the_first(y: Mut) -> None:
    if ct.get_tile_block_id()[0] == 0:
        y.store(ct.constant(1, y.shape, f32))


@ct.entry
def neighbours(y: Mut, x: Tensor) -> None:
    y.store(ct.load_tile_like(x, y))
    left = x.partition(y.shape).load((0,))
    y.store(left)


def test_a_read_of_what_nothing_wrote_is_found() -> None:
    y = api.empty((8,), f32).sync()
    with pytest.raises(ct.UninitialisedReadError, match=r"'y' is read at \(0,\), which nothing has written") as error:
        add_one(y.partition((4,))).interpret().sync()
    assert "    y.store(y.load() + 1)\n            ^^^^^^^^" in str(error.value)


def test_what_an_interpreted_launch_wrote_is_known_to_the_next() -> None:
    y = api.empty((8,), f32).sync()
    y = fills_the_first(y.partition((4,))).interpret().first().unpartition().sync()
    with pytest.raises(ct.UninitialisedReadError, match=r"'y' is read at \(4,\)"):
        add_one(y.partition((4,))).interpret().sync()


def test_what_anything_else_wrote_counts_as_written() -> None:
    y = api.zeros((8,), f32).sync()
    y = add_one(y.partition((4,))).interpret().first().unpartition().sync()
    assert y.to_numpy().sync().tolist() == [1.0] * 8


def test_a_load_outside_of_the_tensor_is_found() -> None:
    def op() -> ct.KernelOp:
        return shifted(api.zeros((8,), i32).sync().partition((4,)), api.arange(8, i32).sync())

    with pytest.raises(ct.OutOfBoundsError, match=r"'x', of shape \(8,\), at the tile index \(2,\), .*\(1, 0, 0\)"):
        op().interpret().sync()
    op().interpret(check=False).sync()


@ct.entry
def past_the_end(y: ct.Mut, x: ct.Tensor):
    i, _, _ = ct.get_tile_block_id()
    y.store(x.partition((4,)).load((i + 1,)))


def test_an_index_that_names_no_tile_is_found() -> None:
    op = past_the_end(api.zeros((8,), i32).sync().partition((4,)), api.arange(8, i32).sync())
    with pytest.raises(ct.OutOfBoundsError, match="index along axis 0 of 'x' is 2; there are 2 tiles of 4"):
        op.interpret(check=False).sync()


def test_shared_reads_are_no_race() -> None:
    neighbours(api.zeros((8,), f32).sync().partition((4,)), api.ones((8,), f32).sync()).interpret().sync()


class _Blocks:
    """Tile blocks that all use the first tile of one tensor: what only unsafe kernels can be made to do."""

    def __init__(self) -> None:
        self.tensor = EagerValue(mut(4, dtype=f32), np.zeros(8, np.float32), "y")
        self.watch = Watch({"y": self.tensor.array}, {})
        self.running = -1

    def enter(self, block: int) -> EagerBuilder:
        if block != self.running:
            self.watch.enter((block, 0, 0))
            self.running = block
        return EagerBuilder(Block((self.tensor,)), (0, 0, 0), (2, 1, 1), self.watch)

    def load(self, block: int, line: int) -> None:
        builder = self.enter(block)
        builder.location = Location("k.py", line, 4, 12, "    t = y.load()", "k")
        builder.add(LoadMut(x=self.tensor))

    def store(self, block: int, line: int) -> None:
        builder = self.enter(block)
        value = builder.constant(1.0, f32, (4,))
        builder.location = Location("k.py", line, 4, 14, "    y.store(t)", "k")
        builder.add(StoreMut(x=self.tensor, value=value))


def test_two_blocks_that_write_an_element_race_and_both_lines_are_shown() -> None:
    blocks = _Blocks()
    blocks.store(0, 11)
    with pytest.raises(ct.RaceError) as error:
        blocks.store(1, 12)
    text = str(error.value)
    assert "'y' is written at (0,) by tile block (1, 0, 0), and was written by tile block (0, 0, 0)" in text
    assert 'File "k.py", line 11' in text
    assert 'File "k.py", line 12' in text


def test_a_read_races_with_another_blocks_write_in_either_order() -> None:
    blocks = _Blocks()
    blocks.load(0, 1)
    blocks.load(1, 2)
    with pytest.raises(ct.RaceError, match=r"is written .* and was read by another tile block"):
        blocks.store(2, 3)
    blocks = _Blocks()
    blocks.store(0, 1)
    blocks.load(0, 2)
    with pytest.raises(ct.RaceError, match=r"is read .* and was written by tile block"):
        blocks.load(1, 3)
