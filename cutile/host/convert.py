"""`convert`: the elements of a tensor as another dtype, in a new tensor."""

from __future__ import annotations

from collections.abc import Callable

from cuda_async import DeviceOp, ExecutionContext, Use
from cutile.conversion import convert as converted
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentTypeError
from cutile.host.checks import DTypeSpec, number_type
from cutile.host.memory import Array, array_of, for_rows, runs_host_code
from cutile.host.tensor import Tensor
from cutile.host.transfer import fresh
from cutile.launch.views import View

__all__ = ("convert",)


def convert(src: Tensor, dtype: DTypeSpec) -> DeviceOp[Tensor]:
    """An op that yields the elements as another dtype: a new tensor of the same shape, contiguous.

    As `convert_tile` in a kernel: floats round to nearest even, a float to an integer truncates and saturates (NaN
    gives 0), integers wrap, to bool is `!= 0`, and the floats of 8 and 4 bits saturate.

    Args:
        src: a tensor or view; lent to the op.
        dtype: the element type of the result.

    Raises:
        ArgumentTypeError: `src` is no tensor, or `dtype` no element type.
        ArgumentError: on a GPU, `src` is not contiguous and has more than 3 axes.
        OwnershipError: `src` is held, or an operation that has not finished writes it.

    Example:
        >>> from cutile import api, i32
        >>> api.convert(api.linspace(0, 3, 4).sync(), i32).to_numpy().sync()
        array([0, 1, 2, 3], dtype=int32)
    """
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(
            f"convert: src: expected a tensor, got {type(src).__name__}; an op's result is converted in its "
            "then(lambda x: api.convert(x, dtype))"
        )
    chosen = number_type(dtype, "convert")
    view = src.__kernel_input__()
    number_type(view.dtype, "convert: src")
    if runs_host_code(view.storage.device):
        return _Convert(view, chosen)
    from cutile.host.kernels import convert_to_new

    return convert_to_new(view, chosen, Tensor)


class _Convert(DeviceOp[Tensor]):
    """Elements as another dtype, by the workers of the CPU."""

    __slots__ = ("_dtype", "_view")

    def __init__(self, view: View, dtype: DTypeLike) -> None:
        super().__init__()
        self._view = view
        self._dtype = dtype
        self.lend(Use("src", view.storage, False, *view.byte_range))

    def label(self) -> str:
        return f"convert to {self._dtype.name}"

    def execute(self, context: ExecutionContext) -> Tensor:
        view, stream = self._view, context.stream
        result = fresh(context, self._dtype, view.shape)
        view.storage.use(stream, write=False)
        result.storage.use(stream, write=True)
        destination = array_of(result)
        for_rows(stream, view.shape, destination.nbytes, _cast(destination, array_of(view), view.dtype, self._dtype))
        return Tensor(result)


def _cast(destination: Array, source: Array, source_type: DTypeLike, dtype: DTypeLike) -> Callable[[int, int], None]:
    """A body that converts rows."""

    def cast(start: int, stop: int) -> None:
        rows = ... if destination.ndim == 0 else slice(start, stop)
        destination[rows] = converted(source[rows], source_type, dtype)

    return cast
