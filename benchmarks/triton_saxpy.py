# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# (the peers ship no types)
"""saxpy in Triton, for comparison, in a file of its own because Triton reads its kernels' source from the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


@triton.jit
def _saxpy(y, a, x, n, BLOCK: tl.constexpr):  # no annotations: Triton reads them, and does not know ours
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, a * tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def launcher(y: Any, x: Any) -> Callable[[], object]:
    """A function that launches it on two torch tensors."""
    extent = y.numel()
    return lambda: _saxpy[(1,)](y, 0.0, x, extent, BLOCK=1024)
