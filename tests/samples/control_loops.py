"""Loops, and the ways out of them. What a sample is says `control_sample.py`."""

from __future__ import annotations

from tests.samples.control_sample import Sample

LOOPS: dict[str, Sample] = {
    # for
    "for_up": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        x = x + i
    return x
""",
    ),
    "for_bounds": Sample(
        """\
def f(x, n, m):
    for i in range(n, m):
        x = x * 2 + i
    return x
""",
    ),
    "for_down": Sample(
        """\
def f(x, n, m):
    for i in range(m, n, -1):
        x = x * 3 - i
    return x
""",
    ),
    "for_down_by_two": Sample(
        """\
def f(x, n, m):
    for i in range(n + 9, -m, -2):
        x = x * 3 - i
    return x
""",
    ),
    "for_by_three": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20, 3):
        x = x ^ i
    return x
""",
    ),
    "for_dynamic_step": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20 * m, m):
        x = x * 3 + i
    return x
""",
        calls=((0, 3), (100, -7), (5, 5), (3, -1)),
    ),
    "for_constant_bounds": Sample(
        """\
def f(x, n, m):
    for i in range(3, 11, 4):
        x = x * i
    return x
""",
    ),
    "for_empty": Sample(
        """\
def f(x, n, m):
    for i in range(4, 4):
        x = x * 0
    return x
""",
    ),
    "for_nested": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        for j in range(i, m):
            x = x + i * j
    return x
""",
    ),
    "for_in_if": Sample(
        """\
def f(x, n, m):
    if n > 0:
        for i in range(10):
            x = x + 1
    else:
        x = x - 1
    return x
""",
    ),
    "for_if_for": Sample(
        """\
def f(x, n, m):
    for i in range(3):
        if n > 0:
            for j in range(m):
                x = x + 2
        else:
            x = x - 1
    return x
""",
    ),
    "for_tuple": Sample(
        """\
def f(x, n, m):
    for a, (b, c) in ((1, (2, n)), (3, (4, m))):
        x = x * a + b - c
    return x
""",
    ),
    "for_static_range": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(4):
        if i % 2 == 0:
            x = x + i * n
    return x
""",
    ),
    "for_last_value": Sample(
        """\
def f(x, n, m):
    for i in range(7):
        t = x + i * n
    return t + i
""",
    ),
    "for_number_becomes_tile": Sample(
        """\
def f(x, n, m):
    total = 0
    for i in range(m):
        total = total + x * i
    return total + x
""",
    ),
    "for_number_becomes_tile_deep_inside": Sample(
        """\
def f(x, n, m):
    total = 0
    for i in range(2):
        for j in range(m):
            part = 0
            for k in range(2):
                for _ in range(n):
                    total = total + x * k
                    part = part + total
                total = total + part
    return total + x
""",
        calls=((1, 3), (2, 2)),
    ),
    "for_number_becomes_tile_twice": Sample(
        """\
def f(x, n, m):
    a = 0
    b = 1
    for i in range(m):
        a, b = b + a, x + a
    return a + b + x
""",
    ),
    # break, continue, else
    "for_break": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i == n:
            break
        x = x + i
    return x
""",
    ),
    "for_break_at_the_end": Sample(
        """\
def f(x, n, m):
    for i in range(n, n + 9, 2):
        x = x + i
        if i > m:
            break
    return x
""",
    ),
    "for_break_value": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i * i > n:
            x = x * 7
            break
    return x + i
""",
    ),
    "for_break_down": Sample(
        """\
def f(x, n, m):
    for i in range(20, -20, -3):
        if i < n:
            break
        x = x * 3 + i
    return x
""",
    ),
    "for_break_dynamic_step": Sample(
        """\
def f(x, n, m):
    for i in range(n, 20 * m, m):
        if i > 30:
            break
        x = x * 3 + i
    return x
""",
        calls=((0, 3), (100, -7), (5, 5), (3, -1)),
    ),
    "for_break_wide": Sample(
        """\
def f(x, n, m):
    for i in range(-2147483648, 2147483647, 1000000007):
        if i > n * 1000000:
            break
        x = x * 3 + i // 1000
    return x
""",
    ),
    "for_continue": Sample(
        """\
def f(x, n, m):
    for i in range(10):
        if i % m == 0:
            continue
        x = x * 2 + i
    return x
""",
    ),
    "for_continue_break": Sample(
        """\
def f(x, n, m):
    for i in range(12):
        if i % 3 == 1:
            continue
        if i > n:
            break
        x = x * 2 + i
        if i == m:
            continue
        x = x - 1
    return x
""",
    ),
    "for_break_under_ifs": Sample(
        """\
def f(x, n, m):
    for i in range(12):
        if i > 2:
            if i > n:
                if i > m:
                    x = x + 100
                    break
                x = x + 10
            else:
                continue
        x = x * 2 + i
    return x
""",
    ),
    "for_break_nested": Sample(
        """\
def f(x, n, m):
    for i in range(5):
        for j in range(5):
            if j > n:
                break
            x = x + i * j
        if i == m:
            break
        x = x * 3
    return x
""",
    ),
    "for_else": Sample(
        """\
def f(x, n, m):
    for i in range(6):
        if i == n:
            break
        x = x + i
    else:
        x = x * 5
    return x
""",
    ),
    "for_else_break_outer": Sample(
        """\
def f(x, n, m):
    for i in range(4):
        for j in range(3):
            x = x + j
            if j == n:
                break
        else:
            x = x * 3
            if i == m:
                break
        x = x - 1
    return x
""",
        calls=((0, 3), (5, 2), (9, 1)),
    ),
    "for_else_plain": Sample(
        """\
def f(x, n, m):
    for i in range(n):
        x = x + i
    else:
        x = x * 5
    return x
""",
    ),
    "unrolled_break": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        if i == n:
            break
        x = x * 2 + i
    else:
        x = -x
    return x
""",
    ),
    "unrolled_continue": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        t = x + i
        if i < n:
            continue
        x = x * 2 + t
    return x + t
""",
    ),
    "unrolled_static_break": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(6):
        if i == 3:
            break
        x = x * 2 + i
    return x + i
""",
    ),
    # while
    "while": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < n:
        x = x + i
        i += 1
    return x
""",
    ),
    "while_break": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 20:
        i += m
        if i > n:
            break
        x = x * 2 + i
    return x + i
""",
    ),
    "while_continue": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 9:
        i += 1
        if i % 2 == 0:
            continue
        x = x * 3 + i * n
    return x
""",
    ),
    "while_true": Sample(
        """\
def f(x, n, m):
    i = n
    while True:
        i += m
        x = x + i
        if i > 12:
            break
    return x
""",
    ),
    "while_true_value": Sample(
        """\
def f(x, n, m):
    i = 0
    while True:
        i += m
        if i > 9:
            t = x * i
            break
        if i > n:
            t = x - i
            break
    return t
""",
    ),
    "while_else": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 5:
        x = x + i
        if i == n:
            break
        i += 1
    else:
        x = x * 9
    return x
""",
    ),
    "while_never": Sample(
        """\
def f(x, n, m):
    while False:
        x = x * 0
    return x
""",
    ),
    "while_lazy_condition": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < 10 and ct.reduce_max(x, 0) < 1000:
        x = x * 2
        i += 1
        if i == n:
            break
    return x
""",
    ),
    "collatz": Sample(
        """\
def f(x, n, m):
    steps = 0
    k = m
    while k != 1:
        k = k // 2 if k % 2 == 0 else 3 * k + 1
        steps += 1
    return x + steps
""",
    ),
    # return
    "return_early": Sample(
        """\
def f(x, n, m):
    if n > m:
        return x * 2
    x = x + 1
    return x - m
""",
    ),
    "return_from_branches": Sample(
        """\
def f(x, n, m):
    if n > m:
        return x * 2
    elif n < 0:
        return x * 3
    else:
        return x * 5
""",
    ),
    "return_from_loop": Sample(
        """\
def f(x, n, m):
    for i in range(9):
        x = x + i
        if i == n:
            return x * 100
    return x
""",
    ),
    "return_from_nested_loops": Sample(
        """\
def f(x, n, m):
    for i in range(4):
        for j in range(4):
            if i * j > m:
                return x * 100 + i
            if j == n:
                break
            x = x + j
    return x
""",
    ),
    "return_from_while_true": Sample(
        """\
def f(x, n, m):
    i = 0
    while True:
        i += m
        if i > 20:
            return x + i
        x = x * 3
""",
    ),
    "return_tuple": Sample(
        """\
def both(x, n):
    if n > 0:
        return x, n
    return -x, 7

def f(x, n, m):
    a, b = both(x, n)
    return a * b
""",
    ),
    "return_from_unrolled": Sample(
        """\
def f(x, n, m):
    for i in ct.static_range(5):
        if i == n:
            return x * 11
        x = x + i
    return x
""",
    ),
    "return_in_a_dead_branch": Sample(
        """\
def f(x, n, m):
    i = 0
    while i < n:
        i += 1
        if 3 > 4:
            return x
    for j in range(n):
        if 3 > 4:
            break
        x = x + j
    return x + i
""",
    ),
    "return_nothing": Sample(
        """\
def check(n):
    if n > 0:
        return
    n = n + 1

def f(x, n, m):
    check(n)
    return x
""",
    ),
    "while_condition_asserts": Sample(
        """\
def sure(k):
    assert k < 30, "asked"
    return True

def never(k):
    assert k < 30, "asked"
    return False

def f(x, n, m):
    while sure(n):
        n = n + 3
        if n > m:
            break
    while never(n):
        x = x * 0
    else:
        x = x + 1
    if -9 < n < 30 > never(m):
        x = x * 2
    return x + n
""",
    ),
}
