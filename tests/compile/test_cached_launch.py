"""What a process imports to launch a kernel that another one has compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NOT_NEEDED = (
    *("numba", "scipy", "numpy.random"),  # compiling, libraries of functions
    *("asyncio", "concurrent.futures", "logging"),  # waiting, telling
    *("difflib", "html", "base64", "argparse", "statistics"),  # mistakes, pictures, commands, measuring
    *("fractions", "decimal", "secrets", "email", "importlib.metadata", "urllib.request", "platformdirs"),
    *("cutile.tune", "cutile.bench", "cutile.command", "cutile.torch", "cutile.interpreter.run"),
    *("cutile.backend.cpu.emit", "cutile.backend.cpu.lowering", "cutile.backend.cpu.build", "cutile.backend.cuda"),
)
"""Each takes milliseconds, some of them hundreds, that a process would wait for before its first kernel."""


def imported(folder: Path) -> str:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.compile.cached_run", *NOT_NEEDED]
    environment = {**os.environ, "CUTILE_CACHE_DIR": str(folder)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_a_cached_launch_imports_what_it_needs(tmp_path: Path) -> None:
    assert "numba" in imported(tmp_path)  # which compiles
    assert imported(tmp_path) == "[]"
