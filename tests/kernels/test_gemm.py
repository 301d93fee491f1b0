"""The product's host functions: what is fused, batches, integers, refusals; and the model that picks the tile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_async import CudaGraph, Device, default_device
from cuda_async.graph import Scope
from cutile import CompileOptions, Tensor, api, bf16, f8e4m3fn, f16, f32, tf32, use_backend
from cutile.backend.interface import Target
from kernels.example import TOLERANCE, relative_error
from kernels.gemm import matmul
from kernels.gemm_choice import HOST, PLAIN, choose, every_choice, how_they_lie, may_be_halved
from kernels.gemm_fused import ACTIVATIONS, Activation
from kernels.gemm_model import AMPERE, HOPPER, WORTH_DIVIDING, Choice, best, candidates, predict
from kernels.gemm_variants import batched_matmul, integer_matmul, stackable, tf32_matmul
from tests.backend.cuda.programs import gemm_program, lowered

Array = np.ndarray[Any, Any]

M, N, K = 130, 72, 96


def draw(*shape: int, seed: int, dtype: Any = f32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def on_device(array: Array) -> Tensor:
    return api.from_numpy(array).sync()


def meaning(name: str, t: Array) -> Array:
    """An activation in float64."""
    return {
        "none": lambda: t,
        "relu": lambda: np.maximum(t, 0),
        "gelu": lambda: 0.5 * t * (1 + np.tanh(np.sqrt(2 / np.pi) * (t + 0.044715 * t**3))),
        "silu": lambda: t / (1 + np.exp(-t)),
    }[name]()


@pytest.fixture(params=["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
def _device(request: pytest.FixtureRequest) -> Any:
    backend: str = request.param
    with Device(0) if backend == "cuda" else Device.host(), use_backend(backend):
        yield


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize(
    ("activation", "with_bias", "with_residual"),
    [
        *((name, True, True) for name in ACTIVATIONS),
        ("none", True, False),
        ("gelu", False, True),
        ("relu", False, False),
    ],
)
def test_what_follows_a_product_is_fused(activation: Activation, with_bias: bool, with_residual: bool) -> None:
    x, y, bias, residual = draw(M, K, seed=1), draw(K, N, seed=2), draw(N, seed=3), draw(M, N, seed=4)
    result = matmul(
        on_device(x),
        on_device(y),
        out=on_device(np.full((M, N), np.nan, np.float32)),
        bias=on_device(bias) if with_bias else None,
        activation=activation,
        residual=on_device(residual) if with_residual else None,
        tile=(64, 32),
        depth=32,
    )
    wanted = meaning(activation, x.astype(np.float64) @ y + with_bias * bias) + with_residual * residual
    assert relative_error(result.sync().to_numpy().sync(), wanted) < TOLERANCE[f32]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_a_transposed_view_is_an_operand(dtype: Any) -> None:
    x, y = draw(M, K, seed=1, dtype=dtype), draw(N, K, seed=2, dtype=dtype)
    result = matmul(on_device(x), on_device(y).transpose(), tile=(64, 32), depth=32).sync().to_numpy().sync()
    assert relative_error(result, x.astype(np.float64) @ y.astype(np.float64).T) < TOLERANCE[dtype]


@pytest.mark.usefixtures("_device")
def test_products_in_batches() -> None:
    x, y = draw(3, 70, 40, seed=1), draw(3, 40, 50, seed=2)
    result = batched_matmul(on_device(x), on_device(y)).sync().to_numpy().sync()
    assert relative_error(result, x.astype(np.float64) @ y) < TOLERANCE[f32]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("given", [True, False])
def test_batches_of_whole_tiles_are_multiplied_as_one_product(given: bool) -> None:
    x, y = draw(3, 256, 512, seed=1), draw(3, 512, 40, seed=2)
    out = on_device(np.full((3, 256, 40), np.nan, np.float32)) if given else None
    a, b = on_device(x), on_device(y)
    assert stackable(a, b, Choice(256, 64, 256))
    assert not stackable(a.transpose((0, 2, 1)), b, Choice(256, 64, 256))
    product = batched_matmul(a, b, out=out).sync()
    assert out is None or product is out
    assert product.shape == (3, 256, 40)
    assert relative_error(product.to_numpy().sync(), x.astype(np.float64) @ y) < TOLERANCE[f32]


@pytest.mark.usefixtures("_device")
def test_products_of_small_floats() -> None:
    x, y = draw(M, K, seed=1), draw(N, K, seed=2)
    rounded = tf32_matmul(on_device(x), on_device(y).transpose()).sync().to_numpy().sync()
    assert 1e-5 < relative_error(rounded, x.astype(np.float64) @ y.T) < 1e-3
    a, b = (each.astype(f8e4m3fn.numpy) for each in (x, y))
    for fast in (False, True):
        made = matmul(on_device(a), on_device(b).transpose(), use_fast_acc=fast).sync()
        assert made.dtype is bf16
        assert relative_error(made.to_numpy().sync(), a.astype(np.float64) @ b.T.astype(np.float64)) < TOLERANCE[bf16]


@pytest.mark.usefixtures("_device")
def test_products_of_integers_are_exact() -> None:
    random = np.random.default_rng(5)
    x, y = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((60, 300), (300, 90)))
    result = integer_matmul(on_device(x), on_device(y)).sync().to_numpy().sync()
    assert np.array_equal(result, x.astype(np.int64) @ y)


@pytest.mark.usefixtures("_device")
def test_products_in_a_graph_see_what_the_ones_before_wrote() -> None:
    """Each takes the last one's result, which on a GPU may still be on its way when it is started."""
    turning, _ = np.linalg.qr(draw(128, 128, seed=1))
    x = draw(16, 128, seed=2)
    w, here, there = on_device(turning), on_device(x), on_device(np.full((16, 128), np.nan, np.float32))
    a, b, c = (api.convert(each, bf16).sync() for each in (w, here, there))
    stream = default_device().new_stream()

    def record(scope: Scope) -> None:
        for source, target in [(b, c), (c, b)] * 5:
            scope.record(matmul(source, a, out=target, tile=(16, 64), depth=64))

    matmul(b, a, tile=(16, 64), depth=64).sync_on(stream)
    with CudaGraph.scope(stream, record) as graph:
        graph.launch().sync_on(stream)
    wanted = x.astype(np.float64) @ np.linalg.matrix_power(turning.astype(np.float64), 10)
    assert relative_error(b.to_numpy().sync(), wanted) < 5 * TOLERANCE[bf16]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with Device.host():
        x, y = api.zeros((4, 8)).sync(), api.zeros((8, 6)).sync()
        with pytest.raises(ValueError, match=r"expected shapes \(m, k\) and \(k, n\), got \(4, 8\) and \(4, 8\)"):
            matmul(x, x)
        with pytest.raises(ValueError, match=r"bias: expected the shape \(6,\), got \(8, 6\)"):
            matmul(x, y, bias=y)
        with pytest.raises(ValueError, match=r"residual: expected the shape \(4, 6\), got \(8, 6\)"):
            matmul(x, y, residual=y)
        with pytest.raises(ValueError, match="expected one of none, relu, gelu, silu, got 'softplus'"):
            matmul(x, y, activation="softplus")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"\(b, m, k\) and \(b, k, n\)"):
            batched_matmul(x, y)


def test_the_model_fills_the_device() -> None:
    for size, least, most in ((512, 48, 132), (1024, 64, 132), (2048, 64, 264), (8192, 132, 10**6)):
        found = best(size, size, size, HOPPER, 132)
        blocks = -(-size // found.rows) * -(-size // found.columns)
        assert least <= blocks <= most, found


def test_short_products_go_to_halves_of_thread_blocks() -> None:
    """Where K is short, writing is much of a tile's time; where there is a tile for each block, there is no other."""
    plan = best(8192, 8192, 512, HOPPER, 132, halves=True)
    assert (plan.rows, plan.halved) == (128, True)
    assert plan.options is not None
    assert plan.options.num_worker_warps == 4
    assert plan.seconds < best(8192, 8192, 512, HOPPER, 132).seconds
    for size in ((512, 512, 512), (2048, 2048, 2048), (128, 8192, 8192)):
        assert best(*size, HOPPER, 132, halves=True) == best(*size, HOPPER, 132)
    assert not best(8192, 8192, 512, AMPERE, 108, halves=True).halved


def test_what_may_be_halved_the_copy_engine_loads_and_stores() -> None:
    with Device.host():
        x, wide = (api.zeros(shape, bf16).sync() for shape in ((64, 64), (64, 72)))
        assert may_be_halved(x, wide, None)
        assert may_be_halved(x, x.transpose(), x)
        assert not may_be_halved(x, api.zeros((64, 70), bf16).sync(), None)  # rows at odd places
        assert not may_be_halved(x, x, x.transpose())
        assert not may_be_halved(x, x, api.zeros((64, 64), f32).sync())  # threads store what is not of 16 bits


@pytest.mark.parametrize("chip", [HOPPER, AMPERE], ids=["hopper", "ampere"])
def test_the_best_is_no_slower_than_any_other(chip: Any) -> None:
    for shape in ((777, 1000, 333), (16, 8192, 8192), (8192, 8192, 512), (4096, 4096, 4096)):
        plan = best(*shape, chip, 108)
        others = (predict(*shape, each, chip, 108) for each in candidates(*shape, chip))
        assert plan.seconds <= min(others) * WORTH_DIVIDING
        flops = 2 * shape[0] * shape[1] * shape[2] / plan.seconds
        assert flops < 108 * chip.flops
        assert (shape[0] * shape[2] + shape[2] * shape[1]) * 2 / plan.seconds < chip.memory_bytes


def test_few_rows_get_tiles_of_few_rows() -> None:
    """Measured on an H200 with N = K = 8192: 16 x 64 took 34 us, 64 x 64 took 51."""
    for rows, wanted in ((1, 8), (8, 8), (16, 16), (17, 32), (40, 48), (64, 64)):
        found = best(rows, 8192, 8192, HOPPER, 132)
        assert (found.rows, found.columns, found.pieces) == (wanted, 64, 1)
    assert best(16, 8192, 8192, HOPPER, 132, along=False).rows == 64  # they cannot change places
    assert best(16, 8192, 8192, AMPERE, 108).rows == 64


def test_blocks_that_need_the_same_columns_share_them_where_the_cache_does_not_hold_them() -> None:
    plan = best(128, 8192, 8192, HOPPER, 132)
    assert (plan.rows, plan.columns, plan.cluster) == (64, 128, 2)
    assert best(128, 2048, 2048, HOPPER, 132).cluster == 1
    assert best(4096, 4096, 4096, HOPPER, 132).cluster == 1
    assert plan.options == CompileOptions(num_cta_in_cga=2)


def test_the_steps_of_few_tiles_are_divided_by_their_launch() -> None:
    """Measured on an H200: of 16 x 1024 x 8192, six pieces took 7.1 us, four 7.7 and eight in a workspace 8.1."""
    for shape, pieces in (((16, 1024, 8192), 6), ((512, 512, 8192), 3), ((256, 256, 16384), 6), ((64, 64, 65536), 16)):
        plan = best(*shape, HOPPER, 132)
        assert (plan.pieces, plan.options) == (pieces, None)
        blocks = -(-shape[0] // plan.rows) * -(-shape[1] // plan.columns)
        kernel = lowered(gemm_program(bf16, (plan.rows, plan.columns), plan.depth), Target("cuda", "sm_90a", 132))
        _, ways = kernel.facts["division"]
        turns = -(-shape[2] // plan.depth)
        assert next(n for most, least, n in ways if blocks <= most and turns >= least) == pieces
    for shape in ((512, 512, 512), (1024, 1024, 1024), (8192, 8192, 8192)):
        assert best(*shape, HOPPER, 132).options is None


def test_a_residual_takes_registers_from_the_sums() -> None:
    alone, with_residual = (best(4096, 4096, 4096, HOPPER, 132, held=held) for held in (1, 2))
    assert (alone.rows, alone.columns) == (128, 256)
    assert with_residual.columns <= 192  # what compiles without spilling registers


def test_a_step_has_as_many_bytes_whatever_the_elements() -> None:
    eight, sixteen, rounded = (best(8192, 8192, 8192, HOPPER, 132, bits=bits) for bits in (8, 16, 32))
    assert (eight.depth, sixteen.depth, rounded.depth) == (128, 64, 32)
    assert eight.seconds < sixteen.seconds < rounded.seconds


def test_how_operands_lie_is_known() -> None:
    with Device.host():
        x, y = api.zeros((64, 32)).sync(), api.zeros((48, 32)).sync()
        by_rows, odd = api.zeros((32, 48)).sync(), api.zeros((48, 33)).sync().slice((0, 48), (0, 32))
        across = api.zeros((32, 64)).sync().transpose()
        assert how_they_lie(x, y.transpose()) == "along"
        assert how_they_lie(x, by_rows) == "right across"
        assert how_they_lie(across, y.transpose()) == "left across"
        assert how_they_lie(across, by_rows) == "both across"
        assert how_they_lie(x, odd.transpose()) == "otherwise"


def test_where_the_right_operand_lies_across_the_tile_is_turned() -> None:
    hopper: Any = SimpleNamespace(kind="cuda", arch="sm_90a", properties=SimpleNamespace(multiprocessor_count=132))
    along, across, left = (
        choose(8192, 8192, 8192, tf32, hopper, lie=lie) for lie in ("along", "right across", "left across")
    )
    assert (across.rows, across.columns) == (along.columns, along.rows)
    assert (left.rows, left.columns) == (along.rows, along.columns)
    assert across.columns % 64 == 0
    assert choose(8192, 8192, 8192, f8e4m3fn, hopper, lie="along").columns <= 192  # sums fit twice
    assert choose(8192, 8192, 8192, tf32, hopper) == PLAIN


def test_f32_takes_deeper_steps_where_there_are_many() -> None:
    hopper: Any = SimpleNamespace(kind="cuda", arch="sm_90a", properties=SimpleNamespace(multiprocessor_count=132))
    tiles = {size: choose(size, size, size, f32, hopper, lie="right across") for size in (512, 2048, 8192)}
    assert [tiles[size].depth for size in (512, 2048, 8192)] == [32, 32, 64]
    choices = [(each.rows, each.columns, each.depth) for each in every_choice(f32, "sm_90a", lie="right across")]
    assert all((each.rows, each.columns, each.depth) in choices for each in tiles.values())


def test_other_devices_and_dtypes_have_their_own_tiles() -> None:
    assert choose(4096, 4096, 4096, f32, Device.host()) == HOST
    assert PLAIN.rows * PLAIN.columns == 128 * 128
