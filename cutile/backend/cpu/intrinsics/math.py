"""Functions of floats, most of them as formulas without branches.

Loops over such formulas vectorise. Coefficients are minimax fits (Remez, in 80-bit arithmetic) of the functions named
above them. The largest errors against 80-bit results, in units of the last place, stand in the table FUNCTIONS, and
tests check them. f16 and bf16 are computed in f32 by the caller.
"""

from typing import Any

from cutile.backend.cpu.intrinsics._formula import (
    BIAS,
    HALF_PI,
    MANTISSA,
    Num,
    polynomial,
    round_to_int,
    scale,
    sin_cos,
    tangent,
)
from cutile.backend.cpu.intrinsics._seam import binary, define, ir, llvm, types, unary

LOG2_E = 1.4426950408889634
LOG10_E = 0.4342944819032518
NEAR_ZERO = 2.0**-12
"""Distance from 0 within which three terms of a series of all powers have a relative error below 2**-37."""
SERIES_END = 1e-2
"""Distance from 0 within which three terms of a series of odd powers have a relative error below 2**-40."""
LN2_HI = {"float": 0.693145751953125, "double": 0.6931471803691238}  # few bits: n * LN2_HI is exact
LN2_LO = {"float": 1.42860682030941723e-6, "double": 1.9082149292705877e-10}

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2
EXP = {
    "float": (
        0.5000000013624187, 0.16666666757501886, 0.041666463359444114,
        0.008333285641970183, 0.001393382272115324, 0.00019907839817824195,
    ),
    "double": (
        0.5, 0.1666666666666667, 0.04166666666666669, 0.008333333333325903, 0.0013888888888866412,
        0.00019841269875530462, 2.4801587368969904e-05, 2.755725459040436e-06, 2.755723078730268e-07,
        2.5105526067036028e-08, 2.0929188402813746e-09,
    ),
}  # fmt: skip
# (2**r - 1) / r on |r| <= 1/2
EXP2 = {
    "float": (
        0.6931471805536156, 0.24022650925069908, 0.05550410929515831, 0.00961805608893353,
        0.001333345370744094, 0.00015461679456827015, 1.53103130946551e-05,
    ),
    "double": (
        0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762847,
        0.0013333558146407165, 0.00015403530393377906, 1.5252733840757266e-05, 1.3215486813562577e-06,
        1.0178057435468057e-07, 7.054891298104509e-09, 4.455767518931113e-10, 2.5743271496771234e-11,
    ),
}  # fmt: skip
# 2 * (atanh(s) / s - 1) / s**2 in s**2, for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)
LOG = {
    "float": (0.6666666655213991, 0.40000123468485205, 0.2855065641214937, 0.23334570994822396),
    "double": (
        0.6666666666666666, 0.40000000000000907, 0.28571428570785057, 0.22222222395924573,
        0.18181795196761014, 0.15386263310470563, 0.1326815597750448, 0.13092919602015643,
    ),
}  # fmt: skip
# (tanh(x) - x) / x**3 in x**2, for |x| <= 5/8
TANH = {
    "float": (
        -0.3333333318069351, 0.1333330456898775, -0.05395945067554473,
        0.021770175669118208, -0.008347299262754864, 0.0022958517368905163,
    ),
    "double": (
        -0.3333333333333333, 0.13333333333332886, -0.05396825396775176, 0.02186948851382853,
        -0.008863235006455404, 0.0035921206758262885, -0.001455767854433239, 0.0005896261669446948,
        -0.00023748867126002367, 9.238268791312526e-05, -3.100320953352986e-05, 6.3950528320819775e-06,
    ),
}  # fmt: skip
# erf(x) / x in x**2, for |x| <= 1
ERF_NEAR = (
    1.1283791670623613, -0.37612638475990245, 0.11283782622047799, -0.0268654383097249,
    0.005221053410379477, -0.0008484396519553916, 0.00011268253669122367, -9.67359016399478e-06,
)  # fmt: skip
# log(erfc(x) / t) + x**2 in ERFC_SCALE * t - ERFC_SHIFT, which is -1 to 1, for t = 2 / (2 + x) and 0 <= x <= ERFC_END
ERFC_TAIL = (
    -0.5609228712280759, 0.5725044048943583, 0.01623740468641967, -0.02981582643179806, -0.0011376949132964307,
    0.0037964736385444203, -0.00027584075354401887, -0.000568015067610299, 0.00014934641427782642,
    7.196846808125472e-05, -3.9511686218022904e-05, -5.19136059044959e-06, 5.353514493325072e-06,
)  # fmt: skip
ERFC_SCALE, ERFC_SHIFT = 2.3902439024390243, 1.3902439024390243
ERFC_END = 10.25  # erfc is zero there, in f32: below half of the smallest number
# erfinv(x) / x in -log(1 - x * x) / ERFINV_SCALE - 1, up to 2 * ERFINV_SCALE, with a relative error of 1e-7
ERFINV_NEAR = (
    1.50140941657, 0.61660185888, -0.0261104920012, -0.0195895287563, 0.00853817886465,
    -0.000428675223184, -0.000859921016979, 0.000209395405647, 4.2708673227e-05,
)  # fmt: skip
ERFINV_SCALE = 2.5
# Beyond, for all x below 1 in f64: erfinv(x) / x in (sqrt(-log(1 - x * x)) - ERFINV_SHIFT) / ERFINV_WIDTH, with a
# relative error of 3e-8
ERFINV_FAR = (
    4.00944460859, 1.9509918221, 0.00325598284545, -0.00487292443855, 0.00329980946015, -0.00245033687522,
    0.00181501843161, -0.000117022636277, 0.000857677128759, -0.00415340056699, 0.00275622920273,
    0.00112982561863, -0.00108856678756,
)  # fmt: skip
ERFINV_SHIFT, ERFINV_WIDTH = 4.168033988749895, 1.931966011250105
# atan(x) / x in x**2, for |x| <= 1, with a relative error of 6e-11
ATAN = (
    0.9999999999412362, -0.333333315712149, 0.19999912051754706, -0.1428398076757959, 0.110932413434254,
    -0.08980239543707094, 0.0724571967052221, -0.05427913305527734, 0.03420963839940136, -0.01611170209533334,
    0.004850942259600068, -0.0006847939303389377,
)  # fmt: skip
HALF_ROOT_PI = 0.886226925452758  # sqrt(pi) / 2
EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}  # beyond: 0 and infinity
EXP2_RANGE = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}


def _clamp(x: Num, low: float, high: float) -> Num:
    """Within the bounds; NaN stays."""
    raised = x.where(x.compare("<", low), low)
    # `raised` is compared, not `x`: each comparison with its selection is then one instruction.
    return raised.where(raised.compare(">", high), high)


def _exp(x: Num) -> Num:
    """`2**n * exp(r)` for the whole number n nearest to `x / ln(2)`."""
    kind = x.kind
    x = _clamp(x, *EXP_RANGE[kind])
    n, whole = round_to_int(x, LOG2_E)
    r = n.fma(-LN2_LO[kind], n.fma(-LN2_HI[kind], x))
    return scale(polynomial(r, EXP[kind]).fma(r * r, r) + 1.0, whole)


def _exp2(x: Num) -> Num:
    kind = x.kind
    x = _clamp(x, *EXP2_RANGE[kind])
    n, whole = round_to_int(x)
    r = x - n
    return scale(polynomial(r, EXP2[kind]).fma(r, 1.0), whole)


def _split(x: Num) -> tuple[Num, Num]:
    """`(f, e)` with `x == (1 + f) * 2**e` and `1 + f` between sqrt(1/2) and sqrt(2).

    `x` is positive and finite.
    """
    kind = x.kind
    mantissa = MANTISSA[kind]
    tiny = x.compare("<", 2.0 ** (2 - BIAS[kind]))  # subnormal, or nearly: bring it up
    raised = x.where(tiny, x * 2.0 ** (mantissa + 2))
    # Adding the distance from sqrt(1/2) to 1, in bits, carries into the exponent exactly from sqrt(2) on.
    half_root = 0x3F3504F3 if kind == "float" else 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
    one = BIAS[kind] << mantissa
    moved = raised.bits() + (one - half_root)
    e = (moved >> mantissa) - BIAS[kind]
    m = ((moved & ((1 << mantissa) - 1)) + half_root).as_float()
    lowered = e.to_float()
    return m - 1.0, lowered.where(tiny, lowered - float(mantissa + 2))


def _log_of(x: Num, base_two: bool) -> Num:
    """The natural logarithm, or that to base 2, of a float of either type.

    The logarithm of 0 is -infinity, of a negative number NaN.
    """
    kind = x.kind
    f, e = _split(x)
    s = f / (f + 2.0)
    s2 = s * s
    half_square = f * f * 0.5
    tail = s * polynomial(s2, LOG[kind]).fma(s2, half_square)  # log(1 + f) == f - half_square + tail
    if base_two:
        low_bits = 12 if kind == "float" else 32  # `high` has few bits: its product with `log2_e_hi` is exact
        high = ((f - half_square).bits() & -(1 << low_bits)).as_float()
        low = f - high - half_square + tail
        log2_e_hi = 1.44287109375 if kind == "float" else 1.4426950216293335
        log2_e_lo = LOG2_E - log2_e_hi
        total = e + ((high * log2_e_hi) + (low * log2_e_hi + (low + high) * log2_e_lo))
    else:
        total = e.fma(LN2_HI[kind], f - (half_square - (tail + e * LN2_LO[kind])))
    infinity, nan = float("inf"), float("nan")
    total = total.where(x.compare("==", infinity), infinity)
    total = total.where(x.compare("==", 0.0), -infinity)
    return total.where(x.compare("<", 0.0), nan).where(x.is_nan(), nan)


def _sin(x: Num) -> Num:
    return sin_cos(x, 0) if x.kind == "float" else x.call("sin")


def _cos(x: Num) -> Num:
    return sin_cos(x, 1) if x.kind == "float" else x.call("cos")


def _tan(x: Num) -> Num:
    return tangent(x)


def _wide(x: Num) -> Num:
    return x.of(x.builder.fpext(x.value, ir.DoubleType()))


def _narrow(x: Num, wide: Num) -> Num:
    return x.of(x.builder.fptrunc(wide.value, ir.FloatType()))


def _sinh(x: Num) -> Num:
    """f32, computed in f64, which has enough bits where the terms cancel.

    Near 0 by two terms of the series, the next of which is below 1e-14 of the sum.
    """
    wide = _wide(x)
    e = _exp(_clamp(wide, -200.0, 200.0))  # infinite in f32 beyond
    far = (e - wide.constant(1.0) / e) * 0.5
    near = (wide * wide).fma(wide * (1 / 6), wide)
    result = _narrow(x, far.where(wide.call("fabs").compare("<", 1e-3), near))
    return x.of(x.builder.select(x.compare("==", 0.0), x.value, result.value))  # -0.0 stays


def _cosh(x: Num) -> Num:
    wide = _wide(x)
    e = _exp(_clamp(wide, -200.0, 200.0))
    return _narrow(x, (e + wide.constant(1.0) / e) * 0.5)


def _pow(x: Num, y: Num) -> Num:
    """f32: `2 ** (y * log2(x))`, computed in f64.

    f64 has enough bits for exponents of up to 150.
    """
    base, exponent = _wide(x), _wide(y)
    one = base.constant(1.0)
    size = base.call("fabs")
    infinity, nan = float("inf"), float("nan")
    power = _exp2(_clamp(exponent * _log_of(size, base_two=True), -2000.0, 2000.0))
    whole = exponent.call("floor").compare("==", exponent)
    odd = (exponent * 0.5).call("floor").compare("!=", exponent * 0.5)
    b: Any = x.builder
    odd = b.and_(b.and_(whole, odd), exponent.call("fabs").compare("<", infinity))
    negative = b.icmp_signed("<", base.bits().value, base.constant(0.0).bits().value)
    result = power.where(b.and_(negative, odd), power * -1.0)
    is_fraction = b.and_(b.not_(whole), exponent.compare("==", exponent))
    finite = size.compare("<", infinity)
    below = b.and_(b.and_(base.compare("<", 0.0), finite), is_fraction)
    result = result.where(below, nan)
    result = result.where(base.is_nan(), nan).where(exponent.is_nan(), nan)
    # 1 to any power, any number and NaN to the power 0, and -1 to an infinite one, are 1.
    infinite = exponent.call("fabs").compare("==", infinity)
    result = result.where(b.and_(infinite, size.compare("==", 1.0)), one)
    result = result.where(base.compare("==", 1.0), one).where(exponent.compare("==", 0.0), one)
    return _narrow(x, result)


def _log(x: Num) -> Num:
    return _log_of(x, base_two=False)


def _log2(x: Num) -> Num:
    return _log_of(x, base_two=True)


def _tanh(x: Num) -> Num:
    magnitude = x.call("fabs")
    x2 = x * x
    near = polynomial(x2, TANH[x.kind]).fma(x2 * x, x)
    e = _exp(_clamp(magnitude * 2.0, 0.0, 50.0))  # from e**50 on the quotient below vanishes beside 1, also in f64
    far = x.constant(1.0) - x.constant(2.0) / (e + 1.0)
    result = far.where(magnitude.compare("<", 0.625), near)
    return x.of(llvm(x.builder, "copysign", result.value, x.value))  # -0.0 stays


def _erfc_tail(magnitude: Num) -> Num:
    """f64: erfc of a number of at least 0, with a relative error of 2e-10."""
    z = _clamp(magnitude, 0.0, ERFC_END)
    t = z.constant(2.0) / (z + 2.0)
    return t * _exp(polynomial(t * ERFC_SCALE - ERFC_SHIFT, ERFC_TAIL) - z * z)


def _erf(x: Num) -> Num:
    """f32, computed in f64: an odd polynomial near 0, else 1 less the tail."""
    wide = _wide(x)
    magnitude = wide.call("fabs")
    near = polynomial(wide * wide, ERF_NEAR) * wide
    far = wide.constant(1.0) - _erfc_tail(magnitude)
    far = wide.of(llvm(x.builder, "copysign", far.value, wide.value))
    return _narrow(x, far.where(magnitude.compare("<", 1.0), near))


def _erfc(x: Num) -> Num:
    """f32, computed in f64: the tail of `x`, or 2 less the tail of a negative `-x`."""
    wide = _wide(x)
    tail = _erfc_tail(wide.call("fabs"))
    return _narrow(x, tail.where(wide.compare("<", 0.0), wide.constant(2.0) - tail))


def _hypot(x: Num, y: Num) -> Num:
    """f32, computed in f64, where no square of an f32 overflows or vanishes."""
    wide, other = _wide(x), _wide(y)
    root = wide.fma(wide, other * other).call("sqrt")
    infinity = float("inf")
    for magnitude in (wide.call("fabs"), other.call("fabs")):  # an infinite side counts, even beside NaN
        root = root.where(magnitude.compare("==", infinity), infinity)
    return _narrow(x, root)


def _erfinv_of(magnitude: Num, error_functions: Any) -> Num:
    """f64: a polynomial, and a step of Halley's method, which triples its digits.

    Args:
        magnitude: the number, at least 0.
        error_functions: gives `erf` and `erfc` of a number of at least 0.
    """
    rest = magnitude.constant(1.0) - magnitude
    w = _log_of(rest * (magnitude + 1.0), base_two=False) * -1.0
    far = polynomial((w.call("sqrt") - ERFINV_SHIFT) / ERFINV_WIDTH, ERFINV_FAR)
    y = far.where(w.compare("<", 2 * ERFINV_SCALE), polynomial(w / ERFINV_SCALE - 1.0, ERFINV_NEAR)) * magnitude
    erf, erfc = error_functions(y)
    # `erf(y) - magnitude`. From 1/2 on it is computed from the complements to 1, which lose no digits.
    difference = (rest - erfc).where(magnitude.compare("<", 0.5), erf - magnitude)
    step = difference * _exp(y * y) * HALF_ROOT_PI
    y = y - step / y.fma(step, 1.0)
    return y.where(magnitude.compare("==", 1.0), float("inf"))


def _own_error_functions(y: Num) -> tuple[Num, Num]:
    return polynomial(y * y, ERF_NEAR) * y, _erfc_tail(y)


def _erfinv(x: Num) -> Num:
    """f32, computed in f64."""
    result = _narrow(x, _erfinv_of(_wide(x).call("fabs"), _own_error_functions))
    # The sign comes from `x` itself: LLVM would convert the sign of an f64 to f16 by a function that is not there.
    return x.of(llvm(x.builder, "copysign", result.value, x.value))


def _signed_as(x: Num, wide: Num) -> Num:
    """An f64 as f32, with the sign of `x`."""
    return x.of(llvm(x.builder, "copysign", _narrow(x, wide).value, x.value))


def _log10(x: Num) -> Num:
    return _narrow(x, _log_of(_wide(x), base_two=False) * LOG10_E)


def _cbrt(x: Num) -> Num:
    """f32, computed in f64: `exp(log(|x|) / 3)`."""
    return _signed_as(x, _exp(_log_of(_wide(x).call("fabs"), base_two=False) * (1 / 3)))


def _log1p(x: Num) -> Num:
    """f32, computed in f64, where 1 + x has 40 bits of `x` beyond `NEAR_ZERO`.

    Nearer to 0 by the series.
    """
    wide = _wide(x)
    near = polynomial(wide, (1.0, -1 / 2, 1 / 3)) * wide
    return _narrow(x, _log_of(wide + 1.0, base_two=False).where(_is_near_zero(wide), near))


def _expm1(x: Num) -> Num:
    """f32, computed in f64, as `_log1p`."""
    wide = _wide(x)
    near = polynomial(wide, (1.0, 1 / 2, 1 / 6)) * wide
    return _narrow(x, (_exp(wide) - 1.0).where(_is_near_zero(wide), near))


def _is_near_zero(wide: Num) -> Any:
    return wide.call("fabs").compare("<", NEAR_ZERO)


def _angle(ordinate: Num, abscissa: Num) -> Num:
    """f64: the angle of a point whose ordinate is at least 0, from 0 to pi.

    Its relative error is 1e-10. Coordinates may be infinite or zero.
    """
    size = abscissa.call("fabs")
    steep = ordinate.compare(">", size)
    high, low = size.where(steep, ordinate), ordinate.where(steep, size)
    # 0 / 0 is 0 here, and infinity / infinity 1.
    ratio = (low / high).where(high.compare("==", 0.0), 0.0).where(low.compare("==", float("inf")), 1.0)
    angle = polynomial(ratio * ratio, ATAN) * ratio
    angle = angle.where(steep, angle.constant(HALF_PI) - angle)
    # By the bits, since the abscissa may be -0.0.
    negative = abscissa.builder.icmp_signed("<", abscissa.bits().value, abscissa.constant(0.0).bits().value)
    return angle.where(negative, angle.constant(2 * HALF_PI) - angle)


def _atan(x: Num) -> Num:
    wide = _wide(x).call("fabs")
    return _signed_as(x, _angle(wide, wide.constant(1.0)).where(wide.is_nan(), float("nan")))


def _atan2(x: Num, y: Num) -> Num:
    ordinate, abscissa = _wide(x).call("fabs"), _wide(y)
    angle = _angle(ordinate, abscissa)
    nan = float("nan")
    return _signed_as(x, angle.where(ordinate.is_nan(), nan).where(abscissa.is_nan(), nan))


def _asin(x: Num) -> Num:
    """f32, computed in f64, where 1 - x is exact: the angle of a point of the circle.

    NaN where |x| > 1, since the root is.
    """
    wide = _wide(x).call("fabs")
    return _signed_as(x, _angle_or_nan(wide, _angle(wide, _leg(wide)), _leg(wide)))


def _acos(x: Num) -> Num:
    wide = _wide(x)
    return _narrow(x, _angle_or_nan(wide, _angle(_leg(wide), wide), _leg(wide)))


def _leg(wide: Num) -> Num:
    """`sqrt(1 - x * x)`."""
    return ((wide.constant(1.0) - wide) * (wide + 1.0)).call("sqrt")


def _angle_or_nan(wide: Num, angle: Num, leg: Num) -> Num:
    """The angle; NaN where the number or the leg is NaN."""
    return angle.where(leg.is_nan(), float("nan")).where(wide.is_nan(), float("nan"))


def _asinh(x: Num) -> Num:
    """f32, computed in f64; near 0 by the series."""
    wide = _wide(x).call("fabs")
    far = _log_of(wide + wide.fma(wide, 1.0).call("sqrt"), base_two=False)
    near = polynomial(wide * wide, (1.0, -1 / 6, 3 / 40)) * wide
    return _signed_as(x, far.where(wide.compare("<", SERIES_END), near))


def _acosh(x: Num) -> Num:
    wide = _wide(x)
    result = _log_of(wide + ((wide - 1.0) * (wide + 1.0)).call("sqrt"), base_two=False)
    return _narrow(x, result.where(wide.compare("<", 1.0), float("nan")))


def _atanh(x: Num) -> Num:
    wide = _wide(x).call("fabs")
    far = _log_of((wide + 1.0) / (wide.constant(1.0) - wide), base_two=False) * 0.5
    near = polynomial(wide * wide, (1.0, 1 / 3, 1 / 5)) * wide
    return _signed_as(x, far.where(wide.compare("<", SERIES_END), near))


def _function(name: str, formula: Any) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        return formula(Num(builder, arguments[0])).value

    return unary(define(name, emit), _float_type)


def _float_type(x: Any) -> Any:
    """The result has the type of the argument, which is a float."""
    return x if isinstance(x, types.Float) else None


def _llvm_function(name: str) -> Any:
    def emit(builder: Any, arguments: list[Any]) -> Any:
        return llvm(builder, name, *arguments)

    return unary(emit, _float_type)


def _rsqrt(x: Num) -> Num:
    return x.constant(1.0) / x.call("sqrt")


LIBRARY: set[str] = set()
"""The functions of the C library that the functions here call."""


def _library_call(name: str, count: int) -> Any:
    """A call of the C library's function of f64.

    An f32 is computed in f64 too, and rounded: the result is all but correctly rounded.
    """
    LIBRARY.add(name)

    def emit(builder: Any, arguments: list[Any]) -> Any:
        double = ir.DoubleType()
        kind = arguments[0].type
        signature = ir.FunctionType(double, [double] * count)
        function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
        if kind == double:
            return builder.call(function, arguments)
        wide = builder.call(function, [builder.fpext(each, double) for each in arguments])
        return builder.fptrunc(wide, kind)

    return emit


def _library_error_functions(y: Num) -> tuple[Num, Num]:
    erf, erfc = (y.of(_library_call(name, 1)(y.builder, [y.value])) for name in ("erf", "erfc"))
    return erf, erfc


def _erfinv_f64(builder: Any, arguments: list[Any]) -> Any:
    x = Num(builder, arguments[0])
    result = _erfinv_of(x.call("fabs"), _library_error_functions)
    return llvm(builder, "copysign", result.value, x.value)


def _in_f32(formula: Any, name: str, count: int, f64: Any = None) -> Any:
    """A formula for f32, which vectorises; the C library for f64, or `f64`."""
    library = f64 or _library_call(name, count)

    def emit(builder: Any, arguments: list[Any]) -> Any:
        if str(arguments[0].type) == "double":
            return library(builder, arguments)
        return formula(*(Num(builder, each) for each in arguments)).value

    if count == 1:
        return unary(define("own." + name, emit), _float_type)
    return binary(define("own." + name, emit), _float_types)


def _library(name: str, count: int) -> Any:
    """The C library's function of one or two floats."""
    emit = define(f"library.{name}", _library_call(name, count))
    return unary(emit, _float_type) if count == 1 else binary(emit, _float_types)


def _float_types(x: Any, y: Any) -> Any:
    return x if isinstance(x, types.Float) and x == y else None


FUNCTIONS: dict[str, Any] = {
    # Formulas for both types, which vectorise.
    "exp": _function("exp", _exp),  # at most 1.0 ulp
    "exp2": _function("exp2", _exp2),  # at most 1.0 ulp
    "log": _function("log", _log),  # at most 1.0 ulp
    "log2": _function("log2", _log2),  # at most 1.5 ulp; exact for powers of two
    "tanh": _function("tanh", _tanh),  # at most 1.5 ulp
    "rsqrt": _function("rsqrt", _rsqrt),  # at most 1.5 ulp
    # Formulas for f32, which vectorise; the C library's functions for f64.
    "sin": _function("sin", _sin),  # f32: at most 0.51 ulp for every argument
    "cos": _function("cos", _cos),  # f32: at most 0.51 ulp for every argument
    "tan": _in_f32(_tan, "tan", 1),  # f32: at most 0.51 ulp for every argument
    "sinh": _in_f32(_sinh, "sinh", 1),  # f32: at most 0.51 ulp
    "cosh": _in_f32(_cosh, "cosh", 1),  # f32: at most 0.51 ulp
    "power": _in_f32(_pow, "pow", 2),  # f32: at most 0.51 ulp
    "erf": _in_f32(_erf, "erf", 1),  # f32: at most 0.51 ulp
    "erfc": _in_f32(_erfc, "erfc", 1),  # f32: at most 0.51 ulp
    "erfinv": _in_f32(_erfinv, "erfinv", 1, _erfinv_f64),  # f32: at most 0.51 ulp
    "hypot": _in_f32(_hypot, "hypot", 2),  # f32: at most 0.51 ulp
    "atan2": _in_f32(_atan2, "atan2", 2),  # f32: at most 0.51 ulp
    "log10": _in_f32(_log10, "log10", 1),  # f32: at most 0.51 ulp
    "cbrt": _in_f32(_cbrt, "cbrt", 1),  # f32: at most 0.51 ulp
    "log1p": _in_f32(_log1p, "log1p", 1),  # f32: at most 0.51 ulp
    "expm1": _in_f32(_expm1, "expm1", 1),  # f32: at most 0.51 ulp
    "asin": _in_f32(_asin, "asin", 1),  # f32: at most 0.51 ulp
    "acos": _in_f32(_acos, "acos", 1),  # f32: at most 0.51 ulp
    "atan": _in_f32(_atan, "atan", 1),  # f32: at most 0.51 ulp
    "asinh": _in_f32(_asinh, "asinh", 1),  # f32: at most 0.51 ulp
    "acosh": _in_f32(_acosh, "acosh", 1),  # f32: at most 0.51 ulp
    "atanh": _in_f32(_atanh, "atanh", 1),  # f32: at most 0.51 ulp
    # The C library's function of f64, for both types.
    "lgamma": _library("lgamma", 1),  # f32: at most 0.51 ulp
    # LLVM's own, rounded correctly.
    "sqrt": _llvm_function("sqrt"),
    "floor": _llvm_function("floor"),
    "ceil": _llvm_function("ceil"),
    "round_even": _llvm_function("rint"),
    "trunc": _llvm_function("trunc"),
}
"""The functions by their names in generated code: the operation's, but for `power` and `round_even`.

Bounds are the largest errors measured.
"""

__all__ = ("FUNCTIONS", "LIBRARY")
