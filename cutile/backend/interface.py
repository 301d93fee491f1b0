"""What a backend is: six verbs, and the data that passes between them.

lower(function, target, options) -> function      pure: this target's passes; every decision is in the result
emit(function, target, options) -> Source         pure: readable Python text
explain(facts, target) -> rows                    pure: the plan in words, of a source or an executable
build(source, target) -> Executable               Numba: text to machine code; needs no device
load(executable) -> Loaded                        machine code to something launchable; needs no Numba
Loaded.launch(grid, arguments, stream)            enqueue; never wait
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.ir.core import Function

Grid = tuple[int, int, int]

Row = tuple[str, str]
"""A line of a kernel's plan: its heading, and what is so."""


@dataclass(frozen=True)
class Target:
    """What code is compiled for.

    Attributes:
        backend: "reference", "cpu" or "cuda".
        arch: "numpy"; the CPU's name with a digest of its features; or an architecture such as "sm_90a".
        units: processors of the device that compiled code may count on (multiprocessors, cores); 0 if unknown.
    """

    backend: str
    arch: str
    units: int = 0


OPTIONS_ELSEWHERE: dict[str, str] = {
    "enable_fp_fusion": 'write fast_math=("contract",)',
    "fastmath": "write fast_math=True",
    "maxnreg": "occupancy=... limits registers by how many tile blocks are to fit",
    "num_ctas": "write num_cta_in_cga=...",
    "num_stages": "how far loads run ahead the compiler decides, or part.load_pipelined(index, latency=...)",
    "num_warps": "write num_worker_warps=...",
}
"""What to write in place of other compilers' options."""

FAST_MATH = ("contract", "div", "exp", "ftz", "sqrt")
"""The parts of `CompileOptions.fast_math`."""


@dataclass(frozen=True)
class CompileOptions:
    """Hints for the compiler; none but `fast_math` changes what a kernel means. They are part of the cache key.

    Attributes:
        occupancy: tile blocks that should fit on one multiprocessor at once; None lets the compiler choose.
        num_cta_in_cga: thread blocks in a cluster (Hopper and later), of which 2, 4 or 8 share what they load; None
            lets the compiler choose.
        max_divisibility: the largest alignment, in bytes, that the compiler may assume of tensors (at most 16).
        num_worker_warps: warps that compute, per tile block; None lets the compiler choose. With 4, a product by warp
            groups whose tile has 128 rows runs two tile blocks in each thread block, one behind the other.
        num_pieces: thread blocks that share the steps of one tile block's product, where tile blocks are too few to
            fill the GPU (Hopper). None leaves it to each launch, which takes a kernel made for as many pieces as are
            worth it; 1 divides nothing. Any other number makes one kernel for all launches, which finds at each of them
            whether it is divided: up to 8 pieces are a cluster, all of which take part or one alone; of more as many do
            as the GPU has room for. Where steps are divided is decided by the extents and the device, so that equal
            launches have equal results.
        fast_math: how the kernel's own arithmetic may be less exact: not at all by default; `True` for all of these, or
            some, as in `("contract", "div")`. "contract": `x * y + z` with one rounding, where nothing else uses the
            product. "div", "sqrt": of f32, within 2 ulp. "exp": of f32, within 2 + 1.25 |x| ulp. "ftz": f32 numbers
            below 2**-126 may count as zeros in quotients, square roots, `exp2` and `rsqrt`. Each target takes what it
            gains by: a GPU all, a CPU "contract" of f32 and f64, the reference backend and the interpreter none.
        limit_waits: end the kernel with an error, and say what was waited for, where a warp waits for another for over
            two seconds. For debugging: products then wait for each other.

    Example:
        >>> CompileOptions(occupancy=2).occupancy
        2
    """

    occupancy: int | None = None
    num_cta_in_cga: int | None = None
    max_divisibility: int = 16
    num_worker_warps: int | None = None
    num_pieces: int | None = None
    fast_math: bool | Collection[str] = ()
    limit_waits: bool = False

    def __new__(cls, *_: Any, **named: Any) -> CompileOptions:
        """Refuse a name that is none, with what stands for it here."""
        for name in named:
            if name not in cls.__dataclass_fields__:
                remedy = OPTIONS_ELSEWHERE.get(name, f"there are {', '.join(cls.__dataclass_fields__)}")
                raise ArgumentTypeError(f"CompileOptions has no {name!r}; {remedy}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        # One form for what means the same: options are compared, hashed and printed into the cache key.
        object.__setattr__(self, "fast_math", _parts_of(self.fast_math))
        for name in ("occupancy", "num_cta_in_cga", "num_worker_warps", "num_pieces"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(f"CompileOptions({name}={value!r}): expected a positive int or None")
        if self.max_divisibility not in (1, 2, 4, 8, 16):
            raise ArgumentError(
                f"CompileOptions(max_divisibility={self.max_divisibility!r}): expected 1, 2, 4, 8 or 16"
            )

    @property
    def fast_math_parts(self) -> tuple[str, ...]:
        """The parts of `fast_math`, in order."""
        return _parts_of(self.fast_math)


def _parts_of(given: object) -> tuple[str, ...]:
    """The parts that a value of `fast_math` names, in order."""
    parts: object = FAST_MATH if given is True else () if given is False else given
    if not isinstance(parts, str) and isinstance(parts, Collection):
        named = sorted({str(each) for each in parts})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if set(named) <= set(FAST_MATH):
            return tuple(named)
    raise ArgumentError(f"CompileOptions(fast_math={given!r}): expected True, or some of {', '.join(FAST_MATH)}")


DEFAULT_OPTIONS = CompileOptions()
"""What a launch that gives no options has; one object, so that launches recognise it at no cost."""

ParameterKind = Literal["pointer", "extent", "stride", "scalar", "grid", "tensor_map", "workspace", "report"]

Swizzle = Literal[0, 32, 64, 128]


@dataclass(frozen=True)
class TensorMap:
    """How bulk copies between a tensor and shared memory go: what a launch makes a tensor's descriptor from.

    The descriptor's element type is the parameter's dtype; elements past the tensor's edges are loaded as zeros and
    not stored.

    Attributes:
        box: extents of one copy, one per axis of the tensor, in the tensor's order of axes.
        swizzle: bytes of a row in shared memory over which 16-byte pieces are permuted; 0 for none.
        order: the tensor's axes from the outermost in memory to the one with stride 1; empty for the order they have.
            The transposed view `(K, N)` of a matrix stored by rows of `K` has the order `(1, 0)`.
        rounded: whether f32 elements are rounded to tf32 on the way in.

    Example:
        >>> TensorMap((64, 256), 128, order=(1, 0)).memory_order
        (1, 0)
    """

    box: tuple[int, ...]
    swizzle: Swizzle = 0
    order: tuple[int, ...] = ()
    rounded: bool = False

    @property
    def memory_order(self) -> tuple[int, ...]:
        """`order`, spelled out."""
        return self.order or tuple(range(len(self.box)))


Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Where a tensor is: the address of its first element, its extents, its strides in elements."""

Argument = int | float | bool | Place
"""What a launch passes for one parameter: a tensor's place for a tensor map, a plain number for everything else."""


@dataclass(frozen=True)
class Parameter:
    """One plain parameter of a compiled kernel, and where its value comes from.

    Attributes:
        name: its name in the generated code.
        kind: the base address (u64), an extent (i32) or a stride in elements (i64) of a tensor argument, a scalar
            argument (its own dtype), an extent of the logical grid (i32), a tensor argument's descriptor for bulk
            copies (128 bytes by value; `dtype` is that of the elements), or the address (u64) of memory that the
            blocks of a launch share: zeros when a launch begins, and left as zeros when it ends; or of memory in which
            a launch tells the host what failed.
        argument: the position of the kernel argument it comes from; -1 for the grid, the workspace and the report.
        axis: the axis, for extents, strides and the grid.
        dtype: how the value is packed.
        map: how the descriptor is made, for the kind "tensor_map" alone.
    """

    name: str
    kind: ParameterKind
    argument: int
    axis: int
    dtype: DTypeLike
    map: TensorMap | None = None


@dataclass(frozen=True)
class Source:
    """Generated text: a Python file that defines `entry`.

    Attributes:
        text: the file. Same input, same bytes.
        entry: the name of the function in it.
        parameters: the kernel's plain parameters, in order.
        lines: generated line number to the user's line number.
        facts: what `build`, `load` and `explain` need to know (threads per block, shared bytes, grain); plain data.
    """

    text: str
    entry: str
    parameters: tuple[Parameter, ...]
    lines: Mapping[int, int] = field(default_factory=dict[int, int])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Executable:
    """Machine code as data: what the disk cache keeps.

    Attributes:
        target: what it was compiled for.
        image: machine code (a cubin, an object file), or the source text for `reference`.
        entry: the symbol to call.
        parameters: as in `Source`.
        facts: as in `Source`, plus what the toolchain reported (registers, spills). `division` is there where launches
            are to take kernels compiled with other `num_pieces`: how the turns of a tile block are counted, and rows of
            tile blocks up to which, turns from which on, and how many pieces. What a launch counts is data: a number,
            `("argument", position)`, `("extent", position, axis)`, `("grid", axis)`, or one of `+ - * // min max` with
            two of those. Executables come from files, whose text nothing evaluates.
        source: the generated text, for dumps.
        log: what the toolchain said.
    """

    target: Target
    image: bytes
    entry: str
    parameters: tuple[Parameter, ...]
    facts: Mapping[str, Any]
    source: str
    log: str = ""


class Workspace(Protocol):
    """Memory of a device for what the blocks of one launch hand each other; freed when nobody holds it."""

    @property
    def address(self) -> int: ...


class Report(Protocol):
    """Memory in which launches tell the host what failed, once they are over."""

    @property
    def address(self) -> int: ...

    def expect(self) -> None:
        """A launch that may write there was enqueued."""
        ...


class LaunchStream(Protocol):
    """What a loaded kernel sees of the runtime: `cuda_async.Stream` satisfies it."""

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: bool = False) -> Any:
        """Load a GPU image on the stream's device; the caller keeps the result per device.

        `early`: its launches may begin before the work ahead of them has ended, for which the kernel waits itself.
        """
        ...

    def launch_function(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> None:
        """Enqueue a GPU kernel. `parameters` is a ctypes array of addresses of the packed values, or its address."""
        ...

    def launcher(
        self, function: Any, block: tuple[int, int, int], shared_bytes: int
    ) -> Callable[[Any, int, int], None]:
        """What enqueues a GPU kernel on any stream of this one's device; for `Packed`."""
        ...

    def prepare_launch(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> Callable[[], None]:
        """What does `launch_function` at each call, with all that can be done once done here."""
        ...

    def expect_output(self) -> None:
        """Kernels launched from here on may print: what they print is to come out when they have completed."""
        ...

    def encode_tensor_map(
        self,
        element: str,
        address: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
    ) -> bytes:
        """The 128 bytes of a GPU's descriptor of a tensor. The axis with stride 1 comes first, as CUDA has it.

        Args:
            element: "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "tf32" or "f64".
            address: of the first element.
            extents: in elements.
            strides: of the axes after the first, in bytes.
            box: extents of one copy, in elements.
            swizzle: 0, 32, 64 or 128.
        """
        ...

    def resident_blocks(self, function: Any, threads: int, shared_bytes: int, cluster: int) -> int:
        """How many blocks of a loaded function a GPU holds at once, in whole clusters of `cluster` blocks."""
        ...

    def workspace(self, nbytes: int) -> Workspace:
        """Memory that the launches of this stream use one after the other; all zeros before the first.

        Each leaves the first 4096 bytes as zeros, and the rest as it likes. Who launches once need not hold it; who
        launches again and again does.
        """
        ...

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """Memory of 64 bytes in which a launch of this stream may tell the host what failed.

        It is zeros when the launch begins. Where the first word is 2 once that is over, whatever waits for it fails
        with `read(memory)`; while it is 1, the memory is being written.

        Args:
            read: makes the exception.
            lasting: for launches that are repeated; else for one.
        """
        ...

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Enqueue `body(first, last)` over ranges that cover `[0, count)`, each about `grain` long, in any order."""
        ...


class Packed(NamedTuple):
    """A kernel whose launches are numbers packed into memory, and one call. What `Loaded.packed` returns.

    Attributes:
        pack: `pack(memory, 0, *numbers)`, with the plain number of each parameter.
        launch: the runtime's launcher of the function, for any stream of the device. It reads the memory at once.
        most: the most blocks that a launch may have.
        memory: makes, for each thread that launches, what `pack` writes to, and the address that a launch is given.
        code: what has to live until the device is done.
    """

    pack: Callable[..., None]
    launch: Callable[[Any, int, int], None]
    most: int
    memory: Callable[[], tuple[Any, int]]
    code: object


class PreparedLaunch(Protocol):
    """A launch that is repeated: on one stream, over one grid, with arguments that change one by one."""

    def launch(self) -> None:
        """Enqueue the kernel; never wait."""
        ...

    def set(self, position: int, number: Argument) -> None:
        """Change one argument for the launches to come; those enqueued keep theirs."""
        ...


class Loaded(Protocol):
    """A kernel that can be launched."""

    def launch(self, grid: Grid, arguments: Sequence[Argument], stream: LaunchStream) -> None:
        """Enqueue the kernel; never wait.

        Args:
            grid: the logical grid; every extent at least 1.
            arguments: one per parameter, in order: addresses, extents, strides, scalars, the grid, places.
            stream: where to enqueue.
        """
        ...

    def packed(self, stream: LaunchStream) -> Packed | None:
        """How launches on the device of `stream` go where they are as simple as that; None where they are not."""
        ...

    def prepare(self, grid: Grid, arguments: Sequence[Argument], stream: LaunchStream) -> PreparedLaunch:
        """What launches the kernel again and again at the least cost; arguments as for `launch`."""
        ...


class Backend(Protocol):
    """A target family. See the module's docstring for the five verbs."""

    @property
    def name(self) -> str: ...

    def version(self) -> str:
        """Everything about the toolchain that changes its output; part of the cache key, as are cutile's sources."""
        ...

    def target(self, arch: str, units: int) -> Target:
        """The target for a device that reports this architecture and this many processors.

        Raises:
            UnsupportedTargetError: this backend does not compile for it; says what it compiles for.
        """
        ...

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function: ...

    def prove(self, lowered: Function) -> None:
        """Check of a lowered kernel what no rule of the IR says: that its threads neither hang nor race.

        Raises:
            IRError: they do; the compiler is at fault, not the kernel.
        """
        ...

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source: ...

    def explain(self, facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
        """The plan of a kernel in words, from the facts of a `Source`, or of an `Executable`, which has more."""
        ...

    def build(self, source: Source, target: Target) -> Executable: ...

    def load(self, executable: Executable) -> Loaded: ...
