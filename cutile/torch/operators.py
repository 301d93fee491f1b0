# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch is not among what the tests install)
"""`register`: makes a function over PyTorch tensors an operator.

`torch.compile` leaves an operator whole.

An operator costs the dispatcher's calls into Python. An operator without a backward costs one: its entry for autograd
is a fall-through, which calls nothing. One with a backward costs one if no argument requires a gradient: the entry for
autograd calls the function itself, if the dispatcher would call it next. Otherwise autograd adds a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from cutile.entry import Kernel
from cutile.errors import ArgumentError, ArgumentTypeError

__all__ = ("register",)

Function = Callable[..., Any]

_BACKENDS = ("CPU", "CUDA")
_BACKEND_KEYS = frozenset(getattr(torch._C.DispatchKey, each) for each in _BACKENDS)
_after_autograd = torch._C._after_autograd_keyset
_after_views = torch._C._after_ADInplaceOrView_keyset
_any_requires_grad = torch._C._any_requires_grad
_is_grad_enabled = torch.is_grad_enabled


class _Registered:
    """An operator, and the functions that its dispatcher's entries call.

    The entries look the functions up at each call, so that registering again replaces them.
    """

    def __init__(self, name: str, schema: str, library: Any, origin: tuple[str, str]) -> None:
        self.name = name
        self.schema = schema
        self.library = library  # held: PyTorch drops the registrations with it
        self.origin = origin
        self.function: Function
        self.fake: Function
        self.backward: Function | None = None
        self.setup_context: Function | None = None
        self.overload: Any = None


_registered: dict[str, _Registered] = {}


def register(
    schema: str,
    function: Function | None = None,
    *,
    fake: Function,
    backward: Function | None = None,
    setup_context: Function | None = None,
    mutates: Sequence[str] = (),
) -> Any:
    """Register a function as a PyTorch operator.

    It is a decorator, or takes the function as second argument.

    The function takes and returns PyTorch tensors, on the CPU or a GPU, and launches kernels with
    `cutile.torch.launch`. Its results are new tensors, from PyTorch's allocator. The operator works under
    `torch.compile(fullgraph=True)`, on PyTorch's current stream, and in its CUDA graphs; `torch.vmap` calls it once for
    each slice, and says that this is slow.

    If the same function of the same module is registered again under the same schema, as by a notebook's cell that
    runs again, it replaces the former one.

    Args:
        schema: the operator's name and types, `"mylib::silu(Tensor x) -> Tensor"`; or its name alone, if the
            function's annotations give the types.
        function: the computation.
        fake: shapes, dtypes and strides of the results, from tensors without values: `torch.empty_like`, say.
        backward: `backward(context, *gradients)` returns one gradient, or None, for each argument. It may only call
            operators: PyTorch's own, or registered ones. Without it, a tensor that requires a gradient is refused.
        setup_context: `setup_context(context, inputs, output)` saves what `backward` needs, by
            `context.save_for_backward(...)`; nothing is saved without it.
        mutates: names of arguments that the function writes, if annotations give the types; a schema marks them
            itself, as in `Tensor(a!) y`.

    Returns:
        The operator, a `torch._ops.OpOverload`: call it, or `torch.ops.mylib.silu`.

    Raises:
        ArgumentError: the name is taken; a function that writes its arguments has a `backward`; the schema is not
            readable.
        ArgumentTypeError: one of the functions cannot be called.

    Example:
        >>> import torch, cutile.torch as ctt
        >>> @ct.entry
        ... def double_kernel(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> @ctt.register("mylib::double(Tensor x) -> Tensor", fake=torch.empty_like)
        ... def double(x):
        ...     y = torch.empty_like(x)
        ...     ctt.launch(double_kernel, ctt.partition(y, (1024,)), x)
        ...     return y
        >>> double(torch.arange(4.0))
        tensor([0., 2., 4., 6.])
    """
    if function is None:
        return lambda decorated: register(
            schema, decorated, fake=fake, backward=backward, setup_context=setup_context, mutates=mutates
        )
    for role, body in (("function", function), ("fake", fake)):
        if not callable(body):
            raise ArgumentTypeError(f"register: {schema}: {role} must be a function, got {type(body).__name__}")
        if isinstance(body, Kernel):
            raise ArgumentTypeError(
                f"register: {schema}: {role} must be a function over tensors, got the kernel {body.__name__}; "
                "register one that makes the results and launches it, by cutile.torch.launch"
            )
    if setup_context is not None and backward is None:
        raise ArgumentError(f"register: {schema}: setup_context saves for a backward, and there is none: give both")
    name, full_schema = _name_and_schema(schema, function, mutates)
    origin = (function.__module__, getattr(function, "__qualname__", ""))
    operator = _registered.get(name)
    if operator is None:
        operator = _define(name, full_schema, origin, differentiable=backward is not None)
        _registered[name] = operator
    elif (
        operator.schema != full_schema or operator.origin != origin or (operator.backward is None) != (backward is None)
    ):
        raise ArgumentError(
            f"register: the operator {name} is there already: {operator.schema}, by {'.'.join(operator.origin)}; "
            "choose another name (the same function may be registered again, under the same schema and with a backward "
            "as before)"
        )
    operator.function, operator.fake = function, fake
    operator.backward, operator.setup_context = backward, setup_context
    return operator.overload


def _name_and_schema(schema: str, function: Function, mutates: Sequence[str]) -> tuple[str, str]:
    """The qualified name, and the schema without it."""
    name, parenthesis, rest = schema.partition("(")
    name = name.strip()
    namespace, separator, plain = name.partition("::")
    if not separator or not namespace.isidentifier() or not plain.replace(".", "_").isidentifier():
        called = getattr(function, "__name__", "")
        raise ArgumentError(
            f"register: {schema!r} does not begin with a name such as mylib::silu: write "
            f'"mylib::{called if called.isidentifier() else "silu"}(Tensor x) -> Tensor"'
        )
    if parenthesis:
        return name, parenthesis + rest
    try:
        return name, torch.library.infer_schema(function, mutates_args=tuple(mutates))
    except ValueError as error:
        raise ArgumentError(
            f"register: {name}: the annotations of {getattr(function, '__qualname__', function)} tell no schema: "
            f'{error}; annotate it, or write "{name}(Tensor x) -> Tensor"'
        ) from None


def _define(name: str, schema: str, origin: tuple[str, str], *, differentiable: bool) -> _Registered:
    namespace, _, plain = name.partition("::")
    packet = getattr(torch.ops, namespace)
    operator, _, overload = plain.partition(".")
    if hasattr(packet, operator) and (overload or "default") in getattr(packet, operator).overloads():
        raise ArgumentError(
            f"register: the operator {name} is there already, and was not registered here; choose another name"
        )
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        library.define(plain + schema, tags=(torch.Tag.pt2_compliant_tag,))
    except RuntimeError as error:
        reason = str(error).partition("\nException raised from")[0].strip()
        raise ArgumentError(f"register: {name + schema!r} is no schema: {reason}") from None
    registered = _Registered(name, schema, library, origin)
    registered.overload = getattr(getattr(packet, operator), overload or "default")
    arguments = registered.overload._schema.arguments
    written = [i for i, each in enumerate(arguments) if each.alias_info is not None and each.alias_info.is_write]
    if written and differentiable:
        library._destroy()
        raise ArgumentError(
            f"register: {name} writes its argument {arguments[written[0]].name!r}, and has a backward: autograd takes "
            "operators that return new tensors; return the result, or leave backward out"
        )
    run = _runner(registered, written) if not differentiable else lambda *a, **k: registered.function(*a, **k)
    for key in _BACKENDS:
        library.impl(plain, run, key)
    if differentiable:
        if any("[]" in str(each.type) or "List[Tensor" in str(each.type) for each in arguments):
            _let_torch_differentiate(registered)
        else:
            library.impl(plain, _differentiable(registered), "Autograd", with_keyset=True)
    else:
        library.impl(plain, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(name, _fake_of(registered, differentiable), lib=library)
    return registered


def _refuse_gradient(registered: _Registered) -> None:
    raise ArgumentError(
        f"{registered.name}: an argument requires a gradient, and the operator has none: register it with "
        "backward=..., or call it under torch.no_grad() or on tensor.detach()"
    )


def _runner(registered: _Registered, written: Sequence[int]) -> Function:
    """The function that runs an operator without a backward."""

    def run(*arguments: Any, **named: Any) -> Any:
        if _is_grad_enabled() and _any_requires_grad(*arguments, **named):
            _refuse_gradient(registered)
        return registered.function(*arguments, **named)

    if not written:
        return run
    names = [each.name for each in registered.overload._schema.arguments]

    def run_in_place(*arguments: Any, **named: Any) -> Any:
        result = run(*arguments, **named)
        for position in written:  # autograd refuses a saved tensor whose version has changed
            value = arguments[position] if position < len(arguments) else named.get(names[position])
            if isinstance(value, torch.Tensor):
                torch.autograd.graph.increment_version(value)
        return result

    return run_in_place


def _fake_of(registered: _Registered, differentiable: bool) -> Function:
    def fake(*arguments: Any, **named: Any) -> Any:
        if not differentiable and _is_grad_enabled() and _any_requires_grad(*arguments, **named):
            _refuse_gradient(registered)
        return registered.fake(*arguments, **named)

    return fake


# -- gradients --------------------------------------------------------------------------------


def _differentiable(registered: _Registered) -> Function:
    """The entry for autograd."""
    overload = registered.overload
    defaults = [each.default_value for each in overload._schema.arguments if not each.kwarg_only]
    direct: dict[int, bool] = {}

    def below(keyset: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the operator below autograd.

        If the dispatcher would call our function next, it is called directly.
        """
        is_direct = direct.get(keyset.raw_repr())
        if is_direct is None:
            is_direct = (keyset & _after_views).highestPriorityTypeId() in _BACKEND_KEYS
            direct[keyset.raw_repr()] = is_direct
        if is_direct:
            return registered.function(*arguments, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & _after_autograd, *arguments, **named)

    def forward(context: Any, *arguments: Any) -> Any:
        *plain, (keyset, named) = arguments
        result = below(keyset, tuple(plain), named)
        if registered.setup_context is not None:
            inputs = (*plain, *defaults[len(plain) :])  # the dispatcher leaves out trailing defaults
            registered.setup_context(context, inputs, result)
        return result

    def backward(context: Any, *gradients: Any) -> Any:
        assert registered.backward is not None
        results = registered.backward(context, *gradients)
        return (*results, None) if isinstance(results, tuple) else (results, None)

    name = f"{registered.name.replace('::', '_').replace('.', '_')}_backward"
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node: Any = type(name, (torch.autograd.Function,), methods)
    # The C++ `apply`: the Python one handles functorch first, for nodes called from above the dispatcher.
    apply = super(torch.autograd.Function, node).apply
    level: Any = type(name, (_SingleLevelFunction,), methods)

    def call(keyset: Any, *arguments: Any, **named: Any) -> Any:
        if _is_grad_enabled() and _any_requires_grad(*arguments):
            if torch._C._are_functorch_transforms_active():
                # functorch dispatches here once for each of its levels; a single-level node is for that one.
                with enable_single_level_autograd_function():
                    return level.apply(*arguments, (keyset, named))
            return apply(*arguments, (keyset, named))
        return below(keyset, arguments, named)

    return call


def _let_torch_differentiate(registered: _Registered) -> None:
    """Register the backward of an operator with lists of tensors.

    A plain autograd node does not take these.
    """

    def backward(context: Any, *gradients: Any) -> Any:
        assert registered.backward is not None
        return registered.backward(context, *gradients)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if registered.setup_context is not None:
            registered.setup_context(ctx, inputs, output)

    torch.library.register_autograd(registered.name, backward, setup_context=setup_context, lib=registered.library)
