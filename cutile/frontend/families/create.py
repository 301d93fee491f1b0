"""Calls that make new tiles: constants, counted numbers, random numbers.

Random numbers are Philox 4x32-10 in operations on u32: J. Salmon and others, "Parallel random numbers: as easy as 1, 2,
3", SC 2011; the constants are Random123's.
"""

from __future__ import annotations

import ast
from typing import Any

from cutile.conversion import fits, short, wider
from cutile.dtypes import f4e2m1fnx2, f32, i32, i64, u32, u64
from cutile.frontend.derived import Language, Term, composed, value_of
from cutile.frontend.expect import dtype_of, shape_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, broadcast_shape, broadcast_to, is_number, materialize
from cutile.frontend.plain_numbers import Interval
from cutile.frontend.registry import operation
from cutile.frontend.values import describe, is_tile
from cutile.ir import Constant, Value
from cutile.ops.create import Iota


@operation
def constant(frame: Frame, value: Any, shape: Any, dtype: Any) -> Any:
    if not is_number(value):
        frame.type_error(
            f"constant: the value must be known when the kernel is compiled, got {describe(value)}",
            remedy="The value comes first: ct.constant(value, shape, dtype)."
            if isinstance(value, tuple)
            else "Use ct.broadcast(value, shape) for a value known when the kernel runs.",
        )
    element = dtype_of(frame, dtype, "constant")
    extents = () if shape == () else shape_of(frame, shape, "constant")
    if element is f4e2m1fnx2 and value != 0:
        frame.type_error(
            "constant: f4e2m1fnx2 holds pairs, and one number is none, but for 0",
            remedy="Pack a constant of ct.f4e2m1fn: ct.constant(value, shape, ct.f4e2m1fn).pack().",
        )
    if element.is_integer and isinstance(value, float):
        frame.type_error(
            f"constant: {element} holds whole numbers, and {value!r} is a float",
            remedy=f"Write {int(value)}." if value.is_integer() else "Give a float dtype, such as ct.f32.",
        )
    if element.is_bool:
        return frame.emit(Constant(value=bool(value), dtype=element, shape=extents))
    whole = Interval(int(value), int(value)) if element.is_integer else None
    if whole is not None and not whole.fits(element):
        held = Interval.of(element)
        wide = wider(value)
        frame.type_error(
            f"constant: the number {short(value)} does not fit {element} ({held.low} to {held.high})",
            remedy="No integer dtype holds it." if wide is None else f"Give a wider dtype, such as ct.{wide.name}.",
        )
    if not fits(value, element):
        wide = wider(value, element)
        frame.type_error(
            f"constant: the number {short(value)} does not fit {element}, whose largest is {element.max:.8g}",
            remedy=f"Write ct.{element.__name__}.max or float('inf') if that is meant"
            + (f", or give a wider dtype, such as ct.{wide.name}." if wide else "; no dtype holds it."),
        )
    return materialize(frame, value, element, extents)


@operation
def iota(frame: Frame, shape: Any, dtype: Any = i32, start: Any = 0, step: Any = 1) -> Any:
    extents = shape_of(frame, shape, "iota")
    if len(extents) != 1:
        frame.type_error(f"iota: the shape must have one axis, got {extents}", remedy="Reshape the result.")
    counted = frame.emit(Iota(length=extents[0], dtype=dtype_of(frame, dtype, "iota")))
    for kind, value, neutral in ((ast.Mult, step, 1), (ast.Add, start, 0)):
        name = "start" if kind is ast.Add else "step"
        scalar = is_number(value) or (is_tile(value) and value.tile.is_scalar)
        if not scalar or isinstance(value, bool):
            frame.type_error(
                f"iota: expected an integer for the {name}, got {describe(value)}",
                remedy="It counts by ct.iota(shape, dtype, start, step): numbers, or scalars of the dtype.",
            )
        if is_tile(value) or value != neutral:
            counted = binary(frame, kind, counted, value)
    return counted


# Of Philox 4x32-10.
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key in each round: 2**32 times the golden ratio - 1, and sqrt(3) - 1
MASK = 0xFFFFFFFF

TURN = 1.46291807926715968105e-9
"""2 pi / 2**32: the angle of one step of a word."""

Words = tuple[Any, Any]
"""The low and the high 32 bits of an integer: numbers, or terms of u32."""


def _words(ct: Language, value: Any, name: str, what: str) -> Words:
    """An integer as two words: those of its 64 bits in two's complement."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**64:
            ct.frame.type_error(f"{what}: {name} {short(value)} does not fit 64 bits", remedy="Take it modulo 2**64.")
        return value & MASK, value >> 32 & MASK
    if not isinstance(value, Term) or not value.dtype.is_integer:
        ct.frame.type_error(
            f"{what}: {name} must be integers, got {describe(value_of(value))}",
            remedy="A seed is a number or a scalar; a counter is most often an index, such as ct.iota((n,)).",
        )
    if value.dtype.bits < 64:
        high: Any = 0 if value.dtype.kind == "uint" else (value.astype(i64).astype(u64) >> 32).astype(u32)
        return value.astype(u32), high
    whole = value.astype(u64)
    return whole.astype(u32), (whole >> 32).astype(u32)


def _word(ct: Language, number: Any) -> Term:
    """A word as a term; a number becomes a scalar of u32."""
    return number if isinstance(number, Term) else ct.term(number, u32)


def _product(ct: Language, multiplier: int, word: Any) -> Words:
    """The low and the high word of a product; of two numbers it is computed now."""
    if not isinstance(word, Term):
        return multiplier * word & MASK, multiplier * word >> 32
    return word * multiplier, ct.mulhii(word, multiplier)


def _plus(word: Any, number: int) -> Any:
    return word + number if isinstance(word, Term) else word + number & MASK


def _xor(ct: Language, *words: Any) -> Any:
    """The exclusive or of words; that of numbers is computed now."""
    numbers = 0
    terms: list[Term] = []
    for word in words:
        if isinstance(word, Term):
            terms.append(word)
        else:
            numbers ^= word
    if not terms:
        return numbers
    result = terms[0] ^ numbers if numbers else terms[0]
    for term in terms[1:]:
        result = result ^ term
    return result


def _blocks(ct: Language, seed: Any, counter: Any, subsequence: Any, what: str) -> tuple[Any, Any, Any, Any]:
    """Four words of each counter, of the shape that all arguments broadcast to."""
    if isinstance(seed, Term) and seed.shape:
        ct.frame.type_error(
            f"{what}: the seed must be a number or a scalar, got {describe(seed.value)}",
            remedy="One seed is enough: elements differ by their counters.",
        )
    key = _words(ct, seed, "the seed", what)
    a, b = _words(ct, counter, "the counter", what)
    c, d = _words(ct, subsequence, "the subsequence", what)
    for _ in range(ROUNDS):
        low_a, high_a = _product(ct, MULTIPLIERS[0], a)
        low_c, high_c = _product(ct, MULTIPLIERS[1], c)
        a, b, c, d = _xor(ct, high_c, b, key[0]), low_c, _xor(ct, high_a, d, key[1]), low_a
        key = (_plus(key[0], WEYL[0]), _plus(key[1], WEYL[1]))
    shapes = [each.shape for each in (counter, subsequence) if isinstance(each, Term)]
    return tuple(_shaped(ct, each, shapes) for each in (a, b, c, d))  # type: ignore[return-value]


def _shaped(ct: Language, word: Any, shapes: list[tuple[int, ...]]) -> Term:
    term = _word(ct, word)
    return Term(ct.frame, broadcast_to(ct.frame, term.value, broadcast_shape(ct.frame, [(), *shapes], "philox")))


@composed
def philox(ct: Language, seed: Any, counter: Any, subsequence: Any = 0) -> Any:
    return _blocks(ct, seed, counter, subsequence, "philox")


@composed
def rand(ct: Language, seed: Any, counter: Any, subsequence: Any = 0) -> Any:
    word = _blocks(ct, seed, counter, subsequence, "rand")[0]
    return (word >> 8).astype(f32) * 2.0**-24  # the 24 bits that an f32 holds, so that no number is rounded to 1


@composed
def randn(ct: Language, seed: Any, counter: Any, subsequence: Any = 0) -> Any:
    # The Box-Muller transform. Half a step is added, so that the logarithm is finite.
    first, second, _, _ = _blocks(ct, seed, counter, subsequence, "randn")
    above_zero = first.astype(f32) * 2.0**-32 + 2.0**-33
    angle = second.astype(f32) * TURN + TURN / 2
    return ct.sqrt(ct.log(above_zero) * -2.0) * ct.sin(angle)


@composed
def randint(ct: Language, seed: Any, counter: Any, low: Any, high: Any, subsequence: Any = 0) -> Any:
    bounds: list[Any] = []
    for bound, name in ((low, "low"), (high, "high")):
        value = value_of(bound)
        integer = isinstance(value, int) and not isinstance(value, bool)
        if not integer and not (isinstance(value, Value) and value.tile.dtype is i32):
            ct.frame.type_error(
                f"randint: {name} must be a number or i32, got {describe(value)}",
                remedy="Convert it: ct.i32(bound).",
            )
        bounds.append(Term(ct.frame, materialize(ct.frame, value, i32)))
    if isinstance(low, int) and isinstance(high, int) and low >= high:
        ct.frame.type_error(f"randint: there is no number from {low} to below {high}", remedy="low is below high.")
    first, last = bounds
    word = _blocks(ct, seed, counter, subsequence, "randint")[0]
    # A word over 2**32 is a fraction in [0, 1). The upper word of a product is the fraction times the number of values,
    # rounded down.
    return ct.mulhii(word, (last - first).astype(u32)).astype(i32) + first
