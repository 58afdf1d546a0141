import json
import socket
import threading

import pytest
import torch.distributed as dist

from ddppo.collectives.peers import OwnPace, last_words
from ddppo.config.settings import DistSettings
from ddppo.distributed.topologies.async_actors.connections import (
    ActorConnections,
    Listener,
    PeerConnection,
    connect,
)
from ddppo.distributed.topologies.async_actors.learner import largest_lag, updates_ahead
from ddppo.errors import CollectiveError
from tests.support import PATIENCE_S


@pytest.fixture
def wires():
    ends = [PeerConnection(end, timeout_s=PATIENCE_S) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def store():
    return dist.HashStore()


def test_a_message_larger_than_the_sockets_room_arrives_whole(wires):
    a, b = wires
    sent, found = bytes(range(256)) * 40_000, bytearray(256 * 40_000)
    sending = threading.Thread(target=a.send, args=(sent[:100], sent[100:]))
    sending.start()
    b.receive(memoryview(found))
    sending.join()
    assert found == sent
    assert (a.num_sends, a.num_bytes, b.num_sends) == (1, len(sent), 0)
    assert min(a.waited_s, a.moved_s, b.moved_s) >= 0


def test_no_wait_is_without_a_limit():
    one, other = (PeerConnection(end, timeout_s=0.2) for end in socket.socketpair())
    with pytest.raises(TimeoutError, match="no word for"):
        one.receive(memoryview(bytearray(1)))
    with pytest.raises(TimeoutError):
        one.send(bytes(10_000_000))
    assert one.waited_s >= 0.4
    one.close()
    other.close()


def test_an_end_that_closes_is_an_error_at_the_other(wires):
    wires[1].close()
    with pytest.raises(ConnectionError):
        wires[0].receive(memoryview(bytearray(1)))
    assert wires[0].drain()


@pytest.mark.parametrize("machine", [None, "localhost"])
def test_only_who_knows_the_word_is_let_in(store, machine):
    listener = Listener(store, machine, timeout_s=PATIENCE_S)
    wire = connect(store, rank=3, timeout_s=PATIENCE_S)
    rank, other = listener.accept()
    assert rank == 3
    wire.send(b"hello")
    found = bytearray(5)
    other.receive(memoryview(found))
    assert found == b"hello"
    _, *where = json.loads(store.get("ddppo/learner/address"))
    store.set("ddppo/learner/address", json.dumps(["0" * 32, *where]))
    stranger = connect(store, rank=1, timeout_s=PATIENCE_S)
    assert listener.accept() is None
    for end in (wire, other, stranger, listener):
        end.close()


def test_an_actor_goes_on_at_once_only_where_its_next_rollout_can_be_used():
    # 3 actors, 3 rollouts an update: in step with max_lag=0, nobody waits for an update with 1
    assert [updates_ahead(0, acting, 3) for acting in range(3)] == [0, 0, 0]
    assert [updates_ahead(taken, 3 - taken, 3) for taken in (1, 2, 3)] == [1, 1, 1]
    assert updates_ahead(3, 2, 3) == largest_lag(None, 3, 3) == 1
    # one rollout an update: each of the others may be in before
    assert largest_lag(None, num_actors=3, per_update=1) == 3
    assert largest_lag(0, num_actors=3, per_update=1) == 0


def test_an_actor_that_is_gone_before_all_have_come_is_named_at_once(store, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    group = OwnPace(store, 0, 3, timeout_s=PATIENCE_S)
    actors = ActorConnections(group, (1, 2), DistSettings(world_size=3, timeout_s=PATIENCE_S), None)
    connect(store, rank=1, timeout_s=PATIENCE_S).close()
    with pytest.raises(CollectiveError, match="lost rank 1, an actor: the other end is closed"):
        actors.wait_for_all()
    actors.close()


def test_who_says_nothing_before_it_begins_is_named_and_the_launcher_is_told(store):
    group = OwnPace(store, 1, 4, timeout_s=0.3)
    store.set("ddppo/machine/2", "a word")
    with pytest.raises(
        CollectiveError, match=r"rank 1 on .* did not hear of ranks 0, 3 within dist.timeout_s=0.3"
    ):
        group.words("machine", "another")
    assert list(last_words(store, 4)) == [1]
