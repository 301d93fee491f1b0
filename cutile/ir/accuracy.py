"""`Accuracy`: how far a backend may be from the exact result. Data: tests hold every backend to it, pages print it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """The largest error of a float result, in units in the last place of the dtype, measured against the exact value.

    0.5 is a result rounded correctly to nearest. f16 and bf16 are computed in f32 and rounded once: a little above
    0.5. Integers and bools have no error, ever.

    Attributes:
        f16, bf16, f32, f64: the bound for each dtype.
        note: what the figure leaves open, in a few words.

    Example:
        >>> Accuracy(f32=2.0, f64=1.0).of("f32"), CORRECT.of("f64"), CORRECT.of("i32")
        (2.0, 0.5, 0.0)
    """

    f16: float = 0.501
    bf16: float = 0.501
    f32: float = 0.5
    f64: float = 0.5
    note: str = ""

    def of(self, dtype: str) -> float:
        """The bound for a dtype by name; 0 for integers and bools."""
        bounds = {"f16": self.f16, "bf16": self.bf16, "f32": self.f32, "f64": self.f64}
        return bounds.get(dtype, 0.0)


CORRECT = Accuracy(f16=0.5, bf16=0.5)
"""Rounded correctly, in every dtype."""
