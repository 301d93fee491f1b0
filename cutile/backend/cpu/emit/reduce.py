"""Steps of reductions, orders of rows, matrix products as calls of the BLAS.

Each operation becomes a call of one intrinsic (`cutile/backend/cpu/intrinsics/`). The file has the name of the largest
of the three families.
"""

from cutile.backend.cpu.emit._text import Expression, Printer, Statement, Text, call
from cutile.backend.cpu.stage import Gemm, Order, Step
from cutile.ir.core import Op

STEPS = {
    "reduce_sum": "sum_step",
    "reduce_prod": "product_step",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_max_or_nan": "maximum_or_nan",
    "reduce_min_or_nan": "minimum_or_nan",
}
"""The intrinsic that adds an element to a reduction, by the operation's kind."""


def _step(printer: Printer, op: Step) -> Text:
    # Comparisons alone depend on the sign: sums and products have the same bits. Steps with `_or_nan` are of floats.
    ordered = op.kind in ("reduce_max", "reduce_min")
    suffix = "_unsigned" if ordered and op.acc.tile.dtype.kind == "uint" else ""
    return call(printer, STEPS[op.kind] + suffix, printer.operand(op.acc), printer.operand(op.x))


GEMMS = {"f32": "sgemm", "f64": "dgemm"}
"""The BLAS's function by dtype. The loader passes the address for the parameter of that name (`load.py`)."""


def _gemm(printer: Printer, op: Gemm) -> None:
    """Write a call of the intrinsic `gemm`, in several lines."""
    dtype = op.c.tensor.dtype.name
    # No symbol: the compiled object is kept on disk, and each process loads a BLAS at another address.
    address = printer.process_function(GEMMS[dtype], "i64")
    sizes = ", ".join(printer.operand(value).text for value in (op.rows, op.cols, op.depth))
    a, b, c = (
        ", ".join([printer.name(memory), printer.operand(at).text, printer.operand(step).text])
        for memory, at, step in ((op.a, op.a_at, op.a_step), (op.b, op.b_at, op.b_step), (op.c, op.c_at, op.c_step))
    )
    # A line each: the function and the sizes; then a, and then b: memory, offset, step, transposition; then c: memory,
    # offset, step, and beta in its dtype.
    printer.line(f"{printer.use('gemm')}(", op)
    with printer.indented():
        printer.line(f"{address}, {sizes},")
        printer.line(f"{a}, {int(op.a_transposed)},")
        printer.line(f"{b}, {int(op.b_transposed)},")
        printer.line(f"{c}, {printer.use(dtype)}({op.beta}),")
    printer.line(")")


def _order(printer: Printer, op: Order) -> None:
    row = ", ".join([printer.name(op.x), *(printer.operand(value).text for value in (op.at, op.step))])
    count, places = printer.operand(op.count).text, printer.name(op.places)
    if op.k:  # the places of the k largest alone
        printer.line(f"{printer.use('largest_places')}({row}, {places}, {count}, {op.k})", op)
    else:
        spare = printer.name(op.spare)
        printer.line(f"{printer.use('sort_places')}({row}, {places}, {spare}, {count}, {int(op.descending)})", op)


EXPRESSIONS: dict[type[Op], Expression] = {
    Step: _step,
}
STATEMENTS: dict[type[Op], Statement] = {
    Gemm: _gemm,
    Order: _order,
}
