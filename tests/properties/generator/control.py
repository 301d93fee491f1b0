"""Functions of whole numbers with loops, branches and ways out in any nest, which Python runs as they stand."""

from __future__ import annotations

import random

CONDITIONS = (
    "n > 2", "t % 3 == 1", "u < t", "n == 4 and t > 2", "not (t > 5 or u > 7)", "t % 2", "(n, t % 2) == (4, 1)",
    "u in (1, 3, n)", "0 < t % 5 < 3", "N == 3", "N > n", "t > 40", "0 <= u % 4 != t % 3 < N",
)  # fmt: skip
STEPS = (
    "t += 1", "t = t + u", "u = t % 7", "t, u = u + 1, t % 11", "u += n", "t = u if u > 3 else t + 2",
    "t = max(t, u) % 50", "t = abs(u - 5) + N", "u = (t := (t + 3) % 17) + 1",
    "t = t // -3 + u % -4", "t, u = divmod(t + u, -5)", "u = min(t, u, 9) - max(n, u % 7, 1)",
    "t = sum([k * t % 9 for k in (1, u, 2)])", "u = (t % 50 << 1 ^ u & 6 | n) >> 1",
)  # fmt: skip
RANGES = ("n", "3", "1, n", "n, 0, -1", "t % 4", "0", "u % 3, 5")


def function(seed: int) -> str:
    """The text of `f(n, N)`, which returns a whole number; N is 3 and known when the kernel is compiled."""
    rng = random.Random(seed)
    body = [f"t, u = {rng.randint(0, 3)}, n - 2", *_block(rng, 2, False, 0), "return t * 1000 + u"]
    return "\n".join(["def f(n, N):", *(f"    {line}" for line in body)]) + "\n"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _block(rng: random.Random, depth: int, in_loop: bool, nest: int) -> list[str]:
    lines: list[str] = []
    for _ in range(rng.randint(1, 3)):
        lines += _statement(rng, depth, in_loop, nest)
    return lines


def _statement(rng: random.Random, depth: int, in_loop: bool, nest: int) -> list[str]:
    kind, condition = rng.random(), rng.choice(CONDITIONS)
    if nest and kind > 0.87:
        ways = ("break", "continue") if in_loop and kind < 0.95 else ("return t * 1000 + u", "return t - u")
        return [f"if {condition}:", f"    {rng.choice(ways)}"]
    if depth == 0 or kind < 0.3:
        return [rng.choice(STEPS)]
    name = f"k{nest}"
    if kind < 0.5:
        lines = [f"if {condition}:", *_indented(_block(rng, depth - 1, in_loop, nest + 1))]
        if rng.random() < 0.3:
            lines += ["elif u > 4:", *_indented(_block(rng, depth - 1, in_loop, nest + 1))]
    else:
        heads = (f"for {name} in range({rng.choice(RANGES)}):",) * 2
        head = rng.choice((*heads, f"for {name} in (1, n, 5):", f"for {name} in reversed(range(3)):", "while"))
        first = f"t += {name}"
        lines = [head]
        if head == "while":
            lines = [f"{name} = 0", f"while {name} < {rng.choice(('n', '3', 't % 5'))}:"]
            first = f"{name} += 1"
        lines += _indented([first, *_block(rng, depth - 1, True, nest + 1)])
    if rng.random() < 0.4:
        lines += ["else:", *_indented(_block(rng, depth - 1, in_loop, nest + 1))]
    return lines
