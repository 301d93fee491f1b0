"""Files stay small, say what they are, and read the environment in one place only."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, modules

CEILING = 600  # lines; 400 are asked
MOST_FILES = {"cutile": 380, "cuda_async": 103}  # of a package; fewer are asked: a file holds an idea, not a function
MOST_IMPORTS = {"cutile": 0.06, "cuda_async": 0.0575}  # the share of a package's lines that import; 0.06 is asked
FOLDERS = (*PACKAGES, "kernels", "benchmarks", "tests")
CONFIG = {f"{package}/config.py" for package in PACKAGES}
KINDS = {".html", ".ipynb", ".ir", ".json", ".md", ".png", ".py", ".svg", ".toml", ".txt"}
UNNAMED = {".ci/run", ".gitignore", "LICENSE", "Makefile", "cutile/py.typed", "cuda_async/py.typed"}
ENVIRONMENT = {"environ", "environb", "getenv", "putenv", "unsetenv"}


def too_long(root: Path) -> Iterator[str]:
    for module in modules(root, *FOLDERS):
        lines = len(module.path.read_text(encoding="utf-8").splitlines())
        if lines > CEILING:
            yield f"{module.where}: {lines} lines; {CEILING} is the ceiling, so split it by idea"


def import_share(root: Path, package: str) -> tuple[int, float]:
    """The files of a package, and the share of their lines that import."""
    files = modules(root, package)
    lines = sum(len(module.path.read_text(encoding="utf-8").splitlines()) for module in files)
    nodes = (node for module in files for node in ast.walk(module.tree))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return len(files), sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports) / lines


def without_docstring(root: Path) -> Iterator[str]:
    for module in modules(root, *FOLDERS):
        if module.tree.body and not ast.get_docstring(module.tree):
            yield f"{module.where}: say in a docstring what this module is, and what it is not"


def reads_environment(root: Path) -> Iterator[str]:
    """Yield each use of ``os.environ`` and its relatives in the packages, outside their ``config.py``."""
    for module in modules(root, *PACKAGES):
        if module.where in CONFIG:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os":
                name = node.attr
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                name = next((alias.name for alias in node.names if alias.name in ENVIRONMENT), "")
            else:
                continue
            if name in ENVIRONMENT:
                yield f"{module.where}:{node.lineno}: os.{name} is for config.py alone"


def strays(root: Path) -> Iterator[str]:
    """Yield each file under version control that is not of a kind which people write or the tests compare with."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree is not under version control")
    for where in listed.stdout.split("\0")[:-1]:
        path = Path(where)
        if path.suffix not in KINDS and where not in UNNAMED:
            yield f"{where}: no file of this kind belongs here; .gitignore keeps what a command left"


def test_files_are_small() -> None:
    assert list(too_long(ROOT)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_dust(package: str) -> None:
    """What grows beyond this is joined with what is like it: a small file with one importer, as a rule."""
    files, imports = import_share(ROOT, package)
    assert files <= MOST_FILES[package]
    assert imports <= MOST_IMPORTS[package]


def test_imports_are_counted_by_lines(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "a.py").write_text('"""A."""\nfrom b import (\n    c,\n)\n\n\ndef f():\n    import d\n')
    (package / "e.py").write_text('"""E."""\nx = 1\n')
    assert import_share(tmp_path, "cutile") == (2, 0.4)


def test_nothing_strays_into_the_tree(tmp_path: Path) -> None:
    """What a command downloaded or built is not committed: a wheel was once, by `git add -A`."""
    assert list(strays(ROOT)) == []
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "tool.whl").write_bytes(b"")
    (tmp_path / "page.md").write_text("# Page\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert [line.split(":")[0] for line in strays(tmp_path)] == ["tool.whl"]


def test_every_module_says_what_it_is() -> None:
    assert list(without_docstring(ROOT)) == []


def test_only_config_reads_the_environment() -> None:
    assert list(reads_environment(ROOT)) == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "long.py").write_text('"""Long."""\n' + "x = 1\n" * CEILING)
    (package / "silent.py").write_text("x = 1\n")
    (package / "peek.py").write_text('"""Peek."""\nimport os\nx = os.environ["HOME"]\n')
    (package / "peek_too.py").write_text('"""Peek."""\nfrom os import getenv\n')
    (package / "config.py").write_text('"""Config."""\nimport os\nx = os.getenv("HOME")\n')
    assert [line.split(":")[0] for line in too_long(tmp_path)] == ["cutile/long.py"]
    assert [line.split(":")[0] for line in without_docstring(tmp_path)] == ["cutile/silent.py"]
    found = [line.split(": ")[0] for line in reads_environment(tmp_path)]
    assert found == ["cutile/peek.py:3", "cutile/peek_too.py:2"]
