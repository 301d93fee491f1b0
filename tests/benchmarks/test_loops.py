"""`python -m benchmarks.loops`: its command line, what it says where it cannot run, and its kernels on small inputs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.loops import __main__ as loops
from benchmarks.loops import attention, eight, experts, latent, scaled, shapes
from benchmarks.loops import cases as loop_cases
from cuda_async import Device
from cutile import KernelOp, Tensor, api, bf16, f8e4m3fn, f16, f32, i32, use_backend
from kernels.attention import attention_of
from kernels.experts import grouped


def random(*shape: int) -> tuple[Any, Tensor]:
    """Numbers as NumPy's in float64, and as a tensor of f16."""
    numbers = np.random.default_rng().standard_normal(shape).astype(np.float16)
    return numbers.astype(np.float64), api.from_numpy(numbers).sync()


def _nothing(name: str) -> None:
    """No module is installed."""


def result(op: KernelOp, z: Tensor) -> Any:
    op.sync()
    return z.to_numpy().sync().astype(np.float64)


def test_cases_are_chosen_by_pattern() -> None:
    assert [case.name for case in loops.parse(["--cases", "attention-64*"]).chosen] == [
        "attention-64",
        "attention-64-causal",
        "attention-64-1024",
        "attention-64-1024-causal",
    ]
    assert loops.parse([]).chosen == list(loops.CASES)
    assert len({case.name for case in loops.CASES}) == len(loops.CASES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "gemv"], "no such case; there are attention-128, "),
        (["--pairs", "6"], "expected 20 or more"),
        (["--out", "x", "more"], "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        loops.main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "words"), [(0, "a GPU is needed"), (1, "torch is needed, and is not installed")])
def test_what_is_missing_is_told(
    gpus: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.record.device_count", lambda: gpus)
    monkeypatch.setattr("importlib.util.find_spec", _nothing)
    assert loops.main([]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


def test_long_turns_are_of_the_cases_that_stand_for_others() -> None:
    assert [case.name for case in loops.CASES if loops.in_long_turns(case, None)] == [
        "attention-128",
        "attention-64",
        "swiglu",
    ]
    assert all(loops.in_long_turns(case, "*") for case in loops.CASES)


def test_two_loops_of_products_add_up() -> None:
    (x, dx), (w, dw), (u, du), (v, dv) = random(40, 70), random(70, 33), random(40, 20), random(20, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.lora(z.mut.partition((32, 32)), dx, dw, du, dv, BK=32), z)
    np.testing.assert_allclose(found, x @ w + u @ v, rtol=2e-3, atol=2e-2)


def test_taps_add_up() -> None:
    (x, dx), (w, dw) = random(40, 48), random(3, 48, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.taps(z.mut.partition((32, 32)), dx, dw, BK=32), z)
    np.testing.assert_allclose(found, (x @ w).sum(0), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("count", [3, 4])
def test_a_product_under_a_branch(count: int) -> None:
    (x, dx), (w, dw) = random(40, 48), random(48, 33)
    z = api.full(np.nan, (40, 33), f16).sync()
    found = result(loop_cases.branch(z.mut.partition((32, 32)), dx, dw, count, BK=32), z)
    np.testing.assert_allclose(found, x @ w if count > 3 else np.zeros((40, 33)), rtol=2e-3, atol=2e-2)


def tensor_of(numbers: Any) -> Tensor:
    """A tensor of an array's numbers."""
    return api.from_numpy(np.ascontiguousarray(numbers)).sync()


def softmax_of(scores: Any) -> Any:
    """The softmax of rows."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_kernels_of_which_one_reads_what_another_wrote_are_one_arm() -> None:
    (x, dx), (w, dw) = random(8, 300), random(300, 256)
    results = [api.full(np.nan, (8, 256), f16).sync() for _ in range(2)]
    ops = (shapes.by_parts(z, dx, dw, 3, tile=(8, 128)) for z in results)
    arm = loop_cases.GraphArm(ops, results, x @ w, device=Device.host())
    assert arm.run(2) > 0
    for z in results:
        np.testing.assert_allclose(z.to_numpy().sync().astype(np.float64), arm.exact, rtol=2e-3, atol=4e-2)


def test_a_softmax_of_the_rows_of_a_product() -> None:
    (x, dx), (w, dw) = random(40, 48), random(48, 32)
    z = api.full(np.nan, (40, 32), f16).sync()
    found = result(shapes.product_softmax(z.mut.partition((16, 32)), dx, dw, BK=16), z)
    np.testing.assert_allclose(found, softmax_of(x @ w), rtol=2e-2, atol=2e-3)


class Stand:
    """Stands for a tensor of torch, of which the shape alone counts. What is computed of it is itself."""

    def __init__(self, *shape: int, dtype: Any = bf16, **_: Any) -> None:
        self.shape, self.dtype, self._ours = shape, dtype, cast("Tensor | None", None)

    def __getattr__(self, name: str) -> Any:
        def same(*_: Any, dtype: Any = self.dtype, **__: Any) -> Stand:
            return Stand(*self.shape, dtype=dtype)

        return same

    def __getitem__(self, index: Any) -> Stand:
        return Stand(1, *self.shape, dtype=self.dtype) if index is None else self

    def __setitem__(self, index: Any, value: Any) -> None:
        """Numbers do not count."""

    def __mul__(self, factor: float) -> Stand:
        return self

    def ours(self) -> Tensor:
        """Our tensor of it, of zeros; the same memory each time."""
        if self._ours is None:
            self._ours = api.zeros(self.shape, self.dtype).sync()
        return self._ours


class StandTorch:
    """Stands for torch where arms are built."""

    bfloat16, float32, int32 = bf16, f32, i32

    def __getattr__(self, name: str) -> Any:
        return MagicMock()

    randn = empty = Stand

    def full(self, shape: tuple[int, ...], value: float, *, dtype: Any = f32, **_: Any) -> Stand:
        return Stand(*shape, dtype=dtype)

    def randperm(self, count: int, **_: Any) -> Stand:
        return Stand(count, dtype=i32)


def host(_: int) -> Device:
    """The CPU, whatever GPU is asked for."""
    return Device.host()


def nothing(*_: Any) -> None:
    """Exact results do not count."""


@pytest.mark.parametrize("page", [0, 128])
def test_decoding_is_built_and_launched(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that reads what another is yet to write is no operation of its own, which leases would refuse."""
    monkeypatch.setattr(loop_cases, "Device", host)
    for module in (loop_cases, attention):
        monkeypatch.setattr(module, "api", SimpleNamespace(from_dlpack=Stand.ours))
    monkeypatch.setattr(attention, "exact_rows", nothing)
    with use_backend("reference"):
        arm, _ = attention.decode_arms(StandTorch(), 1, 512, 2, page)
        assert arm.run(1) > 0


def test_attention_over_listed_blocks() -> None:
    (q, dq), (k, dk), (v, dv) = random(2, 32, 16), random(2, 48, 16), random(2, 48, 16)
    blocks, counts = np.array([[2, 0, 0], [0, 1, 2]], np.int32), np.array([1, 3], np.int32)
    z = api.full(np.nan, (2, 32, 16), f16).sync()
    inputs = (dq, dk, dv, tensor_of(blocks), tensor_of(counts))
    with use_backend("reference"):
        output = result(attention.listed(z.mut.partition((1, 16, 16)), *inputs, 0.25, BN=16), z)
    first = attention_of(q[:, :16], k[:, 32:], v[:, 32:], causal=False)
    last = attention_of(q[:, 16:], k, v, causal=False)
    np.testing.assert_allclose(output, np.concatenate((first, last), 1), rtol=2e-2, atol=2e-3)


def test_attention_of_8_bit_floats() -> None:
    shapes_of = ((2, 40, 16), (2, 70, 16), (2, 70, 16))  # keys end within a tile
    q, k, v = (np.random.default_rng().standard_normal(shape).astype(f8e4m3fn.numpy) for shape in shapes_of)
    operands = (np.ascontiguousarray(each).view(np.uint8) for each in (q, k, v.transpose(0, 2, 1)))
    inputs = [api.from_numpy(each).sync().reinterpret(f8e4m3fn, each.shape) for each in operands]
    z = api.full(np.nan, q.shape, f16).sync()
    with use_backend("reference"):
        found = result(eight.attention_f8(z.mut.partition((1, 32, 16)), *inputs, 0.25, 2.0, BN=32), z)
    exact = 2 * attention_of(*(each.astype(np.float64) for each in (q, k, v)), causal=False)
    assert np.linalg.norm(found - exact) < 4e-2 * np.linalg.norm(exact)


def test_products_with_scales_of_blocks() -> None:
    draw = np.random.default_rng()
    x, w = (draw.standard_normal(shape).astype(f8e4m3fn.numpy) for shape in ((32, 80), (2, 32, 80)))
    of_x, of_w = (draw.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((5, 32), (2, 2, 5)))
    left, right = (tensor_of(each.view(np.uint8)).reinterpret(f8e4m3fn, each.shape) for each in (x, w))
    first = tensor_of(w[0].view(np.uint8)).reinterpret(f8e4m3fn, w[0].shape)
    z, of_experts = (api.full(np.nan, (32, 32), f16).sync() for _ in range(2))
    expert = np.array([1, 0], np.int32)
    wide = x.astype(np.float64) * of_x.T.repeat(16, 1)
    exact = [wide @ (w[e].astype(np.float64) * of_w[e].repeat(16, 0).repeat(16, 1)).T for e in (0, 1)]
    with use_backend("reference"):
        scales = tensor_of(of_x), tensor_of(of_w)
        tiles = of_experts.mut.partition((16, 32))  # two blocks of w wide
        result(scaled.scaled_experts(tiles, left, right, *scales, tensor_of(expert), BK=16), of_experts)
        for blocks in (1, 2):
            tiles = z.mut.partition((16, 16 * blocks))
            op = scaled.scaled(tiles, left, first, scales[0], tensor_of(of_w[0]), BK=16, BLOCKS=blocks)
            np.testing.assert_allclose(result(op, z), exact[0], rtol=2e-3, atol=2e-2)
    found = of_experts.to_numpy().sync().astype(np.float64)
    np.testing.assert_allclose(found, np.concatenate((exact[1][:16], exact[0][16:])), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("parts", [1, 2])
def test_decoding_with_latent_keys(parts: int) -> None:
    (q, dq), (k, dk) = random(2, 20, 48), random(2, 70, 48)  # keys end within a tile
    z = api.full(np.nan, (2, 20, 32), f16).sync()
    with use_backend("reference"):
        latent.decode_latent(z, dq, dk, 1 / math.sqrt(48), parts=parts, rows=16).sync()
    exact = attention_of(q, k, k[..., :32], causal=False)
    np.testing.assert_allclose(z.to_numpy().sync().astype(np.float64), exact, rtol=2e-2, atol=2e-3)


def test_products_of_experts_with_rows_by_a_list() -> None:
    (x, dx), (w, dw) = random(40, 48), random(3, 48, 33)
    rows, expert = np.random.default_rng().permutation(40)[:32].astype(np.int32), np.array([2, 0], np.int32)
    z = api.full(np.nan, (32, 33), f16).sync()
    op = grouped(dx, dw, tensor_of(expert), rows=tensor_of(rows), out=z, tile=(16, 32))
    found = op.sync().to_numpy().sync().astype(np.float64)
    exact = np.concatenate((x[rows[:16]] @ w[2], x[rows[16:]] @ w[0]))
    np.testing.assert_allclose(found, exact, rtol=2e-3, atol=2e-2)


def test_gradients_of_the_weights_of_experts() -> None:
    (x, dx), (dy, ddy) = random(64, 40), random(64, 33)
    z = api.full(np.nan, (3, 40, 33), f16).sync()
    ends = np.array([0, 16, 16, 64], np.int32)
    with use_backend("reference"):
        found = result(experts.weight_gradients(z.mut.partition((1, 32, 32)), dx, ddy, tensor_of(ends), BK=16), z)
    exact = np.stack([x[a:b].T @ dy[a:b] for a, b in ((0, 16), (16, 16), (16, 64))])
    np.testing.assert_allclose(found, exact, rtol=2e-3, atol=2e-2)


def test_rows_are_shared_by_experts() -> None:
    assert experts.shares(8, skewed=False) == [2048] * 8
    assert (sum(experts.shares(8, skewed=True)), experts.shares(8, skewed=True)[6]) == (16384, 0)
