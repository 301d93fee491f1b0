"""The command that installed this copy, to install missing parts in the same way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_DISTRIBUTION = "cutile"


def install_command(extra: str = "", *, package: Path | None = None) -> str:
    """The command that installs this copy again, with an extra.

    A checkout is installed from its folder, even if it was not installed before. An installed copy is installed from
    its source: an index, a folder, a file or a repository.

    Args:
        extra: such as "cuda"; none by default.
        package: the folder of a package of this copy, `cuda_async` by default.

    Example:
        >>> install_command("cuda", package=Path("/nowhere/site-packages/cuda_async"))
        "pip install 'cutile[cuda]'"
    """
    import importlib.metadata  # here: it takes 20 ms with its own imports, for which only a message may wait

    root = (package or Path(__file__).parent).parent
    extras = f"[{extra}]" if extra else ""
    if (root / "pyproject.toml").is_file():
        return f"pip install -e {_quoted(f'{root}{extras}')}"
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {_quoted(f'{_DISTRIBUTION}{extras}')}"
    uv = (distribution.read_text("INSTALLER") or "").strip() == "uv"
    is_this = Path(str(distribution.locate_file(""))).resolve() == root.resolve()
    source = _source(distribution.read_text("direct_url.json"), extras) if is_this else f"{_DISTRIBUTION}{extras}"
    return f"{'uv pip' if uv else 'pip'} install {_quoted(source)}"


def _source(direct: str | None, extras: str) -> str:
    """The source of an installation, as pip writes it.

    Args:
        direct: the text of `direct_url.json`; None where the copy came from an index.
        extras: in brackets; may be empty.
    """
    if direct is None:
        return f"{_DISTRIBUTION}{extras}"
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    record: dict[str, Any] = json.loads(direct)
    url: str = record["url"]
    if "vcs_info" in record:
        repository: dict[str, str] = record["vcs_info"]
        revision = repository.get("requested_revision") or repository["commit_id"]
        return f"{_DISTRIBUTION}{extras} @ {repository['vcs']}+{url}@{revision}"
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"{url2pathname(parts.path)}{extras}"
    return f"{_DISTRIBUTION}{extras} @ {url}"


def _quoted(text: str) -> str:
    import shlex

    return f'"{text}"' if os.name == "nt" else shlex.quote(text)
