"""What kernels take: defaults, keywords, constants of any kind, groups of tensors and scalars, named extents."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import cutile as ct
from cuda_async import DeviceOp
from cutile import Const, Mut, Tensor, api, f32, i32
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError, KernelTypeError
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import kernel

X = np.arange(8, dtype=np.float32) - 3
ONES = np.ones(8, np.float32)


class Mode(enum.Enum):
    PLAIN = "plain"
    NEGATED = "negated"


@dataclass
class Layer:
    weights: tuple[Tensor, ...]
    scale: f32 | float
    bias: Tensor | None = None
    mode: Const[Mode] = Mode.PLAIN


class Scaled(NamedTuple):
    tensor: Tensor[f32, "n"]  # type: ignore[name-defined]  # noqa: F821, UP037
    factor: f32 | float


@dataclass(frozen=True)
class Model:
    first: Layer
    rest: list[Scaled]


def cube(t: Any) -> Any:
    return t * max(t, 0.0)


def result(op: DeviceOp[Any]) -> np.ndarray[Any, Any]:
    return op.sync().y.unpartition().to_numpy().sync()


def part() -> Any:
    return api.zeros((8,)).sync().partition((4,))


def tensor(array: np.ndarray[Any, Any] = X) -> Any:
    return api.from_numpy(array).sync()


@ct.entry
def weighted(y: Mut, x: Tensor, a: f32 | float = 2.0, n: i32 | int = 3, extra: Tensor | None = None):
    t = ct.load_tile_like(x, y) * a + ct.f32(n)
    if extra is not None:
        t += ct.load_tile_like(extra, y)
    y.store(t)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_arguments_have_defaults_and_names(backend: str) -> None:
    with on(backend):
        calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = [
            ((), {}, 2 * X + 3),
            ((0.5,), {}, 0.5 * X + 3),
            ((), {"n": 1}, 2 * X + 1),
            ((1.0, 0), {"extra": tensor(ONES)}, X + 1),
            ((), {"extra": None, "a": -1.0}, 3 - X),
        ]
        for arguments, named, expected in calls:
            out = weighted(part(), tensor(), *arguments, **named)
            assert out.arity == 5
            np.testing.assert_array_equal(result(out), expected)
        assert weighted(part(), x=tensor()).sync().n == 3


def test_a_default_is_checked_as_an_argument_and_may_be_replaced() -> None:
    wrong = kernel("def filled(y: Mut, a: f32 = 'much'):\n    y.store(a)\n")
    with pytest.raises(ArgumentTypeError, match=r"argument 'a' must be a scalar of f32, got str"):
        wrong(part())
    wrong.__defaults__ = (4.0,)
    np.testing.assert_array_equal(result(wrong(part())), 4 * ONES)
    with pytest.raises(ArgumentError, match=r"takes 2 arguments \(y, a\); missing: y$"):
        wrong(a=1.0)


def test_the_last_parameters_have_the_defaults_that_replace_others() -> None:
    """As in Python, where a function may get more or fewer defaults than it was defined with."""
    two = kernel("def filled(y: Mut, a: f32 = 1.0, b: f32 = 2.0):\n    y.store(10 * a + b)\n")
    two.__defaults__ = (5.0,)
    np.testing.assert_array_equal(result(two(part(), 3.0)), 35 * ONES)
    with pytest.raises(ArgumentError, match=r"missing: a$"):
        two(part())
    two.__defaults__ = (7.0, 8.0)
    np.testing.assert_array_equal(result(two(part())), 78 * ONES)
    two.__defaults__ = None
    with pytest.raises(ArgumentError, match=r"missing: a, b$"):
        two(part())
    none = kernel("def filled(y: Mut, a: f32):\n    y.store(a)\n")
    none.__defaults__ = (6.0,)
    np.testing.assert_array_equal(result(none(part())), 6 * ONES)
    none.__defaults__ = (0.0, "much")
    with pytest.raises(ArgumentTypeError, match=r"argument 'a' must be a scalar of f32, got str"):
        none(part())


@ct.entry
def chosen(
    y: Mut,
    x: Tensor,
    *,
    NAME: Const[str] = "plain",
    FACTOR: Const[float] = 1.0,
    FLAG: Const[bool] = False,
    MODE: Const[Mode] = Mode.PLAIN,
    DTYPE: Const[type[ct.DType]] = f32,
    PAIR: Const[tuple[int, float]] = (0, 0.5),
    STEP: Const[Callable[[Any], Any]] = cube,
    MORE: Const[int | None] = None,
):
    t = ct.load_tile_like(x, y)
    if NAME == "scaled":
        t = t * FACTOR
    t = STEP(t)
    if FLAG:
        t += PAIR[0] + PAIR[1]
    if MODE is Mode.NEGATED:
        t = -t
    t = t.astype(DTYPE).astype(f32)
    if MORE is not None:
        t += MORE
    y.store(t)


def double(t: Any) -> Any:
    return t + t


def unchanged(t: Any) -> Any:
    return t


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_constants_are_of_any_kind(backend: str) -> None:
    cubed = X * np.maximum(X, 0)
    with on(backend):
        calls: list[tuple[dict[str, Any], Any]] = [
            ({}, cubed),
            ({"NAME": "scaled", "FACTOR": 0.5}, cubed / 4),
            ({"FLAG": True, "PAIR": (np.int32(2), np.float64(0.25))}, cubed + 2.25),
            ({"MODE": Mode.NEGATED, "DTYPE": i32}, -cubed),
            ({"STEP": double}, 2 * X),
            ({"STEP": unchanged, "MORE": 3}, X + 3),
        ]
        for named, expected in calls:
            np.testing.assert_array_equal(result(chosen(part(), tensor(), **named)), expected)
    listed = chosen(part(), tensor()).generics(["scaled", 2.0, True, Mode.PLAIN, f32, (1, 1), double, None])
    np.testing.assert_array_equal(result(listed), 4 * X + 2)


KINDS = kernel("def kinds(y: Mut, *, C: Const):\n    y.store(C * 2 if C else 7)\n")
SIGN = kernel("def sign(y: Mut, *, C: Const):\n    y.store(C)\n")


def test_equal_constants_of_different_types_are_different_kernels() -> None:
    before = KINDS.specializations
    for value, wanted in ((1, 2), (True, 2), (1.0, 2), (0, 7), (False, 7), ((), 7), (None, 7)):
        np.testing.assert_array_equal(result(KINDS(part(), C=value)), np.full(8, wanted))
    assert KINDS.specializations - before == 7
    assert np.all(np.signbit(result(SIGN(part(), C=-0.0))))
    assert not np.any(np.signbit(result(SIGN(part(), C=0.0))))
    assert SIGN.specializations == 2


def test_constants_of_other_types_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"NAME": 3}, r"generic 'NAME' must be a str, got 3$"),
        ({"FLAG": 1}, r"'FLAG' must be a bool, got 1$"),
        ({"MORE": "3"}, r"'MORE' must be an int or None, got '3'$"),
        ({"PAIR": (1, {})}, r"'PAIR' must be a constant .* got dict: {}$"),
        ({"MODE": "plain"}, r"'MODE' must be a Mode, got 'plain'$"),
        ({"DTYPE": np.float32}, r"'DTYPE' must be a constant"),
    ]
    for named, message in refused:
        with pytest.raises(GenericsError, match=message):
            chosen(part(), tensor(), **named)


@ct.entry
def layered(y: Mut, model: Model, pair: tuple[f32 | float, i32 | int] = (1.0, 0)):
    layer = model.first
    t = ct.constant(0.0, y.shape, f32)
    for w in layer.weights:
        t += ct.load_tile_like(w, y)
    t = t * layer.scale
    if layer.bias is not None:
        t += ct.load_tile_like(layer.bias, y)
    for i, (x, factor) in enumerate(model.rest):
        t += x.load_tile(y.shape, (ct.get_tile_block_id()[0],)) * factor * (i + 1)
    if layer.mode == Mode.NEGATED:
        t = -t
    y.store(t * pair[0] + ct.f32(pair[1]))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_groups_are_taken_apart(backend: str) -> None:
    with on(backend):
        x, ones = tensor(), tensor(ONES)
        model = Model(Layer((x, ones), 2.0), [Scaled(x, 0.5), Scaled(ones, 3.0)])
        expected = 2 * (X + 1) + 0.5 * X + 6
        out = layered(part(), model).sync()
        assert out.model == Model(model.first, tuple(model.rest))  # type: ignore[arg-type]
        assert out.pair == (1.0, 0)
        np.testing.assert_array_equal(out.y.unpartition().to_numpy().sync(), expected)
        model = Model(Layer((x,), 1.0, ones, Mode.NEGATED), [])
        np.testing.assert_array_equal(result(layered(part(), model, [2.0, 5])), -2 * (X + 1) + 5)
    before = layered.specializations
    other = Model(Layer((ones,), 8.0, x, Mode.NEGATED), [])
    with on(backend):
        layered(part(), other, pair=(0.5, 1)).sync()
    assert layered.specializations == before  # another launch of the same structure


def test_parts_of_groups_may_be_written_and_may_be_ops_that_have_not_run() -> None:
    text = """
def both(outputs: tuple[Mut, Mut], x: Tensor):
    t = ct.load_tile_like(x, outputs[0])
    outputs[0].store(t + 1)
    outputs[1].store(t * 2)
"""
    first, second = api.zeros((8,)).partition((4,)), api.zeros((8,)).partition((4,))
    out = kernel(text)((first, second), api.from_numpy(X)).sync()
    one, two = out.outputs
    np.testing.assert_array_equal(one.unpartition().to_numpy().sync(), X + 1)
    np.testing.assert_array_equal(two.unpartition().to_numpy().sync(), 2 * X)


def test_what_is_no_such_group_is_refused_by_its_path() -> None:
    x = tensor()
    wrong: list[tuple[Any, str]] = [
        (Layer((x,), 1.0), r"argument 'model' must be a Model, got .*Layer$"),
        (Model(Layer(x, 1.0), []), r"'model\.first\.weights' must be a tuple or a list, got .*Tensor"),  # type: ignore[arg-type]
        (Model(Layer((x, 2.0), 1.0), []), r"'model\.first\.weights\[1\]' must be a tensor, got float"),  # type: ignore[arg-type]
        (Model(Layer((x,), "much"), []), r"'model\.first\.scale' must be a scalar of f32, got str"),  # type: ignore[arg-type]
        (Model(Layer((x,), 1.0, mode="no"), []), r"'model\.first\.mode' must be a Mode, got 'no'"),  # type: ignore[arg-type]
    ]
    for model, message in wrong:
        with pytest.raises(ArgumentTypeError, match=message):
            layered(part(), model)
    fine = Model(Layer((x,), 1.0), [])
    with pytest.raises(ArgumentError, match=r"argument 'pair' must have 2 items, got 3"):
        layered(part(), fine, (1.0, 2, 3))
    with pytest.raises(ArgumentTypeError, match="op that has yet to run"):
        layered(part(), api.zeros((8,)))
    np.testing.assert_array_equal(x.to_numpy().sync(), X)  # and given back


PRODUCT = kernel(
    """
def product(z: Mut[Tensor[f32, "m", "n"]], x: Tensor[f32, "m", "k"], w: Tensor[f32, "k", "n"]):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0.0, z.shape, f32)
    xs, ws = x.partition((z.shape[0], 16)), w.partition((16, z.shape[1]))
    for k in range(ct.num_tiles(xs, 1)):
        acc = ct.mma(xs.load((i, k)), ws.load((k, j)), acc)
    z.store(acc)
"""
)


def test_extents_of_one_name_must_agree() -> None:
    def launched(z: tuple[int, int], x: tuple[int, int], w: tuple[int, int]) -> Any:
        return PRODUCT(api.zeros(z).sync().partition((16, 16)), api.ones(x).sync(), api.ones(w).sync()).sync()

    for k in (20, 33):
        out = launched((32, 16), (32, k), (k, 16))
        np.testing.assert_array_equal(out.z.unpartition().to_numpy().sync(), np.full((32, 16), k))
    assert PRODUCT.specializations == 2  # by the alignment of rows, and not by extents
    for _ in range(2):  # also where the layouts were seen before
        with pytest.raises(ArgumentError) as caught:
            launched((32, 16), (32, 33), (21, 16))
        assert str(caught.value) == (
            "product: the extent 'k' is 33 along axis 1 of argument 'x' (shape (32, 33)), but 21 along axis 0 of "
            "argument 'w' (shape (21, 16))"
        )
    with pytest.raises(ArgumentError, match=r"'m' is 32 along axis 0 of argument 'z'.*but 31 along axis 0"):
        launched((32, 16), (31, 33), (33, 16))
    with pytest.raises(ArgumentError, match=r"'w' must have the shape \('k', 'n'\), got \(.*an extent for each axis"):
        launched((32, 16), (32, 33), (33,))  # type: ignore[arg-type]


def test_constants_decide_what_is_compiled() -> None:
    text = (
        "def asserted(y: Mut, *, MODE: Const[str]):\n    ct.static_assert(MODE in ('a', 'b'), MODE)\n    y.store(1)\n"
    )
    asserted = kernel(text)
    np.testing.assert_array_equal(result(asserted(part(), MODE="a")), ONES)
    with pytest.raises(KernelTypeError, match="the assertion is false: c"):
        asserted(part(), MODE="c").sync()


@dataclass(frozen=True)
class Measured:
    """A field that its call does not give."""

    tensor: Tensor
    count: i32 | int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", self.tensor.shape[0])


@dataclass(frozen=True)
class Unset:
    tensor: Tensor
    count: i32 | int = field(init=False)


@dataclass(frozen=True)
class Pair:
    low: Any
    high: int = field(init=False)


@dataclass(frozen=True)
class Doubled:
    low: int
    high: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "high", 2 * self.low)


@dataclass(frozen=True)
class Fixed:
    low: Any
    high: int = field(init=False, default=7)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_field_that_a_call_does_not_give(backend: str) -> None:
    """Set by `__post_init__`, or by a default."""
    text = """
def k(y: Mut, m: Measured, *, C: Const):
    y.store(replace(Fixed(ct.load_tile_like(m.tensor, y)), low=y.load() + 1).high * ct.f32(m.count) + C.high * D.high)
"""
    function = kernel(text, Measured=Measured, Fixed=Fixed, replace=replace, D=Doubled(3))
    with on(backend):
        assert (result(function(part(), Measured(tensor()), C=Doubled(2))) == 7 * 8 + 4 * 6).all()


UNSET: dict[str, tuple[str, str]] = {
    "argument": (
        "def k(y: Mut, m: Unset):\n    y.store(y.load())\n",
        "argument 'm' is a Unset whose field 'count' has no value, and must be a scalar of i32; a field with "
        "init=False gets a value in __post_init__, or from a default",
    ),
    "constant": (
        "def k(y: Mut, *, C: Const = D):\n    y.store(y.load() * C.low)\n",
        "'C' is a Pair whose field 'high' has no value, and must be a constant; a field with init=False gets",
    ),
    "captured": (
        "def k(y: Mut):\n    y.store(y.load() * D.low)\n",
        "'D' comes from outside the kernel, and is a Pair whose field 'high' has no value\n",
    ),
    "made": (
        "def k(y: Mut):\n    y.store(Pair(y.load()).low)\n",
        "Pair(): its field 'high' has no value, since it has init=False and no default\n",
    ),
    "replaced": (
        "def k(y: Mut):\n    y.store(y.load() * replace(Fixed(1), high=2).high)\n",
        "replace: the field 'high' of Fixed has init=False, so that no call gives it\n",
    ),
    "computed again": (  # Python calls __post_init__: the field would be 8
        "def k(y: Mut):\n    y.store(y.load() * replace(E, low=4).high)\n",
        "Doubled has __post_init__, and a kernel makes plain dataclasses only\n",
    ),
}


@pytest.mark.parametrize("name", UNSET)
def test_a_field_without_a_value_is_named(name: str) -> None:
    text, message = UNSET[name]
    names = {each.__name__: each for each in (Unset, Pair, Fixed)}
    function = kernel(text, replace=replace, D=Pair(1), E=Doubled(3), **names)
    arguments = (part(), Unset(tensor())) if name == "argument" else (part(),)
    with pytest.raises((ArgumentTypeError, GenericsError, ct.KernelTypeError)) as raised:
        function(*arguments).sync()
    assert message in str(raised.value)
