"""Which rank the launcher names, from the order of ends and words in the store, and how long it waits for them."""

import pytest
import torch.distributed as dist

from ddppo.collectives import leave_word, note_met
from ddppo.distributed.launcher import _blame, _wait_for_end
from ddppo.errors import LOST_PEERS
from ddppo.signals import StopRequest


@pytest.fixture
def store():
    return dist.HashStore()


class Rank:
    """A process that ends with `code` after so many looks at it."""

    def __init__(self, code, looks=0):
        self.code, self.looks = code, looks

    def poll(self):
        self.looks -= 1
        return self.code if self.looks < 0 else None


def test_a_rank_that_failed_is_named_though_its_peers_ended_before_it(store):
    leave_word(store, 0, "for 0.2 s, last heard of in iteration 7")
    said = _blame({0: LOST_PEERS, 2: -9}, 3, store, timeout_s=600)
    assert said == "rank 2 of 3 ended with signal 9 and the others were stopped; its message is above."


def test_a_rank_that_neither_ends_nor_leaves_word_is_the_one_that_did_not_answer(store):
    leave_word(store, 0, "for 8.1 s, last heard of in iteration 7")
    leave_word(store, 3, "for 0.3 s, last heard of in iteration 7")  # it still closes its files
    said = _blame({0: LOST_PEERS}, 4, store, timeout_s=8)
    assert said.startswith("ranks 1, 2 of 4 did not answer for 8.1 s, last heard of in iteration 7 ")


def test_ranks_that_all_lost_their_peers_are_not_blamed(store):
    leave_word(store, 0, "for 0.1 s, last heard of in iteration 7")
    assert "lost one another" in _blame({0: LOST_PEERS, 1: LOST_PEERS}, 2, store, timeout_s=8)


def test_others_that_have_not_met_a_killed_rank_are_not_waited_for(store):
    note_met(store)
    assert _wait_for_end([Rank(-9), Rank(LOST_PEERS, looks=3)], StopRequest(), store) == {0: -9}


def test_others_that_have_met_a_killed_rank_have_time_to_say_so(store):
    note_met(store)
    note_met(store)
    assert _wait_for_end([Rank(-9), Rank(LOST_PEERS, looks=3)], StopRequest(), store) == {
        0: -9,
        1: LOST_PEERS,
    }


def test_ranks_that_waited_in_vain_to_meet_have_time_to_leave_word_of_whom(store):
    found = _wait_for_end([Rank(LOST_PEERS), Rank(LOST_PEERS, looks=3)], StopRequest(), store)
    assert found == {0: LOST_PEERS, 1: LOST_PEERS}
