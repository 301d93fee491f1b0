"""`python -m cutile compile FILE KERNEL`: any stage of a kernel, for any target.

No GPU is needed.

    python -m cutile compile kernels/gemm.py gemm --arch sm_90a --stage source \\
        --arg 'z=f16[4096,4096]/(128,256)' --arg 'x=f16[4096,4096]' --arg 'y=f16[4096,4096]' --generic BK=64
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutile import config
from cutile.backend.interface import FAST_MATH, CompileOptions
from cutile.backend.registry import target_named
from cutile.compile.driver import compile_kernel
from cutile.compile.facts import Fact, TensorFacts, layout_class
from cutile.compile.kernels import KernelCache
from cutile.dtypes import as_dtype
from cutile.entry import Kernel
from cutile.errors import ArgumentError
from cutile.frontend.parameters import Maybe, Parameter
from cutile.frontend.signature import Signature
from cutile.host.shapes import new_shape, row_major_strides
from cutile.launch.launchable import FlattenedCall


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
        _add_option(options, each.name, each.default, str(each.type))
    parser.add_argument("--output", "-o", type=Path, help="write there; needed for the stage image (machine code)")
    parser.set_defaults(run=run)


def _add_option(group: Any, name: str, default: object, kind: str) -> None:
    """Add a compile option.

    It is a flag for False by default, a flag with its opposite for None, else a number.
    """
    flag = f"--{name.replace('_', '-')}"
    if default is False:
        group.add_argument(flag, action="store_true", default=None)
    elif kind == "bool | None":
        group.add_argument(flag, action=argparse.BooleanOptionalAction)
    elif name == "fast_math":
        help_text = f"all, or some of {','.join(FAST_MATH)}; default: none"
        group.add_argument(flag, type=_parts, nargs="?", const=FAST_MATH, metavar="PARTS", help=help_text)
    else:
        group.add_argument(flag, type=int, metavar="N", help=None if default is None else f"default: {default}")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def run(options: argparse.Namespace) -> int:
    """Compile, and print or write the stage."""
    kernel = load_kernel(options.file, options.kernel)
    descriptions = _pairs(options.arg, "--arg")
    cache = _arranged(kernel.cache, descriptions)
    facts = read_facts(cache.signature, descriptions)
    texts = _pairs(options.generic, "--generic")
    generics = kernel.cache.generics(None, {name: _constant(text) for name, text in texts.items()})
    chosen_options = {each.name: getattr(options, each.name) for each in dataclasses.fields(CompileOptions)}
    default = kernel.cache.declared.default
    hints = dataclasses.replace(default, **{name: value for name, value in chosen_options.items() if value is not None})
    # The kernel's hints for the architecture count only beside its very default options, the same object.
    plan = cache.plan(facts, generics, default if hints == default else hints)
    target = target_named(options.arch)
    if options.stage == "image":
        if options.output is None:
            raise ArgumentError("the stage image is machine code: say where it goes with --output FILE")
        _write(options.output, compile_kernel(plan.request(target)).executable.image)
        return 0
    text = plan.render(target, options.stage)
    if options.output is None:
        print(text)
    else:
        _write(options.output, text.encode())
    return 0


def _write(file: Path, data: bytes) -> None:
    """Write a stage. Raises ArgumentError where that fails."""
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ArgumentError(f"--output {file}: it cannot be written: {error.strerror}") from error


def _constant(text: str) -> Any:
    """The value of a generic: a literal of Python's, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # as `literal_eval` says
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
    # An import lists its module before it runs it: dataclasses, for one, look up the module of a class there.
    is_listed = sys.modules.setdefault(spec.name, module) is module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if is_listed:  # as an import does: a later one of this name would find the half of a module
            sys.modules.pop(spec.name, None)
        raise
    kernels = {key: value for key, value in vars(module).items() if isinstance(value, Kernel)}
    if name not in kernels:
        raise ArgumentError(f"{file} has no kernel {name!r}; it has {', '.join(kernels) or 'none'}")
    return kernels[name]


def _pairs(items: Sequence[str], flag: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ArgumentError(f"{flag} {item}: expected NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


# A tensor in a few characters: ELEMENTS [EXTENTS] [.T] [/(TILE) [/(MAP)]], as f16[64,64], f32[64,32]/(16,16)
_FORM = re.compile(
    r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](?P<transposed>\.T)?(?:/\((?P<tile>[\d,\s]+)\)(?:/\((?P<map>[\d,\s]+)\))?)?"
)
EXAMPLE = (
    "x=f16[4096,4096] for a tensor, y=f32[64,32]/(16,16) for a partition, y=f32[64,32]/(16,16)/(2,1) for one that "
    ".map((2, 1), ...) maps, z=f16[64,32].T for a transposed view"
)


def _arranged(cache: KernelCache, descriptions: Mapping[str, str]) -> KernelCache:
    """The kernel with each `Tensor | None` that has no description as None.

    Raises:
        ArgumentError: the kernel takes groups of tensors.
    """
    signature = cache.signature
    if not signature.grouped:
        return cache
    items = [each.item if isinstance(each, Maybe) else each for each in signature.declared.values()]
    if not all(isinstance(item, Parameter) for item in items):
        raise ArgumentError(
            f"{signature.name} takes groups of tensors (a tuple, a dataclass), which --arg cannot describe: call "
            "kernel.inspect(...) in Python, with tensors of api.meta"
        )
    call = FlattenedCall(signature, [descriptions.get(name) for name in signature.declared])
    return cache.arrange(call.key, call.signature)


def read_facts(signature: Signature, descriptions: Mapping[str, str]) -> list[Fact]:
    """The facts of arguments for specialization, by their descriptions.

    Raises:
        ArgumentError: the description of a tensor is missing or has another form; shows the form.
    """
    unknown = descriptions.keys() - set(signature.declared)
    if unknown:
        names = ", ".join(signature.declared)
        raise ArgumentError(f"{signature.name} has no parameter {min(unknown)!r}; it has {names}")
    return [
        None if each.kind == "scalar" else _tensor(each, descriptions.get(each.name)) for each in signature.parameters
    ]


def _tensor(parameter: Parameter, text: str | None) -> TensorFacts:
    if text is None:
        raise ArgumentError(f"say what {parameter.name!r} is, with --arg: {EXAMPLE}")
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ArgumentError(f"--arg {parameter.name}={text}: expected the form of {EXAMPLE}")
    try:
        dtype = as_dtype(form["dtype"])
    except TypeError as error:
        raise ArgumentError(f"--arg {parameter.name}={text}: {error}") from None
    try:
        shape, tile, map_ = (_numbers(form[part] or "") for part in ("shape", "tile", "map"))
    except ValueError:
        raise ArgumentError(f"--arg {parameter.name}={text}: expected the form of {EXAMPLE}") from None
    shape = new_shape(shape, f"--arg {parameter.name}={text}")
    if 0 in tile:
        raise ArgumentError(f"--arg {parameter.name}={text}: the extents of a tile are at least 1, got {tile}")
    if (parameter.kind == "mut") != bool(tile):
        kind = "a partition: add its tile, as in /(16,16)" if parameter.kind == "mut" else "a tensor, without a tile"
        raise ArgumentError(f"--arg {parameter.name}={text}: {parameter.name!r} takes {kind}")
    if parameter.mapped != bool(map_):
        kind = "a mapped partition: add its map, as in /(16,16)/(2,1)" if parameter.mapped else "no map"
        raise ArgumentError(f"--arg {parameter.name}={text}: {parameter.name!r} takes {kind}")
    if len(map_) not in (0, len(tile)) or 0 in map_:
        raise ArgumentError(
            f"--arg {parameter.name}={text}: a map has a positive number for each axis of the tile {tile}, got {map_}"
        )
    strides = row_major_strides(shape)
    if form["transposed"]:
        shape, strides = shape[::-1], strides[::-1]
    layout = layout_class(dtype, shape, strides, 0)  # the address 0 has every alignment, as new tensors have
    return TensorFacts(layout.tiled(shape, tile, map_ or None) if tile else layout, shape)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each.strip())
