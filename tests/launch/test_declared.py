"""The keywords of `@entry` that say how a kernel is compiled and what of it is shown."""

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile.backend.interface import Target
from cutile.backend.registry import target_named
from cutile.config import STAGES
from tests.support.kernels import define
from tests.support.memory import launch

TEXT = "def double(y: Mut):\n    y.store(2.0 * y.load())\n"


def run(kernel: Any) -> None:
    y = np.ones(16, np.float32)
    launch(kernel, (y, (8,)))
    assert (y == 2).all()


def test_print_ir_prints_the_ir_once(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = ct.entry(print_ir=True)(define(TEXT))
    run(kernel)
    run(kernel)
    shown = capsys.readouterr().err
    assert shown.count("--- double: ir") == 1
    assert "store_mut(" in shown


def test_dump_dir_gets_every_stage(tmp_path: Path) -> None:
    run(ct.entry(dump_dir=tmp_path / "stages")(define(TEXT)))
    assert sorted(each.name.split(".")[1] for each in (tmp_path / "stages").iterdir()) == sorted(STAGES)


def test_hints_are_for_their_architecture_and_come_after_the_launches_own() -> None:
    hints = {"sm_90": ct.CompileOptions(occupancy=2, max_divisibility=4), "sm_100a": ct.CompileOptions(occupancy=3)}
    kernel = ct.entry(options=ct.CompileOptions(occupancy=7), optimization_hints=hints)(define(TEXT))
    run(kernel)
    (plan,) = kernel.cache.plans.values()
    requests = {arch: plan.request(Target("cuda", arch)) for arch in ("sm_80", "sm_90a", "sm_100a")}
    assert {arch: each.options.occupancy for arch, each in requests.items()} == {"sm_80": 7, "sm_90a": 2, "sm_100a": 3}
    assert "align 16" in str(requests["sm_80"].specialization.parameters["y"])
    assert "align 4" in str(requests["sm_90a"].specialization.parameters["y"])
    own = ct.CompileOptions(occupancy=1)
    y = ct.api.ones((16,), ct.f32).sync()
    kernel(y.partition((8,))).compile_options(own).discard()  # built, so that it is specialized
    *_, launched = kernel.cache.plans.values()
    assert launched.request(Target("cuda", "sm_90a")).options is own


def test_mistakes_in_hints_are_named() -> None:
    with pytest.raises(ValueError, match="'hopper' is no architecture"):
        ct.entry(optimization_hints={"hopper": ct.CompileOptions()})
    with pytest.raises(TypeError, match="expected CompileOptions"):
        ct.entry(optimization_hints={"sm_90": 2})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="90 is no architecture; write one such as 'sm_90'"):
        ct.entry(optimization_hints={90: ct.CompileOptions()})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="expected options by architecture"):
        ct.entry(optimization_hints=["sm_90"])  # type: ignore[arg-type]


def test_options_that_a_target_does_not_read_make_no_other_kernel() -> None:
    y, options = ct.api.zeros((8,)).sync(), ct.CompileOptions(num_worker_warps=4, occupancy=2, fast_math=("contract",))
    op = negate_in_place(y.partition((8,))).compile_options(options)
    request = op.request(Device.host())
    op.discard()
    assert request is not None
    assert request.as_compiled().options == ct.CompileOptions(fast_math=("contract",))
    on_gpu = replace(request, target=target_named("sm_90a"))
    assert on_gpu.as_compiled().options == options


@ct.entry
def negate_in_place(y: ct.Mut):
    """y = -y."""
    y.store(-y.load())


def test_preconditions_and_defaults_are_checked_at_the_declaration() -> None:
    with pytest.raises(ct.KernelTypeError, match=r"has 'q', which is no parameter(.|\n)*def k") as wrong:

        @ct.entry(preconditions=("q.shape[0] == 8",))
        def k(y: ct.Mut):
            y.store(y.load())

    assert wrong.value.location is not None
    assert wrong.value.location.file == __file__
    with pytest.raises(ct.KernelTypeError, match=r"argument 'a' must be an integer .*, its default(.|\n)*def"):

        @ct.entry
        def m(y: ct.Mut, a: ct.i32 = 1.5):  # type: ignore[assignment]
            y.store(y.load() + a)


def test_an_interpreted_kernel_names_what_is_undefined_as_a_compiled_one() -> None:
    def undefined() -> ct.KernelOp:
        return misspelt(ct.api.zeros((8,)).partition((4,)))

    for op in (undefined(), undefined().interpret()):
        with pytest.raises(ct.KernelNameError, match=r"name 'nowhere' is not defined(.|\n)*\^\^") as caught:
            op.sync()
        assert caught.value.location is not None
        assert caught.value.location.file == __file__


@ct.entry
def misspelt(y: ct.Mut):
    y.store(y.load() + nowhere)  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore


@dataclass(frozen=True)
class Pair:
    """A class of the module, whose name the test's own class has."""

    other: ct.Tensor


def test_annotations_mean_what_python_took_them_for() -> None:
    """Classes of the function around, which the bodies do not name: they are in no closure."""

    class Mode(enum.Enum):
        ADD = 1
        SUBTRACT = 2

    @dataclass(frozen=True)
    class Pair:
        a: ct.Tensor
        b: ct.Tensor

    class Names:
        Inner = Pair

    @ct.entry
    def alone(y: ct.Mut, pair: Pair):
        y.store(ct.load_tile_like(pair.a, y) + ct.load_tile_like(pair.b, y))

    @ct.entry
    def among_others(y: ct.Mut, pairs: tuple[Pair, ct.Tensor]):
        y.store(ct.load_tile_like(pairs[0].a, y) + ct.load_tile_like(pairs[1], y))

    @ct.entry
    def in_another(y: ct.Mut, pair: Names.Inner):
        y.store(ct.load_tile_like(pair.a, y) + ct.load_tile_like(pair.b, y))

    @ct.entry
    def perhaps(y: ct.Mut, pair: Pair | None = None):
        y.store(
            ct.constant(0, y.shape, ct.f32)
            if pair is None
            else ct.load_tile_like(pair.a, y) + ct.load_tile_like(pair.b, y)
        )

    @ct.entry
    def constant(y: ct.Mut, x: ct.Tensor, *, MODE: ct.Const[Mode]):
        y.store(ct.load_tile_like(x, y) * (2.0 if MODE.value == 1 else 0.0))

    x: Any = np.arange(8, dtype=np.float32)  # a launch takes arrays in the place of tensors

    def result(kernel: Any, *arguments: Any, **generics: Any) -> Any:
        return kernel(ct.api.zeros((8,)).partition((4,)), *arguments, **generics).sync().y.numpy()

    assert (result(alone, Pair(x, x)) == 2 * x).all()
    assert (result(among_others, (Pair(x, x), x)) == 2 * x).all()
    assert (result(in_another, Pair(x, x)) == 2 * x).all()
    assert (result(perhaps, Pair(x, x)) == 2 * x).all()
    assert (result(perhaps) == 0).all()
    assert (result(constant, x, MODE=Mode.ADD) == 2 * x).all()


@pytest.mark.parametrize("annotation", ["Pair | None", "tuple[Pair, ...]", "Wrong"])
def test_annotations_kept_as_text_say_what_they_see(annotation: str) -> None:
    text = f"from __future__ import annotations\ndef kernel(y: Mut, x: {annotation}):\n    y.store(0.0)\n"
    with pytest.raises(ct.KernelError, match="define it in the module") as caught:
        launch(ct.entry(define(text)), (np.ones(4, np.float32), (4,)), None)
    assert "the annotation" in str(caught.value)


def test_options_by_name_are_refused_with_the_remedy() -> None:
    op = ct.entry(define(TEXT))(ct.api.zeros((8,)).sync().partition((8,)))
    with pytest.raises(
        ct.ArgumentTypeError, match=r"no 'num_worker_warps': write ct.CompileOptions\(num_worker_warps="
    ):
        op.compile_options(num_worker_warps=4)  # type: ignore[call-arg]  # wrong on purpose
    op.discard()
