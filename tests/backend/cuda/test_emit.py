"""The generated file: the same bytes each time, readable, and what an editor would write."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap

import pytest

from cutile.backend.cuda import ops
from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.emit import control
from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.cuda.emit.kernel import EMITTERS, Kernel
from cutile.backend.cuda.ops.pipeline import A_PIPELINE, RESOURCES, SCRATCH
from cutile.backend.gpu.emitter import Intrinsic
from cutile.backend.interface import CompileOptions, Source
from cutile.dtypes import bf16, f16, i32
from cutile.errors import IRError
from cutile.ir.builder import Builder
from cutile.ir.constant import Constant
from cutile.ir.core import Block, Effect, Function, Op, Value, attribute, operand
from cutile.ir.types import TileType, Type
from cutile.ops import OPS
from cutile.ops.debug import Assert
from cutile.ops.grid import NumTileBlocks
from cutile.ops.matmul import MmaScaled
from cutile.ops.memory import LoadMut, StoreMut, TensorDim
from cutile.ops.registry import family
from tests.backend.cuda.programs import (
    HOPPER,
    gemm_program,
    row_min_program,
    saxpy_program,
    softmax_program,
    source,
    written,
)
from tests.support.golden import Golden
from tests.support.programs import mut, scalar, tensor

DEMOS = {
    "saxpy": lambda: saxpy_program(1024),
    "softmax": lambda: softmax_program(1, 4096),
    "gemm": lambda: gemm_program(f16, (128, 128), 64),
    "row_min": lambda: row_min_program(16),
}


def body(made: Source) -> str:
    """The statements of the generated function, comments left out."""
    (function,) = (node for node in ast.parse(made.text).body if isinstance(node, ast.FunctionDef))
    return "\n".join(ast.unparse(statement) for statement in function.body)


def emitted(text: str, **parameters: object) -> str:
    return body(source(written(textwrap.dedent(text).lstrip(), parameters)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEMOS)
def test_the_text_is_golden(name: str, golden: Golden) -> None:
    golden(f"emit_cuda/{name}.py.txt", source(DEMOS[name]()).text)


@pytest.mark.parametrize("name", DEMOS)
def test_the_same_program_gives_the_same_bytes(name: str) -> None:
    assert source(DEMOS[name]()) == source(DEMOS[name]())


@pytest.mark.parametrize("name", DEMOS)
def test_each_source_line_is_quoted_once_above_its_code(name: str) -> None:
    function = DEMOS[name]()
    made = source(function)
    lines = made.text.splitlines()
    used = {function.source[line].strip() for line in made.lines.values()}
    for quoted in used:
        assert sum(line.strip() == f"# {quoted}" for line in lines) == 1


def test_the_line_map_leads_to_the_users_lines() -> None:
    function = softmax_program(1, 4096)
    made = source(function)
    (number,) = (n for n, line in enumerate(made.text.splitlines(), 1) if line.strip().startswith("store_y("))
    assert "y.store(" in function.source[made.lines[number]]


@pytest.mark.parametrize("name", DEMOS)
def test_the_text_is_what_ruff_would_have_written(name: str) -> None:
    text = source(DEMOS[name]()).text
    rules = ["--select", "E,F,W", "--ignore", "E501", "--isolated"]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "-q", *rules, "--stdin-filename", "kernel.py", "-"],
        input=text, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert checked.stdout == ""
    code = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert max(map(len, code)) <= 88


def test_names_of_the_user_give_way_to_those_of_the_abi_and_of_python() -> None:
    text = """
        def f(y: Mut, x: Tensor, x_extent_0: i32, grid_x: i32, report: f32):
            def twice(t):
                range = t + report
                return range * range

            t = ct.load_tile_like(x, y)
            for grid_y in range(x_extent_0, grid_x):
                t = twice(t)
            y.store(t)
        """
    parameters = {"x_extent_0": scalar(i32), "grid_x": scalar(i32), "report": scalar()}
    generated = source(written(textwrap.dedent(text).lstrip(), {"y": mut(128), "x": tensor(1), **parameters}))
    (function,) = (node for node in ast.parse(generated.text).body if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in function.args.args]
    own = ["y", "y_extent_0", "x", "x_extent_0", "x_extent_0_1", "grid_x_1", "report"]
    assert names == [*own, "grid_x", "grid_y", "grid_z"]
    assert "for grid_y_1 in range(x_extent_0_1, grid_x_1):\n    range_1 = " in body(generated)


def test_names_of_the_user_give_way_to_infinity_and_nan() -> None:
    text = """
        def f(y: Mut, x: Tensor, inf: f32):
            nan = inf + 1.0
            s = ct.select(inf > nan, float("nan"), float("-inf"))
            y.store(ct.load_tile_like(x, y) + s)
        """
    lines = emitted(text, y=mut(128), x=tensor(1), inf=scalar())
    assert "nan_1 = add(inf_1, 1.0)" in lines
    assert "select(gt(inf_1, nan_1), nan, -inf)" in lines


def test_the_names_of_the_user_survive() -> None:
    assert (
        emitted(
            """
        def f(y: Mut, x: Tensor):
            t = ct.load_tile_like(x, y)
            add = t + 1.0
            t = add * t
            y.store(t)
        """,
            y=mut(128),
            x=tensor(1),
        )
        == textwrap.dedent(
            """
        grid_dependency_wait()
        block_0 = tile_block_id_0(grid_y, grid_z)
        t = load_x(x, x_extent_0, block_0)
        add = add_1(t, constant())
        t_1 = mul(add, t)
        store_y(t_1, y, y_extent_0, block_0)
        """
        ).strip()
    )


def test_what_a_loop_carries_is_one_variable() -> None:
    text = emitted(
        """
        def f(y: Mut, x: Tensor, n: i32):
            acc = ct.constant(0, y.shape, ct.f32)
            for k in range(n):
                acc = acc + ct.load_tile(x, y.shape, (k,))
            y.store(acc)
        """,
        y=mut(128),
        x=tensor(1),
        n=scalar(i32),
    )
    assert "acc = zeros()\n" in text
    assert "    x_tile_1 = load_x(x, x_extent_0, min(ahead, 16769024))\n    acc = add_1(acc, x_tile)\n" in text
    assert "    x_tile = x_tile_1\n" in text


def test_values_that_swap_are_set_together() -> None:
    text = emitted(
        """
        def f(y: Mut, x: Tensor, n: i32):
            a = ct.load_tile_like(x, y)
            b = a * 2.0
            for k in range(n):
                a, b = b, a
            y.store(a)
        """,
        y=mut(128),
        x=tensor(1),
        n=scalar(i32),
    )
    assert "    next_a = b\n    next_b = a\n    a = next_a\n    b = next_b" in text.replace("a_1", "a").replace(
        "b_1", "b"
    )


def test_a_value_needed_after_its_successor_keeps_its_own_variable() -> None:
    text = emitted(
        """
        def f(y: Mut, x: Tensor, n: i32):
            a = ct.load_tile_like(x, y)
            b = ct.load_tile_like(x, y)
            for k in range(n):
                new = a + b
                b = a * 3.0
                a = new
            y.store(a + b)
        """,
        y=mut(128),
        x=tensor(1),
        n=scalar(i32),
    )
    assert text.index("new = add(a_1, b)") < text.index("b = mul(a_1, constant())") < text.index("a_1 = new")


def test_a_branch_without_an_else_keeps_the_value() -> None:
    text = emitted(
        """
        def f(y: Mut, x: Tensor, n: i32):
            t = ct.load_tile_like(x, y)
            if n > 2:
                t = -t
            y.store(t)
        """,
        y=mut(128),
        x=tensor(1),
        n=scalar(i32),
    )
    assert "if gt(n, 2):\n    t_1 = neg(t)\nelse:\n    t_1 = t\nstore_y(t_1" in text


def test_numbers_that_become_variables_have_their_type() -> None:
    text = emitted(
        """
        def f(y: Mut, n: i32):
            i = 0
            while i < n:
                i = i + 3
            y.store(ct.broadcast(i, y.shape))
        """,
        y=mut(128, dtype=i32),
        n=scalar(i32),
    )
    assert text.startswith(
        "block_0 = tile_block_id_0(grid_y, grid_z)\nvalue = to_i64(n)\ni = number()\n"
        "while True:\n    if not lt(i, value):"
    )


def test_intrinsics_make_way_for_the_users_names() -> None:
    text = emitted("def f(y: Mut, mul: f32):\n    y.store(y.load() * mul)\n", y=mut(128), mul=scalar())
    assert "mul_1(" in text


def test_only_lowered_ir_is_emitted() -> None:
    with pytest.raises(IRError, match="lower it first"):
        BACKEND.emit(gemm_program(bf16, (64, 64), 32), HOPPER, CompileOptions())


def test_every_operation_has_an_emitter() -> None:
    inside_kernel = {Constant, TensorDim, NumTileBlocks}  # written in place by emit/kernel.py
    lowered_away = {LoadMut, StoreMut, Assert, *(op for op in OPS.values() if family(op) == "bound")}
    language = {op for op in OPS.values() if family(op) != "control"} - inside_kernel - lowered_away
    refused = {MmaScaled}  # with the reason: tests/backend/cuda/test_lower.py
    missing = language - EMITTERS.keys() - refused
    assert not missing, f"cuda has no emitter for {sorted(op.name for op in missing)}"


def test_every_lowered_operation_has_an_emitter() -> None:
    reserved = set(RESOURCES)  # whose places others are told
    replaced = {ops.StoreSubtile, ops.HoldRow, ops.HeldSlice}  # by stores and stages, before anything is emitted
    listed = {getattr(ops, name) for name in ops.__all__}
    lowered = {op for op in listed if isinstance(op, type) and issubclass(op, Op)} - reserved - replaced
    assert lowered - EMITTERS.keys() - control.EMITTERS.keys() == set()


class Example(Op, name="cuda.example", effect=Effect.WRITE):
    """An operation of which nothing but its declaration is known."""

    intrinsic = Intrinsic("module.factory", facts=("count", "width"), stem="wide_{width}", omit=("reason",))
    pipeline: Value = operand(A_PIPELINE)
    scratch: Value = operand(SCRATCH)
    counter: Value = operand()
    width: int = attribute()
    depth: int = attribute()
    limited: bool = attribute(default=False)
    reason: str = attribute(default="")

    def infer(self) -> tuple[Type, ...]:
        return ()


@pytest.mark.parametrize(("limited", "keyword"), [(False, ""), (True, ", limited=True")])
def test_an_intrinsic_is_called_as_its_operation_declares(
    limited: bool, keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EMITTERS, Example, emitter(Example.intrinsic))
    counter = Value(TileType(i32), "counter")
    function = Function("f", Block([counter]), stage="cuda", facts={"threads": 128, "shared_bytes": 0, "layouts": ()})
    builder = Builder(function.body)
    pipeline, scratch = builder.add(ops.Pipeline((), stages=2, arrivals=1)), builder.add(ops.Scratch(nbytes=4))
    pipeline.attributes["offset"], scratch.attributes["offset"] = 32, 64
    values = pipeline.result, scratch.result, counter
    builder.add(Example(*values, width=8, depth=3, limited=limited, reason="not for factories"))
    text = Kernel(function, HOPPER).source().text
    assert f"wide_8 = module.factory(0, 8, stages=2, offset=32, place=64, depth=3{keyword})\n" in text
    assert text.endswith("\n    wide_8(counter)\n")
