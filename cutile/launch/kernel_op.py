"""`KernelOp`: a kernel with its arguments, as a `DeviceOp`. What can be checked is, before anything is enqueued."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from cuda_async import ContextError, Device, DeviceOp, ExecutionContext, Storage, Stream, Use, register_internal_package
from cutile.backend.interface import CompileOptions
from cutile.compile.facts import Fact
from cutile.compile.kernels import KernelCache, Plan
from cutile.errors import LaunchError
from cutile.launch.arguments import Checked, check_argument, give_back
from cutile.launch.bound import BoundLaunch
from cutile.launch.grid import Grid, check_grid, launch_grid
from cutile.launch.numbers import numbers_of
from cutile.launch.scalars import plain_scalar
from cutile.launch.target import INTERPRET, chosen_backend, target_of
from cutile.launch.views import TiledView

register_internal_package("cutile")  # the site of an op is the line that called the kernel


_op_types: dict[type, bool] = {}


def _is_op(argument: Any) -> bool:
    """Whether an argument is an op that has yet to run. Remembers the answer by type: `isinstance` asks an ABC."""
    kind = cast("type[Any]", type(argument))
    known = _op_types.get(kind)
    if known is None:
        known = _op_types[kind] = issubclass(kind, DeviceOp)
    return known


class KernelOp(DeviceOp[Any]):
    """A launch that has not run. Yields a named tuple of all its arguments, the same objects that were passed.

    Made by calling a kernel; configured by the methods below, each of which returns the op itself.
    """

    has_effects = True

    def __init__(
        self,
        kernel: KernelCache,
        result: Any,
        arguments: tuple[Any, ...],
        generics: Mapping[str, Any],
        options: CompileOptions,
    ) -> None:
        super().__init__()
        self._kernel = kernel
        self._result = result
        self._generics = generics
        self._options = options
        self._grid: Grid | None = None
        self._known_grid: Grid | None = None
        self._backend = chosen_backend()
        self._checks = True
        self._arguments = arguments
        self._lazy: tuple[DeviceOp[Any], ...] = ()
        self._checked: list[Checked] = [None] * len(arguments)
        self._facts: list[Fact] = [None] * len(arguments)
        self._uses: list[Use] = []
        self._outputs: list[tuple[str, TiledView]] = []
        self._plan: Plan | None = None
        self.arity = len(arguments)
        try:
            for position, argument in enumerate(arguments):
                if _is_op(argument):
                    self._lazy += (cast("DeviceOp[Any]", argument),)
                else:
                    self._take(position, argument)
            self._check_known()
            for each in self._lazy:
                each.claim()
            if self._uses:
                self.lend(*self._uses)
        except BaseException:
            self.discard()
            raise

    @property
    def graph_node(self) -> bool:  # type: ignore[override]
        """Whether a graph may record it: it allocates nothing, since no argument is an op that has yet to run."""
        return not self._lazy

    @contextmanager
    def _giving_back(self) -> Generator[None]:
        """An op that fails to build holds nothing and does not complain about never having run."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def _give_back(self) -> None:
        super()._give_back()
        give_back(getattr(self, "_arguments", ()))  # absent where __init__ failed

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
            LaunchError: it is empty, no grid, or not what the partitions say.
        """
        with self._giving_back():
            self._grid = check_grid(self.label(), grid)
            self._check_known()
        return self

    def const_grid(self, grid: tuple[int, ...] | int) -> KernelOp:
        """`grid`. It is a parameter of what is compiled, never a constant: another grid costs no compilation."""
        return self.grid(grid)

    def compile_options(self, options: CompileOptions) -> KernelOp:
        """Set hints for the compiler."""
        with self._giving_back():
            self._options = options
            self._check_known()
        return self

    def interpret(self, *, check: bool = True) -> KernelOp:
        """Run this launch as plain Python: the kernel's own function, tile block by tile block, on NumPy arrays.

        Breakpoints, `print` and tracebacks are Python's; a tile shows its elements, and `tile.array` has them. It runs
        in the thread that runs the op, which waits for it, and works on every device.

        Args:
            check: look for races between tile blocks, reads of elements that nothing wrote, and accesses outside of a
                tensor, and raise `RaceError`, `UninitialisedReadError` or `OutOfBoundsError` with the lines.

        Example:
            >>> import cutile as ct
            >>> @ct.entry
            ... def negate(y: ct.Mut):
            ...     t = y.load()
            ...     print("before:", t)
            ...     y.store(-t)
            >>> _ = negate(ct.api.arange(3, ct.i32).sync().partition((3,))).interpret().sync()
            before: [0 1 2]
        """
        self._backend = INTERPRET
        self._checks = check
        return self

    # -- checks -------------------------------------------------------------------------------

    def _check_known(self) -> None:
        """Check what is known before lazy arguments have run: the signature, the generics, the grid."""
        if not self._lazy:
            self._plan = self._specialize()
            self._known_grid = self._launch_grid()

    def _specialize(self) -> Plan:
        """The specialization; scalars whose dtype is a generic can be checked now that it is known."""
        plan = self._kernel.plan(self._facts, self._generics, self._options)
        signature = self._kernel.signature
        for position in signature.generic_scalars:
            parameter = signature.parameters[position]
            dtype = plan.specialization.generics[str(parameter.dtype)]
            self._checked[position] = plain_scalar(self._checked[position], dtype, signature.name, parameter.name)
        return plan

    def _take(self, position: int, argument: Any) -> None:
        """Check one argument and note what the launch does to its memory."""
        signature = self._kernel.signature
        parameter = signature.parameters[position]
        checked: Any = check_argument(signature.name, parameter, argument)
        self._checked[position] = checked
        if parameter.kind != "scalar":
            self._facts[position] = checked.facts
            start, stop = checked.byte_range
            self._uses.append(Use(parameter.name, checked.storage, checked.writes, start, stop))
            if checked.writes:
                self._outputs.append((parameter.name, checked))

    def _launch_grid(self) -> Grid:
        return launch_grid(self.label(), self._grid, self._outputs)

    # -- running ------------------------------------------------------------------------------

    def execute(self, context: ExecutionContext) -> Any:
        """Run lazy arguments from left to right, compile if need be, enqueue the launch."""
        arguments = self._arguments
        if self._lazy:
            arguments = self._run_lazy(context)
        self._check_device(context.device)
        plan = self._plan or self._specialize()
        grid = self._known_grid or self._launch_grid()
        if self._backend == INTERPRET:
            from cutile.launch.interpreted import run_interpreted

            run_interpreted(context, plan, self._checked, self._uses, grid, self._checks)
            return self._result(*arguments)
        compiled = plan.compiled(target_of(context.device, self._backend))
        numbers = numbers_of(compiled)(self._checked, grid)
        stream = context.stream
        for use in self._uses:
            cast("Storage", use.storage).use(stream, write=use.write)
        compiled.loaded.launch(grid, numbers, stream)
        context.hold_code(compiled.loaded)
        return self._result(*arguments)

    def _run_lazy(self, context: ExecutionContext) -> tuple[Any, ...]:
        """The arguments, with what the lazy ones yield; those are checked and lent now."""
        arguments = list(self._arguments)
        known = len(self._uses)
        for position, argument in enumerate(self._arguments):
            if _is_op(argument):
                arguments[position] = context.execute(cast("DeviceOp[Any]", argument))
                self._take(position, arguments[position])
        if len(self._uses) > known:
            self.lend(*self._uses[known:])
        return tuple(arguments)

    def _check_device(self, device: Device) -> None:
        for use in self._uses:
            storage = cast("Storage", use.storage)
            if storage.device is not device:
                raise ContextError(
                    device.ordinal,
                    f"{self.label()}: argument {use.argument!r} is on {storage.device}, the launch on {device}; "
                    "run the op on a stream of that device, or copy the argument",
                )

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """Compiling, if that has not been done: an `await` does it on a thread of its own."""
        yield from super().preparations(device)
        plan = self._plan
        if plan is not None and self._backend != INTERPRET:
            target = target_of(device, self._backend)
            if not plan.is_compiled(target):
                yield lambda: plan.compiled(target)

    def bind(self, stream: Stream) -> BoundLaunch:
        """A launch of this on `stream` that can be repeated at the cost of the driver's call; compiles now.

        The op is used up by it, and holds its arguments no longer.

        Raises:
            LaunchError: an argument is an op that has not run.
            ContextError: an argument is on another device than the stream.
        """
        with self._giving_back():
            if self._plan is None or self._known_grid is None:
                raise LaunchError(f"{self.label()}: to bind it, pass tensors rather than ops that have not run")
            if self._backend == INTERPRET:
                raise LaunchError(f"{self.label()}: an interpreted launch cannot be bound; run it with .sync()")
            self._check_device(stream.device)
            compiled = self._plan.compiled(target_of(stream.device, self._backend))
            bound = BoundLaunch(
                self._kernel, self._plan, compiled, self._arguments, self._checked, self._known_grid, stream
            )
        self.discard()
        return bound

    def render(self, stage: str, arch: str | None = None) -> str:
        """The text of one stage of this launch's compilation; `arch` such as "sm_90a" compiles for a GPU.

        The op is not used up.

        Raises:
            LaunchError: an argument is an op that has not run, so its type is not known yet.
            ValueError: there is no such stage.
        """
        if self._plan is None:
            raise LaunchError(f"{self.label()}: to inspect it, pass tensors rather than ops that have not run")
        device = cast("Storage", self._uses[0].storage).device
        return self._plan.render(target_of(device, self._backend, arch), stage)
