"""The command that messages name installs as this copy was installed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cuda_async.installed import install_command

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which cutile is installed, which is looked at first."""
    made = tmp_path / "cutile-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: cutile\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_checkout_is_installed_from_its_folder() -> None:
    assert install_command("cuda") == f"pip install -e {shlex.quote(f'{ROOT}[cuda]')}"
    assert install_command() == f"pip install -e {shlex.quote(str(ROOT))}"


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "pip install 'cutile[cuda]'"),
        ({"url": "file:///srv/my%20src", "dir_info": {}}, "pip install '/srv/my src[cuda]'"),
        ({"url": "file:///srv/cutile-1.0.whl", "archive_info": {}}, "pip install '/srv/cutile-1.0.whl[cuda]'"),
        ({"url": "https://x.org/c.whl", "archive_info": {}}, "pip install 'cutile[cuda] @ https://x.org/c.whl'"),
        (
            {"url": "https://x.org/c.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'cutile[cuda] @ git+https://x.org/c.git@abc'",
        ),
    ],
)
def test_what_was_installed_comes_from_where_it_came_from(installed: Path, record: Any, command: str) -> None:
    if record is not None:
        (installed / "cutile-1.0.dist-info" / "direct_url.json").write_text(json.dumps(record))
    assert install_command("cuda", package=installed / "cuda_async") == command


def test_uv_installs_what_it_has_installed(installed: Path) -> None:
    (installed / "cutile-1.0.dist-info" / "INSTALLER").write_text("uv\n")
    assert install_command("cuda", package=installed / "cuda_async") == "uv pip install 'cutile[cuda]'"


def test_another_copy_says_nothing_of_this_one(installed: Path, tmp_path: Path) -> None:
    (installed / "cutile-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///elsewhere", "dir_info": {}}')
    assert install_command("viz", package=tmp_path / "vendored" / "cuda_async") == "pip install 'cutile[viz]'"
