"""What a launch would be compiled to, for arguments that are looked at and not lent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_async import default_device
from cutile.backend.interface import CompileOptions
from cutile.errors import LaunchError
from cutile.launch.arguments import give_back, is_op
from cutile.launch.form import Form
from cutile.launch.target import chosen_backend, target_of


def inspected(
    form: Form,
    arguments: Sequence[Any],
    generics: Mapping[str, Any],
    options: CompileOptions,
    stage: str,
    arch: str | None,
) -> str:
    """The text of one stage of the compilation.

    Raises:
        ArgumentError, ArgumentTypeError, GenericsError: the arguments do not fit.
        LaunchError: an argument is an op that has not run, so its type is not known yet.
        ValueError: there is no such stage.
    """
    if any(map(is_op, arguments)):
        raise LaunchError(
            f"{form.name}: to inspect it, pass tensors rather than ops that have not run: .sync() yields them"
        )
    try:
        checked = [form.check(position, each) for position, each in enumerate(arguments)]
        uses = form.uses(checked)
        device = uses[0][1].device if uses else default_device()
        return form.plan(checked, generics, options).render(target_of(device, chosen_backend(), arch), stage)
    finally:
        give_back(arguments)
