"""The memory of device variables: one element on each device.

The first launch or host access on a device makes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from cuda_async import Device, Storage, Stream
from cuda_async.locks import new_lock
from cutile.conversion import element
from cutile.language.variable import DeviceVariable

_WORD = 4  # bytes; the longest pattern of `Stream.fill`

_places: weakref.WeakKeyDictionary[DeviceVariable, dict[Device, Storage]] = weakref.WeakKeyDictionary()
_lock = new_lock()


def fill_variable(storage: Storage, stream: Stream, variable: DeviceVariable, value: Any) -> None:
    """Enqueue setting a variable to `value`, a number that its dtype holds or rounds."""
    data = element(value, variable.dtype).tobytes()
    storage.use(stream, write=True)
    for start in range(0, len(data), _WORD):
        word = data[start : start + _WORD]
        stream.fill(storage.address + start, len(word), word)


def place_of(variable: DeviceVariable, stream: Stream) -> Storage:
    """A variable's memory on a stream's device; new memory gets the initial value."""
    with _lock:
        places = _places.setdefault(variable, {})
        storage = places.get(stream.device)
        if storage is None:
            # A stream of its own. On `stream` a capture would record the fill, and each replay set the variable back;
            # and behind failed work the CPU would leave the fill out, and the initial value would be lost.
            home = stream.device.new_stream()
            storage = Storage.allocate(home, variable.dtype.bits // 8)
            fill_variable(storage, home, variable, variable.initial)
            places[stream.device] = storage  # last: memory that could not be filled is not kept
        return storage


def use_variables(variables: Sequence[DeviceVariable], stream: Stream) -> list[Storage]:
    """The memory of a kernel's variables.

    Work on the stream is ordered behind the memory's other users.
    """
    places = [place_of(each, stream) for each in variables]
    for each in places:
        each.use(stream, write=True)
    return places
