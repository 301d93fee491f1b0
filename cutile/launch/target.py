"""Which backend compiles a launch.

The device's usual one, or one chosen for a `with` block.
"""

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
"""In place of a backend's name: the kernel's function runs as plain Python."""

_chosen: ContextVar[str | None] = ContextVar("cutile_backend", default=INTERPRET if config.load().interpret else None)
_targets: dict[str | None, dict[Device, Target]] = {None: {}}


def use_backend(name: str) -> AbstractContextManager[None]:
    """Compile kernels called in the `with` block by this backend.

    "reference" walks them with NumPy on the CPU.

    Args:
        name: "reference", "cpu" or "cuda"; a launch is refused where the backend cannot run on its device.

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

    Breakpoints and `print` work in them.

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
"""The backend chosen for the current `with` block, if any."""


def target_of(device: Device, backend: str | None, arch: str | None = None) -> Target:
    """What to compile for on `device`.

    Another `arch`, such as "sm_90a", names its own backend.

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
