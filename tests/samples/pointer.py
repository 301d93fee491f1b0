"""Elements at any indices. What is stored through addresses has tests of its own, in tests/language."""

from typing import Any

import numpy as np

from cutile.dtypes import bf16, f16, f32, f64, i8, i32, u64
from tests.samples.row import ANY, Row


def _reversed(x: Any, y: Any) -> Any:
    del x
    return y[::-1]


def _shifted(x: Any, y: Any) -> Any:
    return np.concatenate([np.zeros_like(y[:12]), y[:12]])


SOME = (f16, bf16, f32, f64, i8, i32, u64)


def _masked(x: Any, y: Any) -> Any:
    result = y.copy()
    for each in range(len(x)):
        if each % 3:
            result[each] = x[each]
    return result


ROWS = (
    Row("load_pointer", "ct.gather(y_in, 23 - ct.iota((24,)))", _reversed, ANY),
    Row("load_pointer", "ct.gather(y_in, ct.iota((24,)) - 12)", _shifted, SOME),
    Row(
        "load_pointer",
        "ct.gather(y_in, ct.iota((24,)), mask=ct.iota((24,)) % 3 == 0, padding_value=x)",
        _masked,
        SOME,
    ),
    Row(
        "tensor_address",
        "ct.gather(y_in, (5 - ct.iota((6,)).reshape((6, 1)), ct.iota((4,))))",
        lambda x, y: y[::-1],
        SOME,
        (6, 4),
    ),
    Row(
        "tensor_stride", "ct.gather(y_in, (2, ct.iota((6, 4)[1:]))) + x * 0", lambda x, y: x * 0 + y[2], (i32,), (6, 4)
    ),
)
