"""Every option and hint is kept, refused by an error that names it, or told of in the plan with a reason."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

import cutile as ct
from cutile import api, bf16, f32, language
from cutile.backend.cuda.ops.roles import KSplits
from cutile.backend.interface import FAST_MATH, CompileOptions, Source, Target
from cutile.backend.registry import backend
from cutile.compile.driver import Request, front, lower, plan_text
from cutile.errors import KernelError
from cutile.ir.core import Function
from cutile.ir.types import MutType, TensorType
from cutile.passes.pipeline import run_passes
from kernels.attention import attention
from kernels.gemm import gemm
from kernels.saxpy import saxpy
from kernels.softmax import softmax
from tests.support.kernels import define, kernel

TARGETS = [Target("cuda", arch) for arch in ("sm_80", "sm_90a", "sm_100a")] + [
    Target("cpu", "any", 16),
    Target("reference", "numpy"),
]

GUARDED = kernel(
    """
def guarded(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    assert n < 1000
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (128, 64), (i, k)), ct.load_tile(y, (64, 128), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
)
MATHS = kernel(
    """
def maths(y: Mut, x: Tensor, a: f32):
    t = ct.load_tile_like(x, y)
    y.store(ct.tanh(ct.exp(t) / ct.sqrt(t * a + 1.0)))
"""
)
ORDERED = kernel("def ordered(y: Mut, x: Tensor):\n    y.store(ct.scan_sum(ct.sort(ct.load_tile_like(x, y), 0), 0))\n")


def matrices(count: int, dtype: Any = bf16) -> list[Any]:
    return [api.meta((4096, 4096), dtype) for _ in range(count)]


def product(tile: tuple[int, int] = (128, 128), dtype: Any = bf16) -> Any:
    z, x, y = matrices(3, dtype)
    return gemm(z.partition(tile), x, y)


def guarded() -> Any:
    z, x, y = matrices(3)
    return GUARDED(z.partition((128, 128)), x, y, 4)


def rows(columns: int) -> Any:
    x, y = api.meta((64, columns), f32), api.meta((64, columns), f32)
    return softmax(y.partition((1, columns)), x)


def vectors(function: Any, *more: Any) -> Any:
    x, y = api.meta((4096,), f32), api.meta((4096,), f32)
    return function(y.partition((256,)), x, *more)


def heads() -> Any:
    q, k, v, o = (api.meta((16, 4096, 128), bf16) for _ in range(4))
    return attention(o.partition((1, 128, 128)), q, k, v, 0.1)


def sums() -> Any:
    x, y = api.meta((4096,), f32), api.meta((4096,), f32)
    return saxpy(y.partition((256,)), 2.0, x)


KERNELS: dict[str, Callable[[], Any]] = {
    "product": product,
    "few rows": lambda: product((16, 128)),
    "f32 product": lambda: product((64, 64), f32),
    "guarded": guarded,
    "attention": heads,
    "rows": lambda: rows(1000),
    "long rows": lambda: rows(32768),
    "sums": sums,
    "maths": lambda: vectors(MATHS, 2.0),
    "ordered": lambda: vectors(ORDERED),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "occupancy": (2, 4),
    "num_cta_in_cga": (1, 2, 3, 16),
    "max_divisibility": (4,),
    "num_worker_warps": (2, 4, 6, 12, 64),
    "num_pieces": (4, 40),
    "fast_math": tuple((part,) for part in FAST_MATH),
    "limit_waits": (True,),
    "streaming_stores": (True, False),
}


def request_of(op: Any, target: Target, **options: Any) -> Request:
    """What an operation compiles for a target; the operation is given up."""
    try:
        op = op.compile_options(CompileOptions(**options))
        request = op.request(ct.api.meta((1,)).device)
        return replace(request, target=target)
    finally:
        op.discard()


def emitted(request: Request) -> tuple[Function, Source, list[str]]:
    """The lowered kernel, its text, and the lines of options and hints that it does without."""
    unread, request = request.unread, request.as_compiled()
    made_by, program = backend(request.target.backend), front(request)
    lowered = lower(request, run_passes(program.function), True)
    source = made_by.emit(lowered, request.target, request.options)
    words = plan_text(program.function, request.target, request.options, source.facts, unread)
    section, lines = "", list[str]()
    for line in words.splitlines()[1:]:
        section = line[2:18].strip() or section
        if section == "not used" and line[18:20].strip():
            lines.append(line[18:])
    return lowered, source, lines


def is_kept(name: str, value: Any, lowered: Function, source: Source) -> bool:
    """Whether the lowered kernel is as an option says."""
    facts, ops = lowered.facts, list(lowered.walk())
    match name:
        case "occupancy":
            return facts.get("min_blocks") == value
        case "num_cta_in_cga":
            return facts.get("cluster", 1) == value
        case "num_worker_warps":
            pingpong = 2 if "computing" in facts else 1
            return facts.get("warps") in (value, value * pingpong)
        case "num_pieces":
            return any(isinstance(op, KSplits) and op.most == value for op in ops)
        case "fast_math":
            return bool(facts.get("fast_math"))
        case "limit_waits":
            return any(op.attributes.get("limited") for op in ops)
        case "streaming_stores":
            return bool(source.facts.get("streaming")) == value and bool(source.facts.get("results")) == value
        case "max_divisibility":
            kinds = [each.type.tensor if isinstance(each.type, MutType) else each.type for each in lowered.parameters]
            return all(each.alignment <= value for each in kinds if isinstance(each, TensorType))
        case _:
            raise AssertionError(name)


def test_every_option_is_tried() -> None:
    assert list(VALUES) == [each.name for each in fields(CompileOptions)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.arch)
@pytest.mark.parametrize("name", KERNELS)
def test_options_are_kept_or_told_of(name: str, target: Target) -> None:
    silent = list[str]()
    for option, values in VALUES.items():
        for value in values:
            try:
                lowered, source, lines = emitted(request_of(KERNELS[name](), target, **{option: value}))
            except KernelError as error:
                if option not in str(error):
                    raise
                continue
            told = [line for line in lines if line.startswith(f"{option}=")]
            read = option in backend(target.backend).options or option == "max_divisibility"
            kept = is_kept(option, value, lowered, source)
            if (kept and told and read) or not (kept or told):
                silent.append(f"{option}={value}: {told or 'nothing is said'}")
    assert silent == []


def test_a_reason_stands_behind_each_option() -> None:
    def told(op: Any, target: Target = TARGETS[1], **options: Any) -> list[str]:
        return emitted(request_of(op, target, **options))[2]

    assert told(guarded(), num_cta_in_cga=2) == [
        "num_cta_in_cga=2: its assertions, and its stores at any place, have to be a thread block's own"
    ]
    assert told(product(), TARGETS[0], num_cta_in_cga=2) == ["num_cta_in_cga=2: sm_80 has no clusters"]
    assert told(sums(), num_worker_warps=6) == ["num_worker_warps=6: 4 are taken, since the number is a power of two"]
    assert told(sums(), num_pieces=4) == ["num_pieces=4: this plan divides the iterations of no product"]
    assert told(sums(), streaming_stores=True) == ["streaming_stores=True: sm_90a has no use for it"]
    assert told(sums(), TARGETS[3], occupancy=2) == ["occupancy=2: cpu has no use for it"]
    assert told(sums(), fast_math=("tanh",)) == ["fast_math='tanh': the kernel has no operation that it would change"]
    assert told(product()) == []


# Hints.

HINTED = """
def hinted(y: Mut, x: Tensor, p: ct.Ptr[f32], n: i32):
    part, out = x.partition((64,)), y.partition_mut((64,))
    windows, lanes = ct.make_strided_view(x, (64,), (1,)), ct.iota((64,))
    total = ct.constant(0, (64,), f32)
    for k in range(n):
        CALL
    out.store(total, 0)
"""
LATE = {
    "load_pipelined": "total = total + part.load_pipelined(k, 9)",
    "load_view_tko": "total = total + ct.load_view_tko(part, k, latency=9)",
    "load_strided_view_tko": "total = total + ct.load_strided_view_tko(windows, k, latency=9)",
    "load_gather_scatter_view_tko": (
        "total = total + ct.load_gather_scatter_view_tko(ct.make_gather_scatter_view(x, (64,)), (lanes,), latency=9)[0]"
    ),
    "store_gather_scatter_view_tko": (
        "ct.store_gather_scatter_view_tko(ct.make_gather_scatter_view(y, (64,)), 1.0, (lanes,), latency=9)"
    ),
    "load_ptr_tko": "total = total + ct.load_ptr_tko(p.offset(lanes), latency=9)[0]",
    "store_ptr_tko": "ct.store_ptr_tko(p.offset(lanes), 1.0, latency=9)",
    "store_view_tko": "ct.store_view_tko(out, total, 0, latency=9)",
}
"""A call of each function that takes a latency, which is longer than any loop of this kernel is begun ahead."""


def late_functions() -> set[str]:
    """The functions of the language, and the methods of its classes, that take a latency."""
    owners = [language, *(each for each in vars(language).values() if isinstance(each, type))]
    functions = [each for owner in owners for each in vars(owner).items() if inspect.isfunction(each[1])]
    return {name for name, each in functions if "latency" in inspect.signature(each).parameters}


def test_every_function_with_a_latency_is_tried() -> None:
    assert late_functions() == set(LATE)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.arch)
@pytest.mark.parametrize("name", LATE)
def test_a_latency_that_is_not_kept_is_told_of(name: str, target: Target) -> None:
    function = ct.entry(define(HINTED.replace("CALL", LATE[name])), unsafe=True)
    x, y = api.meta((4096,), f32), api.meta((4096,), f32)
    lines = emitted(request_of(function(y.partition((64,)), x, api.empty((64,)).sync().device_pointer(), 4), target))[2]
    assert len(lines) == 1, lines
    assert re.match(r"latency=9 of \w+: \w+", lines[0])
