# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Operators and launches on a GPU: PyTorch's streams, its allocator, its CUDA graphs, and its compiler."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import cutile as ct  # noqa: E402
import cutile.torch as ctt  # noqa: E402
from benchmarks.torch_model import Model, matmul, softmax  # noqa: E402
from cutile import Mut, Tensor  # noqa: E402
from cutile.errors import ArgumentError  # noqa: E402
from kernels.gemm import gemm  # noqa: E402
from tests.torch import kernels  # noqa: E402
from tests.torch import operators as ops  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a build of PyTorch for the GPU"),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@ct.entry
def slow(y: Mut, x: Tensor):
    """y = x, after much else: what does not wait for it is seen."""
    t = ct.load_tile_like(x, y)
    for _ in range(20000):
        t = ct.sin(t) * 0.5 + t * 0.5
    y.store(t * 0.0 + ct.load_tile_like(x, y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_opcheck_passes() -> None:
    wants = torch.randn(300, device="cuda", requires_grad=True)
    torch.library.opcheck(ops.silu, (wants,))
    torch.library.opcheck(ops.silu_plain, (wants.detach(),))
    torch.library.opcheck(softmax, (torch.randn(8, 128, device="cuda", requires_grad=True),))
    x, y = torch.randn(128, 64, device="cuda"), torch.randn(64, 128, device="cuda")
    torch.library.opcheck(matmul, (x.requires_grad_(), y.requires_grad_()), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ["default", "side"])
def test_it_runs_on_the_current_stream(name: str) -> None:
    stream = torch.cuda.default_stream() if name == "default" else torch.cuda.Stream()
    x = torch.randn(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(5):
            y = torch.zeros_like(x)
            ctt.launch(slow, ctt.partition(y, (1024,)), x)
            z = ops.silu(y + 1)  # between PyTorch's own: nobody waits but the device
            torch.testing.assert_close(z, torch.nn.functional.silu(x + 1), rtol=1e-4, atol=1e-5)
            del y, z  # what comes next reuses the memory
        busy = torch.cuda.Event()
        ctt.launch(slow, ctt.partition(torch.empty_like(x), (1024,)), x)
        busy.record()
        assert not busy.query()  # so the launch did not wait
    torch.cuda.synchronize()


def test_results_are_of_pytorchs_allocator() -> None:
    x = torch.randn(1 << 20, device="cuda")
    ops.silu(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = ops.silu(x)
    assert torch.cuda.memory_allocated() == before + x.numel() * 4
    del y
    assert torch.cuda.memory_allocated() == before


def test_gradients_and_the_threads_of_autograd() -> None:
    x = torch.randn(1000, device="cuda", requires_grad=True)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            (gradient,) = torch.autograd.grad(ops.silu(x).square().sum(), x)
            (wanted,) = torch.autograd.grad(torch.nn.functional.silu(x).square().sum(), x)
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
    torch.cuda.synchronize()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "compiled in the capture"])
def test_pytorch_captures_launches(mode: str, warm: bool) -> None:
    n = 5000 + 8 * ["global", "thread_local", "relaxed"].index(mode) + warm  # layouts that no test has launched
    tile = (512 if warm else 128,)
    x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")

    def work() -> Any:
        ctt.launch(kernels.axpy, ctt.partition(y, tile), 2.0, x)
        return ops.silu(y)

    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        assert y.tolist() == [2.0] * n
        y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        z = work()
    torch.cuda.synchronize()
    assert float(y.sum()) == 0  # nothing ran yet
    for number in range(1, 4):
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [2.0 * number] * n
    torch.testing.assert_close(z, torch.nn.functional.silu(y), rtol=1e-4, atol=1e-5)
    x.fill_(3.0)  # a graph reads what is there when it is launched
    graph.replay()
    assert float(y[0]) == 12.0
    del graph
    ctt.launch(kernels.axpy, ctt.partition(y, tile), 1.0, x)
    assert float(y[-1]) == 15.0


@pytest.mark.parametrize("shape", [(512, 512, 8192), (1024, 1024, 1024)], ids=["divided", "whole"])
def test_products_with_workspaces_are_captured(shape: tuple[int, int, int]) -> None:
    """Launches of few tile blocks share out their turns through a workspace, which has to be the graph's own."""
    m, n, k = shape
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    z = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        ctt.launch(gemm, ctt.partition(z, (128, 128)), x, y, BK=64)

    expected = (x.float() @ y.float()).bfloat16()
    work()
    torch.testing.assert_close(z, expected, rtol=2e-2, atol=0.5)
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
            work()
        graphs.append(graph)
    side = torch.cuda.Stream()
    for _ in range(5):  # two graphs and a launch at once: none may share counters
        z.zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graphs[0].replay()
        work()
        torch.cuda.current_stream().wait_stream(side)
        graphs[1].replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(z, expected, rtol=2e-2, atol=0.5)


def test_a_kernel_that_fails_says_so_and_the_device_stays_usable() -> None:
    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    ctt.launch(kernels.checked, ctt.partition(y, (4,)), -x)
    with pytest.raises(ct.KernelAssertionError, match="x must be positive"):
        ctt.synchronize()
    ctt.launch(kernels.checked, ctt.partition(y, (4,)), -x)
    torch.cuda.synchronize()
    with pytest.raises(ct.KernelAssertionError, match="x must be positive"):
        ctt.launch(kernels.checked, ctt.partition(y, (4,)), x)
    ctt.launch(kernels.checked, ctt.partition(y, (4,)), x)
    ctt.synchronize()
    assert y.tolist() == [1.0] * 8


def test_devices_are_not_mixed() -> None:
    with pytest.raises(ArgumentError, match=r"'x' is on cpu, and 'y' on cuda:0; move one"):
        ctt.launch(kernels.silu, ctt.partition(torch.zeros(8, device="cuda"), (4,)), torch.ones(8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_counts() -> None:
    x = torch.randn(1000, device="cuda:1")
    torch.testing.assert_close(ops.silu(x), torch.nn.functional.silu(x), rtol=1e-4, atol=1e-5)
    assert torch.cuda.current_device() == 0


def test_threads_with_streams_of_their_own() -> None:
    failures: list[Any] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((10000,), float(number), device="cuda")
            for _ in range(50):
                y = torch.zeros_like(x)
                ctt.launch(kernels.axpy, ctt.partition(y, (256,)), 2.0, x)
                if not torch.equal(y, 2 * x):
                    failures.append(y)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_of_operators_is_one_graph(mode: str) -> None:
    torch._dynamo.reset()
    width = 256
    ours, theirs = Model(width, ours=True).cuda(), Model(width, ours=False).cuda()
    theirs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, fullgraph=True, mode=mode)
    for _ in range(4):  # with CUDA graphs, the third is the first to be replayed
        x = torch.randn(width, width, device="cuda")
        ours.zero_grad()
        theirs.zero_grad()
        y = compiled(x)
        y.sum().backward()
        wanted = theirs(x)
        wanted.sum().backward()
        torch.testing.assert_close(y, wanted, rtol=5e-3, atol=5e-3)
        for mine, peer in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, peer.grad, rtol=5e-2, atol=5e-2)
