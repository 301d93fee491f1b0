"""The plain numbers of a launch, one per parameter of the compiled kernel.

For a tensor map the tensor's place.

Which numbers those are is known when a kernel is compiled, so an expression is made for it once: a launch evaluates
`[c[0].address, c[0].shape[0], c[1], ..., g[2]]` in place of walking a description of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import index

from cutile.backend.interface import Argument, Parameter
from cutile.compile.driver import Compiled
from cutile.launch.arguments import Checked
from cutile.launch.generated import define
from cutile.launch.views import Grid

Number = Callable[[Sequence[Checked], Grid], Argument]
Numbers = Callable[[Sequence[Checked], Grid], list[Argument]]


def numbers_of(compiled: Compiled) -> Numbers:
    """What makes the numbers of a compiled kernel from checked arguments and a grid."""
    numbers = compiled.memo.get("numbers")
    if numbers is None:
        items = ", ".join(map(expression, compiled.executable.parameters))
        text = f"def pack(c, g):\n    return [{items}]\n"
        numbers = compiled.memo["numbers"] = define(f"pack numbers of {compiled.executable.entry}", text, {})
    return numbers


def expression(parameter: Parameter) -> str:
    """The number of one parameter, by the checked arguments `c` and the grid `g`."""
    # What stands in the text that is evaluated are numbers, whatever an executable holds: it may come from a file.
    axis, owner = index(parameter.axis), f"c[{index(parameter.argument)}]"
    by_kind = {
        "grid": f"g[{axis}]",
        "scalar": owner,
        "pointer": f"{owner}.address",
        "extent": f"{owner}.shape[{axis}]",
        "stride": f"{owner}.strides[{axis}]",
        "workspace": "0",  # the backend's business
        "report": "0",  # likewise
        "tensor_map": f"({owner}.address, {owner}.shape, {owner}.strides)",
    }
    return by_kind[parameter.kind]


@functools.cache
def number_of(parameter: Parameter) -> Number:
    """What makes the number of one parameter."""
    return define("pack one number", f"def pack(c, g):\n    return {expression(parameter)}\n", {})
