"""Tensor maps: what the driver is asked for, how a launch passes them, and what kernels that take them compile to."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutile.backend.cuda import tensor_map
from cutile.backend.cuda.load import load
from cutile.backend.cuda.tensor_map import Swizzle, TensorMap, descriptor
from cutile.backend.interface import Executable, Parameter, Place, Target
from cutile.compile.driver import Compiled
from cutile.compile.store import DiskStore
from cutile.dtypes import DTYPES, DTypeLike, bf16, f16, f32, f64, i32, i64
from cutile.errors import LaunchError
from cutile.launch.fastpath import numbers_of
from tests.backend.cuda.bulk import bulk_copy
from tests.backend.cuda.programs import instructions
from tests.backend.cuda.recorder import Recorder
from tests.backend.cuda.test_compile import assert_clean


def mapped(box: tuple[int, ...], dtype: DTypeLike = f16, swizzle: Swizzle = 0, **more: Any) -> Parameter:
    return Parameter("x_map", "tensor_map", 0, 0, dtype, TensorMap(box, swizzle, **more))


def executable(*parameters: Parameter) -> Executable:
    facts = {"threads": 128, "shared_bytes": 4096}
    return Executable(Target("cuda", "sm_90a"), b"cubin", "kernel", parameters, facts, "")


def test_the_innermost_axis_comes_first() -> None:
    made = descriptor(mapped((2, 64, 32), f16, 64), (4096, (5, 777, 1000), (777000, 1000, 1)))
    assert made == ("f16", 4096, (1000, 777, 5), (2000, 1554000), (32, 64, 2), 64, 1)


def test_a_transposed_view_says_its_order() -> None:
    made = descriptor(mapped((64, 128), bf16, 128, order=(1, 0)), (4096, (512, 300), (1, 512)))
    assert made == ("bf16", 4096, (512, 300), (1024,), (64, 128), 128, 1)


def test_some_rows_of_a_box_are_left_out() -> None:
    assert descriptor(mapped((2, 64, 32), f16, 64, step=2), (4096, (5, 777, 1000), (777000, 1000, 1))).step == 2


def test_of_an_axis_with_one_element_any_stride_will_do() -> None:
    assert descriptor(mapped((8, 8)), (4096, (1, 100), (3, 1))).strides == (208,)
    assert descriptor(mapped((8, 8)), (4096, (64, 1), (8, 5))).extents == (1, 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_an_element(dtype: DTypeLike) -> None:
    encoded = descriptor(mapped((32, 32), dtype), (4096, (64, 64), (64, 1)))
    floats: dict[DTypeLike, str] = {f16: "f16", bf16: "bf16", f32: "f32", f64: "f64"}
    sizes = {8: "u8", 16: "u16", 32: "u32", 64: "u64"}
    assert encoded.element == floats.get(dtype, sizes[dtype.bits])
    assert encoded.strides == (8 * dtype.bits,)


def test_floats_can_be_rounded_on_the_way_in() -> None:
    assert descriptor(mapped((32, 32), f32, rounded=True), (4096, (64, 64), (64, 1))).element == "tf32"


REFUSED: dict[str, tuple[Parameter, Place]] = {
    "the address must be a multiple of 16": (mapped((8, 8)), (4098, (64, 64), (64, 1))),
    "a stride must be a multiple of 16 bytes": (mapped((8, 8)), (4096, (64, 333), (333, 1))),
    "a stride must be .* got -128 bytes": (mapped((8, 8)), (4096, (64, 64), (-64, 1))),
    "a stride must be .* got 0 bytes": (mapped((8, 8)), (4096, (64, 64), (0, 1))),
    "a tensor without elements has no descriptor": (mapped((8, 8)), (4096, (0, 64), (64, 1))),
    "no descriptor, got extents \\(64, 0\\)": (mapped((8, 8)), (4096, (64, 0), (64, 1))),
    "the innermost axis must have stride 1, got 64": (mapped((8, 8)), (4096, (64, 64), (1, 64))),
    "1 to 256 elements along each axis": (mapped((512, 8)), (4096, (64, 64), (64, 1))),
    "row must be a multiple of 16 bytes, got 8": (mapped((8, 4)), (4096, (64, 64), (64, 1))),
    "at most the swizzle's 64, got 128": (mapped((8, 64), f16, 64), (4096, (64, 64), (64, 1))),
    "a descriptor has 1 to 5 axes, got 6": (
        mapped((8,) * 6), (4096, (8,) * 6, (8**5, 8**4, 8**3, 64, 8, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_copy_engine_does_not_take_is_refused(message: str) -> None:
    parameter, place = REFUSED[message]
    with pytest.raises(LaunchError, match=f"parameter 'x_map': no bulk copies of a tensor of f16 .*{message}"):
        descriptor(parameter, place)


def test_a_launch_passes_the_descriptor_by_value_and_makes_it_once() -> None:
    stream = Recorder(sizes=(4, 128, 8))
    first, second = (4096, (64, 64), (64, 1)), (8192, (32, 64), (64, 1))
    n, pointer = Parameter("n", "scalar", 1, 0, i32), Parameter("p", "pointer", 2, 0, i64)
    loaded = load(executable(n, mapped((8, 8)), pointer))
    for place, number in ((first, 1), (second, 2), (first, 3)):
        loaded.launch((1, 1, 1), [number, place, 2**40], stream)
    passed = [launch[-1] for launch in stream.launches]
    assert [each[1].rstrip() for each in passed] == [b"4096 (64, 64)", b"8192 (64, 32)", b"4096 (64, 64)"]
    assert [struct.unpack("<i", each[0])[0] for each in passed] == [1, 2, 3]
    assert {each[2] for each in passed} == {struct.pack("<Q", 2**40)}
    assert len(stream.encoded) == 2


def test_a_prepared_launch_takes_another_tensor() -> None:
    stream = Recorder(sizes=(128, 4))
    loaded = load(executable(mapped((8, 8)), Parameter("n", "scalar", 1, 0, i32)))
    places: list[Place] = [(4096 * i, (64, 64), (64, 1)) for i in (1, 2)]
    prepared = loaded.prepare((1, 1, 1), [places[0], 5], stream)
    prepared.launch()
    prepared.set(0, places[1])
    prepared.set(1, 6)
    prepared.launch()
    prepared.set(0, places[0])
    prepared.launch()
    passed = [launch[-1] for launch in stream.launches]
    assert [each[0].split()[0] for each in passed] == [b"4096", b"8192", b"4096"]
    assert [struct.unpack("<i", each[1])[0] for each in passed] == [5, 6, 6]
    assert len(stream.encoded) == 2


def test_descriptors_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_map, "MAX_DESCRIPTORS", 4)
    stream = Recorder(sizes=(128,))
    loaded = load(executable(mapped((8, 8))))
    prepared = loaded.prepare((1, 1, 1), [(16, (8, 8), (8, 1))], stream)
    for i in range(2, 20):
        loaded.launch((1, 1, 1), [(16 * i, (8, 8), (8, 1))], stream)
    prepared.launch()
    assert [int(launch[-1][0].split()[0]) for launch in stream.launches] == [*range(32, 320, 16), 16]


class _Tensor:
    address, shape, strides = 4096, (64, 64), (64, 1)


def test_the_number_of_a_tensor_map_is_the_tensor_s_place(tmp_path: Path) -> None:
    entry = executable(mapped((8, 16), f16, 32, order=(0, 1)), Parameter("x_extent_1", "extent", 0, 1, i32))
    store = DiskStore(tmp_path)
    store.put("ab12", entry)
    read = store.get("ab12")
    assert read == entry
    numbers: Any = numbers_of(Compiled(load(read), read, None, "", True))  # type: ignore[arg-type]
    assert numbers([_Tensor], (1, 1, 1)) == [(4096, (64, 64), (64, 1)), 64]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_descriptor_is_read_where_the_launch_put_it(arch: str, tmp_path: Path) -> None:
    form = TensorMap((64, 64), 128)
    executable = bulk_copy(f16, form, form, arch)
    assert_clean(executable)
    opcodes = instructions(executable, tmp_path)
    for each in ("UTMALDG.2D", "UTMASTG.2D", "UTMACCTL.PF"):
        assert opcodes[each] == 1
    assert not any(each.startswith(("STL", "LDL", "ST.", "LD.", "STG", "LDG")) for each in opcodes)  # no copy of it
    # EIATTR_KPARAM_INFO: the parameter's number, its offset in the constant bank's parameters, its size.
    base = {"sm_90a": 0x210, "sm_100a": 0x380}[arch]
    sizes: dict[int, int] = {}
    for match in re.finditer(rb"\x04\x17\x0c\x00(.{12})", executable.image, re.DOTALL):
        _, number, offset, packed = struct.unpack("<IHHI", match[1])
        sizes[number] = packed >> 18
        assert number == 0 or (base + offset) % 64 == 0
    assert sizes == {0: 4, 1: 128, 2: 128}


@pytest.mark.gpu
def test_boxes_are_copied_on_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.backend.cuda.bulk_run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.endswith("all right\n"), done.stdout + done.stderr
