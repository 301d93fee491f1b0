# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch is not among what the tests install)
"""`launch`: a kernel over PyTorch's tensors, on its current stream, cheaply.

The first launch with given shapes, strides and dtypes checks everything, as a call of the kernel does, and keeps the
result. The next one looks the result up, fills in the addresses and the numbers, and launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cuda_async import OwnershipError, Stream
from cuda_async.core import observers
from cuda_async.unsafe import async_on
from cutile.backend.interface import DEFAULT_OPTIONS, CompileOptions
from cutile.compile.declared import checked_options
from cutile.compile.facts import generics_key
from cutile.entry import Kernel
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.frontend.parameters import Parameter
from cutile.host.exchange import from_foreign
from cutile.launch.arguments import EVERY_FLOAT, check_argument, plain_scalar, raw_scalar, without_elements
from cutile.launch.checks import check_grid, kernel_uses, refuse_overlaps
from cutile.launch.compiled_kernel import CompiledKernel
from cutile.launch.fastpath import ViewUse
from cutile.launch.launchable import Launchable
from cutile.launch.target import chosen_backend
from cutile.launch.views import Grid, TiledView, View
from cutile.torch.arguments import Partition, Placed, Read, Shared, Written, check_tensor, cut_tensor, view_of
from cutile.torch.streams import Place, capturing, place_of

__all__ = ("launch",)

MAX_LAUNCHES = 1024
"""Layouts remembered of a kernel. More are rarely in use at once; a forgotten layout is checked again."""

Scalar = Callable[[Any], Any]


class _CheckedLaunch:
    """A launch that was checked, and serves later ones with the same layouts.

    Attributes:
        place: the device, with its streams.
        compiled: the compiled kernel, which enqueues launches.
        grid: the grid.
        views: by argument: a tensor's layout, or the function that checks a scalar.
        uses: the memory that a launch reads and writes.
        repeat: launches by addresses and numbers alone, see `CompiledKernel.repeated`; None if the kernel needs more.
        unchanged: whether the outer names that the kernel reads still have the values it was compiled with.
    """

    __slots__ = ("compiled", "grid", "place", "repeat", "unchanged", "uses", "views")

    def __init__(
        self,
        place: Place,
        compiled: CompiledKernel,
        grid: Grid,
        views: Sequence[_Layout | Scalar],
        uses: list[ViewUse],
        repeat: Callable[..., None] | None,
    ) -> None:
        self.place = place
        self.compiled = compiled
        self.unchanged = compiled.unchanged
        self.repeat = repeat
        self.grid = grid
        self.views = views
        self.uses = uses


Shortcut = Callable[[tuple[Any, ...], Any], bool]


class _Launches:
    """The launches of one kernel.

    `quick` launches if the layouts are known, and returns whether it did.
    """

    __slots__ = ("key", "known", "launchable", "quick")

    def __init__(self, launchable: Launchable) -> None:
        self.launchable = launchable
        self.known: dict[Any, _CheckedLaunch] = {}
        self.key, self.quick = _compile(launchable, self.known)


def _compile(launchable: Launchable, launches: dict[Any, _CheckedLaunch]) -> tuple[Callable[..., Any], Shortcut]:
    """Make the functions `key` and `quick` of a kernel's launches.

    For saxpy, abridged:

        def quick(arguments, more):
            a0, a1, a2, = arguments
            try:
                t0 = a0.tensor
                t2 = a2
                p0 = t0.data_ptr()
                p2 = t2.data_ptr()
                launch = known.get((more, type(t0), t0.shape, t0.stride(), t0.dtype, t0.device, t0.is_neg(), p0 & 15,
                                   a0.cut, type(a1), type(t2), ...))
            except (AttributeError, TypeError, RuntimeError):
                return False
            if launch is None or not launch.unchanged():
                return False
            if is_grad_enabled() and (t0.requires_grad or t2.requires_grad):
                return False
            v0, v1, v2, = launch.views
            if p0 + v0.stop > p2 + v2.start and ...:    # shared memory
                return False
            c1 = a1 if type(a1) is float and -65504.0 <= a1 <= 65504.0 else v1(a1)
            stream = launch.place.stream()
            if launch.repeat is not None:
                launch.repeat(stream, p0, c1, p2)
                return True
            launch.compiled.enqueue((Placed(p0, v0), c1, Placed(p2, v2)), launch.uses, launch.grid, stream)
            return True

    If `quick` returns False, `_general_launch` checks everything, and raises the errors. A remembered layout has the
    address 0, so that its `start` and `stop` count from a launch's address.
    """
    parameters = list(enumerate(launchable.kernel.signature.parameters))
    tensors = [(i, parameter) for i, parameter in parameters if parameter.kind in ("tensor", "mut", "shared")]
    parts = [_key_part(i, parameter) for i, parameter in parameters]
    numbers = [_checked_scalar(i, parameter) for i, parameter in parameters if parameter.kind == "scalar"]
    plain = [f"c{i}" if parameter.kind == "scalar" else f"p{i}" for i, parameter in parameters]
    checked = [f"c{i}" if parameter.kind == "scalar" else f"Placed(p{i}, v{i})" for i, parameter in parameters]
    shared = [
        f"p{i} + v{i}.stop > p{j} + v{j}.start and p{j} + v{j}.stop > p{i} + v{i}.start"
        for i, parameter in tensors
        for j, other in tensors
        if parameter.writes and j != i and not (other.writes and j < i)
    ]
    names = "".join(f"a{i}, " for i, _ in parameters)
    unpacked = [
        *([f"{names}= arguments"] if parameters else []),
        *(f"t{i} = a{i}.tensor" if parameter.kind == "mut" else f"t{i} = a{i}" for i, parameter in tensors),
        *(f"p{i} = t{i}.data_ptr()" for i, _ in tensors),
    ]
    key = f"(more, {''.join(f'{each}, ' for each in parts)})"
    gradients = " or ".join(f"t{i}.requires_grad" for i, _ in tensors) or "False"
    lines = [
        "def key(arguments, more):",
        *(f"    {line}" for line in unpacked),
        f"    return {key}",
        "def quick(arguments, more):",
        "    try:",
        *(f"        {line}" for line in unpacked),
        f"        launch = known.get({key})",
        "    except (AttributeError, TypeError, RuntimeError):",
        "        return False",
        f"    if launch is None or not launch.unchanged() or (is_grad_enabled() and ({gradients})):",
        "        return False",
        *([f"    {''.join(f'v{i}, ' for i, _ in parameters)}= launch.views"] if parameters else []),
        *([f"    if {' or '.join(f'({each})' for each in shared)}:", "        return False"] if shared else []),
        *(f"    {each}" for each in numbers),
        "    place = launch.place",
        "    stream = place.stream()",
        "    repeat = launch.repeat",
        "    if repeat is not None:",
        f"        repeat({', '.join(['stream', *plain])})",
        "        return True",
        f"    checked = ({''.join(f'{each}, ' for each in checked)})",
        "    if place.on_gpu:",
        "        launch.compiled.enqueue(checked, launch.uses, launch.grid, stream)",
        "    else:",
        "        run_on_host(launch.compiled, checked, launch.uses, launch.grid, stream)",
        "    return True",
    ]
    scope: dict[str, Any] = {
        "known": launches,
        "Placed": Placed,
        "is_grad_enabled": torch.is_grad_enabled,
        "run_on_host": _run_on_host,
    }
    exec("\n".join(lines), scope)
    return scope["key"], scope["quick"]


def _key_part(i: int, parameter: Parameter) -> str:
    """An argument's part of a key: all that its kernel may be specialized for.

    `p & 15`: kernels are specialized for alignments up to 16 bytes.
    """
    if parameter.kind == "scalar":
        return f"type(a{i})"
    tensor = f"type(t{i}), t{i}.shape, t{i}.stride(), t{i}.dtype, t{i}.device, t{i}.is_neg(), p{i} & 15"
    return tensor + (f", a{i}.cut" if parameter.kind == "mut" else "")


def _checked_scalar(i: int, parameter: Parameter) -> str:
    """The source line that checks a scalar; most floats need no call."""
    as_it_is = f"type(a{i}) is float and {-EVERY_FLOAT} <= a{i} <= {EVERY_FLOAT}"
    is_float = getattr(parameter.dtype, "kind", None) == "float"
    return f"c{i} = " + (f"a{i} if {as_it_is} else v{i}(a{i})" if is_float else f"v{i}(a{i})")


def _run_on_host(
    compiled: CompiledKernel, checked: Sequence[Any], uses: list[ViewUse], grid: Grid, stream: Stream
) -> None:
    """Enqueue a launch and wait for it. Raises what it raises."""
    stream.begin_single()  # an earlier failure is not raised as this launch's
    compiled.enqueue(checked, uses, grid, stream)
    stream.synchronize()


def launch(
    kernel: Kernel,
    *arguments: Any,
    grid: Sequence[int] | int | None = None,
    options: CompileOptions | None = None,
    **generics: Any,
) -> None:
    """Launch a kernel over PyTorch's tensors, on its current stream.

    On the CPU, return when it is done.

    For tensors of shapes, strides and dtypes that it has seen, it costs little more than the driver's call. PyTorch's
    rules hold: launches are in the order of the current stream; a CUDA graph that PyTorch captures records them (launch
    once before the capture, which compiles); a tensor of another stream needs `record_stream`. Nothing is lent: call
    the kernel to have ownership checked. Nothing happens if no output has elements.

    Args:
        kernel: made by `cutile.entry`.
        arguments: in the kernel's order: `partition(tensor, tile)` for `Mut`, a tensor for `Tensor`, numbers.
        grid: one to three extents, where no partition tells the grid.
        options: hints for the compiler.
        generics: generics by name.

    Raises:
        ArgumentTypeError, ArgumentError: the kernel takes no such argument, or one is on another device than the
            first, requires a gradient while gradients are recorded, or shares memory with an output.
        LaunchError, GenericsError, KernelError: as a call of the kernel.

    Example:
        >>> import torch, cutile.torch as ctt
        >>> @ct.entry
        ... def double(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> x = torch.arange(4.0)
        >>> y = torch.empty_like(x)
        >>> ctt.launch(double, ctt.partition(y, (4,)), x)
        >>> y
        tensor([0., 2., 4., 6.])
    """
    try:
        launchable = kernel.launchable
        launches: _Launches = launchable.memo["torch"]
    except (AttributeError, KeyError):
        launches = _launches_of(kernel)
        launchable = launches.launchable
    if isinstance(grid, list):
        grid = tuple(grid)  # it is a part of the key, which is hashed
    more = (grid, options, generics_key(generics)) if grid is not None or generics or options is not None else None
    plain = chosen_backend() is None and observers.observe is None
    if plain and len(arguments) == launchable.arity and launches.quick(arguments, more):
        return
    # After a graph break, PyTorch's compiler would trace into the compiler of kernels.
    general_launch = torch.compiler.disable(_general_launch) if "torch._dynamo" in sys.modules else _general_launch
    general_launch(kernel, launches, arguments, more, grid, options or DEFAULT_OPTIONS, generics, plain=plain)


# Dynamo does not trace into a function with these two attributes.
_untraced: Any = launch
_untraced._torchdynamo_disable = True
_untraced._torchdynamo_disable_msg = "cutile.torch.launch is not traced: launch in an operator, cutile.torch.register"


def _launches_of(kernel: Any) -> _Launches:
    if not isinstance(kernel, Kernel):
        raise ArgumentTypeError(
            f"launch: expected a kernel, made by @cutile.entry, got {type(kernel).__name__}; the arguments follow it: "
            "launch(kernel, partition(y, tile), x)"
        )
    launchable = kernel.launchable
    if any(each.kind == "pointer" for each in launchable.kernel.signature.parameters):
        raise ArgumentTypeError(
            f"{launchable.name} takes raw pointers, which launch cannot order; call the kernel, and run the op on "
            "Stream.borrow_raw(device, torch.cuda.current_stream().cuda_stream)"
        )
    if launchable.kernel.signature.grouped:
        raise ArgumentTypeError(
            f"{launchable.name} takes groups of tensors (a tuple, a dataclass, `Tensor | None`), which launch does "
            "not take apart; call the kernel, and run the op on a borrowed stream, or declare a parameter for each "
            "tensor"
        )
    launches = launchable.memo["torch"] = _Launches(launchable)
    return launches


def _checked_tensors(launchable: Launchable, arguments: tuple[Any, ...]) -> dict[int, torch.Tensor]:
    """The tensors among the arguments, by position.

    Raises the errors of `launch` about tensors.
    """
    parameters = launchable.kernel.signature.parameters
    if len(arguments) != len(parameters):
        names = ", ".join(launchable.kernel.signature.names)
        raise ArgumentError(
            f"{launchable.name} takes {len(parameters)} arguments ({names}), got {len(arguments)}; give them "
            "in this order, and generics by name"
        )
    tensors: dict[int, torch.Tensor] = {}
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        what = f"{launchable.name}: argument {parameter.name!r}"
        if parameter.kind == "scalar":
            continue
        if parameter.kind == "mut" and not isinstance(argument, Partition):
            raise ArgumentTypeError(
                f"{what} is written, so it must be a partition, got {type(argument).__name__}; write "
                f"cutile.torch.partition({parameter.name}, tile)"
            )
        if parameter.kind == "tensor" and isinstance(argument, Partition):
            raise ArgumentTypeError(f"{what} is read, so it must be a tensor, not a partition; pass the tensor itself")
        if parameter.kind == "shared" and isinstance(argument, Partition):
            raise ArgumentTypeError(
                f"{what} is a SharedMut, which any tile block writes: pass the tensor itself, not a partition of it"
            )
        tensor = argument.tensor if isinstance(argument, Partition) else argument
        check_tensor(tensor, what)
        tensors[position] = tensor
    first = next(iter(tensors), None)
    if first is None:
        raise ArgumentError(
            f"{launchable.name} has no tensor among its arguments, which tells the device; call the kernel"
        )
    for position, tensor in tensors.items():
        if tensor.device != tensors[first].device:
            raise ArgumentError(
                f"{launchable.name}: argument {parameters[position].name!r} is on {tensor.device}, and "
                f"{parameters[first].name!r} on {tensors[first].device}; move one with .to(device)"
            )
    return tensors


def _general_launch(
    kernel: Kernel,
    launches: _Launches,
    arguments: tuple[Any, ...],
    more: Any,
    grid: Sequence[int] | int | None,
    options: CompileOptions,
    generics: Mapping[str, Any],
    *,
    plain: bool,
) -> None:
    """Check everything, compile if need be, launch, and remember the launch."""
    launchable = launches.launchable
    signature = launchable.kernel.signature
    blocks = None if grid is None else check_grid(launchable.name, grid)
    checked_options(options, f"{launchable.name}: options")
    tensors = _checked_tensors(launchable, arguments)
    outputs = [each for i, each in tensors.items() if signature.parameters[i].writes]
    if outputs and all(each.numel() == 0 for each in outputs):
        return
    place = place_of(next(iter(tensors.values())).device)
    with place.unrestricted():
        if not place.on_gpu or not capturing():
            place.device.collect()
        if not plain:
            return _launch_as_op(kernel, tensors, arguments, blocks, options, generics, place)
        checked, launch = _checked_launch(launchable, tensors, arguments, blocks, options, generics, place)
        stream = place.stream()
        if place.on_gpu:
            launch.compiled.enqueue(checked, launch.uses, launch.grid, stream)
        else:
            _run_on_host(launch.compiled, checked, launch.uses, launch.grid, stream)
    if len(launches.known) >= MAX_LAUNCHES:
        launches.known.clear()
    launches.known[launches.key(arguments, more)] = launch


def _checked_launch(
    launchable: Launchable,
    tensors: Mapping[int, torch.Tensor],
    arguments: tuple[Any, ...],
    grid: Grid | None,
    options: CompileOptions,
    generics: Mapping[str, Any],
    place: Place,
) -> tuple[list[Any], _CheckedLaunch]:
    """The checked arguments of a launch, and the data for later ones.

    Later ones have the same layouts.
    """
    name, parameters = launchable.name, launchable.kernel.signature.parameters
    checked: list[Any] = []
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        if position in tensors:
            what = f"{name}: argument {parameter.name!r}"
            if parameter.kind == "mut" and tensors[position].numel() == 0:
                raise ArgumentError(f"{what} {without_elements(tuple(tensors[position].shape))}")
            view = view_of(tensors[position], place.memory, what)
            try:
                argument = (
                    Written(view, argument.cut)
                    if parameter.kind == "mut"
                    else Shared(view)
                    if parameter.kind == "shared"
                    else Read(view)
                )
            except OwnershipError:
                raise ArgumentError(
                    f"{what} is written, and indices of it name the same element (shape {view.shape}, strides "
                    f"{view.strides}); write to a tensor of its own, such as torch.empty({view.shape})"
                ) from None
        checked.append(launchable.check(position, argument))
    refuse_overlaps(name, kernel_uses(parameters, checked))
    plan = launchable.plan(checked, launchable.kernel.generics(None, dict(generics)), options)
    blocks = launchable.grid(checked, grid)
    compiled: CompiledKernel | None = plan.memo.get(place.device)
    if compiled is None or not compiled.unchanged():
        compiled = plan.memo[place.device] = CompiledKernel(plan, launchable.kernel, place.stream(), None)
    views = [
        _layout_of(checked[i]) if i in tensors else _scalar(launchable, i, plan.specialization.generics)
        for i in range(len(parameters))
    ]
    repeat = compiled.repeated(checked, blocks)
    return checked, _CheckedLaunch(place, compiled, blocks, views, launchable.uses(checked), repeat)


def _layout_of(view: View | TiledView) -> Any:
    """The layout of a view, without its address."""
    return _Layout(view.shape, view.strides, view.storage, view.start - view.address, view.stop - view.address)


class _Layout:
    """The layout of an argument, its bytes counted from the first element's address."""

    __slots__ = ("shape", "start", "stop", "storage", "strides")

    def __init__(self, shape: Any, strides: Any, storage: Any, start: int, stop: int) -> None:
        self.shape, self.strides, self.storage = shape, strides, storage
        self.start, self.stop = start, stop


def _scalar(launchable: Launchable, position: int, generics: Mapping[str, Any]) -> Scalar:
    """The function that checks a scalar argument and returns its number."""
    name, parameter = launchable.name, launchable.kernel.signature.parameters[position]
    if position in launchable.kernel.signature.generic_scalars:
        dtype = generics[str(parameter.dtype)]
        return lambda value: plain_scalar(raw_scalar(value, name, parameter.name), dtype, name, parameter.name)
    return lambda value: check_argument(name, parameter, value)


def _launch_as_op(
    kernel: Kernel,
    tensors: Mapping[int, torch.Tensor],
    arguments: tuple[Any, ...],
    grid: Grid | None,
    options: CompileOptions,
    generics: Mapping[str, Any],
    place: Place,
) -> None:
    """Launch by a call of the kernel.

    A chosen backend or an observer of operations needs that.
    """
    own_arguments = [
        each
        if i not in tensors
        else cut_tensor(from_foreign(tensors[i].detach()), each.cut)
        if isinstance(each, Partition)
        else from_foreign(tensors[i].detach())
        for i, each in enumerate(arguments)
    ]
    op = kernel(*own_arguments, **generics)
    if options is not DEFAULT_OPTIONS:
        op = op.compile_options(options)
    if grid is not None:
        op = op.grid(grid)
    if place.on_gpu:
        async_on(op, place.stream())
    else:
        op.sync_on(place.stream())
