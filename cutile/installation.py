"""The distributions that each backend needs, and the way to install them."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_async.installed import install_command


@dataclass(frozen=True)
class Need:
    """A distribution that a backend needs.

    Attributes:
        distribution: its name on PyPI.
        extra: the extra that brings it; empty where cutile itself does.
        otherwise: another remedy, as the end of a sentence.
    """

    distribution: str
    extra: str = ""
    otherwise: str = ""

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        import importlib.metadata  # as in `install_command`

        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def remedy(self) -> str:
        """The way to install it."""
        return f"{install_command(self.extra)} installs it{self.otherwise}"


_TOOLKIT = "; or set CUDA_HOME to a CUDA toolkit that has it"

NEEDS: dict[str, tuple[Need, ...]] = {
    "reference": (Need("numpy"), Need("ml-dtypes")),
    "cpu": (Need("numba"), Need("llvmlite")),
    "cuda": (
        Need("numba"),
        Need("numba-cuda", "cuda"),
        Need("cuda-bindings", "cuda"),
        Need("nvidia-nvvm", "cuda", _TOOLKIT),
        Need("nvidia-nvjitlink", "cuda", _TOOLKIT),
    ),
}

COMPILERS = {"cuda": "numba-cuda"}
"""By backend, the distribution that only the backend's extra brings: without it, the extra was left out."""


def is_left_out(backend: str) -> bool:
    """Whether a backend is not installed, rather than installed in part, or broken."""
    return any(need.distribution == COMPILERS.get(backend) for need in missing(backend))


def missing(backend: str) -> tuple[Need, ...]:
    """The distributions that a backend needs and Python does not find."""
    return tuple(each for each in NEEDS.get(backend, ()) if each.version is None)


def smells_of_installation(error: BaseException) -> bool:
    """Whether a failure to compile looks like a missing part, not a kernel's fault."""
    return isinstance(error, ImportError | OSError) or "NotFound" in type(error).__name__


def advice(backend: str) -> str:
    """The distributions of a backend and the remedies, as lines for an error's note."""
    return "\n".join([*needed(backend), "`python -m cutile info` tries every backend and says more."])


def needed(backend: str) -> list[str]:
    """A line for each distribution of a backend: its version, or the remedy."""
    lines = [f"What the backend {backend!r} needs:"]
    for each in NEEDS.get(backend, ()):
        version = each.version
        lines.append(f"  {each.distribution:18} {version if version else 'not found: ' + each.remedy}")
    return lines
