"""Functions of floats that are fused with others, and on scalars. Values are in `values.py`."""

import numpy as np

from cutile.dtypes import bf16, f32, f64
from tests.samples.row import Row

ROWS = (
    Row("tanh", "ct.tanh(x) * ct.tanh(x)", lambda x, y: np.tanh(x) ** 2, (f32, f64), ulps=8, domain="small"),
    Row("sqrt", "ct.sqrt(abs(x)) + ct.floor(y)", lambda x, y: np.sqrt(np.abs(x)) + np.floor(y), (f32,), domain="small"),
    Row(
        "exp2",
        "ct.exp2(x - ct.broadcast(ct.reduce_max(x, 0), (24,)))",
        lambda x, y: np.exp2(x.astype(np.float32) - x.astype(np.float32).max()).astype(x.dtype),
        (bf16, f32),
        ulps=3,
        domain="small",
    ),
)
