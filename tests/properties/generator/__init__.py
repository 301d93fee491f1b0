"""Random kernels as text: whole programs over the language, to be run by every backend and compared.

    arguments      what a kernel is launched with: arrays in many layouts, outputs, scalars, pointers
    kernel         a kernel with its arguments: printed to paste, read back, placed on a device
    drawer         what the parts below share: the choices drawn, the names in scope, the arguments asked for
    words          operators and functions by kind of dtype
    values         expressions that compute
    shapes         expressions that move, fold and scan elements
    loads          expressions that read memory
    statements     loops and branches that carry tiles
    numbers        statements that assert what Python makes of plain numbers, and what lies far outside
    writes         statements that write memory beside the result
    frames         what a block does with its tiles, and `kernels`, the strategy
    loops          `loops`, another strategy: several matrix products in loops, exact to the last bit
    interleaved    `interleaved`, a third: loads and uses of products apart from the products, in any order

Integers wrap and agree exactly. Float kernels are kept tame, so that what backends may round differently stays small:
loops damp, functions of large values are bounded by tanh, and comparisons are made only on values as loaded, which no
backend rounds. The tolerance that remains is the dtype's.
"""

from tests.properties.generator.frames import kernels
from tests.properties.generator.interleaved import interleaved
from tests.properties.generator.kernel import RandomKernel
from tests.properties.generator.loops import loops

__all__ = ("RandomKernel", "interleaved", "kernels", "loops")
