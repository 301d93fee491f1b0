"""What each backend needs to be installed, what is found of it, and what to do about what is not."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A distribution that a backend needs.

    Attributes:
        distribution: its name on PyPI.
        remedy: what to do where it is missing.
    """

    distribution: str
    remedy: str

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None


_COMPILER = "pip install -e . installs it with cutile"
_GPU = "pip install -e '.[cuda]' installs it"

NEEDS: dict[str, tuple[Need, ...]] = {
    "reference": (Need("numpy", _COMPILER), Need("ml-dtypes", _COMPILER)),
    "cpu": (Need("numba", _COMPILER), Need("llvmlite", _COMPILER)),
    "cuda": (
        Need("numba", _COMPILER),
        Need("numba-cuda", _GPU),
        Need("cuda-bindings", _GPU),
        Need("nvidia-nvvm", _GPU + "; or set CUDA_HOME to a CUDA toolkit that has it"),
        Need("nvidia-nvjitlink", _GPU + "; or set CUDA_HOME to a CUDA toolkit that has it"),
    ),
}


def missing(backend: str) -> tuple[Need, ...]:
    """What a backend needs and Python does not find."""
    return tuple(each for each in NEEDS.get(backend, ()) if each.version is None)


def smells_of_installation(error: BaseException) -> bool:
    """Whether a failure to compile looks like something missing, rather than like a fault in the kernel."""
    return isinstance(error, ImportError | OSError) or "NotFound" in type(error).__name__


def advice(backend: str) -> str:
    """What is installed for a backend and what to do, as lines for an error's note."""
    return "\n".join([*needed(backend), "`python -m cutile info` tries every backend and says more."])


def needed(backend: str) -> list[str]:
    """What a backend needs, what is found of it, and what to do about what is not: a line each."""
    lines = [f"What the backend {backend!r} needs:"]
    for each in NEEDS.get(backend, ()):
        found = each.version
        lines.append(f"  {each.distribution:18} {found if found else 'not found: ' + each.remedy}")
    return lines
