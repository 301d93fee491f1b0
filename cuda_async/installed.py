"""How this copy was installed, so that missing parts can be installed alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_DISTRIBUTION = "cutile"


def install_command(extra: str = "", *, package: Path | None = None) -> str:
    """The command that installs this copy again, with an extra.

    A checkout is installed from its folder, whether or not it has been before. What was installed comes from where it
    came from: an index, a folder, a file or a repository.

    Args:
        extra: such as "cuda"; none by default.
        package: the folder of a package of this copy, `cuda_async` by default.

    Example:
        >>> install_command("cuda", package=Path("/nowhere/site-packages/cuda_async"))
        "pip install 'cutile[cuda]'"
    """
    import importlib.metadata  # with what it imports 20 ms, which only a message should cost

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
    """Where an installation came from, as pip has it.

    `direct_url.json` is there for what came from no index.
    """
    if direct is None:
        return f"{_DISTRIBUTION}{extras}"
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    record: dict[str, Any] = json.loads(direct)
    url: str = record["url"]
    if "vcs_info" in record:
        made: dict[str, str] = record["vcs_info"]
        at = made.get("requested_revision") or made["commit_id"]
        return f"{_DISTRIBUTION}{extras} @ {made['vcs']}+{url}@{at}"
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"{url2pathname(parts.path)}{extras}"
    return f"{_DISTRIBUTION}{extras} @ {url}"


def _quoted(text: str) -> str:
    import shlex

    return f'"{text}"' if os.name == "nt" else shlex.quote(text)
