"""`python -m cutile`: each command, typed as a user would, and mistakes made on purpose."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from cuda_async.installed import install_command
from cutile.backend.registry import BACKENDS
from cutile.command import main
from cutile.command.compile import load_kernel
from cutile.command.groups import GROUPS
from cutile.command.ops import FIRST_HOUR, catalogue, page, title_of
from cutile.installation import NEEDS, Need
from cutile.ops import OPS
from tests.support.golden import Golden

ROOT = Path(__file__).parents[2]
GEMM = [
    "compile", str(ROOT / "kernels" / "gemm.py"), "gemm", "--generic", "BK=32",
    "--arg", "z=f16[512,512]/(64,64)", "--arg", "x=f16[512,256]", "--arg", "y=f16[512,256].T",
]  # fmt: skip


def test_the_installed_script_is_this_command(capsys: pytest.CaptureFixture[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = settings["project"]["scripts"]["cutile"].partition(":")
    script = getattr(importlib.import_module(module), function)
    with pytest.raises(SystemExit):
        script(["--help"])
    assert capsys.readouterr().out.startswith("usage: cutile ")
    done = subprocess.run([sys.executable, "-m", "cutile", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m cutile ")


def test_info_tries_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {each["backend"]: each["works"] for each in facts["backends"]} == dict.fromkeys(BACKENDS, True)
    assert facts["packages"]["numba"]
    assert facts["devices"][0]["arch"] == "cpu"


def test_info_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    main(["info"])
    text = capsys.readouterr().out
    assert "cpu        works: compiles in" in text
    assert "compiled kernels are kept in" in text


def test_a_broken_backend_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("cutile.backend.cpu.build")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert main(["info"]) == 1
    text = capsys.readouterr().out
    assert "cpu        DOES NOT WORK: ModuleNotFoundError" in text
    assert "What the backend 'cpu' needs:" in text
    assert "llvmlite" in text


def test_a_backend_that_is_not_installed_says_so_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("cutile.backend.cpu.build")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)

    def first(backend: str) -> tuple[Need, ...]:
        return NEEDS[backend][:1]

    monkeypatch.setattr("cutile.command.info.missing", first)
    assert main(["info"]) == 1
    text = capsys.readouterr().out
    assert "cpu        DOES NOT WORK: numba: not installed\n             What the backend 'cpu' needs:" in text
    assert "python -m cutile info" not in text


def test_a_backend_that_was_left_out_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where cutile was installed without its extra: the exit status is that of a machine in order."""
    plain = importlib.metadata.version

    def version(name: str) -> str:
        if name == "numba-cuda":
            raise importlib.metadata.PackageNotFoundError(name)
        return plain(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr("cutile.command.info.BACKENDS", {"reference": "", "cuda": ""})  # to compile nothing else
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"  cuda       not installed: {install_command('cuda')} installs it\n" in text
    assert f"numba-cuda         not found: {install_command('cuda')} installs it\n" in text
    assert str(ROOT) in install_command("cuda")
    assert main(["info", "--json"]) == 0
    backends = json.loads(capsys.readouterr().out)["backends"]
    assert {each["backend"]: (each["works"], each["installed"]) for each in backends} == {
        "reference": (True, True),
        "cuda": (False, False),
    }


def test_a_missing_toolchain_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("cutile.backend.cpu.build")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert main([*GEMM, "--stage", "log"]) == 1
    text = capsys.readouterr().err
    assert text.startswith("ModuleNotFoundError: ")
    assert "What the backend 'cpu' needs:" in text
    assert "Traceback" not in text


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: object) -> int:
        raise ImportError("a fault of the code")

    monkeypatch.setattr("cutile.command.info.run", broken)
    with pytest.raises(ImportError, match="a fault of the code"):
        main(["info"])


def test_no_command_shows_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "compile" in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"cutile {Need('cutile', '').version or 'used from its checkout'}\n"


def test_every_operation_that_kernels_write_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    named = {name for each in listed for name in each["operations"]}
    written = {op.name for op in OPS.values() if op.spelled}
    assert written - named == set()
    assert all(each["text"] for each in listed)
    assert main(["ops"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(listed) + 2


def test_one_operation_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "exp2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("exp2(")
    assert "f32 2 ulp" in text
    assert main(["ops", "no_such"]) == 1
    assert main(["ops", "mmma"]) == 1
    assert "did you mean 'mma'?" in capsys.readouterr().err
    assert main(["ops", "where"]) == 1
    assert "the language has no 'where'; write ct.select(condition, a, b)" in capsys.readouterr().err
    assert main(["ops", "Tile.sum"]) == 1
    assert "the language has no 'Tile.sum'; write ct.reduce_sum(tile, axis)" in capsys.readouterr().err


def test_the_page_of_the_language_is_what_the_definitions_say(pytestconfig: pytest.Config) -> None:
    golden = Golden(ROOT / "docs" / "reference", bool(pytestconfig.getoption("--update-golden")))
    golden("language.md", page(catalogue()))


@pytest.mark.parametrize("arch", ["cpu", "reference", "sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("stage", "holds"), [("ir", "mma("), ("passes", "mma("), ("lowered", "stage "), ("log", "")])
def test_a_stage_of_a_kernel(arch: str, stage: str, holds: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (arch, stage) == ("reference", "lowered"):
        holds = "mma("
    assert main([*GEMM, "--arch", arch, "--stage", stage]) == 0
    assert holds in capsys.readouterr().out


def test_machine_code_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cubin = tmp_path / "gemm.cubin"
    assert main([*GEMM, "--arch", "sm_90a", "--stage", "image"]) == 1
    assert "say where it goes" in capsys.readouterr().err
    assert main([*GEMM, "--arch", "sm_90a", "--stage", "image", "-o", str(cubin)]) == 0
    assert cubin.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["--arg", "z=f16[512,512]"], "'z' takes a partition: add its tile, as in /(16,16)"),
        (["--arg", "z=f16[512,512]/(64,64)/(2,1)"], "'z' takes no map"),
        (["--arg", "x=f16[512,256]/(1,1)"], "'x' takes a tensor, without a tile"),
        (["--arg", "x=512"], "expected the form of x=f16[4096,4096] for a tensor"),
        (["--arg", "x=f17[8]"], "f17"),
        (["--arg", "x=f16[5 12]"], "x=f16[5 12]: expected the form of"),
        (["--arg", "z=f16[512,512]/(6 4,64)"], "expected the form of"),
        (["--arg", "z=f16[512,512]/(64,0)"], "the extents of a tile are at least 1, got (64, 0)"),
        (["--arg", f"x=f16[{2**31},512]"], "longer than 2147483647"),
        (["--generic", "BK={[]: 1}"], "must be constant integers, got str '{[]: 1}'"),
        (["--output", "."], "--output .: it cannot be written"),
        (["--stage", "image", "--output", "no folder/image"], "it cannot be written: No such file"),
        (["--arg", "w=f16[8]"], "gemm has no parameter 'w'; it has z, x, y"),
        (["--arg", "x"], "--arg x: expected NAME=VALUE"),
        (["--generic", "BQ=3"], "no generic 'BQ'"),
        (["--arch", "sm_70"], "sm_70"),
        (["--arch", "tpu"], "expected cpu, reference, or a GPU's architecture"),
    ],
)
def test_mistakes_are_explained(changed: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GEMM, *changed]) == 1
    assert says in capsys.readouterr().err


STREAM = """
import cutile as ct

@ct.entry
def stream(z: ct.MappedPartitionMut, x: ct.Tensor):
    for index in z.iter_indices():
        z.store(ct.load_tile(x, z.shape, index.coords()), index)
"""


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ("f32[64,64]/(16,16)/(2,1)", ""),
        ("f32[64,64]/(16,16)", "'z' takes a mapped partition: add its map, as in /(16,16)/(2,1)"),
        ("f32[64,64]/(16,16)/(2)", "a map has a positive number for each axis of the tile (16, 16), got (2,)"),
    ],
)
def test_mapped_partitions_are_described(
    described: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "streams.py"
    file.write_text(STREAM)
    arguments = ["--arg", f"z={described}", "--arg", "x=f32[64,64]", "--target", "sm_90a", "--stage", "plan"]
    assert main(["compile", str(file), "stream", *arguments]) == bool(says)
    printed = capsys.readouterr()
    assert says in printed.err if says else "stream for sm_90a" in printed.out


OPTIONAL = """
import cutile as ct

@ct.entry
def added(z: ct.Mut, x: ct.Tensor, bias: ct.Tensor | None = None):
    tile = ct.load_tile_like(x, z)
    if bias is not None:
        tile += ct.load_tile_like(bias, z)
    z.store(tile)

@ct.entry
def total(z: ct.Mut, xs: tuple[ct.Tensor, ...]):
    z.store(sum(ct.load_tile_like(x, z) for x in xs))
"""


def test_a_tensor_that_may_be_left_out_is_described_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "groups.py"
    file.write_text(OPTIONAL)
    added = ["compile", str(file), "added", "--arg", "z=f32[64]/(16)", "--arg", "x=f32[64]", "--stage", "ir"]
    assert main(added) == 0
    assert "bias" not in capsys.readouterr().out
    assert main([*added, "--arg", "bias=f32[64]"]) == 0
    assert "load_tile(%bias" in capsys.readouterr().out
    assert main([*added, "--arg", "bais=f32[64]"]) == 1
    assert "added has no parameter 'bais'; it has z, x, bias" in capsys.readouterr().err
    assert main(["compile", str(file), "total", "--arg", "z=f32[64]/(16)", "--arg", "xs=f32[64]"]) == 1
    assert "total takes groups of tensors (a tuple, a dataclass), which --arg cannot" in capsys.readouterr().err


def test_a_missing_argument_or_kernel_or_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GEMM[:3]) == 1
    assert "say what 'z' is, with --arg" in capsys.readouterr().err
    assert main(["compile", str(ROOT / "kernels" / "gemm.py"), "gem"]) == 1
    assert "has no kernel 'gem'; it has" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "none.py"), "k"]) == 1
    assert "there is no file" in capsys.readouterr().err


DATACLASS = """
from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import cutile as ct


@dataclass
class Setting:
    size: int
    _: KW_ONLY
    name: str = ""


@ct.entry
def twice(y: ct.Mut, x: ct.Tensor):
    y.store(ct.load_tile_like(x, y) * 2)
"""


@pytest.mark.parametrize("listed_before", [False, True])
def test_a_file_that_fails_leaves_no_module(
    listed_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "fails_half_way.py", types.ModuleType("fails_half_way")
    file.write_text("FIRST = 1\nraise ValueError('half way')\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    if listed_before:
        monkeypatch.setitem(sys.modules, "fails_half_way", other)
    with pytest.raises(ValueError, match="half way"):
        load_kernel(file, "any")
    assert sys.modules.get("fails_half_way") is (other if listed_before else None)


def test_a_file_is_run_as_an_import_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels_with_a_dataclass.py"
    file.write_text(DATACLASS)
    arguments = ["--arg", "y=f32[64]/(16)", "--arg", "x=f32[64]", "--stage", "ir"]
    assert main(["compile", str(file), "twice", *arguments]) == 0
    assert "twice" in capsys.readouterr().out


def test_the_cache_is_listed_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))
    main([*GEMM, "--stage", "image", "-o", str(tmp_path / "gemm.o")])
    assert main(["cache", "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("1 compiled kernels")
    assert str(tmp_path) in listed
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 compiled kernels" in capsys.readouterr().out
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("0 compiled kernels")


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "cutile", "ops", "exp2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    assert "exp2" in done.stdout


def test_dtypes_are_those_of_elements_not_of_addresses() -> None:
    listed = {entry.name: set(entry.dtypes) for entry in catalogue()}
    words = {"i32", "i64", "u32", "u64"}
    assert listed["atomic_and"] == listed["atomic_max"] == words
    assert listed["atomic_add"] == words | {"f16", "bf16", "f32", "f64"}
    assert listed["atomic_xchg"] == listed["atomic_cas"] == words | {"f32", "f64", "tf32"}
    assert listed["load_ptr_tko"] == listed["store_ptr_tko"] == listed["scatter"] == listed["gather"]
    assert {"bool", "i8", "f16"} <= listed["gather"]


def test_the_page_of_the_language_is_grouped_by_what_people_look_for() -> None:
    """The first hour, then groups that all have entries, and upstream's names last."""
    listed = catalogue()
    titles = [line.removeprefix("## ") for line in page(listed).splitlines() if line.startswith("## ")]
    assert titles == ["The first hour", *GROUPS]
    named = [name for names in GROUPS.values() for name in names]
    assert len(set(named)) == len(named)
    assert set(named) <= {entry.name for entry in listed}
    last = {entry.name for entry in listed if title_of(entry) == "Upstream's own names"}
    assert {"addi", "scan_sum", "store_ptr_tko", "mmaf"} <= last
    assert not last & {name for names in FIRST_HOUR.values() for name in names}
