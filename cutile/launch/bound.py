"""`BoundLaunch`: a launch of a kernel that is repeated.

Arguments are checked once. A relaunch costs little more than the driver's call.

    bound = saxpy(y.mut.partition((1024,)), 2.0, x).bind(stream)
    bound()                     # enqueues; does not wait
    bound.set(a=3.0)
    bound()
    stream.synchronize()

Other operations may use the arguments between relaunches. Each relaunch is ordered behind them, and refused while
another operation holds an argument.

The next wait for the stream raises the failure of a relaunch. On the CPU, the relaunches behind the failed one are
skipped until that wait. On a GPU they run.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from cuda_async import OwnershipError, Storage, Stream, Use
from cuda_async.core.lease import contested, current_holder, refuse_conflicts
from cuda_async.core.order import Nested
from cuda_async.site import user_site
from cutile.errors import ArgumentError, ArgumentTypeError, LaunchError, as_text
from cutile.launch.arguments import Checked, Pointer, check_argument, plain_scalar
from cutile.launch.checks import kernel_uses, refuse_disagreement, refuse_overlaps, verify
from cutile.launch.compiled_kernel import chooser_of
from cutile.launch.fastpath import Number, number_of, numbers_of
from cutile.launch.variables import place_of
from cutile.launch.views import OpenTiledView, TiledView, View, shown

if TYPE_CHECKING:
    from cutile.backend.interface import Argument, Change, PreparedLaunch, Target
    from cutile.compile.driver import Compiled
    from cutile.compile.kernels import KernelCache, Plan
    from cutile.frontend.parameters import Parameter


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

    Made by `kernel(...).bind(stream)`. It keeps the values that outer names of the kernel had then. Several threads may
    call it at once, also while one thread calls `set`; two threads must not call `set` at once.

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
        self._codes: dict[int, object] = {}
        """Loaded code that was launched, by `id`."""
        # The GPU may still run the code when nobody has this object any more. The stream keeps the code then. A
        # finalizer of Python (`__del__`) would not do: a collection may call it behind that of the code.
        weakref.finalize(self, _hold, stream, self._codes).atexit = False
        compiled = self._compiled_for(self._checked)
        verify(compiled, kernel.signature.names, self._checked, grid)
        with _submission(stream):
            self._prepare(compiled, self._checked)

    def _compiled_for(self, checked: Sequence[Checked]) -> Compiled:
        """The code for a launch with these arguments: the kernel, or a variant of it.

        A variant is compiled with other options, such as split-K for few tile blocks; `change` is the options.

        Raises:
            LaunchError: a variant is to be compiled, and an outer name has changed since the binding.
        """
        change = () if self._chooser is None else self._chooser.change(checked, self._grid)
        if not change:
            return self._default
        if change not in self._variants:
            if not self._default.program.captures.unchanged():
                raise LaunchError(
                    f"{self._kernel.signature.name}: an outer name of the kernel has another value than when it was "
                    "bound, and these arguments need a variant that is not compiled yet; bind a new launch"
                )
            self._variants[change] = self._plan.variant(change).compiled(self._target)
        return self._variants[change]

    def _prepare(self, compiled: Compiled, checked: list[Checked]) -> None:
        """Prepare the launch of a compiled kernel with these arguments.

        The caller holds the stream's lock: GPU code may get a workspace, which is filled on the stream. If this raises,
        the launch prepared before stays in place.
        """
        # Global variables of the device: their addresses are parameters after the signature's.
        variables = [place_of(variable, self._stream) for variable in compiled.program.variables]
        arguments = [*checked, *(variable.address for variable in variables)]
        is_empty = 0 in self._grid  # backends refuse an empty grid, or divide by its extents
        prepared: PreparedLaunch = _EmptyLaunch()
        if not is_empty:
            self._continue_run()
            prepared = compiled.loaded.prepare(self._grid, numbers_of(compiled)(arguments, self._grid), self._stream)
            self._codes[id(compiled.loaded)] = compiled.loaded
        self._compiled, self._checked, self._variables = compiled, checked, variables
        self._numbers: list[list[tuple[int, Number]]] = [[] for _ in self._arguments]
        """By argument: positions of the compiled parameters that it sets, and the functions for their numbers."""
        for place, parameter in enumerate(compiled.executable.parameters):
            # -1: the grid, the workspace, the report. Beyond the arguments: the device's variables. `set` changes none.
            if 0 <= parameter.argument < len(self._arguments):
                self._numbers[parameter.argument].append((place, number_of(parameter)))
        self._prepared = prepared
        self._launch = prepared.launch  # looked up once, and not at each launch
        self._storages = self._collect_storages()

    @property
    def stream(self) -> Stream:
        """The stream on which it launches."""
        return self._stream

    def __call__(self, *arguments: object) -> None:
        """Enqueue the kernel; does not wait.

        Raises:
            ArgumentTypeError: there are arguments; `set` changes those of the launch.
            OwnershipError: another operation holds an argument in a conflicting way, or a graph uses one that this
                launch writes.
            DeviceError: the device was lost. If an earlier operation that was to write an argument failed, its error
                is raised, whatever its type is.
        """
        if arguments:
            names = ", ".join(f"{name}=..." for name in self._kernel.signature.names)
            raise ArgumentTypeError(
                f"{self._kernel.signature.name}: a bound launch takes no arguments, got {as_text(arguments)}; "
                f"change them by name before the call: bound.set({names})"
            )
        stream = self._stream
        submission = stream.submission
        try:  # as `with submission:`, in a third of the time
            if not submission.acquire(False):  # `blocking`; the keyword would cost more
                # Another thread submits here. This thread may be amid another submission: note that it waits, so that a
                # ring of waits is seen (`order.py`).
                with Nested(current_holder(), stream):
                    submission.acquire()
            # The relaunches up to the next wait are one run of the driver. On the CPU, those behind a failed one are
            # skipped.
            self._continue_run()
            for storage, write in self._storages:
                if storage.leases and contested(storage.leases, write):  # rarely: compare the byte ranges only then
                    self._refuse_conflicts()
                storage.order(stream, write)
            self._launch()
            if stream.lenders:  # streams of other libraries that own memory of this launch: they wait for it
                stream.lead_lenders()
        finally:
            try:  # noqa: SIM105 - `suppress` costs more than the lock
                submission.release()
            except RuntimeError:  # Ctrl-C ended the wait in `acquire`: another thread has the lock
                pass

    def _refuse_conflicts(self) -> None:
        """Refuse arguments that another operation holds in a conflicting way.

        The storages before the conflict have noted a use by the stream's next piece. No launch comes, so that number is
        used up: nobody shall wait for a later piece in its place.
        """
        try:
            refuse_conflicts(self._uses(), self, self._site)
        except OwnershipError:
            self._stream.sequence += 1
            raise

    def set(self, /, **arguments: Any) -> None:
        """Change arguments by name for the launches to come.

        Raises:
            ArgumentError: there is no such argument; or a tensor has another layout, is on another device, or overlaps
                another argument.
            ArgumentTypeError: the parameter takes no such argument.
            LaunchError: a partition has another grid; or the launch would fail a check of the kernel, or needs another
                variant of it, for which an outer name has changed.
            OwnershipError: a tensor was given away, or cannot be written. A tensor that another operation holds is
                refused by the next call.
        """
        signature = self._kernel.signature
        changes: dict[int, Checked] = {}
        for name, argument in arguments.items():
            position = self._positions.get(name)
            if position is None:
                names = ", ".join(map(_both_names, signature.parameters))
                raise ArgumentError(f"{signature.name} has no argument {name!r}; it has {names}")
            changes[position] = self._check(position, argument)
        candidate = self._checked.copy()
        has_tensors = False
        for position, checked in changes.items():
            candidate[position] = checked
            has_tensors = has_tensors or isinstance(checked, _VIEWS)
        # Nothing is changed before all checks have passed.
        if has_tensors:
            refuse_overlaps(signature.name, kernel_uses(signature.parameters, candidate))
            refuse_disagreement(signature, candidate)
        compiled = self._compiled_for(candidate)
        verify(compiled, signature.names, candidate, self._grid)
        with _submission(self._stream):  # another thread's call launches the old arguments or the new ones
            if compiled is not self._compiled:
                self._prepare(compiled, candidate)
            else:
                for place, number in [at for position in changes for at in self._numbers[position]]:
                    self._prepared.set(place, number(candidate, self._grid))
                self._checked = candidate
                if has_tensors:
                    self._storages = self._collect_storages()
            for position in changes:
                self._arguments[position] = arguments[signature.names[position]]

    def _check(self, position: int, argument: Any) -> Checked:
        signature = self._kernel.signature
        parameter = signature.parameters[position]
        checked = check_argument(signature.name, parameter, argument)
        if position in signature.generic_scalars:
            dtype = self._plan.specialization.generics[str(parameter.dtype)]
            return plain_scalar(checked, dtype, signature.name, parameter.title)
        if isinstance(checked, Pointer) and checked.facts is not None:
            bound_dtype = self._plan.specialization.pointers[parameter.name]
            if checked.facts.dtype is not bound_dtype:
                raise ArgumentTypeError(
                    f"{signature.name}: argument {parameter.title!r} leads to {checked.facts.dtype}, the one bound to "
                    f"{bound_dtype}; bind a new launch for it"
                )
        old = self._checked[position]
        if isinstance(checked, OpenTiledView):
            assert isinstance(old, TiledView)
            raise ArgumentError(
                f"{signature.name}: argument {parameter.title!r} is cut into tiles of {shown(checked.tile)}, and a "
                f"bound launch takes no generics; cut it like the bound partition: .partition({old.tile})"
            )
        if not isinstance(checked, _VIEWS):
            return checked
        assert isinstance(old, View | TiledView)
        # Extents that the signature declares are compiled in. Those that only have names are not.
        other_extents = parameter.declares and checked.facts.shape != old.facts.shape
        if checked.facts.layout is not old.facts.layout or other_extents:
            raise ArgumentError(
                f"{signature.name}: argument {parameter.title!r} has another layout than the one bound: "
                f"{_layout(checked)} in place of {_layout(old)}; bind a new launch for it"
            )
        if isinstance(checked, TiledView) and not self._fits_grid(checked):
            raise LaunchError(
                f"{signature.name}: argument {parameter.title!r} has the grid {checked.grid}, the bound launch "
                f"{self._grid}; bind a new launch for it"
            )
        # Of a tensor of addresses, the tensors at the addresses as well.
        for name, storage in (
            (use.argument, cast("Storage", use.storage)) for use in kernel_uses([parameter], [checked])
        ):
            if storage.device is not self._stream.device:
                raise ArgumentError(
                    f"{signature.name}: argument {name!r} is on {storage.device}, the bound launch on "
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
        return kernel_uses(self._kernel.signature.parameters, self._checked)

    def _collect_storages(self) -> tuple[tuple[Storage, bool], ...]:
        """The memory of the launch, each with whether the launch writes it."""
        if 0 in self._grid:
            return ()  # nothing is enqueued
        uses = tuple((cast("Storage", use.storage), use.write) for use in self._uses())
        return (*uses, *((variable, True) for variable in self._variables))

    def __repr__(self) -> str:
        return f"<bound launch of {self._kernel.signature.name} on {self._stream}>"


@contextmanager
def _submission(stream: Stream) -> Generator[None]:
    """A submission on a stream; it waits for those of other threads."""
    with Nested(current_holder(), stream), stream.submission:
        yield


def _hold(stream: Stream, codes: dict[int, object]) -> None:
    """Keep code until the stream has finished the launches so far."""
    for code in codes.values():
        stream.hold(code)


def _both_names(parameter: Parameter) -> str:
    """A parameter as `set` names it, and behind it as the kernel does: `p_w (p.w)`."""
    return parameter.name if parameter.title == parameter.name else f"{parameter.name} ({parameter.title})"


def _layout(view: View | TiledView) -> str:
    """The facts of a tensor that its kernel is compiled for, and its extents, as text."""
    layout = view.facts.layout
    unit = "no stride of 1" if 1 not in layout.strides else f"stride 1 along axis {layout.strides.index(1)}"
    tiles = "" if layout.tile is None else f", tiles of {layout.tile}"
    tiles += "" if layout.map is None else f", mapped by {layout.map}"
    tiles += "" if layout.exact else ", any prefix of its grid"
    return f"{layout.dtype} of shape {view.shape} ({unit}, aligned to {layout.alignment} bytes{tiles})"
