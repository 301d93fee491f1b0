"""Generated kernels through Numba, NVVM and the linker, without a device: their machine code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cutile.backend.cuda import build
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.target import architecture
from cutile.backend.interface import Executable, Source, Target
from cutile.dtypes import (
    DTYPES,
    EVERY_DTYPE,
    DTypeLike,
    bf16,
    bool_,
    f8e4m3fn,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    tf32,
    u16,
    u64,
)
from cutile.errors import CompilationError
from cutile.ir.core import Function
from cutile.ir.types import TensorType
from kernels.gemm import gemm
from tests.backend.cuda import programs
from tests.backend.cuda.programs import (
    HOPPER,
    compiled,
    gemm_program,
    instructions,
    mlp_programs,
    row_min_program,
    saxpy_program,
    softmax_program,
    source,
    vector_add_program,
    written,
)
from tests.samples.values import CASES
from tests.support.programs import mut, scalar, tensor

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
DIALECTS = ("sm_80", "sm_100a")
"""One architecture for each of NVVM's two forms of LLVM IR, for kernels whose text is the same on all."""


CHOSEN = {"sm_80": ("gemm f32", "gemm f16", "gemm bf16"), "sm_90a": ("gemm f32", "gemm f16")}
"""Products that test_chosen.py compiles, with the tiles that the library chooses."""


def shipped() -> dict[str, Function]:
    """Every shipped kernel with the tiles of its launches, and with tiles that are no powers of two."""
    return {
        "saxpy": saxpy_program(2048),
        "saxpy 2-D": saxpy_program(32, 128),
        "vector_add": vector_add_program(),
        "softmax": softmax_program(1, 4096),
        "softmax 4 rows": softmax_program(4, 1000),
        "softmax f16": softmax_program(1, 4096, f16),
        "gemm f32": gemm_program(f32, (128, 128), 32),
        "gemm f32 96x80": gemm_program(f32, (96, 80), 48),
        "gemm f16": gemm_program(f16, (128, 128), 64),
        "gemm bf16": gemm_program(bf16, (128, 256), 64),
        "gemm bf16 96x80": gemm_program(bf16, (96, 80), 24),
        "row_min": row_min_program(16),
        **mlp_programs(),
    }


def assert_clean(executable: Executable) -> None:
    """No spills, no stack, nothing serialised or ignored."""
    facts = executable.facts
    # A log that is not there has no complaints.
    assert facts["registers"] > 0, f"the linker said nothing: {executable.log!r}"
    assert (facts["spills"], facts["stack"], facts["remarks"]) == (0, 0, ()), executable.log


@pytest.mark.slow
def test_two_blocks_that_would_spill_are_not_asked_for() -> None:
    single = TensorType(bf16, (None, None), (None, 1), 2)  # each element is loaded into a register of its own
    function = programs.shipped(gemm, {"z": mut(128, 128, dtype=bf16), "x": single, "y": single}, BK=64)
    hoped = source(function)
    assert hoped.facts["min_blocks"] == 2
    executable = compiled(function)
    assert_clean(executable)
    assert executable.facts["min_blocks"] == 0
    assert executable.log.startswith("2 blocks to a multiprocessor would spill ")
    wished = source(gemm_program(bf16, (96, 80), 24), occupancy=2)
    assert "may_have_fewer_blocks" not in wished.facts


@pytest.mark.slow
def test_only_a_kernel_that_spills_is_built_again_for_all_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 threads may have 128 registers each; the linker takes 32, and spills 7252 bytes."""
    builds: list[int] = []

    def counted(source: Source, target: Target) -> Executable:
        builds.append(source.facts["min_blocks"])
        return build.build(source, target)

    monkeypatch.setattr(BACKEND, "build", counted)
    large = compiled(saxpy_program(256, 256))
    assert builds == [0, 1]
    assert (large.facts["threads"], large.facts["registers"], large.facts["min_blocks"]) == (512, 128, 1)
    note = re.match(r"(\d+) registers would spill (\d+) bytes: compiled again for one block", large.log)
    assert note is not None
    assert int(note[1]) < 128
    assert int(note[2]) > 2 * large.facts["spills"] > 0
    del builds[:]
    assert compiled(saxpy_program(256, 256), occupancy=4).facts["registers"] == 32  # as the user has asked
    assert compiled(saxpy_program(128, 128)).facts["spills"] == 0
    assert compiled(saxpy_program(128, 256)).facts["registers"] == 128  # it spills, but has all registers
    assert builds == [4, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_shipped_kernels_compile_clean(arch: str, tmp_path: Path) -> None:
    for name, function in shipped().items():
        if name in CHOSEN.get(arch, ()):
            continue
        executable = compiled(function, arch)
        assert_clean(executable)
        assert executable.image.startswith(b"\x7fELF")
        assert executable.facts["shared_bytes"] <= architecture(arch).shared_bytes
        if "16" in name and "gemm" in name:
            wanted = meant(arch, name)
            found = instructions(executable, tmp_path)
            assert all(any(each.startswith(start) for each in found) for start in wanted), (name, wanted)


def meant(arch: str, name: str) -> tuple[str, ...]:
    """The instructions that a product of 16-bit floats should become."""
    if "96x80" in name:  # its rows are no whole number of a warp group's
        return ("HMMA.16816.F32", "LDSM")
    if arch == "sm_90a":
        return ("HGMMA.64", "UTMALDG", "UTMASTG", "USETMAXREG", "SYNCS")
    return ("HMMA.16816.F32", "LDGSTS", "LDSM")


def test_saxpy_reads_and_writes_vectors(tmp_path: Path) -> None:
    opcodes = instructions(compiled(saxpy_program(1024)), tmp_path)
    # Within the tensor, and at its edge.
    assert sum(n for each, n in opcodes.items() if each.startswith("LDG.E.128")) == 2 * 4
    assert opcodes["STG.E.128"] == 2 * 2
    assert not any(each.startswith("BAR") for each in opcodes)


def test_softmax_reads_its_row_once(tmp_path: Path) -> None:
    opcodes = instructions(compiled(softmax_program(1, 4096)), tmp_path)
    assert sum(n for each, n in opcodes.items() if each.startswith("LDG.E.128")) == 2 * 4
    assert opcodes["STG.E.128"] == 2 * 4
    assert sum(n for each, n in opcodes.items() if each.startswith("BAR")) == 2  # one for each reduction


def test_f32_products_are_not_rounded_to_tf32(tmp_path: Path) -> None:
    found = instructions(compiled(gemm_program(f32, (64, 64), 16)), tmp_path)
    assert found["FFMA"] > 100
    assert not any(each.startswith("HMMA") for each in found)


def test_products_and_sums_are_rounded_one_by_one(tmp_path: Path) -> None:
    opcodes = instructions(compiled(saxpy_program(1024)), tmp_path)
    assert opcodes["FFMA"] == 0
    assert opcodes["FMUL"]
    assert opcodes["FADD"]


AT_ONCE = 32  # operations in a kernel, whose operands and results all wait in registers


def terms_of(dtype: DTypeLike) -> list[str]:
    """Every element-wise operation on a dtype, and conversions to every other and back."""
    if dtype is bool_:
        terms = ["x & y", "x | y", "x ^ y", "~x", "ct.noti(x)", "ct.select(x == y, x, y)"]
    else:
        terms = [case.expression for case in CASES if dtype in case.dtypes]
    return terms + [f"ct.convert_tile(ct.convert_tile(x, ct.{each.__name__}), x.dtype)" for each in EVERY_DTYPE[:-1]]


def sum_of(terms: list[str]) -> str:
    """A kernel that adds them up."""
    lines = ["def every(out: Mut, x_in: Tensor, y_in: Tensor, z_in: Tensor):"]
    lines += [f"    {name} = ct.load_tile_like({name}_in, out)" for name in "xyz"]
    lines += ["    total = ct.select(x != y, ct.convert_tile(x, ct.f64), 1.0)"]
    lines += [f"    total = total + ct.convert_tile({term}, ct.f64)" for term in terms]
    return "\n".join([*lines, "    out.store(total)", ""])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_wise_operation_compiles(dtype: DTypeLike) -> None:
    x = tensor(1, dtype, alignment=dtype.bits // 8)  # one element per thread: no vectors
    terms = terms_of(dtype)
    for at in range(0, len(terms), AT_ONCE):
        text = sum_of(terms[at : at + AT_ONCE])
        function = written(text, {"out": mut(32, dtype=f64), "x_in": x, "y_in": x, "z_in": x})
        for arch in DIALECTS:
            assert compiled(function, arch).facts["spills"] == 0, text


FUSED = """
def fused(y: Mut, x: Tensor, a: {dtype}):
    t = x.load_tile((16, 64), (0, 0))
    y.store(ct.reduce(t, 1, 0, lambda p, q: ct.fma(p, q, p)) * ct.fma(a, a, a))
"""


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_fma_of_halves_is_for_numbers_and_for_functions_of_reductions(dtype: DTypeLike, tmp_path: Path) -> None:
    """Tiles have two elements at a time, a number and an element of a function are alone."""
    types = {"y": mut(16, dtype=dtype), "x": tensor(2, dtype), "a": scalar(dtype)}
    executable = compiled(written(FUSED.format(dtype=dtype), types))
    assert_clean(executable)
    assert instructions(executable, tmp_path).keys() & {"HFMA2", "HFMA2.BF16_V2", "HFMA2.MMA"}


FOLDS = """
def first(a, b):
    return a if a[0] >= b[0] else b

def f(y: Mut, x: Tensor):
    t = x.load_tile((24, 40), (0, 0))
    value, index = ct.reduce((t, ct.iota((40,)).reshape((1, 40)).broadcast((24, 40))), 1, (-100, 0), first)
    running = ct.scan_sum(t, 0) + ct.scan(t, 1, ct.reverse.REVERSE, 1, lambda a, b: a * b)
    part = ct.extract(ct.cat(running, t, 0), (1, 0), (24, 40))
    most = ct.reduce(ct.reduce(t, 0, 0, ct.max_tile), 0, 0, max)
    y.store(part + (value + index.astype(x.dtype)).reshape((24, 1)) + most + ct.reduce_max(t, 0, nan=True))
"""


@pytest.mark.parametrize("arch", DIALECTS)
@pytest.mark.parametrize("dtype", [f16, f64, i32], ids=str)
def test_functions_of_scalars_compile(dtype: DTypeLike, arch: str) -> None:
    assert_clean(compiled(written(FOLDS, {"y": mut(24, 40, dtype=dtype), "x": tensor(2, dtype)}), arch))


@pytest.mark.parametrize("arch", DIALECTS)
@pytest.mark.parametrize("dtype", [f16, f64, i32], ids=str)
def test_reductions_and_moves_compile(dtype: DTypeLike, arch: str) -> None:
    text = (
        "def f(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile(x, (24, 40), (0, 0))\n"
        "    low, high = ct.reduce_min(t, 0).reshape((1, 40)), ct.reduce_max(t, 1).reshape((24, 1))\n"
        "    total = ct.reduce_sum(ct.reduce_prod(t, 0), 0)\n"
        "    turned = (t + low + high).reshape((40, 24)).transpose().reshape((24, 40))\n"
        "    y.store(turned + ct.broadcast(total, (24, 40)))\n"
    )
    assert_clean(compiled(written(text, {"y": mut(24, 40, dtype=dtype), "x": tensor(2, dtype)}), arch))


def test_control_flow_compiles() -> None:
    text = (
        "def f(y: Mut, x: Tensor, n: i32, a: f16, b: bf16, c: u64, d: bool_):\n"
        "    t = ct.load_tile_like(x, y)\n"
        "    u = t * ct.convert_tile(a, ct.f32) + ct.convert_tile(b, ct.f32)\n"
        "    for k in range(n):\n"
        "        for j in range(1, k, 2):\n"
        "            t, u = u, t + u\n"
        "        if k > 2 and d:\n"
        "            t = t - ct.convert_tile(c, ct.f32)\n"
        "    while ct.reduce_max(t, 0) > 1.0:\n"
        "        t = t * 0.5\n"
        "    y.store(t)\n"
    )
    types = {"y": mut(500), "x": tensor(1), "n": scalar(i32), "a": scalar(f16), "b": scalar(bf16)}
    assert_clean(compiled(written(text, types | {"c": scalar(u64), "d": scalar(bool_)})))


def test_names_of_any_letters_compile() -> None:
    text = "def größe(y: Mut, ä: Tensor):\n    é = ct.load_tile_like(ä, y)\n    y.store(é + 1.0)\n"
    executable = compiled(written(text, {"y": mut(64), "ä": tensor(1)}))
    assert executable.entry == "gr__e"


def test_a_text_with_a_nul_is_printed() -> None:
    text = 'def f(y: Mut, n: i32):\n    print(f"a\\0{n}\\0", y.load(), "b\\0")\n'
    executable = compiled(written(text, {"y": mut(64), "n": scalar(i32)}))
    assert executable.facts["spills"] == 0


def test_occupancy_limits_registers() -> None:
    free, tight = (compiled(gemm_program(f16, (128, 128), 32), occupancy=n, num_worker_warps=8) for n in (1, 2))
    assert free.facts["registers"] > 128 >= tight.facts["registers"]


def test_a_fault_in_the_generated_text_is_shown_with_it() -> None:
    good = source(saxpy_program(1024))
    text = good.text.replace("add(mul(", "add(nothing(")
    broken = Source(text, good.entry, good.parameters, good.lines, good.facts)
    with pytest.raises(CompilationError, match="nothing") as caught:
        BACKEND.build(broken, HOPPER)
    assert "def saxpy(" in str(caught.value)
    assert "while compiling saxpy for sm_90a" in "".join(getattr(caught.value, "__notes__", []))


def test_the_version_names_the_toolchain() -> None:
    version = BACKEND.version()
    for part in ("numba ", "numba-cuda ", "nvidia-nvvm ", "nvidia-nvjitlink "):
        assert part in version


@pytest.mark.slow
@pytest.mark.parametrize("arch", DIALECTS)
def test_stored_types_are_converted_moved_and_rounded(arch: str) -> None:
    stored = [each for each in EVERY_DTYPE if each.kind == "storage"][:-1]
    lines = ["def every(out: Mut, x_in: Tensor, n_in: Tensor):", "    x = ct.load_tile_like(x_in, out)"]
    lines += ["    n, total = ct.load_tile_like(n_in, out), x"]
    for dtype in stored:
        for mode in ("NEAREST_EVEN", "ZERO", "POSITIVE_INF", "NEGATIVE_INF"):
            made = f"ct.ftof(x, ct.{dtype}, rounding=ct.rounding.{mode})"
            lines += [f"    total = total + ct.select(x > 0, {made}, ct.constant(1, (64,), ct.{dtype})).astype(ct.f32)"]
            lines += [f"    total = total + ct.itof(n, ct.{dtype}, rounding=ct.rounding.{mode}).astype(ct.f32)"]
    for mode in ("NEAREST_EVEN", "ZERO", "POSITIVE_INF", "NEGATIVE_INF"):
        for each in (i8, u16, i64):
            lines += [f"    total = total + ct.ftoi(x, ct.{each}, rounding=ct.rounding.{mode}).astype(ct.f32)"]
        for each in (f16, bf16, f32, f64):
            lines += [f"    total = total + ct.itof(n, ct.{each}, rounding=ct.rounding.{mode}).astype(ct.f32)"]
    lines += ["    total = total + ct.unpack(ct.pack(x), ct.f32)", "    out.store(total)", ""]
    function = written("\n".join(lines), {"out": mut(64, dtype=f32), "x_in": tensor(1, f32), "n_in": tensor(1, i64)})
    assert compiled(function, arch).facts["spills"] == 0


@pytest.mark.parametrize(
    "expression", ["ct.scan_sum(t, 0)", "ct.reduce(t, 0, 0, lambda a, b: a + b).broadcast(t.shape)"]
)
@pytest.mark.parametrize("count", [16, 4096])
def test_functions_of_many_halves_compile(count: int, expression: str) -> None:
    """LLVM must not pair a thread's elements of f16: NVVM has no code for that."""
    text = f"def f(y: Mut, x: Tensor):\n    t = x.load_tile(({count},), (0,))\n    y.store({expression})\n"
    function = written(text, {"y": mut(count, dtype=f16), "x": tensor(1, f16)})
    for arch in DIALECTS:
        assert compiled(function, arch).facts["spills"] == 0


Made = tuple[DTypeLike, DTypeLike, str]
"""Of a product: the operands' dtype, the accumulator's, and "t" for an operand that is a transposed view."""
PRODUCTS: dict[Made, dict[str, str]] = {
    (f16, f32, "nn"): {"HMMA": "F32", "LDSM": "MT88", "LDGSTS": ""},
    (bf16, f32, "tt"): {"HMMA": "BF16", "LDSM": "MT88", "LDGSTS": ""},
    (tf32, f32, "nn"): {"HMMA": "TF32", "LDSM": "M88", "LDGSTS": ""},
    (i8, i32, "nt"): {"IMMA": "S8", "LDSM": "M88", "LDGSTS": ""},
    (f8e4m3fn, f32, "nt"): {"HMMA": "F32", "LDSM": "M88", "LDGSTS": ""},
    (f64, f64, "nn"): {"DMMA": "", "LDGSTS": ""},
    (f32, f32, "nn"): {"FFMA": "", "LDS": "128", "LDGSTS": ""},
}
TURNED = """
def product(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    px, py = x.partition((128, BK)), y.partition((BK, 128))
    acc = ct.constant(0, (128, 128), ct.ACC)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(acc)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "acc", "turned"), PRODUCTS, ids=str)
def test_a_product_is_made_of_its_own_instructions(
    dtype: DTypeLike, acc: DTypeLike, turned: str, arch: str, tmp_path: Path
) -> None:
    depth = {8: 64, 16: 64, 32: 32, 64: 16}[dtype.bits]
    x, y = (TensorType(dtype, (None, None), (1, None) if each == "t" else (None, 1), 16) for each in turned)
    text = TURNED.replace("BK", str(depth)).replace("ACC", acc.name)
    function = written(text, {"z": mut(128, 128, dtype=acc), "x": x, "y": y})
    executable = compiled(function, arch)
    assert_clean(executable)
    if arch == "sm_80":
        found = instructions(executable, tmp_path)
        for name, part in PRODUCTS[dtype, acc, turned].items():
            assert any(each.split(".")[0] == name and part in each for each in found), f"no {name} with {part}: {found}"
