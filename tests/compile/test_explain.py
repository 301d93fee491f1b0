"""The plan of a kernel in words: golden texts, and that what they say is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import cutile as ct
from cutile import api, bf16, f16, f32, f64, i32
from cutile.backend.cpu.backend import CpuBackend
from cutile.backend.cuda.backend import BACKEND as CUDA
from cutile.backend.cuda.build import to_llvm
from cutile.backend.cuda.explain import Resident, plan, products, resident_blocks
from cutile.backend.cuda.target import architecture
from cutile.backend.interface import CompileOptions, Executable, Source, Target
from cutile.backend.registry import backend
from cutile.command import main
from cutile.compile.driver import Request, front, lower, plan_text, render
from cutile.errors import IRError
from cutile.installation import Need
from cutile.passes.pipeline import run_passes
from kernels.attention import attention
from kernels.gemm import gemm
from kernels.saxpy import saxpy
from kernels.softmax import softmax
from tests.support.golden import Golden
from tests.support.kernels import define, kernel

ROOT = Path(__file__).parents[2]
HOPPER, AMPERE = Target("cuda", "sm_90a"), Target("cuda", "sm_80")
CPU = Target("cpu", "any", 16)  # of this machine, texts would differ from machine to machine


def request_of(op: Any, target: Target) -> Request:
    """What an operation compiles for a target; the operation is given up."""
    try:
        found = op.request(op.device if hasattr(op, "device") else ct.api.meta((1,)).device)
        return Request(found.function, found.source, found.specialization, found.options, target, found.declared)
    finally:
        op.discard()


def product(dtype: Any = bf16, tile: tuple[int, int] = (128, 256), **named: Any) -> Any:
    x, y, z = (api.meta((4096, 4096), dtype) for _ in range(3))
    return gemm(z.partition(tile), x, y, **named)


def hinted(**options: Any) -> Any:
    return product(tile=(128, 128)).compile_options(CompileOptions(**options))


def of_f64() -> Any:
    multiply = kernel(
        """
def multiply(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f64)
    for k in range(ct.num_tiles(x.partition((64, 16)), 1)):
        acc = ct.mma(ct.load_tile(x, (64, 16), (i, k)), ct.load_tile(y, (16, 64), (k, j)), acc)
    z.store(acc)
"""
    )
    x, y, z = (api.meta((512, 512), f64) for _ in range(3))
    return multiply(z.partition((64, 64)), x, y)


def heads() -> Any:
    q, k, v, o = (api.meta((16, 4096, 128), bf16) for _ in range(4))
    return attention(o.partition((1, 128, 128)), q, k, v, 0.1)


def rows() -> Any:
    x, y = api.meta((4096, 1000), f32), api.meta((4096, 1000), f32)
    return softmax(y.partition((1, 1000)), x)


def sums() -> Any:
    x, y = api.meta((4096,), f32), api.meta((4096,), f32)
    return saxpy(y.partition((256,)), 2.0, x)


def text_of(op: Any, target: Target, **facts: Any) -> str:
    """The plan without a toolchain, with what that would have found."""
    request = request_of(op, target)
    made_by, program = backend(target.backend), front(request)
    source = made_by.emit(lower(request, run_passes(program.function), True), target, request.options)
    return plan_text(program.function, target, request.options, {**source.facts, **facts})


LINKED: dict[str, Any] = {"registers": 168, "spills": 0, "stack": 0, "remarks": ()}
PLANS: dict[str, tuple[Any, Target, dict[str, Any]]] = {
    "gemm_sm_90a": (product, HOPPER, LINKED),
    "gemm_sm_80": (lambda: product(tile=(128, 128)), AMPERE, LINKED | {"registers": 255, "spills": 96, "stack": 48}),
    "gemm_split_sm_90a": (lambda: hinted(num_pieces=4), HOPPER, LINKED),
    "gemm_ping_pong_sm_90a": (lambda: hinted(num_worker_warps=4), HOPPER, LINKED),
    "gemm_clusters_sm_90a": (lambda: hinted(num_cta_in_cga=2), HOPPER, LINKED),
    "gemm_cpu": (lambda: product(f32, (128, 128)), CPU, {"vectors": "16 x f32"}),
    "attention_sm_90a": (heads, HOPPER, LINKED),
    "attention_sm_80": (heads, AMPERE, LINKED),
    "softmax_sm_80": (rows, AMPERE, LINKED | {"registers": 32}),
    "softmax_cpu": (rows, CPU, {"vectors": ""}),
    "saxpy_cpu": (sums, CPU, {"vectors": "16 x f32"}),
    "saxpy_reference": (sums, Target("reference", "numpy"), {}),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_text_of_a_plan(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutile.backend.cpu.explain.last_cache_bytes", lambda: 32 << 20)  # whatever this machine has
    op, target, found = PLANS[name]
    golden(f"plan/{name}", text_of(op(), target, **found))


@pytest.mark.parametrize(
    ("op", "target"),
    [
        (product, HOPPER),
        (lambda: product(ct.f8e4m3fn, (64, 128)), HOPPER),
        (lambda: product(bf16, (16, 64)), HOPPER),
        (lambda: product(f16, (128, 128)), AMPERE),
        (of_f64, AMPERE),
        (lambda: product(ct.f8e5m2, (64, 64)), AMPERE),
        (lambda: product(f32, (64, 64), BK=16), AMPERE),
    ],
    ids=["bf16", "f8", "few", "mma", "f64", "f8 without", "fma"],
)
def test_the_instructions_are_those_in_the_code(op: Any, target: Target) -> None:
    """Each that is named is there, and no other is."""
    request = request_of(op(), target)
    lowered = lower(request, run_passes(front(request).function), False)
    arch = architecture(target.arch)
    said = " ".join(text for heading, text in plan(lowered, arch) if heading == "products")
    named = set(re.findall(r"m\d+n\d+k\d+", said))
    code = "\n".join(to_llvm(CUDA.emit(lowered, target, request.options), arch))
    written = set(re.findall(r"(?:mma|mma_async)\.sync\.aligned\.(m\d+n\d+k\d+)", code))
    assert named == written
    assert ("FMA" in said) == (not written)
    assert ("wgmma" in said) == ("wgmma.mma_async" in code)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("(which[:, None], ct.iota((64,))[None, :])", "16 bytes a thread at once, by address"),
        ("(which[:, None], ct.iota((64,))[None, :] * 2)", "element by element, by address"),
    ],
    ids=["rows", "every other element"],
)
def test_the_width_of_a_gather_is_told(index: str, words: str) -> None:
    gather = kernel(
        "def rows(y: Mut, x: Tensor, index: Tensor):\n"
        "    which = ct.load_tile(index, (32,), (ct.get_tile_block_id()[0],))\n"
        f"    y.store(ct.gather(x, {index}))\n"
    )
    request = request_of(
        gather(api.meta((64, 64)).partition((32, 64)), api.meta((99, 1000)), api.meta((64,), i32)), HOPPER
    )
    lowered = lower(request, run_passes(front(request).function), False)
    assert f"x: {words}" in dict(plan(lowered, architecture("sm_90a")))["loads"]


@pytest.mark.parametrize("target", [HOPPER, AMPERE])
def test_products_have_the_names_that_the_author_gave(target: Target) -> None:
    """Also where the names end with digits."""
    two = kernel(
        "def two(z: Mut, x: Tensor, y: Tensor):\n"
        "    i, j, _ = ct.get_tile_block_id()\n"
        "    q1 = ct.constant(0.0, (64, 64), ct.f32)\n"
        "    q_2 = ct.constant(0.0, (64, 64), ct.f32)\n"
        "    for k in range(ct.num_tiles(x.partition((64, 64)), 1)):\n"
        "        a, b = x.partition((64, 64)).load((i, k)), y.partition((64, 64)).load((k, j))\n"
        "        q1 = ct.mma(a, b, q1)\n"
        "        q_2 = ct.mma(a, b + b, q_2)\n"
        "    z.store(q1 + q_2)\n"
    )
    x = api.meta((512, 512), f16)
    request = request_of(two(api.meta((512, 512)).partition((64, 64)), x, x), target)
    lowered = lower(request, run_passes(front(request).function), False)
    lines = products(lowered, architecture(target.arch))
    assert [re.split("[ :]", line)[0] for line in lines] == ["q1", "q_2"]


def test_accesses_by_address_name_the_tensor() -> None:
    """Of gathers, scatters and windows; addresses that the kernel was given have no tensor."""
    moved = ct.entry(unsafe=True)(
        define(
            "def moved(y: ct.SharedMut, x: Tensor, index: Tensor, p: ct.Ptr[f32]):\n"
            "    i = ct.get_tile_block_id()[0]\n"
            "    places = ct.gather(index, ct.iota((64,)) + i * 64)\n"
            "    window = ct.make_strided_view(x, (64,), (64,), starts=(-1,)).load((i,))\n"
            "    value, _ = ct.load_ptr_tko(p + places)\n"
            "    ct.scatter(y, places, value + window)\n"
        )
    )
    address = api.zeros((64,)).sync().device_pointer()
    request = request_of(moved(api.meta((999,)), api.meta((999,)), api.meta((999,), i32), address, grid=9), HOPPER)
    lowered = lower(request, run_passes(front(request).function), False)
    said = [text.partition(":")[0] for _, text in plan(lowered, architecture("sm_90a")) if "by address" in text]
    assert sorted(", ".join(said).split(", ")) == ["index", "pointers", "x", "y"]


def test_a_kernel_is_explained_by_the_toolchain_as_well() -> None:
    x = api.meta((4096,), f32)
    lines = saxpy.explain(x.partition((1024,)), 2.0, api.meta((4096,), f32), arch="sm_80").splitlines()
    assert lines[0] == "saxpy for sm_80"
    (registers,) = [line for line in lines if line.startswith("  registers")]
    assert re.fullmatch(r"  registers       \d+ a thread, no spills", registers)
    (fits,) = [line for line in lines if line.startswith("  residency")]
    assert re.search(r" \d+ thread blocks on a multiprocessor, limited by ", fits)


def test_an_operation_is_explained_with_its_options() -> None:
    op = sums().compile_options(CompileOptions(num_worker_warps=2))
    try:
        text = op.explain("sm_80")
    finally:
        op.discard()
    assert text.startswith("saxpy for sm_80, num_worker_warps=2\n")
    assert "2 warps, all alike: 64 threads" in text


def test_what_is_compiled_tells_its_plan() -> None:
    """In a notebook the card of a kernel has it."""
    double = kernel("def double(y: Mut):\n    y.store(y.load() * 2)\n")
    card: str = double._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "not compiled yet" in card
    double(api.ones((64,), f32).sync().partition((32,))).sync()
    card: str = double._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "double for cpu" in card
    assert "y f32[?] in tiles of 32" in card


def test_without_a_toolchain_the_plan_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'numba_cuda'")

    def render_anew(request: Request, stage: str, _executables: object) -> str:
        return render(request, stage, {})

    monkeypatch.setattr(type(CUDA), "build", lacking)
    monkeypatch.setattr("cutile.compile.kernels.render", render_anew)  # other tests explain the same products
    text = product().explain("sm_90a")
    assert "wgmma m64n256k16 bf16" in text
    assert "registers and spills are not counted: No module named 'numba_cuda'" in text
    monkeypatch.setattr("cutile.compile.driver.missing", lambda _: (Need("numba-cuda", "cuda"),))  # pyright: ignore
    words = " ".join(product().explain("sm_90a").split())
    assert "registers and spills are not counted: without numba-cuda; pip install" in words
    needs = Need("numba"), Need("numba-cuda", "cuda")
    monkeypatch.setattr("cutile.compile.driver.missing", lambda _: needs)  # pyright: ignore
    assert f"without numba, numba-cuda; {needs[1].remedy}" in " ".join(product().explain("sm_90a").split())
    monkeypatch.setattr("cutile.compile.driver.missing", lambda _: needs[1:])  # pyright: ignore
    words = " ".join(product(tile=(128, 128)).explain("sm_80").split())
    assert "not counted (8 warps are taken where 4 spill): without numba-cuda" in words


def test_texts_are_verified_where_launches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise IRError("refused")

    monkeypatch.setattr("cutile.compile.driver.verify", refuse)
    monkeypatch.setenv("CUTILE_VERIFY", "0")
    assert "cuda.roles" in product().render("lowered", "sm_90a")
    monkeypatch.delenv("CUTILE_VERIFY")
    with pytest.raises(IRError, match="refused"):
        product().render("lowered", "sm_90a")


def test_machine_code_is_kept_for_the_next_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log, two plans and a launch's plan: one build; another one for each further text and target."""
    built: list[str] = []
    build, factor = type(CUDA).build, 2.0

    def counted(backend: Any, source: Source, target: Target) -> Executable:
        built.append(target.arch)
        return build(backend, source, target)

    monkeypatch.setattr(type(CUDA), "build", counted)

    @ct.entry
    def scale(y: ct.Mut) -> None:
        y.store(factor * y.load())

    y = api.meta((4096,), f32).mut.partition((256,))
    op = scale(y)
    log = op.render("log", "sm_90a")
    assert "Used " in log
    text = op.explain("sm_90a")
    assert "a thread, no spills" in text
    assert (scale.explain(y, arch="sm_90a"), scale.inspect(y, stage="log", arch="sm_90a")) == (text, log)
    assert built == ["sm_90a"]
    op.explain("sm_80")
    factor = 3.0
    assert op.render("log", "sm_90a") != log
    assert built == ["sm_90a", "sm_80", "sm_90a"]
    op.discard()


def test_a_launch_has_made_the_machine_code_that_its_plan_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    y = api.ones((64,), f32).sync()
    double = kernel("def double(y: Mut):\n    y.store(2 * y.load())\n")
    double(y.partition((32,))).sync()
    monkeypatch.setattr(CpuBackend, "build", None)
    assert "double for cpu" in double.explain(y.partition((32,)))


def test_every_option_is_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", str(ROOT / "kernels" / "saxpy.py"), "saxpy", "--target", "sm_80", "--stage", "plan"]
    command += ["--arg", "y=f32[4096]/(256)", "--arg", "x=f32[4096]"]
    command += ["--occupancy", "2", "--num-cta-in-cga", "1", "--max-divisibility", "4", "--num-worker-warps", "4"]
    command += ["--fast-math", "div,contract", "--num-pieces", "1", "--limit-waits", "--streaming-stores"]
    assert set(CompileOptions.__dataclass_fields__) == {
        each[2:].replace("-", "_") for each in command[11:] if each[:2] == "--"
    }
    assert main(command) == 0
    head, types, warps, *_ = capsys.readouterr().out.splitlines()
    assert head == (
        "saxpy for sm_80, occupancy=2, num_cta_in_cga=1, max_divisibility=4, num_worker_warps=4, num_pieces=1, "
        "fast_math=('contract', 'div'), limit_waits=True"
    )
    assert "y f32[?] aligned to 4 in tiles of 256" in types
    assert "4 warps" in warps
    assert main([*command, "--max-divisibility", "3"]) == 1
    assert "expected 1, 2, 4, 8 or 16" in capsys.readouterr().err
    assert main([*command, "--fast-math", "fma"]) == 1
    assert "expected True, or some of contract, div, exp, ftz, sqrt" in capsys.readouterr().err
    assert main([*command[:11], "--fast-math"]) == 0
    assert "fast_math=('contract', 'div', 'exp', 'ftz', 'sqrt', 'tanh')" in capsys.readouterr().out.splitlines()[0]


def test_a_refusal_says_what_to_change() -> None:
    scaled = kernel(
        """
def scaled(z: Mut, x: Tensor, w: Tensor):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(ct.num_tiles(x.partition((128, 64)), 1)):
        acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(w, (64, 128), (k, j)) * 2, acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
    )
    z, x, w = (api.meta((4096, 4096), bf16) for _ in range(3))
    text = text_of(scaled(z.partition((128, 128)), x, w), HOPPER)
    assert "the right operand is not loaded in the loop. Load operands in the loop" in text.replace(
        "\n" + " " * 20, " "
    )
    odd = api.meta((4096, 333), bf16)
    text = text_of(gemm(z.mut.partition((128, 128)), odd, api.meta((333, 4096), bf16)), HOPPER)
    assert "Pad the tensor's rows to a multiple of 16 bytes" in text.replace("\n" + " " * 20, " ")


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limit"),
    [
        ("sm_80", 256, 64, 0, 4, "registers"),
        ("sm_80", 256, 65, 0, 3, "registers"),  # 72 for each thread
        ("sm_86", 256, 32, 0, 6, "threads"),
        ("sm_90a", 128, 16, 50_000, 4, "shared memory"),
        ("sm_90a", 32, 16, 0, 32, "thread blocks"),
        ("sm_90a", 384, 168, 229_504, 1, "registers and shared memory"),
    ],
)
def test_blocks_of_a_multiprocessor(
    arch: str, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    assert resident_blocks(architecture(arch), threads, registers, shared) == Resident(blocks, limit)


def test_an_unknown_architecture_has_no_residency() -> None:
    assert resident_blocks(architecture("sm_139"), 128, 32, 0) is None
    facts = {"plan": (), "shared_bytes": 0, "threads": 128, **LINKED}
    assert "residency" not in dict(CUDA.explain(facts, Target("cuda", "sm_139")))
