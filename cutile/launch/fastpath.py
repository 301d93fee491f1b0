"""The fast path of a launch: functions generated for one kernel.

They stand in place of the general way.

    recognizer   a call's arguments -> what a launch needs      general way: `Launchable.check`, `plan` and `grid`
    finder       checked arguments -> plan and grid             general way: `Launchable.plan` and `grid`
    enqueuer     that -> the driver's call                      general way: `CompiledKernel` (`compiled_kernel.py`)
    repeater     addresses and numbers -> the driver's call     general way: the two above

None of them decides anything: where the arguments are not of the usual kinds, the recognizer answers None, the enqueuer
calls the general way, and there is no repeater. The general way says what is wrong. Tests run both ways over random
arguments and compare them; `tests/golden/launch/` shows the text of each function.

The text of a function is a pure function of the kernel's signature and parameters (`*_text`). What it uses beside its
arguments is named in the scope that it is defined in. Two statements share a line where that saves an instruction.
Each text has a file name of its own, so that tracebacks show its lines and breakpoints hold.

One generated function packs the plain numbers of a launch: one for each parameter of the compiled kernel. It is an
expression, `[c[0].address, c[0].shape[0], c[1], ..., g[2]]`, in place of a walk over a description of the parameters.
A tensor map's item is a tuple: the tensor's address, shape and strides.
"""

from __future__ import annotations

import functools
import linecache
import re
import threading
from collections.abc import Callable, Sequence, Set
from operator import index
from typing import TYPE_CHECKING, Any, cast

from cuda_async import DeviceOp, OwnershipError, Storage
from cuda_async.core.lease import Lease
from cutile.backend.interface import Argument, Parameter
from cutile.compile.driver import Compiled
from cutile.dtypes import f64
from cutile.launch.arguments import EVERY_FLOAT, Checked, check_position, is_op
from cutile.launch.views import Grid

if TYPE_CHECKING:
    from cuda_async import Device, Stream
    from cutile.backend.interface import Packed
    from cutile.compile.kernels import KernelCache, Plan
    from cutile.frontend.parameters import Parameter as Declared
    from cutile.frontend.signature import Signature

__all__ = (
    "Enqueue",
    "Recognize",
    "Recognized",
    "Recognizers",
    "ViewUse",
    "define",
    "enqueue_text",
    "enqueuer",
    "expression",
    "finder",
    "finder_text",
    "number_of",
    "numbers_of",
    "recognizer",
    "recognizer_text",
    "repeat_text",
    "repeater",
    "unrecognized",
)

_MAX_TEXTS = 4096
"""Texts kept for tracebacks, about a kilobyte each. Tracebacks through later functions show no lines."""

_MAX_TYPES = 256
"""Types of arguments of a kernel whose recognizer is kept; others are looked up anew."""

_texts: dict[str, str] = {}


def define(what: str, text: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Define a function from its text, and return it.

    Args:
        what: what the function is for; part of the file name that tracebacks show, `<cutile launch: what>`.
        text: the definition.
        scope: the names that the function uses.
    """
    file = _file_of(what, text)
    exec(compile(text, file, "exec"), scope)
    return scope[text.removeprefix("def ").partition("(")[0]]


def _file_of(what: str, text: str) -> str:
    """A file name for a text.

    Equal texts share it; a number tells other texts for the same purpose apart.
    """
    file, number = f"<cutile launch: {what}>", 1
    while _texts.get(file, text) != text:
        number += 1
        file = f"<cutile launch: {what}, {number}>"
    if file not in _texts and len(_texts) < _MAX_TEXTS:
        _texts[file] = text
        # The time of change is None: `linecache.checkcache` keeps such an entry, and looks for no file.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return file


Number = Callable[[Sequence[Checked], Grid], Argument]
Numbers = Callable[[Sequence[Checked], Grid], list[Argument]]


def numbers_of(compiled: Compiled) -> Numbers:
    """The function that packs a compiled kernel's numbers."""
    numbers = compiled.memo.get("numbers")
    if numbers is None:
        items = ", ".join(map(expression, compiled.executable.parameters))
        text = f"def pack(c, g):\n    return [{items}]\n"
        numbers = compiled.memo["numbers"] = define(f"pack numbers of {compiled.executable.entry}", text, {})
    return numbers


def expression(parameter: Parameter) -> str:
    """The number of one parameter, as text of checked arguments `c` and grid `g`."""
    # `index`: an executable may come from a file, and nothing but integers of it may get into text that is executed.
    axis, owner = index(parameter.axis), f"c[{index(parameter.argument)}]"
    by_kind = {
        "grid": f"g[{axis}]",
        "scalar": owner,
        "pointer": f"{owner}.address",
        "extent": f"{owner}.shape[{axis}]",
        "stride": f"{owner}.strides[{axis}]",
        "workspace": "0",  # the backend replaces it by an address at the launch
        "report": "0",  # likewise
        "tensor_map": f"({owner}.address, {owner}.shape, {owner}.strides)",
    }
    return by_kind[parameter.kind]


@functools.cache
def number_of(parameter: Parameter) -> Number:
    """The function that packs the number of one parameter."""
    return define("pack one number", f"def pack(c, g):\n    return {expression(parameter)}\n", {})


ViewUse = tuple[str, Storage, bool, int, int]
"""An argument's bytes that a launch uses: the fields of `cuda_async.Use` as a plain tuple, which is made faster."""

Recognized = tuple[list[Checked], "Sequence[ViewUse]", "Plan | None", "Grid | None", "bool | None"]
"""Checked arguments, their uses, the plan, the grid, and whether no other lease is on their memory.

Where some arguments are ops, their items and their uses are missing (None in the list), the plan and the grid are None,
and None stands in place of True.
"""

Recognize = Callable[[tuple[Any, ...], Lease, "tuple[Any, ...] | None"], "Recognized | None"]
"""`recognize(arguments, lease, more)`: check arguments, and lend them to a lease.

`more` is the part of a plan's key for generics and options; None, with which no plan is found, where it has not been
computed. The result is None for arguments of unusual kinds, and for a specialization that no call has made yet.
"""

Enqueue = Callable[["Sequence[Checked]", "Sequence[ViewUse]", Grid, "Stream"], None]
"""`enqueue(checked, uses, grid, stream)`: verify the launch, order its memory, launch."""

Repeat = Callable[..., None]
"""`repeat(stream, *addresses and numbers)`: launch with other addresses and numbers than the last time."""


def unrecognized(arguments: tuple[Any, ...], lease: Lease, more: tuple[Any, ...] | None) -> None:
    """The recognizer of kernels whose arguments only the general way checks."""


class Recognizers(dict[tuple[type, ...], Recognize]):
    """The recognizers of a kernel, by the types of arguments.

    They differ in which arguments are ops.
    """

    def __init__(self, kernel: KernelCache) -> None:
        super().__init__()
        self._kernel = kernel
        self._by_ops: dict[tuple[int, ...], Recognize] = {}
        self._seen: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}

    def __missing__(self, types: tuple[type, ...]) -> Recognize:
        signature = self._kernel.signature
        # The general way checks scalars whose dtype is a generic, and raw pointers.
        if signature.generic_scalars or any(each.kind == "pointer" for each in signature.parameters):
            recognize = unrecognized
        else:
            ops = tuple(position for position, kind in enumerate(types) if issubclass(kind, DeviceOp))
            recognize = self._by_ops.get(ops)
            if recognize is None:
                seen = self._seen.setdefault(ops, set())
                recognize = self._by_ops[ops] = recognizer(self._kernel, ops, seen)
        if len(self) < _MAX_TYPES:
            self[types] = recognize
        return recognize

    def learn(self, checked: Sequence[Checked]) -> None:
        """Have arguments of the same layouts recognized.

        The general way has checked them.

        Args:
            checked: the arguments; None for ops.
        """
        if any(each.kind == "pointer" for each in self._kernel.signature.parameters):
            return  # `__missing__` leaves these kernels to the general way
        ops = tuple(position for position, each in enumerate(checked) if each is None)
        parameters = zip(self._kernel.signature.parameters, checked, strict=True)
        layouts = tuple(cast("Any", view).layout for each, view in parameters if each.kind != "scalar" and view)
        seen = self._seen.setdefault(ops, set())
        if None not in layouts and len(seen) < _MAX_TYPES:
            seen.add(layouts)


def recognizer(kernel: KernelCache, ops: Sequence[int] = (), seen: Set[tuple[Any, ...]] = frozenset()) -> Recognize:
    """Make a function that recognizes arguments.

    Args:
        kernel: the kernel.
        ops: the positions of arguments that are ops: these are left out.
        seen: where some are ops, the layouts of the other arguments in launches that the general way has accepted.
    """
    signature = kernel.signature

    def scalar(position: int, argument: Any) -> Checked:
        return None if is_op(argument) else check_position(signature, position, argument)

    scope = {"OwnershipError": OwnershipError, "plans": kernel.plans, "scalar": scalar, "seen": seen}
    return define(f"recognize arguments of {signature.name}", recognizer_text(signature, ops), scope)


def recognizer_text(signature: Signature, ops: Sequence[int] = ()) -> str:
    """The text of a kernel's recognizer; arguments are as for `recognizer`."""
    everything = list(enumerate(signature.parameters))
    parameters = [(i, parameter) for i, parameter in everything if i not in ops]
    tensors = [(i, parameter) for i, parameter in parameters if parameter.kind != "scalar"]
    uses = [f"({each.title!r}, s{i}, {each.writes}, c{i}.start, c{i}.stop)," for i, each in tensors]
    unknown = [f"c{i} is None" for i, each in parameters if each.kind == "scalar"]
    plan, grid, alone = "None", "None", "True"
    find: list[str] = []
    if ops:
        unknown.insert(0, f"({' '.join(f'c{i}.layout,' for i, _ in tensors)}) not in seen")
    else:
        key, doubts, grid = _plan_words(signature)
        plan, find, unknown = "plan", [f"    plan = plans.get({key})"], ["plan is None", *unknown, *doubts]
    if tensors:
        alone = f"{''.join(f'len(l{i}) == ' for i, _ in tensors)}1"
    lines = [
        "def recognize(arguments, lease, more):",
        f"    {_names('a', everything)} = arguments" if everything else "    pass",
        "    try:",
        *(f"        c{i} = {_checked_text(i, parameter)}" for i, parameter in parameters),
        *([] if parameters else ["        pass"]),
        "    except (AttributeError, OwnershipError):",
        "        return None",
        *find,
        *([f"    if {' or '.join(unknown)}:", "        return None"] if unknown else []),
        *(f"    s{i} = c{i}.storage" for i, _ in tensors),
        "    uses = lease.uses = (",
        *(f"        {use}" for use in uses),
        "    )",
        # Append before counting: of two threads that lend the same memory, at least one counts both leases.
        *(f"    l{i} = s{i}.leases; l{i}.append(lease)" for i, _ in tensors),
        f"    alone = {alone}",
        f"    return [{' '.join('None,' if i in ops else f'c{i},' for i, _ in everything)}], uses, {plan}, {grid}, "
        + ("None if alone else False" if ops else "alone"),
    ]
    return "\n".join(lines) + "\n"


def _plan_words(signature: Signature) -> tuple[str, list[str], str]:
    """A plan's key, conditions that leave it to the general way, and the grid.

    All three are text.
    """
    tensors = [(i, each) for i, each in enumerate(signature.parameters) if each.kind != "scalar"]
    # As `KernelCache.plan`: extents, which `facts` has, count only where the signature declares some.
    keys = [f"c{i}.facts," if each.declares else f"c{i}.layout," for i, each in tensors]
    disagreeing = [
        f"c{each.position}.shape[{each.axis}] != c{each.other}.shape[{each.other_axis}]"
        for each in signature.agreements
    ]
    outputs = [f"c{i}" for i, each in tensors if each.kind == "mut"]
    doubts = [*_grid_unclear(outputs), *disagreeing]
    return f"({' '.join([*keys, 'more'])},)", doubts, f"{outputs[0]}.grid" if outputs else "None"


def finder(kernel: KernelCache) -> Callable[[Sequence[Checked], tuple[Any, ...]], tuple[Plan, Grid] | None]:
    """Make the function that finds the plan and the grid for checked arguments.

    It returns None where the general way has to look: for a specialization that no call has made yet, say. Pointers
    have no layouts, so their kernels are always left to it.
    """
    signature = kernel.signature
    if any(each.kind == "pointer" for each in signature.parameters):
        return lambda checked, more: None
    return define(f"find the plan of {signature.name}", finder_text(signature), {"plans": kernel.plans})


def finder_text(signature: Signature) -> str:
    """The text of a kernel's finder."""
    key, doubts, grid = _plan_words(signature)
    lines = [
        "def find(c, more):",
        f"    {_names('c', list(enumerate(signature.parameters)))} = c" if signature.parameters else "    pass",
        f"    plan = plans.get({key})",
        f"    return None if {' or '.join(['plan is None', *doubts])} else (plan, {grid})",
    ]
    return "\n".join(lines) + "\n"


def _names(letter: str, items: Sequence[tuple[int, object]]) -> str:
    """The variables of some parameters, with a comma behind each."""
    return " ".join(f"{letter}{i}," for i, _ in items)


_PROTOCOLS = {"tensor": "input", "mut": "output", "shared": "shared"}


def _checked_text(position: int, parameter: Declared) -> str:
    """The expression that checks an argument `a0`.

    It raises AttributeError for another kind of argument.
    """
    name = f"a{position}"
    if parameter.kind != "scalar":
        return f"{name}.__kernel_{_PROTOCOLS[parameter.kind]}__()"
    general = f"scalar({position}, {name})"
    if getattr(parameter.dtype, "kind", None) != "float":
        return general
    in_range = "" if parameter.dtype is f64 else f" and {-EVERY_FLOAT} <= {name} <= {EVERY_FLOAT}"
    return f"{name} if type({name}) is float{in_range} else {general}"


def _grid_unclear(outputs: Sequence[str]) -> list[str]:
    """Conditions under which partitions do not determine the grid.

    There is no partition, their grids differ, or one is a prefix.
    """
    if not outputs:
        return ["True"]
    differing = [f"{outputs[0]}.grid != {output}.grid" for output in outputs[1:]]
    return [*differing, *(f"not {output}.exact" for output in outputs)]


def enqueuer(
    signature: Signature,
    parameters: Sequence[Parameter],
    packed: Packed,
    device: Device,
    *,
    general: Enqueue,
    verify: Callable[[Sequence[Checked], Grid], None] | None,
    check_devices: Callable[[str, Sequence[ViewUse], Device], None],
) -> Enqueue:
    """Make the function that enqueues a kernel by numbers in memory and one call.

    Args:
        signature: the kernel's.
        parameters: the compiled kernel's.
        packed: how its numbers are packed, and the call that launches it.
        device: where it was loaded.
        general: enqueues the launches that need more: of more blocks than the call takes, or of tensors of addresses.
        verify: raises for a launch that fails a check; None for a kernel without checks.
        check_devices: raises where an argument is on another device.
    """
    scope = {
        "general": general,
        "verify": verify,
        "device": device,
        "check_devices": check_devices,
        "name": signature.name,
        "most": packed.most,
        **_scope(packed),
    }
    return define(f"enqueue {signature.name}", enqueue_text(signature, parameters, verify is not None), scope)


def enqueue_text(signature: Signature, parameters: Sequence[Parameter], verifies: bool) -> str:
    """The text of a compiled kernel's enqueuer."""
    arguments = list(enumerate(signature.parameters))
    tensors = [(i, parameter) for i, parameter in arguments if parameter.kind in ("tensor", "mut", "shared")]
    numbers = [re.sub(r"c\[(\d+)\]", r"c\1", expression(parameter)) for parameter in parameters]
    elsewhere = " or ".join(f"s{i}.device is not device" for i, _ in tensors)
    lines = [
        "def enqueue(c, uses, g, stream):",
        "    blocks = g[0] * g[1] * g[2]",
        # A tensor of addresses adds uses of the memory at these addresses, which only `general` orders.
        f"    if len(uses) != {len(tensors)} or blocks > most:",
        "        return general(c, uses, g, stream)",
        *(["    verify(c, g)"] if verifies else []),
        *([f"    {_names('c', arguments)} = c"] if arguments else []),
        *(f"    s{i} = c{i}.storage" for i, _ in tensors),
        *([f"    if {elsewhere}:", "        check_devices(name, uses, device)"] if elsewhere else []),
        *(f"    s{i}.order(stream, {parameter.writes})" for i, parameter in tensors),
        *_launch_lines(numbers, "blocks"),
    ]
    return "\n".join(lines) + "\n"


def repeater(
    signature: Signature,
    parameters: Sequence[Parameter],
    packed: Packed,
    checked: Sequence[Checked],
    grid: Grid,
) -> Repeat:
    """Make the function that launches again with equal layouts at other addresses.

    It orders nothing: the caller knows that the memory is on this device, and that all users of the memory share the
    stream.
    """
    text = repeat_text(len(signature.parameters), parameters, checked, grid)
    return define(f"repeat {signature.name}", text, _scope(packed))


def repeat_text(arity: int, parameters: Sequence[Parameter], checked: Sequence[Checked], grid: Grid) -> str:
    """The text of a repeater: extents, strides and the grid stand in it as numbers."""
    numbers = [
        f"v{each.argument}" if each.kind in ("pointer", "scalar") else repr(number_of(each)(checked, grid))
        for each in parameters
    ]
    lines = [
        f"def repeat({', '.join(['stream', *(f'v{i}' for i in range(arity))])}):",
        *_launch_lines(numbers, str(grid[0] * grid[1] * grid[2])),
    ]
    return "\n".join(lines) + "\n"


def _launch_lines(numbers: Sequence[str], blocks: str) -> list[str]:
    """Pack a launch's numbers, launch, and note it in the stream.

    The lines after the launch are those of `Stream.launch_function` and `Stream.hold`, inlined.
    """
    return [
        "    try: memory, where = local.memory",
        "    except AttributeError: memory, where = local.memory = make_memory()",
        f"    pack({', '.join(['memory', '0', *numbers])})",
        f"    launch(stream.driver, {blocks}, where)",
        "    stream.sequence += 1",
        "    if key not in stream.held:",
        "        stream.hold(code)",
    ]


def _scope(packed: Packed) -> dict[str, Any]:
    """The names that `_launch_lines` uses."""
    return {
        "local": threading.local(),  # each thread packs into memory of its own
        "make_memory": packed.memory,
        "code": packed.code,
        "key": id(packed.code),
        "pack": packed.pack,
        "launch": packed.launch,
    }
