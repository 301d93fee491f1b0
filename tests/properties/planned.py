"""What the CUDA backend makes of a random kernel, without a GPU: its plan, and what the models say of it."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cutile import config
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Roles
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.driver import front, machine_code
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.executed import execute
from tests.backend.cuda.staged import run_lowered
from tests.properties.around import may_be_too_large
from tests.properties.generator import RandomKernel
from tests.properties.generator.arguments import Input, Output, Scalar
from tests.support.devices import on

Array = np.ndarray[Any, Any]
PIPELINES, RING, PLAIN, TOO_LARGE = "pipelines", "ring", "plain", "too large"
"""The plans: warps that load and warps that multiply; one group with a ring of copies; operands through registers.
Tiles may be more than registers or shared memory hold."""
SPILLS = ((0, "none"), (64, "up to 64"), (512, "up to 512"), (2**30, "more"))
"""How many bytes a kernel may spill, and what is said of it then."""
SCARCE = "C7512"
"""The linker's remark that there are too few registers for two products at a time: slow, and no fault of the order."""
MODELS = "models"
"""What stands for a backend where a kernel is lowered for sm_90a, and proved."""


@dataclass(frozen=True)
class Lowered:
    """A kernel for an architecture.

    Attributes:
        before: the backend's own passes.
        after: them; None where its tiles are too large.
        options: what was asked for.
    """

    before: Function
    after: Function | None
    options: CompileOptions

    @property
    def plan(self) -> str:
        """Which plan it has."""
        return TOO_LARGE if self.after is None else plan_of({op.name for op in self.after.walk()})

    @property
    def about(self) -> dict[str, str]:
        """Its plan, and why it has no pipelines."""
        refused = dict(self.after.facts.get("refused", ())) if self.after is not None else {}
        why = {"no pipelines": re.sub(r"\d+", "N", refused["pipelines"])} if "pipelines" in refused else {}
        return {"plan": self.plan, **why}


def plan_of(lowered: Container[str]) -> str:
    """The plan of a lowered kernel, by its text or by the names of its operations."""
    marks = {"cuda.roles": PIPELINES, "cuda.staged_mma": RING}
    return next((plan for mark, plan in marks.items() if mark in lowered), PLAIN)


def lower(case: RandomKernel, arch: str = "sm_90a") -> Lowered:
    """A kernel, lowered for a GPU that need not be there."""
    target = Target("cuda", arch)
    with on("reference"):
        kernel = case.kernel()
        op, _ = case.launch(kernel)
        op.discard()
    *_, plan = kernel.cache.plans.values()  # the one with options, where there are any
    request = plan.request(target)
    function = run_passes(front(request).function)
    lowered = None
    with may_be_too_large():
        lowered = BACKEND.lower(function, target, request.options)
        # Launches of few tile blocks have the kernel compiled anew, with their tile blocks in pieces.
        _, ways = lowered.facts.get("division", ("", ()))
        for *_, pieces in ways:
            prove(BACKEND.lower(function, target, replace(request.options, num_pieces=pieces)))
    return Lowered(function, lowered, request.options)


def executed(case: RandomKernel, function: Function, blocks: int = 1, seed: int = 0) -> dict[str, Array]:
    """Run a lowered kernel of pipelines, or of one group, by NumPy; what the whole array of each output holds then.

    Raises:
        ProtocolError: its warps do what they must not.
    """
    random = np.random.default_rng(case.seed)
    bases: dict[str, Array] = {}
    arguments: list[Any] = []
    with on("reference"):
        for argument in case.arguments:
            if isinstance(argument, Scalar):
                arguments.append(argument.dtype.numpy.type(argument.value))
                continue
            assert isinstance(argument, Input)
            bases[argument.name] = argument.base(random).to_numpy().sync().copy()
            arguments.append(argument.look(bases[argument.name]))
    out = next(argument for argument in case.arguments if isinstance(argument, Output))
    tiles = [-(-extent // step) for extent, step in zip(out.shape, out.tile, strict=True)]
    x, y, z = (out.blocks, 1, 1) if out.map else (*tiles, 1, 1)[:3]
    if any(isinstance(op, Roles) for op in function.walk()):
        execute(function, arguments, (x, y, z), blocks, seed)
    else:
        run_lowered(function, arguments, (x, y, z))
    return {argument.name: bases[argument.name] for argument in case.arguments if isinstance(argument, Output)}


def compiled(lowered: Lowered, arch: str) -> dict[str, str]:
    """Have the toolchain compile a kernel; what it reports of its registers.

    Raises:
        AssertionError: the linker lets no two products of specialised warps overlap, with registers enough for them, or
            says anything else.
        CompilationError: the toolchain refuses what was generated.
    """
    if lowered.after is None:
        return {}
    target, options = Target("cuda", arch), lowered.options
    source = BACKEND.emit(lowered.after, target, options)
    facts = machine_code(lowered.before, source, target, options, BACKEND.build, config.load()).facts
    if lowered.plan != PIPELINES:
        return {}
    scarce = [remark for remark in facts["remarks"] if SCARCE in remark]
    others = [remark for remark in facts["remarks"] if SCARCE not in remark]
    assert not others, f"the linker says {others}"
    spills = int(facts["spills"])
    spilled = next(text for most, text in SPILLS if spills <= most)
    return {f"spilled bytes of {lowered.plan}": spilled, "products one by one for want of registers": str(bool(scarce))}


def prove(function: Function | None) -> None:
    """Check a lowered kernel by the models of pipelines, of stores and of layouts.

    Raises:
        IRError: it waits for ever, overwrites what is read, or takes a tile to lie where it does not.
    """
    if function is None:
        return
    verify(function)
    check_function(function)
    check_layouts(function)
