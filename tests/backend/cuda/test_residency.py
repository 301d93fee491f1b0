"""Launches of kernels that say how they fill a device: clusters, blocks that stay, workspaces."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.grids import PersistentGrid, launch_blocks
from cutile.backend.cuda.load import load
from cutile.backend.interface import Executable, Parameter, Source, Target
from cutile.dtypes import i32, u64
from cutile.errors import LaunchError
from tests.backend.cuda.programs import nvdisasm, saxpy_program, source
from tests.backend.cuda.recorder import Recorder

WORKSPACE = Parameter("workspace", "workspace", -1, 0, u64)
GRID = Parameter("grid_x", "grid", -1, 0, i32)


def executable(*parameters: Parameter, **facts: Any) -> Executable:
    return Executable(
        Target("cuda", "sm_90a"), b"cubin", "kernel", parameters, {"threads": 384, "shared_bytes": 200_000} | facts, ""
    )


@pytest.mark.parametrize(
    ("facts", "grid", "blocks"),
    [
        ({}, (7, 5, 1), 35),
        ({"cluster": 2}, (7, 5, 1), 36),
        ({"cluster": 4}, (8, 5, 1), 40),
        ({"persistent": True}, (64, 32, 1), 132),
        ({"persistent": 1}, (7, 5, 1), 35),
        ({"persistent": 3}, (7, 5, 1), 105),
        ({"persistent": 3}, (7, 7, 1), 132),
        ({"persistent": 1, "cluster": 2}, (7, 5, 1), 36),
        ({"persistent": 1, "cluster": 2}, (64, 64, 2), 132),
    ],
    ids=str,
)
def test_how_many_blocks_are_launched(facts: dict[str, Any], grid: tuple[int, int, int], blocks: int) -> None:
    assert PersistentGrid({"threads": 128, "shared_bytes": 0} | facts).blocks(launch_blocks(grid), 132) == blocks


def test_the_kernel_still_learns_the_logical_grid() -> None:
    stream = Recorder(sizes=(4,))
    load(executable(GRID, persistent=1)).launch((4096, 1, 1), [4096], stream)
    ((function, grid, block, shared, values),) = stream.launches
    assert (function, grid, block, shared) == ("kernel on gpu0", (264, 1, 1), (384, 1, 1), 200_000)
    assert values == [struct.pack("<i", 4096)]


def test_what_fits_is_asked_once_for_each_device() -> None:
    loaded = load(executable(GRID, persistent=1, cluster=2))
    first, second = Recorder("gpu0", (4,)), Recorder("gpu1", (4,))
    second.resident = 128
    for stream in (first, second, first, second):
        loaded.launch((4096, 1, 1), [4096], stream)
        loaded.prepare((4096, 1, 1), [4096], stream).launch()
    assert first.asked == [("kernel on gpu0", 384, 200_000, 2)]
    assert second.asked == [("kernel on gpu1", 384, 200_000, 2)]
    assert {launch[1] for launch in first.launches} == {(264, 1, 1)}
    assert {launch[1] for launch in second.launches} == {(128, 1, 1)}


def test_a_plain_kernel_asks_nothing() -> None:
    stream = Recorder(sizes=(4,))
    loaded = load(executable(GRID, cluster=1, persistent=0, workspace=0))
    loaded.launch((4096, 1, 1), [4096], stream)
    loaded.prepare((4096, 1, 1), [4096], stream).launch()
    assert [launch[1] for launch in stream.launches] == [(4096, 1, 1)] * 2
    assert stream.asked == stream.workspaces == []


def test_a_kernel_that_fits_nowhere_is_refused() -> None:
    stream = Recorder()
    stream.resident = 0
    with pytest.raises(LaunchError, match="no multiprocessor holds a block of 384 threads with 200000 bytes"):
        load(executable(GRID, persistent=1)).launch((2, 1, 1), [2], stream)
    assert stream.launches == []


def test_a_launch_gets_its_workspace() -> None:
    stream = Recorder(sizes=(4, 8))
    loaded = load(executable(GRID, WORKSPACE, persistent=1, workspace=64, workspace_per_block=1000))
    loaded.launch((100, 1, 1), [100, 0], stream)
    prepared = loaded.prepare((4096, 1, 1), [4096, 0], stream)
    prepared.launch()
    prepared.launch()
    assert [each.nbytes for each in stream.workspaces] == [64 + 100 * 1000, 64 + 264 * 1000]
    first, second = (struct.pack("<Q", each.address) for each in stream.workspaces)
    assert [launch[-1][1] for launch in stream.launches] == [first, second, second]


def test_the_code_itself_says_its_cluster(tmp_path: Path) -> None:
    plain = source(saxpy_program(1024))
    texts: list[str] = []
    for cluster in (1, 2):
        facts = dict(plain.facts) | {"cluster": cluster}
        made = BACKEND.build(Source(plain.text, plain.entry, plain.parameters, {}, facts), Target("cuda", "sm_90a"))
        image = tmp_path / "kernel.cubin"
        image.write_bytes(made.image)
        command = [nvdisasm(), image]
        texts.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stdout)
    assert "EIATTR_CTA_PER_CLUSTER" not in texts[0]
    assert "EIATTR_CTA_PER_CLUSTER" in texts[1]
