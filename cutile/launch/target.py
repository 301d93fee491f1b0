"""Which backend compiles a launch: the device's usual one, or one chosen for a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from cuda_async import Device
from cutile import config
from cutile.backend.interface import Target
from cutile.backend.registry import target_for, target_named

INTERPRET = "interpret"
"""In place of a backend's name: the kernel's function runs as plain Python."""

_chosen: ContextVar[str | None] = ContextVar("cutile_backend", default=INTERPRET if config.load().interpret else None)
_targets: dict[str | None, dict[Device, Target]] = {None: {}}


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


@contextmanager
def interpret() -> Generator[None]:
    """Run kernels called in the `with` block as plain Python, block by block: breakpoints and `print` work in them.

    See `KernelOp.interpret`. `CUTILE_INTERPRET=1` does it for a whole process.

    Example:
        >>> import cutile as ct
        >>> @ct.entry
        ... def double(y: ct.Mut):
        ...     t = y.load()
        ...     print(t)
        ...     y.store(t * 2)
        >>> with ct.interpret():
        ...     _ = double(ct.api.arange(4, ct.i32).sync().partition((2,))).sync()
        [0 1]
        [2 3]
    """
    with use_backend(INTERPRET):
        yield


chosen_backend: Callable[[], str | None] = _chosen.get
"""The backend chosen for the current `with` block, if any."""


def target_of(device: Device, backend: str | None, arch: str | None = None) -> Target:
    """What to compile for on `device`; another `arch`, such as "sm_90a", names its own backend.

    Raises:
        UnsupportedTargetError: the backend cannot run on the device, or does not know the architecture.
    """
    if arch is not None:
        return target_named(arch)
    found = _targets.setdefault(backend, {}).get(device) if backend else _targets[None].get(device)
    if found is None:
        found = target_for(device.kind, device.arch, device.multiprocessor_count, backend)
        _targets[backend][device] = found
    return found
