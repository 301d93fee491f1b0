"""`python -m cutile COMMAND`, or `cutile COMMAND`: the command line.

Each module has commands: a function that adds one to the parser, and a function that runs it. Errors of cutile are
shown without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cutile.command import compile, host, info, ops
from cutile.errors import CutileError
from cutile.installation import Need

_VERSION = Need("cutile", "").version or "used from its checkout"  # the checkout has no installed version

COMMANDS = (info.add, ops.add, host.add, compile.add, info.add_cache)
"""The functions that add commands, in the order of the help."""


def main(arguments: Sequence[str] | None = None, *, program: str = "cutile") -> int:
    """Run a command; return the exit status: 0, or 1 where something is wrong.

    Args:
        arguments: the words behind the program's name; those of `sys.argv` by default.
        program: the program's name, for its help.
    """
    parser = argparse.ArgumentParser(prog=program, description="Tile kernels in Python.")
    parser.add_argument("--version", action="version", version=f"cutile {_VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe: Python's own flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CutileError, ImportError) as error:
        notes = getattr(error, "__notes__", [])
        # A note names the missing part of a backend. Without one, the import failed in the user's code: show where.
        if isinstance(error, ImportError) and not notes:
            raise
        print("\n".join([f"{type(error).__name__}: {error}", *notes]), file=sys.stderr)
        return 1
