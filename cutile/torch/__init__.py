"""Kernels inside PyTorch: launches over its tensors, and operators.

Launches go to PyTorch's current stream; its dispatcher has the operators.

    import torch
    import cutile.torch as ctt

    @ctt.register("mylib::silu(Tensor x) -> Tensor", fake=torch.empty_like)
    def silu(x):
        y = torch.empty_like(x)
        ctt.launch(silu_kernel, ctt.partition(y, (1024,)), x)
        return y

No other part of `cutile` imports `torch`. A kernel that is called in the usual way takes PyTorch tensors without this
package: see `cutile.host.foreign`.
"""

try:
    import torch  # pyright: ignore  # noqa: F401 - so that the error below names the package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "cutile.torch needs PyTorch, which is not installed: see https://pytorch.org/get-started for the command",
        name=error.name,
    ) from None

from cutile.torch.arguments import Partition, partition
from cutile.torch.launches import launch
from cutile.torch.operators import register
from cutile.torch.streams import synchronize

__all__ = ("Partition", "launch", "partition", "register", "synchronize")
