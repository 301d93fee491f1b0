"""Tensors described in a few characters, for compiling without any: `f16[64,64]`, `f32[64,32]/(16,16)`, `f16[8,4].T`.

ELEMENTS [ EXTENTS ] [ .T ] [ / ( TILE ) ]
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cutile.compile.facts import Fact, TensorFacts, layout_class
from cutile.dtypes import as_dtype
from cutile.errors import ArgumentError
from cutile.frontend.parameters import Parameter
from cutile.frontend.signature import Signature

_FORM = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](?P<transposed>\.T)?(?:/\((?P<tile>[\d,\s]+)\))?")
EXAMPLE = "x=f16[4096,4096] for a tensor, y=f32[64,32]/(16,16) for a partition, z=f16[64,32].T for a transposed view"


def read_facts(signature: Signature, given: Mapping[str, str]) -> list[Fact]:
    """What specialization would know of the arguments that `given` describes.

    Raises:
        ArgumentError: a tensor is not described, or not so that it can be understood; says how. Or the kernel takes
            groups of tensors.
    """
    unknown = given.keys() - set(signature.names)
    if unknown:
        raise ArgumentError(f"{signature.name} has no parameter {min(unknown)!r}; it has {', '.join(signature.names)}")
    if signature.grouped:
        raise ArgumentError(
            f"{signature.name} takes groups of tensors, which --arg cannot describe: call kernel.inspect(...) in "
            "Python, with tensors of api.meta"
        )
    return [None if each.kind == "scalar" else _tensor(each, given.get(each.name)) for each in signature.parameters]


def _tensor(parameter: Parameter, text: str | None) -> TensorFacts:
    if text is None:
        raise ArgumentError(f"say what {parameter.name!r} is, with --arg: {EXAMPLE}")
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ArgumentError(f"--arg {parameter.name}={text}: expected the form of {EXAMPLE}")
    try:
        dtype = as_dtype(found["dtype"])
    except TypeError as error:
        raise ArgumentError(f"--arg {parameter.name}={text}: {error}") from None
    shape, tile = _numbers(found["shape"]), _numbers(found["tile"] or "")
    if (parameter.kind == "mut") != bool(tile):
        wanted = "a partition: add its tile, as in /(16,16)" if parameter.kind == "mut" else "a tensor, without a tile"
        raise ArgumentError(f"--arg {parameter.name}={text}: {parameter.name!r} takes {wanted}")
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    if found["transposed"]:
        shape, strides = shape[::-1], strides[::-1]
    layout = layout_class(dtype, shape, tuple(strides), 0)
    return TensorFacts(layout.tiled(shape, tile) if tile else layout, shape)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each.strip())
