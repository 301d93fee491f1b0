"""`Drawer`: the choices drawn for one kernel, the names in scope, and the arguments that were asked for so far.

In the kernel, `t`, `u` and `y` are tiles as loaded, `at` is the index of the tile that is computed, `a` a number, and
`n` is 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import strategies as st

from cutile.dtypes import DTypeLike
from tests.properties.generator.arguments import Argument, Input

T = TypeVar("T")


@dataclass
class Drawer:
    """What the parts of the generator share.

    Attributes:
        draw: Hypothesis's.
        dtype: what is computed in.
        tile: the shape of the tiles that are computed.
        grid: how many tile blocks there are along each axis.
        x, z: the tensors that are read.
        store: writes the kernel's result, with {} in the value's place.
        load: reads it again.
        alone: whether `out` is the block's own tile, and `at` its place in the grid.
        unsafe_allowed: whether addresses may be used; `unsafe` says that they are.
        raw: tiles as loaded, without NaN: what comparisons are made on.
        names: variables.
        extra: further arguments.
        updates: the atomic operation that this kernel updates counts by.
        kinds: what expressions are made of.
    """

    draw: st.DrawFn
    dtype: DTypeLike
    tile: tuple[int, ...]
    grid: tuple[int, int, int]
    x: Input
    z: Input
    store: str = "out.store({})"
    load: str = "out.load()"
    alone: bool = True
    unsafe_allowed: bool = False
    unsafe: bool = False
    raw: tuple[str, ...] = ("t", "u", "y")
    names: tuple[str, ...] = ()
    extra: dict[str, Argument] = field(default_factory=dict[str, Argument])
    updates: str = ""
    kinds: dict[str, Callable[[Drawer, str, int], str]] = field(
        default_factory=dict[str, "Callable[[Drawer, str, int], str]"]
    )

    @property
    def rank(self) -> int:
        """How many axes tiles have."""
        return len(self.tile)

    @property
    def is_float(self) -> bool:
        """Whether floats are computed with."""
        return self.dtype.kind == "float"

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return self.draw(st.sampled_from(choices))

    def flip(self) -> bool:
        """True or False."""
        return self.draw(st.booleans())

    def number(self, least: int, most: int) -> int:
        """A number."""
        return self.draw(st.integers(least, most))

    def axis(self) -> int:
        """One of the tile's axes."""
        return self.number(0, self.rank - 1)

    def lowest(self) -> str:
        """What no value as loaded is below."""
        return "float('-inf')" if self.is_float else "0" if self.dtype.kind == "uint" else "-128"

    def kept(self, axis: int) -> str:
        """The tile's shape with 1 along an axis."""
        return str((*self.tile[:axis], 1, *self.tile[axis + 1 :]))

    def along(self, axis: int) -> str:
        """The shape with the tile's extent along one axis, and 1 along the others."""
        return str(tuple(each if k == axis else 1 for k, each in enumerate(self.tile)))

    def leaf(self) -> str:
        """A tile, or a number beside a tile."""
        numbers = ("a", "0.5", "2", "-1.25") if self.is_float else ("a", "3", "7", "1")
        return self.pick((*self.raw, *numbers, *self.names))

    def tile_leaf(self) -> str:
        """A tile."""
        return self.pick((*self.raw, *self.names))

    def condition(self) -> str:
        """A tile of bools, on which every backend agrees."""
        left, right = self.pick(self.raw), self.pick((*self.raw, "0", "1"))
        order = self.pick(("<", "<=", ">", ">=", "==", "!="))
        made = f"({left} {order} {right})"
        form = self.pick(("{}", "{}", "(~{})", "({} & (t > 0))", "({} | (u != y))", "({} ^ (y < 1))"))
        return form.format(made)

    def scalar_condition(self) -> str:
        """A scalar bool."""
        return self.pick((
            f"n > {self.number(0, 5)}",
            "n % 2 == 0",
            "n < 4 and n > 1",
            "not n == 3",
            "at[0] % 2 == 0",
            "1 < n <= 3",
            "(n, at[0]) == (3, 0)",
            "(at[0], n) in ((0, 3), (1, 2))",
            "n in (2, at[0])",
            "(n > 3 or at[0]) != 1",
        ))  # fmt: skip

    def expression(self, depth: int) -> str:
        """A tile of the kernel's dtype and shape."""
        if depth <= 0:
            return self.tile_leaf()
        kind = self.pick(tuple(self.kinds))
        tile = self.expression(depth - 1)
        return self.kinds[kind](self, tile, depth)

    def damped(self, text: str) -> str:
        """A value that a loop may carry around."""
        return f"ct.tanh({text})" if self.is_float else f"({text})"
