"""The whole file: header, imports, function, and the families' printer.

A value that is used once is written in place, unless memory is written in between or the line would get long. Any other
value gets a variable, with the user's name if there is one. Each of the user's lines is quoted once, above its code.
"""

import keyword
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import PurePath
from typing import Any

from cutile.backend.common.abi import kernel_parameters
from cutile.backend.cpu.emit import control, elementwise, memory, reduce
from cutile.backend.cpu.emit._text import (
    ATOM,
    COMPARE,
    RESERVED,
    Expression,
    Statement,
    Text,
    element_type,
    machine_type,
)
from cutile.backend.cpu.lowering.blocking import schedule_words
from cutile.backend.cpu.stage import INDEX, GridSize, ReadInside, Scratch, Size, Stride, TensorAt
from cutile.backend.cpu.streaming import results_of
from cutile.backend.interface import Parameter, ParameterKind, Source, Target
from cutile.errors import IRError, cell_of
from cutile.ir import Block, Constant, Effect, For, Function, Op, TileType, Value, While

EXPRESSIONS: dict[type[Op], Expression] = {
    op: emit for family in (elementwise, control, memory, reduce) for op, emit in family.EXPRESSIONS.items()
}
STATEMENTS: dict[type[Op], Statement] = {
    op: emit for family in (control, memory, reduce) for op, emit in family.STATEMENTS.items()
}
TRAILING_PARAMETERS = 5  # of a lowered function: how many blocks are joined along each axis, and the range
WIDTH = 88  # characters of a line; longer imports and signatures take several lines
MAX_IN_PLACE = 48  # characters of an expression that is written inside another
ALWAYS_IN_PLACE = (Constant, GridSize, Size, Stride)  # literals and parameters, however often they are used
PROCESS_FUNCTIONS = (*reduce.GEMMS.values(), "say", "fail")
INTRINSICS = "cutile.backend.cpu.intrinsics"


class ModulePrinter:
    """Writes one lowered function.

    `_text.Printer` is the part of it that the families' emitters use.
    """

    def __init__(self, function: Function, parameters: tuple[Parameter, ...]) -> None:
        self.function = function
        self.lines: list[str] = []
        self.line_map: dict[int, int] = {}
        self.extra: dict[str, str] = {}  # functions of this process that are called, by name, with their types
        self.sites: dict[str, list[Any]] = {"prints": [], "asserts": []}
        self._names: dict[Value, str] = {}
        self._taken = set(keyword.kwlist)
        self._used: set[str] = set()
        self._depth = 1
        self._quoted: set[int] = set()
        self.chained: Mapping[Op, str] = {}  # see `_text.Printer`
        self._waiting: list[Op] = []  # written in place, and not quoted yet
        self._flags: frozenset[Value] = frozenset()
        self._in_place = self._plan(function)
        # By kind, argument and axis, not by name: a user's parameter may be named as another one's extent.
        self._fixed = {(each.kind, each.argument, each.axis): self._unique(each.name) for each in parameters}
        self._positions = {value: at for at, value in enumerate(function.body.arguments)}
        self.entry = self._unique(function.name)
        # Named here, so that no variable has one of these names in a block that ends before the first call.
        self._functions = {name: self._unique(name) for name in PROCESS_FUNCTIONS}

    # -- names --------------------------------------------------------------------------------------------------

    def _unique(self, stem: str) -> str:
        stem = "".join(c if (c.isalnum() and c.isascii()) or c == "_" else "_" for c in stem)
        if not stem or stem[0].isdigit() or stem in RESERVED:
            stem = f"{stem}_" if stem and not stem[0].isdigit() else f"tile_{stem}"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name

    def name(self, value: Value) -> str:
        """The variable of a value."""
        if value not in self._names:
            self._names[value] = self._unique(value.name or _stem(value))
        return self._names[value]

    def constant(self, value: Value) -> float | None:
        """The number, where a value is a constant."""
        op = self._in_place.get(value)
        return op.value if isinstance(op, Constant) else None

    def alias(self, value: Value, name: str) -> None:
        """Let a value be an existing variable."""
        self._names[value] = name

    def process_function(self, name: str, kind: str) -> str:
        """The parameter with the address of a function of this process."""
        self.extra[name] = kind
        return self._functions[name]

    def site(self, kind: str, facts: Any) -> int:
        """The number of a print or an assertion among the file's, whose facts go with it."""
        self.sites[kind].append(facts)
        return len(self.sites[kind]) - 1

    def own_parameter(self, kind: ParameterKind, x: Value | None = None, axis: int = 0) -> str:
        """The variable of one of the kernel's own plain parameters.

        It is a parameter of the argument `x`, or of the grid if `x` is None.
        """
        return self._fixed[kind, self._positions[x] if x is not None else -1, axis]

    def names(self) -> list[str]:
        """The variables of the kernel's own plain parameters, in their order."""
        return list(self._fixed.values())

    def use(self, *names: str) -> str:
        """Note that the file needs these intrinsics; returns the first name."""
        self._used.update(names)
        return names[0]

    # -- what is written in place -------------------------------------------------------------------------------

    def _plan(self, function: Function) -> dict[Value, Op]:
        """The values that are written where they are used."""
        uses: dict[Value, list[Op]] = {}
        for op in function.walk():
            for value in op.operands:
                uses.setdefault(value, []).append(op)
        in_place: dict[Value, Op] = {}
        _plan_block(function.body, uses, in_place)
        return in_place

    def operand(self, value: Value) -> Text:
        """The expression of an operand: its name, or the expression that computes it."""
        op = self._in_place.get(value)
        if op is None:
            if value in self._flags:
                return Text(f"{self.name(value)} != 0", COMPARE)
            return Text(self.name(value), ATOM)
        if op.location is not None and not isinstance(op, Constant):
            self._waiting.append(op)
        return self._expression(op)

    def _expression(self, op: Op) -> Text:
        emit = EXPRESSIONS.get(type(op))
        if emit is None:
            raise IRError(f"the cpu backend cannot write the operation {op.name!r}")
        return emit(self, op)

    # -- statements ---------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self.lines)

    def line(self, text: str, op: Op | None = None) -> None:
        """Write a statement, below the user's lines that it comes from."""
        sources = [*self._waiting, *([op] if op is not None else [])]
        self._waiting = []
        # A nest of loops over elements is quoted as a whole, above its outermost line; a user's loop line by line.
        if op is not None and op.regions and not _has_user_loop(op) and text.startswith(("for", "if")):
            sources += [inner for block in op.regions for inner in _walk(block)]
        places = sorted({each.location.line: each.location for each in sources if each.location}.items())
        for number, place in places:
            if number not in self._quoted:
                self._quoted.add(number)
                self._write(f"# {self.function.source.get(number, place.text).strip()}")
        self._write(text)
        if places:
            self.line_map[len(self.lines)] = places[-1][0]

    def _write(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def indented(self) -> Generator[None]:
        """One level deeper."""
        self._depth += 1
        outside = set(self._taken)
        yield
        self._depth -= 1
        if not self.chained:  # in a chain, code behind the block may read variables of the block
            self._taken &= outside  # names of the block may be given again

    @contextmanager
    def in_chain(self, chain: Sequence[Op], behind: Sequence[Op]) -> Generator[str]:
        """Let `chained` be `chain`.

        Gives the variable of the branches that stand `behind` the others.
        """
        before, outside = self.chained, set(self._taken)
        flag = self._unique("goes_on")
        self.chained = {**before, **dict.fromkeys(chain, ""), **dict.fromkeys(behind, flag)}
        yield flag
        self.chained = before
        if not before:
            self._taken &= outside

    def block(self, block: Block) -> None:
        """The operations of a block, without its terminator."""
        for op in block.operations:
            if op.terminates or isinstance(op, Scratch):
                continue
            statement = STATEMENTS.get(type(op))
            if statement is not None:
                statement(self, op)
                continue
            (value,) = op.results
            if value in self._in_place:
                if self._length(op) > MAX_IN_PLACE:
                    del self._in_place[value]
                else:
                    continue
            text = self._expression(op).text
            self.line(f"{self.name(value)} = {text}", op)

    def _length(self, op: Op) -> int:
        """Characters of an expression; 0 for one that is always written in place."""
        if isinstance(op, ALWAYS_IN_PLACE):
            return 0
        waiting = list(self._waiting)
        text = self._expression(op).text
        self._waiting = waiting  # it was not written
        return len(text)

    def bind_flags(self, values: frozenset[Value]) -> None:
        """Parameters that arrive as bytes and mean bools."""
        self._flags = values

    def imports(self) -> list[str]:
        """The import of the intrinsics."""
        names = sorted(self._used)
        if not names:  # a kernel that does nothing for these generics
            return []
        short = f"from {INTRINSICS} import {', '.join(names)}"
        if len(short) <= WIDTH:
            return [short]
        return [f"from {INTRINSICS} import (", *(f"    {name}," for name in names), ")"]


def _stem(value: Value) -> str:
    """A name for a value without one, by its kind."""
    if not isinstance(value.type, TileType):
        return "tile"
    if value.type == INDEX:
        return "at"
    return "flag" if value.type.dtype.is_bool else "value"


def _walk(block: Block) -> Iterator[Op]:
    for op in block.operations:
        yield op
        for inner in op.regions:
            yield from _walk(inner)


def _has_user_loop(op: Op) -> bool:
    """Whether an operation is, or has in it, a loop that the user wrote.

    Loops of nests count elements, in i64. The loop over tile blocks, `block`, is treated as the user's: it holds all of
    the user's loops.
    """
    own = isinstance(op, For) and (op.induction.type != INDEX or op.induction.name == "block")
    inner = (each for block in op.regions for each in _walk(block))
    return (
        own
        or isinstance(op, While)
        or any(isinstance(each, While) or (isinstance(each, For) and each.induction.type != INDEX) for each in inner)
    )


def _plan_block(block: Block, uses: dict[Value, list[Op]], in_place: dict[Value, Op]) -> None:
    """Add the values of a block and its regions that are written in place."""
    position = {op: at for at, op in enumerate(block.operations)}
    barriers = [at for at, op in enumerate(block.operations) if op.effect >= Effect.WRITE or op.regions]
    reads: dict[Value, int] = {}  # values in place that read memory: the position of the first read
    for at, op in enumerate(block.operations):
        for inner in op.regions:
            _plan_block(inner, uses, in_place)
        if len(op.results) != 1 or op.regions or isinstance(op, Scratch | TensorAt) or op.effect >= Effect.WRITE:
            continue
        value = op.result
        users = uses.get(value, [])
        begins = min([reads[x] for x in op.operands if x in reads], default=None)
        if op.effect is Effect.READ:
            begins = at if begins is None else begins
        if isinstance(op, ALWAYS_IN_PLACE):
            in_place[value] = op
        elif len(users) == 1 and users[0] in position and not _is_guard(value, users[0]):
            to = position[users[0]]
            if isinstance(users[0], While):  # its first values get lines of their own
                continue
            if begins is not None and any(begins < barrier < to for barrier in barriers):
                continue  # in place, it would read memory after a write that follows it
            in_place[value] = op
            if begins is not None:
                reads[value] = begins


def _is_guard(value: Value, user: Op) -> bool:
    """Whether a bool guards a read: it gets a name, since lines would get long."""
    return isinstance(user, ReadInside) and user.inside is value


def emit_module(function: Function, target: Target) -> Source:
    """The text of a lowered function."""
    arguments = function.body.arguments
    own, trailing = arguments[: len(arguments) - TRAILING_PARAMETERS], arguments[len(arguments) - TRAILING_PARAMETERS :]
    kernel = Function(function.name, Block(own), function.source, function.file)
    parameters = kernel_parameters(kernel)
    printer = ModulePrinter(function, parameters)
    flags: set[Value] = set()
    for value in own:
        printer.alias(value, printer.own_parameter("scalar" if isinstance(value.type, TileType) else "pointer", value))
        if isinstance(value.type, TileType) and value.type.dtype.is_bool:
            flags.add(value)
    printer.bind_flags(frozenset(flags))
    scratch = [op for op in function.body.operations if isinstance(op, Scratch)]
    for value in (*trailing, *(op.result for op in scratch)):
        printer.name(value)
    printer.block(function.body)

    signature = [(name, _plain(each, own)) for name, each in zip(printer.names(), parameters, strict=True)]
    signature += [(printer.name(value), "i64") for value in trailing[:3]]
    signature += [(printer.name(op.result), f"{_scratch_kind(op)}*") for op in scratch]
    signature += [(printer.process_function(name, kind), kind) for name, kind in printer.extra.items()]
    signature += [(printer.name(value), "i64") for value in trailing[3:]]

    head = _header(function, kernel, target)
    names = ", ".join(name for name, _ in signature)
    definition = [f"def {printer.entry}({names}):"]
    if len(definition[0]) > WIDTH:
        definition = [f"def {printer.entry}(", *(f"    {name}," for name, _ in signature), "):"]
    top = [*head, *printer.imports(), "", "", *definition]
    text = "\n".join([*top, *(printer.lines or ["    pass"])]) + "\n"
    facts = {
        "signature": tuple(kind for _, kind in signature),
        "scratch": tuple(op.nbytes for op in scratch),
        "functions": tuple(printer.extra),
        "blas": any(name in printer.extra for name in reduce.GEMMS.values()),
        "noalias": function.facts["noalias"],
        **printer.sites,
        "max_joined_along": tuple(function.facts["max_joined_along"]),
        "max_joined": function.facts["max_joined"],
        "results": tuple(astuple(result) for result in results_of(function, own)),
    }
    lines = {number + len(top): line for number, line in printer.line_map.items()}
    return Source(text, printer.entry, parameters, lines, facts)


def _scratch_kind(op: Scratch) -> str:
    return element_type(op.dtype) if op.stored else machine_type(op.dtype)


def _plain(parameter: Parameter, own: tuple[Value, ...]) -> str:
    """The machine type of one of the kernel's own parameters."""
    dtype = parameter.dtype
    if parameter.kind == "pointer":
        element = own[parameter.argument].tensor.dtype
        return element_type(element) + "*"
    if parameter.kind in ("extent", "grid"):
        return "i64"  # indices are i64 in generated code
    return machine_type(dtype)


def _header(function: Function, kernel: Function, target: Target) -> list[str]:
    first = min(function.source, default=0)
    # The file of a notebook's cell is temporary.
    named = function.file and not function.file.startswith("<") and not cell_of(function.file)
    place = f"  ({PurePath(function.file).name}:{first})" if named else ""
    lines = [f"# kernel   {function.name}{place}", f"# target   {target.backend} {target.arch}"]
    lines += [f"# {'types' if at == 0 else '     '}    {v.name}: {v.type}" for at, v in enumerate(kernel.parameters)]
    lines.append(f"# blocks   {schedule_words(function.facts)}")
    lines += [f"#          single along {why}" for why in function.facts["refusals"]]
    lines += [f"# plan     {plan}" for plan in (*function.facts["plans"], *function.facts["refused_plans"])]
    return lines
