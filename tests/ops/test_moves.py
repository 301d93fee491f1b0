"""Every operation that moves elements, with every type that it takes: the bits arrive as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.command.ops import catalogue
from cutile.conversion import convert
from cutile.dtypes import (
    EVERY_DTYPE,
    DTypeLike,
    bf16,
    bool_,
    f4e2m1fnx2,
    f8e4m3fn,
    f16,
    f32,
    f64,
    i8,
    i32,
    u16,
    u64,
)
from tests.samples.moves import MAPPED, MOVES, Move
from tests.support.devices import on
from tests.support.kernels import define
from tests.support.memory import BACKENDS, cases_on_backends

SPECIAL = (0.0, -0.0, 1.0, -2.0, float("inf"), float("-inf"), 0.5, 3.0)


def elements(dtype: DTypeLike, seed: int) -> Any:
    """24 elements of any kind, as the host holds them."""
    rng = np.random.default_rng(seed)
    if dtype is f4e2m1fnx2 or dtype.kind == "uint":
        return rng.integers(0, 256, 24 * dtype.numpy.itemsize).astype(np.uint8).view(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, 24).astype(np.bool_)
    if dtype.kind == "int":
        return rng.integers(0, 256, 24 * dtype.numpy.itemsize).astype(np.uint8).view(dtype.numpy)
    numbers = np.concatenate([SPECIAL, rng.standard_normal(16) * 8]).astype(np.float32)
    return convert(numbers, f32, dtype) if dtype is not f32 else numbers


def text_of(moves: Sequence[Move] = MOVES) -> str:
    """A kernel with an output, and a pointer to it, for each move."""
    outputs = "".join(f"o{i}: Mut, q{i}: ct.Ptr, " for i in range(len(moves)))
    lines = [
        f"def moves({outputs}x_in: Tensor, y_in: Tensor, m_in: Tensor, p: ct.Ptr, addresses: Tensor):",
        "x, y = ct.load_tile(x_in, (24,), (0,)), ct.load_tile(y_in, (24,), (0,))",
        "m, lane = ct.load_tile(m_in, (4, 6), (0, 0)), ct.iota((24,))",
    ]
    for i, move in enumerate(moves):
        lines += [f"o, q = o{i}, q{i}", *move.statements]
    return "def later(a, b):\n    return b if b[1] > a[1] else a\n" + "\n    ".join(lines) + "\n"


REPRESENTATIONS = (bool_, i8, u16, i32, u64, f16, bf16, f32, f64, f8e4m3fn, f4e2m1fnx2)
"""On the CPU: integers of each width, floats, and what is only stored, as bytes. Others are moved as one of these."""
EVERYWHERE = cases_on_backends([(dtype,) for dtype in EVERY_DTYPE], lambda dtype: dtype in REPRESENTATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "backend"), EVERYWHERE)
def test_the_bits_arrive(dtype: DTypeLike, backend: str) -> None:
    x, y = elements(dtype, 1), elements(dtype, 2)
    # Compiling all of them for the CPU takes two seconds: every other one, and with the next type the others.
    moves = MOVES[REPRESENTATIONS.index(dtype) % 2 :: 2] if backend == "cpu" else MOVES
    with on(backend):
        tensors = [api.from_numpy(each, dtype).sync() for each in (x, y)]
        tensors.append(tensors[0].dup().sync().reshape((4, 6)))
        addresses = api.device_vec([tensors[0]]).sync()
        outputs = [api.from_numpy(y[::-1].copy(), dtype).sync() for _ in moves]
        pairs = [each for o in outputs for each in (o.mut.partition((24,)), o.device_pointer())]
        kernel = ct.entry(unsafe=True)(define(text_of(moves)))
        kernel(*pairs, *tensors, tensors[0].device_pointer(), addresses).sync()
        for move, output in zip(moves, outputs, strict=True):
            wanted = np.asarray(move.numpy(x, y), x.dtype)
            assert output.to_numpy().sync().tobytes() == wanted.tobytes(), f"{move.names} of {dtype}"


def test_they_are_said_to_take_every_type() -> None:
    listed = {entry.name: entry.dtypes for entry in catalogue()}
    for name in (*MAPPED, *(name for move in MOVES for name in move.names)):
        assert listed[name] == tuple(dtype.name for dtype in EVERY_DTYPE), name


INDICES = """
def by_index(z: ct.MappedPartitionMut, w: Mut, x: Tensor):
    for index in z.iter_indices():
        z.store(x.partition((8,)).load_index(index), index)
        w.partition_full_mut((8,)).store_index(z.load(index), index)
"""


@pytest.mark.parametrize(("dtype", "backend"), EVERYWHERE)
def test_the_bits_arrive_by_minted_indices(dtype: DTypeLike, backend: str) -> None:
    x = elements(dtype, 3)
    with on(backend):
        z, w = (api.from_numpy(elements(dtype, 4), dtype).sync() for _ in range(2))
        kernel = ct.entry(unsafe=True)(define(INDICES))
        source = api.from_numpy(x, dtype).sync()
        kernel(z.mut.partition((8,)).map((1,), 1), w.mut.partition((24,)), source).sync()
        assert z.to_numpy().sync().tobytes() == w.to_numpy().sync().tobytes() == x.tobytes()


CONSTANTS = """
def constants(a: Mut, b: Mut):
    a.store(ct.constant({a}, (8,), a.dtype))
    b.store(ct.select(ct.iota((8,)) < 3, ct.constant({b}, (8,), b.dtype), a.load()))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [each for each in EVERY_DTYPE if each is not f4e2m1fnx2], ids=str)
def test_a_constant_of_every_type(dtype: DTypeLike, backend: str) -> None:
    numbers: tuple[Any, Any] = (True, False) if dtype.kind == "bool" else (3, 2)
    with on(backend):
        a, b = (api.ones((8,), dtype).sync() for _ in range(2))
        made = define(CONSTANTS.format(a=numbers[0], b=numbers[1]))
        ct.entry(made)(a.mut.partition((8,)), b.mut.partition((8,))).sync()
        x, y = (np.asarray(convert(np.array([each], np.int32), i32, dtype)) for each in numbers)
        assert a.to_numpy().sync().tobytes() == np.repeat(x, 8).tobytes()
        assert b.to_numpy().sync().tobytes() == np.concatenate([np.repeat(y, 3), np.repeat(x, 5)]).tobytes()
