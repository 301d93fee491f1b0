"""Random numbers in kernels: Random123's vectors, the same bits on every backend, and what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch
from tests.support.values import ulps_from

VECTORS = (
    # Key, block, result: kat_vectors of Random123 1.14, philox4x32 with 10 rounds.
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def philox(seed: int, counter: Any, subsequence: Any = 0) -> Any:
    """The words in NumPy, of 64-bit counters."""
    counter, subsequence = (np.asarray(each).astype(np.uint64) for each in (counter, subsequence))
    counter, subsequence = np.broadcast_arrays(counter, subsequence)
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = counter & low, counter >> word, subsequence & low, subsequence >> word
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = second >> word ^ b ^ np.uint64(key[0]), second & low
        c, d = first >> word ^ d ^ np.uint64(key[1]), first & low
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return np.stack([a, b, c, d]).astype(np.uint32)


def joined(words: tuple[int, int]) -> int:
    return words[0] | words[1] << 32


@pytest.mark.parametrize(("key", "block", "wanted"), VECTORS)
def test_the_published_vectors(key: Any, block: Any, wanted: Any) -> None:
    assert philox(joined(key), joined(block[:2]), joined(block[2:])).tolist() == list(wanted)


NUMBERS = """
def k(strange: Mut, words: Mut, known: Mut, uniform: Mut, normal: Mut, dice: Mut, wide: Mut,
      counter: Tensor, other: Tensor, seed: i64, high: i32):
    at = strange.index[0] * 64 + ct.iota((64,))
    n, m = counter.load_tile((64,), strange.index), other.load_tile((64,), strange.index)
    words.store(ct.cat(tuple(each[:, None] for each in ct.philox(seed, n, m)), 1))
    known.store(ct.cat(tuple(each.reshape((1,)) for each in ct.philox({seed}, {counter}, {subsequence})), 0))
    strange.store(ct.philox(-3, at - 70)[3])
    uniform.store(ct.rand(seed, at, m))
    normal.store(ct.randn(seed, at))
    dice.store(ct.randint(11, at.astype(ct.u32), -3, high))
    wide.store(ct.randint(seed, at, -2**31, 2**31 - 1))
"""


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_numbers(backend: str) -> None:
    count, seed = 256, 0x299F31D0A4093822
    rng = np.random.default_rng(1)
    counter, other = (rng.integers(0, 2**64, count, np.uint64) for _ in range(2))
    key, block, expected = VECTORS[2]
    text = NUMBERS.format(seed=joined(key), counter=joined(block[:2]), subsequence=joined(block[2:]))
    words, published = np.zeros((count, 4), np.uint32), np.zeros(16, np.uint32)
    strange, dice, wide = np.zeros(count, np.uint32), np.zeros(count, np.int32), np.zeros(count, np.int32)
    uniform, normal = np.zeros(count, np.float32), np.zeros(count, np.float32)
    outputs = [(strange, (64,)), (words, (64, 4)), (published, (4,))]
    outputs += [(each, (64,)) for each in (uniform, normal, dice, wide)]
    launch(kernel(text), *outputs, counter, other, seed, 6, backend=backend)
    at = np.arange(count)
    np.testing.assert_array_equal(words, philox(seed, counter, other).T)
    assert published.reshape(4, 4).tolist() == [list(expected)] * 4
    np.testing.assert_array_equal(strange, philox(-3, at - 70)[3])
    np.testing.assert_array_equal(uniform, (philox(seed, at, other)[0] >> 8).astype(np.float32) * np.float32(2**-24))
    np.testing.assert_array_equal(dice, _drawn(philox(11, at)[0], -3, 6))
    np.testing.assert_array_equal(wide, _drawn(philox(seed, at)[0], -(2**31), 2**31 - 1))
    error = ulps_from(normal, _normal(*philox(seed, at)[:2]))
    assert error.max() <= 4.0, f"{error.max()} ulp"


def _drawn(words: Any, low: int, high: int) -> Any:
    return (low + (words.astype(np.uint64) * np.uint64(high - low) >> np.uint64(32)).astype(np.int64)).astype(np.int32)


def _normal(first: Any, second: Any) -> Any:
    """Box and Muller, exact, of the f32 that cuRAND makes of two words."""
    turn = np.float32(2 * np.pi / 2**32)
    u = first.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    v = second.astype(np.float32) * turn + turn / np.float32(2)
    return np.sqrt(-2 * np.log(u.astype(np.longdouble))) * np.sin(v.astype(np.longdouble))


def test_their_moments() -> None:
    """Of 2**16 numbers: within six standard deviations of what is expected."""
    count = 1 << 16
    text = """
def k(uniform: Mut, normal: Mut, dice: Mut):
    at = uniform.index[0] * 1024 + ct.iota((1024,))
    uniform.store(ct.rand(5, at))
    normal.store(ct.randn(5, at))
    dice.store(ct.randint(5, at, 1, 7))
"""
    uniform, normal, dice = np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.int32)
    launch(kernel(text), (uniform, (1024,)), (normal, (1024,)), (dice, (1024,)), backend="cpu")
    assert abs(uniform.mean() - 0.5) < 6 * (1 / 12 / count) ** 0.5
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(normal.mean()) < 6 / count**0.5
    assert abs(normal.var() - 1) < 6 * (2 / count) ** 0.5
    assert (np.abs(np.bincount(dice)[1:] - count / 6) < 6 * (count * 5 / 36) ** 0.5).all()


@pytest.mark.gpu
def test_they_are_the_numbers_of_torch() -> None:
    """torch numbers its threads by subsequences, and takes 0 where cuRAND gives 1."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(123)
    expected = torch.rand(1000, device="cuda").cpu().numpy()
    words = philox(123, 0, np.arange(1000))[0]
    uniform = words.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    np.testing.assert_array_equal(np.where(uniform == 1, np.float32(0), uniform), expected)
