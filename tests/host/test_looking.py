"""What a look at tensors, kernels and results shows, in a notebook, at a console and by `print`."""

from __future__ import annotations

import pydoc
import threading
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import CudaGraph, Device
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, bf16, f32, i32
from cutile.errors import ArgumentError
from cutile.host import display
from tests.cuda_async.work import launch_affine


class Printer:
    """What IPython gives to `_repr_pretty_`."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def pretty(item: Any) -> str:
    printer = Printer()
    item._repr_pretty_(printer, False)
    return printer.shown


def html(item: Any) -> str:
    return item._repr_html_()


@pytest.mark.parametrize(
    "shape", [(), (5,), (4, 8), (1000,), (1001,), (50, 60), (7, 300), (20, 9, 30), (1, 2000, 1)], ids=str
)
def test_values_are_shown_as_numpy_shows_them(device: Device, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    x = api.from_numpy(array).sync()
    wanted = np.array2string(array, separator=", ", threshold=display.MAX_SHOWN)
    assert str(x) == pretty(x) == f"{x!r}\n{wanted}"
    assert wanted.replace(">", "&gt;") in html(x)


def test_views_and_other_types(device: Device) -> None:
    x = api.arange(4096 * 12, i32).sync().reshape((12, 4096))
    wanted = np.arange(4096 * 12, dtype=np.int32).reshape(12, 4096)
    for view, array in ((x.transpose(), wanted.T), (x[::2, 3:900:4], wanted[::2, 3:900:4]), (x[::-1], wanted[::-1])):
        assert str(view).endswith(np.array2string(array, separator=", ", threshold=display.MAX_SHOWN))
    assert str(api.ones((2,), bf16).sync()).endswith("[1, 1]")
    assert "at [0, 0]:\n[[[    0,     1,     2, ...," in str(x.reshape((1, 1, 4, 4, 3072)))


def test_a_small_part_of_a_large_tensor_is_read(sim_device: Device, sim: SimDriver) -> None:
    x = api.zeros((1 << 10, 1 << 10), f32).sync()
    sim.log.clear()
    assert "0., 0., 0., ..." in str(x)
    copied = [int(line.split()[1]) for line in sim.log if line.startswith("copy")]
    assert sum(copied) <= 6 * 6 * 4


def test_what_cannot_be_shown_is_said(host: Device) -> None:
    x = api.ones((4,), f32).sync()
    op = api.fill(x, 2)
    assert "(not shown: argument 'tensor' would be read, but the operation made at" in str(x)
    assert "test_looking.py" in str(x)
    op.discard()
    part = x.partition((2,))
    assert "held by the partition" in str(x)
    assert str(x).endswith("[1., 1., 1., 1.]")  # to look at it is no use of it
    part.unpartition()
    seen: list[str] = []
    api.zeros((4,)).inspect(lambda y: seen.append(str(y))).sync()
    with CudaGraph.scope(host.new_stream()) as scope:
        scope.record(api.fill(x.mut, 3))
        seen.append(str(x))
    assert all("(not shown: operations are being submitted" in each for each in seen)
    assert len(seen) == 2
    assert "(not shown: NotReadyError: " in str(api.meta((3,), f32))


def test_a_look_does_not_wait_for_a_busy_device(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def hold() -> None:
        gate.wait(30)

    monkeypatch.setattr(display, "PATIENCE_S", 0.01)
    x, stream = api.ones((4,), i32).sync(), host.new_stream()
    with stream.submission:
        x.storage.use(stream, write=True)
        stream.call(hold)
        launch_affine(stream, x.storage.address, 4, 3, 4)
    try:
        assert "(not shown: the device has not computed them within 0.01 s)" in str(x)
        assert "not shown" in html(x)
    finally:
        gate.set()
    wait_all_idle(host)
    monkeypatch.undo()
    assert str(x).endswith("[7, 7, 7, 7]")


def test_a_failure_of_the_device_is_no_failure_of_a_look(sim_device: Device, sim: SimDriver) -> None:
    x = api.ones((4,), i32).sync()
    sim.fail("copy")
    assert "(not shown: DriverError: SIM_FAULT (999): injected fault in copy)" in str(x)
    assert str(x).endswith("[1, 1, 1, 1]")


@ct.entry
def scaled(y: ct.Mut, a: ct.f32, x: ct.Tensor, *, TWICE: ct.Const = 0):
    """y = a * x.

    Twice that, if asked.
    """
    y.store((a + a * TWICE) * ct.load_tile_like(x, y))


def test_a_kernels_card(host: Device) -> None:
    signature = "scaled(y: ct.Mut, a: ct.f32, x: ct.Tensor, *, TWICE: ct.Const=0)"
    text = pretty(scaled)
    assert text.startswith(f"{signature}\n\ny = a * x.\n\nTwice that, if asked.")
    y, x = (api.ones((8,), f32).sync() for _ in range(2))
    scaled(y.mut.partition((4,)), 2.0, x).sync()
    scaled(y.mut.partition((2,)), 2.0, x, TWICE=1).sync()
    for card in (pretty(scaled), html(scaled)):
        assert card.count("scaled for cpu\n") == 2
        assert "in tiles of 2;" in card
        assert signature in card


def test_help_is_the_kernels_own() -> None:
    plain: Any = vars(pydoc)["plaintext"]
    text = pydoc.render_doc(scaled, renderer=plain)
    assert "scaled(y: ct.Mut, a: ct.f32, x: ct.Tensor, *, TWICE: ct.Const=0)" in text
    assert "Twice that, if asked." in text
    assert "Methods defined here" not in text


def test_a_result_reads_well(host: Device) -> None:
    y, x = (api.ones((8,), f32).sync() for _ in range(2))
    out = scaled(y.mut.partition((4,)), 2.0, x).sync()
    lines = pretty(out).splitlines()
    assert lines[0] == "scaled:"
    assert [line.split("=")[0].strip() for line in lines[1:]] == ["y", "a", "x"]
    assert "Tensor(f32, shape=(8,), device=cpu)" in lines[3]
    assert "BorrowedPartition(f32" in html(out)


def test_errors_in_a_notebook_are_short(host: Device) -> None:
    def build() -> None:
        scaled(api.ones((8,)).sync().partition((4,)), 2.0)

    with pytest.raises(ArgumentError) as caught:
        build()
    caught.value.add_note("a note of\n" + "\n".join(map(str, range(40))) + "\nwhat to do")
    error: Any = caught.value
    lines: list[str] = error._render_traceback_()
    assert len(lines) <= 15
    assert any("test_looking.py:" in line for line in lines)
    assert not any("cutile/entry.py" in line for line in lines)
    assert "ArgumentError: scaled takes 3 arguments (y, a, x); missing: x" in lines
    assert "lines more" in lines[-3]
    assert lines[-1] == "what to do"
