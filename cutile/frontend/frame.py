"""`Frame`: the state of compiling one function body.

Inlined helpers get frames of their own in one `Compilation`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cutile.dtypes import u64
from cutile.errors import KernelError, KernelNameError, KernelSyntaxError, KernelTypeError, Location, closest
from cutile.frontend.captures import MISSING, Captures, compile_time
from cutile.frontend.flow import Flow, assigned
from cutile.frontend.interval import Interval
from cutile.frontend.shared_accesses import Reached
from cutile.frontend.source import FunctionSource
from cutile.frontend.values import Bare, Faulty, Undefined
from cutile.ir import Builder, Op, TileType, Value
from cutile.language.variable import DeviceVariable
from cutile.ops.cast import Convert

# `Report`: the errors of one compilation.
#
# A statement that fails is reported, and those after it are still read.

MAX_ERRORS = 10


class Suppressed(KernelError):
    """Raised by what uses a value whose own error is in the report already.

    Never seen by a user.
    """


class TooMany(Exception):
    """The report is full."""


@dataclass
class Report:
    """Every error so far."""

    errors: list[KernelError] = field(default_factory=list[KernelError])
    found: int = 0
    """How many errors there were, those included that came again."""
    suppressed: int = 0
    """How many statements were left out, because they use a value whose own error was found before."""
    held: int = 0
    """How many guesses are under way whose errors will be dropped."""

    def add(self, error: KernelError) -> None:
        """Remember an error, unless it is about one that was reported."""
        if isinstance(error, Suppressed):
            self.suppressed += 1
            return
        self.found += 1
        if any(_same(error, each) for each in self.errors):
            return
        self.errors.append(error)
        if len(self.errors) >= MAX_ERRORS and not self.held:
            raise TooMany

    def mark(self) -> tuple[int, int]:
        """What `drop` goes back to."""
        return len(self.errors), self.found

    def drop(self, mark: tuple[int, int]) -> None:
        """Forget what came after a mark."""
        count, self.found = mark
        del self.errors[count:]


def _same(a: KernelError, b: KernelError) -> bool:
    """Whether two errors are of one expression, perhaps of a function called twice."""
    if a.location is None or b.location is None:
        return str(a) == str(b)
    x, y = a.location, b.location
    return a.message == b.message and (x.file, x.line, x.column) == (y.file, y.line, y.column)


RETURNED = "return"
"""The name that holds what a function has returned; no variable can have it."""


class PassOn(Exception):
    """A variable of a loop is used after it, and the loop can pass it on.

    Compile again, and let it.
    """

    def __init__(self, loop: ast.AST, name: str) -> None:
        super().__init__(name)
        self.key = (id(loop), name)


@dataclass
class Compilation:
    """What the frames of one compilation share.

    Attributes:
        evaluate: compiles an expression; set by `build`, so that modules here need not import one another in a circle.
        execute: compiles statements.
        invoke: compiles a call of anything that can be called: `invoke(frame, function, args, kwargs, node)`.
        report: the errors so far.
        unsafe: whether the kernel was declared with `@entry(unsafe=True)`.
        variables: the device's variables that the kernel uses, with their addresses.
        passed_on: variables that loops pass on although they have no value before: (loop, name).
        bare: floats that nothing gave a dtype; see `Bare`.
        weak: scalars that Python would have as plain numbers, and where whole ones lie; see `weak.py`.
        reached: the elements that pointers lead to, of those that were made of a tensor and indices.
        element: what the name of a tile means within a function that is applied element by element; None elsewhere.
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
    element: Callable[[Value], Value] | None = None

    @contextmanager
    def by_element(self, element: Callable[[Value], Value]) -> Generator[None]:
        """Inside, the name of a tile means one element of it."""
        before, self.element = self.element, element
        try:
            yield
        finally:
            self.element = before

    def meaning(self, value: Any) -> Any:
        """What a name stands for where one is read."""
        tile = self.element is not None and isinstance(value, Value) and isinstance(value.type, TileType)
        return self.element(value) if tile and self.element and not value.tile.is_scalar else value


@dataclass
class LoopState:
    """The loop around the current statement.

    Attributes:
        carried: the variables that it carries from one iteration to the next; None for an unrolled loop: all of them.
        at_break: the variables that have a value at every `break` so far; None before the first.
        constants: those of them that are the same constant at every `break`.
    """

    carried: frozenset[str] | None
    at_break: dict[str, Any] | None = None
    constants: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Frame:
    """One function being compiled.

    Attributes:
        function: the Python function, for its globals and closure.
        body: its statements.
        variables: what its local names mean now.
        places: the syntax that assigned each of them last.
        outer: the frame of the function that a nested function was defined in.
        active: the helpers being inlined, outermost first, each with the `dynamic_depth` of its call.
        dynamic_depth: how many loops and branches that are decided at run time enclose the current statement.
        flow: where control goes after the statements so far.
        loop: the loop around the current statement.
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
        """The scope of a comprehension.

        `targets` are its own variables, all others are this frame's.
        """
        return Scope(
            function=self.function,
            source=self.source,
            body=[ast.copy_location(ast.Expr(value=each), each) for each in targets],
            compilation=self.compilation,
            caller=self.caller,
            outer=self,
            active=self.active,
            dynamic_depth=self.dynamic_depth,
            node=node,
        )

    @functools.cached_property
    def own(self) -> dict[str, ast.AST]:
        """The names that the function assigns.

        They are its own, whatever a global of that name may be.
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
        """Compile statements, up to one after which control does not go on."""
        self.compilation.execute(self, body)

    def invoke(self, function: Any, *args: Any, node: ast.AST, **kwargs: Any) -> Any:
        """Call what a kernel may call: an operation, a function, a lambda, a method.

        `node` is for errors.
        """
        return self.compilation.invoke(self, function, list(args), kwargs, node)

    @property
    def kernel(self) -> str:
        """The name of the kernel that is being compiled, whichever of its helpers this is."""
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
        """Operations built inside come from `node`.

        Errors raised inside without a place get this one.
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
    def dynamic(self) -> Generator[None]:
        """Code compiled inside may not run, or run many times: run time decides."""
        self.dynamic_depth += 1
        try:
            yield
        finally:
            self.dynamic_depth -= 1

    def emit(self, op: Op, name: str = "") -> Value:
        """Append an operation and return its only result."""
        bare = self.compilation.bare
        if isinstance(op, Convert) and bare.becomes(op.x, op.dtype):
            exact = bare.exact(op.x, self.builder.value)
            assert exact is not None, "it is a bare float"
            return exact
        value = self.builder.value(op, name)
        bare.follow(op, value)
        return value

    def type_error(self, message: str, node: ast.AST | None = None, remedy: str = "") -> NoReturn:
        """Raise a KernelTypeError at `node` (or at the expression being compiled)."""
        raise KernelTypeError(message, self.locate(node) if node is not None else None, remedy)

    def address_of(self, variable: DeviceVariable) -> Value:
        """Where a variable of the device is: a parameter beside those of the signature."""
        variables = self.compilation.variables
        if variable not in variables:
            value = Value(TileType(u64), f"global_{len(variables)}")
            body = self.builder.open_blocks[0]
            body.arguments = (*body.arguments, value)
            variables[variable] = value
        return variables[variable]

    def reach(self, tensor: Value, index: Sequence[Value], mask: Value | None, what: str, *, every: bool) -> None:
        """An access of elements at indices, where `mask` holds.

        Nothing to do but for an interpreter, to check.
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
            KernelNameError: nothing, or a variable that only some paths define.
            KernelTypeError: a variable that has another type on another path.
        """
        name = node.id
        value = self.local(name)
        if isinstance(value, Faulty):
            raise Suppressed(f"{name!r} is faulty", self.locate(node))
        if isinstance(value, Undefined):
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
        if value.late is not None:
            raise PassOn(value.late, node.id)
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
        from cutile.frontend import elsewhere

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
