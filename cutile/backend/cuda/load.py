"""From an `Executable` to a kernel that can be launched.

Arguments are packed into one block of memory, from which the driver copies them. There is no Numba here, and no CUDA
binding: the stream loads and launches.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from cuda_async.locks import new_lock
from cutile.backend.common.abi import failure
from cutile.backend.cuda.grids import (
    MAX_GRID_BLOCKS,
    GpuStream,
    PersistentGrid,
    Report,
    SplitKVariants,
    Workspace,
    launch_blocks,
)
from cutile.backend.cuda.tensor_map import Encoded, TensorMaps
from cutile.backend.interface import Argument, Executable, Grid, Loaded, Packed, Parameter, Place
from cutile.conversion import bits_of
from cutile.dtypes import STORAGE_DTYPES, DTypeLike, bf16, f16

# Formats of `struct` by dtype. A float that `struct` lacks is packed as its bits (`_as_bits`). So is f16: `struct`
# refuses numbers that round to infinity.
_CODES: dict[str, str] = {
    "bool": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f16": "H",
    "bf16": "H",
    "f32": "f",
    "f64": "d",
} | {each.name: "I" if each.bits == 32 else "B" for each in STORAGE_DTYPES}


def _code(parameter: Parameter) -> str:
    """The format of a parameter's packed value.

    A tensor map is not packed. Its address stands in the array of addresses (`_point`), and a 0 among the values.
    """
    return "Q" if parameter.kind in ("pointer", "workspace", "report", "tensor_map") else _CODES[parameter.dtype.name]


def _as_bits(dtype: DTypeLike) -> bool:
    """Whether a value is packed as the integer with its bits."""
    return dtype in (f16, bf16) or dtype.kind == "storage"


Pointed = dict[int, tuple[Place, Encoded]]
"""The tensor maps that a launch points to, by the parameter's position, each with its tensor's place."""


class CudaLoaded(Loaded[GpuStream]):
    """A kernel on any number of devices.

    Its image is loaded on a device at the first launch there.

    Args:
        executable: the machine code, its parameters and facts.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._parameters = executable.parameters
        scalars = [(i, each) for i, each in enumerate(self._parameters) if each.kind == "scalar"]
        self._maps = [(i, TensorMaps(each)) for i, each in enumerate(self._parameters) if each.kind == "tensor_map"]
        self._workspaces = [i for i, each in enumerate(self._parameters) if each.kind == "workspace"]
        self._by_bits = [i for i, each in scalars if _as_bits(each.dtype)]
        # "=": sizes are the same on each machine, and `struct` adds no alignment to the padding of 8 bytes.
        self._pack = struct.Struct("=" + "".join(_padded(_code(each)) for each in self._parameters)).pack_into
        self._block = (int(executable.facts["threads"]), 1, 1)
        self._shared = int(executable.facts["shared_bytes"])
        self._grid = PersistentGrid(executable.facts)
        self._reports = [i for i, each in enumerate(self._parameters) if each.kind == "report"]
        self._failure = partial(failure, executable.facts.get("failures", ()))
        division = executable.facts.get("division")
        self._variants = None if division is None else SplitKVariants(*division)
        # `PersistentGrid.limit` by function and SM margin. No lock: threads that compute it at once get one result.
        self._limits: dict[Any, int] = {}
        self._functions: dict[Any, Any] = {}  # by device; written under the lock
        self._lock = new_lock()
        self._local = threading.local()

    @property
    def variants(self) -> SplitKVariants | None:
        """The kernels with split-K, which launches of few tile blocks take, or None."""
        return self._variants

    def launch(self, grid: Grid, arguments: Sequence[Argument], stream: GpuStream) -> None:
        """Enqueue the kernel over `grid`; never wait.

        Raises:
            LaunchError: the grid has more blocks than a launch may have.
        """
        blocks = launch_blocks(grid)
        function = self._function(stream)
        if not self._grid.plain:
            # `_workspace` is not read: it holds the memory until the launch is enqueued.
            blocks, arguments, _workspace = self._shape(function, blocks, arguments, stream)
        memory, addresses, pointer, pointed = self._memory()
        if self._maps:
            arguments = self._point(arguments, addresses, pointed, stream)
        report = None
        if self._reports:
            report = stream.report(self._failure)
            arguments = self._with_report(arguments, report)
        self._pack(memory, 0, *(self._encode(arguments) if self._by_bits else arguments))
        stream.launch_function(function, (blocks, 1, 1), self._block, self._shared, pointer)
        if report is not None:
            report.expect()  # after the launch: the report is read when the stream's work so far is over

    def packed(self, stream: GpuStream) -> Packed | None:
        """The parts of a launch on the stream's device.

        They are for a launcher that only packs numbers and calls the driver. None for a kernel that needs more: tensor
        maps, a workspace, a report, or values that are packed as their bits.
        """
        if self._maps or self._by_bits or self._reports or not self._grid.plain:
            return None
        launch = stream.launcher(self._function(stream), self._block, self._shared)
        return Packed(self._pack, launch, MAX_GRID_BLOCKS, self._packed_memory, self)

    def prepare(self, grid: Grid, arguments: Sequence[Argument], stream: GpuStream) -> CudaPreparedLaunch:
        """A launch that is repeated, at the cost of the driver's call.

        Raises:
            LaunchError: the grid has more blocks than a launch may have.
        """
        function = self._function(stream)
        blocks, arguments, workspace = self._shape(function, launch_blocks(grid), arguments, stream)
        memory, addresses = _allocate(len(self._parameters))
        held: Pointed = {}
        arguments = self._point(arguments, addresses, held, stream)
        report = stream.report(self._failure, lasting=True) if self._reports else None
        if report is not None:
            arguments = self._with_report(arguments, report)
        self._pack(memory, 0, *(self._encode(arguments) if self._by_bits else arguments))
        pointer = ctypes.addressof(addresses)
        launch = stream.prepare_launch(function, (blocks, 1, 1), self._block, self._shared, pointer)
        if report is not None:
            launch = _both(launch, report.expect)
        return CudaPreparedLaunch(
            launch, memory, addresses, self._parameters, dict(self._maps), held, workspace, stream
        )

    def _shape(
        self, function: Any, blocks: int, arguments: Sequence[Argument], stream: GpuStream
    ) -> tuple[int, Sequence[Argument], Workspace | None]:
        """The thread blocks, the arguments with a workspace's address, the workspace.

        The caller has to hold the workspace until the launch is enqueued.
        """
        key = function, stream.sm_margin
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = self._grid.limit(function, stream)
        blocks = self._grid.blocks(blocks, limit)
        nbytes = self._grid.workspace(blocks)
        if not nbytes:
            return blocks, arguments, None
        workspace = stream.workspace(nbytes)
        plain = list(arguments)
        for i in self._workspaces:
            plain[i] = workspace.address
        return blocks, plain, workspace

    def _point(
        self, arguments: Sequence[Argument], addresses: Any, pointed: Pointed, stream: GpuStream
    ) -> list[Argument]:
        """Point to the tensor maps, and return the arguments with 0 in place of them.

        Args:
            arguments: the launch's arguments, with a `Place` for each tensor map.
            addresses: the array of the values' addresses, which is updated.
            pointed: the tensor maps that `addresses` points to. It is updated, and keeps them alive.
            stream: the stream, which encodes new tensor maps.
        """
        plain = list(arguments)
        for i, maps in self._maps:
            place = cast("Place", plain[i])
            plain[i] = 0
            if i not in pointed or pointed[i][0] != place:
                tensor_map = maps.get(place, stream)
                pointed[i] = place, tensor_map
                addresses[i] = tensor_map.address
        return plain

    def _with_report(self, arguments: Sequence[Argument], report: Report) -> list[Argument]:
        """The arguments with the report's address."""
        plain = list(arguments)
        for i in self._reports:
            plain[i] = report.address
        return plain

    def _encode(self, arguments: Sequence[Argument]) -> list[Argument]:
        """The arguments, with values as bits where `struct` has no format for their dtype."""
        plain = list(arguments)
        for i in self._by_bits:
            plain[i] = bits_of(cast("float", plain[i]), self._parameters[i].dtype)
        return plain

    def _function(self, stream: GpuStream) -> Any:
        """The function on the stream's device, loaded once."""
        device = stream.device
        function = self._functions.get(device)
        if function is None:
            with self._lock:
                function = self._functions.get(device)  # another thread may have loaded it meanwhile
                if function is None:
                    code, facts = self._executable, self._executable.facts
                    early = facts.get("early", "never")
                    function = stream.load_function(code.image, code.entry, self._shared, early=early)
                    if facts.get("speaks", False):
                        stream.expect_output()
                    self._functions[device] = function  # last: from here on other threads may launch the function
        return function

    def _memory(self) -> tuple[Any, Any, int, Pointed]:
        """This thread's memory for a launch, which the thread's next launch may overwrite.

        The driver copies the values in the launch's call.

        Returns:
            The packed values; the array of their addresses; its address, which the driver takes; the tensor maps to
            which the array points.
        """
        buffers = getattr(self._local, "memory", None)
        if buffers is None:
            memory, addresses = _allocate(len(self._parameters))
            buffers = self._local.memory = (memory, addresses, ctypes.addressof(addresses), dict[Any, Any]())
        return buffers

    def _packed_memory(self) -> tuple[Any, int]:
        """This thread's packed values, and the address of their addresses."""
        memory, _, pointer, _ = self._memory()
        return memory, pointer


class CudaPreparedLaunch:
    """A launch with packed values of its own.

    The driver reads them in each call of `launch`: its callers have to keep this object alive.
    """

    def __init__(
        self,
        launch: Callable[[], None],
        memory: Any,
        addresses: Any,
        parameters: Sequence[Parameter],
        maps: dict[int, TensorMaps],
        held: Pointed,
        workspace: Workspace | None,
        stream: GpuStream,
    ) -> None:
        self.launch = launch
        self._memory = memory
        self._addresses = addresses  # kept alive, since the driver reads it in each launch
        self._parameters = parameters
        self._codes = [f"={_code(each)}" for each in parameters]
        self._by_bits = {i for i, each in enumerate(parameters) if each.kind == "scalar" and _as_bits(each.dtype)}
        self._maps = maps
        self._held = held  # the tensor maps, kept alive likewise
        self._workspace = workspace  # kept alive for the launches
        self._stream = stream

    def set(self, position: int, number: Argument) -> None:
        """Change one argument for the launches to come."""
        if position in self._maps:
            tensor_map = self._maps[position].get(cast("Place", number), self._stream)
            self._addresses[position] = tensor_map.address
            self._held[position] = cast("Place", number), tensor_map
            return
        if position in self._by_bits:
            number = bits_of(cast("float", number), self._parameters[position].dtype)
        struct.pack_into(self._codes[position], self._memory, 8 * position, number)


def _allocate(count: int) -> tuple[Any, Any]:
    """Memory for packed values of 8 bytes each, and the array of their addresses."""
    memory = ctypes.create_string_buffer(8 * count)
    base = ctypes.addressof(memory)
    return memory, (ctypes.c_void_p * count)(*(base + 8 * i for i in range(count)))


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def go() -> None:
        first()
        then()

    return go


def _padded(code: str) -> str:
    """The format of a value that is padded to 8 bytes."""
    return f"{code}{8 - struct.calcsize('=' + code)}x"


def load(executable: Executable) -> CudaLoaded:
    """Make an executable launchable. Nothing touches a device before the first launch."""
    return CudaLoaded(executable)
