"""Mistakes in kernels and their scalar arguments: what somebody wrote, and what the answer has to name.

Each is an exception of the project with the place or the argument and a remedy; a good launch works afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

import cutile as ct
from cuda_async import Device
from cutile import api, f32
from cutile.errors import KernelError
from tests.support.kernels import define

stream = Device.host().new_stream()


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        text: the module, of which the last function is the kernel; `y: Mut` is its first parameter.
        says: what the message has to have, as a pattern.
        arguments: what it is launched with, after `y`.
    """

    text: str
    says: str
    arguments: tuple[Any, ...] = ()


def body(text: str, says: str, *arguments: Any, parameters: str = "") -> Mistake:
    """A mistake in a kernel's body."""
    indented = "\n".join(f"    {line}" for line in text.split("\n"))
    return Mistake(f"def kernel(y: Mut{parameters}):\n{indented}\n", says, arguments)


N = ", n: ct.i32"
A = ", a: ct.f32"

MISTAKES: dict[str, Mistake] = {
    # numbers that do not fit
    "literal_too_large": body("y.store(y.load() * 1e300)", r"1e\+300 does not fit f32, whose largest is 3\.40"),
    "literal_of_many_digits": body("y.store(y.load() * 10**400)", r"10000000\.\.\. \(401 digits\) does not fit f32"),
    "literal_of_5000_digits": body("y.store(y.load() * 10**5000)", r"<int of 16610 bits> does not fit f32"),
    "shape_of_5000_digits": body(
        "y.store(y.load().reshape((-(10**5000),)))",
        r"shape tuple\(<negative int of 16610 bits>\) has an extent below 1",
    ),
    "axis_of_5000_digits": body("y.store(ct.reduce_sum(y.load(), 10**5000))", r"there is no axis <int of 16610 bits>"),
    "argument_of_5000_digits": body("y.store(y.load() * a)", "got <negative int of 16", -(10**5000), parameters=A),
    "index_of_5000_digits": body("y.store(y.load() + n)", "got <int of 16610 bits>", 10**5000, parameters=N),
    "constant_too_large": body("y.store(ct.constant(1e300, (4,), f32))", "does not fit f32"),
    "conversion_too_large": body("y.store(ct.f16(1e6) + ct.convert_tile(y.load(), f16))", "does not fit f16"),
    "argument_too_large": body("y.store(y.load() * a)", "argument 'a' must fit f32", 1e300, parameters=A),
    "argument_of_many_digits": body("y.store(y.load() * a)", "argument 'a' must fit f32", 10**400, parameters=A),
    "argument_below_an_integer": body("y.store(y.load() + n)", "'n' must fit i32", -(2**31) - 1, parameters=N),
    "argument_nan_for_an_integer": body("y.store(y.load() + n)", "'n' must be an integer", float("nan"), parameters=N),
    "bool_of_2": body(
        "y.store(ct.select(b, y.load(), 0.0))", r"'b' must be a bool \(or 0 or 1\)", 2, parameters=", b: ct.bool_"
    ),
    "text_for_a_number": body("y.store(y.load() + n)", "'n' must be a scalar of i32, got str", "3", parameters=N),
    "shift_too_far": body("y.store(y.load() * (1 << -1))", "negative shift"),
    "integer_from_text": body("y.store(y.load() * int('three'))", r"int\(\).*invalid literal"),
    "float_from_text": body("y.store(y.load() * float('much'))", r"float\(\).*could not convert"),
    "integer_of_infinity": body("y.store(y.load() * int(float('inf')))", r"int\(\).*infinity"),
    "round_of_text": body("y.store(y.load() * round('3'))", r"round\(\)"),
    "abs_of_text": body("y.store(y.load() * abs('3'))", r"abs\(\)"),
    "order_of_the_run_time": body(
        "y.store(y.load() * sorted((1, 2), reverse=n > 1)[0])",
        "sorted: reverse must be known when the kernel is compiled, got scalar bool",
        3,
        parameters=N,
    ),
    "lengths_checked_at_run_time": body(
        "for a, b in zip((1, 2), (1, 2, 3), strict=n > 1):\n    y.store(y.load() * a)",
        "zip: strict must be known when the kernel is compiled, got scalar bool",
        3,
        parameters=N,
    ),
    "selection_by_a_tensor": body("y.store(ct.select(y, 1.0, 2.0))", "a condition must be a bool, got Mut of f32"),
    "min_of_unlike": body("y.store(y.load() * min(1, 'a'))", "min"),
    "max_of_a_tensor": body("y.store(max(y, 1))", "max"),
    "min_of_nothing": body("y.store(min(()))", "min of nothing"),
    "divmod_by_zero": body("y.store(y.load() * divmod(3, 0)[0])", "division by zero"),
    "power_of_zero": body("y.store(y.load() * 0 ** -1)", r"\*\*"),
    "math_domain": body("import_free = math.sqrt(-1)\ny.store(y.load() * import_free)", r"math\.sqrt"),
    # operands
    "division_names_the_tile_as_it_is": Mistake(
        "def kernel(y: Mut, x: ct.Tensor[i32, Dyn]):\n"
        "    y.store((x.load_tile((4,), (0,)) / (x.shape[0] * x.shape[0] * 4)).astype(f32))\n",
        "/: the tiles are i32, and / divides floats",
        (api.ones((4,), ct.i32).sync_on(stream),),
    ),
    "dtypes_in_the_order_of_their_nouns": body(
        "y.store(n * y.load())", r"\*: a tile and a scalar of different dtypes do not mix: f32 and i32", 3, parameters=N
    ),
    "product_of_tensors": body("y.store(y @ y)", r"@: cannot use a Mut of f32.*y\.load\(\)"),
    "product_of_tuples": body("y.store((1,) @ (2,))", r"@: cannot use a tuple \(1,\)"),
    "list_and_tuple_added": body("y.store(sum([1] + (2,)))", r"\+: a list and a tuple do not mix"),
    "tuple_and_list_compared": body("y.store(1 if (1, 2) < [1, 3] else 0)", "<: a list and a tuple do not mix"),
    "plus_of_a_bool": body("y.store(+(n > 3))", r"\+: arithmetic on bool", 3, parameters=N),
    "first_power_of_a_bool": body("y.store((n > 3) ** 1)", r"\*\*: arithmetic on bool", 3, parameters=N),
    "second_power_of_a_bool": body("y.store((n > 3) ** 2)", r"\*\*: arithmetic on bool", 3, parameters=N),
    "in_a_number": body("y.store(1 if n in 2 else 0)", "in: expected a tuple, got int 2", 3, parameters=N),
    "in_a_tensor": body("y.store(1 if n in y else 0)", "in: expected a tuple, got Mut of f32", 3, parameters=N),
    "dtype_in_a_list_of_names": body("y.store(1 if y.dtype in ['f32'] else 0)", "in: a dtype never equals str 'f32'"),
    "dtype_in_a_tuple": body(
        "y.store(1 if (y.dtype, n) == ('f32', 3) else 0)", "a dtype never equals", 3, parameters=N
    ),
    "operand_that_python_refuses": body("y.store(-'a')", "The operands are known now, and Python itself refuses them"),
    # names
    "global_of_a_set": Mistake(
        "SIZES = {1, 2}\ndef kernel(y: Mut):\n    y.store(y.load() * len(SIZES))\n", "'SIZES'.*set"
    ),
    "module_attribute_of_a_list": Mistake(
        "import types\nm = types.SimpleNamespace(SIZE=3)\ndef kernel(y: Mut):\n    y.store(y.load() * m.SIZE)\n",
        "'m'.*SimpleNamespace",
    ),
    "attribute_of_a_class_of_a_list": Mistake(
        "class Sizes:\n    ALL = [1, 2]\ndef kernel(y: Mut):\n    y.store(y.load() * Sizes.ALL[0])\n", "ALL.*list"
    ),
    "attribute_of_a_class_missing": Mistake(
        "class Sizes:\n    BM = 1\ndef kernel(y: Mut):\n    y.store(y.load() * Sizes.BN)\n", "'BN'"
    ),
    "deleted_before": body("t = y.load()\nu = t + v\nv = 3\ny.store(u)", "'v' is used before it is assigned"),
    "cell_that_is_empty": Mistake(
        "def outer():\n    def kernel(y: Mut):\n        y.store(y.load() * late)\n    return kernel\n"
        "    late = 3\nkernel = outer()\n",
        "'late' is not defined",
    ),
    "method_that_a_variable_has_not": Mistake(
        "v = ct.Global(ct.i32)\ndef kernel(y: Mut):\n    v.foo()\n",
        "variable of i32 has no attribute 'foo'.*It has atomic_add, dtype, load, store",
    ),
    # functions
    "helper_without_text": Mistake(
        "helper = eval('lambda t: t + 1')\ndef kernel(y: Mut):\n    y.store(helper(y.load()))\n",
        "source text cannot be found",
    ),
    "helper_object": Mistake(
        "class Helper:\n    __slots__ = ()\nhelper = Helper()\n"
        "def kernel(y: Mut):\n    y.store(helper.double(y.load()))\n",
        "'helper' comes from outside the kernel",
    ),
    "generator_helper": Mistake(
        "def helper(t):\n    yield t\ndef kernel(y: Mut):\n    y.store(helper(y.load()))\n", "yield"
    ),
    "async_helper": Mistake(
        "async def helper(t):\n    return t\ndef kernel(y: Mut):\n    y.store(helper(y.load()))\n",
        "'helper' is an async function",
    ),
    "object_that_can_be_called": Mistake(
        "class Scale:\n    def __call__(self, t):\n        return t\nscale = Scale()\n"
        "def kernel(y: Mut):\n    y.store(scale(y.load()))\n",
        "scale is an object of Scale, whose attributes may change.*frozen=True",
    ),
    "helper_that_returns_nothing": Mistake(
        "def helper(t):\n    t = t + 1\ndef kernel(y: Mut):\n    y.store(helper(y.load()))\n",
        "store: expected a tile, got NoneType",
    ),
    "default_that_is_a_list": Mistake(
        "def helper(t, sizes=[1]):\n    return t * sizes[0]\ndef kernel(y: Mut):\n    y.store(helper(y.load()))\n",
        "'sizes'.*list",
    ),
    "helper_with_too_many_keywords": Mistake(
        "def helper(t, **rest):\n    return other(t, **rest)\ndef other(t):\n    return t\n"
        "def kernel(y: Mut):\n    y.store(helper(y.load(), bias=1))\n",
        "unexpected keyword argument 'bias'",
    ),
    "partial_with_too_many": Mistake(
        "import functools\ndef helper(t):\n    return t\npart = functools.partial(helper, 1)\n"
        "def kernel(y: Mut):\n    y.store(part(y.load()))\n",
        "too many positional arguments",
    ),
    "partial_made_in_the_kernel": Mistake(
        "import functools\ndef kernel(y: Mut):\n    y.store(functools.partial(max, 1.0)(y.load()))\n",
        "Write a lambda, .* outside of the kernel",
    ),
    "map": body(
        "y.store(sum(map(abs, (y.load(), 1.0))))", r"Write a comprehension: \[helper\(item\) for item in items\]"
    ),
    "filter": body("y.store(sum(filter(abs, (y.load(), 1.0))))", r"for item in items if wanted\(item\)\]"),
    "extent_beyond_a_tile": body(
        "t = ct.constant(1.0, (2**31,), f32)\ny.store(ct.reduce_sum(t, 0))",
        r"the shape \(2147483648,\) is larger than a tile can be.*smaller tiles in a loop",
    ),
    "elements_beyond_a_tile": body(
        "t = ct.constant(1.0, (2**21, 2**21, 2**21), f32)\ny.store(ct.reduce_sum(t))",
        r"\(2097152, 2097152, 2097152\) is larger than a tile can be",
    ),
    "lambda_in_a_generator": body("fs = tuple(lambda t: t * j for j in (1, 2))\ny.store(fs[0](y.load()))", "reads 'j'"),
    "class_with_slots": Mistake(
        "class Pair:\n    def __init__(self, a):\n        self.a = a\ndef kernel(y: Mut):\n"
        "    y.store(Pair(y.load()).a)\n",
        "Pair is a class",
    ),
    # text
    "format_of_many_digits": body("print(f'{10**400:5.2f}')", "print: int too large"),
    "format_of_the_launch": body("print(f'{n:{n}}')", r"a format must be known.*\{x:\{WIDTH\}\}", 2, parameters=N),
    "assert_with_a_tile": body(
        "t = y.load()\nassert n > 3, f't is {t}'\ny.store(t)", "assert: .* shows a tile of shape", 2, parameters=N
    ),
    "assert_that_loads": body(
        "assert n > 3, f'y is {y.load()}'\ny.store(y.load())", "accesses memory", 2, parameters=N
    ),
    "assert_with_five_values": body(
        "assert n > 3, f'{n} {n} {n} {n} {n}'\ny.store(y.load())", "shows 5 values .* may show 4", 2, parameters=N
    ),
    "assert_false_with_values": body(
        "assert y.shape[0] > 30, f'n is {n}'\ny.store(y.load())", r"assertion is false: n is \.\.\.", 2, parameters=N
    ),
    "store_of_text": body("y.store(f'{n}')", "store: expected a tile", 2, parameters=N),
    "text_format_of_a_number": body("print(f'{3:q}')\ny.store(y.load())", "print"),
    "text_indexed": body("y.store(y.load() * 'abc'[0])", r"cannot be indexed|str"),
    # shapes, loops, tuples
    "in_a_tile": body("y.store(y.load() * (n in y.load()))", "`in` of a tile", 2, parameters=N),
    "slice_of_step_0": body("y.store(y.load() * (1, 2, 3)[::0][0])", "slice"),
    "sum_of_text": body("y.store(y.load() * sum(('a', 'b')))", "sum|\\*"),
    "sorted_of_text": body("y.store(y.load() * sorted((1, 'a'))[0])", "sorted"),
    "shape_of_a_bool": body("y.store(y.load().reshape((True, 4)))", "constant integers"),
    "range_too_wide": body("for i in range(2**70):\n    y.store(y.load())", "range|fit"),
    "static_range_too_long": body("for i in ct.static_range(10**9):\n    y.store(y.load())", "static_range"),
    "too_many_terms": body(
        "y.store(" + " + ".join(["n"] * 1500) + ")", "nested too deeply.*Assign parts", 2, parameters=N
    ),
    "too_many_branches": body(
        "if n == 0:\n    y.store(1.0)\n" + "\n".join(f"elif n == {k}:\n    y.store(1.0)" for k in range(1, 400)),
        r"^this statement is nested too deeply",
        2,
        parameters=N,
    ),
    "nothing_raised": body("raise ValueError('no')", "raise"),
    "star_in_an_index": body("y.store(y.load()[*(None,)])", "\\*|starred|Starred|not compiled"),
}
"""By name."""

GOOD = Mistake("def good(y: Mut):\n    y.store(y.load() + 1)\n", says="nothing")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_and_nothing_is_lost(name: str) -> None:
    mistake = MISTAKES[name]
    y = api.ones((4,), f32).sync_on(stream)
    with ct.use_backend("reference"):
        with pytest.raises(
            (KernelError, ct.ArgumentError, ct.ArgumentTypeError), match=f"(?s){mistake.says}"
        ) as caught:
            run(mistake, y)
        for error in getattr(caught.value, "errors", ()):
            assert error.location is not None, error
            assert "^" in str(error)
            assert error.remedy, f"no remedy: {error}"
        run(GOOD, y)
    assert y.to_host_vec().sync_on(stream).tolist() == [2.0] * 4


def run(mistake: Mistake, y: ct.Tensor) -> None:
    """Declare the kernel, and launch it."""
    kernel = ct.entry(define(mistake.text, math=math))
    kernel(y.mut.partition((4,)), *mistake.arguments).sync_on(stream)
