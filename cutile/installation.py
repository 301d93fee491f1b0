"""What each backend needs to be installed, what is there, and what to do else."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_async.installed import install_command


@dataclass(frozen=True)
class Need:
    """A distribution that a backend needs.

    Attributes:
        distribution: its name on PyPI.
        extra: the extra that brings it; empty where cutile itself does.
        otherwise: what else would do.
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
        """What to do where it is missing."""
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
"""What is not there where the extra of a backend was left out: other packages bring the rest of it, too."""


def is_left_out(backend: str) -> bool:
    """Whether a backend is not installed, rather than installed in part, or broken."""
    return any(need.distribution == COMPILERS.get(backend) for need in missing(backend))


def missing(backend: str) -> tuple[Need, ...]:
    """What a backend needs and Python does not find."""
    return tuple(each for each in NEEDS.get(backend, ()) if each.version is None)


def smells_of_installation(error: BaseException) -> bool:
    """Whether a failure to compile looks like a missing part, not a kernel's fault."""
    return isinstance(error, ImportError | OSError) or "NotFound" in type(error).__name__


def advice(backend: str) -> str:
    """What is installed for a backend and what to do, as lines for an error's note."""
    return "\n".join([*needed(backend), "`python -m cutile info` tries every backend and says more."])


def needed(backend: str) -> list[str]:
    """What a backend needs, what is found of it, and what to do about what is not.

    A line each.
    """
    lines = [f"What the backend {backend!r} needs:"]
    for each in NEEDS.get(backend, ()):
        found = each.version
        lines.append(f"  {each.distribution:18} {found if found else 'not found: ' + each.remedy}")
    return lines
