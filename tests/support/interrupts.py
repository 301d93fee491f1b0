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

__all__ = ("crossed", "handled", "interleaved", "interrupted")

_FOLDERS = (str(Path(cuda_async.__file__).parent), str(Path(cutile.__file__).parent), threading.__file__)
_TOOL = 4
_TURN_S = 0.02  # seconds that another thread has before it is taken to wait for a lock; it needs a tenth of them


def interrupted(action: Callable[[], object], number: int) -> str | None:
    """Do something, and interrupt it at the place of this number, counted from 0.

    Returns:
        The place, as file, line and function; None where there are fewer.
    """
    places: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        _stop_at(action, number, interrupt, places)
    except KeyboardInterrupt:
        if not places:
            raise
    return places[0] if places else None


def handled(action: Callable[[], object], number: int, handler: Callable[[], object]) -> str | None:
    """Do something, and call a signal's handler at the place of this number, on the same thread.

    Returns:
        The place; None where there are fewer.
    """
    places: list[str] = []
    _stop_at(action, number, handler, places)
    return places[0] if places else None


def interleaved(action: Callable[[], object], number: int, other: Callable[[], object]) -> str | None:
    """Do something, and have another thread do something else at the place of this number.

    These are the places at which CPython lets another thread go on, too. This thread goes on when the other one has
    finished, or when it has had its turn: it may wait for a lock that this one holds. Both have finished at the end.

    Returns:
        The place; None where there are fewer.
    """
    places: list[str] = []
    thread = threading.Thread(target=other)

    def let_go() -> None:
        thread.start()
        thread.join(_TURN_S)

    _stop_at(action, number, let_go, places)
    if places:
        thread.join()
    return places[0] if places else None


def crossed(
    action: Callable[[], object],
    number: int,
    other: Callable[[], object],
    other_number: int,
    *,
    turn_s: float = _TURN_S,
) -> tuple[str | None, str | None]:
    """Do something, and stop it at a place; another thread goes to a place of its own, and this one to its end.

    Then the other one goes to its end. Over all pairs of places these are all orders in which two threads change twice.
    A thread that waits for the other one's lock lets it go on after its turn. Both have finished at the end.

    Args:
        action: what this thread does.
        number: the place at which the other thread begins, counted from 0.
        other: what the other thread does.
        other_number: the place at which it stops.
        turn_s: seconds of a turn.

    Returns:
        The places of the two; None where there are fewer.
    """
    places: list[str] = []
    other_places: list[str] = []
    stopped, over = threading.Event(), threading.Event()
    stops: dict[int, _Stop] = {}

    def stop() -> None:
        stopped.set()
        over.wait(turn_s)

    def run_other() -> None:
        stops[threading.get_ident()] = _Stop(other_number, stop, other_places)
        try:
            other()
        finally:
            stopped.set()

    thread = threading.Thread(target=run_other)

    def let_go() -> None:
        thread.start()
        stopped.wait(turn_s)

    stops[threading.get_ident()] = _Stop(number, let_go, places)
    try:
        _stop_threads(action, stops, _FOLDERS[:2])
    finally:
        over.set()
    if places:
        thread.join()
    return (places[0] if places else None, other_places[0] if other_places else None)


class _Stop:
    """The place at which a thread stops, and what it does there."""

    def __init__(self, number: int, do: Callable[[], object], places: list[str]) -> None:
        self.left = number
        self.do = do
        self.places = places


def _stop_at(action: Callable[[], object], number: int, do: Callable[[], object], places: list[str]) -> None:
    """Do something, and call `do` at the place of this number, which is appended to `places`."""
    _stop_threads(action, {threading.get_ident(): _Stop(number, do, places)}, _FOLDERS)


def _stop_threads(action: Callable[[], object], stops: dict[int, _Stop], folders: tuple[str, ...]) -> None:
    """As `_stop_at`, for several threads."""
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009  # from Python 3.12 on
    events = monitoring.events

    def pass_by(code: CodeType, *_: object) -> None:
        place = stops.get(threading.get_ident())
        if place is None or place.places:
            return
        if not code.co_filename.startswith(folders) or _is_exempt():
            return
        place.left -= 1
        if place.left < 0:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            place.places.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}")
            place.do()

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
    finally:
        monitoring.free_tool_id(_TOOL)


def _is_exempt() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "step" and code.co_filename.endswith("virtual.py")):
            return True
        frame = frame.f_back
    return False
