"""Distributions: what each backend needs, the versions, the way to install them.

`importlib.metadata` reads and parses each distribution's metadata, for which it imports a parser of e-mails: 15 ms that
every process would pay before its first kernel. `installed_version` lists folders instead.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
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
"""By backend, a distribution that only the backend's extra brings. If it is missing, the extra was left out."""


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


# The installed version, at the cost of listing folders.

_FOLDER = re.compile(r"(.+?)-([^-]+)\.dist-info")
"""The folder that an installer makes: the distribution's name, in which `-` is written `_`, and its version."""


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; None where it is not installed.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    name = _normal(distribution)
    for folder in sys.path:
        listing: list[str] = []
        with suppress(OSError):  # no folder: an archive, or a place that does not exist
            listing = os.listdir(folder or ".")  # "" in `sys.path` is the working directory
        matches = [match for entry in listing if (match := _FOLDER.fullmatch(entry)) and _normal(match[1]) == name]
        if len(matches) == 1:
            return matches[0][2]
        if matches:
            break  # an interrupted installation left several: importlib says which of them counts
    return _by_metadata(distribution)


def _by_metadata(distribution: str) -> str | None:
    """The version by `importlib.metadata`.

    It also knows archives and installations without such a folder.
    """
    from importlib.metadata import PackageNotFoundError, version  # takes 15 ms

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
