"""Float arithmetic with directed rounding, and flushing to zero.

A directed rounding is the machine's own: a function that is never inlined sets the rounding mode, computes with LLVM's
constrained operation, and sets the mode back. So LLVM can move no other arithmetic in between. Loops that call it are
not vectorised.
"""

from typing import Any

from cutile.backend.cpu.intrinsics._seam import define, ir, llvm, types, unary
from cutile.backend.cpu.intrinsics._seam import intrinsic as numba_intrinsic

__all__ = (
    "add_downward",
    "add_to_zero",
    "add_upward",
    "div_downward",
    "div_to_zero",
    "div_upward",
    "flush",
    "fma_downward",
    "fma_to_zero",
    "fma_upward",
    "mul_downward",
    "mul_to_zero",
    "mul_upward",
    "sqrt_downward",
    "sqrt_to_zero",
    "sqrt_upward",
    "sub_downward",
    "sub_to_zero",
    "sub_upward",
)

MODES = {"to_zero": 0, "upward": 2, "downward": 3}
"""The rounding modes by C's and LLVM's numbers; 1 is to nearest."""
SMALLEST_NORMAL = 2.0**-126  # of f32


def _constrained(module: Any, name: str, kind: Any, count: int) -> Any:
    """LLVM's constrained operation, declared in the module."""
    suffix = {"float": "f32", "double": "f64"}[str(kind)]
    symbol = f"llvm.experimental.constrained.{name}.{suffix}"
    facts = ir.MetaDataType()
    signature = ir.FunctionType(kind, [*[kind] * count, facts, facts])
    return module.globals.get(symbol) or ir.Function(module, signature, symbol)


def _function(module: Any, name: str, mode: str, kind: Any, count: int) -> Any:
    """The function that does one operation in another rounding mode."""
    symbol = f"tile.{name}.{mode}.{kind}"
    function = module.globals.get(symbol)
    if function is not None:
        return function
    function = ir.Function(module, ir.FunctionType(kind, [kind] * count), symbol)
    function.linkage = "internal"
    function.attributes.add("noinline")
    attributes: set[str] = function.attributes
    set[str].add(attributes, "strictfp")  # llvmlite's list of known attributes lacks it
    builder = ir.IRBuilder(function.append_basic_block())
    i32 = ir.IntType(32)
    setter = module.globals.get("llvm.set.rounding")
    setter = setter or ir.Function(module, ir.FunctionType(ir.VoidType(), [i32]), "llvm.set.rounding")
    builder.call(setter, [ir.Constant(i32, MODES[mode])])
    facts = [ir.MetaDataString(module, "round.dynamic"), ir.MetaDataString(module, "fpexcept.strict")]
    result = builder.call(_constrained(module, name, kind, count), [*function.args, *facts])
    builder.call(setter, [ir.Constant(i32, 1)])  # to nearest
    builder.ret(result)
    return function


def _directed(name: str, mode: str, count: int) -> Any:
    """The intrinsic of an operation of `count` floats in a rounding mode of `MODES`.

    `name` is that of LLVM's constrained operation.
    """

    def typing(*arguments: Any) -> Any:
        kinds = tuple(types.unliteral(each) for each in arguments)
        if not isinstance(kinds[0], types.Float) or any(each != kinds[0] for each in kinds):
            return None

        def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            function = _function(builder.module, name, mode, values[0].type, count)
            return builder.call(function, list(values))

        return kinds[0](*kinds), codegen

    def one(_context: Any, x: Any) -> Any:
        return typing(x)

    def two(_context: Any, x: Any, y: Any) -> Any:
        return typing(x, y)

    def three(_context: Any, x: Any, y: Any, z: Any) -> Any:
        return typing(x, y, z)

    return numba_intrinsic((one, two, three)[count - 1])  # Numba reads the number of parameters


add_upward, add_downward, add_to_zero = (_directed("fadd", mode, 2) for mode in ("upward", "downward", "to_zero"))
sub_upward, sub_downward, sub_to_zero = (_directed("fsub", mode, 2) for mode in ("upward", "downward", "to_zero"))
mul_upward, mul_downward, mul_to_zero = (_directed("fmul", mode, 2) for mode in ("upward", "downward", "to_zero"))
div_upward, div_downward, div_to_zero = (_directed("fdiv", mode, 2) for mode in ("upward", "downward", "to_zero"))
fma_upward, fma_downward, fma_to_zero = (_directed("fma", mode, 3) for mode in ("upward", "downward", "to_zero"))
sqrt_upward, sqrt_downward, sqrt_to_zero = (_directed("sqrt", mode, 1) for mode in ("upward", "downward", "to_zero"))


def _flush(builder: Any, arguments: list[Any]) -> Any:
    (x,) = arguments
    tiny = builder.fcmp_ordered("<", llvm(builder, "fabs", x), ir.Constant(x.type, SMALLEST_NORMAL))
    return builder.select(tiny, llvm(builder, "copysign", ir.Constant(x.type, 0.0), x), x)


def _f32(x: Any) -> Any:
    return x if x == types.float32 else None


flush = unary(define("flush", _flush), _f32)
"""An f32, or the zero of its sign where it is subnormal."""
