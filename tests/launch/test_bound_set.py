"""`BoundLaunch.set`: it accepts the arguments that the bound code supports, and refuses all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OwnershipError
from cuda_async.testing import SimDriver
from cutile.entry import Kernel
from cutile.errors import ArgumentError
from cutile.host import api
from tests.support.kernels import define, kernel

DOUBLE = kernel("def double(y: Mut, x: Tensor):\n    y.store(2 * ct.load_tile_like(x, y))\n")
FIRST_ROW = ct.entry(unsafe=True)(
    define(
        "def first_row(y: Mut, x: Tensor):\n"
        "    row = ct.load_tensor(x, 0, (16,), (1,), f32)\n"
        "    y.store(2 * row.partition((16,)).load(0))\n"
    )
)

Pair = tuple[ct.Tensor, ct.Tensor]


def own(array: np.ndarray[Any, Any], start: int, stop: int) -> Pair:
    """Two slices of a tensor of ours."""
    whole = api.from_numpy(array).sync()
    return whole.slice([(0, 16)]), whole.slice([(start, stop)])


def imported(array: np.ndarray[Any, Any], start: int, stop: int) -> Pair:
    """Two slices of NumPy's array. Each is imported by itself, so each has a storage of its own."""
    return api.from_foreign(array[:16]), api.from_foreign(array[start:stop])


def as_it_is(x: ct.Tensor) -> Any:
    return x


def by_address(x: ct.Tensor) -> Any:
    return api.device_vec([x]).sync()


@pytest.mark.parametrize("pair", [own, imported])
@pytest.mark.parametrize(("start", "shared"), [(0, True), (4, True), (12, True), (16, False), (20, False)])
@pytest.mark.parametrize(("tested", "pass_on"), [(DOUBLE, as_it_is), (FIRST_ROW, by_address)])
def test_arguments_that_share_memory_are_refused_as_by_a_launch(
    pair: Callable[..., Pair], start: int, shared: bool, tested: Kernel, pass_on: Callable[[ct.Tensor], Any]
) -> None:
    """The arguments' layouts are equal: only the addresses tell them apart."""
    stream = Device.host().new_stream()
    memory = np.zeros(80, np.float32)
    first = -(memory.ctypes.data // 4) % 16
    with stream:
        y, x = pair(memory[first : first + 64], start, start + 16)
        output, argument = y.mut.partition((16,)), pass_on(x)
        elsewhere = api.zeros((16,)).sync().mut.partition((16,)), pass_on(api.zeros((16,)).sync())
        both, reader = tested(*elsewhere).bind(stream), tested(*elsewhere).bind(stream)
        reader.set(x=argument)
        if not shared:
            both.set(y=output, x=argument)
            reader.set(y=output)
            tested(output, argument).sync()
        else:
            with pytest.raises(ArgumentError, match=r"arguments 'y' and 'x.*' share memory"):
                both.set(y=output, x=argument)
            with pytest.raises(ArgumentError, match=r"arguments 'y' and 'x.*' share memory"):
                reader.set(y=output)
            with pytest.raises(OwnershipError):
                tested(output, argument)
        both()
        reader()
        stream.synchronize()


def test_no_elements_share_no_memory() -> None:
    stream = Device.host().new_stream()
    with stream:
        whole, empty = api.ones((16,)).sync(), api.zeros((0,)).sync()
        total = kernel("def total(y: Mut, x: Tensor):\n    y.store(y.load() + ct.convert_tile(x.shape[0], f32))\n")
        bound = total(api.zeros((16,)).sync().mut.partition((16,)), empty).bind(stream)
        bound.set(y=whole.mut.partition((16,)), x=whole.slice([(8, 8)]))
        bound()
        assert set(whole.to_numpy().sync().tolist()) == {1.0}


@pytest.mark.parametrize(
    ("declared", "is_compiled_in"),
    [("Tensor", False), ("Tensor[f32, 'n']", False), ("Tensor[f32, ct.Dyn]", False), ("Tensor[f32, 8]", True)],
)
def test_other_extents_are_refused_where_they_are_compiled_in(declared: str, is_compiled_in: bool) -> None:
    stream = Device.host().new_stream()
    with stream:
        sums = kernel(f"def sums(y: Mut, x: {declared}):\n    y.store(ct.load_tile_like(x, y) + x.shape[0])\n")
        y = api.zeros((4,)).sync()
        bound = sums(y.mut.partition((4,)), api.ones((8,)).sync()).bind(stream)
        longer = api.ones((16,)).sync()
        if is_compiled_in:
            with pytest.raises(ArgumentError, match=r"of shape \(16,\) .* in place of f32 of shape \(8,\)"):
                bound.set(x=longer)
        else:
            bound.set(x=longer)
        bound()
        assert set(y.to_numpy().sync().tolist()) == {9.0 if is_compiled_in else 17.0}


def test_extents_of_one_name_must_agree() -> None:
    stream = Device.host().new_stream()
    with stream:
        added = kernel(
            "def added(y: Mut, a: Tensor[f32, 'n'], b: Tensor[f32, 'n']):\n"
            "    y.store(ct.load_tile_like(a, y) + ct.load_tile_like(b, y))\n"
        )
        short, long = (api.ones((n,)).sync() for n in (8, 16))
        y = api.zeros((4,)).sync()
        bound = added(y.mut.partition((4,)), short, short).bind(stream)
        with pytest.raises(ArgumentError, match=r"the extent 'n' is 16 .* 'a' .* but 8 .* 'b'"):
            bound.set(a=long)
        bound.set(a=long, b=long)
        bound()
        assert set(y.to_numpy().sync().tolist()) == {2.0}


LAYOUTS: dict[str, Callable[[], Any]] = {
    "tiles": lambda: api.zeros((4, 8)).sync().mut.partition((2, 4)),
    "other tiles": lambda: api.zeros((4, 8)).sync().mut.partition((2, 8)),
    "a prefix": lambda: api.zeros((4, 8)).sync().mut.partition_prefix((2, 4)),
    "a dtype": lambda: api.zeros((4, 8), ct.i32).sync().mut.partition((2, 4)),
    "columns": lambda: api.zeros((8, 4)).sync().transpose((1, 0)).mut.partition((2, 4)),
    "no unit stride": lambda: api.from_foreign(np.zeros((4, 16), "f4")[:, ::2]).mut.partition((2, 4)),
    "not aligned": lambda: api.zeros((4, 9)).sync().slice([(0, 4), (1, 9)]).mut.partition((2, 4)),
}


@pytest.mark.parametrize("bound_to", ["tiles", "a prefix"])
@pytest.mark.parametrize("other", LAYOUTS)
def test_a_message_tells_two_layouts_apart(bound_to: str, other: str) -> None:
    stream = Device.host().new_stream()
    with stream:
        filled = kernel("def filled(y: Mut):\n    y.store(ct.constant(1, y.shape, y.dtype))\n")
        bound = filled(LAYOUTS[bound_to]()).grid((2, 2)).bind(stream)
        if other == bound_to:
            bound.set(y=LAYOUTS[other]())
            return
        with pytest.raises(ArgumentError, match="argument 'y' has another layout") as raised:
            bound.set(y=LAYOUTS[other]())
        first, second = str(raised.value).split("bound: ")[1].split("; ")[0].split(" in place of ")
        assert first != second


@pytest.mark.parametrize(("tested", "pass_on", "name"), [(DOUBLE, as_it_is, "x"), (FIRST_ROW, by_address, r"x\[0\]")])
def test_a_tensor_on_another_device_is_refused(tested: Kernel, pass_on: Callable[[ct.Tensor], Any], name: str) -> None:
    driver = SimDriver(seed=3)
    with Device.from_driver(driver) as device, Device.from_driver(SimDriver(ordinal=1, beside=driver)) as other:
        stream = device.new_stream()
        with stream:
            y = api.zeros((16,)).sync().mut.partition((16,))
            bound = tested(y, pass_on(api.ones((16,)).sync())).bind(stream)
        with other.new_stream():
            distant = api.ones((16,)).sync()
        if tested is FIRST_ROW:  # the addresses are here, and the tensor is not
            with stream:
                vector = pass_on(api.ones((16,)).sync())
            vector.tensors = (distant,)
        else:
            vector = distant
        with pytest.raises(ArgumentError, match=f"argument '{name}' is on sim:1, the bound launch on sim:0"):
            bound.set(x=vector)
        bound()
        stream.synchronize()


def test_a_parameter_may_have_any_name() -> None:
    stream = Device.host().new_stream()
    with stream:
        named = kernel(
            "def named(self: Mut, arguments: f32, stage: f32):\n    self.store(self.load() + arguments + stage)\n"
        )
        y = api.zeros((4,)).sync()
        bound = named(self=y.mut.partition((4,)), arguments=1.0, stage=0.0).bind(stream)
        bound.set(arguments=2.0)
        bound()
        other = api.zeros((4,)).sync()
        bound.set(self=other.mut.partition((4,)), stage=1.0)
        bound()
        assert [set(each.to_numpy().sync().tolist()) for each in (y, other)] == [{2.0}, {3.0}]


def test_a_part_of_a_group_has_the_name_of_other_messages() -> None:
    stream = Device.host().new_stream()
    with stream:
        pairs = kernel(
            "def pairs(y: Mut, p: tuple[Tensor, Tensor]):\n"
            "    y.store(ct.load_tile_like(p[0], y) + ct.load_tile_like(p[1], y))\n"
        )
        ones = api.ones((4,)).sync()
        bound = pairs(api.zeros((4,)).sync().mut.partition((4,)), (ones, ones)).bind(stream)
        with pytest.raises(ArgumentError, match=r"no argument 'p'; it has y, \w+ \(p\[0\]\), \w+ \(p\[1\]\)") as raised:
            bound.set(p=ones)
        name = str(raised.value).split("it has y, ")[1].split(" ")[0]
        with pytest.raises(ArgumentError, match=r"argument 'p\[0\]' has another layout"):
            bound.set(**{name: api.ones((4,), ct.f64).sync()})
        bound.set(**{name: api.zeros((4,)).sync()})
        bound()
        stream.synchronize()
