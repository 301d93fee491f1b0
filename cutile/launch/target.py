"""Backend and target of a launch: the device's own, or those of a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from cuda_async import Device
from cutile import config
from cutile.backend.interface import Target
from cutile.backend.registry import BACKENDS, target_for, target_named
from cutile.errors import UnsupportedTargetError

INTERPRET = "interpret"
"""Stands for a backend's name in `use_backend`: the kernel's function runs as plain Python."""

_chosen: ContextVar[str | None] = ContextVar("cutile_backend", default=INTERPRET if config.load().interpret else None)
_targets: dict[str | None, dict[Device, Target]] = {}


def use_backend(name: str) -> AbstractContextManager[None]:
    """Compile kernels called in the `with` block by this backend.

    Args:
        name: "cpu", "cuda", or "reference", which walks kernels with NumPy on the CPU. A launch on a device that the
            backend does not run on is refused.

    Raises:
        UnsupportedTargetError: there is no such backend.

    Example:
        >>> import cutile as ct
        >>> y = ct.api.ones((4,)).sync()
        >>> @ct.entry
        ... def double(y: ct.Mut):
        ...     y.store(y.load() * 2)
        >>> with ct.use_backend("reference"):
        ...     double(y.partition((4,))).first().unpartition().to_numpy().sync()
        array([2., 2., 2., 2.], dtype=float32)
    """
    if name not in BACKENDS and name != INTERPRET:
        raise UnsupportedTargetError(f"no backend {name!r}; there are {', '.join(BACKENDS)}")
    return _using(name)


@contextmanager
def _using(name: str) -> Generator[None]:
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def interpret() -> AbstractContextManager[None]:
    """Run kernels called in the `with` block as plain Python, block by block.

    Breakpoints and `print` work in them. `inspect` and `explain` still show the stages of the device's own backend.

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
    return _using(INTERPRET)


chosen_backend: Callable[[], str | None] = _chosen.get
"""The backend of the current `with` block, or `INTERPRET`; None for each device's own."""


def target_of(device: Device, backend: str | None, arch: str | None = None) -> Target:
    """The target of launches on `device`.

    Args:
        device: where the launch runs.
        backend: the backend's name; None for the device's own.
        arch: an architecture, such as "sm_90a". It determines the backend: `device` and `backend` do not count then.

    Raises:
        UnsupportedTargetError: the backend cannot run on the device, or does not know the architecture.
    """
    if arch is not None:
        return target_named(arch)
    targets = _targets.setdefault(backend, {})
    target = targets.get(device)
    if target is None:
        target = targets[device] = target_for(device.kind, device.arch, device.multiprocessor_count, backend)
    return target


def shown_target(device: Device, backend: str | None, arch: str | None = None) -> Target:
    """The target for which a launch's stages are shown.

    For an interpreted launch, it is the device's own.
    """
    return target_of(device, None if backend == INTERPRET else backend, arch)
