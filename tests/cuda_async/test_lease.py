"""Arguments are lent: reads share, a write is exclusive, per storage and byte range."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from typing import Any

import pytest

from cuda_async import Device, DeviceOp, ExecutionContext, OwnershipError, Storage, Use, value, zip
from cuda_async.core.lease import end, lend
from tests.cuda_async.work import Affine, CopyTo, Read, words

pytestmark = pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")


def _fail(_: object) -> None:
    raise KeyError


class Part(DeviceOp[None]):
    """Reads or writes bytes [start, stop)."""

    def __init__(self, storage: Storage, start: int, stop: int, *, write: bool) -> None:
        super().__init__()
        self.lend(Use("part", storage, write=write, start=start, stop=stop))

    def execute(self, context: ExecutionContext) -> None:
        return None


@pytest.fixture
def storage(device: Device) -> Storage:
    return words(1, count=64).sync()


def test_reads_share(storage: Storage) -> None:
    a, b = Read(storage), Read(storage)
    assert a.sync().tolist() == b.sync().tolist()


def test_no_bytes_conflict_with_nothing(storage: Storage) -> None:
    writer = Part(storage, 0, 256, write=True)
    for start in (0, 4, 256):
        Part(storage, start, start, write=True).sync()
    with pytest.raises(OwnershipError):
        Part(storage, 4, 5, write=False)
    writer.discard()


@pytest.mark.parametrize("held_writes", [True, False])
def test_a_conflicting_use_names_argument_line_and_remedy(storage: Storage, held_writes: bool) -> None:
    held = Part(storage, 0, 256, write=held_writes)
    line = held.site[1]
    with pytest.raises(OwnershipError) as caught:
        Part(storage, 0, 4, write=True)
    message = str(caught.value)
    assert "argument 'part' would be written" in message
    assert f"test_lease.py:{line}" in message
    assert ("writes" if held_writes else "reads") in message
    assert "discard()" in message
    held.discard()
    Part(storage, 0, 4, write=True).sync()


def test_ranges_that_do_not_overlap_are_free(storage: Storage) -> None:
    a = Part(storage, 0, 128, write=True)
    b = Part(storage, 128, 256, write=True)
    with pytest.raises(OwnershipError):
        Part(storage, 127, 128, write=False)
    a.sync()
    Part(storage, 127, 128, write=False).sync()
    b.sync()


def test_both_in_one_operation(storage: Storage) -> None:
    with pytest.raises(OwnershipError, match=r"argument 'source'.*same operation.*'destination'.*dup\(\)"):
        CopyTo(storage, storage)
    assert Read(storage).sync()[0] == 1  # nothing is left lent


def test_lending_is_all_or_nothing(device: Device, storage: Storage) -> None:
    other = words(2, count=64).sync()
    held = Read(storage)
    with pytest.raises(OwnershipError):
        CopyTo(storage, other)
    Affine(other, 1, 0).sync()
    held.sync()
    CopyTo(storage, other).sync()


@pytest.mark.parametrize("end", ["run", "discard", "collect", "fail"])
def test_what_ends_a_lease(storage: Storage, end: str) -> None:
    op: DeviceOp[Any] | None = Affine(storage, 2, 0)
    with pytest.raises(OwnershipError):
        Read(storage)
    if end == "run":
        op.sync()
    elif end == "discard":
        op.map(str).discard()
    elif end == "collect":
        op = None
        gc.collect()
    else:
        with pytest.raises(KeyError):
            op.map(_fail).sync()
    assert Read(storage).sync()[0] in (1, 2)
    assert storage.leases == [] or not any(lease.active for lease in storage.leases)


def test_a_runs_own_leases_do_not_conflict_inside_it(storage: Storage) -> None:
    op = Affine(storage, 2, 1).then(lambda s: Affine(s, 3, 0)).then(lambda s: zip(Read(s), Read(s)))
    a, b = op.sync()
    assert a[0] == b[0] == 9


def test_another_operations_lease_conflicts_inside_a_closure(device: Device, storage: Storage) -> None:
    other = words(5).sync()
    held = Affine(other, 1, 0)
    with pytest.raises(OwnershipError):
        Affine(storage, 1, 0).then(lambda s: Read(other)).sync()
    held.discard()
    Affine(storage, 1, 0).sync()


def test_leases_last_until_the_device_is_done(sim_device: Device, sim: Any) -> None:
    """The run has been submitted, and the device has not finished it."""
    storage = words(1, count=64).sync()
    sim.automatic = False

    async def main() -> None:
        task = asyncio.ensure_future(Affine(storage, 2, 0).into_future())
        await asyncio.sleep(0)
        with pytest.raises(OwnershipError, match="has not finished"):
            Read(storage)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Cancelled is not finished, and nobody has the operation.
        with pytest.raises(OwnershipError, match=r"It is at work: .*tensor\.device\.synchronize\(\)"):
            Read(storage)
        sim.automatic = True

    asyncio.run(main())
    value(1).sync()
    sim.run_until_idle()
    while any(lease.active for lease in storage.leases):
        pass  # the reactor settles the run; the test's timeout is the limit
    assert Read(storage).sync()[0] == 2


def test_threads_that_lend_at_once_never_hold_the_same_bytes_together(storage: Storage) -> None:
    """Writers and readers of three storages from four threads: whoever holds one for writing is alone there."""
    stream = storage.device.new_stream()
    shared = [storage, *(words(1, count=8).sync_on(stream) for _ in range(2))]
    holders: list[list[tuple[int, bool]]] = [[] for _ in shared]
    failures: list[str] = []
    refused = [0] * 4
    before = sys.getswitchinterval()

    start = threading.Barrier(4)

    def work(number: int) -> None:
        chance, count = random.Random(number), 0
        start.wait(60)
        while (count < 2000 or not any(refused)) and count < 1_000_000:  # until they have met
            count += 1
            places = chance.sample(range(3), 2)
            uses = [Use(f"a{i}", shared[i], chance.random() < 0.5) for i in places]
            try:
                lease = lend(uses, object(), (__file__, number))
            except OwnershipError:
                refused[number] += 1
                continue
            mine = [(i, (number, uses[k].write)) for k, i in enumerate(places)]
            for i, entry in mine:
                holders[i].append(entry)
            for i, (_, write) in mine:
                others = [each for each in list(holders[i]) if each[0] != number]
                if any(write or theirs for _, theirs in others):
                    failures.append(f"{number} and {others} hold {i}")
            for i, entry in mine:
                holders[i].remove(entry)
            end((lease,))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive(), "deadlock"
    finally:
        sys.setswitchinterval(before)
    assert not failures
    assert all(not each.leases for each in shared)
    assert any(refused), "the threads never met: the test shows nothing"


def test_an_operation_that_a_refused_argument_discarded_names_the_line(storage: Storage) -> None:
    held = Part(storage, 0, 256, write=True)
    late = Part(words(1, count=64).sync(), 0, 4, write=False)  # as a raw launch, which is given arguments one by one
    with pytest.raises(OwnershipError, match="'late' would be read"):
        late.lend(Use("late", storage, write=False))
    with pytest.raises(OwnershipError, match=r"was already discarded at .*test_lease\.py:\d+; "):
        late.sync()
    held.discard()
