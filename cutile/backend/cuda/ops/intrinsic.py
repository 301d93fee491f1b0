"""The intrinsic that an operation becomes, as a declaration.

`emit/generic.py` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intrinsic:
    """A function that a factory in `intrinsics/` makes, and the call of it.

        acquire = pipeline.acquire(stages=4, offset=0, nbytes=49152)  # once, at the top of the file
        acquire(counter)                                              # where the operation stands

    The factory takes `facts` by position. Keywords follow: where the operands that are resources lie, then the
    attributes, without those that have their default. The function takes the other operands in their order. The
    attributes `dtype` and `shape` describe a result: the factory learns of them by `facts` alone.

    Attributes:
        factory: module and function, "pipeline.acquire".
        facts: positional arguments of the factory. Each is one of "name", "dtype" (of the first operand, or the
            attribute), "result" (the result's dtype), "count" (elements per thread; 0 for a scalar), "layout",
            "source" and "panels", or the name of an attribute or of a resource. `=` behind it makes it a keyword.
        stem: the function's name in the file, with attributes in braces. The factory's own name if empty.
        call: arguments of the function, where these are not the operands in their order: operands, attributes that are
            names of parameters, or parameters of the kernel.
        pipeline: what the factory is told of a pipeline among the operands.
        omit: attributes that the factory does not take.
    """

    factory: str
    facts: tuple[str, ...] = ()
    stem: str = ""
    call: tuple[str, ...] = ()
    pipeline: tuple[str, ...] = ("stages", "offset")
    omit: tuple[str, ...] = ()
