"""Which rank the launcher names, from the order of ends and words in the store, and how long it waits for them."""

import signal
from dataclasses import replace

import pytest
import torch.distributed as dist

from ddppo.collectives.peers import leave_word, note_met
from ddppo.config.settings import Config, DistSettings
from ddppo.distributed.topologies.contract import Layout, Role, TopologySpec
from ddppo.errors import LOST_PEERS
from ddppo.launch import local_ranks as launcher
from ddppo.launch.local_ranks import _blame, _ended_well, _Replacements, _wait_for_end
from ddppo.processes.signals import StopRequest


@pytest.fixture
def store():
    return dist.HashStore()


class Rank:
    """A process that ends with `code` after so many looks at it. told: the signals sent to it."""

    def __init__(self, code, looks=0):
        self.code, self.looks = code, looks
        self.told = []

    def send_signal(self, number):
        self.told.append(number)

    def poll(self):
        self.looks -= 1
        return self.code if self.looks < 0 else None


def waited(ranks, store, replacements=None, stop=None):
    replacements = replacements or _Replacements(pytest.fail, Config(), pytest.fail)
    return _wait_for_end(ranks, stop or StopRequest(), store, replacements, timeout_s=0.1)


def _one_learner(world_size, sizes):
    learner = Role("learner", (0,), steps=True, acts=True, learns=True, does=())
    actors = tuple(range(1, world_size))
    return Layout((learner, Role("actor", actors, True, True, False, (), can_restart=True)), ())


OWN_PACE = TopologySpec("own_pace", "actors that come and go", _one_learner, "")


@pytest.fixture
def own_pace():
    """Return settings of a topology whose rank 1 can be started again twice."""
    dist = DistSettings(world_size=2, topology=f"{__name__}:OWN_PACE", on_lost="restart", max_restarts=2)
    return Config(dist=dist)


def test_a_rank_that_failed_is_named_though_its_peers_ended_before_it(store):
    leave_word(store, 0, "for 0.2 s, last heard of in iteration 7")
    said = _blame({0: LOST_PEERS, 2: -9}, 3, store, timeout_s=600)
    assert said == ("rank 2 of 3 ended with signal 9 and the others were stopped", True)
    said = _blame({0: LOST_PEERS, 2: 1}, 3, store, timeout_s=600)
    assert said == (
        "rank 2 of 3 ended with exit code 1 and the others were stopped; its message is above",
        False,
    )


def test_a_rank_that_neither_ends_nor_leaves_word_is_the_one_that_did_not_answer(store):
    leave_word(store, 0, "for 8.1 s, last heard of in iteration 7")
    leave_word(store, 3, "for 0.3 s, last heard of in iteration 7")  # it still closes its files
    said, is_lost = _blame({0: LOST_PEERS}, 4, store, timeout_s=8)
    assert said.startswith("ranks 1, 2 of 4 did not answer for 8.1 s, last heard of in iteration 7 ")
    assert is_lost


def test_ranks_that_all_lost_their_peers_are_not_blamed(store):
    leave_word(store, 0, "for 0.1 s, last heard of in iteration 7")
    said, is_lost = _blame({0: LOST_PEERS, 1: LOST_PEERS}, 2, store, timeout_s=8)
    assert "lost one another" in said
    assert not is_lost


def test_others_that_have_not_met_a_killed_rank_are_not_waited_for(store):
    note_met(store)
    assert waited([Rank(-9), Rank(LOST_PEERS, looks=3)], store) == {0: -9}


def test_others_that_have_met_a_killed_rank_have_time_to_say_so(store):
    note_met(store)
    note_met(store)
    assert waited([Rank(-9), Rank(LOST_PEERS, looks=3)], store) == {0: -9, 1: LOST_PEERS}


def test_ranks_that_waited_in_vain_to_meet_have_time_to_leave_word_of_whom(store):
    found = waited([Rank(LOST_PEERS), Rank(LOST_PEERS, looks=3)], store)
    assert found == {0: LOST_PEERS, 1: LOST_PEERS}


def test_a_killed_rank_that_can_be_is_started_again_so_often_and_then_ends_all(store, own_pace, capsys):
    started, noted = [], []

    def start(rank):
        started.append(rank)
        return Rank(-9, looks=1)

    replacements = _Replacements(start, own_pace, noted.append)
    assert waited([Rank(0, looks=1000), Rank(-9)], store, replacements)[1] == -9
    assert started == [1, 1]
    assert noted == ["rank 1 ended with signal 9"] * 2
    assert (
        "rank 1 ended with signal 9; it is started again, the others go on (restart 2 of 2)"
        in capsys.readouterr().err
    )


def test_who_was_started_again_is_not_told_to_stop_for_it_would_end_while_it_starts(store, own_pace):
    again, learner, stop = Rank(0, looks=4), Rank(0, looks=4), StopRequest()

    def start(rank):
        stop.signal = signal.SIGTERM
        return again

    found = waited([learner, Rank(-9)], store, _Replacements(start, own_pace, lambda who: None), stop)
    assert found == {0: 0, 1: 0}
    assert (learner.told, again.told) == ([signal.SIGUSR2], [])


@pytest.mark.parametrize("on_lost", ["stop", "restart"])
def test_who_serves_and_hangs_when_all_others_have_ended_is_not_waited_for_without_limit(
    store, own_pace, monkeypatch, on_lost
):
    monkeypatch.setattr(launcher, "_PATIENCE_S", 0.1)
    config = replace(own_pace, dist=replace(own_pace.dist, on_lost=on_lost))
    replacements = _Replacements(pytest.fail, config, pytest.fail)
    found = waited([Rank(0), Rank(0, looks=10**6)], store, replacements)
    assert found == {0: 0}
    assert _ended_well(found, 2, replacements.replaceable) == (on_lost == "restart")
    said = "rank 1 of 2 did not end within 8 s after the others (dist.timeout_s)"
    assert _blame(found, 2, store, timeout_s=8) == (said, True)


@pytest.mark.parametrize(("rank", "code"), [(0, -9), (1, 1), (1, LOST_PEERS), (1, 0)])
def test_nobody_is_started_again_whom_the_others_need_or_who_failed_by_itself(own_pace, rank, code):
    assert _Replacements(pytest.fail, own_pace, pytest.fail).of(rank, code) is None


def test_with_on_lost_stop_nobody_is_started_again(own_pace):
    config = replace(own_pace, dist=replace(own_pace.dist, on_lost="stop"))
    assert _Replacements(pytest.fail, config, pytest.fail).of(1, -9) is None


@pytest.mark.parametrize(
    ("ended", "is_well"),
    [
        ({0: 0, 1: 0}, True),
        ({0: 0, 1: LOST_PEERS}, True),  # it came back when the learner had finished
        ({0: 0, 1: -9}, True),
        ({0: 0, 1: 1}, False),
        ({0: 0}, True),  # it hangs
        ({1: 0}, False),
        ({1: -9}, False),
        ({1: -9, 0: LOST_PEERS}, False),
    ],
)
def test_a_run_ended_well_though_one_that_can_be_replaced_was_lost_at_its_end(ended, is_well):
    assert _ended_well(ended, 2, {1}) == is_well
    assert _ended_well(ended, 2, set()) == (ended == {0: 0, 1: 0})
