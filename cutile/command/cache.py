"""`python -m cutile cache`: list or remove the compiled kernels on disk."""

from __future__ import annotations

import argparse
import time
from typing import Any

from cutile import config
from cutile.compile.store import META, Entry, disk_store, read_fields


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("cache", help="compiled kernels on disk", description=__doc__)
    parser.add_argument("--list", action="store_true", help="one line per compiled kernel, the last used first")
    parser.add_argument("--clear", action="store_true", help="remove them all")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what there is, or remove it."""
    store = disk_store(config.load().cache_directory)
    entries = sorted(store.listing(), key=lambda entry: entry.used, reverse=True)
    size = f"{sum(each.nbytes for each in entries) / 2**20:.1f} MiB"
    if options.clear:
        store.clear()
        print(f"removed {len(entries)} compiled kernels ({size}) from {store.base}")
        return 0
    print(f"{len(entries)} compiled kernels, {size}, in {store.base}")
    refusal = store.refusal()
    if refusal is not None:
        print(f"they are not used: {refusal}")
    if options.list:
        for each in entries:
            print(_line(each))
    return 0


def _line(entry: Entry) -> str:
    try:
        fields = read_fields((entry.path / META).read_bytes())
        backend, arch, _ = fields["target"]
        what = f"{fields['entry']:24} {backend} {arch}"
    except (OSError, ValueError, KeyError, TypeError):
        what = "damaged; the next use of it compiles again"
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    return f"  {used}  {entry.nbytes / 1024:8.1f} KiB  {entry.path.name[:12]}  {what}"
