"""What a launch says to somebody who comes from another library, or misspelt an argument."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile import api
from cutile.errors import (
    ArgumentError,
    ArgumentTypeError,
    GenericsError,
    KernelTypeError,
    LaunchError,
    UnsupportedTargetError,
)
from kernels.saxpy import saxpy
from tests.support.kernels import kernel

SCALE = kernel("def scale(y: Mut, a: f32, *, K: Const = 1):\n    y.store(a * K * y.load())\n")


def part() -> Any:
    return api.ones((8,)).sync().partition((4,))


def test_the_grid_in_brackets() -> None:
    untyped: Any = SCALE
    with pytest.raises(TypeError, match=r"scale\[\.\.\.\]: a launch gets its grid .* scale\(\.\.\.\)\.grid\(\(2,\)\)"):
        untyped[(2,)](part(), 2.0)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("compile", "ct.compile_ahead(scale, *arguments)"),
        ("warmup", "ct.compile_ahead(scale, *arguments)"),
        ("ptx", "scale.inspect(*arguments, stage='source', arch='sm_90a')"),
        ("autotune", "@ct.autotune(configurations) above @ct.entry, or scale(...).generics([{...}, {...}])"),
        ("run", "scale(*arguments).sync(), or await scale(*arguments)"),
    ],
)
def test_attributes_that_kernels_have_elsewhere(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as failure:
        getattr(SCALE, name)
    assert str(failure.value) == f"kernel 'scale' has no attribute {name!r}: write {remedy}"


def test_misspelt_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"missing: a; it has none called b$"):
        SCALE(part(), b=2.0)
    with pytest.raises(ArgumentError, match=r"missing: a$"):
        SCALE(part(), K=2)
    with pytest.raises(GenericsError, match="no generic 'L'"):
        SCALE(part(), 2.0, L=3)


def test_an_extent_is_explained_where_a_partition_may_name_it() -> None:
    """Not where the word is a part of the kernel's name."""
    with pytest.raises(
        GenericsError, match=r"partition\(\('L',\)\), give it by scale\(\.\.\.\)\.generics\(L=\.\.\.\)$"
    ):
        SCALE(part(), 2.0, L=3)
    partition_rows = kernel("def partition_rows(y: ct.SharedMut):\n    ct.scatter(y, 0, 1.0)\n")
    with pytest.raises(GenericsError, match=r"^partition_rows has no generic 'L'; it has no generics; leave it out$"):
        partition_rows(api.ones((8,)).sync(), L=3)
    with pytest.raises(GenericsError, match=r"CompileOptions\(num_worker_warps=\.\.\.\)\)$"):
        SCALE(part(), 2.0, num_worker_warps=4)


@pytest.mark.parametrize("call", [SCALE, SCALE.inspect, SCALE.explain], ids=["launch", "inspect", "explain"])
def test_a_call_that_fails_gives_tensors_back(call: Any) -> None:
    y = api.ones((8,)).sync()
    many = {"a": 2.0, "L": 3}
    for wrong in ({"b": 2.0}, many, {"a": None}, {"y": 1.0}, {"a": 2.0, "grid": "x"}, {"a": 2.0, "grid": 7}):
        untyped: dict[str, Any] = wrong
        with pytest.raises((ArgumentError, GenericsError, LaunchError)) as caught:
            call(y.partition((4,)), **untyped)
        assert y.to_numpy().sync().tolist() == [1] * 8, caught  # while something holds the error, as a notebook does
    with pytest.raises(GenericsError) as caught:
        call(y=y.partition((4,)), **many)
    assert y.to_numpy().sync().tolist() == [1] * 8, caught


def test_a_kernel_is_inspected_with_the_grid_of_a_launch() -> None:
    @ct.entry
    def count(counts: ct.SharedMut):
        ct.atomic_add(counts, 0, 1)

    counts = api.meta((1,), ct.i32)
    assert count.inspect(counts, grid=4, stage="ir") == count.inspect(counts, stage="ir")
    assert count.explain(counts, grid=(4, 2)).startswith("count for")
    with pytest.raises(LaunchError, match="the grid must be 1 to 3 integers"):
        count.explain(counts, grid=4.0)
    assert "mul(" in SCALE.inspect(y=part(), a=2.0, grid=2, stage="ir")


def test_arguments_may_be_inspected_while_they_are_lent() -> None:
    y = api.ones((8,)).sync()
    op = SCALE(y.mut.partition((4,)), 2.0)
    assert "mul(" in SCALE.inspect(y.mut.partition((4,)), 2.0, stage="ir", K=3)
    op.sync()
    with pytest.raises(LaunchError, match="pass tensors rather than ops"):
        SCALE.inspect(api.ones((8,)).partition((4,)), 2.0)


def test_scalars_are_plain_numbers() -> None:
    for wrong, words in (
        (np.array(2.0), r"got ndarray: array\(2\.\); an array of one element has \.item\(\)$"),
        (api.ones((1,)).sync(), "annotate the parameter with Tensor$"),
        (None, "must be a scalar of f32, got NoneType: None$"),
    ):
        with pytest.raises(ArgumentTypeError, match=words):
            SCALE(part(), wrong)


@pytest.mark.parametrize("value", [np.complex64(1 + 2j), np.str_("3"), np.bytes_(b"3"), np.timedelta64(3, "s")])
def test_numpy_scalars_that_are_no_real_numbers(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="argument 'a' must be a scalar of f32, got"):
        SCALE(part(), value)


def test_other_wrong_things() -> None:
    plain = kernel("def plain(y: Mut):\n    y.store(y.load() + 1)\n")
    with pytest.raises(GenericsError, match=r"plain has no generics; got \[3\]"):
        plain(part()).generics([3])
    with pytest.raises(
        ArgumentTypeError, match=r"memcpy: src: .* got ndarray; api\.from_numpy\(array\)\.sync\(\) makes one"
    ):
        api.memcpy(api.ones((4,)).sync(), np.ones(4, np.float32))  # type: ignore[arg-type]


def test_a_kernel_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(saxpy)) is saxpy


@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 2, 2), (1, 2, 2, 2)], ids=str)
def test_a_tensor_in_place_of_a_partition(shape: tuple[int, ...]) -> None:
    tile = (1, 1, 64, 64)[-len(shape) :]
    for wrong, call in (
        (api.ones(shape).sync(), f"y.partition({tile})"),
        (np.ones(shape, np.float32), f"api.partition(y, {tile}), which shares its memory"),
    ):
        with pytest.raises(ArgumentTypeError) as caught:
            SCALE(wrong, 2.0)
        assert str(caught.value).endswith(f"partition it first: {call}")


@pytest.mark.parametrize("number", [2.0, 2, None, "f32"], ids=str)
def test_a_number_in_place_of_a_partition(number: Any) -> None:
    """Nothing can be partitioned: the arguments are in another order, as a rule."""
    with pytest.raises(ArgumentTypeError, match=r"got \w+; pass a tensor's partition, .*; are the arguments in the"):
        SCALE(number, part())


def test_a_partition_in_place_of_a_mapped_one() -> None:
    mapped = kernel(
        "def mapped(y: ct.MappedPartitionMut):\n    for i in y.iter_indices():\n        y.store(y.load(i), i)"
    )
    with pytest.raises(ArgumentTypeError, match=r"map it: y\.partition\(\(4,\)\)\.map\(\(1,\), num_tile_blocks\)$"):
        mapped(part())


def test_what_a_launch_yields_is_not_its_output() -> None:
    reads = kernel("def reads(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y))\n")
    out = SCALE(part(), 2.0).sync()
    for wrong in ("to_numpy", "unpartition", "b"):
        with pytest.raises(
            AttributeError, match=rf"what scale yields has no attribute '{wrong}': .* \(y, a\)\. Take one"
        ):
            getattr(out, wrong)
    with pytest.raises(ArgumentTypeError, match=r"'y' must be a partition.* got a tuple of y, a; .* such as out\.y$"):
        SCALE(out, 2.0)
    for output in (out, SCALE(part(), 2.0)):  # the same of a launch that has yet to run
        with pytest.raises(
            ArgumentTypeError, match=r"'x' must be a tensor, got a tuple of y, a; .* out\.y\.unpartition"
        ):
            reads(part(), output).sync()
    assert out.y.unpartition().to_numpy().sync().tolist() == [2] * 8


def test_what_other_launches_take_by_name() -> None:
    plain = kernel("def plain(y: Mut):\n    y.store(y.load() + 1)\n")
    for name, remedy in (
        ("num_warps", r"it has no generics; hints .*ct\.CompileOptions\(num_worker_warps=4\)\)$"),
        ("stream", r"sync_on\(stream\)$"),
        ("target", r"called arch"),
    ):
        with pytest.raises(GenericsError, match=rf"plain has no generic '{name}'; .*{remedy}"):
            plain(part(), **{name: 4})
    with pytest.raises(
        ArgumentError, match=r"takes 2 arguments \(y, a\), got 3; generics are given by name: K=\.\.\.$"
    ):
        SCALE(part(), 2.0, 3)


def test_what_other_decorators_take() -> None:
    decorator: Any = ct.entry
    for name, remedy in (
        ("num_warps", r"write options=ct\.CompileOptions\(num_worker_warps=4\)"),
        ("occupancy", r"write options=ct\.CompileOptions\(occupancy=\.\.\.\)"),
        ("grid", r"k\(\.\.\.\)\.grid"),
        ("optoins", r"did you mean 'options'\?"),
        ("xyz", "it takes function, options"),
    ):
        with pytest.raises(ArgumentTypeError, match=rf"entry takes no '{name}': .*{remedy}"):
            decorator(**{name: 4})
    op: Any = kernel("def plain(y: Mut):\n    y.store(y.load() + 1)\n")(api.zeros((8,)).partition((8,)))
    with pytest.raises(ArgumentTypeError, match=r"^compile_options takes no 'xyz': it takes options$"):
        op.compile_options(xyz=4)
    op.discard()


def test_extents_that_a_partition_names() -> None:
    plain = kernel("def plain(y: Mut):\n    y.store(y.load() + 1)\n")
    y = api.zeros((8,)).sync()
    with pytest.raises(GenericsError, match=r"no generic 'BM'.*names the extent, .*plain\(\.\.\.\)\.generics\(BM="):
        plain(y.mut.partition("BM"), BM=4)
    with pytest.raises(GenericsError, match=r"\.generics\(\*\*{'BM': 4}\), or .* \.generics\(\[{'BM': 4}, \.\.\.\]\)"):
        plain(y.mut.partition("BM")).generics({"BM": 4})  # type: ignore[arg-type]
    assert plain(y.mut.partition("BM")).generics(BM=4).sync() is not None


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (np.exp, r"give ct\.exp$"),
        (np.float32, r"give ct\.f32$"),
        (np.dtype("f4"), r"give ct\.f32$"),
        (np.fmod, r"write ct\.remf"),
        (np.zeros(1), r"got ndarray: array\(\[0\.\]\)$"),
    ],
)
def test_constants_of_another_library(value: Any, remedy: str) -> None:
    mode = kernel("def mode(y: Mut, *, F: Const):\n    y.store(F(y.load()))\n")
    with pytest.raises(GenericsError, match=rf"'F' must be a constant .*{remedy}"):
        mode(part(), F=value)


def test_generics_by_name_are_the_same_as_in_the_call() -> None:
    assert SCALE(part(), 2.0).generics(K=3).sync().y.unpartition().to_numpy().sync().tolist() == [6] * 8
    with pytest.raises(GenericsError, match=r"'K' was set to 2 before, and \.generics says 3"):
        SCALE(part(), 2.0, K=2).generics(K=3)
    with pytest.raises(GenericsError, match=r"scale has no generic 'BLOCK'; its generics are K"):
        SCALE(part(), 2.0).generics(BLOCK=3)
    with pytest.raises(GenericsError, match=r"a list of all values, or some by name; got both"):
        SCALE(part(), 2.0).generics([1], K=3)
    with pytest.raises(GenericsError, match=r"has no values; write \.generics\(\[64\]\), or by name"):
        SCALE(part(), 2.0).generics()


def test_options_of_other_compilers() -> None:
    others: dict[str, str] = {
        "num_warps": "write num_worker_warps",
        "num_ctas": "write num_cta_in_cga",
        "wide": "there are",
    }
    for name, remedy in others.items():
        given: dict[str, Any] = {name: 4}
        with pytest.raises(ArgumentTypeError, match=rf"CompileOptions has no '{name}'; {remedy}"):
            ct.CompileOptions(**given)
    options = ct.CompileOptions(occupancy=2)
    assert pickle.loads(pickle.dumps(options)) == options == replace(options, occupancy=2)


def test_outputs_of_different_grids() -> None:
    both = kernel("def both(y: Mut, s: Mut):\n    y.store(1.0)\n    ct.atomic_add(s, 0, 1.0)\n")
    with pytest.raises(
        LaunchError, match=r"'y' has \(2, 1, 1\) tiles, 's' has \(1, 1, 1\)\. .* is a ct\.Global, or an"
    ):
        both(part(), api.zeros((1,)).sync().partition((1,))).sync()


def test_what_a_new_tensor_will_be_is_known_before_it_is_made() -> None:
    op, by_type = SCALE(api.ones((8,)).partition((4,)), 2.0), SCALE(api.meta((8,)).partition((4,)), 2.0)
    for stage in ("ir", "plan"):
        assert op.render(stage) == by_type.render(stage)
        assert op.render(stage, "sm_90a") == by_type.render(stage, "sm_90a")
    assert (op.sync().y.unpartition().numpy() == 2).all()  # it was not used up
    by_type.discard()


def test_what_else_has_not_run_cannot_be_looked_at() -> None:
    op = SCALE(api.arange(8, ct.f32).partition((4,)), 2.0)
    with pytest.raises(LaunchError, match=r"argument 'y' is an op that has not run.* api\.meta\(shape, dtype\)"):
        op.render("ir")
    op.discard()


def test_stages_of_an_interpreted_launch_are_those_of_its_device() -> None:
    op = SCALE(part(), 2.0)
    stage = op.render("ir")
    assert op.interpret().render("ir") == stage
    op.discard()
    with ct.interpret():
        assert SCALE.inspect(part(), 2.0, stage="ir") == stage
        assert SCALE.explain(part(), 2.0)


def test_options_are_compile_options() -> None:
    options: Any = {"occupancy": 2}
    with pytest.raises(ArgumentTypeError, match=r"scale: compile_options: expected CompileOptions\(\.\.\.\)"):
        SCALE(part(), 2.0).compile_options(options)
    with pytest.raises(ArgumentTypeError, match=r"entry: options: expected CompileOptions\(\.\.\.\)"):
        ct.entry(options=options)


def test_a_grid_that_is_not_the_partitions() -> None:
    with pytest.raises(
        LaunchError, match=r"does not match .* grid \(2, 1, 1\) of 'y'.* Leave \.grid\(\.\.\.\) out, or cut 'y'"
    ):
        SCALE(part(), 2.0).grid(20)


def test_stages_and_names_of_other_compilers() -> None:
    for stage in ("ptx", "sass"):
        with pytest.raises(ValueError, match=rf"no stage '{stage}'; .* --stage image --output k\.cubin, and nvdisasm$"):
            SCALE.inspect(part(), 2.0, stage=stage)
    for name, meant in (("fp16", "f16"), ("torch.bfloat16", "bf16"), ("fp8_e4m3", "f8e4m3fn"), ("tl.uint8", "u8")):
        with pytest.raises(
            ArgumentTypeError, match=rf"{name}' names no element type; did you mean '{meant}'\? there are"
        ):
            api.zeros((4,), name)


def test_the_result_is_a_tuple_also_of_one() -> None:
    op: Any = SCALE(part(), 2.0)
    with pytest.raises(TypeError, match=r"yields a tuple of 2; .* \.first\(\)\.unpartition\(\.\.\.\)"):
        op.unpartition()
    assert op.first().unpartition().to_numpy().sync().tolist() == [2] * 8


def test_a_mistake_in_a_kernel_is_not_buried_under_the_compiler() -> None:
    wrong = kernel("def wrong(y: Mut):\n    if y.shape[0] > 1:\n        y.store(y.laod())\n")
    with pytest.raises(KernelTypeError) as caught:
        wrong(part()).sync()
    files = [Path(each.filename) for each in traceback.extract_tb(caught.value.__traceback__)]
    assert not any(file.parent.name == "frontend" for file in files if file.parent.parent.name == "cutile")
    assert "            ^^^^^^" in str(caught.value)


def test_what_a_launch_has_its_kernel_has_not() -> None:
    untyped: Any = SCALE
    for name in ("interpret", "grid", "compile_options", "sync", "bind"):
        with pytest.raises(AttributeError, match=rf"^kernel 'scale' .* '{name}': .* scale\(\.\.\.\)\.{name}$"):
            getattr(untyped, name)
    with pytest.raises(AttributeError, match=r"^kernel 'scale' has no attribute 'xyzzy'$"):
        _ = untyped.xyzzy
    assert not hasattr(untyped, "_repr_latex_")


def test_a_backend_of_another_device() -> None:
    with (
        ct.use_backend("cuda"),
        pytest.raises(UnsupportedTargetError, match=r"cannot run on the CPU, .* leave out use_b"),
    ):
        SCALE(part(), 2.0).sync_on(Device.host().new_stream())


def test_there_are_backends_of_some_names() -> None:
    with pytest.raises(UnsupportedTargetError, match="no backend 'gpu'; there are reference, cpu, cuda"):
        ct.use_backend("gpu")
