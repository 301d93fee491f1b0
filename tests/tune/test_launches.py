"""Launches that search for their configuration: the winner runs once on the caller's memory, and is kept on disk."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OutOfMemoryError, OwnershipError, Storage
from cutile import (
    ArgumentTypeError,
    CompileOptions,
    GenericsError,
    Kernel,
    KernelOp,
    MissingGenericsError,
    Tensor,
    TuningError,
    api,
    autotune,
    f16,
    f32,
    f64,
)
from cutile.bench import BenchOptions
from cutile.dtypes import DTypeLike
from cutile.launch.searching import Configuration
from cutile.tune import Autotuner, DisagreementWarning, choices
from cutile.tune import launches as searches
from cutile.tune.memory import Backup, Output, Region, difference
from tests.support.kernels import define, kernel
from tests.support.programs import GEMM

ROOT = Path(__file__).parents[2]
QUICK = BenchOptions(warmup_ms=0, rep_ms=1, min_reps=3, max_reps=5)
ADD_TWO = """
def add_two(y: Mut, *, N: Const = 2):
    t = y.load()
    for _ in range(N):
        t = t + 2 / N
    y.store(t)
"""
add_two, gemm = kernel(ADD_TWO), kernel(GEMM)
TILES = [{"B": 256}, {"B": 1024}]


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short measurements, and choices in a folder of the test's; compiled kernels stay where they are."""
    monkeypatch.setattr(searches, "BENCH", QUICK)
    monkeypatch.setattr("cutile.tune.choices._folder", lambda: tmp_path)
    for each in (add_two, gemm):
        each.launchable.memo.clear()


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.parse(request.param) as device:
        yield device


def values(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.to_numpy().sync()


def test_a_product_is_tuned_in_six_lines(device: Device) -> None:
    a, b = (api.randn(0.0, 1.0, shape, seed, f32).sync() for seed, shape in enumerate([(100, 70), (70, 90)]))
    configs: list[dict[str, Any]] = [
        {"BM": 32, "BN": 32, "BK": 16},
        {"BM": 64, "BN": 32, "BK": 32, "options": CompileOptions(num_worker_warps=4)},
    ]
    op = gemm(api.zeros((100, 90), f32).partition(("BM", "BN")), a, b).generics(configs)
    z = op.first().unpartition().sync()
    np.testing.assert_allclose(values(z), values(a) @ values(b), atol=1e-3)
    (choice,) = gemm.choices
    assert dict(choice.configuration.label) in ({**configs[0]}, {**configs[1], "options": "num_worker_warps=4"})
    assert choice.tuned is not None
    assert len(choice.tuned.ranking) == 2
    assert "a f32" not in choice.key
    assert choice.key.startswith("z f32 (100, 90), x f32 (100, 70)")


def test_the_callers_memory_sees_one_launch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch adds 2, and notes where it writes: trials write elsewhere."""
    y = api.zeros((5000,), f32).sync()
    where: list[int] = []
    use = Storage.order

    def order(self: Storage, stream: Any, write: bool) -> None:
        if write:
            where.append(self.address)
        use(self, stream, write)

    monkeypatch.setattr(Storage, "order", order)
    add_two(y.mut.partition("B")).generics([*TILES, {"B": 512, "N": 4}]).sync()
    assert where.count(y.storage.address) == 1
    assert len(where) > 9  # three configurations, each run, measured and compared
    monkeypatch.undo()
    assert (values(y) == 2).all()
    assert len(add_two.choices) == 1
    add_two(y.mut.partition("B")).generics([*TILES, {"B": 512, "N": 4}]).sync()
    assert (values(y) == 4).all()


def test_a_tuner_puts_back_what_its_trials_write(device: Device) -> None:
    y = api.full(7.0, (4096,), f32).sync()
    seen: list[float] = []

    def judge(out: Any) -> None:
        seen.append(float(values(y)[0]))

    tuner = Autotuner("add_two").configs(B=[256, 1024]).bench(QUICK).log(None).check(judge)
    found = tuner.run(lambda config: add_two(y.mut.partition((config.B,))))
    assert len(found.ranking) == 2
    assert seen == [9, 9]  # each configuration is judged on what was there before the search
    assert (values(y) == 7).all()
    with pytest.raises(TuningError, match="the result is wrong"):
        tuner.check(lambda out: False).run(lambda config: add_two(y.mut.partition((config.B,))))
    assert (values(y) == 7).all()


def test_outputs_without_elements_need_no_search_and_no_memory() -> None:
    empty = api.zeros((0,), f32).sync()
    out = add_two(empty.partition("B")).generics(TILES).sync()
    assert out.y.unpartition() is empty
    assert add_two.choices == ()
    both = kernel("def both(y: Mut, s: ct.SharedMut):\n    y.store(1.0)\n")
    y = api.zeros((100,), f32).sync()
    both(y.mut.partition("B"), api.zeros((0,), f32).sync()).generics([{"B": 10}, {"B": 50}]).sync()
    assert (values(y) == 1).all()
    assert len(both.choices) == 1


def test_strided_and_negative_views_are_written_alone() -> None:
    base = api.zeros((64, 8), f32).sync()
    view = base[::-2, 1:7]
    add_two(view.mut.partition(("R", 8))).generics([{"R": 4}, {"R": 16}]).sync()
    wanted = np.zeros((64, 8))
    wanted[::-2, 1:7] = 2
    np.testing.assert_array_equal(values(base), wanted)


def test_variables_of_the_device_are_put_back() -> None:
    calls = ct.Global(ct.i32, 0)
    text = "def count(y: Mut):\n    calls.atomic_add(1)\n    y.store(y.load() + 2)\n"
    counted, y = kernel(text, calls=calls), api.zeros((1024,), f32).sync()
    counted(y.mut.partition("B")).generics([{"B": 256}, {"B": 512}]).sync()
    assert int(calls.read().sync()) in (2, 4)  # the blocks of one launch
    assert (values(y) == 2).all()


def test_another_process_measures_nothing(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import pathlib
        import sys
        import cutile as ct
        from cutile import Const, Mut, api
        from cutile.tune import choices, launches

        folder = pathlib.Path(sys.argv[1])
        choices._folder = lambda: folder

        @ct.entry
        def add_two(y: Mut, *, N: Const = 2):
            y.store(y.load() + N)

        def best(extent):
            y = api.zeros((extent,)).sync()
            add_two(y.mut.partition("B")).generics([{"B": 256}, {"B": 1024}]).sync()
            assert (y.numpy() == 2).all()
            choice = add_two.choices[-1]
            return choice.configuration.extents["B"], choice.tuned is None

        def searches(extent):
            add_two.launchable.memo.clear()  # as in a process of its own
            try:
                best(extent)
            except TypeError:
                return True
            return False

        if sys.argv[2] == "first":
            print(*best(5000))
        else:
            launches.Search = None  # a search fails
            print(*best(6000))  # 5000 and 6000 are both up to 8192
            print(searches(8192), searches(9000))
            for record in folder.rglob("*.json"):
                record.write_text("{")  # cut short: as if it were not there
            print(searches(5000))
    """)
    file = tmp_path / "program.py"
    file.write_text(program)

    def run(argument: str) -> list[str]:
        line = [sys.executable, "-W", "error", str(file), str(tmp_path), argument]
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, fresh = run("first")
    assert fresh == "False"
    assert run("again") == [first, "True", "False", "True", "True"]


@pytest.mark.parametrize(
    "text",
    [
        '{"cutile.tune.choice": 1, "config": {"B": 1}, "tried": 1, "median_ms": 1' + "0" * 400 + "}",
        '{"cutile.tune.choice": 1, "config": {"B": 1}, "tried": Infinity, "median_ms": 1}',
        "[" * 100_000,
    ],
    ids=["a number beyond f64", "an infinite count", "deep lists"],
)
def test_a_file_that_is_no_choice_counts_as_missing(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_folder", lambda: tmp_path)
    configuration = Configuration({}, {"B": 1}, None, {"B": 1})
    choices.save("ab", choices.Choice("add", configuration, "key", 1.0, 1))
    assert choices.load("ab", "add", "key", [configuration]) is not None
    (file,) = tmp_path.rglob("*.json")
    file.write_text(text)
    assert choices.load("ab", "add", "key", [configuration]) is None


def test_await_searches_beside_the_loop() -> None:
    y = api.zeros((4096,), f32).sync()

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        out = await add_two(y.mut.partition("B")).generics(TILES)
        counting.cancel()
        assert out.y.tensor is y
        return turns

    assert asyncio.run(main()) > 10
    assert (values(y) == 2).all()


def test_inside_then_and_graphs_the_choice_has_to_be_known() -> None:
    def search(y: Tensor) -> KernelOp:
        return add_two(y.mut.partition("B")).generics(TILES)

    y = api.zeros((4096,), f32).sync()
    for run in (lambda: api.fill(y, 1.0).then(lambda _: search(y)).sync(), lambda: search(y).graph()):
        with pytest.raises(TuningError, match=r"not known, and a search waits .* Run one such launch before") as error:
            run()
        assert "y f32 (4096,) on cpu" in str(error.value)
    op = search(y)
    with pytest.raises(TuningError, match="explain and render"):
        op.explain()
    op.sync()
    api.fill(y, 1.0).then(lambda _: search(y)).sync()
    assert (values(y) == 3).all()
    with search(y).graph() as graph:
        graph.launch().sync()
    assert (values(y) == 5).all()
    op = search(y)
    assert op.explain().startswith("add_two")
    op.discard()
    bound = search(y).bind(Device.host().new_stream())
    bound()
    bound.stream.synchronize()
    assert (values(y) == 7).all()


def test_configurations_that_differ_are_named() -> None:
    text = "def wrong(y: Mut, *, N: Const = 1):\n    y.store(y.load() + N)\n"
    wrong = kernel(text)
    y = api.zeros((4096,), f32).sync()
    with pytest.warns(DisagreementWarning) as caught:
        wrong(y.mut.partition("B")).generics([{"B": 256, "N": 1}, {"B": 256, "N": 3}, {"B": 512, "N": 1}]).sync()
    assert "wrong: 1 of 3 configurations compute another result" in str(caught[0].message)
    assert "B=256,N=3 (y[0] is 3.0 in place of 1.0); otherwise with B=256,N=1, B=512,N=1" in str(caught[0].message)
    assert (values(y) == 1).all()
    with pytest.raises(TuningError, match=r"no result is that of most: B=512,N=2 \(y\[0\] is 3.0 in place of 2.0\)"):
        wrong(y.mut.partition("B")).generics([{"B": 256, "N": 1}, {"B": 512, "N": 2}]).sync()
    assert (values(y) == 1).all()

    apart = autotune([{"N": 1}, {"N": 2}], compare=False, bench=QUICK)(kernel(text))
    apart(y.mut.partition((512,))).sync()
    assert (values(y) >= 2).all()


def test_sums_in_another_order_agree() -> None:
    a, b = (api.randn(0.0, 1.0, (64, 64), seed, f32).sync() for seed in (1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemm(api.zeros((64, 64), f32).partition((32, 32)), a, b).generics([[8], [64]]).first().unpartition().sync()
    assert len(gemm.choices) == 1


def test_autotune_gives_a_kernel_a_search_of_its_own() -> None:
    tuned = autotune([{"N": 1}, {"N": 8}], key="y.shape[0]", bench=QUICK)(kernel(ADD_TWO))
    assert isinstance(tuned, Kernel)
    for extent in (1000, 1000, 1001):
        y = api.zeros((extent,), f32).sync()
        tuned(y.mut.partition((64,))).sync()
        assert (values(y) == 2).all()
    assert len(tuned.choices) == 2  # the key is the extent itself
    y = api.zeros((3000,), f32).sync()
    tuned(y.mut.partition((64,)), N=4).sync()
    tuned(y.mut.partition((64,))).generics([4]).sync()
    assert len(tuned.choices) == 2  # who says which needs no search

    def thousands(y: Any) -> int:
        return y.tensor_shape[0] // 1000

    rounded = autotune([{"N": 1}, {"N": 8}], key=thousands, bench=QUICK)(kernel(ADD_TWO))
    for extent in (1000, 1900):
        rounded(api.zeros((extent,), f32).sync().mut.partition((64,))).sync()
    assert len(rounded.choices) == 1
    tuned(y.mut.partition((64,))).interpret().sync()  # the first one: there is no speed to measure
    assert len(tuned.choices) == 2


def test_an_extent_may_be_given_beside_the_configurations() -> None:
    typed = kernel("def typed(y: Mut[Tensor[f32, B]], *, B: Const, N: Const = 1):\n    y.store(y.load() + N)\n")
    y = api.zeros((16,), f32).sync()
    typed(y.mut.partition("B"), B=4).generics([{"N": 2}, {"N": 2, "options": ct.CompileOptions(occupancy=1)}]).sync()
    assert (values(y) == 2).all()


def test_what_autotune_takes() -> None:
    wrong: Any = autotune
    with pytest.raises(ArgumentTypeError, match=r"expected a list.*got <kernel .*; write @ct\.autotune"):
        wrong(kernel(ADD_TWO))
    for given in ([], 3, {"B": 3}, [1, 2]):
        with pytest.raises(ArgumentTypeError, match="expected a list of configurations"):
            wrong(given)
    for name, remedy in (
        ("warmup", r"bench=BenchOptions\(warmup_ms"),
        ("keys", "did you mean 'key'"),
        ("xyz", "it takes"),
    ):
        with pytest.raises(ArgumentTypeError, match=f"autotune takes no '{name}': .*{remedy}"):
            wrong([{"N": 1}], **{name: 3})
    tuned = wrong(({"N": n} for n in (1, 8)), bench=QUICK)(kernel(ADD_TWO))
    y = api.zeros((1000,), f32).sync()
    tuned(y.mut.partition((64,))).sync()
    assert len(tuned.choices) == 1


def test_the_key_of_a_function_may_have_lists_at_any_depth() -> None:
    def nested(_: Any) -> object:
        return 1, [2, [3]]

    def wrongly_nested(_: Any) -> object:
        return 1, [object()]

    y = api.zeros((1024,), f32).sync()
    tuned = autotune([{"N": 1}, {"N": 8}], key=nested, bench=QUICK)(kernel(ADD_TWO))
    tuned(y.mut.partition((64,))).sync()
    tuned(y.mut.partition((64,))).sync()
    assert len(tuned.choices) == 1
    wrong = autotune([{"N": 1}, {"N": 8}], key=wrongly_nested, bench=QUICK)(kernel(ADD_TWO))
    op = wrong(y.mut.partition((64,)))
    with pytest.raises(GenericsError, match="expected a function that returns numbers"):
        op.sync()
    op.discard()


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_results_are_compared_at_any_scale(scale: float) -> None:
    output = Output("y", f64, (3,), (1,), 0)
    first, near, far = (np.array([scale, one * scale, np.nan]).view(np.uint8) for one in (1, 1 + 1e-12, 2))
    assert difference(output, first, near) is None
    assert difference(output, first, far) == f"y[1] is {scale} in place of {2 * scale}"


@pytest.mark.parametrize("first", [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("second", [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_infinities_and_nans_agree_with_themselves_alone(first: float, second: float, dtype: DTypeLike) -> None:
    output = Output("y", dtype, (2,), (1,), 0)
    results = [np.array([each, 1.0], dtype.numpy).view(np.uint8) for each in (first, second)]
    agree = first == second or (np.isnan(first) and np.isnan(second))
    assert (difference(output, *results) is None) == agree


def test_a_kernel_that_ran_before_is_searched_all_the_same() -> None:
    y = api.zeros((4096,), f32).sync()
    add_two(y.mut.partition((1024,))).sync()  # with its defaults, which are a plan of their own
    add_two(y.mut.partition((1024,))).generics([{"N": 1}, {"N": 4}]).sync()
    assert len(add_two.choices) == 1
    assert (values(y) == 4).all()


def test_a_tile_may_have_names_without_a_search() -> None:
    x = api.ones((30, 20), f32).sync()
    z = gemm(api.zeros((30, 20), f32).partition(("M", 16)), x, x.transpose().dup().sync()).generics(M=8, BK=4)
    assert z.first().unpartition().sync().shape == (30, 20)
    y = api.zeros((8,), f32).sync()
    part = y.mut.partition_prefix("B")
    add_two(part).generics(B=2).grid(2).sync()
    assert values(y).tolist() == [2] * 4 + [0] * 4
    assert repr(part) == "BorrowedPartition(f32, tensor_shape=(8,), partition_shape=('B',), device=cpu)"
    with pytest.raises(MissingGenericsError, match="the tiles of this partition are B"):
        _ = part.shape
    typed = kernel("def typed(y: Mut[Tensor[f32, B]], *, B: Const):\n    y.store(y.load() + B)\n")
    typed(y.mut.partition("B")).generics([4]).sync()  # a generic of the kernel that is an extent, too
    assert values(y).tolist() == [6] * 4 + [4] * 4


WRONG: list[tuple[Any, type[Exception], str]] = [
    ([{"BQ": 3}], GenericsError, r"add_two: configuration 0: there is nothing called 'BQ'; it may have N, B, options"),
    ([{"B": 2}, 64], GenericsError, r"configuration 1: expected a dictionary or a list of values.* got 64"),
    ([{"B": 2}, {"options": 3}], ArgumentTypeError, r"configuration 1: 'options'"),
    ([{"B": "many"}, {"B": 0}], TuningError, r"'B' is an extent of its tiles, a positive int; got 'many'"),
    ([{"N": 1}, {"N": 2}], TuningError, r"nothing says what B is; give it with .generics\(B=...\)"),
    ([{"N": 1, "B": 2}, {"N": 2}], GenericsError, r"configuration {'N': 2} does not say what B is, which a partition"),
    ([[1, 2], [3]], GenericsError, r"takes 1 value,"),
    ([[1], 3], GenericsError, r"takes 1 value,"),
    ([3, 4], GenericsError, r"takes 1 value,.*a list for each configuration: \[\[N\], "),
    ([(3,), (4,)], GenericsError, r"takes 1 value,.*a list for each configuration: \[\[N\], "),
    ([{"num_warps": 4}], GenericsError, r"'num_warps'.*in 'options': ct.CompileOptions\(...\); there write num_w"),
    ([{"occupancy": 2}], GenericsError, r"'occupancy'.*in 'options': ct.CompileOptions\(...\); there write occupancy="),
]


@pytest.mark.parametrize(("configs", "kind", "words"), WRONG, ids=lambda each: str(each)[:30])
def test_a_wrong_configuration_is_named(configs: Any, kind: type[Exception], words: str) -> None:
    y = api.zeros((16,), f32).sync()
    with pytest.raises(kind, match=words):
        add_two(y.mut.partition("B")).generics(configs).sync()
    assert (values(y) == 0).all()
    api.fill(y, 1.0).sync()  # nothing holds it


def test_what_stands_for_no_tile_or_kernel_is_refused() -> None:
    y = api.zeros((16,), f32).sync()
    with pytest.raises(ArgumentTypeError, match=r"'64' is no name; an extent is an int, or a name"):
        y.partition("64")
    with pytest.raises(ct.ArgumentError, match="it must have 1 extent,"):
        y.partition(("A", "B"))
    with pytest.raises(MissingGenericsError, match=r"argument 'y' is cut into tiles of B, and nothing says what B is"):
        add_two(y.mut.partition("B")).sync()
    with pytest.raises(GenericsError, match="'B' is an extent of its tiles, at most 2147483647; got 2147483648"):
        add_two(api.zeros((8,)).sync().partition("B")).generics(B=1 << 31).sync()
    with pytest.raises(GenericsError, match="add_two has no generic 'C'"):
        add_two(api.zeros((16,)).partition("B")).generics(B=2, C=3).sync()
    with pytest.raises(ArgumentTypeError, match="it stands above @ct"):
        autotune([{"B": 2}, {"B": 3}])(len)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="expected a list of configurations"):
        autotune([2, 3])  # type: ignore[list-item]
    with pytest.raises(GenericsError, match=r"key='w': expected names of its parameters \(y\)"):
        autotune(TILES, key="w")(kernel(ADD_TWO))(y.mut.partition("B"))
    held = add_two(y.partition("B"))
    with pytest.raises(OwnershipError):
        add_two(y.mut.partition("B"))
    held.discard()
    api.fill(y, 1.0).sync()


def test_memory_that_does_not_suffice_is_said_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    y = api.zeros((1 << 16,), f32).sync()

    def allocate(stream: object, nbytes: int) -> Storage:
        raise OutOfMemoryError(2, "OUT_OF_MEMORY", "no more")

    monkeypatch.setattr(Storage, "allocate", allocate)
    with pytest.raises(TuningError, match=r"a copy of what the kernel writes, 262,144 bytes \(y: 262,144\), which do"):
        add_two(y.mut.partition("B")).generics(TILES).sync()
    tuner = Autotuner("add_two").configs(B=[256, 1024]).bench(QUICK).log(None)
    assert tuner.run(lambda config: add_two(y.mut.partition((config.B,)))).ranking  # the copy is on the host
    monkeypatch.undo()
    assert (values(y) == 0).all()


def test_memory_without_bytes_is_put_back_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    y = api.zeros((4,), f32).sync()

    def allocate(stream: object, nbytes: int) -> Storage:
        raise OutOfMemoryError(2, "OUT_OF_MEMORY", "no more")

    monkeypatch.setattr(Storage, "allocate", allocate)
    backup = Backup("add_two", Device.host().new_stream())
    backup.keep([Region("y", y.storage, 16, 16), Region("y", y.storage, 0, 8)])
    api.fill(y, 3.0).sync()
    backup.restore()
    assert y.to_numpy().sync().tolist() == [0.0, 0.0, 3.0, 3.0]


def test_what_addresses_lead_to_cannot_be_copied() -> None:
    text = "def put(p: ct.Ptr[f32], *, N: Const = 1):\n    ct.store_ptr_tko(p, N)\n"
    put = ct.entry(define(text), unsafe=True)
    pointer = api.zeros((4,), f32).sync().device_pointer()
    with pytest.raises(TuningError, match="what the address in 'p' leads to cannot be copied"):
        put(pointer).grid(1).generics([{"N": 1}, {"N": 2}]).sync()
