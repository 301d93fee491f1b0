"""`Frame`: the state of compiling one function body.

Inlined helpers get frames of their own in one `Compilation`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeGuard

from cutile.dtypes import u64
from cutile.errors import KernelError, KernelNameError, KernelSyntaxError, KernelTypeError, Location, closest
from cutile.frontend.captures import MISSING, Captures, compile_time
from cutile.frontend.flow import Exit, Flow, assigned
from cutile.frontend.plain_numbers import Interval
from cutile.frontend.shared_accesses import Reached
from cutile.frontend.source import FunctionSource
from cutile.frontend.values import Bare, Faulty, Undefined
from cutile.ir import Builder, Op, TileType, Value
from cutile.language.variable import DeviceVariable
from cutile.ops.cast import Convert

# Errors: a statement that fails is reported, and the statements after it are still compiled. So one run shows several.

MAX_ERRORS = 10
"""Errors of one report; compilation ends with the last."""


class Suppressed(KernelError):
    """Raised by a use of a value whose own error is in the report; no user sees it."""


class TooMany(Exception):
    """The report is full."""


class Mark(NamedTuple):
    """A state of a report, for `Report.drop` to go back to.

    Attributes:
        errors: the number of errors in the report.
        added: see `Report.added`.
        suppressed: see `Report.suppressed`.
    """

    errors: int
    added: int
    suppressed: int


@dataclass
class Report:
    """The errors of one compilation so far."""

    errors: list[KernelError] = field(default_factory=list[KernelError])
    added: int = 0
    """The number of errors that were added, repeated ones included."""
    suppressed: int = 0
    """The number of statements that failed only because they use a value whose own error was reported before."""
    guesses: int = 0
    """The number of unfinished guesses of types. During one, a full report raises nothing: a guess may drop errors."""

    def add(self, error: KernelError) -> None:
        """Add an error, unless it repeats one or follows from one.

        Raises:
            TooMany: the report is full.
        """
        if isinstance(error, Suppressed):
            self.suppressed += 1
            return
        self.added += 1
        if any(_repeats(error, earlier) for earlier in self.errors):
            return
        self.errors.append(error)
        if len(self.errors) >= MAX_ERRORS and not self.guesses:
            raise TooMany

    def mark(self) -> Mark:
        """The present state."""
        return Mark(len(self.errors), self.added, self.suppressed)

    def drop(self, mark: Mark) -> None:
        """Forget the errors since a mark."""
        count, self.added, self.suppressed = mark
        del self.errors[count:]


def _repeats(a: KernelError, b: KernelError) -> bool:
    """Whether two errors have the same message and the same place.

    The calls that led there may differ: a function with an error is compiled for each of its calls, and its error is
    reported once.
    """
    if a.location is None or b.location is None:
        return str(a) == str(b)
    x, y = a.location, b.location
    return a.message == b.message and (x.file, x.line, x.column) == (y.file, y.line, y.column)


RETURNED = "return"
"""The name that holds the value that a function has returned. It is a keyword, so that no variable has it."""


class PassOn(Exception):
    """Raised by a use of a variable that an earlier loop assigns but does not carry.

    The variable has a value on every path after the loop. The loop did not carry it, since no code was known to read it
    there. `build` then compiles the kernel again, with a loop that carries the variable.
    """

    def __init__(self, loop: ast.AST, name: str) -> None:
        super().__init__(name)
        self.key = (id(loop), name)


def is_undefined(value: Any, name: str) -> TypeGuard[Undefined]:
    """Whether a variable has no value here.

    Raises:
        PassOn: it would have one if a loop carried it.
    """
    if isinstance(value, Undefined) and value.late is not None:
        raise PassOn(value.late, name)
    return isinstance(value, Undefined)


@dataclass
class Compilation:
    """What the frames of one compilation share.

    Attributes:
        builder: where operations are appended.
        captures: what was read from outside of the kernel.
        evaluate: compiles an expression; set by `build`, so that modules here need not import one another in a circle.
        execute: compiles statements.
        invoke: compiles a call of anything that can be called: `invoke(frame, function, args, kwargs, node)`.
        report: the errors so far.
        unsafe: whether the kernel was declared with `@entry(unsafe=True)`.
        variables: the device's variables that the kernel uses, with their addresses.
        passed_on: (id of a loop's syntax, name) of variables that the loop carries only because code after it reads
            them; see `PassOn`.
        bare: f32 values whose dtype the author did not write; see `Bare`.
        weak: the weak scalars (`plain_numbers.py`), each with its interval; None for those that are no integers.
        reached: the elements of a tensor that pointers lead to, by the value of the pointers.
        unsettled: the number of loops around whose variables may still change their types.
        narrowed: how often a weak number took an i32 that may not hold it; see `plain_numbers.narrows`.
        unused: a line for each hint that no operation obeys, with the reason; a dict, to keep the order.
        element: gives the scalar that stands for a tile, in a function of scalars such as `reduce` takes; None
            elsewhere.
    """

    builder: Builder
    captures: Captures
    evaluate: Callable[[Frame, ast.expr], Any]
    execute: Callable[[Frame, Sequence[ast.stmt]], None]
    invoke: Callable[[Frame, Any, list[Any], dict[str, Any], ast.AST], Any]
    unsafe: bool = False
    report: Report = field(default_factory=Report)
    passed_on: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    variables: dict[DeviceVariable, Value] = field(default_factory=dict[DeviceVariable, Value])
    bare: Bare = field(default_factory=Bare)
    weak: dict[Value, Interval | None] = field(default_factory=dict[Value, "Interval | None"])
    reached: dict[Value, Reached] = field(default_factory=dict[Value, "Reached"])
    unsettled: int = 0
    narrowed: int = 0
    unused: dict[str, None] = field(default_factory=dict[str, None])
    element: Callable[[Value], Value] | None = None

    @contextmanager
    def by_element(self, element: Callable[[Value], Value]) -> Generator[None]:
        """Let names of tiles mean the scalars that `element` gives, for a `with` block."""
        before, self.element = self.element, element
        try:
            yield
        finally:
            self.element = before

    def meaning(self, value: Any) -> Any:
        """The meaning of a variable's value where its name is read; see `element`."""
        is_tile = isinstance(value, Value) and isinstance(value.type, TileType) and not value.tile.is_scalar
        return self.element(value) if self.element is not None and is_tile else value


@dataclass
class CarriedLeaf:
    """One leaf that a loop carries as a tile: a variable, or a part of one.

    Attributes:
        name: the variable.
        initial: a tile, a number, or None where there is no value before the loop.
        type: its type; None before `loops.Loop.start` has set it.
        fixed: whether the initial value is a tile. Its type then changes only between i32 and i64, as `weak` says. The
            type of a number is a guess.
        weak: whether it is a weak scalar (`plain_numbers.py`) before the loop and at the end of the body, in all builds
            so far. An integer is an i32 until the body gives one that may not fit.
        doubted: whether the body gave an integer scalar for a float in an earlier build. The loop is built once more,
            since better types of other variables may make it a float. The second time it is an error.
    """

    name: str
    initial: Any
    type: TileType | None
    fixed: bool
    weak: bool = False
    doubted: bool = False

    @property
    def started_type(self) -> TileType:
        """`type`, once `loops.Loop.start` has set it."""
        assert self.type is not None
        return self.type

    @property
    def ir_name(self) -> str:
        """The name in the IR; empty for a returned value, which is no variable."""
        return "" if self.name == RETURNED else self.name


@dataclass
class LoopState:
    """The loop around the current statement.

    Attributes:
        carried: the variables that it carries from one iteration to the next; None for an unrolled loop, whose
            iterations see all variables.
        at: by exit, the variables that have a value at every place so far that takes it. `BREAK` is taken by `break`,
            `CONTINUE` by `continue` and by the end of the body. A value is that of the first such place, or of a later
            one where an inner loop has to carry the variable first (`PassOn`). An exit that no path took has no entry.
        constants: the variables that are the same constant at every `break` so far.
        conflicts: variables that are of two types (`Undefined.conflict`) at a place that takes an exit.
    """

    carried: frozenset[str] | None
    at: dict[Exit, dict[str, Any]] = field(default_factory=dict[Exit, dict[str, Any]])
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    conflicts: dict[tuple[Exit, str], Undefined] = field(default_factory=dict[tuple[Exit, str], Undefined])

    def leave(self, exit: Exit, variables: dict[str, Any]) -> None:
        """Note that a path takes `exit` with these variables.

        A variable that an inner loop could carry (`PassOn`) counts as one that has a value.
        """
        undefined = {name: value for name, value in variables.items() if isinstance(value, Undefined)}
        self.conflicts |= {(exit, name): value for name, value in undefined.items() if value.conflict}
        late = {name: value for name, value in undefined.items() if value.late is not None}
        defined = {name: value for name, value in variables.items() if name not in undefined} | late
        earlier = self.at.get(exit, defined)  # at the places so far
        self.at[exit] = {name: late.get(name, value) for name, value in earlier.items() if name in defined}

    def values(self, name: str, exits: Sequence[Exit]) -> list[Any]:
        """A variable's value at each of `exits` that a path took; MISSING for none."""
        return [at.get(name, MISSING) for exit, at in self.at.items() if exit in exits]


@dataclass
class Frame:
    """One function being compiled.

    Attributes:
        function: the Python function, for its globals and closure.
        source: its text, for places.
        body: its statements.
        compilation: what all frames share.
        variables: the present meaning of its local names.
        places: the syntax that assigned each variable last.
        caller: the place of the call that it is inlined at; None for the kernel itself.
        outer: the frame of the function that a nested function was defined in.
        active: the helpers being inlined, outermost first, each with the `dynamic_depth` of its call.
        dynamic_depth: the number of loops and branches around the current statement that are decided at run time.
        flow: where control goes after the statements so far.
        loop: the loop around the current statement.
        is_entry: whether it is the kernel itself.
        node: the syntax that is being compiled.
    """

    function: Callable[..., Any]
    source: FunctionSource
    body: Sequence[ast.stmt]
    compilation: Compilation
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, ast.AST] = field(default_factory=dict[str, ast.AST])
    caller: Location | None = None
    outer: Frame | None = None
    active: tuple[tuple[Any, int], ...] = ()
    dynamic_depth: int = 0
    flow: Flow = field(default_factory=Flow)
    loop: LoopState | None = None
    is_entry: bool = False
    node: ast.AST = field(default_factory=ast.Pass)

    def within(self, node: ast.AST, targets: Sequence[ast.expr]) -> Frame:
        """The scope of a comprehension: `targets` are its own variables."""
        return Scope(
            function=self.function,
            source=self.source,
            # `own` reads assigned names from statements: the targets stand in for a body.
            body=[ast.copy_location(ast.Expr(value=target), target) for target in targets],
            compilation=self.compilation,
            caller=self.caller,
            outer=self,
            active=self.active,
            dynamic_depth=self.dynamic_depth,
            node=node,
        )

    @functools.cached_property
    def own(self) -> dict[str, ast.AST]:
        """The names that the function assigns, with the first place of each.

        They are local in all of the function, also before the assignment.
        """
        return assigned(self.body)

    @property
    def builder(self) -> Builder:
        """Where operations are appended."""
        return self.compilation.builder

    @property
    def captures(self) -> Captures:
        """What was read from outside."""
        return self.compilation.captures

    @property
    def report(self) -> Report:
        """The errors so far."""
        return self.compilation.report

    @property
    def unsafe(self) -> bool:
        """Whether the kernel may use what nothing checks."""
        return self.compilation.unsafe

    def evaluate(self, node: ast.expr) -> Any:
        """What an expression means."""
        return self.compilation.evaluate(self, node)

    def execute(self, body: Sequence[ast.stmt]) -> None:
        """Compile statements, until control does not reach the next one."""
        self.compilation.execute(self, body)

    def invoke(self, function: Any, *args: Any, node: ast.AST, **kwargs: Any) -> Any:
        """Call what a kernel may call: an operation, a function, a lambda, a method.

        `node` is for errors.
        """
        return self.compilation.invoke(self, function, list(args), kwargs, node)

    @property
    def kernel(self) -> str:
        """The name of the kernel that is being compiled, also in the frame of a helper."""
        place = self.caller
        while place is not None and place.caller is not None:
            place = place.caller
        return place.function if place is not None else self.source.name

    def locate(self, node: ast.AST) -> Location:
        """The place of a node, with the chain of calls that led here."""
        return self.source.locate(node, self.caller)

    def place_of(self, name: str) -> tuple[tuple[str, Location], ...]:
        """Where a variable was assigned last, for the places of an error."""
        node = self.places.get(name)
        return (("it is assigned here", self.locate(node)),) if node is not None else ()

    @contextmanager
    def at(self, node: ast.AST) -> Generator[None]:
        """Give operations and errors of a `with` block the place of `node`.

        Errors that have a place keep it.
        """
        before, outer = self.builder.location, self.node
        self.builder.location, self.node = self.locate(node), node
        try:
            yield
        except KernelError as error:
            if error.location is not None:
                raise
            raise type(error)(error.message, self.locate(node), error.remedy, error.places) from None
        finally:
            self.builder.location, self.node = before, outer

    @contextmanager
    def errors_at(self, name: str, places: Mapping[str, ast.AST] | None = None) -> Generator[None]:
        """Give errors of a `with` block the place where a variable is assigned.

        Operations keep their places, unlike in a block of `at`.

        Args:
            name: the variable.
            places: the assignments by variable; None for those of the frame.
        """
        try:
            yield
        except KernelError as error:
            node = (self.places if places is None else places).get(name)
            if error.location is not None or node is None:
                raise
            raise type(error)(error.message, self.locate(node), error.remedy, error.places) from None

    @contextmanager
    def dynamic(self) -> Generator[None]:
        """Compile code for which run time decides whether, and how often, it runs."""
        self.dynamic_depth += 1
        try:
            yield
        finally:
            self.dynamic_depth -= 1

    def emit(self, op: Op, name: str = "") -> Value:
        """Append an operation and return its only result."""
        bare = self.compilation.bare
        # A bare float is converted from the number that was written, since its f32 is rounded already.
        if isinstance(op, Convert) and (exact := bare.converted(op, self.builder.value)) is not None:
            return exact
        value = self.builder.value(op, name)
        bare.follow(op, value)
        return value

    def type_error(self, message: str, node: ast.AST | None = None, remedy: str = "") -> NoReturn:
        """Raise a KernelTypeError at `node` (or at the expression being compiled)."""
        raise KernelTypeError(message, self.locate(node) if node is not None else None, remedy)

    def address_of(self, variable: DeviceVariable) -> Value:
        """The address of a device variable: a parameter after those of the signature."""
        variables = self.compilation.variables
        if variable not in variables:
            value = Value(TileType(u64), f"global_{len(variables)}")
            body = self.builder.open_blocks[0]  # the kernel's, around all loops and branches
            body.arguments = (*body.arguments, value)
            variables[variable] = value
        return variables[variable]

    def reach(self, tensor: Value, index: Sequence[Value], mask: Value | None, what: str, *, every: bool) -> None:
        """Report an access of elements at indices, where `mask` holds.

        Nothing happens in a compilation. The interpreter's frame overrides this method, and checks the access.

        Args:
            what: the name of the call, for errors.
            every: see `elements_of` in `families/element.py`.
        """

    def require_unsafe(self, what: str) -> None:
        """Refuse `what` unless the kernel says `@entry(unsafe=True)`.

        Nothing checks the addresses that it uses.
        """
        if not self.unsafe:
            raise KernelTypeError(
                f"{what} can reach any memory, and nothing checks that it should",
                None,
                "Declare the kernel with @ct.entry(unsafe=True) to take that on yourself.",
            )

    def syntax_error(self, node: ast.AST, message: str, remedy: str) -> NoReturn:
        """Raise a KernelSyntaxError at `node`."""
        raise KernelSyntaxError(message, self.locate(node), remedy)

    def local(self, name: str) -> Any:
        """A local variable, or one of the functions around this one.

        MISSING if there is none.
        """
        frame: Frame | None = self
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            frame = frame.outer
        return MISSING

    def name(self, node: ast.Name) -> Any:
        """What a name means here.

        Raises:
            KernelNameError: the name means nothing, or only some paths define the variable.
            KernelTypeError: the variable has different types on different paths.
        """
        name = node.id
        value = self.local(name)
        if isinstance(value, Faulty):  # its error was reported where it was assigned
            raise Suppressed(f"{name!r} is faulty", self.locate(node))
        if is_undefined(value, name):
            self._refuse(node, value)
        if value is not MISSING:
            return self.compilation.meaning(value)
        frame: Frame | None = self
        while frame is not None:
            if name in frame.own:
                raise KernelNameError(
                    f"{name!r} is used before it is assigned",
                    self.locate(node),
                    f"Give {name!r} a value before.",
                    (("it is assigned here", frame.locate(frame.own[name])),),
                )
            frame = frame.outer
        item = self.captures.name(self.function, name)
        if item is MISSING:
            raise KernelNameError(f"name {name!r} is not defined", self.locate(node), self._suggest(name))
        return self.compilation.meaning(compile_time(item, name, self.captures))

    def _refuse(self, node: ast.Name, value: Undefined) -> NoReturn:
        if value.conflict:
            raise KernelTypeError(
                f"{node.id!r} has no one type here: {value.why}",
                self.locate(node),
                "Convert, reshape or broadcast one, so that both are of one dtype and shape; or use two names.",
                value.places,
            )
        raise KernelNameError(
            f"{node.id!r} may be undefined here: {value.why}",
            self.locate(node),
            f"Give {node.id!r} a value before.",
            value.places,
        )

    def _suggest(self, name: str) -> str:
        from cutile.frontend import elsewhere  # here, since it imports the whole language, and errors alone need it

        if name in elsewhere.MODULES:
            return "Kernels are written with this package's operations: import cutile as ct, and write ct.name."
        scope: dict[str, Any] = self.function.__globals__  # type: ignore[attr-defined]
        near = closest(name, [*self.variables, *scope])
        return f"Did you mean {near[0]!r}?" if near else "Define it before, or import it."


@dataclass
class Scope(Frame):
    """The scope of a comprehension; see `Frame.within`."""

    @property
    def home(self) -> Frame:
        """The function around it, whose variables `:=` assigns."""
        assert self.outer is not None, "a comprehension stands in a function"
        return self.outer.home if isinstance(self.outer, Scope) else self.outer
