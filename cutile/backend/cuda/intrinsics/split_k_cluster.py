"""Split-K in a cluster: partial sums meet in distributed shared memory (DSMEM).

Each block sends them to the others, and adds its part (reduce-scatter). `pipeline/split_k.py` says when and how.
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
"""Of a wait: what is then read was written by other blocks of the cluster."""
MAPA = "mapa.shared::cluster.u32 $0, $1, $2;"
"""The address that an address of this block has in another block of the cluster (PTX ISA, "mapa")."""


class _Places:
    """The places of partial sums in shared memory.

    A round has a part for each thread block, and each part the splits. `width` registers of a thread lie side by side,
    then those of the next thread: no two lanes meet in a bank.
    """

    def __init__(self, dtype: DTypeLike, sums: Layout, parts: int, blocks: int) -> None:
        found = registers_of(sums, parts)
        assert found is not None, f"the sums of {sums} do not divide into {parts} parts"
        self.registers, self.step = found
        self.count = len(self.registers)
        self.width = next(each for each in (VECTOR, 2, 1) if self.count % each == 0)
        self.chunk = self.width * sums.threads * SUM_BYTES
        self.part = self.count * sums.threads * SUM_BYTES
        self.round = blocks * self.part
        self.kind, self.letter = (".b32", "r") if dtype is i32 else (".f32", "f")
        self.element = I32 if dtype is i32 else F32

    def mine(self, b: Any, place: int) -> Any:
        """The address of this thread's first sums of the first part of the first piece."""
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
        # In PTX, with the width chosen here; no barrier stands between this and the thread's own read.
        asm(b, VOID, [place, *sums], f"st.shared{form} [$0+{beyond}], {listed};", letters, effect=True)

    def send(self, b: Any, place: Any, beyond: int, sums: list[Any], barrier: Any) -> None:
        """Write some sums to another block's shared memory, and count them on its barrier."""
        form, listed = self.form(1)
        letters = ",".join(["r", *[self.letter] * self.width, "r", "~{memory}"])
        # Counts its bytes on the owner's barrier, so that nobody waits here (PTX ISA, "st.async").
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
        sums: the layout of what is sent.
        parts: of its columns; number `i` goes to thread block `i % blocks`.
        place: where they arrive in shared memory, in bytes.
        offset: where the barrier is that counts them.
        limited: whether the kernel ends where they do not come.
    """
    n, places = sums.registers, _Places(dtype, sums, parts, blocks)

    def generate(b: Any, values: list[Any]) -> None:
        elements = unpack(b, values[0], n)
        rank = cluster_rank(b)
        barrier = address(b, offset)
        owned = b.udiv(b.add(b.sub(i32c(parts), rank), i32c(blocks - 1)), i32c(blocks))
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            # The one arrival announces the bytes of all other blocks, which may have come already: the count of bytes
            # may go below zero meanwhile (PTX ISA, "mbarrier.arrive").
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            asm(b, VOID, [barrier, b.mul(owned, i32c(places.round - places.part))], text, "r,r,~{memory}", effect=True)
        mine = b.add(places.mine(b, place), b.mul(rank, i32c(places.part)))
        for owner in range(min(parts, blocks)):
            writes: list[tuple[int, list[Any]]] = []
            for part in range(owner, parts, blocks):
                for chunk in range(places.count // places.width):
                    first = chunk * places.width
                    some = [elements[at + part * places.step] for at in places.registers[first : first + places.width]]
                    writes.append((part // blocks * places.round + chunk * places.chunk, some))
            with b.if_else(b.icmp_unsigned("==", rank, i32c(owner))) as (own, others):
                with own:  # which the same thread will read
                    for beyond, sums_of_chunk in writes:
                        places.write(b, mine, beyond, sums_of_chunk)
                with others:
                    # The same places in the owner's shared memory.
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
    """`f(part)`: subtile `part` of `parts` of the sums, of all `blocks`.

    They are added up in the order of the blocks.
    """
    places = _Places(dtype, sums, parts, blocks)
    form, listed = places.form(0)

    def read(b: Any, there: Any, beyond: int) -> list[Any]:
        text = f"ld.shared{form} {listed}, [${places.width}+{beyond}];"
        constraints = ",".join([f"={places.letter}"] * places.width + ["r", "~{memory}"])
        wide = places.width > 1
        result = ir.LiteralStructType([places.element] * places.width) if wide else places.element
        # Volatile: other blocks write there, of which LLVM knows nothing.
        sums = asm(b, result, [there], text, constraints, effect=True)
        return [b.extract_value(sums, i) for i in range(places.width)] if wide else [sums]

    def generate(b: Any, values: list[Any]) -> Any:
        turn = b.udiv(values[0], i32c(blocks))
        mine = b.add(places.mine(b, place), b.mul(turn, i32c(places.round)))
        total: list[Any] = []
        for first in range(0, places.count, places.width):
            came = [read(b, mine, rank * places.part + first // places.width * places.chunk) for rank in range(blocks)]
            some, *others = came
            for each in others:
                some = [(b.add if dtype is i32 else b.fadd)(x, y) for x, y in zip(some, each, strict=True)]
            total += some
        return pack(b, total, places.count)

    return intrinsic("reduce_partials", frag(dtype, places.count), [INTEGER], generate)
