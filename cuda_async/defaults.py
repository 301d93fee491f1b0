"""The defaults that `with device:` and `with stream:` set, as context variables.

A context variable and not a global: tasks and threads do not see each other's choice.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_async.device import Device
    from cuda_async.stream import Stream

__all__ = ("DeviceToken", "StreamToken", "current_device", "current_stream")

DeviceToken = Token["Device | None"]
StreamToken = Token["Stream | None"]

current_device: ContextVar[Device | None] = ContextVar("cuda_async_device", default=None)
current_stream: ContextVar[Stream | None] = ContextVar("cuda_async_stream", default=None)
