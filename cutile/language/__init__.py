"""The kernel language for its users: annotations, and the operations' signatures.

Nothing here computes. A kernel is compiled from its source text, in which a name means the object of this package that
it refers to, also under an alias. Type checkers and readers see the signatures.
"""

from cutile.language import (
    annotations,
    arith,
    bound,
    cast,
    compare,
    control,
    create,
    debug,
    element,
    grid,
    mapped,
    markers,
    math,
    memory,
    partition,
    pointer,
    shape,
    shared_mut,
    token,
    trigonometry,
    view,
)

# Under other names: `atomic`, `matmul`, `reduce`, `rounding` and `sort` are names of the language below.
from cutile.language import atomic as _atomic
from cutile.language import matmul as _matmul
from cutile.language import reduce as _reduce
from cutile.language import rounding as _rounding
from cutile.language import sort as _sort
from cutile.language.annotations import *
from cutile.language.arith import *
from cutile.language.atomic import *
from cutile.language.bound import *
from cutile.language.cast import *
from cutile.language.compare import *
from cutile.language.control import *
from cutile.language.create import *
from cutile.language.debug import *
from cutile.language.element import *
from cutile.language.grid import *
from cutile.language.mapped import *
from cutile.language.markers import *
from cutile.language.math import *
from cutile.language.matmul import *
from cutile.language.memory import *
from cutile.language.partition import *
from cutile.language.pointer import *
from cutile.language.reduce import *
from cutile.language.rounding import *
from cutile.language.shape import *
from cutile.language.shared_mut import *
from cutile.language.sort import *
from cutile.language.token import *
from cutile.language.trigonometry import *
from cutile.language.view import *

__all__: tuple[str, ...] = ()
__all__ += annotations.__all__
__all__ += arith.__all__
__all__ += _atomic.__all__
__all__ += bound.__all__
__all__ += cast.__all__
__all__ += compare.__all__
__all__ += control.__all__
__all__ += create.__all__
__all__ += debug.__all__
__all__ += element.__all__
__all__ += grid.__all__
__all__ += mapped.__all__
__all__ += markers.__all__
__all__ += math.__all__
__all__ += _matmul.__all__
__all__ += memory.__all__
__all__ += partition.__all__
__all__ += pointer.__all__
__all__ += _reduce.__all__
__all__ += _rounding.__all__
__all__ += shape.__all__
__all__ += shared_mut.__all__
__all__ += _sort.__all__
__all__ += token.__all__
__all__ += trigonometry.__all__
__all__ += view.__all__
