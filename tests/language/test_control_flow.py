"""Python in kernels: each sample means what Python makes of it on NumPy arrays, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile.errors import KernelTypeError
from tests.samples.control import SAMPLES
from tests.samples.control_sample import PLAIN
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

KERNEL = """

def sample(out: Mut, x: Tensor, n: i32, m: i32):
    out.store(f(ct.load_tile_like(x, out), n, m))
"""


def meant(text: str, x: Any, n: int, m: int, number: type[Any] = np.int32) -> Any:
    """What Python makes of it, with scalars of the class `number`."""
    scope: dict[str, Any] = {"ct": PLAIN, "__name__": __name__}
    exec(text, scope)
    with np.errstate(all="ignore"):
        return scope["f"](x.copy(), number(n), number(m))


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample(name: str, backend: str) -> None:
    sample = SAMPLES[name]
    compiled = kernel(sample.text + KERNEL, __name__=__name__)
    for n, m in sample.calls:
        x = np.arange(-3, 13, dtype=np.int32)
        out = np.full(16, 77, np.int32)
        launch(compiled, (out, (8,)), x, n, m, backend=backend)
        wanted = np.concatenate([meant(sample.text, x[:8], n, m), meant(sample.text, x[8:], n, m)])
        np.testing.assert_array_equal(out, wanted, err_msg=f"n={n}, m={m}")


SINGLETONS = """\
from __future__ import annotations

def f(x, n, m):
    def among(flag, none):
        k = 0
        match (flag, n, none):
            case (True, True | False | None, _):  # no number is one of them
                return 1
            case (True, _, None) | (False, _, 5):
                return 2
            case (False as no, _, 5 | None) if no is None:
                return 3
            case (False, -3, _):
                return 4
            case (True | False, k, _):
                k = k + 1
        return k
    def sign(flag):  # one of two cases returns, whatever the flag is
        match flag:
            case False if n == 5:
                return 5
            case True if m == 7:
                return 7
            case False:
                return -1
            case True:
                return 1
    x = x * sign(n > m)
    match n > 1:
        case False:
            x = x + 1
        case None:
            x = x * 0
        case True:
            x = x - 10
    match x:
        case None:
            x = x * 0
    match m:
        case True:
            x = x * 0
        case 1:
            x = x * 7
    return x * among(n < m, None) + among(n < m, 5) + (3 if n is not None else 0)
"""


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_true_false_and_none_as_patterns(backend: str) -> None:
    """With Python's own numbers: a bool of NumPy is not True, and one of a kernel is."""
    compiled = kernel(SINGLETONS + KERNEL, __name__=__name__)
    for n, m in ((0, 3), (5, 2), (-3, 7), (1, 1), (2, 1), (-3, -4)):
        x = np.arange(-3, 13, dtype=np.int32)
        out = np.full(16, 77, np.int32)
        launch(compiled, (out, (8,)), x, n, m, backend=backend)
        np.testing.assert_array_equal(out, meant(SINGLETONS, x, n, m, int), err_msg=f"n={n}, m={m}")


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("t = t if (n > 1) is True else t * 2", "`is` of a scalar"),
        ("t = t if n is not m else t * 2", "`is not` of a scalar"),
        ("match t > 1:\n        case True:\n            t = t * 2", "a pattern compares a scalar or a constant"),
    ],
)
def test_what_is_asked_of_a_tile_in_vain_is_refused(statement: str, words: str, backend: str) -> None:
    text = f"def wrong(out: Mut, x: Tensor, n: i32, m: i32):\n    t = ct.load_tile_like(x, out)\n    {statement}\n"
    out, x = np.zeros(8, np.int32), np.ones(8, np.int32)
    with pytest.raises(KernelTypeError, match=words):
        launch(kernel(text), (out, (8,)), x, 1, 2, backend=backend)
