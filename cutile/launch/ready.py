"""`Ready`: a specialization compiled for a device, with everything that a launch of it evaluates and calls."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cuda_async import ContextError
from cutile.launch.checks import condition_of, verify
from cutile.launch.division import Division, division_of
from cutile.launch.numbers import expression, number_of, numbers_of
from cutile.launch.target import target_of
from cutile.launch.variables import use_variables

if TYPE_CHECKING:
    from cuda_async import Device, Storage, Stream
    from cutile.backend.interface import Grid, Packed
    from cutile.compile.kernels import KernelCache, Plan
    from cutile.launch.arguments import Checked
    from cutile.launch.form import ViewUse

Enqueue = Callable[["Sequence[Checked]", "Sequence[ViewUse]", "Grid", "Stream"], None]
"""`enqueue(checked, uses, grid, stream)`: verify what the arguments have to fulfil, order the memory, launch."""


class Ready:
    """What is looked up once and then called by each launch.

    Attributes:
        unchanged: whether the names that were compiled in still mean the same.
        enqueue: enqueues a launch; see `Enqueue`.
    """

    __slots__ = (
        "_compiled", "_condition", "_divided", "_division", "_kernel", "_loaded", "_numbers", "_packed", "_variables",
        "enqueue", "unchanged",
    )  # fmt: skip

    def __init__(self, plan: Plan, kernel: KernelCache, stream: Stream, backend: str | None) -> None:
        compiled = self._compiled = plan.compiled(target_of(stream.device, backend))
        self._kernel = kernel
        self.unchanged = compiled.program.captures.watch()
        self._condition = condition_of(compiled, kernel.signature.names)
        self._variables = compiled.program.variables
        self._numbers = numbers_of(compiled)
        self._loaded = compiled.loaded
        packed = self._packed = None if self._variables else self._loaded.packed(stream)
        self.enqueue: Enqueue = self._enqueue if packed is None else self._straight(packed, stream.device)
        self._divided: dict[int, Ready] = {}
        self._division = division_of(compiled)
        if self._division is not None:

            def make(pieces: int, stream: Stream) -> Ready:
                return Ready(plan.divided(pieces), kernel, stream, backend)

            self.enqueue = _whole_or_divided(self.enqueue, self._division, self._divided, make)

    def compiles_nothing(self, checked: Sequence[Checked], grid: Grid) -> bool:
        """Whether all that a launch takes is there: also the kernel for its pieces, where it divides its turns."""
        division = self._division
        if division is None:
            return True
        pieces = division.pieces(checked, grid)
        divided = self._divided.get(pieces)
        return pieces == 1 or (divided is not None and divided.unchanged())

    def repeated(self, checked: Sequence[Checked], grid: Grid) -> Callable[..., None] | None:
        """Make what launches with these arguments again, but at other addresses and with other numbers: for saxpy

            def again(stream, v0, v1, v2):
                try:
                    memory, where = local.memory
                except AttributeError:
                    memory, where = local.memory = make_memory()
                pack(memory, 0, v0, 1024, v1, v2, 1024, 4, 1, 1)
                launch(stream.driver, blocks, where)
                stream.sequence += 1
                if key not in stream.held:
                    stream.hold(code)

        It takes the addresses of tensors and the plain numbers of scalars, and orders nothing: whoever calls it knows
        that the memory is on this device, and that the stream is the one that its users share. None where a launch is
        more than these numbers, or where others of them have to be verified.
        """
        packed, blocks = self._packed, grid[0] * grid[1] * grid[2]
        if packed is None or blocks > packed.most:
            return None
        scalars = any(each.kind not in _VIEWS for each in self._kernel.signature.parameters)
        if scalars and not (self._condition is None and self._division is None):
            return None
        if self._division is not None and self._division.pieces(checked, grid) != 1:
            return None
        values = [f"v{i}" for i in range(len(checked))]
        fixed = [
            f"v{each.argument}" if each.kind in ("pointer", "scalar") else repr(number_of(each)(checked, grid))
            for each in self._compiled.executable.parameters
        ]
        lines = [
            f"def again({', '.join(['stream', *values])}):",
            "try: memory, where = local.memory",
            "except AttributeError: memory, where = local.memory = make_memory()",
            f"pack(memory, 0, {', '.join(fixed)})",
            f"launch(stream.driver, {blocks}, where)",
            "stream.sequence += 1",
            "if key not in stream.held: stream.hold(code)",
        ]
        scope = _scope(packed)
        exec("\n    ".join(lines), scope)
        return scope["again"]

    def _enqueue(self, checked: Sequence[Checked], uses: Sequence[ViewUse], grid: Grid, stream: Stream) -> None:
        """Enqueue a launch of any kernel."""
        self._verify(checked, grid)
        check_devices(self._kernel.signature.name, uses, stream.device)
        for _, storage, write, _, _ in uses:
            storage.order(stream, write)
        if self._variables:
            checked = [*checked, *(each.address for each in use_variables(self._variables, stream))]
        self._loaded.launch(grid, self._numbers(checked, grid), stream)
        stream.hold(self._loaded)

    def _verify(self, checked: Sequence[Checked], grid: Grid) -> None:
        if self._condition is not None and not self._condition(checked, grid):
            verify(self._compiled, self._kernel.signature.names, checked, grid)  # which says what fails

    def _straight(self, packed: Packed, device: Device) -> Enqueue:
        """Make the `enqueue` of a kernel whose launch is numbers in memory and one call: for saxpy

            def enqueue(c, uses, g, stream):
                blocks = g[0] * g[1] * g[2]
                if len(uses) != 2 or blocks > most:
                    return in_general(c, uses, g, stream)
                c0, c1, c2, = c
                s0 = c0.storage
                s2 = c2.storage
                if s0.device is not device or s2.device is not device:
                    check_devices(name, uses, device)
                s0.order(stream, True)
                s2.order(stream, False)
                try:
                    memory, where = local.memory
                except AttributeError:
                    memory, where = local.memory = make_memory()
                pack(memory, 0, c0.address, c0.shape[0], c1, c2.address, c2.shape[0], g[0], g[1], g[2])
                launch(stream.driver, blocks, where)
                stream.sequence += 1
                if key not in stream.held:
                    stream.hold(code)

        It does what `_enqueue` does; what is saved is what walking a description of it costs.
        """
        signature = self._kernel.signature
        tensors = [
            (f"s{i}", i, each.kind == "mut") for i, each in enumerate(signature.parameters) if each.kind in _VIEWS
        ]
        numbers = [re.sub(r"c\[(\d+)\]", r"c\1", expression(each)) for each in self._compiled.executable.parameters]
        elsewhere = " or ".join(f"{storage}.device is not device" for storage, _, _ in tensors)
        lines = [
            "def enqueue(c, uses, g, stream):",
            "blocks = g[0] * g[1] * g[2]",
            f"if len(uses) != {len(tensors)} or blocks > most: return in_general(c, uses, g, stream)",
            *(["verify(c, g)"] if self._condition is not None else []),
            *([f"{''.join(f'c{i}, ' for i in range(len(signature.parameters)))}= c"] if signature.parameters else []),
            *(f"{storage} = c{i}.storage" for storage, i, _ in tensors),
            *([f"if {elsewhere}: check_devices(name, uses, device)"] if elsewhere else []),
            *(f"{storage}.order(stream, {write})" for storage, _, write in tensors),
            "try: memory, where = local.memory",
            "except AttributeError: memory, where = local.memory = make_memory()",
            f"pack(memory, 0, {', '.join(numbers)})",
            "launch(stream.driver, blocks, where)",
            "stream.sequence += 1",
            "if key not in stream.held: stream.hold(code)",
        ]
        scope: dict[str, Any] = {
            "in_general": self._enqueue,
            "verify": self._verify,
            "device": device,
            "check_devices": check_devices,
            "name": signature.name,
            "most": packed.most,
            **_scope(packed),
        }
        exec("\n    ".join(lines), scope)
        return scope["enqueue"]


def _scope(packed: Packed) -> dict[str, Any]:
    """What functions that launch a packed kernel have at hand."""
    return {
        "local": threading.local(),
        "make_memory": packed.memory,
        "code": packed.code,
        "key": id(packed.code),
        "pack": packed.pack,
        "launch": packed.launch,
    }


def _whole_or_divided(
    whole: Enqueue, division: Division, divided: dict[int, Ready], make: Callable[[int, Stream], Ready]
) -> Enqueue:
    """Make the `enqueue` of a kernel that launches of few tile blocks divide: these take the kernel for their pieces.

    Args:
        whole: the `enqueue` of all others.
        division: says which is which.
        divided: what launches these, by their pieces; is filled.
        make: makes what launches a kernel of so many pieces, on the device of a stream.
    """
    most = division.most

    def enqueue(checked: Sequence[Checked], uses: Sequence[ViewUse], grid: Grid, stream: Stream) -> None:
        pieces = division.pieces(checked, grid) if grid[0] * grid[1] * grid[2] <= most else 1
        if pieces == 1:
            return whole(checked, uses, grid, stream)
        ready = divided.get(pieces)
        if ready is None or not ready.unchanged():
            ready = divided[pieces] = make(pieces, stream)
        return ready.enqueue(checked, uses, grid, stream)

    return enqueue


_VIEWS = ("tensor", "mut")


def check_devices(kernel: str, uses: Sequence[tuple[str, Storage, bool, int, int]], device: Device) -> None:
    """Refuse arguments on another device than the launch.

    Raises:
        ContextError: names the argument.
    """
    for argument, storage, *_ in uses:
        if storage.device is not device:
            raise ContextError(
                device.ordinal,
                f"{kernel}: argument {argument!r} is on {storage.device}, the launch on {device}; "
                "run the op on a stream of that device, or copy the argument",
            )
