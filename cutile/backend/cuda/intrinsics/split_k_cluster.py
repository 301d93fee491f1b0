"""Split-K in a cluster: partial sums meet in distributed shared memory (DSMEM).

Each block sends its partial sums to the others, and adds up one part of the columns (reduce-scatter).
`pipeline/split_k.py` says when and how.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import I32, VOID, WORD_BYTES, address, asm, cluster_rank, i32c, thread
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, wait_limited, wait_parity
from cutile.backend.cuda.intrinsics.split_k import SumVectors
from cutile.backend.cuda.pipeline.accumulators import registers_of
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, i32

ACQUIRE = ".acquire.cluster"
"""The scope of a wait behind which data of other blocks of the cluster is read."""
MAPA = "mapa.shared::cluster.u32 $0, $1, $2;"
"""The address of the same place in block `$2` of the cluster that `$1` is in this block (PTX ISA, "mapa")."""


class _Places:
    """The places of partial sums in shared memory.

    The parts of the columns come in rounds. In each round a block owns one part, of which it gets the partial sums of
    every block.

    Attributes:
        registers: a thread's registers of the first part.
        step: the distance from these to the registers of the next part.
        count: registers of a part.
        vectors: the accesses to them.
        chunk, part, round: bytes of one access of all threads, of a part, and of a round.
    """

    def __init__(self, dtype: DTypeLike, sums: Layout, parts: int, blocks: int) -> None:
        division = registers_of(sums, parts)
        assert division is not None, f"the sums of {sums} do not divide into {parts} parts"
        self.registers, self.step = division
        self.count = len(self.registers)
        self.vectors = SumVectors(dtype, self.count)
        self.chunk = self.vectors.width * sums.threads * WORD_BYTES
        self.part = self.count * sums.threads * WORD_BYTES
        self.round = blocks * self.part

    def mine(self, b: Any, place: int) -> Any:
        """The address of this thread's first sums in the first round, of block 0."""
        return b.add(address(b, place), b.mul(thread(b), i32c(self.vectors.width * WORD_BYTES)))

    def write(self, b: Any, place: Any, beyond: int, sums: list[Any]) -> None:
        """Write sums to this block's shared memory, `beyond` bytes behind `place`."""
        vectors = self.vectors
        text = f"st.shared{vectors.suffix} [$0+{beyond}], {vectors.registers(1)};"
        # In PTX, so that it has the width chosen here, and stays ahead of the read. The same thread reads these sums:
        # there is no barrier between (PTX ISA, "st").
        asm(b, VOID, [place, *sums], text, vectors.letters("r") + ",~{memory}", effect=True)

    def send(self, b: Any, place: Any, beyond: int, sums: list[Any], barrier: Any) -> None:
        """Write sums to another block's shared memory, and count them on its barrier."""
        vectors = self.vectors
        # The store counts its bytes on the owner's barrier, so that nobody waits here (PTX ISA, "st.async").
        text = (
            f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vectors.suffix} "
            f"[$0+{beyond}], {vectors.registers(1)}, [${1 + vectors.width}];"
        )
        asm(b, VOID, [place, *sums, barrier], text, vectors.letters("r") + ",r,~{memory}", effect=True)


@cache
def scatter(
    dtype: DTypeLike, sums: Layout, parts: int, blocks: int, *, place: int, offset: int, limited: bool = False
) -> Any:
    """`f(sums)`: send partial sums to the cluster's `blocks`, and wait for this one's.

    Args:
        dtype: of the sums.
        sums: their layout.
        parts: of the columns; part `i` goes to block `i % blocks`.
        blocks: of the cluster.
        place: where the sums arrive in shared memory, in bytes.
        offset: where the barrier is that counts their bytes.
        limited: whether a wait of over two seconds ends the kernel.
    """
    n, places = sums.registers, _Places(dtype, sums, parts, blocks)

    def generate(b: Any, values: list[Any]) -> None:
        elements = unpack(b, values[0], n)
        rank = cluster_rank(b)
        barrier = address(b, offset)
        owned = b.udiv(b.add(b.sub(i32c(parts), rank), i32c(blocks - 1)), i32c(blocks))  # parts of this block
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            # The phase's only arrival announces the bytes from all other blocks. Some may have come already: the count
            # of pending bytes may be negative meanwhile (PTX ISA, "mbarrier.arrive").
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            asm(b, VOID, [barrier, b.mul(owned, i32c(places.round - places.part))], text, "r,r,~{memory}", effect=True)
        mine = b.add(places.mine(b, place), b.mul(rank, i32c(places.part)))
        for owner in range(min(parts, blocks)):
            writes: list[tuple[int, list[Any]]] = []
            for part in range(owner, parts, blocks):
                width = places.vectors.width
                for chunk in range(places.count // width):
                    registers = places.registers[chunk * width : (chunk + 1) * width]
                    chunk_sums = [elements[register + part * places.step] for register in registers]
                    writes.append((part // blocks * places.round + chunk * places.chunk, chunk_sums))
            with b.if_else(b.icmp_unsigned("==", rank, i32c(owner))) as (own, others):
                with own:  # the same thread reads these sums
                    for beyond, sums_of_chunk in writes:
                        places.write(b, mine, beyond, sums_of_chunk)
                with others:
                    # The same places in the owner's shared memory (PTX ISA, "mapa").
                    place_there, barrier_there = (
                        asm(b, I32, [each, i32c(owner)], MAPA, "=r,r,r") for each in (mine, barrier)
                    )
                    for beyond, sums_of_chunk in writes:
                        places.send(b, place_there, beyond, sums_of_chunk, barrier_there)
        if limited:
            wait_limited(b, barrier, i32c(0), "the sums of other pieces do not come", scope=ACQUIRE)
        else:
            wait_parity(b, barrier, i32c(0), scope=ACQUIRE)

    return intrinsic("scatter", None, [frag(dtype, n)], generate)


@cache
def reduce(dtype: DTypeLike, sums: Layout, parts: int, blocks: int, place: int) -> Any:
    """`f(part)`: one part of the sums' columns, added up in the order of the blocks.

    The arguments of the factory are those of `scatter`.
    """
    places = _Places(dtype, sums, parts, blocks)
    width = places.vectors.width

    def generate(b: Any, values: list[Any]) -> Any:
        round_ = b.udiv(values[0], i32c(blocks))
        mine = b.add(places.mine(b, place), b.mul(round_, i32c(places.round)))
        total: list[Any] = []
        for chunk in range(0, places.count // width * places.chunk, places.chunk):
            offsets = [rank * places.part + chunk for rank in range(blocks)]
            chunk_sums, *others = [places.vectors.load(b, mine, "r", "ld.shared", offset) for offset in offsets]
            for other in others:
                chunk_sums = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(chunk_sums, other, strict=True)]
            total += chunk_sums
        return pack(b, total, places.count)

    return intrinsic("reduce_partials", frag(dtype, places.count), [INTEGER], generate)
