"""The kernel's file: header, imports, layouts, intrinsics, and the function.

Each operation becomes one call in the function's body.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from cutile.analysis.affine import count_of
from cutile.backend.common.abi import GRID_NAMES, kernel_parameters
from cutile.backend.cuda import ops
from cutile.backend.cuda.emit import control, matmul, memory, tiles
from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import StagedMma, StageRead
from cutile.backend.cuda.ops.pipeline import RESOURCES
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.target import architecture
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.gpu.emitter import INDENT, WIDTH, Body, Call, Expression, Names, wrap
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import MAX_MMA_WARPS
from cutile.backend.gpu.op_facts import DefUse
from cutile.backend.interface import CompileOptions, Parameter, Source, Target
from cutile.dtypes import DTypeLike, bf16, f16, f64
from cutile.errors import IRError, cell_of
from cutile.ir import Block, Constant, Function, Op, TileType, Value, Yield
from cutile.ops.compare import Select
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile, TensorDim
from cutile.ops.reduce import Reduce
from cutile.ops.registry import family
from cutile.ops.view import LoadView, TensorView

Emitter = Callable[[Any, Any], Any]

DECLARED: dict[type[Op], Emitter] = {
    op: emitter(op.intrinsic) for name in ops.__all__ if hasattr(op := getattr(ops, name), "intrinsic")
}
"""This backend's operations that declare their intrinsic."""

EMITTERS: dict[type[Op], Emitter] = {
    **DECLARED,
    **matmul.EMITTERS,
    **memory.EMITTERS,
    **tiles.EMITTERS,
}
"""Operation to emitter. A test compares it with the language's operations."""

IN_THE_DUMP = ("layouts", "tensor_maps", "refused", "divided", "fast_math", "unused")
"""Facts that the source leaves out: only readers of the IR's dump need them, or the text has them in another form."""

INLINE = ("arith", "rounding", "math", "compare", "cast", "create")
"""Families whose calls may be arguments of another call: they touch neither memory nor other threads."""
MAX_INLINE = 60
"""Characters. Only a call with fewer may be an argument of another call; a longer one gets a variable."""

_OF_ARGUMENTS = ("pointer", "scalar")
"""Kinds of parameters that stand for a parameter of the user's kernel, and have its name."""


def emit(function: Function, target: Target, options: CompileOptions) -> Source:
    """The text of a lowered function."""
    if function.stage != "cuda":
        raise IRError(f"emit wants IR of stage cuda, got {function.stage}: lower it first")
    source = Kernel(function, target).source()
    # The attempts at a kernel that spills (`build.py`) change neither number that the user has set.
    is_estimate = source.facts["min_blocks"] > 1 and options.occupancy is None
    changes: dict[str, Any] = {"may_have_fewer_blocks": True} if is_estimate else {}
    multiplies = any(isinstance(op, Mma | StagedMma) for op in function.walk())
    if multiplies and source.facts["warps"] < MAX_MMA_WARPS and options.num_worker_warps is None:
        changes["more_warps"] = MAX_MMA_WARPS
    return replace(source, facts={**source.facts, **changes}) if changes else source


def _import(module: str, names: Iterable[str]) -> list[str]:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"{INDENT}{name}," for name in sorted(names)), ")"]


def _stem(op: Op) -> str:
    """The name of a value without a user's name: `x_tile`, `block_0`, `max_of_t`.

    Results of other operations are named after their family.
    """
    if isinstance(op, LoadTile | LoadView):
        return f"{op.x.name or 'view'}_tile"
    if isinstance(op, StageRead):
        return f"{op.of or 'view'}_tile"
    if isinstance(op, TensorView):
        return "view"
    if isinstance(op, TileBlockId):
        return f"block_{op.axis}"
    if isinstance(op, Reduce) and op.x.name:
        return f"{op.name.removeprefix('reduce_')}_of_{op.x.name}"
    return {"compare": "mask", "reduce": "reduced", "matmul": "product"}.get(family(type(op)), "value")


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.operations:
        for nested in op.regions:
            yield from _blocks(nested)


def _defined(block: Block) -> Iterator[Value]:
    yield from block.arguments
    for op in block.operations:
        yield from op.results


def _tensor_maps(function: Function) -> Iterator[Parameter]:
    """The parameters that are tensor maps, which TMA takes."""
    maps: tuple[tuple[Any, ...], ...] = function.facts.get("tensor_maps", ())
    for name, position, *form in maps:
        dtype = function.parameters[int(position)].tensor.dtype
        yield Parameter(name, "tensor_map", position, 0, dtype, TensorMap(*form))


class Kernel:
    """The file being written.

    Emitters ask it for names, bind intrinsics, and render operands.

    Attributes:
        layouts: by their names in the lowered IR.
        body: the function's lines.
        names: the identifiers.
        chained: branches of long chains (`control.if_`). A branch that is written behind the others has the name of the
            variable that says whether it runs; the others have an empty name.
    """

    def __init__(self, function: Function, target: Target) -> None:
        self._function = function
        self._target = target
        self.layouts = layouts_of(function)
        self.body = Body(function.source)
        self.parameters = (*kernel_parameters(function), *_tensor_maps(function))
        users = {value.name for op in function.walk() for value in op.results if value.name}
        self.names = Names(users | {each.name for each in self.parameters} | {function.name})
        chains = DefUse(function.body)
        self._defining, self._users = chains.definitions, chains.users
        self._home = {v: block for block in _blocks(function.body) for v in _defined(block)}
        self._open: list[Block] = []
        self._computed: set[Value] = set()
        self._values: dict[Value, str] = {}
        self._inline: dict[Value, Expression] = {}
        self.chained: dict[Op, str] = {}
        self._bound: dict[str, str] = {}
        self._bindings: list[tuple[str, Call]] = []
        self._modules: set[str] = set()
        self._dtypes: set[str] = set()
        self._math: set[str] = set()
        self._layout_names: dict[str, str] = {}
        self._smem_types: set[str] = set()
        self._parts: dict[tuple[Value, str, int], str] = {}

    # What emitters use.

    @property
    def facts(self) -> Mapping[str, Any]:
        """Decisions about the whole kernel, by name."""
        return self._function.facts

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the target: the choice of instructions depends on it."""
        arch = architecture(self._target.arch)
        return arch.major, arch.minor

    def dtype(self, dtype: DTypeLike) -> str:
        """The dtype's name in the file."""
        self._dtypes.add(dtype.__name__)
        return dtype.__name__

    def module(self, name: str) -> str:
        """An intrinsics module's name in the file."""
        self._modules.add(name)
        return name

    def layout(self, name: str) -> str:
        """A layout's name in the file."""
        if name not in self._layout_names:
            self._layout_names[name] = self.names.invented(name)
        return self._layout_names[name]

    def smem_layout(self, smem_layout: SmemLayout) -> str:
        """An operand's layout in shared memory, as text of the file."""
        self._smem_types.add("SmemLayout")
        return repr(smem_layout)

    def definition(self, value: Value) -> Op:
        """The operation that a value is a result of."""
        return self._defining[value]

    def place(self, *fields: Expression) -> Call:
        """A buffer's stages, as an expression of the file."""
        self._smem_types.add("BufferStages")
        return Call("BufferStages", fields)

    def count(self, op: Op) -> int:
        """Elements per thread of an operation's result; 0 for a scalar."""
        name = op.attributes.get("layout")
        return self.layouts[name].registers if name else 0

    def source_layout(self, op: Op) -> Layout:
        """The layout of a reshaping operation's operand."""
        return self.layouts[op.attributes["source"]]

    def bind(self, stem: str, factory: str, *arguments: Expression) -> str:
        """The name of the intrinsic `factory(*arguments)`, bound once in the file."""
        call = Call(factory, arguments)
        key = str(call)
        if key not in self._bound:
            self._modules.add(factory.split(".")[0])
            self._bound[key] = self.names.invented(stem)
            self._bindings.append((self._bound[key], call))
        return self._bound[key]

    def use(self, value: Value) -> Expression:
        """A value as an argument: a name, a number, or the call that computes it."""
        if value in self._inline:
            return self._inline[value]
        return self._values[value]

    def part(self, tensor: Value, kind: str, axis: int) -> str:
        """The variable that holds a tensor's extent or stride along an axis.

        `kind` is "extent" or "stride".
        """
        return self._parts.get((tensor, kind, axis), f"{tensor.name}_{kind}_{axis}")

    def set_part(self, tensor: Value, kind: str, axis: int, name: str) -> None:
        """Name the variable of an extent or stride of a tensor that is no parameter."""
        self._parts[tensor, kind, axis] = name

    def float_text(self, number: float) -> str:
        """A float as an argument of a factory."""
        return self.number(number, f64)

    def uses(self, value: Value) -> int:
        """The number of operands that are this value."""
        return len(self._users[value])

    def has_name(self, value: Value) -> bool:
        """Whether a value is a variable of the generated function."""
        return value in self._values

    def name(self, value: Value, name: str) -> None:
        """Name the variable that holds a value."""
        self._values[value] = name

    def may_overwrite(self, value: Value) -> bool:
        """Whether a loop may take over the variable of its initial `value`.

        It may if this block computed the value, and nothing but the loop uses it.
        """
        computed_here = self._home.get(value) is self._open[-1]
        return computed_here and value in self._computed and len(self._users[value]) == 1

    def is_computed(self, op: Op) -> bool:
        """Whether a statement of its own can assign an operation's result."""
        return type(op) in EMITTERS and op.attributes.get("how") != "keep"

    def could_inline(self, op: Op) -> bool:
        """Whether an operation's call may be written where its result is used."""
        is_used_once = len(op.results) == 1 and len(self._users[op.result]) == 1 and not op.result.name
        renames = op.attributes.get("how") == "keep"
        return renames or (is_used_once and (op.attributes.get("how") is not None or family(type(op)) in INLINE))

    def fresh(self, value: Value, stem: str) -> str:
        """A new variable for a value: the user's name if there is one, else from `stem`."""
        return self.names.user(value.name) if value.name else self.names.invented(stem)

    def typed(self, value: Value) -> Expression:
        """A value as it is assigned to a variable.

        A plain number gets its dtype by an intrinsic: Numba would take any integer for 64 bits, and any float for f64.
        """
        expression = self.use(value)
        if isinstance(expression, str) and not self.has_name(value) and isinstance(value.type, TileType):
            number = expression
            dtype = self.dtype(value.type.dtype)
            return Call(self.bind("number", "create.constant", number, dtype, "0"), ())
        return expression

    def scalar(self, op: Constant) -> str:
        """The name of the intrinsic that makes a constant's scalar."""
        return self.bind("number", "create.constant", self.number(op.value, op.dtype), self.dtype(op.dtype), "0")

    # The walk.

    def block(self, block: Block) -> None:
        """Write the operations of a block except its terminator."""
        self._open.append(block)
        self._computed.update(block.arguments if block is not self._function.body else ())
        inside = {value for op in block.operations for value in op.operands}
        for op in block.operations:
            if not isinstance(op, Yield):
                self._operation(op, inside)
        self._open.pop()

    def _operation(self, op: Op, used_here: set[Value]) -> None:
        """Write an operation; `used_here` are the operands of its block's operations."""
        line = op.location.line if op.location else None
        if type(op) in control.EMITTERS:
            self.body.at(line)
            control.EMITTERS[type(op)](op, self)
            self._computed.update(op.results)
            return
        if isinstance(op, Constant):
            self._constant(op, used_here)
            return
        if isinstance(op, NumTileBlocks):
            self._values[op.result] = GRID_NAMES[op.axis]
            return
        if isinstance(op, TensorDim):
            extent = op.x.tensor.shape[op.axis]
            if extent is not None:
                self._inline[op.result] = str(extent)
            else:
                self._values[op.result] = self.part(op.x, "extent", op.axis)
            return
        if isinstance(op, RESOURCES):  # no code: the calls that use them have their offsets
            return
        self.body.at(line)
        expression = EMITTERS[type(op)](op, self)
        if not op.results:
            self.body.write("", expression)
        elif len(op.results) > 1:
            self._assign_all(op, expression)
        elif self._may_inline(op, expression, used_here):
            self._inline[op.result] = expression
        elif isinstance(expression, str):  # an operation without code: its result is the operand's variable
            self._values[op.result] = expression
        else:
            self._assign(op, expression)

    def _assign(self, op: Op, expression: Expression) -> None:
        value = op.result
        if value not in self._values:
            self._values[value] = self.fresh(value, _stem(op))
        self._computed.add(value)
        self.body.write(f"{self._values[value]} = ", expression)

    def _assign_all(self, op: Op, expression: Expression) -> None:
        """Assign several results of one call."""
        for value in op.results:
            if value not in self._values:
                self._values[value] = self.fresh(value, _stem(op))
            self._computed.add(value)
        self.body.write(f"{', '.join(self._values[value] for value in op.results)} = ", expression)

    def _may_inline(self, op: Op, expression: Expression, used_here: set[Value]) -> bool:
        """Whether an operation's call is written where its result is used."""
        value = op.result
        is_pure = family(type(op)) in INLINE or op.attributes.get("how") in ("splat", "repeat")
        is_used_once = len(self._users[value]) == 1 and value in used_here and value not in self._values
        return (
            is_pure
            and is_used_once
            and not value.name
            and len(str(expression)) < MAX_INLINE
            and not isinstance(op, Select)
        )

    def _constant(self, op: Constant, used_here: set[Value]) -> None:
        """Inline a constant, or assign it if it has a name and this block uses it."""
        value, dtype = op.result, op.dtype
        # A plain number converts to an argument's dtype, unless scalars of this dtype are bits in an integer.
        if value.tile.is_scalar and dtype not in (f16, bf16) and dtype.kind != "storage":
            self._inline[value] = self.number(op.value, dtype)
            return
        stem = "zeros" if op.value == 0 else "constant"
        call = Call(
            self.bind(stem, "create.constant", self.number(op.value, dtype), self.dtype(dtype), str(self.count(op))),
            (),
        )
        if value in self._values or (value.name and value in used_here):
            self.body.at(op.location.line if op.location else None)
            self._assign(op, call)
        else:
            self._inline[value] = call

    def number(self, number: bool | int | float, dtype: DTypeLike) -> str:
        """A number as the file writes it."""
        if dtype.kind == "bool":
            return str(bool(number))
        if dtype.kind not in ("float", "storage"):
            return str(int(number))
        text = repr(float(number))
        if text.lstrip("-") in ("inf", "nan"):
            self._math.add(text.lstrip("-"))
        return text

    # The file.

    def source(self) -> Source:
        """Write the file."""
        function = self._function
        # Emitters write these names as they are, as well as `range`, and `inf` and `nan` of `math`. So they are taken
        # before users' names.
        for name in ("range", "inf", "nan", *(each.name for each in self.parameters if each.kind not in _OF_ARGUMENTS)):
            self.names.user(name)
        names = [self.names.user(p.name) if p.kind in _OF_ARGUMENTS else p.name for p in self.parameters]
        for parameter, name in zip(self.parameters, names, strict=True):
            if parameter.kind in _OF_ARGUMENTS:
                self._values[function.parameters[parameter.argument]] = name
        # NVVM takes only ASCII symbols; Python's identifiers have more letters.
        entry = self.names.user("".join(c if c.isascii() else "_" for c in function.name))
        self.block(function.body)
        if not self.body.lines:
            self.body.write("pass")
        head = self._header()
        head += self._imports()
        head += self._definitions()
        signature = Call(f"def {entry}", tuple(names))
        head += ["", "", *wrap("", signature, ":", "")]
        lines = {len(head) + i + 1: at for i, at in enumerate(self.body.origin) if at is not None}
        text = "\n".join([*head, *self.body.lines]) + "\n"
        facts = {key: value for key, value in function.facts.items() if key not in IN_THE_DUMP}
        if "division" in facts:
            iterations, ways = facts["division"]
            facts["division"] = (count_of(iterations, [each.name for each in function.parameters]), ways)
        return Source(text, entry, self.parameters, lines, facts)

    def _header(self) -> list[str]:
        function, facts = self._function, self._function.facts
        # A notebook cell's file has another name whenever the cell runs. In the text it would change the cache's key.
        is_stable = function.file and not cell_of(function.file)
        where = f"  ({PurePath(function.file).name})" if is_stable else ""
        types = [f"# {'types' if not i else '':8} {v.name}: {v.type}" for i, v in enumerate(function.parameters)]
        return [
            f"# kernel   {function.name}{where}",
            f"# target   {self._target.backend} {self._target.arch}  "
            f"block={facts['threads']} threads  shared={facts['shared_bytes']} bytes",
            *types,
            *(f"# plan     no {plan}: {reason}" for plan, reason in facts.get("refused", ())),
        ]

    def _imports(self) -> list[str]:
        lines: list[str] = []
        if self._math:
            lines += [f"from math import {', '.join(sorted(self._math))}", ""]
        if self._modules:
            lines += _import("cutile.backend.cuda.intrinsics", self._modules)
        if self._layout_names:
            lines.append("from cutile.backend.gpu.layout import Layout")
        if self._smem_types:
            lines += _import("cutile.backend.cuda.smem_layout", self._smem_types)
        if self._dtypes:
            lines += _import("cutile.dtypes", self._dtypes)
        return lines

    def _definitions(self) -> list[str]:
        lines: list[str] = [""]
        for name, alias in self._layout_names.items():
            layout = self.layouts[name]
            fields = (layout.shape, layout.register, layout.lane, layout.warp, layout.repeat)
            lines.append(f"# {layout}")
            lines += wrap(f"{alias} = ", Call("Layout", tuple(map(repr, fields))), "", "")
        for name, call in self._bindings:
            lines += wrap(f"{name} = ", call, "", "")
        return lines
