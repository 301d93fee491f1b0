"""The checker, where elements are reached by index or by address: what is wrong is found, the rest passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api, i32
from cutile.errors import CheckError
from cutile.interpreter.watch import ACCESS_KINDS, RawMemory
from tests.support.kernels import define

HEAD = "def k(y: Mut, x: Tensor):\n    b = ct.get_tile_block_id()[0]\n    lanes = b * 4 + ct.iota((4,))\n"
RAW = "def k(p: ct.Ptr[ct.i32]):\n    b = ct.get_tile_block_id()[0]\n"


def kernel(body: str, head: str = HEAD, unsafe: bool = False) -> ct.Kernel:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return ct.entry(unsafe=unsafe)(define(head + lines))


def launch(body: str, *, y: Any = None, x: Any = None, size: int = 8) -> ct.KernelOp:
    """Two tile blocks of four lanes, over eight elements each."""
    y = api.zeros((8,), i32).sync() if y is None else y
    x = api.arange(8, i32).sync() if x is None else x
    return kernel(body)(y.mut.partition((4,)), x).interpret()


def raw(body: str, blocks: int = 2, size: int = 8) -> tuple[ct.KernelOp, api.Tensor]:
    x = api.zeros((size,), i32).sync()
    return kernel(body, RAW, unsafe=True)(x.device_pointer()).grid(blocks).interpret(), x


def empty() -> api.Tensor:
    return api.empty((8,), i32).sync()


def indices() -> api.Tensor:
    return api.from_numpy(np.array([0, 3, 9, 1, 2, 4, 5, 6], np.int32)).sync()


OUTSIDE = {
    "scatter past the end": ("ct.scatter(y, lanes + 1, 1)", r"scatter of 'y', of shape \(8,\), is at \(8,\)"),
    "scatter before the start": ("ct.scatter(y, lanes - 1, 1)", r"is at \(-1,\), which is outside of it"),
    "gather past the end": ("y.store(ct.gather(x, lanes + 8))", r"gather of 'x', of shape \(8,\), is at \(8,\)"),
    "gather at no element": ("y.store(ct.gather(x, -1 - lanes))", r"gather of 'x', .* is at \(-1,\)"),
    "a scalar": ("ct.scatter(y, b + 7, 1)", r"scatter of 'y', .* is at \(8,\), .*tile block \(1, 0, 0\)"),
    "atomic": ("ct.atomic_add(y, lanes * 2, 1)", r"atomic_add of 'y', .* is at \(8,\), .* \(1, 0, 0\)"),
    "compare": ("ct.atomic_cas(y, 8, 0, 1)", r"atomic_cas of 'y', .* is at \(8,\)"),
    "a view": (
        "t, _ = ct.load_gather_scatter_view_tko(ct.make_gather_scatter_view(x, (4,)), (lanes + 8,))\ny.store(t)",
        r"of 'x', .* is at \(8,\)",
    ),
    "indices from memory": ("ct.scatter(y, ct.load_tile_like(x, y), 1)", r"is at \(9,\)"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_indices_outside_are_found(case: str) -> None:
    body, words = OUTSIDE[case]
    y, x = api.zeros((8,), i32).sync(), indices() if "memory" in case else api.arange(8, i32).sync()
    with pytest.raises(ct.OutOfBoundsError, match=words) as error:
        launch(body, y=y, x=x).sync()
    assert body.splitlines()[0].partition("ct.")[2].partition("(")[0] in str(error.value).splitlines()[2]
    assert launch("y.store(1)", y=y, x=x).sync().x is x  # a good launch works afterwards


RACES = {
    "scatters": ("ct.scatter(y, ct.iota((4,)) + 2 * b, 1)", "'y' is written at (2,) by tile block (1, 0, 0), and was"),
    "scatter, then gather": ("ct.scatter(y, lanes, 1)\nt = ct.gather(y, 7 - lanes)", "'y' is written at (4,)"),
    "store, then gather": ("y.store(1)\nt = ct.gather(y, 7 - lanes)", "'y' is written at (4,)"),
    "gather, then store": ("t = ct.gather(y, ct.iota((8,)))\ny.store(1)", "'y' is read at (0,)"),
    "update beside store": ("y.store(0)\nct.atomic_add(y, 0, 1)", "'y' is written atomically at (0,)"),
    "update beside load": ("t = y.load()\nct.atomic_add(y, 0, 1)", "and was read by tile block (0, 0, 0)"),
    "store beside update": ("ct.atomic_add(y, 7, 1)\ny.store(0)", "and was written atomically by another tile block"),
    "one block's update": (
        "ct.atomic_add(y, 0, 1, scope=ct.scope.TILE_BLOCK)",
        "'y' is written at (0,) by tile block (1, 0, 0), and was written by tile block (0, 0, 0)",
    ),
}


@pytest.mark.parametrize("case", RACES)
def test_races_are_found_with_both_lines(case: str) -> None:
    body, words = RACES[case]
    with pytest.raises(ct.RaceError) as error:
        launch(body).sync()
    text = str(error.value)
    assert words in text
    assert text.count("    ^") == 2


RAW_RACES = {
    "two stores": "p.store(b)",
    "store and load": "if b == 0:\n    p.store(1)\nelse:\n    t = p.load()",
    "update and store": "ct.atomic_rmw_tko(p, 1, ct.atomic.ADD)\nif b == 1:\n    p.store(0)",
    "not released": (
        "if b == 0:\n    p.offset(1).store(7)\n    ct.store_ptr_tko(p, 1, ct.ordering.RELAXED, ct.scope.DEVICE)\n"
        "else:\n    s, _ = ct.load_ptr_tko(p, ct.ordering.ACQUIRE, ct.scope.DEVICE)\n    t = p.offset(1).load()"
    ),
    "written after the release": (
        "if b == 0:\n    ct.store_ptr_tko(p, 1, ct.ordering.RELEASE, ct.scope.DEVICE)\n    p.offset(1).store(7)\n"
        "else:\n    s, _ = ct.load_ptr_tko(p, ct.ordering.ACQUIRE, ct.scope.DEVICE)\n    t = p.offset(1).load()"
    ),
}


@pytest.mark.parametrize("case", RAW_RACES)
def test_races_by_raw_address_are_found(case: str) -> None:
    op, x = raw(RAW_RACES[case])
    with pytest.raises(ct.RaceError, match=rf"the memory at {x.device_pointer():#x}|the memory at 0x"):
        op.sync()


def test_a_pointer_into_a_tensor_is_seen_as_the_tensor() -> None:
    head = "def k(y: Mut, p: ct.Ptr[ct.i32]):\n    b = ct.get_tile_block_id()[0]\n    y.store(0)\n"
    both = kernel("if b == 1:\n    p.store(1)", head, unsafe=True)
    y = api.zeros((8,), i32).sync()
    with pytest.raises(ct.RaceError, match=r"'y' is written at \(3,\) by tile block \(1, 0, 0\)"):
        both(y.mut.partition((4,)), y[3:].device_pointer()).interpret().sync()
    both(y.mut.partition((4,)), y[5:].device_pointer()).interpret().sync()


UNWRITTEN: dict[str, str] = {
    "gather": "y.store(ct.gather(x, lanes))",
    "an update": "ct.atomic_add(y, lanes, 1)",
    "a comparison": "ct.atomic_cas(y, lanes, 0, 1)",
    "half of it": "ct.scatter(y, ct.iota((2,)) + 4 * b, 1)\nt = ct.gather(y, lanes)",
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_reads_of_what_nothing_wrote_are_found(case: str) -> None:
    with pytest.raises(ct.UninitialisedReadError, match=r"'[xy]' is read at \([02],\), which nothing has written"):
        launch(UNWRITTEN[case], y=empty(), x=empty()).sync()


FINE: dict[str, str | Callable[[], Any]] = {
    "updates among themselves": "ct.atomic_add(y, 0, 1)\nct.atomic_max(y, ct.iota((4,)), lanes)",
    "shared reads": "y.store(ct.gather(x, ct.iota((4,))))",
    "elements of each block's own": "ct.scatter(y, 7 - lanes, lanes)\nt = ct.gather(y, 7 - lanes)",
    "masked lanes": "ct.scatter(y, lanes + 1, 1, mask=lanes < 7)",
    "an edge that is padded": "y.store(ct.gather(x, lanes + 1))",
    "nothing wanted": "y.store(ct.gather(x, lanes + 8, mask=lanes < 0))",
    "an exchange of what nothing wrote": "t = ct.atomic_xchg(y, lanes, 1)",
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_right_passes(case: str) -> None:
    y = empty() if "exchange" in case else None
    launch(str(FINE[case]), y=y).sync()


RELEASED = """
if b == 0:
    p.offset(1).store(7)
    ct.store_ptr_tko(p, 1, ct.ordering.RELEASE, ct.scope.DEVICE)
else:
    s, _ = ct.load_ptr_tko(p, ct.ordering.ACQUIRE, ct.scope.DEVICE)
    p.offset(1).store(p.offset(1).load() + 1)
    ct.store_ptr_tko(p, 2, ct.ordering.RELEASE, ct.scope.DEVICE)
""".strip()

LAST_ADDS_UP = """
p.offset(b + 1).store(b)
old, _ = ct.atomic_rmw_tko(p, 1, ct.atomic.ADD, ct.ordering.ACQ_REL, ct.scope.DEVICE)
if old == 4:
    p.offset(7).store(ct.reduce_sum((p.broadcast((4,)) + (1 + ct.iota((4,)))).load(), 0))
""".strip()


@pytest.mark.parametrize(("body", "values"), [(RELEASED, [2, 11]), (LAST_ADDS_UP, [5, 0])], ids=["flag", "last adds"])
def test_what_was_released_and_acquired_is_in_order(body: str, values: list[int]) -> None:
    op, x = raw(body, blocks=5)
    op.sync()
    assert x.to_numpy().sync()[:2].tolist() == values


def test_without_the_acquire_it_is_a_race() -> None:
    for body in (RELEASED, LAST_ADDS_UP):
        op, _ = raw(body.replace("ACQUIRE", "RELAXED").replace("ACQ_REL", "RELAXED"), blocks=5)
        with pytest.raises(ct.RaceError):
            op.sync()


def test_without_checks_nothing_is_looked_at() -> None:
    for body in (*(each for each, _ in OUTSIDE.values()), *(each for each, _ in RACES.values())):
        launch(body).interpret(check=False).sync()


def test_errors_are_the_checkers() -> None:
    assert issubclass(ct.OutOfBoundsError, CheckError)
    assert issubclass(ct.OutOfBoundsError, IndexError)


def test_a_tensor_without_elements_holds_no_address() -> None:
    y = api.zeros((8,), i32).sync()
    count = kernel("ct.atomic_add(y, 0, 1)", "def k(x: Tensor, y: ct.SharedMut):\n")
    count(api.zeros((0,), i32).sync(), y).grid(2).interpret().sync()
    assert y.numpy().tolist() == [2, *[0] * 7]


def test_tables_of_raw_memory_grow_in_doubling_steps() -> None:
    memory = RawMemory()
    sizes: list[int] = []
    for address in range(1000):
        assert memory.at([address, 0]).tolist() == [address, 0]
        sizes.append(memory.blocks[ACCESS_KINDS[0]].size)
    assert all(size > number for number, size in enumerate(sizes))
    assert len(set(sizes)) <= 11  # the binary logarithm of 1000, rounded up, and one for the first
