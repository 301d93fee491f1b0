"""`BoundLaunch`: a launch of a kernel that is repeated.

Arguments are checked once. A relaunch costs little more than the driver's call.

    bound = saxpy(y.mut.partition((1024,)), 2.0, x).bind(stream)
    bound()                     # enqueues; does not wait
    bound.set(a=3.0)
    bound()
    stream.synchronize()

Other operations may use the arguments between relaunches. Each relaunch is ordered behind them, and refused while
another operation holds an argument.

The next wait for the stream raises the failure of a relaunch. On the CPU, later relaunches are skipped until that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuda_async import Storage, Stream, Use
from cuda_async.core.lease import contested, current_holder, refuse_conflicts
from cuda_async.core.order import Nested
from cuda_async.site import user_site
from cutile.errors import ArgumentError, ArgumentTypeError, LaunchError, as_text
from cutile.launch.arguments import Checked, Pointer, check_argument, plain_scalar
from cutile.launch.checks import refuse_disagreement, verify
from cutile.launch.compiled_kernel import chooser_of
from cutile.launch.fastpath import Number, number_of, numbers_of
from cutile.launch.variables import use_variables
from cutile.launch.views import OpenTiledView, PointingView, TiledView, View, shown

if TYPE_CHECKING:
    from cutile.backend.interface import Argument, Change, PreparedLaunch, Target
    from cutile.compile.driver import Compiled
    from cutile.compile.kernels import KernelCache, Plan


_VIEWS = (View, TiledView)
"""Arguments that are tensors."""


class _EmptyLaunch:
    """The prepared launch of an empty grid: does nothing."""

    def launch(self) -> None:
        """Enqueue nothing."""

    def set(self, position: int, number: Argument) -> None:
        """Change nothing."""


class BoundLaunch:
    """A launch bound to its arguments and a stream.

    Made by `kernel(...).bind(stream)`.

    Example:
        >>> from cuda_async import Device
        >>> stream = Device.host().new_stream()
        >>> y = ct.api.zeros((4,)).sync_on(stream)
        >>> @ct.entry
        ... def add(y: ct.Mut, a: ct.f32):
        ...     y.store(y.load() + a)
        >>> bound = add(y.mut.partition((4,)), 1.0).bind(stream)
        >>> bound()
        >>> bound.set(a=10.0)
        >>> bound()
        >>> y.to_numpy().sync_on(stream)
        array([11., 11., 11., 11.], dtype=float32)
    """

    def __init__(
        self,
        kernel: KernelCache,
        plan: Plan,
        target: Target,
        arguments: Sequence[Any],
        checked: Sequence[Checked],
        grid: tuple[int, int, int],
        stream: Stream,
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._target = target
        self._positions = {name: position for position, name in enumerate(kernel.signature.names)}
        self._arguments = list(arguments)  # keeps their memory alive
        self._checked = list(checked)
        self._grid = grid
        self._stream = stream
        self._continue_run = stream.driver.continue_run  # looked up once, and not at each launch
        self._site = user_site()
        self._storages: tuple[tuple[Storage, bool], ...] = ()
        self._default = plan.compiled(target)
        self._chooser = chooser_of(self._default)
        self._variants: dict[Change, Compiled] = {}
        compiled = self._compiled_for(self._checked)
        verify(compiled, kernel.signature.names, self._checked, grid)
        self._prepare(compiled, self._checked)
        self._note_storages()

    def _compiled_for(self, checked: Sequence[Checked]) -> Compiled:
        """The code for a launch with these arguments: the kernel, or a variant of it.

        A variant is compiled with other options, such as split-K for few tile blocks; `change` is the options.
        """
        change = () if self._chooser is None else self._chooser.change(checked, self._grid)
        if not change:
            return self._default
        if change not in self._variants:
            self._variants[change] = self._plan.variant(change).compiled(self._target)
        return self._variants[change]

    def _prepare(self, compiled: Compiled, checked: list[Checked]) -> None:
        """Prepare the launch of a compiled kernel with these arguments.

        If that raises, the launch prepared before stays in place.
        """
        # Global variables of the device: their addresses are parameters after the signature's.
        variables = use_variables(compiled.program.variables, self._stream)
        numbers = numbers_of(compiled)([*checked, *(variable.address for variable in variables)], self._grid)
        # Backends refuse an empty grid, or divide by its extents.
        prepared: PreparedLaunch
        prepared = _EmptyLaunch() if 0 in self._grid else compiled.loaded.prepare(self._grid, numbers, self._stream)
        self._compiled, self._checked, self._variables = compiled, checked, variables
        self._numbers: list[list[tuple[int, Number]]] = [[] for _ in self._arguments]
        """By argument: positions of the compiled parameters that it sets, and the functions for their numbers."""
        for place, parameter in enumerate(compiled.executable.parameters):
            # -1: the grid, the workspace, the report. Beyond the arguments: the device's variables. `set` changes none.
            if 0 <= parameter.argument < len(self._arguments):
                self._numbers[parameter.argument].append((place, number_of(parameter)))
        self._prepared = prepared
        self._launch = prepared.launch  # looked up once, and not at each launch

    @property
    def stream(self) -> Stream:
        """The stream on which it launches."""
        return self._stream

    def __call__(self, *others: object) -> None:
        """Enqueue the kernel; does not wait.

        Raises:
            ArgumentTypeError: there are arguments; `set` changes those of the launch.
            OwnershipError: another operation holds an argument in a conflicting way, or a graph uses one that this
                launch writes.
            DeviceError: the device was lost, or an earlier operation that was to write an argument failed.
        """
        if others:
            names = ", ".join(f"{name}=..." for name in self._kernel.signature.names)
            raise ArgumentTypeError(
                f"{self._kernel.signature.name}: a bound launch takes no arguments, got {as_text(others)}; change them "
                f"by name before: bound.set({names})"
            )
        stream = self._stream
        submission = stream.submission
        try:  # as `with submission:`, in a third of the time
            if not submission.acquire(False):  # `blocking`; the keyword would cost more
                with Nested(current_holder(), stream):
                    submission.acquire()
            # The relaunches up to the next wait are one run of the driver. If one fails, those after it are skipped.
            self._continue_run()
            for storage, write in self._storages:
                if storage.leases and contested(storage.leases, write):  # rarely: compare the byte ranges only then
                    refuse_conflicts(self._uses(), self, self._site)
                storage.order(stream, write)
            self._launch()
            if stream.lenders:  # streams of other libraries that own memory of this launch: they wait for it
                stream.lead_lenders()
        finally:
            try:  # noqa: SIM105 - `suppress` costs more than the lock
                submission.release()
            except RuntimeError:  # Ctrl-C ended `acquire`, so that the lock is not held
                pass

    def set(self, **arguments: Any) -> None:
        """Change arguments by name for the launches to come.

        Raises:
            ArgumentError: there is no such argument; or a tensor has another layout, is on another device, or overlaps
                another argument.
            ArgumentTypeError: the parameter takes no such argument.
            LaunchError: a partition has another grid, or the launch would fail a check of the kernel.
            OwnershipError: a tensor is held, or cannot be written.
        """
        signature = self._kernel.signature
        changes: dict[int, Checked] = {}
        for name, argument in arguments.items():
            position = self._positions.get(name)
            if position is None:
                raise ArgumentError(f"{signature.name} has no argument {name!r}; it has {', '.join(signature.names)}")
            changes[position] = self._check(position, argument)
        candidate = self._checked.copy()
        has_tensors = False
        for position, checked in changes.items():
            candidate[position] = checked
            has_tensors = has_tensors or isinstance(checked, _VIEWS)
        if has_tensors:
            refuse_shared(signature.name, kernel_uses(signature.names, candidate))
            refuse_disagreement(signature, candidate)
        compiled = self._compiled_for(candidate)
        verify(compiled, signature.names, candidate, self._grid)
        if compiled is not self._compiled:
            self._prepare(compiled, candidate)
        else:
            self._checked = candidate
            for position in changes:
                for place, number in self._numbers[position]:
                    self._prepared.set(place, number(candidate, self._grid))
        for position in changes:
            self._arguments[position] = arguments[signature.names[position]]
        if has_tensors:
            self._note_storages()

    def _check(self, position: int, argument: Any) -> Checked:
        signature = self._kernel.signature
        parameter = signature.parameters[position]
        checked = check_argument(signature.name, parameter, argument)
        if position in signature.generic_scalars:
            dtype = self._plan.specialization.generics[str(parameter.dtype)]
            return plain_scalar(checked, dtype, signature.name, parameter.name)
        if isinstance(checked, Pointer) and checked.facts is not None:
            bound_dtype = self._plan.specialization.pointers[parameter.name]
            if checked.facts.dtype is not bound_dtype:
                raise ArgumentTypeError(
                    f"{signature.name}: argument {parameter.name!r} leads to {checked.facts.dtype}, the one bound to "
                    f"{bound_dtype}; bind a new launch for it"
                )
        old = self._checked[position]
        if isinstance(checked, OpenTiledView):
            assert isinstance(old, TiledView)
            raise ArgumentError(
                f"{signature.name}: argument {parameter.name!r} is cut into tiles of {shown(checked.tile)}, and a "
                f"bound launch has no generics to give; cut it as the one bound: .partition({old.tile})"
            )
        if not isinstance(checked, _VIEWS):
            return checked
        assert isinstance(old, View | TiledView)
        # Extents that the signature declares may be compiled in.
        other_extents = parameter.extents is not None and checked.facts.shape != old.facts.shape
        if checked.facts.layout is not old.facts.layout or other_extents:
            raise ArgumentError(
                f"{signature.name}: argument {parameter.name!r} has another layout than the one bound: "
                f"{_layout(checked)} in place of {_layout(old)}; bind a new launch for it"
            )
        if isinstance(checked, TiledView) and not self._fits_grid(checked):
            raise LaunchError(
                f"{signature.name}: argument {parameter.name!r} has the grid {checked.grid}, the bound launch "
                f"{self._grid}; bind a new launch for it"
            )
        storage = checked.storage
        if storage.device is not self._stream.device:
            raise ArgumentError(
                f"{signature.name}: argument {parameter.name!r} is on {storage.device}, the bound launch on "
                f"{self._stream.device}; copy it there first"
            )
        return checked

    def _fits_grid(self, partition: TiledView) -> bool:
        """Whether the bound grid is the partition's.

        For a partial-coverage partition, whether the bound grid lies within the partition's.
        """
        if partition.exact:
            return partition.grid == self._grid
        return all(extent <= limit for extent, limit in zip(self._grid, partition.grid, strict=True))

    def _uses(self) -> list[Use]:
        return kernel_uses(self._kernel.signature.names, self._checked)

    def _note_storages(self) -> None:
        uses = self._uses()
        self._storages = tuple((use.storage, use.write) for use in uses if isinstance(use.storage, Storage))
        self._storages += tuple((variable, True) for variable in self._variables)

    def __repr__(self) -> str:
        return f"<bound launch of {self._kernel.signature.name} on {self._stream}>"


def kernel_uses(names: Sequence[str], checked: Sequence[Checked]) -> list[Use]:
    """The bytes that a launch reads and writes, by argument."""
    uses: list[Use] = []
    for name, argument in zip(names, checked, strict=True):
        if isinstance(argument, View | TiledView):
            uses.append(Use(name, argument.storage, argument.writes, *argument.byte_range))
        if isinstance(argument, PointingView):
            pointed = enumerate(argument.others)
            uses += [Use(f"{name}[{i}]", x.storage, argument.others_written, *x.byte_range) for i, x in pointed]
    return uses


def _overlap(a: Use, b: Use) -> bool:
    assert a.stop is not None
    assert b.stop is not None
    return a.storage is b.storage and (a.write or b.write) and a.start < b.stop and b.start < a.stop


def refuse_shared(kernel: str, uses: Sequence[Use]) -> None:
    """Refuse arguments that overlap in memory where the kernel writes one of them.

    Raises:
        ArgumentError: names both arguments.
    """
    for position, use in enumerate(uses):
        for other in uses[:position]:
            if _overlap(other, use):
                raise ArgumentError(
                    f"{kernel}: arguments {other.argument!r} and {use.argument!r} share memory, and the kernel writes "
                    "it; pass a copy (dup()) for one of the two"
                )


def _layout(view: View | TiledView) -> str:
    """The facts of a tensor that its kernel is compiled for, and its extents, as text."""
    layout = view.facts.layout
    unit = "no stride of 1" if 1 not in layout.strides else f"stride 1 along axis {layout.strides.index(1)}"
    tiles = "" if layout.tile is None else f", tiles of {layout.tile}"
    return f"{layout.dtype} of shape {view.shape} ({unit}, aligned to {layout.alignment} bytes{tiles})"
