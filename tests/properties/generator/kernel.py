"""A random kernel: its text, its arguments, and how it is launched. Printed, it is read back by `read`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import cutile as ct
from cutile import CompileOptions
from cutile.dtypes import DTYPES, STORAGE_DTYPES, DTypeLike
from cutile.entry import Kernel
from cutile.launch.kernel_op import KernelOp
from tests.properties.generator.arguments import Argument, Input, Output, Pointer, Scalar, Tensors
from tests.support.kernels import define

HELPERS = """
def twice(t, by=2):
    if by > 2:
        return t + t + t
    return t + t


def larger(s, t):
    return max(s, t), min(s, t)


"""


@dataclass(frozen=True)
class RandomKernel:
    """A kernel to be launched.

    Attributes:
        body: the lines of the function `k`, indented.
        arguments: in the order of its parameters.
        grid: of the launch, where the arguments leave it open.
        seed: of the arguments' values.
        unsafe: whether the kernel may use addresses.
        warps: that a tile block is asked to have.
        exact: whether every backend computes the same, to the last bit.
    """

    body: str
    arguments: tuple[Argument, ...]
    seed: int
    grid: tuple[int, ...] = ()
    unsafe: bool = False
    warps: int | None = None
    exact: bool = False

    @property
    def dtype(self) -> DTypeLike:
        """What the kernel computes in."""
        return self.arguments[0].dtype

    @property
    def text(self) -> str:
        """The kernel and what it calls."""
        parameters = ", ".join(f"{each.name}: {each.annotation}" for each in self.arguments)
        helpers = HELPERS if "twice(" in self.body or "larger(" in self.body else ""
        return f"{helpers}def k({parameters}):\n{self.body}"

    def __str__(self) -> str:
        named = ("arguments", "seed", "grid", "unsafe", "warps", "exact")
        return f"# {', '.join(f'{name}={getattr(self, name)}' for name in named)}\n{self.text}"

    def kernel(self) -> Kernel:
        """The kernel, made afresh."""
        return ct.entry(unsafe=self.unsafe)(define(self.text))

    def launch(self, kernel: Kernel) -> tuple[KernelOp, dict[str, Any]]:
        """An op of `kernel()` on the default device, and the tensors that it writes, by the parameter's name."""
        rng = np.random.default_rng(self.seed)
        places = [each.place(rng) for each in self.arguments]
        op = kernel(*(place.passed for place in places))
        if self.grid:
            op = op.grid(self.grid)
        if self.warps is not None:
            op = op.compile_options(CompileOptions(num_worker_warps=self.warps))
        named = zip(self.arguments, places, strict=True)
        return op, {each.name: place.written for each, place in named if place.written is not None}


def read(text: str) -> RandomKernel:
    """The kernel that was printed as `text`."""
    head, _, rest = text.strip().partition("\n")
    known: dict[str, Any] = {repr(each): each for each in (*DTYPES, *STORAGE_DTYPES)}
    known |= {each.__name__: each for each in (Input, Output, Pointer, Scalar, Tensors)}
    fields = eval(f"dict({head.removeprefix('#')})", known)
    return RandomKernel(body=rest.partition("def k(")[2].partition("\n")[2] + "\n", **fields)
