"""`python -m cutile cache`: the compiled kernels on disk: where, how many, which; and removing them."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from cutile import config
from cutile.compile.driver import disk_store


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("cache", help="compiled kernels on disk", description=__doc__)
    parser.add_argument("--list", action="store_true", help="one line per compiled kernel, the last used first")
    parser.add_argument("--clear", action="store_true", help="remove them all")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what there is, or remove it."""
    store = disk_store(config.load().cache_directory)
    entries = sorted(store.entries(), key=lambda path: path.stat().st_mtime, reverse=True)
    size = sum(_size(each) for each in entries)
    if options.clear:
        store.clear()
        print(f"removed {len(entries)} compiled kernels ({size / 2**20:.1f} MiB) from {store.folder}")
        return 0
    print(f"{len(entries)} compiled kernels, {size / 2**20:.1f} MiB, in {store.folder}")
    if options.list:
        for each in entries:
            print(_line(each))
    return 0


def _size(entry: Path) -> int:
    return sum(each.stat().st_size for each in entry.iterdir())


def _line(entry: Path) -> str:
    try:
        meta = json.loads((entry / "meta.json").read_text())
        backend, arch, _ = meta["target"]
        what = f"{meta['entry']:24} {backend} {arch}"
    except (OSError, ValueError, KeyError):
        what = "damaged; the next use of it compiles again"
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.stat().st_mtime))
    return f"  {used}  {_size(entry) / 1024:8.1f} KiB  {entry.name[:12]}  {what}"
