"""The cases of `python -m kernels bench`, by name, so that a short run can take a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Operand = Literal["bf16", "f16", "f32", "tf32", "fp8", "int8"]

TOLERANCE: dict[Operand, float] = {"bf16": 4e-3, "f16": 1e-3, "f32": 1e-5, "tf32": 1e-3, "fp8": 4e-3, "int8": 0.0}
"""The allowed error, relative to the result in Frobenius norm: rounding of the result's type, and of the sums."""
FAST_TOLERANCE = 6e-3
"""The allowed error of products of 8-bit floats whose sums are left to the tensor cores. With K = 8192, 2.6e-3 was
measured, and four times as much in the worst row."""


@dataclass(frozen=True)
class Product:
    """One case.

    Attributes:
        name: on the command line.
        m, n, k: extents: (m, k) by (k, n).
        operand: element type of the operands. The result has the same, except for fp8 (bf16) and int8 (int32).
        stored: how the right operand lies in memory: by rows ("kn"), or transposed ("nk").
        batch: the number of products at once; 0 for a single product without a batch axis.
        graph: whether 20 of them are timed as a CUDA graph, on inputs that rotate. If a product is shorter than its
            launch, this measures the device's time.
        devices: kinds of device that it is run on by default.
        promoted: whether partial sums of 8-bit floats are added in f32 every few steps, and not left to the tensor
            cores, which keep fewer bits.
    """

    name: str
    m: int
    n: int
    k: int
    operand: Operand
    stored: Literal["kn", "nk"] = "kn"
    batch: int = 0
    graph: bool = False
    devices: tuple[str, ...] = ("cuda",)
    promoted: bool = False

    @property
    def fast(self) -> bool:
        """Whether sums are left to tensor cores that keep fewer bits."""
        return self.operand == "fp8" and not self.promoted

    @property
    def flops(self) -> int:
        """Operations: multiplications and additions."""
        return 2 * max(self.batch, 1) * self.m * self.n * self.k

    @property
    def tolerance(self) -> float:
        """The largest error, as `TOLERANCE`."""
        return FAST_TOLERANCE if self.fast else TOLERANCE[self.operand]

    @property
    def nbytes(self) -> int:
        """Bytes, each operand read once and the result written once."""
        size = {"fp8": 1, "int8": 1, "bf16": 2, "f16": 2}.get(self.operand, 4)
        out = {"fp8": 2, "int8": 4}.get(self.operand, size)
        return max(self.batch, 1) * ((self.m + self.n) * self.k * size + self.m * self.n * out)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch else ""
        sums = ", sums in f32" if self.promoted else ", fast sums" if self.fast else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.operand}, B stored {self.stored.upper()}{sums}"


def _square(size: int, operand: Operand, stored: Literal["kn", "nk"] = "kn", *, graph: bool = False) -> Product:
    name = f"{operand}-{size}" + ("-nk" if stored == "nk" else "")
    return Product(name, size, size, size, operand, stored, graph=graph)


CASES: tuple[Product, ...] = (
    *(
        _square(size, operand, stored)
        for size in (4096, 8192, 16384)
        for operand in ("bf16", "f16")
        for stored in ("kn", "nk")
    ),
    *(_square(size, operand, graph=True) for size in (512, 1024, 2048) for operand in ("bf16", "f16")),
    Product("bf16-short-k", 8192, 8192, 512, "bf16"),
    *(Product(f"bf16-m{m}", m, 8192, 8192, "bf16", graph=True) for m in (1, 16, 64, 128)),
    Product("bf16-deep", 512, 512, 8192, "bf16", graph=True),
    Product("bf16-few-deep", 16, 1024, 8192, "bf16", graph=True),
    Product("bf16-odd", 777, 1000, 333, "bf16", graph=True),
    Product("bf16-batched", 1024, 1024, 1024, "bf16", batch=64),
    _square(8192, "tf32"),
    _square(8192, "tf32", "nk"),
    _square(8192, "fp8", "nk"),
    Product("fp8-promoted-nk", 8192, 8192, 8192, "fp8", "nk", promoted=True),
    _square(8192, "int8"),
    _square(8192, "int8", "nk"),
    _square(8192, "f32"),
    Product("f32-2048", 2048, 2048, 2048, "f32", devices=("host", "cuda")),
)


def chosen(patterns: Sequence[str] | None, kind: str) -> list[Product]:
    """The cases that match any of the patterns (`bf16-4096*`); without any, those for this kind of device.

    Raises:
        ValueError: a pattern matches none; the message lists the names.

    Example:
        >>> [case.name for case in chosen(["bf16-m1*"], "cuda")]
        ['bf16-m1', 'bf16-m16', 'bf16-m128']
    """
    if patterns is None:
        return [case for case in CASES if kind in case.devices]
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in CASES):
            raise ValueError(f"no case is called {pattern!r}; there are {', '.join(case.name for case in CASES)}")
    return [case for case in CASES if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
