"""Functions of floats with more bits than f64: the judges of results."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from math import comb
from typing import Any

import numpy as np

_where: Any = np.where
PI = np.longdouble("3.14159265358979323846264338327950288")
DIGITS = 60
"""Of decimals. Beside a zero of lgamma at 1 or 2, an f64 leaves 16 of them to what cancels."""
SHIFT = 60
"""From here on 20 terms of Stirling's series leave a rest below 1e-60."""


def gaussian(z: Any) -> Any:
    """`exp(-z * z)` in long double: z in two parts, of which the first one's square is exact."""
    high = z.astype(np.float32).astype(np.longdouble)
    return np.exp(-high * high) * np.exp(-(z - high) * (z + high))


def erf(x: Any) -> Any:
    """The error function in long double, by a series of positive terms."""
    magnitude = np.abs(x.astype(np.longdouble))
    z = _where(magnitude < 6, magnitude, 6)
    term = total = z
    for n in range(1, 160):
        term = term * (2 * z * z) / (2 * n + 1)
        total = total + term
    value = total * gaussian(z) * 2 / np.sqrt(PI)
    return np.copysign(_where(magnitude > 6, 1, _where(np.isnan(magnitude), magnitude, value)), x)


def erfc(x: Any) -> Any:
    """`1 - erf(x)` in long double, from 1.5 on by a continued fraction."""
    magnitude = np.abs(x.astype(np.longdouble))
    z = np.clip(magnitude, 1.5, 120)
    fraction = z
    for k in range(160, 0, -1):
        fraction = z + k / (2 * fraction)
    tail = gaussian(z) / fraction / np.sqrt(PI)
    beyond = _where(x < 0, 2 - tail, tail)
    return _where((magnitude < 1.5) | np.isnan(magnitude), 1 - erf(x), _where(x > 120, 0, beyond))


def erfinv(x: Any) -> Any:
    """The inverse of the error function in long double, by bisection and Newton's method."""
    magnitude = np.abs(x.astype(np.longdouble))
    inner = _where(magnitude < 1, magnitude, 0)
    low, high = np.zeros_like(inner), np.full_like(inner, 6.5)
    for _ in range(20):
        middle = (low + high) / 2
        above = _where(inner < 0.5, erf(middle) > inner, erfc(middle) < 1 - inner)
        low, high = _where(above, low, middle), _where(above, middle, high)
    y = _where(inner < 0.01, inner * np.sqrt(PI) / 2, (low + high) / 2)
    for _ in range(5):
        rest = _where(inner < 0.5, erf(y) - inner, (1 - inner) - erfc(y))
        y = y - rest * np.sqrt(PI) / 2 / gaussian(y)
    return np.copysign(_where(magnitude < 1, y, _where(magnitude == 1, np.inf, np.nan)), x)


@cache
def _stirling() -> list[Decimal]:
    """The factors before 1 / z, 1 / z**3 and so on in Stirling's series, by Bernoulli's numbers."""
    numbers = [Fraction(1)]
    for m in range(1, 41):
        numbers.append(-sum((comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0)) / (m + 1))
    terms = [numbers[m] / (m * (m - 1)) for m in range(2, 41, 2)]
    return [Decimal(term.numerator) / term.denominator for term in terms]


@cache
def _pi() -> Decimal:
    """Machin's formula."""

    def arctan_of_inverse(n: int) -> Decimal:
        terms = (Decimal((-1) ** k) / ((2 * k + 1) * Decimal(n) ** (2 * k + 1)) for k in range(50))
        return sum(terms, Decimal(0))

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def _sine(x: Decimal) -> Decimal:
    """Of a number up to pi / 2."""
    term = total = x
    for k in range(1, 30):
        term = -term * x * x / (2 * k * (2 * k + 1))
        total += term
    return total


def _lgamma_of(x: float) -> np.longdouble:
    if np.isnan(x) or np.isinf(x):
        return np.longdouble(abs(x))
    if x <= 0 and x == int(x):
        return np.longdouble(np.inf)
    with localcontext(prec=DIGITS):
        number = Decimal(float(x))
        z, product = abs(number), Decimal(1)
        while z < SHIFT:
            product, z = product * z, z + 1
        total = (z - Decimal("0.5")) * z.ln() - z + (2 * _pi()).ln() / 2 - product.ln()
        for k, factor in enumerate(_stirling()):
            total += factor / z ** (2 * k + 1)
        if number < 0:  # Euler's reflection
            rest = abs(number - number.to_integral_value())
            total = (_pi() / (-number * _sine(_pi() * rest))).ln() - total
        # At 1 and 2 the digits cancel but for the last ones; beside them an f64 leaves 1e-16 or more.
        return np.longdouble(str(total)) if abs(total) > Decimal("1e-50") else np.longdouble(0)


def lgamma(x: Any) -> Any:
    """The logarithm of the gamma function's absolute value, by decimals."""
    return np.array([_lgamma_of(each) for each in x], np.longdouble)
