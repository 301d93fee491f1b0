"""A builder that runs intrinsics without a GPU: each LLVM instruction is computed on NumPy arrays.

An array has an element for each thread. All threads run each instruction together, so tests show whether the right
elements meet, but not whether a barrier is missing.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from cutile.backend.cuda.intrinsics.llvm import F32, F64, I1, I32, ir, register_type
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bf16

Array = np.ndarray[Any, Any]


def _fused(x: Array, y: Array, z: Array) -> Array:
    """In f64, then rounded to f32: exact for the numbers of the tests."""
    return x.astype(np.float64) * y + z


def _whole_below(x: Array, y: Array, z: Array) -> Array:
    """Rounded down to a whole number: the sums are so large that f32 has no fraction there."""
    return np.floor(_fused(x, y, z))


LIBRARY: dict[str, Any] = {
    "__nv_fmodf": np.fmod, "__nv_fmod": np.fmod, "__nv_floorf": np.floor, "__nv_floor": np.floor,
    "llvm.minnum.f32": np.fmin, "llvm.maxnum.f32": np.fmax, "llvm.minnum.f64": np.fmin, "llvm.maxnum.f64": np.fmax,
    "llvm.copysign.f32": np.copysign, "llvm.copysign.f64": np.copysign,
    "llvm.fabs.f32": np.abs, "llvm.fabs.f64": np.abs,
    "llvm.fma.f32": _fused, "llvm.nvvm.fma.rm.f": _whole_below, "__nv_expf": np.exp,
}  # fmt: skip
"""Functions of libdevice, and intrinsics of LLVM, by their names."""


def _bits_of_bf16(x: Array) -> Array:
    return x.astype(bf16.numpy).view(np.uint16).astype(np.uint32)


def _by_halves(function: Any, kind: Any = np.uint16) -> Any:
    """A function of words, by its meaning for their halves."""

    def of_words(*words: Array) -> Array:
        return function(*(np.ascontiguousarray(word).view(kind) for word in words)).astype(kind).view(np.uint32)

    return of_words


def _extreme(function: Any, kind: Any = bf16.numpy) -> Any:
    """An extreme of two f16 or bf16 in a word; of two zeros, 0.0 is the larger."""

    def of_halves(x: Array, y: Array) -> Array:
        zeros = (x == 0) & (y == 0)
        sign = np.signbit(x) & np.signbit(y) if function in (np.fmax, np.maximum) else np.signbit(x) | np.signbit(y)
        return np.where(zeros, np.copysign(np.float32(0), np.where(sign, -1, 1)), function(x.astype(np.float32), y))

    return _by_halves(of_halves, kind)


def _itself(x: Array) -> Array:
    return x


def _two_of_bf16(high: Array, low: Array) -> Array:
    return _bits_of_bf16(high) << np.uint32(16) | _bits_of_bf16(low)


def _power_of_two(x: Array) -> Array:
    return np.exp2(x.astype(np.float64))


def _from_f16(x: Array) -> Array:
    return x.view(np.float16).astype(np.float32)


def _whole_product(x: Array, y: Array) -> Array:
    return x.astype(np.uint64) * y.astype(np.uint64)


def _signed_product(x: Array, y: Array) -> Array:
    return (x.view(np.int32).astype(np.int64) * y.view(np.int32)).view(np.uint64)


PTX: dict[str, Any] = {
    "mov.b16": _itself, "mov.b32": _itself,
    "cvt.rn.bf16x2.f32": _two_of_bf16,
    "ex2.approx.ftz.f32": _power_of_two, "mul.wide.u32": _whole_product, "mul.wide.s32": _signed_product,
    "add.u16x2": _by_halves(np.add), "min.u16x2": _by_halves(np.minimum),
    "max.bf16x2": _extreme(np.fmax), "min.bf16x2": _extreme(np.fmin),
    "max.NaN.bf16x2": _extreme(np.maximum), "min.NaN.bf16x2": _extreme(np.minimum),
    "min.NaN.f16x2": _extreme(np.minimum, np.float16), "cvt.f32.f16": _from_f16,
}  # fmt: skip
"""Inline PTX, by the name of its first instruction."""


def numpy_type(kind: Any) -> Any:
    """The NumPy type whose elements stand for an LLVM type: unsigned integers, bools for bits."""
    if isinstance(kind, ir.IntType):
        return np.bool_ if kind.width == 1 else np.dtype(f"u{kind.width // 8}") if kind.width <= 64 else object
    return {str(ir.HalfType()): np.float16, str(F32): np.float32, str(F64): np.float64}[str(kind)]


def _truncated(x: Any, y: Any) -> Any:
    return (x - np.fmod(x, y)) // y


_where: Any = np.where


class Vector:
    """The value of every thread: an array, or for an aggregate a list of vectors."""

    def __init__(self, type: Any, data: Any) -> None:
        self.type = type
        self.data = data


class Phi(Vector):
    """A phi of two incoming values: of threads that skipped a branch, then of those that took it."""

    def __init__(self, type: Any, taken: Array) -> None:
        super().__init__(type, None)
        self._taken = taken

    def add_incoming(self, value: Any, block: Any) -> None:
        constant = isinstance(value, ir.Constant)
        data = np.full(self._taken.shape, value.constant, numpy_type(value.type)) if constant else value.data
        self.data = data if self.data is None else _where(self._taken, data, self.data)


class _Globals:
    """The module's globals: every function is there, and is its name."""

    def get(self, name: str) -> str:
        return name


class _Module:
    globals = _Globals()
    context = ir.Context()


class Emulated:
    """The builder.

    Args:
        threads: of the block.
        shared: bytes of shared memory.
    """

    def __init__(self, threads: int, shared: int = 1 << 16) -> None:
        self.module = _Module()
        self._threads = threads
        self.memory = np.full(shared, 0xA5, np.uint8)
        self._active = np.ones(threads, np.bool_)

    def _of(self, value: Any) -> Any:
        """The data of a value or of a constant."""
        if isinstance(value, Vector):
            return value.data
        constant = value.constant
        if isinstance(value.type, ir.ArrayType | ir.types.BaseStructType | ir.VectorType):
            count = len(value.type.elements) if isinstance(value.type, ir.types.BaseStructType) else value.type.count
            return [None] * count
        if isinstance(value.type, ir.IntType) and value.type.width > 1:
            constant = int(constant) & (1 << value.type.width) - 1
        return np.full(self._threads, constant, numpy_type(value.type))

    def _signed(self, value: Any) -> Array:
        data = self._of(value)
        return data if data.dtype in (np.bool_, object) else data.view(f"i{data.dtype.itemsize}")

    def _made(self, type: Any, data: Any) -> Vector:
        """A value of an LLVM type."""
        return Vector(type, np.asarray(data).astype(numpy_type(type)))

    # arithmetic

    def _binary(self, function: Any, x: Any, y: Any) -> Vector:
        return self._made(x.type, function(self._of(x), self._of(y)))

    def _on_signed(self, function: Any, x: Any, y: Any) -> Vector:
        data = np.asarray(function(self._signed(x), self._signed(y)))
        return Vector(x.type, data.astype(data.dtype).view(numpy_type(x.type)))

    def add(self, x: Any, y: Any) -> Vector:
        return self._binary(np.add, x, y)

    def sub(self, x: Any, y: Any) -> Vector:
        return self._binary(np.subtract, x, y)

    def mul(self, x: Any, y: Any) -> Vector:
        return self._binary(np.multiply, x, y)

    def udiv(self, x: Any, y: Any) -> Vector:
        return self._binary(np.floor_divide, x, y)

    def urem(self, x: Any, y: Any) -> Vector:
        return self._binary(np.mod, x, y)

    def sdiv(self, x: Any, y: Any) -> Vector:
        return self._on_signed(_truncated, x, y)

    def srem(self, x: Any, y: Any) -> Vector:
        return self._on_signed(np.fmod, x, y)

    def and_(self, x: Any, y: Any) -> Vector:
        return self._binary(np.bitwise_and, x, y)

    def or_(self, x: Any, y: Any) -> Vector:
        return self._binary(np.bitwise_or, x, y)

    def xor(self, x: Any, y: Any) -> Vector:
        return self._binary(np.bitwise_xor, x, y)

    def not_(self, x: Any) -> Vector:
        return self._made(x.type, np.invert(self._of(x)))

    def shl(self, x: Any, y: Any) -> Vector:
        return self._binary(np.left_shift, x, y)

    def lshr(self, x: Any, y: Any) -> Vector:
        return self._binary(np.right_shift, x, y)

    def ashr(self, x: Any, y: Any) -> Vector:
        return self._on_signed(np.right_shift, x, y)

    def fadd(self, x: Any, y: Any) -> Vector:
        total = self._binary(np.add, x, y)
        if total.data.dtype == np.float32:  # the hardware's only NaN (PTX ISA, "add.f32")
            total.data[np.isnan(total.data)] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
        return total

    def fsub(self, x: Any, y: Any) -> Vector:
        return self._binary(np.subtract, x, y)

    def fmul(self, x: Any, y: Any) -> Vector:
        return self._binary(np.multiply, x, y)

    def fdiv(self, x: Any, y: Any) -> Vector:
        return self._binary(np.divide, x, y)

    # comparisons

    def _compare(self, operator: str, x: Any, y: Any) -> Vector:
        functions = {
            "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
            ">": np.greater, ">=": np.greater_equal,
        }  # fmt: skip
        return Vector(I1, functions[operator](x, y))

    def icmp_unsigned(self, operator: str, x: Any, y: Any) -> Vector:
        return self._compare(operator, self._of(x), self._of(y))

    def icmp_signed(self, operator: str, x: Any, y: Any) -> Vector:
        return self._compare(operator, self._signed(x), self._signed(y))

    def fcmp_ordered(self, operator: str, x: Any, y: Any) -> Vector:
        a, b = self._of(x), self._of(y)
        return Vector(I1, self._compare(operator, a, b).data & ~np.isnan(a) & ~np.isnan(b))

    def fcmp_unordered(self, operator: str, x: Any, y: Any) -> Vector:
        a, b = self._of(x), self._of(y)
        either = np.isnan(a) | np.isnan(b)
        return Vector(I1, either if operator == "uno" else self._compare(operator, a, b).data | either)

    def select(self, condition: Any, x: Any, y: Any) -> Vector:
        return Vector(x.type, _where(self._of(condition), self._of(x), self._of(y)))

    # conversions

    def zext(self, x: Any, kind: Any) -> Vector:
        return self._made(kind, self._of(x))

    def sext(self, x: Any, kind: Any) -> Vector:
        wide = self._signed(x).astype(f"i{kind.width // 8}")
        return Vector(kind, wide.view(f"u{kind.width // 8}"))

    trunc = fpext = fptrunc = uitofp = zext

    def sitofp(self, x: Any, kind: Any) -> Vector:
        return self._made(kind, self._signed(x))

    def bitcast(self, x: Any, kind: Any) -> Vector:
        if isinstance(kind, ir.PointerType):
            return Vector(kind, x.data)
        if isinstance(kind, ir.VectorType):
            pairs = self._of(x).view(np.uint32).reshape(-1, kind.count)
            return Vector(kind, [Vector(I32, pairs[:, i].copy()) for i in range(kind.count)])
        if isinstance(x.type, ir.VectorType):
            parts = np.stack([each.data for each in x.data], 1)
            return Vector(kind, np.ascontiguousarray(parts).view(numpy_type(kind)).reshape(-1))
        return Vector(kind, self._of(x).view(numpy_type(kind)))

    def ptrtoint(self, x: Any, kind: Any) -> Vector:
        return Vector(kind, x.data.astype(numpy_type(kind)))

    def inttoptr(self, x: Any, kind: Any) -> Vector:
        return Vector(kind, x.data)

    # aggregates

    def extract_value(self, x: Any, at: int) -> Vector:
        return x.data[at]

    def insert_value(self, x: Any, value: Any, at: int) -> Vector:
        items = list(self._of(x))
        items[at] = Vector(value.type, self._of(value))
        return Vector(x.type, items)

    def extract_element(self, x: Any, at: Any) -> Vector:
        return x.data[int(at.constant)]

    def insert_element(self, x: Any, value: Any, at: Any) -> Vector:
        return self.insert_value(x, value, int(at.constant))

    # memory

    def gep(self, base: Any, indices: Sequence[Any], inbounds: bool = False) -> Vector:
        assert base == "cutile_shared"
        return Vector(None, self._of(indices[-1]))

    def _bytes(self, pointer: Vector) -> Array:
        size = np.dtype(numpy_type(pointer.type.pointee)).itemsize
        return pointer.data[:, None].astype(np.int64) + np.arange(size)

    def load(self, pointer: Vector) -> Vector:
        kind = pointer.type.pointee
        if isinstance(kind, ir.VectorType):
            size = np.dtype(numpy_type(kind.element)).itemsize
            parts = [Vector(ir.PointerType(kind.element), pointer.data + i * size) for i in range(kind.count)]
            return Vector(kind, [self.load(each) for each in parts])
        # Threads that are not active do not read: their addresses may be outside, and become 0.
        places = np.where(self._active[:, None], self._bytes(pointer), 0)
        raw = np.ascontiguousarray(self.memory[places])
        return Vector(kind, raw.view(numpy_type(kind)).reshape(-1))

    def store(self, value: Any, pointer: Vector) -> Vector:
        if isinstance(value.type, ir.VectorType):
            size = np.dtype(numpy_type(value.type.element)).itemsize
            for i, each in enumerate(value.data):
                self.store(each, Vector(ir.PointerType(value.type.element), pointer.data + i * size))
            return pointer
        data = np.ascontiguousarray(self._of(value)).view(np.uint8).reshape(self._threads, -1)
        self.memory[self._bytes(pointer)[self._active]] = data[self._active]
        return pointer

    def repeat(self, count: Any, values: Sequence[Any], body: Any) -> Sequence[Any]:
        """A loop: every active thread must have the same count."""
        counts = self._of(count)[self._active]
        for number in range(int(counts[0]) if len(counts) else 0):
            assert (counts == counts[0]).all(), "threads in a loop disagree on its iterations"
            values = body(Vector(I32, np.full(self._threads, number, np.uint32)), list(values))
        return values

    def atomic_rmw(self, operation: str, pointer: Vector, value: Any, order: str) -> Vector:
        """The threads that are active, one after the other."""
        assert operation == "add"
        kind = numpy_type(pointer.type.pointee)
        places, data = self._bytes(pointer), self._of(value)
        old = np.zeros(self._threads, kind)
        for thread in np.flatnonzero(self._active):
            old[thread] = self.memory[places[thread]].view(kind)[0]
            self.memory[places[thread]] = np.array([old[thread] + data[thread]], kind).view(np.uint8)
        return Vector(pointer.type.pointee, old)

    block = None
    """The basic block; unused, since each instruction runs at once."""

    @contextmanager
    def if_then(self, condition: Any, likely: bool | None = None) -> Generator[None]:
        before = self._active
        self._active = self._taken = before & self._of(condition)
        yield
        self._active = before

    def phi(self, kind: Any) -> Phi:
        """A value from ahead of the latest branch, or from inside it."""
        return Phi(kind, self._taken)

    @contextmanager
    def if_else(
        self, condition: Any, likely: bool | None = None
    ) -> Generator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        holds = self._of(condition).astype(bool)
        yield self.if_then(Vector(I1, holds)), self.if_then(Vector(I1, ~holds))

    # calls

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if not isinstance(function, str):
            if not function.asm:  # empty PTX: the results are the operands
                kind = ir.LiteralStructType([each.type for each in operands])
                return Vector(kind, [Vector(each.type, self._of(each)) for each in operands])
            if "bar.warp.sync" in function.asm:  # all threads do each instruction together
                return None
            if stored := re.search(r"setp.ne.b32 p, \$2, 0; @p st.shared.b(\d+) \[\$1\], \$0;", str(function)):
                value, place, flag = operands
                with self.if_then(Vector(I1, self._of(flag) != 0)):
                    data = self._of(value).astype(f"u{int(stored[1]) // 8}")
                    self.store(
                        Vector(ir.IntType(int(stored[1])), data),
                        Vector(ir.PointerType(ir.IntType(int(stored[1]))), place.data),
                    )
                return None
            name = function.asm.split()[0]
            assert name in PTX, f"of inline PTX these are emulated: {', '.join(PTX)}; not {function}"
            return self._made(function.function_type.return_type, PTX[name](*map(self._of, operands)))
        values = [self._of(each) for each in operands]
        if function == "llvm.nvvm.read.ptx.sreg.tid.x":
            return Vector(I32, np.arange(self._threads, dtype=np.uint32))
        if function == "llvm.nvvm.shfl.sync.bfly.i32":
            return Vector(I32, values[1][np.arange(self._threads) ^ int(values[2][0])])
        if function.startswith("llvm.nvvm.shfl.sync."):
            number = np.arange(self._threads)
            lane, distance = number % 32, values[2].astype(np.int64)
            way = function.removeprefix("llvm.nvvm.shfl.sync.").removesuffix(".i32")
            origin = {"up": lane - distance, "down": lane + distance, "idx": distance}[way]
            in_warp = (origin >= 0) & (origin < 32)
            return Vector(I32, values[1][number - lane + np.where(in_warp, origin, lane)])
        if function == "llvm.nvvm.barrier0":
            return None
        if function == "llvm.ctpop.i32":
            return Vector(I32, np.bitwise_count(values[0]).astype(np.uint32))
        if function == "llvm.nvvm.prmt":
            octets = np.stack([value >> 8 * i & 255 for value in values[:2] for i in range(4)])
            selected = [octets[values[2] >> 4 * i & 7, np.arange(self._threads)] << 8 * i for i in range(4)]
            return Vector(I32, np.bitwise_or.reduce(selected).astype(np.uint32))
        return self._made(operands[0].type, LIBRARY[function](*values))


def scatter(tile: Array, layout: Layout, dtype: DTypeLike) -> Vector:
    """A tile as a fragment of each thread; registers past the tile's edge hold 0x5A."""
    kind = register_type(dtype)
    flat = np.full((layout.registers, layout.threads), 0x5A, np.uint8).astype(dtype.numpy)
    for where, register, lane, warp in layout.elements():
        flat[register, warp * 32 + lane] = tile[where]
    rows = [Vector(kind, row.copy() if kind == I1 else row.view(numpy_type(kind))) for row in flat]
    return Vector(ir.ArrayType(kind, len(rows)), rows)


def collect(value: Vector, layout: Layout, dtype: DTypeLike) -> Array:
    """The tile of a fragment; threads that hold the same element must agree on it."""
    tile = np.zeros(layout.shape, dtype.numpy)
    seen = np.zeros(layout.shape, np.bool_)
    rows = [np.ascontiguousarray(each.data).view(dtype.numpy) for each in value.data]
    for where, register, lane, warp in layout.elements():
        element = rows[register][warp * 32 + lane]
        if seen[where]:
            assert tile[where].tobytes() == element.tobytes(), f"threads disagree on element {where}"
        tile[where], seen[where] = element, True
    assert seen.all()
    return tile


def everywhere(value: Vector, dtype: DTypeLike) -> Any:
    """A scalar, on which all threads must agree."""
    scalars = np.ascontiguousarray(value.data).view(dtype.numpy)
    assert len({each.tobytes() for each in scalars}) == 1, "threads disagree on a scalar"
    return scalars[0]
