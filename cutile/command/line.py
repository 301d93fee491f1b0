"""`python -m cutile COMMAND`: which commands there are, and errors without a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cutile.command import cache, compile, info, ops
from cutile.errors import CutileError

COMMANDS = (info, ops, compile, cache)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, or 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m cutile", description="Tile kernels in Python.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CutileError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
