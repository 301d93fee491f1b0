"""Name to backend, device to target.

The only file that names the siblings; each is imported when first asked for.
"""

from __future__ import annotations

import importlib
import re
from typing import Final, Literal, NamedTuple

from cutile.backend.interface import Backend, Target
from cutile.errors import UnsupportedTargetError


class Row(NamedTuple):
    """The facts of a backend that are known before it is imported.

    Attributes:
        module: the module with its manifest, `BACKEND`.
        devices: the kinds of devices that its code runs on.
        architectures: a regular expression for the names of architectures that it compiles for without a device.
        example: one of these architectures, for messages and trials.
    """

    module: str
    devices: tuple[Literal["cuda", "host", "sim"], ...]
    architectures: str
    example: str


BACKENDS: Final[dict[str, Row]] = {
    "reference": Row("cutile.backend.reference.backend", ("host", "sim"), "reference", "reference"),
    "cpu": Row("cutile.backend.cpu.backend", ("host", "sim"), "cpu", "cpu"),
    "cuda": Row("cutile.backend.cuda.backend", ("cuda",), r"sm_\d+a?", "sm_90a"),
}
FOR_DEVICE: Final[dict[str, str]] = {"cuda": "cuda", "host": "cpu", "sim": "reference"}
"""The backend that compiles for each kind of device, unless a user chooses another."""

DEVICE_WORDS: Final[dict[str, str]] = {"cuda": "a GPU", "host": "the CPU", "sim": "a simulated device"}
_loaded: dict[str, Backend] = {}


def row_of(name: str) -> Row:
    """The facts of the backend of this name.

    Raises:
        UnsupportedTargetError: no backend has this name.
    """
    if name not in BACKENDS:
        raise UnsupportedTargetError(f"no backend {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def backend(name: str) -> Backend:
    """The backend of this name.

    Raises:
        UnsupportedTargetError: no backend has this name.
    """
    manifest = _loaded.get(name)
    if manifest is None:
        manifest = _loaded[name] = importlib.import_module(row_of(name).module).BACKEND
    return manifest


def target_for(kind: str, arch: str, units: int, override: str | None = None) -> Target:
    """The target to compile for, for a device of this kind and architecture.

    Args:
        kind: the device's kind: "cuda", "host" or "sim".
        arch: the architecture that the device reports.
        units: its multiprocessors or cores.
        override: a backend to use instead of the device's usual one: "reference" runs on "host" and "sim".

    Raises:
        UnsupportedTargetError: the chosen backend cannot run on such a device.
    """
    name = override or FOR_DEVICE[kind]
    row = row_of(name)
    if kind not in row.devices:
        raise UnsupportedTargetError(
            f"the backend {name!r} cannot run on {DEVICE_WORDS[kind]}, where the tensors are; leave out use_backend, "
            f"and the device's own is taken (inspect(..., arch={row.example!r}) needs no device)"
        )
    return backend(name).target(arch, units)


def target_named(arch: str) -> Target:
    """The target of an architecture, without a device.

    Architectures are "cpu", "reference", or a GPU's such as "sm_90a".

    Raises:
        UnsupportedTargetError: nothing compiles for it.
    """
    name = backend_of(arch)
    if name is not None:
        return backend(name).target(arch, 0)
    raise UnsupportedTargetError(
        f"nothing compiles for {arch!r}; expected cpu, reference, or a GPU's architecture such as sm_80 or sm_90a"
    )


def backend_of(arch: str) -> str | None:
    """The name of the backend that compiles for an architecture; None where none does."""
    return next((name for name, row in BACKENDS.items() if re.fullmatch(row.architectures, arch)), None)


def title_of(target: Target) -> str:
    """The name of a target for people.

    It is the architecture if `target_named` takes it, else the backend.
    """
    return target.arch if backend_of(target.arch) == target.backend else target.backend
