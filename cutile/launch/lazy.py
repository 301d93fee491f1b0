"""Arguments of a launch that are ops: they run in order, when the launch does.

`LazyOp` is the part of `KernelOp` that runs them. Most of them yield new memory, such as
`api.empty(shape, dtype).partition(tile)`, or the same of `api.zeros`. The result of such an op is known before it runs,
except for the address: the op's `outline` describes it. A launch whose ops all have outlines runs none of them. It
allocates their memory, fills it, and launches by the plan for the outlines. Where a step like `.first().unpartition()`
follows, the tensor is made directly.

The general way runs each op, checks the result, and looks for the plan then. It also raises the errors: the fast path
leaves every launch that may be wrong to it. Tests run both ways over random launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from cuda_async import DeviceOp, ExecutionContext, Storage, Stream
from cuda_async.combinators import Forwarded, Select
from cutile.compile.kernels import plan_key
from cutile.errors import LaunchError
from cutile.launch.arguments import Checked, is_op
from cutile.launch.launchable import LaunchState
from cutile.launch.views import Grid, TiledView, View, open_names, tiled

if TYPE_CHECKING:
    from cutile.compile.kernels import Plan
    from cutile.launch.compiled_kernel import CompiledKernel

__all__ = ("LazyOp", "NewMemory", "Outline")


class Outline(Protocol):
    """A partition or a tensor of new memory, before there is memory.

    It is the outline of an op that yields it. Its checked arguments are named after the kinds of parameters that take
    them: `mut` for a partition, `tensor` and `shared` for a tensor.

    Attributes:
        view: the elements, at no address.
        mut: a partition's checked argument; None for a tensor.
        nbytes: bytes of the memory that it takes.
    """

    view: View
    mut: TiledView | None
    nbytes: int

    def whole(self, view: View) -> Any:
        """The tensor of these elements, as a partition that is given up returns it."""
        ...

    def part(self, view: View) -> Any:
        """The partition or tensor of these elements."""
        ...


class NewMemory(Protocol):
    """The op at the beginning of a chain with an outline: it makes new memory."""

    def allocate(self, stream: Stream, nbytes: int) -> Storage:
        """Allocate the memory, and enqueue its fill if its elements have a value."""
        ...


_Output = tuple[int, DeviceOp[Any], Outline]
"""An argument that is an op with an outline: its position, the op, the outline. A plain tuple costs least to make."""

_Launch = tuple["Plan", Grid, list[Checked], list[_Output]]
"""A launch that runs no op: its plan and grid, the checked arguments, and the outputs that will be put among these."""


class LazyOp(LaunchState):
    """The part of `KernelOp` that runs arguments.

    Attributes:
        _failed: the argument that could not be run; absent where none failed.
        _allocated: the memory that the fast path allocated; absent where it did not run.
        _more: what generics and options add to a plan's key; None where that is not known yet.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _failed: DeviceOp[Any]
        _given_grid: Grid | None
        _allocated: list[Storage]
        _space: Any

        def fast_path(self, *, waited: bool) -> Callable[[Stream], Any] | None: ...
        def lend(self, *uses: Any) -> None: ...
        def _compile(self, plan: Plan, stream: Stream) -> CompiledKernel: ...

    # -- in general ---------------------------------------------------------------------------

    def _run_lazy(self, context: ExecutionContext) -> None:
        """Run the arguments that are ops, and check and lend their results."""
        self._put([context.execute(each) if is_op(each) else each for each in self._arguments])

    def _put(self, arguments: list[Any]) -> None:
        """Take these arguments in place of the former ones, of which some were ops."""
        launchable, checked = self._launchable, self._checked
        for position, (before, argument) in enumerate(zip(self._arguments, arguments, strict=True)):
            if before is not argument:
                checked[position] = launchable.check(position, argument)
                # A launch yields the user's NumPy array, of which the operand is a copy.
                arguments[position] = getattr(argument, "__kernel_yields__", argument)
        self._arguments = tuple(arguments)
        if self._extents:  # an extent that no tile names raises here, unless a generic has its name
            names = open_names(checked)
            launchable.kernel.generics(None, {name: each for name, each in self._extents.items() if name not in names})
        names_lent, self._uses = {use[0] for use in self._uses}, launchable.uses(checked)
        new_uses = [use for use in self._uses if use[0] not in names_lent]
        if new_uses:
            self.lend(*new_uses)

    # -- where all have outlines --------------------------------------------------------------

    def fast_steps(self, steps: Sequence[Any], *, waited: bool) -> tuple[Callable[[Stream], Any], int] | None:
        """See `Operation.fast_steps`; the tensor of one output is made directly."""
        if not self._lazy:
            enqueue = self.fast_path(waited=waited)
            return None if enqueue is None else (enqueue, 0)
        launch = self._find_launch()
        if launch is None:
            return None
        if len(steps) > 1 and type(select := steps[0]) is Select and type(call := steps[1]) is Forwarded:
            index = select.index % len(self._arguments)
            for position, _, outline in launch[3]:
                if position == index and outline.mut and call.is_call("unpartition") and not self._launchable.grouped:
                    return partial(self._enqueue_tensor, launch, position, outline), 2
        return partial(self._enqueue_lazy, launch), 0

    def _find_launch(self) -> _Launch | None:
        """The launch, if all ops among its arguments have outlines; else None.

        None also where the general way has to look: no call has made its plan yet, say, or its grid was given.
        """
        if self._backend is not None or self._space is not None or self._given_grid is not None or self._extents:
            return None
        launchable, checked = self._launchable, self._checked.copy()
        outputs: list[_Output] = []
        position = -1
        if checked.count(None) != len(self._lazy):  # it has run
            return None
        kinds = launchable.kinds
        for op in self._lazy:  # in the order of the arguments
            position = checked.index(None, position + 1)
            outline: Any = op.outline()
            argument = getattr(outline, kinds[position], None)
            if argument is None:
                return None
            checked[position] = argument
            outputs.append((position, op, outline))
        more = self._more
        if more is None:
            more = plan_key(self._generics, self._options)
        plan_and_grid = launchable.find(checked, more)
        if plan_and_grid is None or 0 in plan_and_grid[1]:
            return None
        return *plan_and_grid, checked, outputs

    def _plan_as_outlined(self) -> Plan:
        """The plan of the launch, by the outlines of the arguments that are ops.

        Raises:
            LaunchError: an argument is an op without an outline.
        """
        launchable, checked = self._launchable, self._checked.copy()
        names = launchable.kernel.signature.names
        for position, argument in enumerate(self._arguments):
            if not is_op(argument):
                continue
            checked[position] = getattr(argument.outline(), launchable.kinds[position], None)
            if checked[position] is None:
                raise LaunchError(
                    f"{launchable.name}: argument {names[position]!r} is an op that has not run: its type is unknown. "
                    "To look at the kernel, pass what .sync() of it yields, or api.meta(shape, dtype), which has no "
                    "elements"
                )
        checked = tiled(launchable.name, names, checked, {**self._generics, **self._extents})
        return launchable.plan(checked, self._generics, self._options)

    def _enqueue_new(self, launch: _Launch, stream: Stream) -> None:
        """Allocate the outputs, and launch."""
        plan, grid, checked, outputs = launch
        parameters = self._launchable.kernel.signature.parameters
        storages: list[Storage] = []
        self._allocated = storages
        uses = [*self._uses]
        for position, op, outline in outputs:
            parts: list[Any] = [op]
            for part in parts:  # which grows in the loop: by the part of the op, the part of that part, ...
                part.begin(composed=True)
                parts += part.parts()
            try:
                # The last part makes the memory.
                storage = part.allocate(stream, outline.nbytes)  # pyright: ignore[reportPossiblyUnboundVariable]
            except BaseException:
                self._failed = op
                if len(parts) > 1:
                    parts[0].failed = parts[-1]
                raise
            storages.append(storage)
            checked[position] = view = outline.view.at(storage)
            # New memory counts as written, also where the kernel only reads the value that fills it.
            uses.append((parameters[position].name, storage, True, view.start, view.stop))
        kernel: CompiledKernel | None = plan.memo.get(stream.device)
        if kernel is None or not kernel.unchanged():
            kernel = self._compile(plan, stream)
        self._uses = uses
        kernel.enqueue(checked, uses, grid, stream)

    def _enqueue_tensor(self, launch: _Launch, position: int, outline: Outline, stream: Stream) -> Any:
        """Enqueue the launch, and return the tensor of one output."""
        self._enqueue_new(launch, stream)
        return outline.whole(cast("View", launch[2][position]))

    def _enqueue_lazy(self, launch: _Launch, stream: Stream) -> Any:
        """Enqueue the launch, and return what it yields."""
        self._enqueue_new(launch, stream)
        _, _, checked, outputs = launch
        arguments = [*self._arguments]
        for position, _, outline in outputs:
            arguments[position] = outline.part(cast("View", checked[position]))
        return self._launchable.yields(tuple(arguments))

    def failed_part(self) -> DeviceOp[Any] | None:
        """See `Operation.failed_part`."""
        return getattr(self, "_failed", None)

    def written(self) -> Iterable[Storage]:
        """The memory that it has allocated itself."""
        return getattr(self, "_allocated", ())
