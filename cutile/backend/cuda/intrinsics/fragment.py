"""`Frag`: a tile in registers as a Numba type, with its coordinates.

A fragment is the elements that one thread holds, as one LLVM array, which NVVM splits into registers. The layout says
which element of the tile each of them is; intrinsics close over the layout. A count of 0 stands for a scalar: a plain
Numba number that every thread holds, so that loops and conditions are plain Python.

The coordinates of a thread's elements are LLVM values: the sum of a constant, which depends on the register, and a part
that the thread's number decides.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.llvm import I1, const, i32c, ir, register_type, thread
from cutile.backend.cuda.toolchain import import_numba_cuda
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import STORAGE_DTYPES, DTypeLike

import_numba_cuda()  # before anything else imports a part of it

types: Any = importlib.import_module("numba.cuda").types
_extending: Any = importlib.import_module("numba.cuda.extending")
models: Any = importlib.import_module("numba.cuda.datamodel").models
register_model: Any = importlib.import_module("numba.cuda.models").register_model

POINTER: Any = types.voidptr
"""A tensor's base address."""

_SCALARS: dict[str, Any] = {
    "bool": types.boolean,
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "u8": types.uint8,
    "u16": types.uint16,
    "u32": types.uint32,
    "u64": types.uint64,
    "f16": types.uint16,
    "bf16": types.uint16,
    "f32": types.float32,
    "f64": types.float64,
} | {each.name: types.uint32 if each.bits == 32 else types.uint8 for each in STORAGE_DTYPES}
"""Numba's type of a scalar, by the dtype's name. f16, bf16 and storage dtypes are their bits, as unsigned integers."""


class Frag(types.Type):
    """`n` elements per thread."""

    def __init__(self, dtype: DTypeLike, n: int) -> None:
        self.dtype = dtype
        self.n = n
        types.Type.__init__(self, name=f"Frag({dtype.name}, {n})")


class _FragModel(models.PrimitiveModel):
    """The LLVM type of a `Frag`: an array of its elements."""

    def __init__(self, manager: Any, frag: Frag) -> None:
        models.PrimitiveModel.__init__(self, manager, frag, ir.ArrayType(register_type(frag.dtype), frag.n))


register_model(Frag)(_FragModel)


@cache
def frag(dtype: DTypeLike, n: int) -> Any:
    """The Numba type of `n` elements per thread; of a scalar where `n` is 0."""
    return Frag(dtype, n) if n else _SCALARS[dtype.name]


def unpack(b: Any, value: Any, n: int) -> list[Any]:
    """The elements of a fragment; of a scalar, the scalar alone.

    Elements are not extracted again if the fragment was packed from them, or if this block has extracted them before.
    LLVM would merge the instructions, but llvmlite prints each of them first, and NVVM parses it.
    """
    if not n:
        return [value]
    block, elements = getattr(value, "cutile_elements", (None, None))
    if elements is None or block not in (None, b.block):
        elements = [b.extract_value(value, i) for i in range(n)]
        value.cutile_elements = b.block, elements  # valid in this block: intrinsics append, so later code is behind
    return list(elements)


def pack(b: Any, elements: Sequence[Any], n: int) -> Any:
    """A fragment of elements; of a scalar, its one element."""
    if not n:
        return elements[0]
    fragment = const(ir.ArrayType(elements[0].type, n), ir.Undefined)
    for i, each in enumerate(elements):
        fragment = b.insert_value(fragment, each, i)
    fragment.cutile_elements = None, list(elements)  # valid in any block: they dominate the fragment
    return fragment


Generate = Callable[[Any, list[Any]], Any]


def intrinsic(name: str, result: Any, arguments: Sequence[Any], generate: Generate) -> Any:
    """An intrinsic `name(*arguments) -> result`.

    `generate(builder, values)` writes its LLVM IR. `result` and `arguments` are Numba types; without a result, `result`
    is None. Numba converts the arguments of a call to the declared types.
    """
    returned = types.void if result is None else result
    signature = returned(*arguments)

    def generate_call(context: Any, builder: Any, _: Any, values: Any) -> Any:
        returned_value = generate(builder, list(values))
        return context.get_dummy_value() if result is None else returned_value

    # Numba reads the number of parameters from the signature, so each arity needs a function of its own.
    parameters = "".join(f", a{i}" for i in range(len(arguments)))
    scope: dict[str, Any] = {"typed": (signature, generate_call)}
    exec(f"def {name}(typing_context{parameters}):\n    return typed", scope)
    function = _extending.intrinsic(scope[name])
    function.generate = generate  # for tests, which run it with a builder that computes on NumPy
    return function


def elementwise(name: str, dtypes: Sequence[DTypeLike], result: DTypeLike, n: int, element: Callable[..., Any]) -> Any:
    """An intrinsic that applies `element(builder, *operands)` to each element."""

    def generate(b: Any, values: list[Any]) -> Any:
        columns = [unpack(b, value, n) for value in values]
        return pack(b, [element(b, *row) for row in zip(*columns, strict=True)], n)

    function = intrinsic(name, frag(result, n), [frag(dtype, n) for dtype in dtypes], generate)
    function.element = element  # for functions of scalars, which reductions and scans apply
    return function


def together(types_: Sequence[Any]) -> Any:
    """The Numba type of several results."""
    return types.BaseTuple.from_types(tuple(types_))


def bundle(b: Any, values: Sequence[Any], kind: Any) -> Any:
    """Several results as one value of the type `kind`, which `together` gives."""
    inner = [value.type for value in values]
    uniform = isinstance(kind, types.UniTuple)  # which Numba represents as an array, other tuples as a struct
    results = const(ir.ArrayType(inner[0], len(inner)) if uniform else ir.LiteralStructType(inner), ir.Undefined)
    for position, value in enumerate(values):
        results = b.insert_value(results, value, position)
    return results


class Coordinates:
    """The coordinates of this thread's elements in a tile of `layout`."""

    def __init__(self, b: Any, layout: Layout) -> None:
        self._b = b
        self._layout = layout
        self._number = thread(b)
        self._elements: dict[tuple[int, int], Any] = {}
        self._thread = [self._thread_part(axis) for axis in range(layout.rank)]

    def _thread_part(self, axis: int) -> Any:
        """The contribution of lane and warp to the coordinate along an axis.

        Neighbouring bits of the thread's number that stay neighbours move in one shift.
        """
        b, layout = self._b, self._layout
        bases = [basis[axis] for basis in (*layout.lane, *layout.warp)]
        total: Any = None
        bit = 0
        while bit < len(bases):
            if not bases[bit]:
                bit += 1
                continue
            end = bit + 1
            while end < len(bases) and bases[end] == bases[end - 1] * 2:
                end += 1
            part = self._number if bit == 0 else b.lshr(self._number, i32c(bit))
            if end < len(bases):
                part = b.and_(part, i32c((1 << (end - bit)) - 1))
            shift = bases[bit].bit_length() - 1
            part = b.shl(part, i32c(shift)) if shift else part
            total = part if total is None else b.or_(total, part)
            bit = end
        return i32c(0) if total is None else total

    def enter(self) -> None:
        """Forget the coordinates of another branch, which does not dominate this one."""
        self._elements.clear()

    def thread_part(self, axis: int) -> Any:
        """The coordinate of register 0 along `axis`."""
        return self._thread[axis]

    def element(self, register: int, axis: int) -> Any:
        """The coordinate of a register's element along `axis`."""
        offset = self._layout.offsets[register][axis]
        key = (axis, offset)
        if key not in self._elements:
            part = self._thread[axis]
            self._elements[key] = self._b.add(part, i32c(offset)) if offset else part
        return self._elements[key]

    def inside(self, register: int) -> Any | None:
        """Whether a register's element lies in the tile; None where it always does."""
        b, inside = self._b, None
        for axis in self._layout.edge_axes(register):
            test = b.icmp_unsigned("<", self.element(register, axis), i32c(self._layout.shape[axis]))
            inside = test if inside is None else b.and_(inside, test)
        return inside

    def owner(self) -> Any | None:
        """Whether this thread stores its elements; None if no other thread has them.

        Of the threads with the same elements, the first stores.
        """
        mask = self._layout.free_lanes | self._layout.free_warps << LANE_BITS
        if not mask:
            return None
        return self._b.icmp_unsigned("==", self._b.and_(self._number, i32c(mask)), i32c(0))


def both(b: Any, x: Any | None, y: Any | None) -> Any | None:
    """The conjunction of two conditions, of which None is true."""
    if x is None or y is None:
        return y if x is None else x
    return b.and_(x, y)


def as_flag(condition: Any | None) -> Any:
    """A condition as an i1, of which None is true."""
    return const(I1, 1) if condition is None else condition
