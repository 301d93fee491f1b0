"""Run small products under compute-sanitizer: every access to memory, every race in shared memory, every barrier.

    python -m tests.properties.sanitize                             # all three tools, some minutes
    python -m tests.properties.sanitize --tool racecheck --only cluster --keep logs

Needs a GPU and NVIDIA's tool (part of the CUDA toolkit). What the tools say is counted apart: errors of kernels, errors
of calls of the driver's API, and the one kind of the latter that is no error: CUDA's own bindings ask the driver for
every function that they know, and an older driver answers that it has no such function.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
OPTIONS = {"memcheck": ("--report-api-errors", "all"), "racecheck": ("--racecheck-report", "all"), "synccheck": ()}
USUAL_PLACE = "/usr/local/cuda/bin/compute-sanitizer"
ASKED_FOR = "cuGetProcAddress"
"""The call by which bindings ask whether the driver has a function."""

_HEAD = re.compile(r"^========= (?!COMPUTE-SANITIZER|.*SUMMARY)(\S.*)$", re.MULTILINE)
_SUMMARY = re.compile(r"^========= (\w+ SUMMARY: .*)$", re.MULTILINE)
_CALL = re.compile(r"Program hit (\w+) .* on CUDA API call to (\w+)")
_RIGHT = re.compile(r"^\d+ products are right$", re.MULTILINE)
_EACH = re.compile(r"^right: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """What one tool found.

    Attributes:
        absent: functions that the driver was asked for and does not have.
        errors: how often each other thing was found, by its first line.
        summary: the tool's own last line; empty where it did not come to it.
        right: the program's last line, that all results are right; empty where it did not come to that.
        last: the last product that was right.
    """

    absent: int
    errors: Counter[str]
    summary: str
    right: str
    last: str = ""

    @property
    def clean(self) -> bool:
        """Whether all ran to the end and nothing was found."""
        return bool(self.summary and self.right) and not self.errors

    def __str__(self) -> str:
        errors = [f"{count} x {line}" for line, count in self.errors.most_common()]
        asked = f"{self.absent} functions that this driver does not have were asked for"
        stopped = f"the products did not all run; the last one that did: {self.last or 'none'}"
        said = [self.right or stopped, self.summary or "the tool said nothing in the end", asked]
        return "\n  ".join(["clean" if self.clean else "NOT CLEAN", *said, *errors])


def read(log: str) -> Report:
    """What a tool's output says.

    Example:
        >>> print(read('''3 products are right
        ... ========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) on CUDA API call to cuGetProcAddress_v2.
        ... =========     Host Frame: main
        ... ========= ERROR SUMMARY: 1 error
        ... '''))
        clean
          3 products are right
          ERROR SUMMARY: 1 error
          1 functions that this driver does not have were asked for
    """
    heads: list[str] = _HEAD.findall(log)
    calls = [_CALL.match(head) for head in heads]
    absent = [bool(call and call[2].startswith(ASKED_FOR)) for call in calls]
    errors = Counter(head for head, known in zip(heads, absent, strict=True) if not known)
    summaries: list[str] = _SUMMARY.findall(log)
    right, each = _RIGHT.findall(log), _EACH.findall(log)
    return Report(
        sum(absent), errors, summaries[-1] if summaries else "", right[-1] if right else "", each[-1] if each else ""
    )


def command(sanitizer: str, tool: str, only: str) -> list[str]:
    """What runs the products under a tool."""
    products = [sys.executable, "-m", "tests.properties.small_products", "--device", "cuda", "--only", only]
    return [sanitizer, "--tool", tool, *OPTIONS[tool], *products]


def watch(sanitizer: str, tool: str, only: str, limit: float) -> str:
    """Run the products under a tool and return all that was said; what takes longer than `limit` seconds is ended.

    The tool and what it watches are ended together: a kernel that goes on would keep the GPU from everybody else.
    """
    with subprocess.Popen(
        command(sanitizer, tool, only), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            return started.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            return started.communicate()[0] + f"\n========= ended after {limit:g} seconds\n"
        except BaseException:
            os.killpg(started.pid, signal.SIGKILL)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tools; 0 if all are content, 1 if one is not, 2 if there is no compute-sanitizer."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.sanitize", description=__doc__)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="one of the tools (default: all, in turn)")
    parser.add_argument("--only", default="", help="products whose name has this in it")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a tool may take (default 600)")
    parser.add_argument("--keep", type=Path, help="a folder for what each tool says in full")
    parser.add_argument("--sanitizer", help="the compute-sanitizer to use (default: that on the path)")
    options = parser.parse_args(arguments)
    sanitizer = options.sanitizer or shutil.which("compute-sanitizer") or shutil.which(USUAL_PLACE)
    if sanitizer is None:
        print(f"compute-sanitizer is not on the path, nor {USUAL_PLACE}; it is part of the CUDA toolkit")
        return 2
    clean = True
    for tool in options.tool or TOOLS:
        start = time.monotonic()
        log = watch(sanitizer, tool, options.only, options.limit)
        found = read(log)
        clean = clean and found.clean
        print(f"{tool} ({time.monotonic() - start:.0f} s): {found}", flush=True)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{tool}.log").write_text(log, encoding="utf-8")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
