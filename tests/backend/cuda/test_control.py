"""The samples of control flow for GPUs, without one: as machine code, and as generated text that Python runs."""

from __future__ import annotations

import numpy as np
import pytest

from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.ops import Store
from cutile.dtypes import f32, i32
from cutile.errors import IRError
from cutile.ir.core import Function
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.programs import compiled, lowered, source
from tests.backend.cuda.simulated import run
from tests.backend.cuda.test_compile import ARCHITECTURES, assert_clean
from tests.language.test_control_flow import KERNEL, SINGLETONS, meant
from tests.samples.control import SAMPLES
from tests.support.kernels import define
from tests.support.programs import mut, program, scalar, tensor


def all_in_one(names: list[str]) -> Function:
    """A kernel that applies one sample after another: each is inlined, so that one compilation serves many."""
    functions = {f"f_{name}": define(SAMPLES[name].text, __name__=__name__) for name in names}
    calls = "".join(f"    t = f_{name}(t, n, m)\n" for name in names)
    text = (
        "def kernel(out: Mut, x: Tensor, n: i32, m: i32):\n"
        f"    t = ct.load_tile_like(x, out)\n{calls}    out.store(t)\n"
    )
    types = {"out": mut(256, dtype=i32), "x": tensor(1, i32), "n": scalar(i32), "m": scalar(i32)}
    return run_passes(program(text, types, functions))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_samples_compile_clean(arch: str) -> None:
    names = list(SAMPLES)[ARCHITECTURES.index(arch) :: len(ARCHITECTURES)]
    assert_clean(compiled(all_in_one(names), arch))


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "matrix_product"])  # simulated: one axis alone
def test_the_generated_file_does_what_python_does(name: str) -> None:
    sample = SAMPLES[name]
    types = {"out": mut(8, dtype=i32), "x": tensor(1, i32), "n": scalar(i32), "m": scalar(i32)}
    text = source(run_passes(program(sample.text + KERNEL, types, {"__name__": __name__}))).text
    for n, m in sample.calls:
        x = np.arange(-3, 5, dtype=np.int32)
        np.testing.assert_array_equal(
            run(text, "sample", x, n, m), meant(sample.text, x, n, m), f"n={n}, m={m}\n{text}"
        )


def test_true_false_and_none_as_patterns() -> None:
    types = {"out": mut(8, dtype=i32), "x": tensor(1, i32), "n": scalar(i32), "m": scalar(i32)}
    text = source(run_passes(program(SINGLETONS + KERNEL, types, {"__name__": __name__}))).text
    x = np.arange(-3, 5, dtype=np.int32)
    for n, m in ((0, 3), (5, 2), (-3, 7), (1, 1)):
        np.testing.assert_array_equal(run(text, "sample", x, n, m), meant(SINGLETONS, x, n, m, int), f"{n=}, {m=}")


CARRIED = """
def kernel(out: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, out)
    i = 0
    HEAD
        t = t + t
        i = i * 2 + 1
    out.store(t)
"""


@pytest.mark.parametrize("head", ["for _ in range(n):", "while i < n:"])
def test_a_tile_that_a_loop_carries_is_stored_in_its_layout(head: str) -> None:
    types = {"out": mut(8, 64, dtype=f32), "x": tensor(2, f32), "n": scalar(i32)}
    function = lowered(run_passes(program(CARRIED.replace("HEAD", head), types)))
    assert check_layouts(function) == 4  # the sum's operands, the loop's end, and the store
    (store,) = (op for op in function.walk() if isinstance(op, Store))
    store.attributes["layout"] = "another"
    with pytest.raises(IRError, match=r"cuda\.store takes t to lie as another, it lies as tile_8x64"):
        check_layouts(function)
