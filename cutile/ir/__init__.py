"""The IR of programs: types, values, operations, blocks.

It knows no operation family and no target.
"""

from cutile.ir import builder, constant, control, core, types
from cutile.ir.builder import *
from cutile.ir.constant import *
from cutile.ir.control import *
from cutile.ir.core import *
from cutile.ir.types import *

__all__: tuple[str, ...] = ()
__all__ += builder.__all__
__all__ += constant.__all__
__all__ += control.__all__
__all__ += core.__all__
__all__ += types.__all__
