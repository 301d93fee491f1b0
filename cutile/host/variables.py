"""`Global`: a variable of the device, which kernels and the host read and set."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, download
from cuda_async.core.pending import Pending
from cutile.host.creation import as_element
from cutile.host.shapes import element_type
from cutile.language.variable import DeviceVariable
from cutile.launch.variables import fill_variable, place_of

__all__ = ("Global",)


class Global(DeviceVariable):
    """One element in the memory of each device, kept from launch to launch.

    Define it at the top of a module. Launches that use it run one after another, also on different streams. Each device
    has an element of its own; so has each process.

    Args:
        dtype: the element type, or its name.
        initial: its value before the first use on a device.

    Raises:
        ArgumentTypeError: `dtype` is no element type, or `initial` no number.
        ArgumentError: `dtype` cannot hold `initial`.

    Example:
        >>> served = ct.Global(ct.i32, 5)
        >>> @ct.entry
        ... def serve(y: ct.Mut):
        ...     ticket, _ = served.atomic_add(1)
        ...     y.store(ct.broadcast(ticket, y.shape))
        >>> y = ct.api.zeros((3,), ct.i32).sync()
        >>> _ = serve(y.mut.partition((1,))).sync()
        >>> int(served.read().sync()), sorted(y.to_numpy().sync().tolist())
        (8, [5, 6, 7])
        >>> served.reset().sync()
        >>> int(served.read().sync())
        5
    """

    def __init__(self, dtype: Any, initial: float = 0) -> None:
        super().__init__(element_type(dtype, "Global"), initial)
        as_element(initial, self.dtype, "Global")

    def read(self) -> DeviceOp[np.ndarray[Any, Any]]:
        """An op that yields its value on the op's device, as an array of shape ()."""
        return _Read(self)

    def write(self, value: float) -> DeviceOp[None]:
        """An op that sets it on the op's device.

        Args:
            value: a number that its dtype can hold; a floating-point dtype rounds it.

        Raises:
            ArgumentTypeError: `value` is no number.
            ArgumentError: its dtype cannot hold `value`.
        """
        as_element(value, self.dtype, "Global.write")
        return _Write(self, value)

    def reset(self) -> DeviceOp[None]:
        """An op that sets it to its initial value on the op's device."""
        return _Write(self, self.initial)

    def __repr__(self) -> str:
        return f"Global({self.dtype}, {self.initial!r})"


class _Read(DeviceOp[np.ndarray[Any, Any]]):
    """A copy of a variable to the host."""

    __slots__ = ("_variable",)

    def __init__(self, variable: DeviceVariable) -> None:
        self._variable = variable
        super().__init__()

    def label(self) -> str:
        return "Global.read"

    def execute(self, context: ExecutionContext) -> np.ndarray[Any, Any]:
        storage = place_of(self._variable, context.stream)
        result = np.empty((), self._variable.dtype.numpy)
        pending = Pending[np.ndarray[Any, Any]]("the value of a variable", self.site)
        download(context, storage, result.ctypes.data, result.nbytes, keep=result)
        context.on_complete(lambda: pending.set(result))
        return cast("np.ndarray[Any, Any]", pending)  # the run puts the array in its place


class _Write(DeviceOp[None]):
    """Setting a variable."""

    __slots__ = ("_value", "_variable")

    has_effects = True

    def __init__(self, variable: DeviceVariable, value: Any) -> None:
        self._variable = variable
        self._value = value
        super().__init__()

    def label(self) -> str:
        return "Global.write"

    def execute(self, context: ExecutionContext) -> None:
        stream = context.stream
        fill_variable(place_of(self._variable, stream), stream, self._variable, self._value)
