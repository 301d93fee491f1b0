"""Conversions: every pair of element types that means something for the values drawn."""

from collections.abc import Callable, Iterator
from typing import Any

from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u32
from tests.samples.row import FLOATS, INTS, NUMBERS, Row


def _rows() -> Iterator[Row]:
    for target in (f16, bf16, f32, f64):
        yield Row("convert", f"ct.convert_tile(x, ct.{target})", _to(target), (*NUMBERS, bool_), result=target)
    for target in (i8, i16, i32, i64, u8, u32):
        yield Row("convert", f"ct.convert_tile(x, ct.{target})", _to(target), (*INTS, bool_), result=target)
    for target in (i32, i64):
        yield Row("convert", f"ct.convert_tile(x, ct.{target})", _to(target), FLOATS, result=target, domain="small")
    yield Row("convert", "ct.convert_tile(x, ct.bool_)", _to(bool_), NUMBERS, result=bool_)
    for source, target in ((f32, i32), (i32, f32), (f16, i16), (u8, i8)):
        yield Row("bitcast", f"ct.bitcast(x, ct.{target})", _bits(target), (source,), result=target)
    yield Row("convert", "x.astype(ct.f32).astype(x.dtype)", lambda x, y: x, (f16, bf16, f32))


def _to(target: DTypeLike) -> Callable[[Any, Any], Any]:
    return lambda x, y: x.astype(target.numpy) if target is not bool_ else (x != 0)


def _bits(target: DTypeLike) -> Callable[[Any, Any], Any]:
    return lambda x, y: x.view(target.numpy)


ROWS = tuple(_rows())
