"""Ranks of one start find one another in a store where an earlier start left its words."""

import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from ddppo.collectives.peers import store_of_this_machine
from ddppo.errors import CollectiveError
from ddppo.launch import rank as launched
from tests.support import PATIENCE_S


@pytest.fixture
def store():
    return store_of_this_machine("127.0.0.1")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads what listens from Linux's /proc")
def test_other_machines_cannot_reach_the_store_of_ranks_of_one(store):
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    listening = [
        fields[1] for fields in (line.split() for table in tables for line in table) if fields[3] == "0A"
    ]
    assert [each for each in listening if each.endswith(f":{store.port:04X}")] == [
        f"0100007F:{store.port:04X}"
    ]


def client(store):
    return dist.TCPStore("127.0.0.1", store.port, is_master=False)


def following(store, ranks, timeout_s=PATIENCE_S):
    """Start a thread a rank; returns them and what each found: (store, run folder) or an exception."""
    found = {}

    def follow(rank):
        try:
            found[rank] = launched.hear_run(client(store), rank, timeout_s)
        except BaseException as e:
            found[rank] = e

    threads = [threading.Thread(target=follow, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    return threads, found


def formed(store, world_size, run_dir):
    threads, found = following(store, range(1, world_size))
    theirs = launched.tell_run(client(store), world_size, run_dir, timeout_s=60)
    for thread in threads:
        thread.join(PATIENCE_S)
    return theirs, found


def test_a_second_start_in_the_same_store_hears_nothing_of_the_first(store):
    first, of_first = formed(store, 3, Path("/runs/first"))
    first.set("ddppo/hello/1", "of the first")
    second, of_second = formed(store, 2, Path("/runs/second"))
    assert {path for _, path in of_first.values()} == {Path("/runs/first")}
    assert [path for _, path in of_second.values()] == [Path("/runs/second")]
    assert not second.check(["ddppo/hello/1"])
    of_second[1][0].set("ddppo/hello/1", "of the second")
    assert second.get("ddppo/hello/1") == b"of the second"


def test_a_rank_that_was_started_again_meanwhile_is_answered_in_the_dead_one_s_place(store):
    client(store).set("ddppo/here/1", "a word of a rank that is dead")
    _, found = formed(store, 2, Path("/runs/it"))
    assert found[1][1] == Path("/runs/it")


def test_who_does_not_come_is_named(store):
    threads, _ = following(store, [1])
    with pytest.raises(CollectiveError, match=r"rank 2 of 3 did not come within 1 s of rank 0"):
        launched.tell_run(client(store), 3, Path("/runs/it"), timeout_s=1)
    for thread in threads:
        thread.join(PATIENCE_S)


def test_ranks_that_are_dismissed_end_with_the_code_of_rank_0(store):
    threads, found = following(store, [1, 2])
    launched.tell_end(client(store), 3, 2)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [e.code for e in found.values()] == [2, 2]


def test_a_rank_that_hears_nothing_of_rank_0_says_so(store):
    threads, found = following(store, [1], timeout_s=1)
    threads[0].join(PATIENCE_S)
    assert "rank 1 had no answer from rank 0 within 1 s" in str(found[1])
