"""The record of a measurement: its file, and the conditions of its figures: device, clocks, power, versions."""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from cuda_async import Device, device_count

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
"""The folder of the kept records, and of the pages that are written from them."""

LIBRARIES = (
    "numpy", "scipy", "numba", "llvmlite", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-bindings", "torch",
    "triton", "cupy-cuda13x",
)  # fmt: skip
SENSORS = {
    "sm_mhz": "clocks.sm",
    "sm_max_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
    "driver": "driver_version",
}


def host() -> dict[str, Any]:
    """The computer: its processor, the cores that this process may use, and its Python."""
    cores = Device.host().properties.multiprocessor_count
    return {"machine": platform.machine(), "cores": cores, "python": platform.python_version()}


def versions(names: Sequence[str]) -> dict[str, str]:
    """The installed versions of distributions; those that are not installed are left out."""
    numbers: dict[str, str] = {}
    for name in names:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def machine(device: Device) -> dict[str, Any]:
    """The machine and what is installed on it."""
    properties = device.properties
    return {
        "device": {
            "name": device.name,
            "arch": device.arch,
            "kind": device.kind,
            "processors": properties.multiprocessor_count,
            "cache_bytes": properties.l2_cache_bytes,
        },
        "host": host(),
        "versions": versions(LIBRARIES),
    }


def sensors(device: Device) -> dict[str, float | str]:
    """The present readings of a GPU's sensors; empty if there is no `nvidia-smi`."""
    program = shutil.which("nvidia-smi")
    if device.kind != "cuda" or program is None:
        return {}
    query = f"--query-gpu={','.join(SENSORS.values())}"
    command = [program, query, "--format=csv,noheader,nounits", f"--id={device.ordinal}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return readings(done.stdout) if done.returncode == 0 else {}


def readings(line: str) -> dict[str, float | str]:
    """One line of `nvidia-smi`, by the names of its fields; fields that the device does not report are left out.

    Example:
        >>> readings("1755, 1980, 3201, 698.2, 700.00, [N/A], 580.159.04")["power_w"]
        698.2
    """
    values: dict[str, float | str] = {}
    for name, text in zip(SENSORS, line.strip().split(", "), strict=False):
        if name == "driver":
            values[name] = text
        elif text.replace(".", "", 1).isdigit():
            values[name] = float(text)
    return values


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures as JSON; make the folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def duration(seconds: float) -> str:
    """A time with three digits and a fitting unit.

    Example:
        >>> duration(1.234e-5), duration(0.0123)
        ('12.3 us', '12.3 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def missing() -> str:
    """Say what this machine lacks; "" if nothing is missing."""
    if device_count() < 1:
        return "a GPU is needed, and there is none"
    if importlib.util.find_spec("torch") is None:
        return "torch is needed, and is not installed: pip install torch"
    torch = importlib.import_module("torch")
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU: install one built for CUDA"
