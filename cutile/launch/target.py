"""Which backend compiles a launch: the device's usual one, or one chosen for a `with` block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from cuda_async import Device
from cutile.backend.interface import Target
from cutile.backend.registry import target_for

_chosen: ContextVar[str | None] = ContextVar("cutile_backend", default=None)
_targets: dict[tuple[Device, str | None], Target] = {}


@contextmanager
def use_backend(name: str) -> Generator[None]:
    """Compile kernels called in the `with` block by this backend: "reference" walks them with NumPy on the CPU.

    Example:
        >>> import cutile as ct
        >>> y = ct.api.ones((4,)).sync()
        >>> @ct.entry
        ... def double(y: ct.Mut):
        ...     y.store(y.load() * 2)
    """
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen_backend() -> str | None:
    """The backend chosen for the current `with` block, if any."""
    return _chosen.get()


def target_of(device: Device, backend: str | None, arch: str | None = None) -> Target:
    """What to compile for on `device`; another `arch`, such as "sm_90a", names its own backend.

    Raises:
        UnsupportedTargetError: the backend cannot run on the device, or does not know the architecture.
    """
    if arch is not None:
        return target_for("cuda" if arch.startswith("sm_") else "host", arch, 0)
    found = _targets.get((device, backend))
    if found is None:
        found = target_for(device.kind, device.arch, device.multiprocessor_count, backend)
        _targets[device, backend] = found
    return found
