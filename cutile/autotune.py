"""`@autotune`, and the search of `.generics([{...}, {...}])`, registered here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cutile.composite import Composite
from cutile.entry import Kernel
from cutile.errors import ArgumentTypeError, GenericsError, own_keywords
from cutile.launch.launchable import Launchable
from cutile.launch.searching import Key, LaunchSearch, Space, is_search, register_search

if TYPE_CHECKING:
    from cutile.bench import BenchOptions

__all__ = ("autotune",)

K = TypeVar("K", bound=Kernel | Composite[..., Any])


_BENCH = "write bench=BenchOptions({}), of cutile.bench"
_EACH = 'write it into each configuration, {{"options": ct.CompileOptions({})}}'
_KEYWORDS: dict[str, str] = {
    "cache": "results are kept on disk by themselves",
    "cache_results": "results are kept on disk by themselves",
    "num_stages": "how far loads run ahead the compiler decides",
    "num_warps": _EACH.format("num_worker_warps=4"),
    "options": _EACH.format("..."),
    "rep": _BENCH.format("rep_ms=100.0"),
    "reset_to_zero": "trials run on copies of what the kernel writes",
    "restore_value": "trials run on copies of what the kernel writes",
    "warmup": _BENCH.format("warmup_ms=25.0"),
}
"""What to write in place of another library's keyword of a decorator, by that keyword."""


@own_keywords(_KEYWORDS)
def autotune(
    configs: Sequence[Mapping[str, Any] | Sequence[Any]],
    *,
    key: Key | None = None,
    compare: bool = True,
    bench: BenchOptions | None = None,
) -> Callable[[K], K]:
    """Have a kernel's launches run with the fastest of some configurations.

    Launches that give generics themselves do not search. The first other launch for a key does: all configurations are
    compiled, run on copies of the outputs, compared, and measured. The winner then runs once on the arguments. The
    result is kept on disk, so that another process measures nothing. `kernel.choices` has the results.

    Args:
        configs: dictionaries with generics by name, extents that partitions name (`z.partition(("BM", "BN"))`), and
            `"options"`, a `CompileOptions`; or lists of all generics in declared order. Of a composite
            (`ct.composite`), dictionaries of its keyword-only parameters.
        key: the inputs of a choice besides the device and the arguments' dtypes and layouts: names of parameters and
            extents, such as `("n", "x.shape[0]")`, or a function of the arguments. By default the extents of all
            tensors, rounded up to powers of two.
        compare: whether to refuse configurations whose results differ by more than roundings, with a warning that names
            them. False if results may differ, as random numbers do.
        bench: how long each measurement takes.

    Raises:
        ArgumentTypeError: it decorates no kernel, or there is no list of configurations.

    Example:
        >>> from cutile import Const, Mut, Tensor, api
        >>> @ct.autotune([{"B": 64}, {"B": 1024}])
        ... @ct.entry
        ... def double(y: Mut, x: Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> x = api.ones((4096,)).sync()
        >>> y = double(api.zeros((4096,)).partition("B"), x).first().unpartition().sync()
        >>> float(y.to_numpy().sync().sum()), len(double.choices)
        (8192.0, 1)
    """
    entries: tuple[Any, ...] = tuple(configs) if isinstance(cast("object", configs), Iterable) else ()
    if isinstance(configs, Mapping) or not is_search(entries, ()):
        raise ArgumentTypeError(
            f'autotune: expected a list of configurations, such as [{{"BK": 32}}, {{"BK": 64}}], got {configs!r}'
            + ('; write @ct.autotune([{"BK": 32}, {"BK": 64}]) above it' if callable(configs) else "")
        )
    space = Space(entries, key, compare, bench)

    def decorate(kernel: K) -> K:
        if not isinstance(kernel, Kernel | Composite):
            raise ArgumentTypeError(
                f"autotune: expected a kernel, got {kernel!r}; it stands above @ct.entry, which makes one, or above "
                "@ct.composite, for a function that launches several"
            )
        return kernel.searched(space)

    return decorate


def _search(launchable: Launchable, space: Space, names: tuple[str, ...]) -> LaunchSearch:
    from cutile.tune.launches import KernelSearch  # few programs search, and each import delays every first launch

    if not space.configs:
        raise GenericsError(f"{launchable.name}: there is no configuration to try")
    return KernelSearch(launchable, space, names)


register_search(_search)
