"""`python -m cutile compile FILE KERNEL`: any stage of a kernel's compilation, for any target, without a GPU.

    python -m cutile compile kernels/gemm.py gemm --arch sm_90a --stage source \\
        --arg 'z=f16[4096,4096]/(128,256)' --arg 'x=f16[4096,4096]' --arg 'y=f16[4096,4096]' --generic BK=64
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutile import config
from cutile.backend.interface import FAST_MATH, CompileOptions
from cutile.backend.registry import target_named
from cutile.command.arguments import EXAMPLE, read_facts
from cutile.compile.driver import compile_kernel
from cutile.entry import Kernel
from cutile.errors import ArgumentError


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="a kernel's code at any stage, for any target",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="the Python file that defines the kernel")
    parser.add_argument("kernel", help="its name there")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=TENSOR", help=EXAMPLE)
    parser.add_argument("--generic", action="append", default=[], metavar="NAME=VALUE", help="BK=64, or E=f16")
    parser.add_argument(
        "--target", "--arch", dest="arch", default="cpu", metavar="ARCH",
        help="cpu (the default), reference, or a GPU's architecture, such as sm_80 or sm_90a; no GPU is needed",
    )  # fmt: skip
    parser.add_argument(
        "--stage", default="source", choices=(*config.STAGES, "image"), help="default: source; plan says it in words"
    )
    options = parser.add_argument_group("compile options", "as in cutile.CompileOptions, which says what each does")
    for each in dataclasses.fields(CompileOptions):
        _add_option(options, each.name, each.default)
    parser.add_argument("--output", "-o", type=Path, help="write there; needed for the stage image (machine code)")
    parser.set_defaults(run=run)


def _add_option(group: Any, name: str, default: object) -> None:
    """One of the compile options, by its own name: a flag for what is False by default, else a number."""
    flag = f"--{name.replace('_', '-')}"
    if default is False:
        group.add_argument(flag, action="store_true", default=None)
    elif name == "fast_math":
        known = f"all, or some of {','.join(FAST_MATH)}; default: none"
        group.add_argument(flag, type=_parts, nargs="?", const=FAST_MATH, metavar="PARTS", help=known)
    else:
        group.add_argument(flag, type=int, metavar="N", help=None if default is None else f"default: {default}")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def run(options: argparse.Namespace) -> int:
    """Compile, and print or write the stage."""
    kernel = load_kernel(options.file, options.kernel)
    facts = read_facts(kernel.cache.signature, _pairs(options.arg, "--arg"))
    texts = _pairs(options.generic, "--generic")
    generics = kernel.cache.generics(None, {name: _constant(text) for name, text in texts.items()})
    given = {each.name: getattr(options, each.name) for each in dataclasses.fields(CompileOptions)}
    default = kernel.cache.declared.default
    hints = dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})
    # The very default lets the kernel's own hints for the architecture count.
    plan = kernel.cache.plan(facts, generics, default if hints == default else hints)
    target = target_named(options.arch)
    if options.stage == "image":
        if options.output is None:
            raise ArgumentError("the stage image is machine code: say where it goes with --output FILE")
        options.output.write_bytes(compile_kernel(plan.request(target)).executable.image)
        return 0
    text = plan.render(target, options.stage)
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def _constant(text: str) -> Any:
    """The value of a generic: a literal of Python's, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def load_kernel(file: Path, name: str) -> Kernel:
    """The kernel `name` of a Python file, which is run as an import would run it.

    Raises:
        ArgumentError: there is no such file, or no such kernel in it; says which there are.
    """
    if not file.is_file():
        raise ArgumentError(f"there is no file {file}")
    sys.path.insert(0, str(Path.cwd()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Kernel)}
    if name not in found:
        raise ArgumentError(f"{file} has no kernel {name!r}; it has {', '.join(found) or 'none'}")
    return found[name]


def _pairs(items: Sequence[str], flag: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ArgumentError(f"{flag} {item}: expected NAME=VALUE")
        made[name.strip()] = value.strip()
    return made
