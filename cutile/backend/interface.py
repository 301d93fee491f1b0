"""The interface of a backend: its verbs, and the data that passes between them.

lower(function, target, options) -> function      pure: this target's passes; every decision is in the result
prove(lowered)                                    pure: models of the lowered kernel, with CUTILE_VERIFY=1
emit(function, target, options) -> Source         pure: readable Python text
explain(facts, target) -> rows                    pure: the plan in words, of a source or an executable
build(source, target) -> Executable               Numba: text to machine code; needs no device
load(executable) -> Loaded                        machine code to something launchable; needs no Numba
Loaded.launch(grid, arguments, stream)            enqueue; never wait
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.ir.core import UNUSED, Function

Grid = tuple[int, int, int]

Change = tuple[tuple[str, Any], ...]
"""Compile options, by name, that a variant of a kernel has in place of the kernel's."""

S_contra = TypeVar("S_contra", contravariant=True)
"""The stream as a loaded kernel sees it; `cuda_async.Stream` satisfies each backend's protocol."""

Row = tuple[str, str]
"""A line of a kernel's plan: its heading and its text."""

NOT_USED = "not used"
"""The heading of options and hints that have no effect on a kernel."""


def unused_rows(facts: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows of options and hints that have no effect on a kernel, from its facts."""
    return tuple((NOT_USED, str(line)) for line in facts.get(UNUSED, ()))


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

NEUTRAL_OPTIONS = ("max_divisibility",)
"""Options that no target reads: they decide what a specialization may assume."""

FAST_MATH = ("contract", "div", "exp", "ftz", "sqrt", "tanh")
"""The parts of `CompileOptions.fast_math`."""


@dataclass(frozen=True)
class CompileOptions:
    """Hints for the compiler; none but `fast_math` changes what a kernel means.

    They are part of the cache key. A plan (`explain`) has a line, `not used`, for each one that a kernel does without.

    Attributes:
        occupancy: tile blocks that should fit on one multiprocessor at once; None lets the compiler choose.
        num_cta_in_cga: thread blocks in a cluster (Hopper and later). The blocks of a cluster of 2, 4 or 8 share their
            loads, or the rows that a kernel reduces and uses again. None lets the compiler choose.
        max_divisibility: the largest alignment, in bytes, that the compiler may assume of tensors (at most 16).
        num_worker_warps: warps that compute, per tile block; None lets the compiler choose. Without warp specialisation
            the number is rounded down to a power of two, of at most 32. With 4, a product by warpgroups with a tile of
            128 rows runs two tile blocks in each thread block (ping-pong).
        num_pieces: thread blocks that share the iterations of one tile block's product (split-K), where tile blocks
            are too few to fill the GPU (Hopper). None: each launch takes a kernel compiled for the number of pieces
            that pays. 1: iterations are not divided. Any other number: one kernel serves all launches, and divides its
            iterations at some of them. Up to 8 pieces are a cluster: all take part, or one alone. Of more than 8 as
            many take part as the GPU has room for. The extents and the device decide, so that equal launches have
            equal results.
        fast_math: the parts of the kernel's own arithmetic that may be less exact: none by default, `True` for all of
            the following, or a collection of some, such as `("contract", "div")`. "contract": `x * y + z` with one
            rounding, where nothing else uses the product. "div", "sqrt": of f32, within 2 ulp. "exp": of f32, within
            2 + 1.25 |x| ulp. "tanh": of f32, within 2**-11 of the result. "ftz": f32 numbers below 2**-126 may count
            as zeros in quotients, square roots, `exp2` and `rsqrt`. A GPU takes all parts, a CPU "contract" of f32 and
            f64, the reference backend and the interpreter none.
        limit_waits: whether a warp that has waited for another for over two seconds ends the kernel, with an error
            that names the wait. For debugging: products then wait for each other.
        streaming_stores: whether results go past the caches to memory, by non-temporal stores (CPU). None leaves it to
            each launch: launches that write more bytes than the last cache holds take them.

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
    streaming_stores: bool | None = None

    def __new__(cls, *_: Any, **named: Any) -> CompileOptions:
        """Refuse a name that is no option, and name the option to write in its place.

        Here and not in `__init__`: the dataclass's own would refuse the name first, without a remedy.
        """
        for name in named:
            if name not in cls.__dataclass_fields__:
                remedy = OPTIONS_ELSEWHERE.get(name, f"there are {', '.join(cls.__dataclass_fields__)}")
                raise ArgumentTypeError(f"CompileOptions has no {name!r}; {remedy}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        # Equal meanings get one form: options are compared, hashed and printed into the cache key.
        object.__setattr__(self, "fast_math", _parts_of(self.fast_math))
        for name in ("occupancy", "num_cta_in_cga", "num_worker_warps", "num_pieces"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ArgumentError(f"CompileOptions({name}={as_text(value)}): expected a positive int or None")
        for name, others in (("limit_waits", ()), ("streaming_stores", (None,))):
            value = getattr(self, name)
            # 0 equals False, so that both would be one key of a kernel: only bools are taken.
            if not isinstance(value, bool) and value not in others:
                expected = "True, False or None" if others else "True or False"
                raise ArgumentError(f"CompileOptions({name}={as_text(value)}): expected {expected}")
        if isinstance(self.max_divisibility, bool) or self.max_divisibility not in (1, 2, 4, 8, 16):
            raise ArgumentError(
                f"CompileOptions(max_divisibility={as_text(self.max_divisibility)}): expected 1, 2, 4, 8 or 16"
            )

    def only(self, names: Collection[str]) -> CompileOptions:
        """These options as a target sees them.

        They are the options of these names, and those of the specialization.

        Example:
            >>> options = CompileOptions(occupancy=2, num_worker_warps=4).only({"occupancy"})
            >>> options.occupancy, options.num_worker_warps
            (2, None)
        """
        others = {each.name: each.default for each in fields(self) if each.name not in (*names, *NEUTRAL_OPTIONS)}
        return replace(self, **others)

    @property
    def fast_math_parts(self) -> tuple[str, ...]:
        """The parts of `fast_math`, in order."""
        return _parts_of(self.fast_math)


def _parts_of(permitted: object) -> tuple[str, ...]:
    """The parts that a value of `fast_math` names, in order."""
    # `is`: 1 equals True, and is no value of this option.
    parts: object = FAST_MATH if permitted is True else () if permitted is False else permitted
    if not isinstance(parts, str) and isinstance(parts, Collection):
        named = sorted({str(each) for each in parts})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if set(named) <= set(FAST_MATH):
            return tuple(named)
    raise ArgumentError(f"CompileOptions(fast_math={permitted!r}): expected True, or some of {', '.join(FAST_MATH)}")


DEFAULT_OPTIONS = CompileOptions()
"""The options of a launch that gives none; one object, so that launches recognise it at no cost."""

ParameterKind = Literal["pointer", "extent", "stride", "scalar", "grid", "tensor_map", "workspace", "report"]

Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Where a tensor is: the address of its first element, its extents, its strides in elements."""

Argument = int | float | bool | Place
"""What a launch passes for one parameter: a tensor's place for a tensor map, a plain number for everything else."""


@dataclass(frozen=True)
class Parameter:
    """One plain parameter of a compiled kernel, and where its value comes from.

    Attributes:
        name: its name in the generated code.
        kind: what the value is. "pointer", "extent", "stride": a tensor argument's base address (u64), one of its
            extents (i32), one of its strides in elements (i64). "scalar": a scalar argument, of its own dtype. "grid":
            an extent of the logical grid (i32). "tensor_map": the tensor map of a tensor argument, for TMA (128 bytes
            by value; `dtype` is the elements'). "workspace": the address (u64) of memory that the blocks of a launch
            share, zeros before a launch and after it. "report": the address (u64) of memory in which a launch tells
            the host which assertion failed.
        argument: the position of the kernel argument it comes from; -1 for the grid, the workspace and the report.
        axis: the axis, for extents, strides and the grid.
        dtype: how the value is packed.
        map: facts of a "tensor_map", which the backend alone reads: plain data, which the disk cache keeps as it is.
    """

    name: str
    kind: ParameterKind
    argument: int
    axis: int
    dtype: DTypeLike
    map: tuple[Any, ...] | None = None


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
            may take kernels compiled with other `num_pieces`. It has the count of a tile block's iterations, and rows
            of three numbers: the most tile blocks, the fewest iterations, and the pieces of a launch within both. A
            count is data, since nothing evaluates text from the disk cache: a number, `("argument", position)`,
            `("extent", position, axis)`, `("grid", axis)`, or one of `+ - * // min max` with two counts.
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


@dataclass(frozen=True)
class Attempt:
    """A further build of a kernel whose registers spill.

    Its machine code is taken if it spills fewer bytes than that so far.

    Attributes:
        note: a line for the log of its machine code, with names of the facts so far in braces.
        when: whether it is tried, by the machine code so far, which spills.
        facts: the facts of the generated text that differ.
        options: the compile options that differ; the kernel is lowered again for them.
        always: whether its machine code is taken even if it spills as much.
    """

    note: str
    when: Callable[[Executable], bool]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    always: bool = False


class Packed(NamedTuple):
    """A kernel whose launches are numbers packed into memory, and one call.

    `Loaded.packed` returns it.

    Attributes:
        pack: `pack(memory, 0, *numbers)`, with the plain number of each parameter.
        launch: the runtime's launcher of the function, for any stream of the device. It reads the memory at once.
        most: the most blocks that a launch may have.
        memory: called once by each thread that launches; returns the memory that `pack` writes to, and the address of
            it that `launch` takes.
        code: an object that has to live until the device is done.
    """

    pack: Callable[..., None]
    launch: Callable[[Any, int, int], None]
    most: int
    memory: Callable[[], tuple[Any, int]]
    code: object


class PreparedLaunch(Protocol):
    """A launch that is repeated on one stream, over one grid.

    Its arguments change one by one.
    """

    def launch(self) -> None:
        """Enqueue the kernel; never wait."""
        ...

    def set(self, position: int, number: Argument) -> None:
        """Change one argument for the launches to come; those enqueued keep theirs."""
        ...


class Variants(Protocol):
    """Other compilations of a kernel, of which some launches take one in its place.

    The kernel, the extents and the device alone decide which, so that equal launches have equal results.
    """

    @property
    def count(self) -> Any:
        """The count by which a launch chooses, as data; see `Executable`."""
        ...

    @property
    def max_blocks(self) -> int:
        """Tile blocks beyond which a launch takes the kernel itself, and counts nothing."""
        ...

    def choose(self, blocks: int, count: int) -> Change:
        """The options that differ in a launch's compilation; none for the kernel itself.

        Args:
            blocks: tile blocks of the launch.
            count: the launch's number for `self.count`.
        """
        ...


class Loaded(Protocol[S_contra]):
    """A kernel that can be launched, on streams that its backend describes."""

    @property
    def variants(self) -> Variants | None:
        """Other compilations that launches may take; None where all take this one."""
        ...

    def launch(self, grid: Grid, arguments: Sequence[Argument], stream: S_contra) -> None:
        """Enqueue the kernel; never wait.

        Args:
            grid: the logical grid; every extent at least 1.
            arguments: one per parameter, in order: addresses, extents, strides, scalars, the grid, places.
            stream: where to enqueue.
        """
        ...

    def packed(self, stream: S_contra) -> Packed | None:
        """The launches on the device of `stream` as packed numbers and one call.

        None where a launch takes more than that.
        """
        ...

    def prepare(self, grid: Grid, arguments: Sequence[Argument], stream: S_contra) -> PreparedLaunch:
        """A launch that can be repeated at the least cost; arguments as for `launch`."""
        ...


class Backend(Protocol):
    """A target family. The module's docstring lists its verbs."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> frozenset[str]:
        """The names of the compile options that it reads.

        Other options do not reach it, and are no part of its cache keys.
        """
        ...

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The builds that are tried, in this order, while a kernel spills registers."""
        ...

    def version(self) -> str:
        """Everything about the toolchain that changes its output.

        Part of the cache key, as are cutile's sources.
        """
        ...

    def target(self, arch: str, units: int) -> Target:
        """The target for a device that reports this architecture and this many processors.

        Raises:
            UnsupportedTargetError: this backend does not compile for it; says what it compiles for.
        """
        ...

    def lower(self, function: Function, target: Target, options: CompileOptions) -> Function: ...

    def prove(self, lowered: Function) -> None:
        """Check that the threads of a lowered kernel neither hang nor race.

        The IR's own rules do not cover this.

        Raises:
            IRError: they do; the compiler is at fault, not the kernel.
        """
        ...

    def emit(self, function: Function, target: Target, options: CompileOptions) -> Source: ...

    def explain(self, facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
        """The plan of a kernel in words, from the facts of a `Source` or `Executable`.

        An `Executable` has more of them.
        """
        ...

    def build(self, source: Source, target: Target) -> Executable: ...

    def load(self, executable: Executable) -> Loaded[Any]: ...
