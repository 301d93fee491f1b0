"""`meta`: a tensor without memory, for what needs its type only.

Looking at generated code is such a use, and compiling beforehand.
"""

from __future__ import annotations

from cuda_async import Device, default_device
from cuda_async.foreign import import_stream
from cuda_async.trace import AbsentStorage
from cutile.dtypes import f32
from cutile.host.shapes import DTypeSpec, ShapeLike, element_type, new_shape, row_major_strides
from cutile.host.tensor import Tensor
from cutile.launch.views import View

__all__ = ("MetaStorage", "meta")


class MetaStorage(AbsentStorage):
    """Memory that is not there."""

    __slots__ = ()

    reason = (
        "a tensor made by api.meta has no memory: it can be partitioned, viewed and rendered, and a kernel can be "
        "compiled for it; to run one, make the tensor with api.empty or api.zeros"
    )

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(import_stream(device), nbytes)  # the stream is never used


def meta(shape: ShapeLike, dtype: DTypeSpec = f32, *, device: Device | None = None) -> Tensor:
    """A tensor with a shape and a dtype, and no memory.

    Not an op: there is nothing to run.

    What it is laid out like is what `empty` gives: contiguous and aligned. So a kernel that is compiled for it is the
    one that such a tensor runs.

    Args:
        shape, dtype: as for `empty`.
        device: where it would be; the default device if None.

    Raises:
        ArgumentTypeError, ArgumentError: as for `empty`.

    Example:
        >>> import cutile as ct
        >>> from cutile import api
        >>> @ct.entry
        ... def double(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> op = double(api.meta((64, 64)).partition((8, 8)), api.meta((64, 64)))
        >>> "double" in op.render("ir")
        True
        >>> op.discard()
    """
    element, extents = element_type(dtype, "meta"), new_shape(shape, "meta")
    nbytes = element.bits // 8
    for extent in extents:
        nbytes *= extent
    storage = MetaStorage(default_device() if device is None else device, nbytes)
    return Tensor(View(storage, 0, element, extents, row_major_strides(extents)))
