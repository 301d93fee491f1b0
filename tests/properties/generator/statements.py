"""Statements: a new variable, and what loops and branches make of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.properties.generator.drawer import Drawer


def plain(d: Drawer, name: str, step: str) -> list[str]:
    """Nothing more."""
    return []


def augmented(d: Drawer, name: str, step: str) -> list[str]:
    """An assignment with an operator."""
    return [f"{name} {d.pick(('+=', '-='))} {step}"]


def for_loop(d: Drawer, name: str, step: str) -> list[str]:
    """A loop over a range."""
    bounds = d.pick(("n", "1, n", "n, 0, -1", "0, n, 2", "0, 4, n", "3"))
    return [f"for i in range({bounds}):", f"    {name} = {step}"]


def while_loop(d: Drawer, name: str, step: str) -> list[str]:
    """A loop with a condition."""
    count = f"c_{name}"
    return [f"{count} = 0", f"while {count} < n:", f"    {name} = {step}", f"    {count} += 2"]


def branch(d: Drawer, name: str, step: str) -> list[str]:
    """A branch."""
    return [f"if {d.scalar_condition()}:", f"    {name} = {step}"]


def branches(d: Drawer, name: str, step: str) -> list[str]:
    """Three branches."""
    negative = f"{name} ^ 1" if d.dtype.kind == "uint" else f"-{name}"
    return [
        f"if {d.scalar_condition()}:", f"    {name} = {step}",
        f"elif {d.scalar_condition()}:", f"    {name} = {d.tile_leaf()}",
        "else:", f"    {name} = {negative}",
    ]  # fmt: skip


def nested(d: Drawer, name: str, step: str) -> list[str]:
    """A branch in a loop in a loop."""
    return [
        "for i in range(2):",
        f"    for j in range(i, {d.pick(('n', '2'))}):",
        f"        if {d.scalar_condition()}:",
        f"            {name} = {step}",
        f"    {name} = {d.damped(f'{name} + t')}",
    ]


def jump(d: Drawer, name: str, step: str) -> list[str]:
    """A loop that is left, or gone on with, early."""
    at = d.pick(("i == 1", "i + 1 == n", "n > 3", d.scalar_condition()))
    return [
        f"for i in range({d.pick(('n', '4'))}):",
        d.pick((f"    {name} = {step}", "    pass")),
        f"    if {at}:", f"        {d.pick(('break', 'continue'))}",
        f"    {name} = {d.damped(f'{name} + u')}",
    ]  # fmt: skip


def swap(d: Drawer, name: str, step: str) -> list[str]:
    """Two variables exchanged."""
    return [f"s_{name} = {step}", f"{name}, s_{name} = s_{name}, {name}"]


def unrolled(d: Drawer, name: str, step: str) -> list[str]:
    """A loop of constants."""
    return ["for i in ct.static_range(2):", "    if i == 1:", f"        {name} = {step}"]


def flags(d: Drawer, name: str, step: str) -> list[str]:
    """A tile of bools, carried by a loop."""
    flag = f"f_{name}"
    return [
        f"{flag} = {d.condition()}",
        f"for i in range({d.pick(('n', '1, n', '2'))}):",
        f"    {flag} = {d.pick((f'{flag} ^ {d.condition()}', f'~{flag} | {d.condition()}', f'{flag} & (t < y)'))}",
        f"{name} = ct.select({flag}, {name}, {step})",
    ]


def scalars(d: Drawer, name: str, step: str) -> list[str]:
    """Numbers that a loop carries, of data and of counts; a branch that asks for them."""
    count, most = f"k_{name}", f"m_{name}"
    largest = d.pick(d.raw)
    for _ in d.tile:
        largest = f"ct.reduce_max({largest}, 0)"
    return [
        f"{count}, {most} = n - 3, {largest}",
        f"while {count} < {d.pick(('n', '4'))} and {most} > {d.pick(('0', '1'))}:",
        f"    {name} = {step}",
        f"    {count} += {d.pick(('1', '2', 'n'))}",
        f"if {most} > {d.pick(('1', 'a'))}:",
        f"    {name} = {d.damped(f'{name} + ct.convert_tile({count}, t.dtype)')}",
    ]


def walked(d: Drawer, name: str, step: str) -> list[str]:
    """A tensor, and a partition of it, that a loop carries."""
    w = f"w_{name}"
    cut = d.pick(("x", f"{w}.slice({d.axis()}, 0, n + 1)", f"{w}.slice({d.axis()}, i)"))
    index = ", ".join(d.pick(("0", f"at[{k}]")) for k in range(d.rank))
    return [
        f"{w} = {d.pick(('x', 'z'))}",
        f"for i in range({d.pick(('n', '2', '1, n'))}):",
        f"    {name} = {d.damped(f'{name} + {w}.load_tile(t.shape, ({index},))')}",
        f"    {w} = {cut} if {d.pick(('i % 2 == 0', d.scalar_condition()))} else z",
        f"{name} = {d.damped(f'{name} + {w}.load_tile(t.shape, ({index},))')}",
    ]


def returned(d: Drawer, name: str, step: str) -> list[str]:
    """A plain number that a function returns out of loops, beside a tile."""
    function, inner = f"r_{name}", d.pick(("for j in range(i, 3):", "while i < 2:", "if k > i:"))
    number = f"{function}({d.pick(('x.shape[0]', 'z.shape[0]', 'ct.get_num_tile_blocks()[0]'))})"
    number = f"{number} * 0.125" if d.is_float else f"ct.convert_tile({number}, t.dtype)"
    leaves = ("return i", f"return {d.pick(('i + k', 'k % 7', '2'))}", "break") if inner[0] != "i" else ("return i",)
    return [
        f"def {function}(k):",
        f"    for i in range({d.pick(('k', '4', '1, k, 2'))}):",
        f"        {inner}",
        f"            if {d.pick(('i % 3 == 1', 'n > i + 1', 'k > 2 * i'))}:",
        f"                {d.pick(leaves)}",
        *(["            i += 1"] if inner[0] == "w" else []),
        f"    return {d.pick(('0', 'k % 5', '1'))}",
        f"{name} = {d.damped(f'{step} + {number}')}",
    ]


def asserted(d: Drawer, name: str, step: str) -> list[str]:
    """An assertion that holds."""
    return [f"assert {d.pick(('n == 3', 'n < 9 and at[0] >= 0'))}, 'never'", f"{name} = {step}"]


Statement = Callable[[Drawer, str, str], list[str]]
CONTROL: tuple[Statement, ...] = (
    plain, plain, for_loop, while_loop, branch, branches, nested, jump, swap, unrolled, augmented, flags,
    scalars, asserted, walked, returned,
)  # fmt: skip


def statement(d: Drawer, position: int, kinds: tuple[Statement, ...]) -> list[str]:
    """A new variable, and what happens to it."""
    name = f"v{position}"
    lines = [f"{name} = {d.expression(d.number(1, 2))}"]
    d.names = (*d.names, name)
    return lines + d.pick(kinds)(d, name, d.damped(d.expression(1)))
