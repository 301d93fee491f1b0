"""Text to object code and back into a process."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutile.backend.cpu.backend import BACKEND
from cutile.backend.cpu.intrinsics._seam import ir, types, unary
from cutile.backend.cpu.load import CpuKernel
from cutile.backend.cpu.target import arch, features, host_target, llvm
from cutile.backend.interface import CompileOptions, Executable, Source, Target
from cutile.config import usable_cores
from cutile.errors import CompilationError
from tests.backend.cpu.programs import SAXPY, function, gemm_types, saxpy_types, source
from tests.support.programs import GEMM


def built() -> Executable:
    target = host_target()
    options = CompileOptions()
    lowered = BACKEND.lower(function(SAXPY, saxpy_types(64)), target, options)
    return BACKEND.build(BACKEND.emit(lowered, target, options), target)


def test_an_executable_is_data_and_needs_no_numba(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(pickle.dumps(built()))
    script = textwrap.dedent("""
        import pickle, sys
        import numpy as np
        from cutile.backend.cpu.backend import BACKEND

        class Now:
            threads = 1

            def parallel_for(self, body, count, grain):
                body(0, count)

        x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
        kernel = BACKEND.load(pickle.load(open(sys.argv[1], "rb")))
        kernel.launch((16, 1, 1), [y.ctypes.data, 1000, 2.0, x.ctypes.data, 1000, 16, 1, 1], Now())
        assert np.array_equal(y, 2 * x + 1)
        late = ("numba", "scipy", "email", "urllib.request", "importlib.metadata", "asyncio", "cutile.backend.cpu.emit")
        print([name for name in late if name in sys.modules])
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "kernel")]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert process.stdout == "[]\n", process.stderr  # else a cached kernel's first launch would wait for them


def _of_f16(builder: Any, arguments: list[Any]) -> Any:
    return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))


def _bits_of_f16(x: Any) -> Any:
    return types.uint16


rounded_at_once = unary(_of_f16, _bits_of_f16)


@pytest.mark.skipif(
    "+avx512fp16" in features() or "+f16c" not in features(), reason="needs an x86 without this rounding"
)
@pytest.mark.skipif(sys.platform == "darwin", reason="each process has the function there")
@pytest.mark.parametrize("address", [None, 1], ids=["not here", "here"])
def test_a_call_of_the_compilers_runtime_library_is_an_error(
    address: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a call of address zero, also where another process that had the function kept the object on disk."""

    def address_of_symbol(name: str) -> int | None:
        return address

    monkeypatch.setattr(llvm, "address_of_symbol", address_of_symbol)
    text = (
        f"from {__name__} import rounded_at_once\n\n\n"
        "def round_all(y, x, first, last):\n    for at in range(first, last):\n        y[at] = rounded_at_once(x[at])\n"
    )
    facts = {"signature": ("u16*", "f64*", "i64", "i64"), "scratch": (), "noalias": True}
    with pytest.raises(CompilationError, match="round_all calls __truncdfhf2, which not every process has"):
        BACKEND.build(Source(text, "round_all", (), facts=facts), host_target())


def test_text_that_numba_refuses_is_an_error_with_the_line() -> None:
    generated = source(SAXPY, saxpy_types(64))
    broken = replace(generated, text=generated.text.replace("y[at] = ", "y[at] = 'seven' + "))
    with pytest.raises(CompilationError, match="Numba refused the generated code of saxpy"):
        BACKEND.build(broken, host_target())


def test_calls_into_python_are_refused() -> None:
    generated = source(SAXPY, saxpy_types(64))
    printing = replace(generated, text=generated.text.replace("    for block in", "    print(a)\n    for block in", 1))
    with pytest.raises(CompilationError, match="which no object may call"):
        BACKEND.build(printing, host_target())


def test_the_target_is_this_machine_whatever_the_device_says() -> None:
    assert BACKEND.target("anything", 3) == Target("cpu", arch(), 3)  # type: ignore[attr-defined]
    assert host_target().units == usable_cores()


def test_the_version_names_the_toolchain() -> None:
    assert re.fullmatch(r"numba 0[\w.]+, llvmlite 0[\w.]+", BACKEND.version())


def loaded(along: tuple[int, int, int], joined: int, units: int) -> CpuKernel:
    executable = built()
    return CpuKernel(
        replace(executable, facts={**executable.facts, "max_joined_along": along, "max_joined": joined}), units
    )


@pytest.mark.parametrize(
    ("along", "joined", "grid", "units", "expected"),
    [
        ((64, 1, 1), 64, (100000, 1, 1), 2, (64, 1, 1)),
        ((64, 64, 1), 64, (100000, 16, 1), 2, (4, 16, 1)),  # the last axis first
        ((2, 2, 1), 4, (2, 2, 1), 8, (1, 1, 1)),  # small grids are not joined: workers would idle
        ((64, 1, 1), 64, (100, 1, 1), 2, (32, 1, 1)),
        ((1, 1, 1), 1, (7, 3, 2), 2, (1, 1, 1)),
    ],
)
def test_how_many_blocks_are_joined(
    along: tuple[int, int, int], joined: int, grid: tuple[int, int, int], units: int, expected: tuple[int, int, int]
) -> None:
    assert loaded(along, joined, units).joins(grid) == expected


class Recorder:
    """A stream that keeps what it is given."""

    threads = 1

    def __init__(self) -> None:
        self.calls: list[tuple[object, int, int]] = []

    def parallel_for(self, body: object, count: int, grain: int) -> None:
        self.calls.append((body, count, grain))


def test_a_launch_enqueues_once_and_does_not_wait() -> None:
    y = np.zeros(64, np.float32)
    stream = Recorder()
    kernel = loaded((64, 1, 1), 64, 2)
    kernel.launch((1, 1, 1), [y.ctypes.data, 64, 2.0, y.ctypes.data, 64, 1, 1, 1], stream)  # type: ignore[arg-type]
    ((_, count, grain),) = stream.calls
    assert (count, grain) == (1, 1)
    assert not y.any()


def test_gemm_asks_for_blas_and_scratch() -> None:
    facts = source(GEMM, gemm_types(128, 256), BK=64).facts
    assert facts["functions"] == ("sgemm",)
    assert facts["scratch"] == (256 * 512 * 4, 256 * 192 * 4, 192 * 512 * 4)
