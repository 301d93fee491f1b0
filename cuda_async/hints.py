"""Remedies for names of other libraries, and for operations used as results.

An example of the latter is `api.zeros((3,)).shape`, where `.sync()` was forgotten. Type checkers do not see the
methods of `NotItsResult`, and so refuse the same lines. An operation equals only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

from cuda_async.errors import ArgumentTypeError, closest
from cuda_async.site import format_site

__all__ = ("RUNTIME", "NotItsResult", "remedy_for")

_TENSORS = "cutile.api.{}, whose operation yields a tensor"
_ON = "stream = Device(0).new_stream(), and op.sync_on(stream)"
_MEMORY = "device.memory_info(), or device.default_mem_pool().mem_stats()"
_POOL = "device.default_mem_pool()"
_WAITED = "op.sync(), await op, stream.synchronize() or device.synchronize()"
_CHOSEN = "with Device(1): ..., or set_default_device(Device(1))"
_GRAPH = "op.graph(), whose result is a cuda_async.CudaGraph"

RUNTIME: dict[str, str] = {
    "CUDAGraph": _GRAPH,
    "Graph": _GRAPH,
    "create_task": "await op, or asyncio.create_task of a function that awaits it",
    "cuda": "the name without it: cuda_async.Device, cuda_async.device_count()",
    "current_device": "default_device()",
    "current_stream": _ON,
    "default_stream": _ON,
    "device": "Device(0), Device('cuda:1') or Device.host()",
    "empty_cache": "device.default_mem_pool().trim()",
    "event": "device.new_event()",
    "free": "nothing: memory is given back when nobody holds it",
    "gather": "zip(x, y), which yields a tuple",
    "get_current_stream": _ON,
    "get_default_memory_pool": _POOL,
    "get_device": "default_device()",
    "get_device_name": "device.name",
    "is_available": "device_count() > 0",
    "jit": "@cutile.entry",
    "malloc": _TENSORS.format("empty(shape, dtype)"),
    "max_memory_allocated": _MEMORY,
    "mem_get_info": "device.memory_info()",
    "memory_allocated": _MEMORY,
    "run": "op.sync(), op.sync_on(stream) or await op",
    "select_device": _CHOSEN,
    "set_device": _CHOSEN,
    "stream": _ON,
    "synchronise": _WAITED,
    "synchronize": _WAITED,
    "wait": _WAITED,
    **{
        name: _TENSORS.format(words)
        for name, words in {
            "arange": "arange(length, dtype)",
            "array": "from_numpy(array)",
            "asarray": "from_numpy(array)",
            "copy": "dup(tensor)",
            "from_dlpack": "from_dlpack(tensor)",
            "from_numpy": "from_numpy(array)",
            "full": "full(value, shape, dtype)",
            "memcpy": "memcpy(destination, source)",
            "ones": "ones(shape, dtype)",
            "tensor": "from_numpy(array)",
            "to_device": "from_numpy(array)",
            "zeros": "zeros(shape, dtype)",
        }.items()
    },
}
"""Words for the end of an error, by a name of another library's runtime: what to write instead."""


def remedy_for(name: str, public: Iterable[str]) -> str:
    """The end of an error: what to write for a name that a module lacks.

    Empty if nothing is near.

    >>> remedy_for("get_device", ["Device"]), remedy_for("Devise", ["Device"])
    ('; write default_device()', "; did you mean 'Device'?")
    """
    if name in RUNTIME:
        return f"; write {RUNTIME[name]}"
    near = closest(name, public)
    return f"; did you mean {near[0]!r}?" if near else ""


_RUN_IT = ", being work that yields a result when it is run: run it (.sync(), await) and use that"
_READERS = frozenset({"cpu", "item", "numpy", "tolist"})
"""Libraries' names for reading values on the host. In a function given to `map` there are no values to read yet."""
_COMPUTED = "takes no part in arithmetic and comparisons"


def _words_for(op: Any) -> str:
    return f"the operation {op.label()} made at {format_site(op.site)}"


def _refusal(what: str, more: str = "") -> Callable[..., NoReturn]:
    """A method that raises: the message is `what`, the remedy, and `more`."""

    def refuse(op: Any, *_: object, **__: object) -> NoReturn:
        raise ArgumentTypeError(f"{_words_for(op)} {what}{_RUN_IT}{more}")

    return refuse


class NotItsResult:
    """The methods by which a `DeviceOp` refuses to be used as its result."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # Protocols look for names with an underscore; `site` is needed by the message itself.
            if name.startswith("_") or name == "site":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            remedy = f", or .map(lambda result: result.{name})"
            if name in _READERS:
                remedy = ", or op.to_numpy().sync()"
            if name == "add_done_callback":  # asyncio.wait, and functions like it, ask for a future
                remedy = "; asyncio takes op.into_future()"
            raise AttributeError(f"{_words_for(self)} has no attribute {name!r}{_RUN_IT}{remedy}", name=name, obj=self)

        def __getitem__(self, item: object) -> NoReturn:
            raise ArgumentTypeError(f"{_words_for(self)} has no items{_RUN_IT}, or .first(), .last() and .unzip()")

        __iter__ = __contains__ = __setitem__ = _refusal("has no items", ", or .first(), .last() and .unzip()")
        __len__ = _refusal("has no length", ", or its .arity where it yields a tuple")
        __bool__ = _refusal("is neither true nor false", "; to ask whether there is one, write `op is not None`")
        __float__ = __int__ = __complex__ = __round__ = __neg__ = __abs__ = __invert__ = _refusal("is no number")
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refusal(_COMPUTED)
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refusal(_COMPUTED)
        __divmod__ = __rdivmod__ = __matmul__ = __rmatmul__ = _refusal(_COMPUTED)
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refusal(_COMPUTED)
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refusal(_COMPUTED)
        __lt__ = __le__ = __gt__ = __ge__ = _refusal(_COMPUTED)
        __array__ = _refusal("is no array", ": op.to_numpy().sync()")
        __array_ufunc__ = __array_function__ = _refusal("is no array", ": op.to_numpy().sync()")
        __reduce_ex__ = _refusal("is neither pickled nor copied", ", or build it twice")

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Number) or (hasattr(other, "__array__") and not isinstance(other, NotItsResult)):
                raise ArgumentTypeError(f"{_words_for(self)} {_COMPUTED}{_RUN_IT}")
            return NotImplemented  # Python then compares identities

        __hash__ = object.__hash__
