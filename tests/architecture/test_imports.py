"""Imports point one way; the rules are in ``import_rules.py``."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.import_rules import (
    bindings,
    folders_one_way,
    no_siblings,
    one_way,
    public_only,
    reads_only,
    unresolved,
)
from tests.architecture.sources import PACKAGES, ROOT, UNSTARRED


def test_imports_point_up_the_map_only() -> None:
    assert list(one_way(ROOT)) == []


def test_imported_modules_exist() -> None:
    assert list(unresolved(ROOT)) == []


def test_both_packages_word_objects_and_guess_names_alike() -> None:
    ours, below = (importlib.import_module(f"{package}.errors") for package in ("cutile", "cuda_async"))
    assert (ours.as_text, ours.closest) == (below.as_text, below.closest)


def test_analyses_change_nothing() -> None:
    assert list(reads_only(ROOT)) == []


def test_folders_of_the_checkout_import_one_way() -> None:
    assert list(folders_one_way(ROOT)) == []


def test_siblings_do_not_know_one_another() -> None:
    assert list(no_siblings(ROOT)) == []


def test_bindings_and_numba_stay_in_their_files() -> None:
    assert list(bindings(ROOT)) == []


def test_kernels_use_public_names_only() -> None:
    public = {
        name: frozenset(importlib.import_module(name).__all__) | UNSTARRED
        for name in PACKAGES
        if (ROOT / name / "__init__.py").exists()
    }
    assert list(public_only(ROOT, public)) == []


def write(root: Path, where: str, text: str) -> None:
    path = root / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


ALLOWED = [
    ("cutile/__init__.py", "from .entry import entry\nfrom cuda_async import zip"),
    ("cutile/errors.py", "from cuda_async.errors import as_text"),
    ("cutile/ops/math.py", "from ..ir.core import Op\nfrom ..errors import TileError"),
    ("cutile/frontend/build.py", "from cutile import ops"),
    ("cutile/backend/registry.py", "def load():\n    from .cuda import backend"),
    ("cutile/backend/cuda/emit/tiles.py", "from ...common.writer import Writer"),
    ("cutile/backend/cuda/intrinsics/math.py", "import numba.cuda\nfrom llvmlite import ir"),
    ("cutile/backend/cpu/build.py", "import numba"),
    ("cutile/backend/cpu/load.py", "import llvmlite.binding"),
    ("cutile/launch/kernel_op.py", "from cuda_async import DeviceOp\nfrom ..backend.interface import Target"),
    ("cuda_async/driver/cuda.py", "from cuda.bindings import driver\nfrom .interface import Driver"),
    ("cutile/torch/launches.py", "import torch\nfrom cutile.entry import Kernel"),
    ("kernels/saxpy.py", "import cutile as ct\nfrom cutile import api\nfrom cuda_async import Device"),
    ("kernels/__main__.py", "def main():\n    from benchmarks.kernels import demo"),
    ("benchmarks/kernels/bench.py", "from kernels.saxpy import EXAMPLE"),
]

Row = tuple[Callable[[Path], Iterator[str]], str, str, str]

FORBIDDEN: list[Row] = [
    (
        one_way,
        "cutile/ir/core.py",
        "import numpy\nfrom cutile.ops import math",
        "core.py:2: ir must not import",
    ),
    (one_way, "cutile/errors.py", "from cuda_async.site import x", "errors must not import cuda_async"),
    (one_way, "cutile/ops/math.py", "def f():\n    from ..backend import x", "ops must not import backend"),
    (one_way, "cutile/backend/interface.py", "import cutile.compile", "backend must not import compile"),
    (one_way, "cutile/compile/driver.py", "import cuda_async", "compile must not import cuda_async"),
    (one_way, "cutile/launch/op.py", "from ..host import api", "launch must not import host"),
    (one_way, "cutile/launch/op.py", "from ..backend.cpu import x", "launch must not import backend"),
    (one_way, "cuda_async/op.py", "from cutile.errors import X", "cuda_async must not import errors"),
    (one_way, "cuda_async/op.py", "import cutile", "cuda_async must not import cutile"),
    (one_way, "cutile/host/api.py", "import cutile.torch", "host must not import torch"),
    (one_way, "cutile/analysis/ranges.py", "from cutile.passes import dce", "analysis must not import passes"),
    (reads_only, "cutile/analysis/ranges.py", "from cutile.ir.builder import Rewriter", "changes no IR"),
    (one_way, "cutile/tuner.py", "", "tuner has no row in MAY_IMPORT"),
    (unresolved, "tests/test_x.py", "def f():\n    from cutile.gone import x", "test_x.py:2: there is no module"),
    (no_siblings, "cutile/backend/cpu/load.py", "from ..cuda import x", "cpu must not import its sibling"),
    (no_siblings, "cutile/backend/common/w.py", "import cutile.backend.cpu.x", "common must not"),
    (no_siblings, "cutile/backend/gpu/layout.py", "from cutile.backend.cuda.target import x", "gpu must not import"),
    (bindings, "cutile/backend/gpu/build.py", "import numba", "numba may not be imported"),
    (bindings, "cutile/backend/gpu/layout.py", "import llvmlite.ir", "llvmlite may not be imported"),
    (no_siblings, "cuda_async/driver/sim.py", "from .host import x", "sim must not import its sibling host"),
    (bindings, "cutile/ir/core.py", "import numba", "numba may not be imported"),
    (bindings, "cutile/backend/cuda/emit/tiles.py", "import numba", "numba may not be imported"),
    (bindings, "cutile/backend/cpu/build.py", "from numba import cuda", "numba.cuda may not be imported"),
    (
        bindings,
        "cuda_async/run.py",
        'import importlib as i\ni.import_module("cuda.core")',
        "run.py:2: cuda may",
    ),
    (folders_one_way, "kernels/saxpy.py", "from benchmarks.record import write", "kernels must not import benchmarks"),
    (folders_one_way, "kernels/__main__.py", "from tests.support import draw", "kernels must not import tests"),
    (folders_one_way, "cutile/api.py", "import kernels.saxpy", "cutile must not import kernels"),
    (folders_one_way, "benchmarks/loops/cases.py", "from tests import x", "benchmarks must not import tests"),
    (bindings, "cutile/launch/arguments.py", "import llvmlite.binding", "llvmlite may not be imported"),
]


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    for where, text in ALLOWED:
        write(tmp_path, where, text)
    public = {"cutile": frozenset({"api"}), "cuda_async": frozenset({"Device"})}
    reported = [
        *one_way(tmp_path),
        *reads_only(tmp_path),
        *folders_one_way(tmp_path),
        *no_siblings(tmp_path),
        *bindings(tmp_path),
        *public_only(tmp_path, public),
    ]
    assert reported == []


@pytest.mark.parametrize("row", FORBIDDEN, ids=lambda row: f"{row[1]}: {row[3]}")
def test_what_is_forbidden_is_reported(tmp_path: Path, row: Row) -> None:
    rule, where, text, message = row
    write(tmp_path, where, text)
    found = list(rule(tmp_path))
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    "line", ["from cutile.ir import core", "import cutile.host.api", "from cutile import lower_everything"]
)
def test_a_kernel_that_reaches_inside_is_reported(tmp_path: Path, line: str) -> None:
    write(tmp_path, "kernels/saxpy.py", line)
    found = list(public_only(tmp_path, {"cutile": frozenset({"api"})}))
    assert len(found) == 1
    assert "is not a public name" in found[0]
