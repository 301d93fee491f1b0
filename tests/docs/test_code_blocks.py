"""Every Python block of the README and of docs/ runs; the README's passes ruff and strict pyright as it stands."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import FILES, ROOT, blocks, lacking, program, programs, run

PROGRAMS = [
    pytest.param(
        path,
        needs,
        id="-".join([path.relative_to(ROOT).as_posix(), *sorted(needs)]),
        marks=[pytest.mark.gpu] if "gpu" in needs else [],
    )
    for path in FILES
    for needs in programs(path)
]
README = ROOT / "README.md"


@pytest.mark.parametrize(("path", "needs"), PROGRAMS)
def test_the_blocks_run(path: Path, needs: frozenset[str], capsys: pytest.CaptureFixture[str]) -> None:
    reason = lacking(needs)
    if reason:
        pytest.skip(f"{reason}; the blocks of {path.name} that need it did not run")
    run(path, needs)
    printed = capsys.readouterr().out
    promised = re.findall(r"# prints: (.*)", program(path, needs))
    assert [line for line in promised if line.strip() not in printed] == []


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "readme.py"
    path.write_text(program(README), encoding="utf-8")
    return path


def test_the_readme_passes_ruff(readme: Path) -> None:
    pytest.importorskip("ruff", reason="needs the extra test")
    command = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), str(readme)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


TYPES = ROOT / "tests" / "golden" / "types"


def test_what_type_checkers_pass_runs() -> None:
    runpy.run_path(str(TYPES / "good.py"))


@pytest.mark.slow
def test_the_readme_passes_strict_pyright(readme: Path) -> None:
    """So do other kernels; in those with mistakes each is found, at its line, and nothing else."""
    pytest.importorskip("pyright", reason="needs the extra test")
    for name in ("good.py", "bad.py"):
        (readme.parent / name).write_text((TYPES / name).read_text(encoding="utf-8"), encoding="utf-8")
    settings = {
        "include": [readme.name, "good.py", "bad.py"],
        "typeCheckingMode": "strict",
        "reportMissingTypeStubs": "none",
        "extraPaths": [str(ROOT)],
    }
    (readme.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(readme.parent),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors: dict[str, dict[int, str]] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        lines = errors.setdefault(Path(each["file"]).name, {})
        lines[each["range"]["start"]["line"] + 1] = each["message"]
    mistakes = (TYPES / "bad.py").read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(mistakes, 1) if "# error" in line}
    assert errors.pop("bad.py", {}).keys() == marked
    assert errors == {}


def links(text: str) -> list[str]:
    """The targets of a page's links, without the part behind #; what is code has none."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose)


def test_code_has_no_links() -> None:
    text = "[a](b.md#part) `t[0](1)`, [`c`](d.md)\n```py\nf[e](g)\n```\n![h](i.svg)\n"
    assert links(text) == ["b.md", "d.md", "i.svg"]


def test_links_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in FILES
        for target in links(path.read_text(encoding="utf-8"))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_a_block_keeps_its_line_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\ntext\n\n```python\ny = x + 1\n```\n\n```text\nno code\n```\n")
    assert [block.line for block in blocks(page)] == [4, 10]
    assert program(page).splitlines()[9] == "y = x + 1"
    assert run(page)["y"] == 2


def test_no_fence_is_overlooked() -> None:
    """A misspelt `needs=` would be a block that never runs."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*```\s*python", line) and not re.fullmatch(r"```python( needs=[\w.,]+)?", line)
    ]
    assert wrong == []


def test_a_block_runs_only_where_what_it_needs_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n```python needs=json\ny = x + 1\n```\n```python needs=no_such.part,gpu\nz = 3\n```\n"
        "```py\nnot ours\n```\n"
    )
    nothing, absent, json_alone = programs(page)
    assert (nothing, absent, json_alone) == (frozenset(), {"no_such.part", "gpu"}, {"json"})
    assert "y" not in run(page)
    assert run(page, json_alone)["y"] == 2
    assert lacking(json_alone) == lacking(nothing) == ""
    assert lacking(absent) == "not installed: no_such.part"
