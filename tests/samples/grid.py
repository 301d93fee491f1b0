"""Facts about the grid. The result of a sample is one tile block's, so the index is 0."""

import numpy as np

from cutile.dtypes import f32, i32
from tests.samples.row import Row

ROWS = (
    Row("tile_block_id", "x + ct.get_tile_block_id()[0].astype(x.dtype)", lambda x, y: x, (f32, i32)),
    Row("num_tile_blocks", "x * ct.get_num_tile_blocks()[0].astype(x.dtype)", lambda x, y: x, (f32, i32)),
    Row("tensor_dim", "x + ct.num_tiles(y_in.partition((5,)), 0)", lambda x, y: x + np.int32(5), (i32,)),
)
