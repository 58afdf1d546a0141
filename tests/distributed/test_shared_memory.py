"""Collectives through shared memory and over machines, between real processes, to the bit."""

import os
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from forked_ranks import forked_ranks

from ddppo.collectives import meeting, shared_memory
from ddppo.collectives.group import sum_in_pairs
from ddppo.errors import CollectiveError, TrainingError
from tests.support import wait_until

SLOT_FLOATS = shared_memory._SLOT_BYTES // 4
SIZES = [0, 1, 7, 4095, 9155, 2 * SLOT_FLOATS, 2 * SLOT_FLOATS + 3]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32]
WORLD_SIZES = [1, 2, 3, 4, 8]


def values(rank, size, dtype, step=0):
    """Numbers whose sum depends on its order, where the type has fractions."""
    generator = torch.Generator().manual_seed(hash((rank, size, step)))
    drawn = torch.randn(size, generator=generator, dtype=torch.float64) * 10.0 ** (rank % 5)
    return (drawn if dtype.is_floating_point else drawn * 1000).to(dtype)


def in_order(world_size, size, dtype, step=0):
    """The tree of dist.reduction=ordered."""
    return sum_in_pairs(torch.stack([values(rank, size, dtype, step) for rank in range(world_size)])).numpy()


def check_all(group):
    """Return what was wrong, of every operation, type and size."""
    wrong = []
    rank, world_size = group.rank, group.world_size
    for dtype in DTYPES:
        for size in SIZES:
            mine = values(rank, size, dtype)
            if group.sum_(mine.clone()).numpy().tobytes() != in_order(world_size, size, dtype).tobytes():
                wrong.append(("sum", dtype, size))
            everyones = torch.stack([values(r, size, dtype) for r in range(world_size)])
            if not torch.equal(group.gather(mine), everyones):
                wrong.append(("gather", dtype, size))
            if not torch.equal(group.broadcast_(mine.clone()), values(0, size, dtype)):
                wrong.append(("broadcast", dtype, size))
    flags = group.gather(torch.tensor([rank % 2 == 0, True]))
    if flags.tolist() != [[r % 2 == 0, True] for r in range(world_size)]:
        wrong.append("gather of flags")
    grid = torch.arange(12.0).reshape(3, 4).T  # strides of its own
    if not torch.equal(group.sum_(grid.clone(memory_format=torch.preserve_format)), grid * world_size):
        wrong.append("sum of what is not contiguous")
    if not torch.equal(group.gather(grid), torch.stack([grid] * world_size)):
        wrong.append("gather of what is not contiguous")
    return wrong


@pytest.mark.quick_cases("1", "2", "3")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_operation_type_and_size_is_right_to_the_bit(world_size):
    with forked_ranks(world_size, check_all) as (_, results):
        assert results() == [[]] * world_size


def check_orders_of_arrival(group):
    random.seed(group.rank)
    wrong = 0
    for step in range(150):
        if random.random() < 0.3:
            time.sleep(random.random() * 0.004)
        size = (1, 9155, 70_000)[step % 3]
        found = group.sum_(values(group.rank, size, torch.float32, step)).numpy().tobytes()
        wrong += found != in_order(group.world_size, size, torch.float32, step).tobytes()
        group.barrier()
        wrong += group.gather(torch.tensor([step * 10 + group.rank])).flatten().tolist() != [
            step * 10 + r for r in range(group.world_size)
        ]
    return wrong


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("world_size", [2, 4])
def test_who_comes_first_changes_nothing(world_size):
    with forked_ranks(world_size, check_orders_of_arrival) as (_, results):
        assert results() == [0] * world_size


def test_the_count_of_operations_may_wrap():
    def across_the_end(group):
        before = 2**32 - 3
        group._context.operation = before
        if group.rank == 0:
            segment = (ctypes_view := torch.frombuffer(group._segment.memory, dtype=torch.int64))
            assert segment is ctypes_view
            segment[0] = before * group.world_size
            torch.frombuffer(group._segment.memory, dtype=torch.int32)[64] = before - 2**32
        return [group.sum_(torch.tensor([float(step + group.rank)])).item() for step in range(6)]

    with forked_ranks(1, across_the_end) as (_, results):
        assert results() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


# -- ranks that wait -------------------------------------------------------------------------------------------------


LATE_S = 0.5  # how much later than rank 0 the last rank arrives


def cpu_of_a_wait(group):
    """Return the share of its waiting time in which rank 0 used a core."""
    if group.rank == group.world_size - 1:
        time.sleep(LATE_S)
    start, cpu = time.perf_counter(), time.process_time()
    group.barrier()
    group.sum_(torch.ones(9155))
    return (time.process_time() - cpu) / (time.perf_counter() - start)


@pytest.mark.parametrize("world_size", [2, 5])
def test_a_rank_that_waits_leaves_its_core_to_others(world_size):
    with forked_ranks(world_size, cpu_of_a_wait) as (_, results):
        assert all(share < 0.1 for share in results()[:-1])


def test_ranks_that_share_a_core_do_not_spin(monkeypatch):
    monkeypatch.setattr(meeting, "allowed_cores", lambda: [1])
    with forked_ranks(2, lambda group: group._context.most_spin_ns) as (_, results):
        assert results() == [0, 0]
    monkeypatch.setattr(meeting, "allowed_cores", lambda: [1, 3])
    with forked_ranks(2, lambda group: group._context.most_spin_ns) as (_, results):
        assert results() == [shared_memory._MOST_SPIN_NS] * 2
    # A container may have a quota of processor time instead.
    monkeypatch.setattr(meeting, "cpu_quota", lambda: 1.5)
    with forked_ranks(2, lambda group: group._context.most_spin_ns) as (_, results):
        assert results() == [0, 0]


def test_a_rank_spins_less_after_each_long_wait():
    def spins_after_long_waits(group):
        context, spins = group._context, []
        context.most_spin_ns = context.spin_ns = 50_000
        for _ in range(3):
            if group.rank == 1:
                time.sleep(0.01)
            group.barrier()
            spins.append(context.spin_ns)
        return spins

    with forked_ranks(2, spins_after_long_waits) as (_, results):
        assert results(0) == [[25_000, 12_500, 6_250]]


# -- ranks that are lost ---------------------------------------------------------------------------------------------


class SumsForEver:
    """What ranks do until they are ended; counts those that have begun."""

    def __init__(self):
        self.begun = get_context("fork").Value("i", 0)

    def __call__(self, group):
        group.begin(7)
        group.sum_(torch.ones(9155))
        with self.begun.get_lock():
            self.begun.value += 1
        while True:
            group.sum_(torch.ones(9155))

    def wait_for(self, world_size):
        wait_until(lambda: self.begun.value == world_size, "first sum of all ranks")


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_killed_rank_is_noticed_long_before_the_limit_and_named(world_size):
    sums = SumsForEver()
    with forked_ranks(world_size, sums) as (processes, results):
        sums.wait_for(world_size)
        os.kill(processes[1].pid, signal.SIGKILL)
        others = [rank for rank in range(world_size) if rank != 1]
        for error in results(*others):
            assert isinstance(error, CollectiveError)
            assert "lost its peers in a sum in iteration 7" in str(error)
            assert "no word from rank 1 for" in str(error)


def test_a_frozen_rank_is_given_up_after_the_timeout():
    sums = SumsForEver()
    with forked_ranks(3, sums, timeout_s=5.0) as (processes, results):
        sums.wait_for(3)
        os.kill(processes[2].pid, signal.SIGSTOP)
        for error in results(0, 1):
            assert isinstance(error, CollectiveError)
            assert "no word from rank 2 for" in str(error)


def test_a_rank_that_leaves_in_good_order_after_the_last_collective_is_not_missed():
    def last(group):
        for _ in range(200):
            group.sum_(torch.ones(9155))
        return group.sum_(torch.ones(1)).item()

    with forked_ranks(4, last) as (_, results):
        assert results() == [4.0] * 4


def test_ranks_at_different_collectives_are_told_so():
    def different(group):
        group.sum_(torch.ones(3 + group.rank))

    with forked_ranks(2, different) as (_, results):
        assert all("different collectives" in str(error) for error in results())


# -- memory ----------------------------------------------------------------------------------------------------------


def holders():
    """Processes that map or hold open a segment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                files = [os.readlink(file) for file in (entry / "fd").iterdir()]
                if "/memfd:ddppo" in (entry / "maps").read_text() + " ".join(files):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_nothing_is_left_of_the_memory_even_after_kill_9_of_all():
    names = set(os.listdir("/dev/shm"))
    with forked_ranks(3, SumsForEver()) as (processes, _):
        pids = {process.pid for process in processes}
        wait_until(lambda: pids <= set(holders()), "segment mapped by all")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not pids & set(holders()), "end of all")
    # Other programs of this machine may have files there that come and go.
    wait_until(lambda: set(os.listdir("/dev/shm")) <= names, "end of what is new in /dev/shm")


def test_a_lack_of_memory_is_said_where_shm_was_asked_for_and_gloo_taken_where_not(monkeypatch, capfd):
    def full(world_size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(meeting, "create_segment", full)
    with forked_ranks(2, check_all) as (_, results):
        for error in results():
            assert isinstance(error, TrainingError)
            assert (
                "dist.collective=shm does not work here: [Errno 28] No space left on device (rank 0)"
                in str(error)
            )
    with forked_ranks(2, lambda group: group.name, collective="auto") as (_, results):
        assert results() == ["gloo", "gloo"]
    assert capfd.readouterr().err.count("warning: dist.collective=auto uses gloo") == 1


# -- several machines ------------------------------------------------------------------------------------------------


def exact(group):
    """Sums of whole numbers have no order; the rest is copied."""
    rank, world_size = group.rank, group.world_size
    found = {"name": group.name}
    group.barrier()
    found["sum"] = group.sum_(torch.arange(100_000, dtype=torch.float64) * (rank + 1)).sum().item()
    found["gather"] = group.gather(torch.tensor([[rank, rank * rank]])).tolist()
    found["flags"] = group.gather(torch.tensor([rank == 1])).flatten().tolist()
    found["broadcast"] = group.broadcast_(torch.full((5,), float(rank + 3))).tolist()
    found["num_records"] = len(group.records)
    assert world_size == 5
    return found


@pytest.mark.parametrize("process_group", [False, True])
@pytest.mark.parametrize("machines", ["aabbb", "abcab", "aaaab"])
def test_over_several_machines_the_numbers_are_those_of_one(machines, process_group):
    with forked_ranks(5, exact) as (_, results):
        flat = results()
    names = dict(enumerate(machines))
    with forked_ranks(5, exact, machines=names, process_group=process_group) as (_, results):
        over_machines = results()
    assert {found.pop("name") for found in flat} == {"shm"}
    assert {found.pop("name") for found in over_machines} == {"shm+gloo"}
    assert over_machines == flat


def test_a_rank_killed_on_another_machine_ends_all():
    sums = SumsForEver()
    with forked_ranks(4, sums, machines={0: "a", 1: "a", 2: "b", 3: "b"}) as (processes, results):
        sums.wait_for(4)
        os.kill(processes[3].pid, signal.SIGKILL)
        assert all(isinstance(error, CollectiveError) for error in results(0, 1, 2))
