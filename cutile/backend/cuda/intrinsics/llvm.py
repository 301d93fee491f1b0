"""LLVM IR as these intrinsics write it: types, constants, PTX, calls of NVVM.

The one place that imports llvmlite, which ships no types: its objects are `Any` from here on. Two versions of LLVM
parse this IR. Below compute capability 10.0 it is LLVM 7 (typed pointers, no `fneg`, no `bfloat`), from there on a
recent one. f16 and bf16 are therefore 16-bit integers in registers and in memory.
"""

import importlib
import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cutile.conversion import bits_of
from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, f64, i8

ir: Any = importlib.import_module("llvmlite.ir")

I1: Any = ir.IntType(1)
I8: Any = ir.IntType(8)
I16: Any = ir.IntType(16)
I32: Any = ir.IntType(32)
I64: Any = ir.IntType(64)
F32: Any = ir.FloatType()
F64: Any = ir.DoubleType()
VOID: Any = ir.VoidType()

GLOBAL, SHARED = 1, 3
"""Address spaces of NVPTX."""
WORD_BYTES = 4
"""Bytes of a register, and of an f32."""
HALF_BITS = 16
"""Bits of an f16 or bf16, and of half a register."""
LANES = 32
"""Threads of a warp."""
ALL_LANES = -1
"""The mask of a shuffle or a vote in which every lane takes part."""
ARRAY_ALIGNMENT = 1024
"""Bytes. The widest swizzle repeats after so many, so each buffer begins at a multiple (PTX ISA, "Swizzling Modes")."""
PIECE_BYTES = 16
"""Bytes that a swizzle moves as a whole; also the bytes of a thread's widest access."""
PIECE_SHIFT = 4
"""Bits by which a piece's number is shifted left to be its offset."""
ROW_SHIFT = 7
"""Bits by which an address is shifted right to be the number of its row of 128 bytes. That number says how a swizzle
permutes the row's pieces."""
REGISTERS = {
    8: ("r", "b8", "b32", I32),  # in a register of 32 bits: PTX has none of 8
    16: ("h", "b16", "b16", I16),
    32: ("r", "b32", "b32", I32),
    64: ("l", "b64", "b64", I64),
}
"""By an element's bits: the constraint's letter, PTX's types of the element in memory and of the register, and the
register's LLVM type."""


def register_type(dtype: DTypeLike) -> Any:
    """The LLVM type of an element in a register."""
    if dtype is bool_:
        return I1
    if dtype is f32:
        return F32
    return F64 if dtype is f64 else ir.IntType(dtype.bits)


def memory_type(dtype: DTypeLike) -> Any:
    """The LLVM integer type of an element's bits in memory."""
    return ir.IntType(dtype.bits)


def const(type: Any, value: Any) -> Any:
    """A constant."""
    return ir.Constant(type, value)


def i32c(value: int) -> Any:
    """A 32-bit constant."""
    return ir.Constant(I32, value)


def number(dtype: DTypeLike, value: Any) -> Any:
    """The constant `value` as an element in a register."""
    if dtype.is_half or not dtype.computes:
        return const(register_type(dtype), bits_of(value, dtype))
    if dtype in (f32, f64):
        return const(register_type(dtype), float(dtype.numpy.type(value)))
    if dtype is bool_:
        return const(I1, int(bool(value)))
    return const(register_type(dtype), int(value))


def asm(
    b: Any,
    result: Any,
    operands: Sequence[Any],
    text: str,
    constraints: str,
    *,
    effect: bool = False,
    convergent: bool = False,
) -> Any:
    """Inline PTX.

    Args:
        b: the builder.
        result: the LLVM type of the result: `VOID`, a register's, or a literal struct of several registers' types.
        operands: LLVM values.
        text: PTX; the results are `$0` and so on, the operands follow.
        constraints: those of LLVM's inline assembly.
        effect: it touches memory, or its order matters. LLVM may merge, move or drop it otherwise.
        convergent: all lanes of a warp run it together, so LLVM may not move it under another condition.
    """
    result = _named(b, result)
    assembly = ir.InlineAsm(
        ir.FunctionType(result, [each.type for each in operands]), text, constraints, side_effect=effect
    )
    attributes = ["convergent"] if convergent else []
    if not effect:
        attributes.append("readnone")
    return b.call(assembly, operands, attrs=attributes)


MAX_SPELLED_REGISTERS = 8
"""Registers of a result type that is written out at each use; a type of more has a name."""


def _named(b: Any, result: Any) -> Any:
    """The result type of inline PTX; a named type for many registers.

    Each register is extracted by an instruction that repeats the type. Written out, these types were three quarters of
    the text of a kernel with `wgmma`, which llvmlite prints and NVVM parses. The name is short: `%"64 x float"`.
    """
    if not isinstance(result, ir.LiteralStructType) or len(result.elements) <= MAX_SPELLED_REGISTERS:
        return result
    runs = [(str(kind), len(list(same))) for kind, same in itertools.groupby(result.elements, str)]
    struct = b.module.context.get_identified_type(", ".join(f"{count} x {kind}" for kind, count in runs))
    if struct.is_opaque:  # new: the context returns the same type for the same name
        struct.set_body(*result.elements)
    return struct


def call(b: Any, name: str, result: Any, operands: Sequence[Any], *, convergent: bool = False) -> Any:
    """Call an NVVM intrinsic or a libdevice function, declared on first use."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [each.type for each in operands]), name)
    return b.call(function, operands, attrs=("convergent",) if convergent else ())


_BARRIER_THREADS: ContextVar[int] = ContextVar("threads at barriers", default=0)
"""Threads that meet at each barrier; 0 for all.

A context variable, and no argument: intrinsics are cached, and one serves kernels with and without producer warps."""


@contextmanager
def threads_at_barriers(count: int) -> Generator[None]:
    """Write barriers for a block's first `count` threads alone, within the `with`.

    The other threads run no code that has barriers. 0 means all threads.
    """
    token = _BARRIER_THREADS.set(count)
    try:
        yield
    finally:
        _BARRIER_THREADS.reset(token)


def address(b: Any, offset: Any) -> Any:
    """The 32-bit address of a byte offset in shared memory."""
    return b.ptrtoint(shared(b, offset), I32)


def barrier(b: Any) -> None:
    """All threads that compute arrive, and see each other's shared and global memory."""
    if count := _BARRIER_THREADS.get():
        # The consumers' barrier. Its number is 1: barrier 0 is the whole block's, for which the producer's warps would
        # have to arrive, too (PTX ISA, "bar").
        asm(b, VOID, [], f"bar.sync 1, {count};", "~{memory}", effect=True, convergent=True)
        return
    # Barrier 0, with all threads of the block.
    call(b, "llvm.nvvm.barrier0", VOID, [], convergent=True)


def barrier_any(b: Any, flag: Any) -> Any:
    """As `barrier`; every thread gets whether any thread's i1 `flag` holds."""
    count = _BARRIER_THREADS.get()
    barrier_operands = f"1, {count}" if count else "0"
    # One instruction waits and combines the flags (PTX ISA, "bar, barrier"); the barrier's number is that of `barrier`.
    text = (
        f"{{ .reg .pred p, q; setp.ne.b32 q, $1, 0; bar.red.or.pred p, {barrier_operands}, q; selp.b32 $0, 1, 0, p; }}"
    )
    any_flag = asm(b, I32, [b.zext(flag, I32)], text, "=r,r,~{memory}", effect=True, convergent=True)
    return b.icmp_unsigned("!=", any_flag, i32c(0))


def synchronize_warp(b: Any) -> None:
    """All lanes of the warp arrive, and see each other's memory."""
    # The mask names all 32 lanes: the caller has no lane in another branch (PTX ISA, "bar.warp.sync").
    asm(b, VOID, [], "bar.warp.sync 0xffffffff;", "~{memory}", effect=True, convergent=True)


def proxy_fence(b: Any) -> None:
    """Show this thread's writes to shared memory to TMA and to `wgmma`.

    The writes are visible to them behind the barrier that follows.
    """
    # Both read through the async proxy, which ordinary writes do not reach by themselves (PTX ISA, "membar / fence").
    asm(b, VOID, [], "fence.proxy.async.shared::cta;", "~{memory}", effect=True)


def device_fence(b: Any) -> None:
    """Order this thread's accesses to global memory, for all threads of the GPU."""
    # Ahead of an atomic this is a release, behind it an acquire (PTX ISA, "Release and Acquire Patterns").
    asm(b, VOID, [], "fence.acq_rel.gpu;", "~{memory}", effect=True)


def cluster_rank(b: Any) -> Any:
    """The block's number in its cluster."""
    # A special register, for which the older LLVM has no intrinsic (PTX ISA, "Special Registers: %cluster_ctarank").
    return asm(b, I32, [], "mov.u32 $0, %cluster_ctarank;", "=r")


def thread(b: Any) -> Any:
    """The thread's number in the block."""
    return call(b, "llvm.nvvm.read.ptx.sreg.tid.x", I32, [])


def lane_of(b: Any, number: Any) -> Any:
    """A thread's number in its warp."""
    return b.and_(number, i32c(LANES - 1))


def block(b: Any) -> Any:
    """The block's number in the launch."""
    return call(b, "llvm.nvvm.read.ptx.sreg.ctaid.x", I32, [])


def shuffle_xor(b: Any, bits: Any, mask: Any) -> Any:
    """The 32 bits of the lane whose number differs by `mask`, an int or an i32 value."""
    # The last operand says that lanes reach each other in all of the warp (PTX ISA, "shfl.sync").
    operands = [i32c(ALL_LANES), bits, i32c(mask) if isinstance(mask, int) else mask, i32c(LANES - 1)]
    return call(b, "llvm.nvvm.shfl.sync.bfly.i32", I32, operands, convergent=True)


def shuffle_from(b: Any, bits: Any, lane: Any) -> Any:
    """The 32 bits of another lane.

    Args:
        b: the builder.
        bits: an i32 value.
        lane: its number, an i32 value. Or an int: its distance from this lane. A lane without a neighbour at that
            distance gets its own bits.
    """
    # The last operand is the bound of the source lane: 31 above, and 0 below for `up`, which reads lower lanes (PTX
    # ISA, "shfl.sync").
    if isinstance(lane, int):
        way, distance, end = ("up", -lane, 0) if lane < 0 else ("down", lane, LANES - 1)
        operands = [i32c(ALL_LANES), bits, i32c(distance), i32c(end)]
        return call(b, f"llvm.nvvm.shfl.sync.{way}.i32", I32, operands, convergent=True)
    operands = [i32c(ALL_LANES), bits, lane, i32c(LANES - 1)]
    return call(b, "llvm.nvvm.shfl.sync.idx.i32", I32, operands, convergent=True)


def shuffle_words(b: Any, value: Any, shuffle: Callable[[Any], Any]) -> Any:
    """A value of another lane; `shuffle` fetches each word of 32 bits."""
    kind = value.type
    if kind in (I64, F64):
        words = b.bitcast(value, ir.VectorType(I32, 2))
        other = const(ir.VectorType(I32, 2), ir.Undefined)
        for half in range(2):
            other = b.insert_element(other, shuffle(b.extract_element(words, i32c(half))), i32c(half))
        return b.bitcast(other, kind)
    if kind == F32:
        return b.bitcast(shuffle(b.bitcast(value, I32)), kind)
    if kind == I32:
        return shuffle(value)
    return b.trunc(shuffle(b.zext(value, I32)), kind)


def shared(b: Any, offset: Any) -> Any:
    """A byte pointer into the block's dynamic shared memory.

    `offset` is an int or an i32 value, in bytes. The array has bytes as elements for all dtypes: LLVM 7 drops stores to
    a typed shared array through another type.
    """
    module, name = b.module, "cutile_shared"
    array = module.globals.get(name)
    if array is None:
        array = ir.GlobalVariable(module, ir.ArrayType(I8, 0), name, addrspace=SHARED)
        array.linkage = "external"
        array.align = ARRAY_ALIGNMENT
    where = i32c(offset) if isinstance(offset, int) else offset
    return b.gep(array, [i32c(0), where], inbounds=True)


def pointer(b: Any, bytes_: Any, element: Any, space: int) -> Any:
    """A byte pointer as a pointer to `element`."""
    return b.bitcast(bytes_, ir.PointerType(element, space))


def shared_element(b: Any, kind: Any, index: Any, offset: int) -> Any:
    """A pointer to an element of an array in shared memory.

    Args:
        b: the builder.
        kind: the LLVM type of an element: an integer of whole bytes.
        index: the element's number, an i32 value.
        offset: of the array, in bytes.
    """
    place = b.add(b.mul(index, i32c(kind.width // 8)), i32c(offset))  # bytes
    return pointer(b, shared(b, place), kind, SHARED)


def to_memory(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An element's bits as they are in memory."""
    if dtype is bool_:
        return b.zext(value, I8)
    return b.bitcast(value, memory_type(dtype)) if dtype in (f32, f64) else value


def from_memory(b: Any, dtype: DTypeLike, bits: Any) -> Any:
    """An element from its bits in memory."""
    if dtype is bool_:
        return b.icmp_unsigned("!=", bits, const(I8, 0))
    return b.bitcast(bits, register_type(dtype)) if dtype in (f32, f64) else bits


def to_register(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An element's bits in a register that PTX takes (`REGISTERS`)."""
    bits = to_memory(b, dtype, value)
    return b.zext(bits, I32) if dtype.bits == 8 else bits


def from_register(b: Any, dtype: DTypeLike, bits: Any) -> Any:
    """An element from a register that PTX gave."""
    return from_memory(b, dtype, b.trunc(bits, I8) if dtype.bits == 8 else bits)


def from_shared(b: Any, dtype: DTypeLike, place: Any) -> Any:
    """The element at a place in shared memory.

    Signed bytes pass through a move in PTX, into which NVVM does not look. NVVM joins 16 loads of neighbouring bytes to
    one load of four words. It then takes the lowest byte of each word for sign-extended: it compares and divides
    `byte + x` as 16 bits, whose upper ones are the next byte's. All versions tried do so, 13.0.88 to 13.5.37. Unsigned
    bytes, and 16 bytes loaded as one vector, come out right.
    """
    element = from_memory(b, dtype, b.load(place))
    if dtype is not i8:
        return element
    # NVVM does not join loads whose bytes it loses sight of in this copy.
    return b.trunc(asm(b, I16, [b.zext(element, I16)], "mov.b16 $0, $1;", "=h,h"), I8)


def widen(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An f16 or bf16 as an f32; other floats stay."""
    if dtype is f16:
        # Not `fpext`: LLVM would compute in f16 instead of f32, and form pairs that NVVM has no code for (PTX ISA,
        # "cvt").
        return asm(b, F32, [value], "cvt.f32.f16 $0, $1;", "=f,h")
    if dtype is bf16:
        return b.bitcast(b.shl(b.zext(value, I32), i32c(16)), F32)  # bf16 is the upper half of an f32
    return value


def narrow(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An f32 rounded to f16 or bf16, to nearest even; other floats stay."""
    if dtype is f16:
        return asm(b, I16, [value], "cvt.rn.f16.f32 $0, $1;", "=h,f")  # not `fptrunc`, as in `widen`
    if dtype is bf16:
        # The older LLVM has no bf16 (PTX ISA, "cvt").
        return asm(b, I16, [value], "cvt.rn.bf16.f32 $0, $1;", "=h,f")
    return value


def pair_of_halves(b: Any, low: Any, high: Any) -> Any:
    """A register of two elements of 16 bits."""
    return b.or_(b.zext(low, I32), b.shl(b.zext(high, I32), i32c(HALF_BITS)))


def pairs_of_halves(b: Any, elements: Sequence[Any]) -> list[Any]:
    """Registers of two neighbours each; a last single element is left out."""
    return [pair_of_halves(b, *pair) for pair in zip(elements[::2], elements[1::2], strict=False)]


def halves_of_pair(b: Any, pair: Any) -> tuple[Any, Any]:
    """The two elements of such a register."""
    return b.trunc(pair, I16), b.trunc(b.lshr(pair, i32c(HALF_BITS)), I16)


def float_type(dtype: DTypeLike) -> Any:
    """The LLVM type that floats of this dtype are computed in."""
    return F64 if dtype is f64 else F32


def repeat(b: Any, count: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
    """A loop: `values = body(i, values)` for the i32 values `0 <= i < count`.

    Returns the values after the last iteration.

    Args:
        b: the builder.
        count: an i32 value, the same in all threads that meet at a barrier in the loop.
        values: those that the loop carries, before its first iteration.
        body: writes one iteration; its results are the values of the next.
    """
    if hasattr(b, "repeat"):  # the tests' builder, which runs intrinsics on NumPy and has no blocks
        return list(b.repeat(count, values, body))
    before = b.block
    head, inner, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    iteration = b.phi(I32)
    iteration.add_incoming(i32c(0), before)
    carried = [b.phi(value.type) for value in values]
    for phi, value in zip(carried, values, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_unsigned("<", iteration, count), inner, done)
    b.position_at_end(inner)
    results = body(iteration, list(carried))
    iteration.add_incoming(b.add(iteration, i32c(1)), b.block)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(done)
    return list(carried)


def merge(b: Any, *branches: tuple[Sequence[Any], Any]) -> list[Any]:
    """Values that several branches compute, in the block behind them (phis).

    Args:
        b: builds the block behind the branches, which must be empty so far.
        branches: the values and the last block of each branch; all branches have equally many values.
    """
    merged: list[Any] = []
    for values in zip(*(values for values, _ in branches), strict=True):
        phi = b.phi(values[0].type)
        for value, (_, origin) in zip(values, branches, strict=True):
            phi.add_incoming(value, origin)
        merged.append(phi)
    return merged


def select_lanes(b: Any, value: Any, mask: int) -> Any:
    """The bits of the i32 `value` that `mask` selects, moved to the lowest positions."""
    selection: Any = None
    shift = 0
    for bit in range(LANES):
        if mask >> bit & 1:
            part = b.and_(b.lshr(value, i32c(bit - shift)), i32c(1 << shift))
            selection = part if selection is None else b.or_(selection, part)
            shift += 1
    return i32c(0) if selection is None else selection
