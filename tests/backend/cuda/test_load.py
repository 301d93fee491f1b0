"""Launching without a device: what reaches the driver."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from cutile.backend.cuda.load import load
from cutile.backend.interface import Executable, Parameter, Target
from cutile.dtypes import EVERY_DTYPE, bf16, bool_, f16, f32, f64, i8, i32, i64, u64
from cutile.errors import LaunchError
from tests.backend.cuda.recorder import Recorder


def executable(*dtypes: Any) -> Executable:
    pointer = Parameter("x", "pointer", 0, 0, u64)
    scalars = [Parameter(f"s{i}", "scalar", i + 1, 0, dtype) for i, dtype in enumerate(dtypes)]
    facts = {"threads": 128, "shared_bytes": 4096}
    return Executable(Target("cuda", "sm_90a"), b"cubin", "kernel", (pointer, *scalars), facts, "")


def test_values_are_packed_by_their_own_type() -> None:
    dtypes = (f32, i8, f64, i64, bool_, f16, bf16, i32)
    stream = Recorder(sizes=(8, *(dtype.bits // 8 for dtype in dtypes)))
    load(executable(*dtypes)).launch((2, 3, 4), [2**40, 1.5, -3, 0.1, -(2**50), True, 1.5, -2.0, -7], stream)
    ((function, grid, block, shared, values),) = stream.launches
    assert (function, grid, block, shared) == ("kernel on gpu0", (24, 1, 1), (128, 1, 1), 4096)
    assert values == [
        struct.pack("<Q", 2**40), struct.pack("<f", 1.5), struct.pack("<b", -3), struct.pack("<d", 0.1),
        struct.pack("<q", -(2**50)), b"\x01", struct.pack("<e", 1.5), b"\x00\xc0", struct.pack("<i", -7),
    ]  # fmt: skip


def test_a_kernel_may_have_no_parameters() -> None:
    stream, loaded = Recorder(), load(replace(executable(), parameters=()))
    loaded.launch((2, 1, 1), [], stream)
    loaded.prepare((3, 1, 1), [], stream).launch()
    assert [(launch[1], launch[-1]) for launch in stream.launches] == [((2, 1, 1), []), ((3, 1, 1), [])]


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_every_dtype_can_be_an_argument(dtype: Any) -> None:
    stream = Recorder(sizes=(8, dtype.bits // 8))
    load(executable(dtype)).launch((1, 1, 1), [16, 1], stream)
    (launch,) = stream.launches
    assert launch[-1][1] == dtype.numpy.type(1).tobytes()


def test_the_image_is_loaded_once_on_each_device() -> None:
    loaded = load(executable())
    first, second = Recorder("gpu0"), Recorder("gpu1")
    for stream in (first, second, first):
        loaded.launch((1, 1, 1), [16], stream)
    assert first.loads == second.loads == [(b"cubin", "kernel", 4096)]
    assert [launch[0] for launch in first.launches] == ["kernel on gpu0"] * 2


@pytest.mark.parametrize("speaks", [False, True])
def test_what_prints_is_announced_once_on_each_device(speaks: bool) -> None:
    made = executable()
    loaded = load(replace(made, facts={**made.facts, "speaks": speaks}))
    first, second = Recorder("gpu0"), Recorder("gpu1")
    for stream in (first, second, first):
        loaded.launch((1, 1, 1), [16], stream)
    assert (first.outputs_expected, second.outputs_expected) == (speaks, speaks)


def test_what_prints_is_announced_before_any_launch_of_it() -> None:
    """An interrupted announcement is repeated: until then no launch, on whichever thread, has the function."""

    class Interrupted(Recorder):
        def expect_output(self) -> None:
            if len(self.loads) == 1:
                raise KeyboardInterrupt
            super().expect_output()

    template = executable()
    loaded, stream = load(replace(template, facts={**template.facts, "speaks": True})), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        loaded.launch((1, 1, 1), [16], stream)
    loaded.launch((1, 1, 1), [16], stream)
    assert (stream.outputs_expected, len(stream.launches)) == (1, 1)


def test_a_prepared_launch_is_repeated_with_other_values() -> None:
    stream = Recorder(sizes=(8, 4, 2))
    prepared = load(executable(i32, bf16)).prepare((5, 1, 1), [2**40, -7, 1.0], stream)
    prepared.launch()
    prepared.set(1, 9)
    prepared.set(2, -2.0)
    prepared.launch()
    assert [launch[-1] for launch in stream.launches] == [
        [struct.pack("<Q", 2**40), struct.pack("<i", -7), b"\x80\x3f"],
        [struct.pack("<Q", 2**40), struct.pack("<i", 9), b"\x00\xc0"],
    ]
    assert {launch[:4] for launch in stream.launches} == {("kernel on gpu0", (5, 1, 1), (128, 1, 1), 4096)}


def test_a_packed_launch_is_the_same_as_any_other() -> None:
    stream = Recorder(sizes=(8, 4, 8, 1))
    loaded, numbers = load(executable(f32, i64, bool_)), [2**40, 1.5, -3, True]
    loaded.launch((2, 3, 4), numbers, stream)
    packed = loaded.packed(stream)
    assert packed is not None
    memory, where = packed.memory()
    packed.pack(memory, 0, *numbers)
    packed.launch(stream, 24, where)
    general, straight = stream.launches
    assert straight == general
    assert packed.most >= 2**31 - 1


@pytest.mark.parametrize(
    "made",
    [executable(bf16), replace(executable(), facts={"threads": 128, "shared_bytes": 0, "workspace": 64})],
    ids=["bits", "workspace"],
)
def test_what_is_not_as_simple_as_that_is_not_packed(made: Executable) -> None:
    assert load(made).packed(Recorder()) is None


def test_threads_do_not_share_packed_values() -> None:
    loaded = load(executable(i64))

    def run(number: int) -> list[bytes]:
        stream = Recorder(sizes=(8, 8))
        for _ in range(200):
            loaded.launch((1, 1, 1), [number, number], stream)
        return [value for launch in stream.launches for value in launch[-1]]

    with ThreadPoolExecutor(4) as pool:
        for number, values in enumerate(pool.map(run, range(8))):
            assert set(values) == {struct.pack("<q", number)}


@pytest.mark.parametrize("grid", [(0, 1, 1), (2**20, 2**12, 1)])
def test_a_grid_that_no_launch_can_have_is_refused(grid: tuple[int, int, int]) -> None:
    stream = Recorder()
    with pytest.raises(LaunchError, match="tile blocks; a launch takes 1 to 2147483647"):
        load(executable()).launch(grid, [16], stream)
    assert stream.launches == stream.loads == []
