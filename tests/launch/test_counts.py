"""What launches count is data: it computes what the compiler's text says, and nothing in a file is evaluated."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutile.analysis.affine import Affine, Atom, Facts, count_of, extent_atom, multiple, scalar_atom
from cutile.dtypes import i32
from cutile.launch.compiled_kernel import counter

NAMES = ["x", "n", "min"]
CHECKED = [SimpleNamespace(shape=(70, 1)), -12, 5]
GRID = (7, 1, 3)
ATOMS = [extent_atom("x", 0), extent_atom("x", 1), scalar_atom("n", i32), scalar_atom("min", i32), Atom("grid[2]", 1)]


@st.composite
def linear(draw: st.DrawFn) -> Affine:
    """A number as the compiler makes them."""
    facts = Facts()
    x = Affine(draw(st.integers(-9, 9)))
    for _ in range(draw(st.integers(1, 6))):
        other = multiple(draw(st.sampled_from(ATOMS)), draw(st.sampled_from([1, 1, 4])))
        x = draw(
            st.sampled_from(
                [x + other, x - other, x.times(-3), x.floor_div(4), facts.smaller(x, other), facts.larger(other, x)]
            )
        )
    return x


@given(linear())
def test_it_is_what_the_text_says(number: Affine) -> None:
    x, n, least = CHECKED
    names: dict[str, Any] = {"x": x, "n": n, "grid": GRID}
    # `min` is a function in the text, and a parameter only where nothing is called
    text = number.text
    if "min(" not in text:
        names["min"] = least
    elif text.replace("min(", "").count("min"):
        return
    assert counter(count_of(text, NAMES))(CHECKED, GRID) == eval(text, names)


@pytest.mark.parametrize(
    "text", ["x.shape", "other", "n / 2", "n if n else 1", "f(n)", "min(n)", "n.real", "x.shape[n]", "[n]", "1.5"]
)
def test_nothing_else_becomes_data(text: str) -> None:
    with pytest.raises(ValueError, match="is no sum, quotient, minimum or maximum of what a launch knows"):
        count_of(text, NAMES)


@pytest.mark.parametrize(
    "data",
    ["1 + 1", "(x.shape[1] + 7) // 8", None, 1.0, True, [], ["grid"], ["grid", "0"], ["**", 1, 2], ["+", 1], {"a": 1}],
)
def test_nothing_else_is_computed(data: Any) -> None:
    with pytest.raises(ValueError, match="is no count"):
        counter(data)
    with pytest.raises(ValueError, match="is no count"):
        counter(["+", data, 1])
