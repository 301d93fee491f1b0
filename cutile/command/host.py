"""`python -m cutile host`: tensors, launches, streams.

The command lists the functions and classes for callers of kernels, by purpose, with their docstrings. Those of
`cutile.torch` are read from the source text, because PyTorch need not be installed. `python -m cutile ops` lists the
kernel language.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_async
from cutile import errors
from cutile.command.ops import anchor, items, sections
from cutile.errors import ArgumentError

PLACES = ("cutile", "cuda_async", "cutile.bench", "cutile.tune")
"""Modules in which a name is looked up, in order; users import it from the first that has it."""

LEFT_TO_KERNELS = ("cutile.language", "cutile.host.compat", "cuda_async.compat", "cutile.tile")
"""Modules whose members are not listed: the kernel language, and names of the first release."""

GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Define a kernel",
        "[language.md](language.md) has all that a kernel may contain.",
        ("entry", "autotune", "composite", "Composite", "Kernel", "Kernel.inspect", "CompileOptions", "Global"),
    ),
    (
        "Make a tensor",
        "Operations that yield one: `.sync()` runs them. `dtype` is `f32`, `\"f32\"` or a NumPy dtype.",
        ("api.empty", "api.zeros", "api.ones", "api.full", "api.arange", "api.linspace", "api.eye", "api.eye_rect",
         "api.rand", "api.randn", "api.randn_f16", "api.meta"),
    ),
    (
        "Copies from and to the host",
        "These copy, on the CPU too. Without a copy: *Other libraries*, below.",
        ("api.from_numpy", "api.copy_host_to_device", "api.copy_host_vec_to_device", "Tensor.to_numpy", "Tensor.numpy",
         "Tensor.to_host_vec", "api.copy_device_to_host_vec"),
    ),
    (
        "On the device, and between devices",
        "",
        ("api.fill", "api.memcpy", "api.dup", "Tensor.dup", "api.convert", "Tensor.to_device"),
    ),
    (
        "Scans of whole arrays",
        "Operations that yield a new tensor. `ct.scan_blocks` is for kernels of your own that scan.",
        ("api.cumsum", "api.scan", "scan_blocks"),
    ),
    (
        "Tensors and views",
        "Metadata is known at once; values are on the device.",
        ("Tensor", "Tensor.reshape", "Tensor.view", "Tensor.slice", "Tensor.transpose", "Tensor.reinterpret",
         "Tensor.device_pointer", "TensorView"),
    ),
    (
        "Partitions: tiles that a kernel writes",
        "",
        ("Tensor.partition", "Tensor.mut", "api.MutBorrow.partition", "Partition", "Partition.unpartition",
         "Partition.map", "Partition.prefix", "Tensor.partition_prefix", "api.BorrowedPartition"),
    ),
    (
        "Shared ownership of a tensor",
        "",
        ("Tensor.shared", "SharedTensor", "SharedTensor.clone", "SharedTensor.drop", "SharedTensor.try_partition",
         "SharedTensor.unwrap_arc", "Tensor.reclaim"),
    ),
    (
        "Launch a kernel",
        "Calling a kernel makes a `KernelOp`; its methods configure it. It is a `DeviceOp`: *Run and wait*, below.",
        ("KernelOp", "KernelOp.generics", "KernelOp.grid", "KernelOp.compile_options", "KernelOp.render",
         "KernelOp.interpret", "KernelOp.bind", "interpret", "use_backend"),
    ),
    (
        "Kernels of an operation",
        "They are found without running it; see [autotuning.md](../autotuning.md).",
        ("launches_of", "compile_ahead", "Launches"),
    ),
    (
        "Run and wait",
        "`await op` runs and waits as well, also at the top level of a notebook's cell.",
        ("DeviceOp.sync", "DeviceOp.sync_on", "DeviceOp.into_future", "DeviceOp.schedule", "DeviceOp.discard",
         "DeviceFuture", "FutureState"),
    ),
    (
        "Compose operations",
        "",
        ("DeviceOp.then", "DeviceOp.map", "DeviceOp.inspect", "DeviceOp.first", "DeviceOp.last", "DeviceOp.unzip",
         "DeviceOp.shared", "SharedDeviceOp", "value", "zip", "spread", "empty", "with_context", "into_op", "shared",
         "unzip"),
    ),
    (
        "Devices, streams, events",
        "",
        ("Device", "default_device", "set_default_device", "device_count", "Stream", "Event", "SingleStream",
         "StreamPoolRoundRobin", "SchedulingPolicy", "global_policy", "set_global_policy"),
    ),
    (
        "Graphs",
        "A graph is an operation that is recorded once and replayed for the cost of one launch.",
        ("DeviceOp.graph", "DeviceOp.graph_on", "CudaGraph"),
    ),
    (
        "Other libraries",
        "See [beside_other_libraries.md](../beside_other_libraries.md).",
        ("api.from_dlpack", "api.from_foreign", "api.partition", "api.DeviceVec", "api.device_vec",
         "api.DevicePointer"),
    ),
    (
        "PyTorch operators",
        "See [pytorch_operators.md](../pytorch_operators.md). `ctt` is `cutile.torch`, which needs PyTorch.",
        ("ctt.register", "ctt.launch", "ctt.partition", "ctt.partition.map", "ctt.partition.prefix", "ctt.synchronize"),
    ),
    (
        "Measure and tune",
        "See [autotuning.md](../autotuning.md). Names are in `cutile.bench` and `cutile.tune`.",
        ("do_bench", "do_bench_paired", "BenchOptions", "Autotuner", "Config", "load_verified"),
    ),
    (
        "Observe operations",
        "",
        ("DeviceOp.diagram", "instrumented", "Instrument", "ObservedOperation", "add_instrument", "remove_instrument",
         "completion_statistics", "CompletionStatistics", "MemPool", "PoolStatistics"),
    ),
    (
        "GPU code of other compilers",
        "CUDA C++, PTX and cubins. These need a GPU.",
        ("load_module_from_cuda_src", "load_module_from_ptx_src", "load_module_from_file", "load_module_from_bytes",
         "Module", "Function", "LaunchConfig", "AsyncKernelLaunch"),
    ),
    (
        "Operations of your own",
        "See [`cuda_async/op.py`](../../cuda_async/op.py).",
        ("DeviceOp", "ExecutionContext", "Storage", "Lease", "Use", "Pending", "upload", "download", "copy_storage",
         "register_internal_package"),
    ),
)  # fmt: skip

MADE_BY_USERS = frozenset(
    {"CompileOptions", "Global", "Device", "Event", "SingleStream", "StreamPoolRoundRobin", "BenchOptions", "Autotuner",
     "Config", "LaunchConfig", "AsyncKernelLaunch", "Instrument", "Pending", "api.DevicePointer", "ctt.partition"}
)  # fmt: skip
"""Classes that users call; all others come from functions and methods."""


@dataclass(frozen=True)
class HostEntry:
    """A function, class, method or property for callers of kernels.

    Attributes:
        name: the name on the page: "api.zeros", "Tensor.partition", "value".
        module: the module to import it from, such as "cuda_async".
        member: the function, class or property.
        is_value: whether it is read, not called.
    """

    name: str
    module: str
    member: Any
    is_value: bool = False

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @cached_property
    def documentation(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.member) or ""

    @property
    def line(self) -> str:
        """The docstring's first line."""
        return self.documentation.partition("\n")[0]

    @cached_property
    def signature(self) -> str:
        """Its parameters without `self`; "" for properties and classes not called."""
        if self.is_value or (inspect.isclass(self.member) and self.name not in MADE_BY_USERS):
            return ""
        text = re.sub(r"\b(?:cutile|cuda_async|collections|typing|numpy|np)(?:\.\w+)*\.(?=[A-Za-z])", "", self._written)
        text = re.sub(r"= '(\w*)'", r'= "\1"', text).replace("'", "")
        text = re.sub(r"= (BenchOptions)\([^)]*\)", r"= \1()", text)  # the default, whose repr has all fields
        return re.sub(r"^\(self(?:: DeviceOp\[tuple\[U, \.\.\.\]\])?(?:, )?", "(", text)

    @property
    def _written(self) -> str:
        return str(inspect.signature(self.member))


@dataclass(frozen=True)
class Group:
    """Entries that people look for together."""

    title: str
    words: str
    entries: tuple[HostEntry, ...]


def entries() -> tuple[Group, ...]:
    """Every group, its entries in reading order."""
    return tuple(Group(title, words, tuple(_entry_of(name) for name in names)) for title, words, names in GROUPS)


def rest(group: Group) -> Iterator[HostEntry]:
    """Public members of a group's classes that have no entry of their own on the page."""
    named = {name for _, _, names in GROUPS for name in names}
    for entry in group.entries:
        if inspect.isclass(entry.member):
            yield from (each for each in members(entry) if each.name not in named)


def members(entry: HostEntry) -> Iterator[HostEntry]:
    """The public methods and properties of a class for its users, by name."""
    owner: Any = entry.member
    for name in sorted(dir(owner)):
        member: Any = inspect.getattr_static(owner, name)
        at = next((each for each in owner.__mro__ if name in vars(each)), object)
        ours = at.__module__.startswith(("cutile", "cuda_async")) and not at.__module__.startswith(LEFT_TO_KERNELS)
        is_inherited = at is not owner and at.__name__ in ("DeviceOp", "Tensor", "Partition")  # has an entry of its own
        is_inherited = is_inherited or (at.__name__ == "Operation" and owner.__name__ != "DeviceOp")
        if name.startswith("_") or not ours or is_inherited or issubclass(owner, BaseException):
            continue
        if isinstance(member, property | cached_property):
            yield HostEntry(f"{entry.name}.{name}", entry.module, member, True)
        elif isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            yield HostEntry(f"{entry.name}.{name}", entry.module, getattr(owner, name))


def _entry_of(name: str) -> HostEntry:
    head, *path = name.split(".")
    if head == "ctt":
        owner = torch_member(path[0])
        return HostEntry(name, TORCH, getattr(owner, path[1]) if path[1:] else owner)
    for place in PLACES:
        module: ModuleType = importlib.import_module(place)
        owner: Any = vars(module).get(head)
        if owner is None:
            continue
        for part in path[:-1]:
            owner = getattr(owner, part)
        if not path:
            return HostEntry(name, place, owner)
        member: Any = inspect.getattr_static(owner, path[-1])
        if isinstance(member, property | cached_property):
            return HostEntry(name, place, member, True)
        return HostEntry(name, place, getattr(owner, path[-1]))
    raise LookupError(f"host page: nothing public is called {name}")


TORCH = "cutile.torch"


@cache
def torch_names() -> dict[str, str]:
    """The public names, and the module that has each."""
    tree = _tree(f"{TORCH}.__init__")
    return {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def torch_member(name: str) -> Any:
    """A function or class with its signature and docstrings, for `inspect`.

    Raises:
        LookupError: there is no such name.
    """
    module = torch_names().get(name)
    if module is None:
        raise LookupError(f"{TORCH} has no {name!r}")
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _stand_in(node, module)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and ast.unparse(node.targets[0]) == name:
            return torch_member(node.value.id)  # another name for it
    raise LookupError(f"{module} defines no {name!r}")


def _tree(module: str) -> ast.Module:
    folder = Path(__file__).parents[1]
    return ast.parse(folder.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))


def _stand_in(node: ast.FunctionDef | ast.ClassDef, module: str) -> Any:
    """A stand-in with the signature and docstrings of a definition.

    Of its text only literals are evaluated.
    """
    documentation = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return _function(node, module, documentation)
    methods = {each.name: _stand_in(each, module) for each in node.body if isinstance(each, ast.FunctionDef)}
    class_: Any = type(node.name, (), {**methods, "__doc__": documentation, "__module__": module})
    if "__init__" in methods:
        signature = inspect.signature(methods["__init__"])
        class_.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # without self
    return class_


def _function(node: ast.FunctionDef, module: str, documentation: str) -> Any:
    def stand_in() -> None: ...

    function: Any = stand_in
    function.__name__, function.__qualname__, function.__module__ = node.name, node.name, module
    function.__doc__ = documentation
    function.__signature__ = inspect.Signature(
        list(_parameters(node.args)), return_annotation=_annotation(node.returns, inspect.Signature.empty)
    )
    return function


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    empty, kinds = inspect.Parameter.empty, inspect.Parameter
    positional = [(each, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    positional += [(each, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    parameters = [(each, kind, default) for (each, kind), default in zip(positional, defaults, strict=True)]
    if arguments.vararg is not None:
        parameters.append((arguments.vararg, kinds.VAR_POSITIONAL, None))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parameters += [(each, kinds.KEYWORD_ONLY, default) for each, default in named]
    if arguments.kwarg is not None:
        parameters.append((arguments.kwarg, kinds.VAR_KEYWORD, None))
    for each, kind, default in parameters:
        value = empty if default is None else ast.literal_eval(default)
        yield inspect.Parameter(each.arg, kind, default=value, annotation=_annotation(each.annotation, empty))


def _annotation(node: ast.expr | None, absent: Any) -> Any:
    """The text of an annotation, as `from __future__ import annotations` leaves it."""
    return absent if node is None else ast.unparse(node)


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "host", help="what a caller of kernels uses", description=__doc__
    )
    parser.add_argument("name", nargs="?", help="show all about one: api.zeros, Tensor.partition")
    parser.add_argument("--markdown", action="store_true", help="docs/reference/host.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or one entry, or the page."""
    if options.markdown:
        print(page(), end="")
        return 0
    all_entries = [entry for group in entries() for entry in (*group.entries, *rest(group))]
    if options.name is None:
        for group in entries():
            print(f"{group.title}\n")
            print(
                "\n".join(f"    {entry.name + entry.signature}\n        {entry.line}" for entry in group.entries) + "\n"
            )
        print(f"{len(all_entries)} entries; `python -m cutile host NAME` shows all about one.")
        return 0
    print("\n\n".join(map(_whole, _named(str(options.name), all_entries))))
    return 0


def _named(name: str, candidates: list[HostEntry]) -> list[HostEntry]:
    """The entries of a full name, or those whose last part it is."""
    matches = [entry for entry in candidates if entry.name == name] or [
        entry for entry in candidates if entry.last == name
    ]
    if not matches:
        guesses = difflib.get_close_matches(
            name, [each for entry in candidates for each in (entry.name, entry.last)], n=1
        )
        remedy = f"did you mean {guesses[0]!r}?" if guesses else "`python -m cutile host` lists what there is"
        raise ArgumentError(f"the host has no {name!r}; {remedy} What kernels may write is in `python -m cutile ops`.")
    return matches


def _whole(entry: HostEntry) -> str:
    lines = [entry.name + entry.signature, "", *("    " + line for line in entry.documentation.splitlines())]
    return "\n".join(line.rstrip() for line in lines)


HEAD = """# The host

The functions and classes for callers of kernels, grouped by purpose. `python -m cutile host --markdown` writes this
page from the docstrings; a test compares them. [language.md](language.md) has the functions for kernels. Names without
a module, such as `api` and `Tensor`, are in `cutile`, which examples call `ct`. Shapes are tuples of extents; strides
are in elements, and sizes in bytes if they say so. Errors inherit the built-in that one would expect (`ValueError`,
`TypeError`, `MemoryError`); *Errors*, at the end, lists them.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n".join(f"- [{group.title}](#{anchor(group.title)})" for group in entries())]
    parts[-1] += "\n- [Errors](#errors)\n"
    for group in entries():
        parts.append(f"## {group.title}\n")
        if group.words:
            parts.append(f"{group.words}\n")
        parts.extend(_entry(entry) for entry in group.entries)
        parts.extend(_table(group))
    return "\n".join([*parts, *_errors()])


def _entry(entry: HostEntry) -> str:
    lines = [f"### `{entry.name}`\n"]
    whence = f"From `{entry.module}`." if entry.module != "cutile" and "." not in entry.name else ""
    call = f"`{entry.last}{entry.signature}`" if entry.signature else ""
    if call or whence:
        lines.append("  \n".join(filter(None, (call, whence))) + "\n")
    for heading, text in sections(entry.documentation):
        if heading in ("Example", "Examples"):
            lines.append(f"```pycon\n{text}\n```\n")
        elif heading:
            lines.append(f"{heading}:\n\n{items(text)}\n")
        else:
            lines.append(f"{text}\n")
    return "\n".join(lines)


def _table(group: Group) -> Iterator[str]:
    others = list(rest(group))
    if others:
        yield "| | |\n| --- | --- |"
        yield from (f"| `{_cell(each.name + each.signature)}` | {_cell(each.line)} |" for each in others)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _is_error(name: str, kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseException) and not name.startswith("_")


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield "[errors.md](errors.md) says which failure gives which error.\n"
    yield "| Error | Is a | Raised when |\n| --- | --- | --- |"
    members = [(name, place.__name__, getattr(place, name)) for place in (cuda_async, errors) for name in dir(place)]
    names = [name for name, _, kind in members if _is_error(name, kind)]
    for name, place, kind in sorted(members, key=lambda each: each[:2]):
        if _is_error(name, kind):
            of = f" of `{place.partition('.')[0]}`" if names.count(name) > 1 else ""
            bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            yield f"| `{name}`{of} | {bases} | {_cell((inspect.getdoc(kind) or '').partition(chr(10))[0])} |"
    yield ""
