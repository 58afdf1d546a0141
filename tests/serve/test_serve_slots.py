"""Slots of a pool: each holder has a world alone, nothing of it is left for the next, and no slot is ever lost."""

import dataclasses
import errno
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("msgpack", reason="needs the extra serve: pip install '.[serve]'")

import tests.serve.served_tasks  # noqa: F401 (registers)
from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.probe import probe
from ddppo.processes.forking import ForkServer
from ddppo.serve.protocol import JSON, decoded, encoded
from ddppo.serve.slots import worlds
from ddppo.serve.slots.line import framed, read_frame
from ddppo.serve.slots.pool import PoolExhausted, SlotNotReady, SlotPool
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.serve.served_tasks import EXIT, MARK, NOTHING, START_A_PROCESS
from tests.support import PATIENCE_S, wait_until

WORLD = EnvConfig(id="tests.serve.served_tasks:World-v0")
SPEC = EnvSpec(ArraySpec((3,), "float64"), ActionSpec("discrete", (9,)))


@pytest.fixture
def pool_of():
    made = []

    def make(size, env=WORLD, spec=SPEC):
        pool = SlotPool(env, spec, size)
        made.append(pool)
        pool.wait_until_ready(PATIENCE_S)
        return pool

    yield make
    for pool in made:
        pool.close()


def ask(slot, **question):
    slot.line.sendall(framed(JSON, encoded(JSON, {"id": 1, **question})))
    return decoded(JSON, read_frame(slot.line)[1])


def act(slot, action):
    ask(slot, op="reset")
    return ask(slot, op="step", action=action)["obs"]


def runs(pid):
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_shapes_these_tests_rely_on_are_the_tasks():
    found = probe(WORLD)
    assert (found.obs, found.action) == (SPEC.obs, SPEC.action)


def test_100_threads_get_50_distinct_slots_and_50_refusals_with_the_numbers(pool_of):
    pool = pool_of(50)
    start, got, refused = threading.Barrier(100), [], []

    def take():
        start.wait(PATIENCE_S)
        try:
            got.append(pool.acquire(PATIENCE_S))
        except PoolExhausted as e:
            refused.append((e.size, "all 50 slots are held" in str(e)))

    threads = [threading.Thread(target=take) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len({slot.index for slot in got}) == len({slot.process.pid for slot in got}) == len(got) == 50
    assert refused == [(50, True)] * 50


def test_what_one_holder_did_nobody_else_and_no_next_holder_sees(pool_of):
    pool = pool_of(2)
    one, other = pool.acquire(), pool.acquire()
    assert act(one, MARK)[0] == 1
    assert act(other, 0)[0] == 0
    pool.release(one)
    following = pool.acquire(PATIENCE_S)
    assert following.index == one.index
    assert act(following, 0)[0] == 0


def test_a_released_world_ends_with_what_it_started(pool_of):
    pool = pool_of(1)
    slot = pool.acquire()
    _, child, own = act(slot, START_A_PROCESS)
    assert runs(child)
    assert runs(own)
    pool.release(slot)
    wait_until(lambda: not runs(child) and not runs(own))


def leaving(farewell):
    return {
        "env": dataclasses.replace(WORLD, kwargs={"farewell": str(farewell)}),
        "spec": dataclasses.replace(SPEC, needs_close=True),
    }


def test_a_world_that_holds_something_outside_its_process_is_closed_before_it_is_killed(pool_of, tmp_path):
    pool = pool_of(2, **leaving(tmp_path))
    slot, other = pool.acquire(), pool.acquire()
    pids = {str(int(act(each, 0)[2])) for each in (slot, other)}
    pool.release(slot)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1)
    pool.close()  # one is held
    assert pids <= {path.name for path in tmp_path.iterdir()}


def test_a_world_that_is_never_closed_is_killed(pool_of, monkeypatch):
    monkeypatch.setattr(worlds, "CLOSE_S", 0.2)
    pool = pool_of(1, **leaving("never"))
    slot = pool.acquire()
    _, _, own = act(slot, NOTHING)
    pool.release(slot)
    wait_until(lambda: not runs(own))
    pool.release(pool.acquire(PATIENCE_S))


def test_a_world_that_ends_while_nobody_holds_it_is_replaced(pool_of):
    pool = pool_of(1)
    with pool.lent() as slot:
        pass
    wait_until(lambda: pool.num_free == 1)
    with pool.lent() as slot:
        first = slot.process.pid
    wait_until(lambda: pool.num_free == 1)
    with pool._changed:
        waiting = pool._free[0].process.pid
    os.kill(waiting, signal.SIGKILL)
    wait_until(lambda: not runs(waiting))
    with pool.lent(PATIENCE_S) as slot:
        assert slot.process.pid not in (waiting, first)
        assert act(slot, 0)[0] == 0


def test_a_slot_released_twice_is_one_slot(pool_of):
    pool = pool_of(2)
    slot = pool.acquire()
    pool.release(slot)
    pool.release(slot)
    wait_until(lambda: pool.num_free == 2)
    held = [pool.acquire(PATIENCE_S), pool.acquire(PATIENCE_S)]
    with pytest.raises(PoolExhausted):
        pool.acquire()
    assert len({each.index for each in held}) == 2


def test_where_the_process_that_all_fork_from_is_lost_the_pool_is_made_anew(pool_of):
    pool = pool_of(3)
    held = pool.acquire()
    with pool._changed:
        pids = [slot.process.pid for slot in (held, *pool._free)]
    os.kill(pool._worlds._server.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(runs, pids)))  # one that is lent while it ends is a world that is lost
    pool.release(held)
    held = [pool.acquire(PATIENCE_S) for _ in range(3)]
    assert [act(slot, MARK)[0] for slot in held] == [1, 1, 1]


def test_after_100_kills_at_random_no_slot_is_lost_and_no_process_is_left(pool_of):
    pool, drawn, pids = pool_of(4), random.Random(0), set()
    ends = Counter()
    for _ in range(100):
        slot = pool.acquire(PATIENCE_S)
        pids.add(slot.process.pid)
        way = drawn.choice(["kill", "exit", "release", "waiting"])
        ends[way] += 1
        if way == "kill":
            os.kill(slot.process.pid, signal.SIGKILL)
        elif way == "exit":
            ask(slot, op="reset")
            slot.line.sendall(framed(JSON, encoded(JSON, {"id": 1, "op": "step", "action": EXIT})))
        pool.release(slot)
        if way == "waiting":
            with pool._changed:
                waiting = [each.process.pid for each in pool._free]
            for pid in waiting[:1]:
                os.kill(pid, signal.SIGKILL)
                pids.add(pid)
    assert len(ends) == 4
    held = [pool.acquire(PATIENCE_S) for _ in range(4)]
    assert len({slot.index for slot in held}) == 4
    pids |= {slot.process.pid for slot in held}
    pool.close()
    wait_until(lambda: not any(map(runs, pids)))


def test_a_world_that_cannot_be_made_is_said_with_its_cause():
    env = EnvConfig(id=WORLD.id, kwargs={"broken": True})
    pool = SlotPool(env, SPEC, 2)
    try:
        with pytest.raises(SlotNotReady, match="the cloud is down"):
            pool.wait_until_ready(PATIENCE_S)
        with pytest.raises(SlotNotReady, match="the cloud is down"):
            pool.acquire(0.2)
    finally:
        pool.close()


def test_a_closed_pool_lends_nothing(pool_of):
    pool = pool_of(1)
    pool.close()
    with pytest.raises(SlotNotReady, match="closed"):
        pool.acquire(PATIENCE_S)


def test_a_pool_that_is_closed_again_closes_and_writes_no_file_of_others(pool_of):
    pool = pool_of(1)
    slot = pool.acquire()
    pool.close()
    pipes = [os.pipe() for _ in range(8)]  # take the numbers of the pool's own
    try:
        pool.release(slot)
        pool.close()
        for ends in pipes:
            os.set_blocking(ends[0], False)
            with pytest.raises(BlockingIOError):
                os.read(ends[0], 1)
    finally:
        for fd in (fd for ends in pipes for fd in ends):
            os.close(fd)


def test_a_slot_whose_process_could_not_be_started_is_made_a_moment_later(monkeypatch):
    start, failures = ForkServer.start, [OSError(errno.EAGAIN, "no more processes")]

    def failing_once(*given, **more):
        if failures:
            raise failures.pop()
        return start(*given, **more)

    monkeypatch.setattr(ForkServer, "start", failing_once)
    pool = SlotPool(WORLD, SPEC, 1)
    try:
        wait_until(lambda: pool.num_free == 1)
    finally:
        pool.close()
