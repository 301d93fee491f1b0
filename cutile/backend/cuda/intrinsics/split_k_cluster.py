"""Split-K in a cluster: partial sums meet in distributed shared memory (DSMEM).

Each block sends its partial sums to the others, and adds up one part of the columns (reduce-scatter).
`pipeline/split_k.py` says when and how.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import F32, I32, VOID, address, asm, cluster_rank, i32c, ir, thread
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, wait_limited, wait_parity
from cutile.backend.cuda.pipeline.accumulators import registers_of
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, i32

VECTOR = 4
"""Sums that a thread sends, or reads, at once."""
SUM_BYTES = 4
ACQUIRE = ".acquire.cluster"
"""The scope of a wait behind which data of other blocks of the cluster is read."""
MAPA = "mapa.shared::cluster.u32 $0, $1, $2;"
"""The address, in block `$2` of the cluster, of the place that `$1` is in this block (PTX ISA, "mapa")."""


class _Places:
    """The places of partial sums in shared memory.

    The parts of the columns come in rounds: in each, a block owns one part, of which it has a copy from every block.
    `width` registers of a thread lie side by side, then those of the next thread: no two lanes meet in a bank.
    """

    def __init__(self, dtype: DTypeLike, sums: Layout, parts: int, blocks: int) -> None:
        division = registers_of(sums, parts)
        assert division is not None, f"the sums of {sums} do not divide into {parts} parts"
        self.registers, self.step = division
        self.count = len(self.registers)
        self.width = next(each for each in (VECTOR, 2, 1) if self.count % each == 0)
        self.chunk = self.width * sums.threads * SUM_BYTES
        self.part = self.count * sums.threads * SUM_BYTES
        self.round = blocks * self.part
        self.kind, self.letter = (".b32", "r") if dtype is i32 else (".f32", "f")
        self.element = I32 if dtype is i32 else F32

    def mine(self, b: Any, place: int) -> Any:
        """The address of this thread's first sums: of the first round and block."""
        return b.add(address(b, place), b.mul(thread(b), i32c(self.width * SUM_BYTES)))

    def form(self, first: int) -> tuple[str, str]:
        """The suffix of an access's name, and its registers from `first` on."""
        names = ", ".join(f"${first + i}" for i in range(self.width))
        vector = f".v{self.width}" if self.width > 1 else ""
        return vector + self.kind, f"{{{names}}}" if self.width > 1 else names

    def write(self, b: Any, place: Any, beyond: int, sums: list[Any]) -> None:
        """Write some sums to this block's shared memory, for this thread's own read."""
        form, listed = self.form(1)
        letters = ",".join(["r", *[self.letter] * self.width, "~{memory}"])
        # In PTX, with the width chosen here, as the same thread's read, with no barrier between them (PTX ISA, "st").
        asm(b, VOID, [place, *sums], f"st.shared{form} [$0+{beyond}], {listed};", letters, effect=True)

    def send(self, b: Any, place: Any, beyond: int, sums: list[Any], barrier: Any) -> None:
        """Write some sums to another block's shared memory, and count them on its barrier."""
        form, listed = self.form(1)
        letters = ",".join(["r", *[self.letter] * self.width, "r", "~{memory}"])
        # It counts its bytes on the owner's barrier, so that nobody waits here (PTX ISA, "st.async").
        text = (
            f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{form} "
            f"[$0+{beyond}], {listed}, [${1 + self.width}];"
        )
        asm(b, VOID, [place, *sums, barrier], text, letters, effect=True)


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
        owned = b.udiv(b.add(b.sub(i32c(parts), rank), i32c(blocks - 1)), i32c(blocks))
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            # The phase's only arrival announces the bytes of all other blocks. Some may have come already: the count of
            # pending bytes may be negative meanwhile (PTX ISA, "mbarrier.arrive").
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            asm(b, VOID, [barrier, b.mul(owned, i32c(places.round - places.part))], text, "r,r,~{memory}", effect=True)
        mine = b.add(places.mine(b, place), b.mul(rank, i32c(places.part)))
        for owner in range(min(parts, blocks)):
            writes: list[tuple[int, list[Any]]] = []
            for part in range(owner, parts, blocks):
                for chunk in range(places.count // places.width):
                    first = chunk * places.width
                    registers = places.registers[first : first + places.width]
                    chunk_sums = [elements[register + part * places.step] for register in registers]
                    writes.append((part // blocks * places.round + chunk * places.chunk, chunk_sums))
            with b.if_else(b.icmp_unsigned("==", rank, i32c(owner))) as (own, others):
                with own:  # the same thread reads these sums
                    for beyond, sums_of_chunk in writes:
                        places.write(b, mine, beyond, sums_of_chunk)
                with others:
                    # The same places in the owner's shared memory (PTX ISA, "mapa").
                    there, counts = (asm(b, I32, [each, i32c(owner)], MAPA, "=r,r,r") for each in (mine, barrier))
                    for beyond, sums_of_chunk in writes:
                        places.send(b, there, beyond, sums_of_chunk, counts)
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
    form, listed = places.form(0)

    def read(b: Any, there: Any, beyond: int) -> list[Any]:
        text = f"ld.shared{form} {listed}, [${places.width}+{beyond}];"
        constraints = ",".join([f"={places.letter}"] * places.width + ["r", "~{memory}"])
        wide = places.width > 1
        result = ir.LiteralStructType([places.element] * places.width) if wide else places.element
        # With an effect: other blocks write there, of which LLVM knows nothing (PTX ISA, "ld").
        sums = asm(b, result, [there], text, constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(places.width)] if wide else [sums]

    def generate(b: Any, values: list[Any]) -> Any:
        round_ = b.udiv(values[0], i32c(blocks))
        mine = b.add(places.mine(b, place), b.mul(round_, i32c(places.round)))
        total: list[Any] = []
        for first in range(0, places.count, places.width):
            chunk = first // places.width * places.chunk
            chunk_sums, *others = [read(b, mine, rank * places.part + chunk) for rank in range(blocks)]
            for other in others:
                chunk_sums = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(chunk_sums, other, strict=True)]
            total += chunk_sums
        return pack(b, total, places.count)

    return intrinsic("reduce_partials", frag(dtype, places.count), [INTEGER], generate)
