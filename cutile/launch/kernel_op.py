"""`KernelOp`: a kernel with its arguments, as a `DeviceOp`.

Arguments are checked before anything is enqueued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from typing import Any, cast

from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    Stream,
    Use,
    default_device,
    register_internal_package,
)
from cuda_async.core.lease import Lease, current_holder, lend, settle, words_of
from cuda_async.core.operation import BUILT
from cuda_async.core.prerequisite import Prerequisite
from cuda_async.core.stream import expect_stream
from cuda_async.site import site_of
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.declared import checked_options
from cutile.compile.driver import Request
from cutile.compile.kernels import Plan
from cutile.errors import GenericsError, LaunchError, MissingGenericsError, own_keywords
from cutile.launch.arguments import Checked, carried, give_back, is_op
from cutile.launch.bound import BoundLaunch
from cutile.launch.checks import Grid, check_grid
from cutile.launch.compiled_kernel import CompiledKernel, check_devices, plan_of_launch
from cutile.launch.fastpath import ViewUse
from cutile.launch.launchable import Launchable, TracedLaunch, launch_words, without_places
from cutile.launch.lazy import LazyOp
from cutile.launch.notebook import Listing
from cutile.launch.searching import SearchedOp, Space, is_search, space_of
from cutile.launch.target import INTERPRET, chosen_backend, shown_target, target_of
from cutile.launch.views import tiled

_NO_EXTENTS: Mapping[str, Any] = {}

# Frames of this package are skipped where an operation's site is looked for: the site is the user's line. This module
# registers the package for `cutile.host` too, since the import of any part of `cutile` imports this module.
register_internal_package("cutile")


class KernelOp(LazyOp, SearchedOp, DeviceOp[Any]):
    """A launch that has not run.

    Made by calling a kernel. The methods that configure it, such as `generics` and `grid`, return the op itself.

    Yields a named tuple of all its arguments: the same objects that were passed.
    """

    __slots__ = (
        "_allocated",
        "_arguments",
        "_backend",
        "_checked",
        "_checks",
        "_extents",
        "_failed",
        "_generics",
        "_given_grid",
        "_grid",
        "_launchable",
        "_lazy",
        "_more",
        "_options",
        "_plan",
        "_space",
        "_uses",
    )

    has_effects = True

    def __init__(
        self,
        launchable: Launchable,
        arguments: tuple[Any, ...],
        generics: Mapping[str, Any],
        options: CompileOptions,
        more: tuple[Any, ...] | None = None,
    ) -> None:
        """Check and lend the arguments.

        Args:
            launchable: the data that all launches of the kernel share.
            arguments: one for each launch parameter; groups are taken apart already.
            generics: the generics that the call gave by name.
            options: the kernel's own compile options.
            more: `plan_key(generics, options)`, if the caller has it; else None.
        """
        place = site_of(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]  # the line that called the kernel
        lease = Lease((), place, place)
        self._place = place  # from here to `_used`: `DeviceOp.__init__` inlined, since each launch pays for the call
        self._token = place  # compared by identity: no other op has this object
        self._leases = [lease]
        self._state = BUILT
        self._used = None
        self._launchable = launchable
        self._arguments = arguments
        self._generics = generics
        self._options = options
        self._more = more
        self._backend = chosen_backend()
        self._given_grid: Grid | None = None
        self._grid: Grid | None
        self._plan: Plan | None
        self._lazy: tuple[DeviceOp[Any], ...] = ()
        self._space: Space | None = None
        self._extents = _NO_EXTENTS
        self._checked: list[Checked]
        self._uses: Sequence[ViewUse]
        try:
            recognized = launchable.recognizers[*map(type, arguments)](arguments, lease, more)
            if recognized is None:
                self._leases = []
                self._plan = self._grid = None
                self._check(arguments)
                if self._uses:
                    self._leases.append(lend(self._uses, place, place))
            else:
                # `alone`: no other lease is on the memory. Where an argument is an op, it is None in place of True.
                self._checked, self._uses, self._plan, self._grid, alone = recognized
                if not alone or current_holder() is not None:
                    if self._plan is None:
                        self._claim(arguments, self._checked)
                    if alone is False or current_holder() is not None:
                        settle(lease)  # raises on a conflict
        except BaseException:
            self.discard()
            for each in arguments:
                if is_op(each) and each.state == "built":
                    each.discard()
            raise

    @property
    def arity(self) -> int:  # type: ignore[override]  # a property for an attribute
        """How many arguments it yields."""
        return self._launchable.width

    @property
    def graph_node(self) -> bool:  # type: ignore[override]  # a property for an attribute
        """Whether a graph may record it: not with ops as arguments, which may allocate."""
        return not self._lazy

    def _check(self, arguments: tuple[Any, ...]) -> None:
        """Check each known argument.

        Arguments that are ops become parts of this op.
        """
        launchable = self._launchable
        checked = [None if is_op(each) else launchable.check(i, each) for i, each in enumerate(arguments)]
        arguments = self._arguments = carried(arguments, checked)
        self._checked, self._uses = checked, launchable.uses(checked)
        self._claim(arguments, checked)
        if self._lazy:
            launchable.recognizers.learn(checked)
        self._check_known()

    def _claim(self, arguments: tuple[Any, ...], checked: Sequence[Checked]) -> None:
        """Make parts of the arguments that are ops."""
        for argument, view_or_number in zip(arguments, checked, strict=True):
            if view_or_number is None:
                argument.claim(self._place)
                self._lazy = (*self._lazy, argument)

    @contextmanager
    def _giving_back(self) -> Generator[None]:
        """Discard the op if its configuration fails.

        A discarded op lends nothing, and no warning says that it never ran.
        """
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def warns(self) -> bool:
        """Whether dropping it unrun is likely a mistake.

        Dropping a launch of `api.meta` tensors is none: it cannot run.
        """
        return super().warns() and not any(use[1].without_memory for use in self._uses)

    def _give_back(self) -> None:
        super()._give_back()
        give_back(getattr(self, "_arguments", ()))  # absent where __init__ failed

    def label(self) -> str:
        return self._launchable.name

    def detail(self) -> str:
        return words_of(self._uses)

    def parts(self) -> Iterable[DeviceOp[Any]]:
        return self._lazy

    # -- configuration ------------------------------------------------------------------------

    def generics(self, values: Sequence[Any] | None = None, /, **named: Any) -> KernelOp:
        """Set generics: all by a list in declared order, or some by name.

        A dtype is given as the class or by its name: `ct.f32` or `"f32"`.

        A list of dictionaries, or of lists in declared order, is a search: the launch runs with the fastest of these
        configurations. The keys of a dictionary are generics, extents that partitions name
        (`z.partition(("BM", "BN"))`), and `"options"` for compile options. Trials run on copies of the tensors that
        the kernel writes; see docs/autotuning.md.

        Raises:
            GenericsError: the number or kind of values is wrong, or they contradict the partitions.

        Example:
            >>> @ct.entry
            ... def scale(y: ct.Mut, *, BY: ct.Const):
            ...     y.store(y.load() * BY)
            >>> y = ct.api.ones((4,)).sync()
            >>> scale(y.mut.partition((4,))).generics([3]).sync().y.tensor.to_numpy().sync()
            array([3., 3., 3., 3.], dtype=float32)
            >>> scale(y.mut.partition((4,))).generics(BY=2).sync().y.tensor.to_numpy().sync()
            array([6., 6., 6., 6.], dtype=float32)
        """
        with self._giving_back():
            if named and values is not None:
                raise GenericsError(f"{self.label()}: .generics takes a list of all values, or some by name; got both")
            if not named and values is None:
                raise GenericsError(f"{self.label()}: .generics() has no values; write .generics([64]), or by name")
            if values is not None and is_search(values, self._launchable.kernel.signature.generics):
                return self.search(space_of(self._launchable, values))
            self._space = None
            named = self._take_extents(named)
            listed = self._launchable.kernel.generics(values, named)
            for name, value in self._generics.items():
                if listed.get(name, value) != value:
                    raise GenericsError(
                        f"{self.label()}: generic {name!r} was set to {value!r} before, and .generics says "
                        f"{listed[name]!r}; say it once"
                    )
            self._generics, self._more = {**self._generics, **listed}, None
            self._check_known()
        return self

    def grid(self, grid: tuple[int, ...] | int) -> KernelOp:
        """Set the launch grid: one to three extents.

        Where partitions determine the grid, it must be theirs. Prefix partitions take any grid up to theirs.

        Raises:
            LaunchError: it is not one to three positive integers, has 2**31 tile blocks or more, or does not fit the
                partitions.

        Example:
            >>> @ct.entry
            ... def add_one(y: ct.Mut):
            ...     y.store(y.load() + 1)
            >>> y = ct.api.zeros((6,)).sync()
            >>> _ = add_one(y.mut.partition_prefix((2,))).grid(2).sync()  # the first two of three tiles
            >>> y.to_numpy().sync()
            array([1., 1., 1., 1., 0., 0.], dtype=float32)
        """
        with self._giving_back():
            self._given_grid = check_grid(self.label(), grid)
            self._check_known()
        return self

    def const_grid(self, grid: tuple[int, ...] | int) -> KernelOp:
        """The same as `grid`.

        A grid is never a constant of the compiled code: another one compiles nothing.
        """
        return self.grid(grid)

    @own_keywords({option.name: f"write ct.CompileOptions({option.name}=...)" for option in fields(CompileOptions)})
    def compile_options(self, options: CompileOptions) -> KernelOp:
        """Set hints for the compiler.

        Raises:
            ArgumentTypeError: they are no `CompileOptions`.

        Example:
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> op = double(ct.api.ones((64,)).sync().partition((64,)))
            >>> op.compile_options(ct.CompileOptions(num_worker_warps=4)).sync().y.shape
            (64,)
        """
        with self._giving_back():
            self._options, self._more = checked_options(options, f"{self.label()}: compile_options"), None
            self._check_known()
        return self

    def interpret(self, *, check: bool = True) -> KernelOp:
        """Run this launch as plain Python.

        The kernel's own function, tile block by tile block, on NumPy arrays.

        Breakpoints, `print` and tracebacks are Python's; a tile shows its elements, and `tile.array` has them. The
        kernel runs in the thread that runs the op, which waits for it. Tensors may be on any device.

        Args:
            check: look for races between tile blocks, reads of elements that nothing wrote, accesses outside of a
                tensor, and reductions or scans whose identity changes elements. Raise `RaceError`,
                `UninitialisedReadError`, `OutOfBoundsError` or `IdentityError` with the lines.

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
        """Check the signature, the generics and the grid.

        Where an argument is an op, or generics are searched, this is done later: they are not known yet.

        Missing generics are no error yet: `.generics([...])` may give them. A run without them is refused.
        """
        if self._lazy or self._space is not None:
            return
        with suppress(MissingGenericsError):
            if self._given_grid is None and not self._launchable.tells_grid(self._checked):
                self._cut()  # no grid yet: .grid(...) may still come
                self._plan = self._launchable.plan(self._checked, self._generics, self._options)
            else:
                self._specialize()

    def _cut(self) -> None:
        """Cut the partitions whose tiles have names, by extents and generics."""
        launchable = self._launchable
        extents = {**self._generics, **self._extents}
        self._checked = tiled(launchable.name, launchable.kernel.signature.names, self._checked, extents)

    def _specialize(self) -> tuple[Plan, Grid]:
        self._cut()
        launchable, checked = self._launchable, self._checked
        plan = self._plan = launchable.plan(checked, self._generics, self._options)
        grid = self._grid = launchable.grid(checked, self._given_grid)
        return plan, grid

    def _plan_and_grid(self) -> tuple[Plan, Grid]:
        plan, grid = self._plan, self._grid
        return self._specialize() if plan is None or grid is None else (plan, grid)

    def _again(self, arguments: tuple[Any, ...], generics: Mapping[str, Any], options: CompileOptions) -> KernelOp:
        """Another launch of the kernel, by the same backend and over the same grid."""
        op = KernelOp(self._launchable, arguments, generics, options)
        op._backend = self._backend
        return op if self._given_grid is None else op.grid(self._given_grid)

    # -- running ------------------------------------------------------------------------------

    def fast_path(self, *, waited: bool) -> Callable[[Stream], Any] | None:
        """The function that enqueues the launch on a stream.

        None if arguments have to run first, if it is interpreted, or if its search has not run.
        """
        backend = self._backend
        if self._space is not None and (self._lazy or self._decide() is not None):
            return None
        if self._lazy:
            launch = self._find_launch()
            return None if launch is None else partial(self._enqueue_lazy, launch)
        # `is not None` first: comparing strings takes longer, and most launches choose no backend.
        return None if backend is not None and backend == INTERPRET else self._enqueue

    def execute(self, context: ExecutionContext) -> Any:
        """Run arguments that are ops in order, compile if need be, enqueue the launch."""
        if self._lazy:
            self._run_lazy(context)
        if self._space is not None:
            self._require_decision()
        if self._backend == INTERPRET:
            return self._interpret(context)
        return self._enqueue(context.stream)

    def trace(self, context: ExecutionContext) -> Any:
        """Record the launch in place of running it, and yield its arguments.

        Arguments that are ops are executed first.

        Raises:
            TuningError: it searches for its configuration, and no search has found one.
        """
        if self._lazy:
            self._run_lazy(context)
        self._require_decision()
        plan, grid = self._plan_and_grid()
        device, recorder = context.device, cast("Any", context.stream.recorder)
        self._check_device(device)
        for use in self._uses:
            use[1].use(context.stream, write=use[2])
        if 0 not in grid:
            facts = (plan, tuple(self._checked), grid, self._options, device, self._backend, self.site)
            recorder.launches.append(TracedLaunch(self._launchable, *facts))
        return self._launchable.yields(self._arguments)

    def _interpret(self, context: ExecutionContext) -> Any:
        from cutile.launch.interpreted import run_interpreted

        plan, grid = self._plan_and_grid()
        self._check_device(context.device)
        if 0 in grid:
            return self._launchable.yields(self._arguments)
        checks: bool = getattr(self, "_checks", True)  # set by `interpret`, and only there
        run_interpreted(context, plan, self._checked, [Use(*use) for use in self._uses], grid, checks)
        return self._launchable.yields(self._arguments)

    def _enqueue(self, stream: Stream) -> Any:
        plan, grid = self._plan, self._grid
        if plan is None or grid is None:
            plan, grid = self._specialize()
        kernel: CompiledKernel | None = plan.memo.get(stream.device) if self._backend is None else None
        if kernel is None or not kernel.unchanged():
            if 0 in grid:  # the outputs have no elements: nothing is compiled
                return self._launchable.yields(self._arguments)
            kernel = self._compile(plan, stream)
        kernel.enqueue(self._checked, self._uses, grid, stream)
        return self._launchable.yields(self._arguments)

    def _compile(self, plan: Plan, stream: Stream) -> CompiledKernel:
        self._check_device(stream.device)
        kernel = CompiledKernel(plan, self._launchable.kernel, stream, self._backend)
        if self._backend is None:
            plan.memo[stream.device] = kernel
        return kernel

    def _check_device(self, device: Device) -> None:
        check_devices(self.label(), self._uses, device)

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """The compilation, if not done yet: `await` runs it on a thread of its own."""
        plan, grid = self._plan, self._grid
        if plan is not None and grid is not None and self._backend is None and not self._lazy:
            kernel: CompiledKernel | None = plan.memo.get(device)
            if kernel is not None and kernel.unchanged() and kernel.compiles_nothing(self._checked, grid):
                return ()
        return self._find_preparations(device)

    def _find_preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        """The preparations of the arguments; then the search or the compilation."""
        yield from super().preparations(device)
        if self._space is not None and (self._lazy or self._decide() is not None):
            yield Prerequisite(lambda: self._find(device))
            return
        plan = self._plan
        if plan is not None and self._backend != INTERPRET and 0 not in (self._grid or ()):
            target = target_of(device, self._backend)
            if not (plan.is_compiled(target) and self._plan_of_launch(plan, target).is_compiled(target)):
                yield lambda: self._plan_of_launch(plan, target).compiled(target)

    def _plan_of_launch(self, plan: Plan, target: Target) -> Plan:
        """The plan that the launch runs: a variant's, if the known grid asks for one."""
        grid = self._grid
        return plan if grid is None else plan_of_launch(plan, target, self._checked, grid)

    def request(self, device: Device) -> Request | None:
        """The compilation that a launch on `device` needs.

        None if an argument has to run first, or if the launch is interpreted.
        """
        if self._plan is None or self._backend == INTERPRET:
            return None
        return self._plan.request(target_of(device, self._backend))

    def code(self, device: Device) -> str:
        """A launch on `device` as text, the same wherever the kernel is in its file.

        It is the IR; the kernel's source text if an argument has to run first, or if the launch is interpreted.
        """
        request = self.request(device)
        if request is None:
            return "\n".join(self._launchable.kernel.source.lines.values())
        return without_places(self.render("ir"))

    def words(self) -> str:
        """Its arguments' layouts, extents and numbers, its grid and options, as text."""
        return launch_words(self._launchable, self._checked, self._grid, self._options)

    def bind(self, stream: Stream) -> BoundLaunch:
        """A launch on `stream`, to be repeated at a driver call's cost; compiles now.

        The op is used up: it cannot run afterwards, and lends its arguments no longer.

        Raises:
            OwnershipError: the op was used before.
            LaunchError: an argument is an op that has not run.
            ContextError: an argument is on another device than the stream.

        Example:
            >>> from cuda_async import Device
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> stream = Device.host().new_stream()
            >>> y = ct.api.ones((4,)).sync_on(stream)
            >>> bound = double(y.mut.partition((4,))).bind(stream)
            >>> bound()
            >>> bound()
            >>> y.to_numpy().sync_on(stream)
            array([4., 4., 4., 4.], dtype=float32)
        """
        with self._giving_back():
            expect_stream(stream)
            if self._lazy:
                raise LaunchError(f"{self.label()}: to bind it, pass tensors rather than ops that have not run")
            if self._space is not None:
                self._find(stream.device)
            if self._plan is None:
                self._specialize()  # raises, and names the missing generics
            assert self._plan is not None
            grid = self._launchable.grid(self._checked, self._given_grid)
            if self._backend == INTERPRET:
                raise LaunchError(f"{self.label()}: an interpreted launch cannot be bound; run it with .sync()")
            self._check_device(stream.device)
            target = target_of(stream.device, self._backend)
            bound = BoundLaunch(
                self._launchable.kernel, self._plan, target, self._arguments, self._checked, grid, stream
            )
        self.mark_bound()
        return bound

    def explain(self, arch: str | None = None) -> str:
        """The plan of this launch in about ten lines, and why it is not faster.

        See `Kernel.explain`.

        Its compile options and generics are taken into account. The op is not used up, nor are arguments that are ops:
        what `api.zeros(...)` and its `.partition(...)` will yield is known before they run.

        Args:
            arch: explain it for this architecture, such as "sm_90a"; no GPU is needed.

        Raises:
            LaunchError: an argument is another op that has not run, so its type is not known yet.

        Example:
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> op = double(ct.api.meta((64,)).partition((64,))).compile_options(ct.CompileOptions(num_worker_warps=2))
            >>> print(op.explain("sm_80").splitlines()[2])
              warps           2 warps, all alike: 64 threads
        """
        return self.render("plan", arch)

    def render(self, stage: str, arch: str | None = None) -> str:
        """The text of one stage of this launch's compilation.

        `arch` such as "sm_90a" compiles for a GPU.

        The op is not used up, nor are arguments that are ops; see `explain`.

        Raises:
            LaunchError: an argument is an op that has not run, and whose type is not known yet.
            ValueError: there is no such stage.

        Example:
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> op = double(ct.api.meta((64,)).partition((64,)))
            >>> "warps = " in op.render("lowered", "sm_90a")
            True
        """
        self._require_decision()
        plan = self._plan_as_outlined() if self._lazy else self._plan_and_grid()[0]
        device = self._uses[0][1].device if self._uses else default_device()
        return Listing(plan.render(shown_target(device, self._backend, arch), stage))
