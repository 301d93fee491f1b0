"""Products by the tensor cores (`mma.sync`), with operands from shared memory.

One instruction takes 16 rows, 8 columns, and 32 bytes along K: 16 elements of 16 bits, 32 of 8 bits, 8 of tf32. The
registers of its operands are 8 x 8 matrices of 16 bits as `ldmatrix` reads them, whatever the elements are. `ldmatrix`
transposes only elements of 16 bits, so each thread loads its own elements of a transposed operand of tf32. The same
holds for all operands of f64, of which one instruction takes 4, 8 or 16 elements along K.
"""

from collections.abc import Sequence
from typing import Any

from cutile.backend.cuda.intrinsics.cast import FP8_SINCE, Capability, converted
from cutile.backend.cuda.intrinsics.llvm import F32, F64, I32, SHARED, asm, i32c, ir, lane_of, pointer, shared, thread
from cutile.backend.cuda.smem_layout import STEP_BYTES
from cutile.backend.cuda.smem_sizes import F64_STEP, Stage
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
"""An element type's name in PTX, and its elements along K that one instruction takes."""
Shifts = tuple[Any, Any]
"""Bytes from the first stage to the present one, for the left and for the right operand."""
NO_FP8_MAJOR = 9
"""The major capability without fp8 products of single warps (`mma.sync`) in hardware, though 8.9 and later majors have
them. For it `ptxas` replaces each by f16 products with accumulators of their own, and adds these."""
MATRIX = 8
"""Rows of a matrix that `ldmatrix` reads."""
ROW_BYTES = 16
"""Bytes of a matrix's row."""
SUMS = 4
"""Accumulator elements of a thread in one product of 16 rows by 8 columns."""
F64_BYTES = 8
F64_TALL_SINCE: Capability = (9, 0)
"""The first architecture whose f64 products have 16 rows, and up to 16 elements along K."""


def tiles_along(layout: Layout, axis: int) -> list[int]:
    """The coordinates at which the repeats of a layout's core begin along an axis."""
    count = next((n for a, n in layout.repeat if a == axis), 1)
    return [layout.core[axis] * i for i in range(count)]


def _warp_coordinate(b: Any, layout: Layout, axis: int) -> Any:
    """The warp's contribution to a coordinate along an axis."""
    number = thread(b)
    total: Any = i32c(0)
    for bit, basis in enumerate(layout.warp):
        if basis[axis]:
            flag = b.and_(b.lshr(number, i32c(LANE_BITS + bit)), i32c(1))
            total = b.or_(total, b.shl(flag, i32c(basis[axis].bit_length() - 1)))
    return total


def _matrices(b: Any, address: Any, count: int, transposed: bool) -> list[Any]:
    """`count` 8 x 8 matrices of 16-bit elements in shared memory, a register for each."""
    outputs = ", ".join(f"${i}" for i in range(count))
    kind = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    result = ir.LiteralStructType([I32] * count)
    constraints = ",".join(["=r"] * count) + ",r"
    # Lanes 8 i to 8 i + 7 give the rows of matrix i (PTX ISA, "ldmatrix").
    text = f"{kind} {{{outputs}}}, [${count}];"
    matrices = asm(b, result, [address], text, constraints, effect=True, convergent=True)
    return [b.extract_value(matrices, i) for i in range(count)]


class _Operand:
    """One operand in shared memory, and the row that a lane gives to `ldmatrix`.

    The four matrices of a step are numbered by two bits: their half of the result's rows (or columns), and their half
    of K. The instruction's registers number the halves of rows first in the left operand, the halves of K first in the
    right operand.
    """

    def __init__(self, b: Any, stage: Stage, across: Any, stride: int, left: bool, shift: Any) -> None:
        """Compute the lane's address.

        Args:
            b: the builder.
            stage: of the operand.
            across: the warp's coordinate along M (or N).
            stride: from one half of the rows (or columns) to the other.
            left: whether this is the left operand.
            shift: bytes from the first stage to the present one.
        """
        self._b, self._stage = b, stage
        self._size = stage.dtype.bits // 8
        # Lane l gives the address of row l % 8 of matrix l // 8. Bits 3 and 4 of l are the two bits of that number.
        lane = lane_of(b, thread(b))
        row = b.and_(lane, i32c(MATRIX - 1))
        bits = b.and_(b.lshr(lane, i32c(3)), i32c(1)), b.lshr(lane, i32c(4))
        half, k_half = bits if left else reversed(bits)
        self._transposed = stage.swap if left else not stage.swap
        self._left, self._stride = left, stride
        base = b.ptrtoint(shared(b, shift), I32)
        if self._transposed and self._size > 2:
            # Of a matrix of 8 rows by 4 words, lane l has word l % 4 of row l // 4 (PTX ISA, "Matrix Fragments for
            # mma.m16n8k8").
            self._base = self._word(base, b.add(across, b.lshr(lane, i32c(2))), b.and_(lane, i32c(3)))
            return
        along_k, along_other = b.mul(k_half, i32c(ROW_BYTES // self._size)), b.add(across, b.mul(half, i32c(stride)))
        if self._transposed:  # a row in memory is one index of K
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
        """As `read`, for elements of 32 bits, which the lane loads one by one."""
        half_step = STEP_BYTES // self._size // 2  # elements along K
        places = [(half, k_half) for k_half in (0, half_step) for half in (0, self._stride)]
        if not self._left:
            places = [(half, k_half) for half in (0, self._stride) for k_half in (0, half_step)]
        words: list[Any] = []
        for half, k_half in places[:count]:
            where = ((k + k_half) * self._stage.pitch + other + half) * self._size
            # In PTX, so that it keeps its place among the barriers, as `ldmatrix` does, and the constant part of the
            # address is in the instruction (PTX ISA, "ld").
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
    sums, letter, kind = ("s32", "r", I32) if left_type in (i8, u8) else ("f32", "f", F32)
    # 4 registers of the left operand, 2 of the right one, and 4 sums, which are tied to the results (PTX ISA, "Matrix
    # Fragments for mma.m16n8k16 with floating point type", and the sections of the other shapes).
    text = (
        f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{left_name}.{right_name}.{sums} "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    constraints = ",".join([f"={letter}"] * SUMS) + ",r,r,r,r,r,r,0,1,2,3"
    new = asm(b, ir.LiteralStructType([kind] * SUMS), [*left, *right, *acc], text, constraints, convergent=True)
    return [b.extract_value(new, i) for i in range(SUMS)]


def _as_halves(b: Any, dtype: DTypeLike, word: Any, capability: Capability) -> tuple[Any, Any]:
    """Four floats of 8 bits, in a register, as four of f16 in two."""
    if capability >= FP8_SINCE:
        # Two at a time; f16 holds all numbers of both types (PTX ISA, "cvt").
        convert = f"cvt.rn.f16x2.{NAMES[dtype][0]}x2"
        text = f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, $2; {convert} $0, low; {convert} $1, high; }}"
        halves = asm(b, ir.LiteralStructType([I32, I32]), [word], text, "=r,=r,r")
        return b.extract_value(halves, 0), b.extract_value(halves, 1)
    zero = i32c(0)
    halves: list[Any] = []
    for selector in (0x1404, 0x3424):
        # Two bytes, each into the upper half of 16 bits; byte 4 is the other operand's, a zero (PTX ISA, "prmt").
        bits = asm(b, I32, [word, zero, i32c(selector)], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
        if dtype is f8e5m2:  # the upper byte of an f16
            halves.append(bits)
            continue
        # The sign stays; 4 bits of exponent and 3 of fraction move one down, to where f16 has its 5 and 10.
        sign, size = b.and_(bits, i32c(-0x7FFF8000)), b.lshr(b.and_(bits, i32c(0x7F007F00)), i32c(1))
        # The exponent is 8 too small (bias 7, not 15). A product by 2 ** 8 (0x5C00) repairs that, of subnormal numbers
        # too (PTX ISA, "mul").
        scaled = asm(b, I32, [b.or_(sign, size), i32c(0x5C005C00)], "mul.rn.f16x2 $0, $1, $2;", "=r,r,r")
        # NaN has all bits but the sign set, so that it alone carries into bit 14 here. In f16 NaN is 0x7E00.
        is_nan = b.and_(b.lshr(b.add(size, i32c(0x00800080)), i32c(14)), i32c(0x00010001))
        halves.append(b.or_(scaled, b.mul(is_nan, i32c(0x7E00))))
    return halves[0], halves[1]


def _product(
    b: Any,
    types: tuple[DTypeLike, DTypeLike],
    left: Sequence[Any],
    right: Sequence[Any],
    acc: Sequence[Any],
    capability: Capability,
) -> list[Any]:
    """Add one step of K to one core of the result."""
    if not types[0].is_float8 or (capability >= FP8_SINCE and capability[0] != NO_FP8_MAJOR):
        return _instruction(b, *types, left, right, acc)
    # Before sm_89, and on sm_90, as f16, which holds both types. The elements along K may come in any order that is the
    # same in both operands: the first two of each four make one product, the last two another.
    left_halves = [_as_halves(b, types[0], each, capability) for each in left]
    right_halves = [_as_halves(b, types[1], each, capability) for each in right]
    for half in range(2):
        acc = _instruction(
            b, f16, f16, [each[half] for each in left_halves], [each[half] for each in right_halves], acc
        )
    return list(acc)


def _f64_product(
    b: Any, left: Sequence[Sequence[Any]], right: Sequence[Any], acc: Sequence[Any], capability: Capability
) -> list[Any]:
    """Add a product of f64 to one core, of 16 rows; before sm_90 in two halves.

    For each 4 elements along K, `left` has an element of the upper and one of the lower half of the rows, `right` has
    one element.
    """
    if capability >= F64_TALL_SINCE:
        # `$0` to `$3` are the sums. Then come the left operand, the right one, and the sums again, tied to
        # the results (PTX ISA, "Matrix Fragments for mma.m16n8k4", and those for k8 and k16).
        depth = len(right)
        operands = [*(each for pair in left for each in pair), *right, *acc]
        names = [f"${i}" for i in range(4 + len(operands))]
        a, right_names = ", ".join(names[4 : 4 + 2 * depth]), ", ".join(names[4 + 2 * depth : 4 + 3 * depth])
        sums = ", ".join(names[4 + 3 * depth :])
        # The right operand has a register for each 4 elements along K.
        text = (
            f"mma.sync.aligned.m16n8k{4 * depth}.row.col.f64.f64.f64.f64 "
            f"{{$0,$1,$2,$3}}, {{{a}}}, {{{right_names}}}, {{{sums}}};"
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
            pair_sums = asm(b, ir.LiteralStructType([F64] * 2), operands, text, "=d,=d,d,d,0,1", convergent=True)
            new[2 * half : 2 * half + 2] = [b.extract_value(pair_sums, i) for i in range(2)]
    return new


def _by_f64(
    b: Any, accumulator: Layout, sums: list[Any], left: Stage, right: Stage, shifts: Shifts, capability: Capability
) -> list[Any]:
    """Add products of f64 to `sums`; each thread loads its own elements."""
    # Lane l has row (or column) l // 4 and index l % 4 along K of both operands (PTX ISA: the sections named in
    # `_f64_product`).
    lane = lane_of(b, thread(b))
    group, inner = b.lshr(lane, i32c(2)), b.and_(lane, i32c(3))

    def reader(stage: Stage, across: Any, shift: Any, is_left: bool) -> Any:
        """The function `read(other, k)`, which loads an element of this thread.

        The element is `other` rows (or columns), and `k` along K, behind the thread's first one.
        """
        by_k = stage.swap if is_left else not stage.swap
        row, column = (inner, b.add(across, group)) if by_k else (b.add(across, group), inner)
        base = b.mul(b.add(b.mul(row, i32c(stage.pitch)), column), i32c(F64_BYTES))
        base = b.add(b.add(base, shift), i32c(stage.offset))

        def read(other: int, k: int) -> Any:
            row, column = (k, other) if by_k else (other, k)
            where = shared(b, b.add(base, i32c((row * stage.pitch + column) * F64_BYTES)))
            element = b.load(pointer(b, where, F64, SHARED))
            element.align = F64_BYTES
            return element

        return read

    read_left = reader(left, _warp_coordinate(b, accumulator, 0), shifts[0], True)
    read_right = reader(right, _warp_coordinate(b, accumulator, 1), shifts[1], False)
    down, across = tiles_along(accumulator, 0), tiles_along(accumulator, 1)
    depth = left.rows if left.swap else left.columns
    instruction_k = next(k for k in (16, 8, 4) if depth % k == 0)  # elements along K
    for k in range(0, depth, instruction_k):
        steps = range(k, k + instruction_k, F64_STEP)
        a = [[[read_left(m + half, step) for half in (0, MATRIX)] for step in steps] for m in down]
        parts = [[read_right(n, step) for step in steps] for n in across]
        for i in range(len(down)):
            for j in range(len(across)):
                at = (i * len(across) + j) * SUMS
                sums[at : at + SUMS] = _f64_product(b, a[i], parts[j], sums[at : at + SUMS], capability)
    return sums


def _rounded(b: Any, words: list[Any], capability: Capability) -> list[Any]:
    """Words of f32 as words of tf32."""
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
        b: the builder.
        accumulator: the layout of the sums.
        sums: this thread's accumulator elements.
        left, right: the operands in shared memory.
        shifts: bytes from each operand's offset to its present stage.
        capability: of the target.
        rounds: the staged elements are f32, and are rounded to tf32.
    """
    if left.dtype is f64:
        return _by_f64(b, accumulator, sums, left, right, shifts, capability)
    down, across = tiles_along(accumulator, 0), tiles_along(accumulator, 1)
    stride = across[1] if len(across) > 1 else 0
    rows = _Operand(b, left, _warp_coordinate(b, accumulator, 0), MATRIX, True, shifts[0])
    columns = _Operand(b, right, _warp_coordinate(b, accumulator, 1), stride, False, shifts[1])
    types = left.dtype, right.dtype
    for k in range(0, left.rows if left.swap else left.columns, STEP_BYTES * 8 // left.dtype.bits):
        a = [rows.read(m, k, 4) for m in down]  # both halves of the rows, both halves of K
        a = [_rounded(b, each, capability) for each in a] if rounds else a
        parts: list[list[Any]] = []
        for first in range(0, len(across), 2):
            pair = min(2, len(across) - first)  # two cores of 8 columns in one `ldmatrix`
            words = columns.read(across[first], k, 2 * pair)
            words = _rounded(b, words, capability) if rounds else words
            parts += [words[2 * i : 2 * i + 2] for i in range(pair)]
        for i in range(len(down)):
            for j in range(len(across)):
                at = (i * len(across) + j) * SUMS
                sums[at : at + SUMS] = _product(b, types, a[i], parts[j], sums[at : at + SUMS], capability)
    return sums
