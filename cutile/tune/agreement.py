"""Whether configurations compute the same.

Sums in another order may differ by roundings, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike
from cutile.tune.memory import Bytes
from cutile.tune.space import Config

__all__ = ("Agreement", "DisagreementWarning", "Output", "difference", "tolerance")

_PIECE = 1 << 20  # elements that are compared at once, in float64

_TOLERANCE = {64: 1e-8, 32: 2e-3, 16: 2e-2, 8: 0.25}
"""By the bits of a float: how far results may be apart, relative to the larger of an element and the root mean square
of all. It is wide: it tells a wrong kernel from one that adds up in another order, and no more."""

_BF16 = 5e-2


class DisagreementWarning(UserWarning):
    """Some configurations compute another result than most, and are not used."""


@dataclass(frozen=True)
class Output:
    """What a kernel writes of one argument.

    Attributes:
        name: the argument.
        dtype: the element type.
        strides, shape: in elements, of the tensor; `offset` elements lie before the first.
        offset: elements before that of index 0.
    """

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def elements(self, data: Bytes) -> np.ndarray[Any, Any]:
        """The elements in the bytes that a tensor occupies."""
        kind = self.dtype.numpy
        strides = tuple(stride * kind.itemsize for stride in self.strides)
        return np.ndarray(self.shape, kind, data, self.offset * kind.itemsize, strides)


def tolerance(dtype: DTypeLike) -> float | None:
    """How far elements may be apart; None where they must be the same bits."""
    if dtype.numpy.kind not in "fV":  # "V": the floats that NumPy itself does not have
        return None
    return _BF16 if dtype.name == "bf16" else _TOLERANCE.get(dtype.bits)


def difference(output: Output, first: Bytes, second: Bytes) -> str | None:
    """The first element in which two results differ by more than roundings, as words.

    None where none does.
    """
    if first.tobytes() == second.tobytes():
        return None
    left, other = output.elements(first), output.elements(second)
    allowed = tolerance(output.dtype)
    different = (left != other).reshape(-1) if allowed is None else _apart(left, other, allowed)
    if not different.any():
        return None
    index = tuple(int(each) for each in np.unravel_index(int(different.argmax()), left.shape))
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{output.name}{place} is {left[index]} in place of {other[index]}"


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], allowed: float) -> np.ndarray[Any, Any]:
    """Where two arrays of floats differ by more than is allowed, in row-major order."""
    left, right = one.reshape(-1), other.reshape(-1)
    squares, count = 0.0, 0
    for start in range(0, right.size, _PIECE):
        piece = right[start : start + _PIECE].astype(np.float64)
        piece = piece[np.isfinite(piece)]
        squares, count = squares + float(np.square(piece).sum()), count + piece.size
    scale = (squares / count) ** 0.5 if count else 0.0
    apart = np.zeros(left.size, np.bool_)
    for start in range(0, left.size, _PIECE):
        a, b = (each[start : start + _PIECE].astype(np.float64) for each in (left, right))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= allowed * np.maximum(np.abs(b), scale)
        apart[start : start + _PIECE] = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return apart


@dataclass
class _Group:
    """Configurations that agree.

    Attributes:
        results: what the first of them computed, one for each output.
        configs: all of them.
    """

    results: Sequence[Bytes]
    configs: list[Config]


@dataclass
class Agreement:
    """The results of configurations, by what they agree on.

    Attributes:
        outputs: what is compared.
    """

    outputs: Sequence[Output]
    _groups: list[_Group] = field(default_factory=list[_Group])

    def add(self, config: Config, results: Sequence[Bytes]) -> None:
        """Note what a configuration computed."""
        for group in self._groups:
            if self._difference(results, group.results) is None:
                group.configs.append(config)
                return
        self._groups.append(_Group(results, [config]))

    def _difference(self, results: Sequence[Bytes], others: Sequence[Bytes]) -> str | None:
        for output, one, other in zip(self.outputs, results, others, strict=True):
            words = difference(output, one, other)
            if words is not None:
                return words
        return None

    @property
    def decided(self) -> bool:
        """Whether more configurations agree with one another than any others do."""
        sizes = sorted((len(group.configs) for group in self._groups), reverse=True)
        return len(sizes) < 2 or sizes[0] > sizes[1]

    @property
    def agreeing(self) -> list[Config]:
        """The largest group."""
        return max(self._groups, key=lambda group: len(group.configs)).configs if self._groups else []

    def differing(self) -> dict[Config, str]:
        """Each configuration of a smaller group, with the first differing element."""
        if not self._groups:
            return {}
        most = max(self._groups, key=lambda group: len(group.configs))
        return {
            config: self._difference(group.results, most.results) or ""
            for group in self._groups
            if group is not most
            for config in group.configs
        }
