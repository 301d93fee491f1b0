"""Ctrl-C at any place: raises `KeyboardInterrupt` where CPython would let a signal's handler run.

That is at the entry of a function, where a generator goes on, behind the call of a C function, and where a loop jumps
back; never between. `sys.monitoring` tells of each, and what its callback raises is raised there. Of the runtime's own
frames and of `threading`'s below them; not of finalizers, in which Python drops whatever is raised, nor of a simulated
device's steps, which no signal can end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import cuda_async
import cutile

__all__ = ("interrupted",)

_FOLDERS = (str(Path(cuda_async.__file__).parent), str(Path(cutile.__file__).parent), threading.__file__)
_TOOL = 4


def interrupted(action: Callable[[], object], number: int) -> str | None:
    """Do something, and interrupt it at the place of this number, counted from 0.

    Returns:
        The place, as file, line and function; None where there are fewer.
    """
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009  # from Python 3.12 on
    events = monitoring.events
    thread, left, place = threading.get_ident(), number, None

    def pass_by(code: CodeType, *_: object) -> None:
        nonlocal left, place
        if place is not None or threading.get_ident() != thread:
            return
        if not code.co_filename.startswith(_FOLDERS) or _is_exempt():
            return
        left -= 1
        if left < 0:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}"
            raise KeyboardInterrupt

    def jump(code: CodeType, start: int, target: int) -> None:
        if target < start:
            pass_by(code)

    monitoring.use_tool_id(_TOOL, "interrupts")
    try:
        for event in (events.PY_START, events.PY_RESUME, events.C_RETURN):
            monitoring.register_callback(_TOOL, event, pass_by)
        monitoring.register_callback(_TOOL, events.JUMP, jump)
        monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME | events.CALL | events.JUMP)
        try:
            action()
        finally:
            monitoring.set_events(_TOOL, 0)
    except KeyboardInterrupt:
        if place is None:
            raise
    finally:
        monitoring.free_tool_id(_TOOL)
    return place


def _is_exempt() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "step" and code.co_filename.endswith("virtual.py")):
            return True
        frame = frame.f_back
    return False
