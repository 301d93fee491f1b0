"""Name to backend, device to target. The only file that names the siblings; each is imported when first asked for."""

from __future__ import annotations

import importlib
from typing import Final

from cutile.backend.interface import Backend, Target
from cutile.errors import UnsupportedTargetError

BACKENDS: Final[dict[str, str]] = {
    "reference": "cutile.backend.reference.backend",
    "cpu": "cutile.backend.cpu.backend",
    "cuda": "cutile.backend.cuda.backend",
}
FOR_DEVICE: Final[dict[str, str]] = {"cuda": "cuda", "host": "cpu", "sim": "reference"}
_loaded: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """The backend of this name.

    Raises:
        UnsupportedTargetError: there is none.
    """
    found = _loaded.get(name)
    if found is None:
        if name not in BACKENDS:
            raise UnsupportedTargetError(f"no backend {name!r}; there are {', '.join(BACKENDS)}")
        found = _loaded[name] = importlib.import_module(BACKENDS[name]).BACKEND
    return found


def target_for(kind: str, arch: str, units: int, chosen: str | None = None) -> Target:
    """What to compile for, for a device of this kind ("cuda", "host", "sim") and architecture.

    Args:
        kind: the device's kind.
        arch: what the device says its architecture is.
        units: its multiprocessors or cores.
        chosen: a backend to use instead of the device's usual one: "reference" runs on "host" and "sim".

    Raises:
        UnsupportedTargetError: the chosen backend cannot run on such a device.
    """
    name = chosen or FOR_DEVICE[kind]
    if (name == "cuda") != (kind == "cuda"):
        where = {"host": "the CPU", "cuda": "a GPU"}.get(kind, "a simulated device")
        raise UnsupportedTargetError(
            f"the backend {name!r} cannot run on {where}, where the tensors are; leave out use_backend, and the "
            "device's own is taken (without a GPU, inspect(..., arch='sm_90a') compiles for one)"
        )
    return backend(name).target(arch, units)


def target_named(arch: str) -> Target:
    """The target of an architecture, without a device: "sm_90a" and the like, or "cpu" or "reference".

    Raises:
        UnsupportedTargetError: nothing compiles for it.
    """
    if arch.startswith("sm_"):
        return backend("cuda").target(arch, 0)
    if arch in BACKENDS and arch != "cuda":
        return backend(arch).target("", 0)
    raise UnsupportedTargetError(
        f"nothing compiles for {arch!r}; expected cpu, reference, or a GPU's architecture such as sm_80 or sm_90a"
    )
