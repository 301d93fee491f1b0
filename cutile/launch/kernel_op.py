"""`KernelOp`: a kernel with its arguments, as a `DeviceOp`. What can be checked is, before anything is enqueued."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from cuda_async import ContextError, DeviceOp, ExecutionContext, Use, register_internal_package
from cutile.backend.interface import CompileOptions, Parameter, Target
from cutile.backend.registry import target_for
from cutile.compile.kernels import KernelCache
from cutile.compile.specialize import Fact, TensorFacts
from cutile.errors import ArgumentTypeError, LaunchError
from cutile.launch.grid import Grid, check_grid, launch_grid
from cutile.launch.scalars import plain_scalar
from cutile.launch.views import KernelInput, KernelOutput, TiledView, View

register_internal_package("cutile")  # the site of an op is the line that called the kernel
_chosen_backend: ContextVar[str | None] = ContextVar("cutile_backend", default=None)
_targets: dict[tuple[int, str | None], Target] = {}


@contextmanager
def use_backend(name: str) -> Generator[None]:
    """Compile kernels built in the `with` block by this backend: "reference" walks them with NumPy on the CPU.

    Example:
        >>> import cutile as ct
        >>> @ct.entry
        ... def double(y: ct.Mut):
        ...     y.store(2 * y.load())
        >>> with ct.use_backend("reference"):
        ...     op = double(ct.api.ones((4,), ct.i32).partition((2,)))
        >>> op.first().unpartition().to_numpy().sync()
        array([2, 2, 2, 2], dtype=int32)
    """
    token = _chosen_backend.set(name)
    try:
        yield
    finally:
        _chosen_backend.reset(token)


class KernelOp(DeviceOp[Any]):
    """A launch that has not run. Yields a named tuple of all its arguments, the same objects that were passed.

    Made by calling a kernel; configured by the methods below, each of which returns the op itself.
    """

    has_effects = True

    def __init__(
        self,
        kernel: KernelCache,
        result: Any,
        arguments: Sequence[Any],
        generics: Mapping[str, Any],
        options: CompileOptions,
    ) -> None:
        super().__init__()
        self._kernel = kernel
        self._result = result
        self._generics = dict(generics)
        self._options = options
        self._grid: Grid | None = None
        self._backend = _chosen_backend.get()
        self._arguments = tuple(arguments)
        self._lazy: tuple[DeviceOp[Any], ...] = tuple(
            cast("DeviceOp[Any]", each) for each in self._arguments if isinstance(each, DeviceOp)
        )
        self._views: dict[int, View | TiledView | None] = {}
        self.arity = len(self._arguments)
        with self._giving_back():
            for position, argument in enumerate(self._arguments):
                if not isinstance(argument, DeviceOp):
                    self._views[position] = self._view(position, argument)
            self._check_known()
            for each in self._lazy:
                each.claim()
            self._lend(self._views)

    @contextmanager
    def _giving_back(self) -> Generator[None]:
        """An op that fails to build holds nothing and does not complain about never having run."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def label(self) -> str:
        return self._kernel.signature.name

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return self._lazy

    # -- configuration ------------------------------------------------------------------------

    def generics(self, values: Sequence[Any]) -> KernelOp:
        """Set all generics: a flat list in declared order, types by name or object.

        Raises:
            GenericsError: the number or kind of values is wrong, or they contradict the partitions.
        """
        with self._giving_back():
            self._generics = self._kernel.generics(values, {})
            self._check_known()
        return self

    def grid(self, grid: tuple[int, ...] | int) -> KernelOp:
        """Set the launch grid: one to three extents. Where partitions tell the grid, it must be theirs.

        Raises:
            LaunchError: it is empty, or no grid.
        """
        with self._giving_back():
            self._grid = check_grid(self.label(), grid)
            self._check_known()
        return self

    def compile_options(self, options: CompileOptions) -> KernelOp:
        """Set hints for the compiler."""
        self._options = options
        return self

    # -- checks -------------------------------------------------------------------------------

    def _view(self, position: int, argument: Any) -> View | TiledView | None:
        """What a tensor argument is; None for a scalar, which is checked too."""
        kernel, parameter = self.label(), self._kernel.signature.parameters[position]
        name = parameter.name
        if parameter.kind == "tensor":
            if isinstance(argument, KernelInput):
                return argument.__kernel_input__()
            extra = "; unpartition it first" if isinstance(argument, KernelOutput) else ""
            raise ArgumentTypeError(
                f"{kernel}: argument {name!r} must be a tensor, got {_describe(argument)}{extra}"
                + ("" if extra else "; make one with api.from_numpy(array)")
            )
        if parameter.kind == "mut":
            if isinstance(argument, KernelOutput):
                tiled = argument.__kernel_output__()
                if not 1 <= len(tiled.tile) <= 3:
                    raise LaunchError(
                        f"{kernel}: argument {name!r} is a partition with {len(tiled.tile)} axes; "
                        "a partition has 1 to 3; reshape the tensor"
                    )
                return tiled
            raise ArgumentTypeError(
                f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got "
                f"{_describe(argument)}; partition it first: {name}.partition((64, 64))"
            )
        if not isinstance(parameter.dtype, str) and parameter.dtype is not None:
            plain_scalar(argument, parameter.dtype, kernel, name)
        return None

    def _check_known(self) -> None:
        """Check what is known before lazy arguments have run: the signature, the generics, the grid."""
        if self._lazy:
            return
        facts = self._facts(self._views)
        self._kernel.request(facts, self._generics, self._options, Target("", ""))
        self._launch_grid(self._views)

    def _facts(self, views: Mapping[int, View | TiledView | None]) -> list[Fact]:
        return [_facts(views[position]) for position in range(len(self._arguments))]

    def _launch_grid(self, views: Mapping[int, View | TiledView | None]) -> Grid:
        names = self._kernel.signature.names
        outputs = {names[position]: view for position, view in views.items() if isinstance(view, TiledView)}
        return launch_grid(self.label(), self._grid, outputs)

    def _lend(self, views: Mapping[int, View | TiledView | None]) -> None:
        names = self._kernel.signature.names
        uses: list[Use] = []
        for position, view in views.items():
            if view is not None:
                write = isinstance(view, TiledView)
                inner = view.view if isinstance(view, TiledView) else view
                uses.append(Use(names[position], inner.storage, write, *inner.byte_range()))
        if uses:
            self.lend(*uses)

    # -- running ------------------------------------------------------------------------------

    def execute(self, context: ExecutionContext) -> Any:
        """Run lazy arguments from left to right, compile if need be, enqueue the launch."""
        arguments = list(self._arguments)
        views = dict(self._views)
        if self._lazy:
            fresh: dict[int, View | TiledView | None] = {}
            for position, argument in enumerate(arguments):
                if isinstance(argument, DeviceOp):
                    arguments[position] = context.execute(cast("DeviceOp[Any]", argument))
                    fresh[position] = self._view(position, arguments[position])
            views.update(fresh)
            self._lend(fresh)
        self._check_device(context, views)
        grid = self._launch_grid(views)
        facts = self._facts(views)
        target = self._target(context)
        compiled = self._kernel.compiled(facts, self._generics, self._options, target)
        numbers = self._numbers(compiled.executable.parameters, arguments, views, grid)
        for view in views.values():
            if isinstance(view, TiledView):
                view.view.storage.use(context.stream, write=True)
            elif view is not None:
                view.storage.use(context.stream, write=False)
        compiled.loaded.launch(grid, numbers, context.stream)
        context.keep(compiled.loaded)
        return self._result(*arguments)

    def _check_device(self, context: ExecutionContext, views: Mapping[int, View | TiledView | None]) -> None:
        for position, view in views.items():
            if view is None:
                continue
            storage = (view.view if isinstance(view, TiledView) else view).storage
            if storage.device is not context.device:
                name = self._kernel.signature.names[position]
                raise ContextError(
                    context.device.ordinal,
                    f"{self.label()}: argument {name!r} is on {storage.device}, the launch on {context.device}; "
                    "run the op on a stream of that device, or copy the argument",
                )

    def _target(self, context: ExecutionContext) -> Target:
        device = context.device
        key = (id(device), self._backend)
        found = _targets.get(key)
        if found is None:
            found = target_for(device.kind, device.arch, device.multiprocessor_count, self._backend)
            _targets[key] = found
        return found

    def _numbers(
        self,
        parameters: Sequence[Parameter],
        arguments: Sequence[Any],
        views: Mapping[int, View | TiledView | None],
        grid: Grid,
    ) -> list[int | float | bool]:
        """One plain number per parameter of the compiled kernel."""
        made: list[int | float | bool] = []
        for parameter in parameters:
            if parameter.kind == "grid":
                made.append(grid[parameter.axis])
                continue
            position = parameter.argument
            view = views[position]
            if view is None:
                name = self._kernel.signature.names[position]
                made.append(plain_scalar(arguments[position], parameter.dtype, self.label(), name))
                continue
            inner = view.view if isinstance(view, TiledView) else view
            if parameter.kind == "pointer":
                made.append(inner.address)
            elif parameter.kind == "extent":
                made.append(inner.shape[parameter.axis])
            else:
                made.append(inner.strides[parameter.axis])
        return made

    def render(self, stage: str, arch: str | None = None) -> str:
        """The text of one stage of this launch's compilation; `arch` such as "sm_90a" compiles for a GPU.

        The op is not used up. Lazy arguments are not allowed, since their types are not known yet.
        """
        if self._lazy:
            raise LaunchError(f"{self.label()}: to inspect it, pass tensors rather than ops that have not run")
        if arch is None:
            storages = [v.view.storage if isinstance(v, TiledView) else v.storage for v in self._views.values() if v]
            device = storages[0].device
            target = target_for(device.kind, device.arch, device.multiprocessor_count, self._backend)
        else:
            target = target_for("cuda" if arch.startswith("sm_") else "host", arch, 0, None)
        return self._kernel.render(self._facts(self._views), self._generics, self._options, target, stage)


def _facts(view: View | TiledView | None) -> Fact:
    if view is None:
        return None
    inner, tile = (view.view, view.tile) if isinstance(view, TiledView) else (view, None)
    return TensorFacts(inner.dtype, inner.shape, inner.strides, inner.address, tile)


def _describe(argument: Any) -> str:
    kind = cast("type[object]", type(argument))
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
