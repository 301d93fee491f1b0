"""Launches as plain Python: all tile blocks in order, in the calling thread."""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutile.backend.common.abi import kernel_parameters
from cutile.backend.interface import Grid, Parameter
from cutile.backend.reference.interpret import bind_parameters
from cutile.dtypes import DTypeLike
from cutile.errors import KernelSyntaxError
from cutile.frontend.build import NO_GROUPS, NO_POINTERS, parameter
from cutile.frontend.calls import invoke
from cutile.frontend.captures import Captures
from cutile.frontend.constant_calls import is_computed, is_constant, wrapped_by_cache
from cutile.frontend.expressions import evaluate
from cutile.frontend.frame import Compilation
from cutile.frontend.inline import source_of
from cutile.frontend.parameters import Arranged, assembled
from cutile.frontend.source import FunctionSource, compiled_as
from cutile.frontend.statements import execute
from cutile.interpreter.live import (
    COMPARISONS,
    KINDS,
    Array,
    EagerBuilder,
    EagerValue,
    IsFalse,
    IsTrue,
    chained,
    holds,
    is_other,
    is_same,
    to_live,
    to_meaning,
)
from cutile.interpreter.session import LiveFrame, Session, misspelt_names
from cutile.interpreter.watch import Watch
from cutile.ir import Block, Function, Type, Value
from cutile.language.variable import DeviceVariable
from cutile.tile import live


class Interpreted:
    """A specialized kernel that runs as plain Python.

    Args:
        function: the Python function.
        source: its source, for messages.
        types: the type of each parameter.
        generics: the values of the generics.
        pointers: the parameters that are pointers, with the dtypes that they lead to.
        arrangement: the kernel's arguments that are groups of launch parameters, or constants.
        unsafe: whether the kernel may use raw pointers, which nothing checks.

    Attributes:
        parameters: the plain numbers that a run takes, as for a compiled kernel.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        source: FunctionSource,
        types: Mapping[str, Type],
        generics: Mapping[str, Any],
        *,
        pointers: Mapping[str, DTypeLike] = NO_POINTERS,
        arrangement: Mapping[str, Arranged] = NO_GROUPS,
        unsafe: bool = False,
    ) -> None:
        self._function = function
        self._source = source
        self._generics = dict(generics)
        self._pointers = pointers
        self._arrangement = arrangement
        self._unsafe = unsafe
        self._program = Function(source.name, Block(tuple(Value(type, name) for name, type in types.items())))
        self.parameters: tuple[Parameter, ...] = kernel_parameters(self._program)

    def run(
        self,
        grid: Grid,
        numbers: Sequence[int | float | bool],
        written: Mapping[str, Array] | None,
        addresses: Callable[[DeviceVariable], int],
    ) -> None:
        """Run all blocks.

        Args:
            grid: the logical grid.
            numbers: one per parameter; addresses must be of memory that the CPU reaches.
            written: by parameter, for tensors with elements that were never written: a flat array with one bool per
                element, true for written ones. The run updates it. None for a run without checks.
            addresses: gives the address of a device variable in the CPU's memory; called when the kernel uses one.

        Raises:
            KernelError: an operation's operands do not fit; shows the line.
            RaceError: two blocks use the same element, and one writes it.
            UninitialisedReadError: an element is read that nothing has written.
            OutOfBoundsError: an access is outside of a tensor.
        """
        bound = bind_parameters(self._program, self.parameters, numbers)
        arrays = {value.name: bound[value] for value in self._program.parameters}
        watch = Watch(arrays, written) if written is not None else None
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    if watch is not None:
                        watch.enter((x, y, z))
                    self._run_block((x, y, z), grid, bound, watch, addresses)

    def _run_block(
        self,
        index: Grid,
        grid: Grid,
        bound: Mapping[Value, Array],
        watch: Watch | None,
        addresses: Callable[[DeviceVariable], int],
    ) -> None:
        values = [EagerValue(each.type, bound[each], each.name) for each in self._program.parameters]
        frame = LiveFrame(
            function=self._function,
            source=self._source,
            body=self._source.tree.body,
            compilation=Compilation(
                builder=EagerBuilder(Block(values), index, grid, watch),
                captures=LiveCaptures(),
                evaluate=evaluate,
                execute=execute,
                invoke=invoke,
                unsafe=self._unsafe,
            ),
            is_entry=True,
            addresses=addresses,
        )
        session = Session(frame)
        copies = LiveCopies(self._generics, session.builtins())
        function = copies.copy(self._function, self._source)
        keywords = inspect.signature(function).parameters
        generics = {name: copies.outside(value) for name, value in self._generics.items() if name in keywords}
        token = live.set(session)
        try:
            with misspelt_names():
                parts = {value.name: to_live(session, parameter(value, self._pointers)) for value in values}
                arranged = {name: assembled(each, parts) for name, each in self._arrangement.items()}
                function(*(arranged or parts).values(), **generics)
        finally:
            live.reset(token)


class LiveCaptures(Captures):
    """Names that a function of the author captures from around it.

    They may hold live tiles. The front end compiles such functions for `reduce` and `scan` also in interpreted kernels.
    """

    def name(self, function: Callable[..., Any], name: str) -> Any:
        """The value of a captured name; for a live tile, the front end's value."""
        return to_meaning(super().name(function, name))


_PACKAGE = __name__.partition(".")[0]


class LiveCopies:
    """Copies of functions with `replaced` in place of Python's builtins.

    The helpers that a function names are copied, too. Copies leave the author's own functions as they are.

    Args:
        generics: the values of the generics, which are free variables of the kernel's function.
        replaced: the replacements, by the builtins' names.
    """

    def __init__(self, generics: Mapping[str, Any], replaced: Mapping[str, Any]) -> None:
        self._generics = generics
        self._builtins = {**vars(builtins), **replaced, **_IDENTITIES}
        python = {vars(builtins).get(name): each for name, each in replaced.items()}
        self._replaced = {each: live for each, live in python.items() if isinstance(each, types.BuiltinFunctionType)}
        self._copies: dict[Any, Any] = {}
        self._switches: dict[Any, Any] = {}

    def copy(self, function: Any, source: FunctionSource | None = None) -> Any:
        """The copy of a function; made once, since functions may call each other.

        Args:
            function: the function.
            source: its source; None to look for it.
        """
        if function in self._copies:
            return self._copies[function]
        code = _live_code(function, source)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        # Python reads `__builtins__` of the globals once, when it makes a function.
        scope: dict[str, Any] = {"__builtins__": self._builtins}
        closure = tuple(self._cell(name, cells[name]) for name in code.co_freevars)
        copy = types.FunctionType(code, scope, function.__name__, function.__defaults__, closure)
        copy.__kwdefaults__ = function.__kwdefaults__
        self._copies[function] = copy  # before the copies of its helpers, which may name it
        scope.update({name: value for name, value in function.__globals__.items() if name != "__builtins__"})
        for name in _names(code) & scope.keys():
            scope[name] = self.outside(scope[name])
        return copy

    def _cell(self, name: str, cell: types.CellType) -> types.CellType:
        if name in self._generics:
            return types.CellType(self._generics[name])
        try:
            return types.CellType(self.outside(cell.cell_contents))
        except ValueError:  # not yet assigned: the function's own cell raises when it is read
            return cell

    def outside(self, value: Any) -> Any:
        """The replacement for a value that a copied function reads from outside."""
        if isinstance(value, types.BuiltinFunctionType):
            return self._replaced.get(value, value)  # a builtin under another name, such as `biggest = max`
        inner = wrapped_by_cache(value)
        if inner is not None:
            return value if is_computed(value) else self.copy(inner)
        is_of_author = isinstance(value, types.FunctionType) and not hasattr(value, "__cutile__")
        if not is_of_author or (value.__module__ or "").startswith(_PACKAGE):
            return value
        return self._either(value) if is_computed(value) else self.copy(value)

    def _either(self, function: Any) -> Any:
        """A function that Python runs if all arguments are constants, else its copy."""
        if function not in self._switches:

            @functools.wraps(function)
            def either(*args: Any, **kwargs: Any) -> Any:
                constant = all(map(is_constant, (*args, *kwargs.values())))
                return function(*args, **kwargs) if constant else self.copy(function)(*args, **kwargs)

            either.of_python = function  # type: ignore[attr-defined]  # reduce and scan compile this one
            self._switches[function] = either
        return self._switches[function]


# Names of globals in the copies. They are no identifiers, so no source text can have a variable of such a name.
_IS, _IS_NOT, _TRUE, _FALSE = "is", "is not", "case True", "case False"
_CHAIN, _ASSERT = "a < b < c", "assert"
_IDENTITIES: dict[str, Any] = {
    _IS: is_same,
    _IS_NOT: is_other,
    _TRUE: IsTrue,
    _FALSE: IsFalse,
    _CHAIN: chained,
    _ASSERT: holds,
    **{f"case {name}()": kind for name, kind in KINDS.items()},
}
_IS_OP, _COPY, _COMPARE_OP, _MATCH_CLASS = (dis.opmap[name] for name in ("IS_OP", "COPY", "COMPARE_OP", "MATCH_CLASS"))
_LOAD_ERROR = dis.opmap.get("LOAD_ASSERTION_ERROR") or dis.opmap["LOAD_COMMON_CONSTANT"]  # the latter since Python 3.14

# By function: its code, and the code for interpretation that was made of it. The first one shows whether
# `function.__code__` has been assigned since.
_live_codes: weakref.WeakKeyDictionary[Any, tuple[types.CodeType, types.CodeType]] = weakref.WeakKeyDictionary()


def _live_code(function: Any, source: FunctionSource | None) -> types.CodeType:
    """A function's code, with calls of `_IDENTITIES` in place of syntax.

    A class cannot define `is`, `case True:` and `case False:`: Python compares objects. Nor `case int():` of a scalar:
    Python looks at the object's class. Nor `a < b < c`: Python asks
    the first comparison for its truth, as `assert` asks a tile.
    """
    code: types.CodeType = function.__code__
    entry = _live_codes.get(function)
    if entry is None or entry[0] is not code:
        entry = _live_codes[function] = code, _without_identities(function, source) if _has_identities(code) else code
    return entry[1]


def _has_identities(code: types.CodeType) -> bool:
    inner_codes = (each for each in code.co_consts if isinstance(each, types.CodeType))
    opcodes = code.co_code[::2]  # an instruction has two bytes, of which the first is its opcode
    # A chain of comparisons copies its middle operand, for the second comparison, just before the first one.
    is_affected = (
        any(each in opcodes for each in (_IS_OP, _MATCH_CLASS, _LOAD_ERROR)) or bytes((_COPY, _COMPARE_OP)) in opcodes
    )
    return is_affected or any(map(_has_identities, inner_codes))


def _without_identities(function: Any, source: FunctionSource | None) -> types.CodeType:
    try:
        source = source or source_of(function)
    except KernelSyntaxError:  # without source, a kernel can call it only with constants: Python's own code is right
        return function.__code__
    replacement = _Identities()
    tree = replacement.visit(copy.deepcopy(source.tree))
    return compiled_as(function.__code__, source, tree) if replacement.count else function.__code__


class _Identities(ast.NodeTransformer):
    """Replaces syntax whose meaning a class cannot define.

    That are `is`, `case True:`, `case False:`, `case int():`, `assert` and chains of comparisons.

    `is None` and `is not None` stay: no tile is None.

    Attributes:
        count: how many were replaced.
    """

    def __init__(self) -> None:
        self.count = 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        if len(node.ops) > 1 and all(type(each) in COMPARISONS for each in node.ops):
            return self._chain(node)
        is_of_none = any(isinstance(each, ast.Constant) and each.value is None for each in operands)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot) or is_of_none:
            return node
        self.count += 1
        name = ast.Name(_IS if isinstance(node.ops[0], ast.Is) else _IS_NOT, ast.Load())
        return ast.copy_location(ast.Call(ast.copy_location(name, node), operands, []), node)

    def _chain(self, node: ast.Compare) -> ast.expr:
        """`chained(a, "Lt", lambda: b, "Lt", lambda: c)`, for `a < b < c`."""
        if any(isinstance(each, ast.NamedExpr) for each in ast.walk(node)):
            return node  # `:=` would assign a variable of the lambda, not of the function
        self.count += 1
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        arguments: list[ast.expr] = [node.left]
        for op, right in zip(node.ops, node.comparators, strict=True):
            arguments += [ast.Constant(type(op).__name__), ast.Lambda(nothing, right)]
        call = ast.copy_location(ast.Call(ast.Name(_CHAIN, ast.Load()), arguments, []), node)
        return ast.fix_missing_locations(call)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        self.count += 1
        name = ast.copy_location(ast.Name(_ASSERT, ast.Load()), node.test)
        node.test = ast.copy_location(ast.Call(name, [node.test], []), node.test)
        return node

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.pattern:
        self.generic_visit(node)
        if isinstance(node.cls, ast.Name) and node.cls.id in KINDS:
            self.count += 1
            node.cls.id = f"case {node.cls.id}()"
        return node

    def visit_MatchSingleton(self, node: ast.MatchSingleton) -> ast.pattern:
        if node.value is None:
            return node
        self.count += 1
        name = ast.copy_location(ast.Name(_TRUE if node.value else _FALSE, ast.Load()), node)
        return ast.copy_location(ast.MatchClass(name, [], [], []), node)


def _names(code: types.CodeType) -> set[str]:
    """Every global that code reads, nested functions included."""
    inner_codes = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner_codes))
