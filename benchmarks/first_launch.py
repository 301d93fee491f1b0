"""The time of a process's first kernels: compiled from nothing, and loaded from the disk cache.

Run as a program, this module is that process: it launches saxpy, then another kernel, and prints the seconds of each as
JSON. Imports at its start and the making of the device's context do not count. `first_launches` runs it twice over one
empty cache folder.
"""

import argparse
import builtins
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cuda_async import Device
from cutile import api, f16, f32


@dataclass(frozen=True)
class Launches:
    """Seconds from the call to the result: the first kernel of a process, and the next, different one.

    Attributes:
        first, second: the two launches, what they import lazily included.
        imports: the part of `first` that was spent importing modules.
        numba: whether Numba had been imported by the end.
    """

    first: float
    second: float
    imports: float
    numba: bool


class ImportClock:
    """Adds up the seconds of imports inside its `with` block; nested imports count once, with the outer one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def __enter__(self) -> "ImportClock":
        self._import, self._import_module = builtins.__import__, importlib.import_module
        builtins.__import__ = self._timed(self._import)
        importlib.import_module = self._timed(self._import_module)
        return self

    def __exit__(self, *_: object) -> None:
        builtins.__import__, importlib.import_module = self._import, self._import_module

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self._depth += 1
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - start

        return timed


def first_launches(device: str, second: str = "vector_add") -> dict[str, Launches]:
    """Return the times of a process with an empty cache (`cold`), and of a second process after it (`cached`).

    Args:
        device: as for `Device.parse`.
        second: the kernel after saxpy: "vector_add" or "gemm".
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CUTILE_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.first_launch", "--device", device, "--second", second]
        launches: dict[str, Launches] = {}
        for state in ("cold", "cached"):
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            launches[state] = Launches(**json.loads(done.stdout))
        return launches


def main() -> None:
    """Launch two kernels in this process and print how long each took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--second", choices=("vector_add", "gemm"), default="vector_add")
    options = parser.parse_args()
    with Device.parse(options.device):
        x = api.ones((4096,), f32).sync()  # makes the context; compiles a kernel only where the device needs one
        y = api.ones((4096,), f32).sync()
        # Imported here, so that their lazy imports count, and the imports of every program do not.
        from kernels.gemm import matmul
        from kernels.saxpy import axpy
        from kernels.vector_add import add

        a = api.ones((256, 256), f16).sync()

        with ImportClock() as imports:
            start = time.perf_counter()
            axpy(y, 2.0, x).sync()
            first = time.perf_counter() - start
        start = time.perf_counter()
        _ = add(x, y).sync() if options.second == "vector_add" else matmul(a, a).sync()
        second = time.perf_counter() - start
    print(json.dumps(asdict(Launches(first, second, imports.seconds, "numba" in sys.modules))))


if __name__ == "__main__":
    main()
