"""Products by the tensor cores (`mma.sync`), with operands from shared memory.

One instruction takes 32 bytes of K of 16 rows and of 8 columns: 16 elements of 16 bits, 32 of 8 bits, 8 of tf32. The
registers of its operands are 8 x 8 matrices of 16 bits as `ldmatrix` reads them, whatever the elements are; only of
elements of 16 bits it also reads the transpose. Of tf32 that lies the other way each thread loads its own elements,
and so it does of f64, of which one instruction takes 4 of K, or up to 16.
"""

from collections.abc import Sequence
from typing import Any

from cutile.backend.cuda.intrinsics.cast import FP8_SINCE, Capability, converted
from cutile.backend.cuda.intrinsics.llvm import F32, F64, I32, SHARED, asm, i32c, ir, lane_of, pointer, shared, thread
from cutile.backend.cuda.smem_sizes import F64_STEP, STEP_BYTES, Stage
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, tf32, u8

NAMES: dict[DTypeLike, tuple[str, int]] = {
    f16: ("f16", 16),
    bf16: ("bf16", 16),
    tf32: ("tf32", 8),
    f8e4m3fn: ("e4m3", 32),
    f8e5m2: ("e5m2", 32),
    i8: ("s8", 32),
    u8: ("u8", 32),
}
"""An element type's name in PTX, and how many of K one instruction takes."""
Shifts = tuple[Any, Any]
"""Of the left and the right operand, bytes from where its first stage is to where it is now."""
FP8_WITHOUT = 9
"""The major capability between whose neighbours' products of 8-bit floats it has none of single warps: the assembler
makes each of products of f16 in sums of their own, and adds these to the others."""
MATRIX = 8
"""Rows of a matrix that `ldmatrix` reads."""
ROW_BYTES = 16
"""Bytes of its rows."""
SUMS = 4
"""A thread's sums of one product of 16 rows by 8 columns."""
F64_BYTES = 8
F64_TALL_SINCE: Capability = (9, 0)
"""From when on f64 has products of 16 rows, and of up to 16 of K."""


def tiles_along(layout: Layout, axis: int) -> list[int]:
    """Where the cores of one warp begin along an axis."""
    count = next((n for a, n in layout.repeat if a == axis), 1)
    return [layout.core[axis] * i for i in range(count)]


def _warp_coordinate(b: Any, layout: Layout, axis: int) -> Any:
    """What the warp contributes to a coordinate."""
    number = thread(b)
    total: Any = i32c(0)
    for bit, basis in enumerate(layout.warp):
        if basis[axis]:
            flag = b.and_(b.lshr(number, i32c(LANE_BITS + bit)), i32c(1))
            total = b.or_(total, b.shl(flag, i32c(basis[axis].bit_length() - 1)))
    return total


def _matrices(b: Any, address: Any, count: int, transposed: bool) -> list[Any]:
    """`count` 8 x 8 matrices of 16-bit elements from shared memory.

    One 32-bit register of each thread for each.
    """
    outputs = ", ".join(f"${i}" for i in range(count))
    kind = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    result = ir.LiteralStructType([I32] * count)
    constraints = ",".join(["=r"] * count) + ",r"
    # Lanes 8 i to 8 i + 7 give the rows of matrix i (PTX ISA, "ldmatrix").
    text = f"{kind} {{{outputs}}}, [${count}];"
    matrices = asm(b, result, [address], text, constraints, effect=True, convergent=True)
    return [b.extract_value(matrices, i) for i in range(count)]


class _Side:
    """One operand: the addresses from which a lane has its matrices read.

    The matrices of a step are numbered by two bits: which half of the rows (or columns) of the result they belong to,
    and which half of K. `left`: the registers of the instruction count the former faster; the right one's the latter.
    """

    def __init__(self, b: Any, stage: Stage, across: Any, stride: int, left: bool, shift: Any) -> None:
        """Take `across` of the warp along M or N, and the `stride` between halves."""
        self._b, self._stage = b, stage
        self._size = stage.dtype.bits // 8
        # Lane l gives the address of row l % 8 of matrix l // 8, of which bit 3 and bit 4 are the two halves.
        lane = lane_of(b, thread(b))
        row = b.and_(lane, i32c(MATRIX - 1))
        bits = b.and_(b.lshr(lane, i32c(3)), i32c(1)), b.lshr(lane, i32c(4))
        half, deep = bits if left else reversed(bits)
        self._transposed = stage.swap if left else not stage.swap
        self._left, self._stride = left, stride
        base = b.ptrtoint(shared(b, shift), I32)
        if self._transposed and self._size > 2:
            # Of a matrix of 8 rows by 4 words, lane l has word l % 4 of row l // 4 (PTX ISA, "mma.sync").
            self._base = self._word(base, b.add(across, b.lshr(lane, i32c(2))), b.and_(lane, i32c(3)))
            return
        along_k, along_other = b.mul(deep, i32c(ROW_BYTES // self._size)), b.add(across, b.mul(half, i32c(stride)))
        if self._transposed:  # rows in memory are those of K
            memory_row, column = b.add(along_k, row), along_other
        else:
            memory_row, column = b.add(along_other, row), along_k
        where = b.mul(b.add(b.mul(memory_row, i32c(stage.pitch)), column), i32c(self._size))
        self._base = b.add(base, b.add(where, i32c(stage.offset)))

    def _word(self, base: Any, column: Any, row: Any) -> Any:
        """The address of this lane's first element, if lanes load their own.

        `ldmatrix` transposes only elements of 16 bits.
        """
        b = self._b
        where = b.mul(b.add(b.mul(row, i32c(self._stage.pitch)), column), i32c(self._size))
        return b.add(base, b.add(where, i32c(self._stage.offset)))

    def _words(self, other: int, k: int, count: int) -> list[Any]:
        """What `read` gives, one element of 32 bits after the other."""
        deeper = STEP_BYTES // self._size // 2
        places = [(half, deep) for deep in (0, deeper) for half in (0, self._stride)]
        if not self._left:
            places = [(half, deep) for half in (0, self._stride) for deep in (0, deeper)]
        words: list[Any] = []
        for half, deep in places[:count]:
            where = ((k + deep) * self._stage.pitch + other + half) * self._size
            # As `ldmatrix`, in its place among the barriers, with the constant part of the address in the instruction.
            text = f"ld.shared.b32 $0, [$1+{where}];"
            words.append(asm(self._b, I32, [self._base], text, "=r,r", effect=True))
        return words

    def read(self, other: int, k: int, count: int) -> list[Any]:
        """The matrices of the step at `k`, of the result's rows (or columns) at `other`."""
        if self._transposed and self._size > 2:
            return self._words(other, k, count)
        row, column = (k, other) if self._transposed else (other, k)
        where = self._b.add(self._base, i32c((row * self._stage.pitch + column) * self._size))
        return _matrices(self._b, where, count, self._transposed)


def _instruction(
    b: Any, left_type: DTypeLike, right_type: DTypeLike, left: Sequence[Any], right: Sequence[Any], acc: Sequence[Any]
) -> list[Any]:
    """One product of a warp: 16 rows, 8 columns."""
    (left_name, k), (right_name, _) = NAMES[left_type], NAMES[right_type]
    whole = left_type in (i8, u8)
    sums, letter, kind = ("s32", "r", I32) if whole else ("f32", "f", F32)
    # 4 registers of the left operand, 2 of the right one, 4 sums, which are tied to the results: PTX ISA, "Matrix
    # Fragments for mma.m16n8k16" and the sections beside it.
    text = (
        f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{left_name}.{right_name}.{sums} "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    constraints = ",".join([f"={letter}"] * SUMS) + ",r,r,r,r,r,r,0,1,2,3"
    new = asm(b, ir.LiteralStructType([kind] * SUMS), [*left, *right, *acc], text, constraints, convergent=True)
    return [b.extract_value(new, i) for i in range(SUMS)]


def _as_halves(b: Any, dtype: DTypeLike, word: Any, capability: Capability) -> tuple[Any, Any]:
    """Four floats of 8 bits as four of f16 in two registers."""
    if capability >= FP8_SINCE:
        # Two at a time; f16 holds all numbers of both types (PTX ISA, "cvt").
        convert = f"cvt.rn.f16x2.{NAMES[dtype][0]}x2"
        text = f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, $2; {convert} $0, low; {convert} $1, high; }}"
        halves = asm(b, ir.LiteralStructType([I32, I32]), [word], text, "=r,=r,r")
        return b.extract_value(halves, 0), b.extract_value(halves, 1)
    zero = i32c(0)
    halves: list[Any] = []
    for selector in (0x1404, 0x3424):
        # Each byte into the upper half of 16 bits, over a zero: byte 4 is that of the other operand (PTX ISA, "prmt").
        bits = asm(b, I32, [word, zero, i32c(selector)], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
        if dtype is f8e5m2:
            halves.append(bits)
            continue
        # The sign stays; 4 bits of exponent and 3 of fraction move one down, to where f16 has its 5 and 10.
        sign, size = b.and_(bits, i32c(-0x7FFF8000)), b.lshr(b.and_(bits, i32c(0x7F007F00)), i32c(1))
        # The exponent is 8 too small, which a product by 2 ** 8 (0x5C00) repairs, for subnormal numbers as well.
        scaled = asm(b, I32, [b.or_(sign, size), i32c(0x5C005C00)], "mul.rn.f16x2 $0, $1, $2;", "=r,r,r")
        # All ones are NaN: only they carry into bit 14. NaN is 0x7E00 in f16.
        top = b.and_(b.lshr(b.add(size, i32c(0x00800080)), i32c(14)), i32c(0x00010001))
        halves.append(b.or_(scaled, b.mul(top, i32c(0x7E00))))
    return halves[0], halves[1]


def _product(
    b: Any,
    types: tuple[DTypeLike, DTypeLike],
    left: Sequence[Any],
    right: Sequence[Any],
    acc: Sequence[Any],
    capability: Capability,
) -> list[Any]:
    """One step of K of one core of the result."""
    if not types[0].is_float8 or (capability >= FP8_SINCE and capability[0] != FP8_WITHOUT):
        return _instruction(b, *types, left, right, acc)
    # Before sm_89, and on sm_90, in f16, which holds both types. The order of K is free as long as both operands have
    # the same: the first two of each four make one product, the last two another.
    a = [_as_halves(b, types[0], each, capability) for each in left]
    c = [_as_halves(b, types[1], each, capability) for each in right]
    for half in range(2):
        first = [each[half] for each in a]
        acc = _instruction(b, f16, f16, first, [each[half] for each in c], acc)
    return list(acc)


def _f64_product(
    b: Any, left: Sequence[Sequence[Any]], right: Sequence[Any], acc: Sequence[Any], capability: Capability
) -> list[Any]:
    """A core's product of f64, of 16 rows; before sm_90 in two halves.

    `left` has, for each 4 of K, an element of the upper and one of the lower half of the rows; `right` has one.
    """
    if capability >= F64_TALL_SINCE:
        # `$0` to `$3` are the sums. Then come the left operand, the right one, and the sums again, tied to
        # the results (PTX ISA, "Matrix Fragments for mma.m16n8k4 with .f64 floating point type", and k8, k16).
        depth = len(right)
        operands = [*(each for pair in left for each in pair), *right, *acc]
        places = [f"${i}" for i in range(4 + len(operands))]
        a, c = ", ".join(places[4 : 4 + 2 * depth]), ", ".join(places[4 + 2 * depth : 4 + 3 * depth])
        sums = ", ".join(places[4 + 3 * depth :])
        # 4 of K for each register of the right operand.
        text = (
            f"mma.sync.aligned.m16n8k{4 * depth}.row.col.f64.f64.f64.f64 {{$0,$1,$2,$3}}, {{{a}}}, {{{c}}}, {{{sums}}};"
        )
        constraints = ",".join(["=d"] * SUMS + ["d"] * 3 * depth + ["0", "1", "2", "3"])
        new = asm(b, ir.LiteralStructType([F64] * SUMS), operands, text, constraints, convergent=True)
        return [b.extract_value(new, i) for i in range(SUMS)]
    # 8 rows by 4 of K, 8 columns (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64 floating point type").
    text = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {$0,$1}, {$2}, {$3}, {$4,$5};"
    new = list(acc)
    for pair, other in zip(left, right, strict=True):
        for half in range(2):
            operands = [pair[half], other, *new[2 * half : 2 * half + 2]]
            made = asm(b, ir.LiteralStructType([F64] * 2), operands, text, "=d,=d,d,d,0,1", convergent=True)
            new[2 * half : 2 * half + 2] = [b.extract_value(made, i) for i in range(2)]
    return new


def _by_f64(
    b: Any, accumulator: Layout, sums: list[Any], left: Stage, right: Stage, shifts: Shifts, capability: Capability
) -> list[Any]:
    """Products of f64, of which each thread loads its own elements."""
    # Lane l has row (or column) l // 4 and depth l % 4 of both operands (PTX ISA, as for `_f64_product`).
    lane = lane_of(b, thread(b))
    group, inner = b.lshr(lane, i32c(2)), b.and_(lane, i32c(3))

    def reader(stage: Stage, across: Any, shift: Any, is_left: bool) -> Any:
        by_k = stage.swap if is_left else not stage.swap
        row, column = (inner, b.add(across, group)) if by_k else (b.add(across, group), inner)
        base = b.mul(b.add(b.mul(row, i32c(stage.pitch)), column), i32c(F64_BYTES))
        base = b.add(b.add(base, shift), i32c(stage.offset))

        def read(other: int, k: int) -> Any:
            row, column = (k, other) if by_k else (other, k)
            where = shared(b, b.add(base, i32c((row * stage.pitch + column) * F64_BYTES)))
            loaded = b.load(pointer(b, where, F64, SHARED))
            loaded.align = F64_BYTES
            return loaded

        return read

    read_left = reader(left, _warp_coordinate(b, accumulator, 0), shifts[0], True)
    read_right = reader(right, _warp_coordinate(b, accumulator, 1), shifts[1], False)
    down, across = tiles_along(accumulator, 0), tiles_along(accumulator, 1)
    depth = left.rows if left.swap else left.columns
    at_once = next(step for step in (16, 8, 4) if depth % step == 0)  # of K, by one instruction
    for k in range(0, depth, at_once):
        steps = range(k, k + at_once, F64_STEP)
        a = [[[read_left(m + half, step) for half in (0, MATRIX)] for step in steps] for m in down]
        parts = [[read_right(n, step) for step in steps] for n in across]
        for i in range(len(down)):
            for j in range(len(across)):
                at = (i * len(across) + j) * SUMS
                sums[at : at + SUMS] = _f64_product(b, a[i], parts[j], sums[at : at + SUMS], capability)
    return sums


def _rounded(b: Any, words: list[Any], capability: Capability) -> list[Any]:
    """Elements of f32 as tf32."""
    return [converted(b, f32, tf32, b.bitcast(each, F32), capability=capability) for each in words]


def by_tensor_cores(
    b: Any,
    accumulator: Layout,
    sums: list[Any],
    left: Stage,
    right: Stage,
    shifts: Shifts,
    capability: Capability,
    *,
    rounds: bool = False,
) -> list[Any]:
    """Add the staged product to `sums`, in f32, f64 or i32.

    Args:
        shifts: bytes from the operands' offsets to where they are.
        rounds: what is staged is f32, to be rounded to tf32.
    """
    if left.dtype is f64:
        return _by_f64(b, accumulator, sums, left, right, shifts, capability)
    down, across = tiles_along(accumulator, 0), tiles_along(accumulator, 1)
    stride = across[1] if len(across) > 1 else 0
    rows = _Side(b, left, _warp_coordinate(b, accumulator, 0), MATRIX, True, shifts[0])
    columns = _Side(b, right, _warp_coordinate(b, accumulator, 1), stride, False, shifts[1])
    types = left.dtype, right.dtype
    for k in range(0, left.rows if left.swap else left.columns, STEP_BYTES * 8 // left.dtype.bits):
        a = [rows.read(m, k, 4) for m in down]  # both halves of the rows, both halves of K
        a = [_rounded(b, each, capability) for each in a] if rounds else a
        parts: list[list[Any]] = []
        for first in range(0, len(across), 2):
            pair = min(2, len(across) - first)
            found = columns.read(across[first], k, 2 * pair)
            found = _rounded(b, found, capability) if rounds else found
            parts += [found[2 * i : 2 * i + 2] for i in range(pair)]
        for i in range(len(down)):
            for j in range(len(across)):
                at = (i * len(across) + j) * SUMS
                sums[at : at + SUMS] = _product(b, types, a[i], parts[j], sums[at : at + SUMS], capability)
    return sums
