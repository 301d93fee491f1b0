"""Operations that move elements, whatever they are: data, no tests. A move writes 24 elements and changes none of them.

`x` and `y` are tiles of shape (24,), loaded from `x_in` and `y_in`; `m` is `x` as 4 x 6, and `m_in` that in memory; `p`
points to the first element of `x_in`, and `q` to that of the output `o`; `lane` is 0 to 23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Move:
    """One output.

    Attributes:
        names: the operations that it uses.
        text: statements, or an expression whose value is stored.
        numpy: the elements of the output, over the arrays `x` and `y`.
    """

    names: tuple[str, ...]
    text: str
    numpy: Callable[[Any, Any], Any]

    @property
    def statements(self) -> list[str]:
        """What a kernel runs."""
        lines = [line.strip() for line in self.text.strip().splitlines()]
        return lines if lines[0].startswith(("o.", "ct.store", "ct.scatter")) else [f"o.store({' '.join(lines)})"]


MOVES = (
    Move(
        ("broadcast", "broadcast_scalar", "Tile.broadcast", "select", "Ptr.load"),
        """
        ct.select(lane < 8, ct.broadcast(x_in.load_tile((1,), (3,)), (24,)),
                  ct.select(lane < 16, ct.broadcast_scalar(p.load(), (24,)),
                            x_in.load_tile((1,), (5,)).broadcast((24,))))
        """,
        lambda x, y: x[[3] * 8 + [0] * 8 + [5] * 8],
    ),
    Move(
        ("reshape", "Tile.reshape", "x[:, None]", "permute", "transpose", "Tile.transpose", "assume_same_elements"),
        """
        ct.reshape(
            ct.assume_same_elements(ct.transpose(ct.permute(m, (1, 0))).transpose()[None, :, :].reshape((24,)), (1,)),
            (24,))
        """,
        lambda x, y: x.reshape(4, 6).T.ravel(),
    ),
    Move(
        ("cat", "extract"),
        "ct.cat(ct.extract(x, (1,), (12,)), ct.extract(y, (ct.get_tile_block_id()[0],), (12,)), 0)",
        lambda x, y: [*x[12:], *y[:12]],
    ),
    Move(
        ("repeat", "insert"),
        """
        ct.insert(x, ct.repeat(ct.extract(y, (3,), (3,)), 2, 0), (1,))
        """,
        lambda x, y: [*x[:6], *y[9:12].repeat(2), *x[12:]],
    ),
    Move(
        ("reduce", "scan"),
        """
        ct.select(lane < 12,
                  ct.broadcast(ct.reduce((x, lane), 0, (0, -1), later)[0].reshape((1,)), (24,)),
                  ct.scan((x, lane), 0, ct.reverse.FORWARD, (0, -1), later)[0])
        """,
        lambda x, y: [*x[[23] * 12], *x[12:]],
    ),
    Move(
        ("load_tile", "Tensor.load_tile", "Tensor.partition", "Partition.load", "Partition.load_pipelined"),
        """
        ct.cat(ct.cat(ct.load_tile(x_in, (6,), (3,)), x_in.load_tile((6,), (2,)), 0),
               ct.cat(x_in.partition((6,)).load(1), y_in.partition((6,)).load_pipelined(0, latency=2), 0), 0)
        """,
        lambda x, y: [*x[18:], *x[12:18], *x[6:12], *y[:6]],
    ),
    Move(
        ("Partition.load_unchecked", "load_view_tko", "make_strided_view", "load_strided_view_tko",
         "make_partition_view"),
        """
        ct.cat(ct.cat(x_in.partition((6,)).load_unchecked(3),
                      ct.load_view_tko(x_in.partition((6,)), 2, ct.ordering.RELAXED), 0),
               ct.cat(ct.load_strided_view_tko(ct.make_strided_view(x_in, (6,), (3,)), 1),
                      ct.make_partition_view(y_in, (6,)).load(0), 0), 0)
        """,
        lambda x, y: [*x[18:], *x[12:18], *x[3:9], *y[:6]],
    ),
    Move(
        ("Tensor.partition_permuted", "load_tile_like"),
        """
        ct.select(lane < 12, m_in.partition_permuted((6, 4), (1, 0)).load((0, 0)).reshape((24,)),
                  ct.load_tile_like(y_in, o))
        """,
        lambda x, y: [*x.reshape(4, 6).T.ravel()[:12], *y[12:]],
    ),
    Move(
        ("num_tiles", "get_tensor_shape", "get_index_space_shape"),
        """
        ct.select(lane < ct.num_tiles(x_in.partition((4,)), 0) + ct.get_index_space_shape(m_in.partition((1, 1)))[1],
                  x, ct.select(lane < ct.get_tensor_shape(x_in)[0] - 4, y, x))
        """,
        lambda x, y: [*x[:12], *y[12:20], *x[20:]],
    ),
    Move(
        ("make_tensor_view", "load_tensor"),
        """
        ct.cat(ct.make_tensor_view(p, (4, 6), (6, 1)).load_tile((2, 6), (1, 0)).reshape((12,)),
               ct.load_tensor(addresses, 0, (24,), (1,), x.dtype).load_tile((12,), (0,)), 0)
        """,
        lambda x, y: [*x[12:], *x[:12]],
    ),
    Move(
        ("gather", "make_gather_scatter_view", "load_gather_scatter_view_tko", "load_ptr_tko"),
        """
        ct.cat(ct.cat(ct.gather(x_in, 23 - ct.iota((8,)), mask=ct.iota((8,)) > 3,
                                padding_value=ct.extract(y, (0,), (8,))),
                      ct.load_gather_scatter_view_tko(
                          ct.make_gather_scatter_view(x_in, (8,)), (9 - ct.iota((8,)),))[0], 0),
               ct.load_ptr_tko(p.offset(ct.iota((8,))))[0], 0)
        """,
        lambda x, y: [*y[:4], *x[16:20][::-1], *x[2:10][::-1], *x[:8]],
    ),
    Move(
        ("Mut.store", "Mut.partition_mut", "PartitionMut.store", "PartitionMut.store_unchecked", "store_view_tko",
         "Mut.partition_full_mut", "make_partition_view_mut"),
        """
        o.store(y)
        o.partition_mut((4,)).store(ct.load_tile(x_in, (4,), (5,)), 0)
        o.partition_mut((4,)).store_unchecked(ct.load_tile(x_in, (4,), (4,)), 1)
        ct.store_view_tko(o.partition_mut((4,)), ct.load_tile(x_in, (4,), (3,)), 2, ct.ordering.RELEASE)
        o.partition_full_mut((4,)).store(ct.load_tile(x_in, (4,), (2,)), 3)
        ct.make_partition_view_mut(o, (4,)).store(ct.load_tile(x_in, (4,), (1,)), 4)
        """,
        lambda x, y: [*x.reshape(6, 4)[:0:-1].ravel(), *y[20:]],
    ),
    Move(
        ("store_tile", "Mut.load", "load_tile_mut"),
        """
        ct.store_tile(o, x)
        o.store(ct.select(lane < 5, y, o.load()))
        o.store(ct.select(lane > 20, y, ct.load_tile_mut(o)))
        """,
        lambda x, y: [*y[:5], *x[5:21], *y[21:]],
    ),
    Move(
        ("scatter", "store_ptr_tko", "Ptr.store"),
        """
        ct.scatter(o, 23 - lane, x, mask=lane < 8)
        ct.store_ptr_tko(q.offset(lane), y, mask=lane < 8)
        q.offset(lane).store(x, mask=(lane >= 8) & (lane < 16))
        """,
        lambda x, y: [*y[:8], *x[8:16], *x[:8][::-1]],
    ),
)  # fmt: skip

MAPPED = ("MappedPartitionMut.store", "MappedPartitionMut.load", "Partition.load_index", "PartitionMut.store_index")
"""What moves by minted indices; one kernel has all four."""
