"""Functions that compose several launches, found without running them.

They are compiled ahead, or searched for the fastest configuration.

    launches = ct.launches_of(decode, q, k, v)      # runs nothing; q, k, v may be made by api.meta
    print(launches.diagram())
    launches.compile()                              # so that the first call of `decode` does not

Such a function returns one operation of several kernels. Submitting an operation reads no data. So submitting it to a
stream that enqueues nothing (`cuda_async/trace.py`) finds every launch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from cuda_async import Device, DeviceOp, ExecutionContext, default_device
from cuda_async.core.prerequisite import Prerequisite
from cuda_async.picture import Picture
from cuda_async.trace import Trace, trace_of
from cutile.compile.ahead import Builders
from cutile.errors import ArgumentTypeError, GenericsError, TuningError
from cutile.launch.launchable import TracedLaunch
from cutile.launch.notebook import Listing
from cutile.launch.searching import Space

if TYPE_CHECKING:
    from cutile.tune.composites import CompositeChoice

__all__ = ("Composite", "Launches", "compile_ahead", "composite", "launches_of", "operation_of")

P = ParamSpec("P")
R = TypeVar("R")


class Launches(Sequence[TracedLaunch]):
    """The launches of an operation, in the order of their submission.

    Made by `launches_of`. Each launch has `name`, `grid`, `generics`, `site`, `explain(arch)` and
    `render(stage, arch)`.
    """

    def __init__(self, name: str, trace: Trace[Any]) -> None:
        self._name = name
        self._trace = trace
        self._launches = cast("tuple[TracedLaunch, ...]", trace.launches)

    @overload
    def __getitem__(self, index: int) -> TracedLaunch: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TracedLaunch, ...]: ...
    def __getitem__(self, index: int | slice) -> TracedLaunch | tuple[TracedLaunch, ...]:
        return self._launches[index]

    def __len__(self) -> int:
        return len(self._launches)

    def __iter__(self) -> Iterator[TracedLaunch]:
        return iter(self._launches)

    @property
    def result(self) -> Any:
        """The operation's result: handles, without memory where it allocates."""
        return self._trace.result

    def compile(self, arch: str | None = None, *, workers: int | None = None) -> None:
        """Compile the kernels, so that a launch with such arguments compiles nothing.

        Several processes compile at the same time. The disk cache keeps the result for all later processes.

        Args:
            arch: compile for this architecture, such as "sm_90a", in place of the device; no GPU is needed.
            workers: processes; one for each core by default.

        Raises:
            KernelError: a kernel does not compile; shows the place.
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        requests = [launch.request(arch) for launch in self._launches]
        with Builders(workers) as builders:
            builders.compile([request for request in requests if request is not None])
        for launch in self._launches:  # reads the disk cache; a kernel that failed above raises its error here
            launch.compile(arch)

    def explain(self, arch: str | None = None) -> str:
        """The plan of each kernel, one after another; see `Kernel.explain`.

        Raises:
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        return Listing("\n\n".join(launch.explain(arch) for launch in self._launches))

    def picture(self) -> Picture:
        """The operation's steps as data for drawings."""
        return self._trace.picture(f"{self._name}: {len(self)} launches")

    def diagram(self) -> str:
        """The operation's steps as text.

        A line for each step that uses memory, with the steps that it has to follow.
        """
        return self.picture().text()

    def _repr_html_(self) -> str:
        from cuda_async.svg import html_of

        return html_of(self.picture())

    def __repr__(self) -> str:
        return f"<{self._name}: {', '.join(launch.name for launch in self._launches) or 'no launches'}>"


def operation_of(function: Callable[..., DeviceOp[Any]], /, *arguments: Any, **named: Any) -> DeviceOp[Any]:
    """The operation that a function makes of arguments.

    Raises:
        ArgumentTypeError: it is no function, or makes no operation.
    """
    if isinstance(function, DeviceOp):
        function.discard()  # it will not run: no warning, and its arguments are usable again
    if isinstance(function, DeviceOp) or not callable(function):
        raise ArgumentTypeError(
            f"expected a function that makes an operation, got {function!r}; looking for its kernels uses an operation "
            "up, so pass what makes one: launches_of(decode, q, k, v), or launches_of(lambda: ...)"
        )
    op: object = function(*arguments, **named)
    if not isinstance(op, DeviceOp):
        name = getattr(function, "__name__", repr(function))
        raise ArgumentTypeError(f"{name}: expected a function that returns an operation (DeviceOp), got {op!r}")
    return op  # pyright: ignore[reportUnknownVariableType]


def launches_of(
    function: Callable[..., DeviceOp[Any]], /, *arguments: Any, device: Device | None = None, **named: Any
) -> Launches:
    """Find every launch of the operation that a function makes, without running it.

    Functions given to `then`, `map` and `inspect` are called, with handles, as in a run. What they launch is found too.

    Args:
        function: makes the operation, such as a kernel or a function that composes several.
        arguments: its arguments; tensors of `api.meta` will do. Nothing is read or written.
        device: the device on which it would run; the default device if None.
        named: more arguments, by name.

    Raises:
        ArgumentTypeError: `function` makes no operation.
        NotReadyError: its launches depend on data, or it copies between devices.
        TuningError: a launch searches for its configuration, and no search has found one.
        BaseException: whatever `function`, and functions given to `then`, raise.

    Example:
        >>> from cutile import Const, Mut, Tensor, api
        >>> @ct.entry
        ... def part_sums(sums: Mut, x: Tensor, *, B: Const = 256):
        ...     sums.store(ct.reduce_sum(ct.load_tile(x, (B,), ct.get_tile_block_id()[:1]), 0).reshape((1,)))
        >>> @ct.entry
        ... def sum_of(total: Mut, sums: Tensor, *, N: Const):
        ...     total.store(ct.reduce_sum(ct.load_tile(sums, (N,), (0,)), 0).reshape((1,)))
        >>> def total(x):
        ...     parts = x.shape[0] // 256
        ...     first = part_sums(api.empty((parts,)).partition((1,)), x)
        ...     return (
        ...         first.then(lambda out: sum_of(api.empty((1,)).partition((1,)), out.sums.unpartition(), N=parts))
        ...         .first()
        ...         .unpartition()
        ...     )
        >>> launches = ct.launches_of(total, api.meta((4096,)))
        >>> [(launch.name, launch.grid, dict(launch.generics)) for launch in launches]
        [('part_sums', (16, 1, 1), {'B': 256}), ('sum_of', (1, 1, 1), {'N': 16})]
        >>> launches.compile()
        >>> total(api.ones((4096,)).sync()).to_numpy().sync()
        array([4096.], dtype=float32)
    """
    where = default_device() if device is None else device
    with where:
        trace = trace_of(lambda: operation_of(function, *arguments, **named), where)
    return Launches(getattr(function, "__name__", "operation"), trace)


def compile_ahead(
    function: Callable[..., DeviceOp[Any]],
    /,
    *arguments: Any,
    device: Device | None = None,
    arch: str | None = None,
    **named: Any,
) -> Launches:
    """Compile every kernel that a function launches, without running it.

    Returns the launches.

    Args:
        function, arguments, device, named: as for `launches_of`.
        arch: compile for this architecture, such as "sm_90a", in place of the device; no GPU is needed.

    Raises:
        KernelError: a kernel does not compile; shows the place.
        UnsupportedTargetError: nothing compiles for `arch`.
        ArgumentTypeError, NotReadyError, TuningError: as `launches_of`.

    Example:
        >>> from cutile import Mut, Tensor, api
        >>> @ct.entry
        ... def double(y: Mut, x: Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> def twice(x):
        ...     y = double(api.empty(x.shape).partition((64,)), x).first().unpartition()
        ...     return y.then(lambda y: double(api.empty(y.shape).partition((32,)), y)).first().unpartition()
        >>> launches = ct.compile_ahead(twice, api.meta((4096,)))
        >>> [launch.grid for launch in launches]
        [(64, 1, 1), (128, 1, 1)]
    """
    launches = launches_of(function, *arguments, device=device, **named)
    launches.compile(arch)
    return launches


class Composite(Generic[P, R]):
    """A function that makes an operation of tensors.

    Its keyword-only parameters are its configuration.

    Made by `composite`. Calling it makes the operation.

    Attributes:
        name: the function's name.
        choices: the configurations that searches of its calls have chosen or read from disk, in this process.
    """

    def __init__(self, function: Callable[P, DeviceOp[R]]) -> None:
        self._function: Callable[..., DeviceOp[R]] = function
        self._name: str = getattr(function, "__name__", "composite")
        self._space: Space | None = None
        self._choices: dict[Hashable, CompositeChoice] = {}
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        """The function's name."""
        return self._name

    def searched(self, space: Space) -> Self:
        """Have calls search a space, unless they name a parameter of it.

        `@ct.autotune` calls this.

        Raises:
            GenericsError: a configuration is no dictionary of keyword-only parameters.
        """
        parameters = inspect.signature(self._function).parameters.values()
        own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        for number, config in enumerate(space.configs):
            wrong: object = config
            if isinstance(config, Mapping):
                wrong = next((name for name in cast("Mapping[str, Any]", config) if name not in own), None)
            if wrong is not None:
                raise GenericsError(
                    f"{self._name}: configuration {number}: expected a dictionary of its keyword-only parameters "
                    f"({', '.join(own) or 'it has none'}), got {wrong!r}"
                )
        if space.key is not None and not callable(space.key):
            raise GenericsError(f"{self._name}: key: expected a function of its arguments, got {space.key!r}")
        self._space = space
        return self

    @property
    def choices(self) -> tuple[CompositeChoice, ...]:
        """The configurations that searches of its calls have chosen in this process.

        Each was measured here, or read from disk.
        """
        return tuple(self._choices.values())

    def __call__(self, /, *arguments: P.args, **named: P.kwargs) -> DeviceOp[R]:
        space = self._space
        if space is None or any(name in config for config in space.configs for name in named):
            return operation_of(self._function, *arguments, **named)
        search = _Search(self, self._function, space, arguments, named, self._choices)
        return search.operation() if search.known() is not None else _SearchedComposite(search)

    def __repr__(self) -> str:
        return f"<composite {self._name}{inspect.signature(self._function)}>"


def composite(function: Callable[P, DeviceOp[R]]) -> Composite[P, R]:
    """Have a function that composes launches searched for its configuration.

    `@ct.autotune` stands above it, with dictionaries of the function's keyword-only parameters.

    The function is called anew for each configuration, with the same arguments: tensors, numbers, no operations. Memory
    that trials write is restored. The first call for a key searches when it is run by `.sync()` or `await`: all kernels
    of all configurations are compiled, results are compared with those of the first configuration, and the fastest
    runs. `choices` has the results.

    Args:
        function: takes tensors and returns an operation.

    Example:
        >>> from cutile import Mut, Tensor, api
        >>> @ct.entry
        ... def scale(y: Mut, x: Tensor, a: ct.f32):
        ...     y.store(a * ct.load_tile_like(x, y))
        >>> @ct.autotune([{"tile": 256}, {"tile": 1024}])
        ... @ct.composite
        ... def twice(x, *, tile: int = 256):
        ...     y = scale(api.empty(x.shape).partition((tile,)), x, 2.0).first().unpartition()
        ...     return y.then(lambda y: scale(y.partition((tile,)), x, 4.0)).first().unpartition()
        >>> float(twice(api.ones((4096,)).sync()).to_numpy().sync().sum())
        16384.0
        >>> sorted(twice.choices[0].config) == ["tile"]
        True
    """
    if not callable(function) or isinstance(function, type):
        raise ArgumentTypeError(f"composite: expected a function that returns an operation, got {function!r}")
    return Composite(function)


class _Search(Generic[R]):
    """One call of a searched composite: its configuration, and its operation."""

    def __init__(
        self,
        composite: Composite[..., R],
        function: Callable[..., DeviceOp[R]],
        space: Space,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
        choices: dict[Hashable, CompositeChoice],
    ) -> None:
        from cutile.tune.composites import key_of  # few programs search, and each import delays every first launch

        self.name, self.space = composite.name, space
        for argument in (*arguments, *named.values()):
            if isinstance(argument, DeviceOp):
                raise ArgumentTypeError(
                    f"{self.name}: a search calls it anew for each configuration, and an operation runs once; pass "
                    f"what .sync() of {argument!r} yields, or name a configuration"
                )
        self._function, self._arguments, self._named = function, arguments, named
        self._choices = choices
        self._key = (default_device(), key_of(space, arguments, named))

    def known(self) -> Mapping[str, Any] | None:
        """The fastest configuration, if a search has found it."""
        configs = self.space.configs
        choice = self._choices.get(self._key)
        return choice.config if choice is not None else configs[0] if len(configs) == 1 else None

    def make(self, config: Mapping[str, Any]) -> DeviceOp[R]:
        """The operation of a configuration."""
        return operation_of(self._function, *self._arguments, **{**self._named, **config})

    def operation(self) -> DeviceOp[R]:
        """The operation of the fastest configuration; before a search, of the first."""
        config = self.known()  # may be empty: the parameters' defaults
        return self.make(self.space.configs[0] if config is None else config)

    def run(self, device: Device) -> None:
        """Search, on `device`; waits for it."""
        from cutile.tune.composites import search

        if self.known() is None:
            self._choices[self._key] = search(self.name, self.make, self.space, repr(self._key[1]), device)


class _SearchedComposite(DeviceOp[R]):
    """A composite's operation; its fastest configuration is found before it runs."""

    __slots__ = ("_op", "_search")

    has_effects = True

    def __init__(self, search: _Search[R]) -> None:
        self._search = search
        self._op = search.operation()  # made here, so that the call refuses wrong arguments
        self._op.claim()
        super().__init__()
        Prerequisite.exists = True  # from now on, runs ask their operations for prerequisites

    def label(self) -> str:
        return self._search.name

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return (self._op,)

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        if self._search.known() is None:
            yield Prerequisite(lambda: self._find(device))
        else:
            yield from super().preparations(device)

    def _find(self, device: Device) -> None:
        self._op.unclaim()
        self._op.discard()  # it lends its arguments, which the trials use
        self._search.run(device)
        self._op = self._search.operation()
        self._op.claim()

    def execute(self, context: ExecutionContext) -> R:
        if self._search.known() is None:
            name = self._search.name
            raise TuningError(
                f"{name}: which of {len(self._search.space.configs)} configurations is the fastest is not known, and a "
                "search waits for the device, which cannot be done inside then(), in a graph, or while kernels are "
                f"looked for. Run one such call before, by itself: {name}(...).sync(); or name a configuration: "
                + ", ".join(f"{key}={value!r}" for key, value in self._search.space.configs[0].items())
            )
        return context.execute(self._op)
