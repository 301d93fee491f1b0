"""Operations that only this backend's lowered IR has.

Every decision about them stands in their attributes. The language's operations keep their classes when they are
lowered, and get further attributes:

- `layout`: the name of the result's layout.
- `source`: the name of the operand's layout; for `mma`, the names of both operands' layouts. The function's fact
  `layouts` has the layouts by name.
- `vector`: the axis, and the width in elements, of wide accesses.
- `offset` and `fence`: the place in shared memory, in bytes, and whether it may still be in use.

Most operations name the `intrinsic` that they become, and `emit/generic.py` writes its call. The others have emitters
of their own.
"""

from cutile.backend.cuda.ops import memory, mma, pipeline, private, roles
from cutile.backend.cuda.ops.memory import *
from cutile.backend.cuda.ops.mma import *
from cutile.backend.cuda.ops.pipeline import *
from cutile.backend.cuda.ops.private import *
from cutile.backend.cuda.ops.roles import *

__all__: tuple[str, ...] = ()
__all__ += memory.__all__
__all__ += mma.__all__
__all__ += pipeline.__all__
__all__ += private.__all__
__all__ += roles.__all__
