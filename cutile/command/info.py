"""`python -m cutile info` and `cache`: the installation, and the disk cache.

`info` prints devices, versions and settings, and tries every backend; for one that does not work, it shows why. `cache`
lists or removes the compiled kernels on disk.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from cuda_async import Device, device_count
from cutile import config
from cutile.backend.registry import BACKENDS, row_of
from cutile.compile.store import META, Entry, disk_store, read_fields
from cutile.entry import entry
from cutile.host import api
from cutile.installation import NEEDS, Need, is_left_out, missing, needed, smells_of_installation
from cutile.language import Mut
from cutile.launch.target import use_backend


@dataclass(frozen=True)
class Trial:
    """The result of trying a backend: to compile a kernel, and run it on a device.

    Attributes:
        backend: its name.
        works: whether the kernel was compiled, and computed the right numbers if it ran.
        says: the times, or the failure and its remedy.
        installed: False if the user did not install the extra with its compiler. That is no failure.
    """

    backend: str
    works: bool
    says: str
    installed: bool = True


def add(commands: Any) -> None:
    """Add `info` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="devices, versions, and which backends work",
        description="Devices, versions, settings, and backends that work; for one that does not, it shows why.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 where a backend that is installed does not work."""
    facts = collect()
    print(json.dumps(facts, indent=1) if options.json else _text(facts))
    return 0 if all(row["works"] or not row["installed"] for row in facts["backends"]) else 1


def collect() -> dict[str, Any]:
    """The report as plain data, for JSON."""
    names = {need.distribution for needs in NEEDS.values() for need in needs}
    versions = {need.distribution: need.version for needs in NEEDS.values() for need in needs}
    return {
        "cutile": Need("cutile", "").version or "used from its checkout",  # the checkout has no installed version
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: versions[name] for name in sorted(names)},
        "devices": [_device(device) for device in _devices()],
        "cache": str(disk_store(config.load().cache_directory).folder),
        "backends": [asdict(trial(name)) for name in BACKENDS],
    }


def _devices() -> list[Device]:
    return [Device.host(), *(Device(i) for i in range(device_count()))]


def _device(device: Device) -> dict[str, Any]:
    properties = device.properties
    return {
        "device": str(device),
        "name": properties.name,
        "arch": properties.arch,
        "processors": device.multiprocessor_count,
        "memory_bytes": properties.total_memory_bytes,
    }


def _increment(y: Mut) -> None:
    """The kernel that backends are tried with."""
    y.store(y.load() + 1)


def trial(backend: str) -> Trial:
    """Compile a kernel by a backend, and run it on a device that the backend serves."""
    start = time.perf_counter()
    increment = entry(_increment)  # a kernel of this trial: another one's machine code is kept
    if is_left_out(backend):
        return Trial(backend, False, "\n".join([missing(backend)[0].remedy, *needed(backend)]), installed=False)
    try:
        kind, arch = row_of(backend).devices[0], row_of(backend).example
        if device_count(kind) == 0:
            increment.inspect(_zeros(Device.host()), stage="log", arch=arch)  # compiles, as below
            return Trial(backend, True, f"compiles for {arch} in {_since(start)}; no GPU here")
        device = Device.of_kind(kind)
        with device, use_backend(backend):
            increment.inspect(_zeros(device), stage="log")  # the log is the compiler's: the disk cache has none
            compiled = _since(start)
            result = increment(_zeros(device)).first().unpartition().sync().to_numpy().sync()
        if result.tolist() != [1.0] * 8:
            return Trial(backend, False, f"computes {result.tolist()} in place of ones")
        return Trial(backend, True, f"compiles in {compiled} and runs on {device}")
    except Exception as error:  # any failure is a result of the trial
        failure = f"{type(error).__name__}: {error}"
        if not smells_of_installation(error):
            return Trial(backend, False, failure)
        packages = [need.distribution for need in missing(backend)]
        first = f"{', '.join(packages)}: not installed" if packages else failure
        return Trial(backend, False, "\n".join([first, *needed(backend)]))


def _zeros(device: Device) -> Any:
    with device:
        return api.zeros((8,)).sync().partition((4,))


def _since(start: float) -> str:
    return f"{time.perf_counter() - start:.2f} s"


def _text(facts: dict[str, Any]) -> str:
    lines = [f"cutile {facts['cutile']}, Python {facts['python']}, {facts['platform']}", ""]
    for device in facts["devices"]:
        size = f", {device['memory_bytes'] / 2**30:.0f} GiB" if device["memory_bytes"] else ""
        lines.append(
            f"  {device['device']:8} {device['name']} ({device['arch']}), {device['processors']} processors{size}"
        )
    lines += ["", *(f"  {name:18} {version or 'not installed'}" for name, version in facts["packages"].items()), ""]
    lines += [f"  compiled kernels are kept in {facts['cache']}", ""]
    for row in facts["backends"]:
        first, *rest = row["says"].splitlines()
        state = "works" if row["works"] else "DOES NOT WORK" if row["installed"] else "not installed"
        lines.append(f"  {row['backend']:10} {state}: {first}")
        lines += [f"             {line}" for line in rest]
    return "\n".join(lines)


# -- compiled kernels on disk -----------------------------------------------------------------


def add_cache(commands: Any) -> None:
    """Add `cache` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "cache", help="compiled kernels on disk", description="List or remove the compiled kernels on disk."
    )
    parser.add_argument("--list", action="store_true", help="one line per compiled kernel, the last used first")
    parser.add_argument("--clear", action="store_true", help="remove them all")
    parser.set_defaults(run=run_cache)


def run_cache(options: argparse.Namespace) -> int:
    """Print the number and size of the entries, list them, or remove them."""
    store = disk_store(config.load().cache_directory)
    entries = sorted(store.listing(), key=lambda entry: entry.used, reverse=True)
    size = f"{sum(entry.nbytes for entry in entries) / 2**20:.1f} MiB"
    if options.clear:
        store.clear()
        print(f"removed {len(entries)} compiled kernels ({size}) from {store.base}")
        return 0
    print(f"{len(entries)} compiled kernels, {size}, in {store.base}")
    refusal = store.refusal()
    if refusal is not None:
        print(f"they are not used: {refusal}")
    if options.list:
        for entry in entries:
            print(_entry_line(entry))
    return 0


def _entry_line(entry: Entry) -> str:
    try:
        fields = read_fields((entry.path / META).read_bytes())
        backend, arch, _ = fields["target"]
        title = f"{fields['entry']:24} {backend} {arch}"
    except (OSError, ValueError, KeyError, TypeError):
        title = "damaged; the next use of it compiles again"
    time_of_use = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    return f"  {time_of_use}  {entry.nbytes / 1024:8.1f} KiB  {entry.path.name[:12]}  {title}"
