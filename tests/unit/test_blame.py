"""Which rank the launcher names, from exit codes in the order of their ends and from words in the store."""

import pytest
import torch.distributed as dist

from ddppo.collectives import leave_word
from ddppo.distributed.launcher import _blame
from ddppo.errors import LOST_PEERS


@pytest.fixture
def store():
    return dist.HashStore()


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
