"""Which version of a distribution is installed, at the cost of listing folders.

`importlib.metadata` reads and parses each distribution's metadata, for which it imports a parser of e-mails: 15 ms that
every process would pay before its first kernel.
"""

import os
import re
import sys
from contextlib import suppress

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
