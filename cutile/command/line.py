"""`python -m cutile COMMAND`, or `cutile COMMAND`: the commands.

Errors are shown without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cutile.command import cache, compile, host, info, ops
from cutile.errors import CutileError

COMMANDS = (info, ops, host, compile, cache)


def main(arguments: Sequence[str] | None = None, *, program: str = "cutile") -> int:
    """Run a command; return the exit status: 0, or 1 where something is wrong.

    Args:
        arguments: what was typed behind the program's name; `sys.argv` by default, as for the installed script.
        program: how the program was called, for its help.
    """
    parser = argparse.ArgumentParser(prog=program, description="Tile kernels in Python.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the pipe has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CutileError, ImportError) as error:
        notes = getattr(error, "__notes__", [])
        if isinstance(error, ImportError) and not notes:  # no missing part of a backend, which a note would name
            raise
        print("\n".join([f"{type(error).__name__}: {error}", *notes]), file=sys.stderr)
        return 1
