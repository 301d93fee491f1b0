"""What people interpret kernels for: print, breakpoints, tracebacks, values to look at."""

from __future__ import annotations

import pdb
import subprocess
import sys
from typing import Any

import pytest

import cutile as ct
from cutile import Mut, Tensor, api, i32
from tests.support.kernels import kernel

seen: list[Any] = []


@ct.entry
def shows(y: Mut, x: Tensor) -> None:
    t = ct.load_tile_like(x, y)
    i = ct.get_tile_block_id()[0]
    print(f"block {i}: {t}")
    seen.append(t)  # type: ignore[attr-defined]
    y.store(t + 1)


@ct.entry
def breaks(y: Mut) -> None:
    t = y.load()
    total = ct.reduce_sum(t, 0)
    y.store(t * total)


@ct.entry
def mixes(y: Mut, x: Tensor) -> None:
    t = ct.load_tile_like(x, y)
    y.store(t + y.load())


def ints(*values: int) -> ct.Tensor:
    return api.copy_host_vec_to_device(list(values), i32).sync()


def test_print_shows_tiles_block_by_block(capsys: pytest.CaptureFixture[str]) -> None:
    shows(api.zeros((4,), i32).sync().partition((2,)), ints(1, 2, 3, 4)).interpret().sync()
    assert capsys.readouterr().out == "block 0: [1 2]\nblock 1: [3 4]\n"
    assert repr(seen[0]) == "tile([1, 2], i32)"
    assert seen[1].array.tolist() == [3, 4]
    assert seen[1].dtype is i32
    assert seen[1].shape == (2,)


def test_a_breakpoint_in_the_kernel_is_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    totals: list[str] = []

    class Debugger(pdb.Pdb):
        def interaction(self, frame: Any, *rest: Any) -> None:  # type: ignore[override]
            if frame is not None and frame.f_code.co_name == "breaks":
                totals.append(str(frame.f_locals["total"]))
            self.set_continue()

    debugger = Debugger(nosigint=True, readrc=False)
    wrapped: Any = vars(breaks)["__wrapped__"]
    first: int = wrapped.__code__.co_firstlineno
    debugger.set_break(__file__, first + 4)
    debugger.runcall(breaks(ints(1, 2, 3).partition((3,))).interpret().sync)
    assert totals == ["6"]


def test_an_error_shows_the_users_line_and_the_users_frame() -> None:
    op = mixes(api.zeros((2,)).sync().partition((2,)), ints(1, 2)).interpret()
    with pytest.raises(ct.KernelTypeError, match="different dtypes") as error:
        op.sync()
    assert "    y.store(t + y.load())\n            ^^^^^^^^^^^^" in str(error.value)
    assert any(entry.name == "mixes" for entry in error.traceback)


@pytest.mark.parametrize("expression", ["y.load() + ct.iota(2)", "ct.nothing"])
def test_carets_stand_below_what_follows_other_letters(expression: str) -> None:
    """Python counts columns in bytes of UTF-8."""
    line = f'größe = "äöü"; y.store({expression})'
    op = kernel(f"def words(y: Mut):\n    {line}\n")(api.zeros((2,)).sync().partition((2,))).interpret()
    with pytest.raises(ct.KernelError) as error:
        op.sync()
    carets = " " * line.index(expression) + "^" * len(expression)
    assert f"    {line}\n    {carets}\n" in str(error.value)


def test_the_environment_interprets_a_whole_process() -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, '.')\n"
        "from tests.interpreter.test_people import shows, ints\n"
        "import cutile as ct\n"
        "shows(ct.api.zeros((2,), ct.i32).sync().partition((2,)), ints(5, 6)).sync()\n"
        "assert 'numba' not in sys.modules\n"
    )
    import os

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "CUTILE_INTERPRET": "1"}, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    assert done.stdout == "block 0: [5 6]\n"


def test_what_cannot_be_interpreted_says_so() -> None:
    from cuda_async import Device, LaunchError

    stream = Device.host().new_stream()
    with pytest.raises(ct.LaunchError, match="cannot be bound"):
        breaks(ints(1).partition((1,))).interpret().bind(stream)
    with pytest.raises(LaunchError, match="cannot be part of a graph"):
        breaks(ints(1).partition((1,))).interpret().graph_on(stream)


@ct.entry
def misspelt(y: Mut) -> None:
    y.store(ct.expp(y.load()))  # type: ignore[attr-defined]


def test_a_misspelt_name_is_refused_as_the_compiler_does() -> None:
    words: list[str] = []
    for interpreted in (False, True):
        op = misspelt(api.zeros((4,)).sync().partition((2,)))
        with pytest.raises(ct.KernelNameError) as caught:
            (op.interpret() if interpreted else op).sync()
        words.append(str(caught.value))
    assert words[0] == words[1]
    assert words[0].endswith("Did you mean 'exp'?")


def whole(y: Mut) -> None:
    y.store(int(ct.reduce_sum(y.load(), 0)))


@pytest.mark.parametrize("interpreted", [False, True])
def test_int_of_a_scalar_of_floats_says_what_to_write(interpreted: bool) -> None:
    op = ct.entry(whole)(api.zeros((4,)).sync().partition((2,)))
    with pytest.raises(TypeError, match=r"int\(\) of a scalar of f32(.|\n)*[Uu]se ct\.i32\(x\)"):
        (op.interpret() if interpreted else op).sync()
