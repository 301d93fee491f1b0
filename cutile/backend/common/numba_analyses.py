"""Numba's analyses of a function, made faster for long generated texts.

Functions of Numba's modules are replaced during a compilation. The modules are arguments: the CPU backend passes those
of `numba.core`, the CUDA backend those of `numba.cuda.core`, which are copies.
"""

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


@contextmanager
def no_collection() -> Generator[None]:
    """Keep Python's cyclic garbage collector off.

    No object of a compilation is garbage before the compilation ends, and the collector would walk all of them again
    and again. If the collector was on before, it is on afterwards, even if another thread has turned it off meanwhile.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def fast_analyses(
    analysis: Any, ssa: Any, postproc: Any, functions: Any, base: Any, serialize: Any = None
) -> Generator[None]:
    """Have Numba's modules use the functions below; the caller holds Numba's lock.

    Args:
        analysis: the module with `compute_live_map`; its `ir` has the classes of statements.
        ssa: the module with `_run_block_rewrite`.
        postproc: the module with `PostProcessor`.
        functions: the class of function types, with `get_call_type`.
        base: the module with `_has_loc`.
        serialize: the module with `dumps`, for targets that write code for exceptions; else None.
    """
    replaced = [
        (analysis.ir.Inst, "_rec_list_vars", _listing(analysis.ir)),
        (postproc.PostProcessor, "run", _postponing(postproc)),
        (analysis, "compute_live_map", live_map),
        (ssa, "_run_block_rewrite", _Rewrite(ssa._run_block_rewrite)),
        (functions, "get_call_type", _remembering(functions)),
        (base, "_has_loc", _remembered_for_functions(base._has_loc)),
    ]
    if serialize is not None:
        replaced.append((serialize, "dumps", _pickled_once(serialize.dumps)))
    originals = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(replaced, originals, strict=True):
            setattr(owner, name, original)


def _listing(ir: Any) -> Any:
    """`Inst._rec_list_vars`: the variables in a field of a statement.

    Most fields have none. Numba asks `isinstance` for each class in turn, and makes a list even for a number or a place
    in the source. That took a tenth of its time for a function.
    """
    variables: Any = getattr(ir, "var_types", ir.Var)  # CUDA's copy also takes the original's classes
    statements: Any = getattr(ir, "inst_types", ir.Inst)
    kinds: dict[type[Any], int] = {}  # 1: a variable, 2: a statement, 3: items, 4: a dict of them, 0: none of these

    def kind_of(type_: type) -> int:
        parents = (variables, statements, (list, tuple), dict)
        return next((at for at, parent in enumerate(parents, 1) if issubclass(type_, parent)), 0)

    def add(value: object, variables_of_it: list[Any]) -> None:
        type_ = type(value)
        kind = kinds.get(type_)
        if kind is None:
            kind = kinds[type_] = kind_of(type_)
        field: Any = value
        if kind == 1:
            variables_of_it.append(field)
        elif kind == 2:
            variables_of_it.extend(field.list_vars())
        elif kind:
            items: Iterable[object] = field if kind == 3 else field.values()
            for item in items:
                if kinds.get(type(item)) != 0:  # a type that is known to hold none saves the call
                    add(item, variables_of_it)

    def listing(statement: Any, value: Any) -> list[Any]:
        del statement
        variables_of_it: list[Any] = []
        add(value, variables_of_it)
        return variables_of_it

    return listing


def _postponing(postproc: Any) -> Any:
    """`PostProcessor.run`, which computes live variables only when they are needed.

    Numba computes the live variables of each block four times for a function. It uses them once, where it inserts the
    ends of their lives. The other three computations took a tenth of its time.
    """
    run = postproc.PostProcessor.run

    def postponing(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if emit_dels or function.is_generator:
            run(self, emit_dels, extend_lifetimes)
            return
        function.blocks = postproc.transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)  # computes each fact when it is read
        function.generator_info = None

    return postponing


def _remembering(functions: Any) -> Any:
    """`get_call_type`, called once for each function and argument types.

    For each call, Numba tries the function's templates one after the other, twice. `x + y` of two floats has a dozen
    templates. The signatures hold for later compilations, too: a function that gets more templates is another function
    to Numba.
    """
    get_call_type = functions.get_call_type
    (numba_type,) = (parent for parent in functions.__mro__ if parent.__name__ == "Type")
    of_casts: dict[tuple[Any, Any, Any], Any] = {}

    def remembering(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:  # a dict, which can be part of no key
            return get_call_type(function, context, args, kws)
        # A cast, `int32(x)`, is a new function at each place in a kernel. No later kernel has the same one.
        signatures = of_casts if isinstance(function.typing_key, numba_type) else _SIGNATURES
        key = (context, function, tuple(args))
        signature = signatures.get(key)
        if signature is None:
            if len(_SIGNATURES) >= _MAX_SIGNATURES:
                _SIGNATURES.clear()
            signature = signatures[key] = get_call_type(function, context, args, kws)
        return signature

    return remembering


_SIGNATURES: dict[tuple[Any, Any, Any], Any] = {}
"""By typing context, function and argument types. Read and written under Numba's lock."""
_MAX_SIGNATURES = 10_000  # some ten megabytes; a kernel has tens of signatures, most of them in other kernels, too


@lru_cache
def _remembered_for_functions(has_loc: Callable[[Any], bool]) -> Any:
    """`_has_loc`, called once for each function that writes LLVM IR.

    It calls `inspect.signature`, which takes a tenth of a millisecond. Without a cache a softmax has 75 such calls.
    """
    return lru_cache(maxsize=2048)(has_loc)


@lru_cache
def _pickled_once(dumps: Callable[[Any], bytes]) -> Any:
    """`dumps`, called once for each exception that code may raise.

    Each `range` of a kernel has one, "arg 3 must not be zero". Numba pickles it by cloudpickle each time, which takes
    2 ms.
    """
    pickled = lru_cache(maxsize=256, typed=True)(dumps)

    def pickled_once(value: Any) -> bytes:
        # An exception is a tuple of its class, its arguments and a place in the source, which is None if unknown. Other
        # values are not cached: they may be equal and have different pickles, as (1,) and (True,) do.
        match value:
            case (type(), (str(),), None):
                return pickled(value)
            case _:
                return dumps(value)

    return pickled_once


class _Rewrite:
    """`_run_block_rewrite` for one variable, applied only to the blocks that name it.

    Numba visits every statement of a function twice for each variable that is assigned more than once. That took a
    quarter of its time for a kernel with 60 statements a block and 20 such variables.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        # By the `id` of a block; the entry keeps the block alive. Numba inserts phi nodes into a block later, but only
        # for variables that it has already rewritten. So the names of an entry stay right for all other variables.
        self._names: dict[int, tuple[Any, frozenset[str]]] = {}

    def __call__(self, blocks: dict[int, Any], states: dict[str, Any], handler: Any) -> dict[int, Any]:
        name = states["varname"]
        naming = {label: block for label, block in blocks.items() if name in self._names_in(block)}
        return blocks | self._whole(naming, states, handler)

    def _names_in(self, block: Any) -> frozenset[str]:
        entry = self._names.get(id(block))
        if entry is None:
            names = frozenset(variable.name for statement in block.body for variable in statement.list_vars())
            self._names[id(block)] = entry = (block, names)
        return entry[1]


Variables = Mapping[int, Iterable[str]]
"""Names of variables, by the offset of a block."""


def live_map(graph: Any, blocks: Mapping[int, Any], used: Variables, defined: Variables) -> dict[int, set[str]]:
    """Variables live at the beginning of each block, as in Numba's `compute_live_map`.

    A set of variables is an integer here, with a bit for each variable. Numba unites Python sets of all variables at
    each block, four times for a function. That took 1.8 of its 6.8 s for a kernel with 160 branches.

    Args:
        graph: the blocks' control flow; it has `successors` and `predecessors`.
        blocks: by offset.
        used: the variables that each block reads before it sets them.
        defined: the variables that each block sets.
    """
    names = sorted({name for each in (used, defined) for variables in each.values() for name in variables})
    place = {name: 1 << at for at, name in enumerate(names)}
    uses, sets = ({at: _bits(place, each[at]) for at in each} for each in (used, defined))
    following = {at: [other for other, _ in graph.successors(at)] for at in sets}
    before = {at: [other for other, _ in graph.predecessors(at)] for at in blocks}

    # The variables that some way to the end of each block defines or uses. No other variable is live there.
    reaches = {at: sets[at] | uses[at] for at in sets}
    waiting = set(reaches)
    while waiting:
        at = waiting.pop()
        for other in following[at]:
            if reaches[at] & ~reaches[other]:
                reaches[other] |= reaches[at]
                waiting.add(other)

    # The variables that are live at the beginning of each block, passed on to the blocks before it.
    live = {at: uses[at] for at in uses}
    waiting = set(live)
    while waiting:
        at = waiting.pop()
        for other in before[at]:
            passed = live[at] & reaches[other] & ~sets[other]
            if passed & ~live[other]:
                live[other] |= passed
                waiting.add(other)
    return {at: {names[bit] for bit in _places(bits)} for at, bits in live.items()}


def _bits(place: Mapping[str, int], names: Iterable[str]) -> int:
    total = 0
    for name in names:
        total |= place[name]
    return total


def _places(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
