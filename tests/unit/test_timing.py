import numpy as np
import pytest
import torch

from ddppo.collectives.group import CollectiveTiming, Group, Wait
from ddppo.records import timing
from ddppo.records.timing import IterationClock, split_waiting

CPU = torch.device("cpu")


class Hands:
    """A clock that moves only when told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


@pytest.fixture
def hands(monkeypatch):
    hands = Hands()
    monkeypatch.setattr(timing, "time", hands)
    return hands


@pytest.fixture
def group():
    return Group()


def communicate(hands, group, seconds, **more):
    start = hands.now
    hands.advance(seconds)
    group.records.append(CollectiveTiming(start, hands.now, **more))


def split(stamps, is_barrier):
    waited, communicated = split_waiting(stamps, is_barrier, ["worker"] * len(stamps))
    return waited["worker"], communicated


def test_a_rank_waits_until_the_last_one_arrives_and_communicates_from_then_on():
    # One collective; rank 1 arrives at 5, all leave at 7.
    stamps = np.array([[[2.0, 7.0]], [[5.0, 7.0]]])
    waited, communicated = split(stamps, (False,))
    assert waited.tolist() == [3.0, 0.0]
    assert communicated.tolist() == [2.0, 2.0]


def test_a_rank_that_left_before_the_last_arrived_only_waited():
    # Rank 0's part of the work was done before rank 1 came (a broadcast from rank 0, say).
    waited, communicated = split(np.array([[[0.0, 1.0]], [[4.0, 6.0]]]), (False,))
    assert (waited.tolist(), communicated.tolist()) == ([1.0, 0.0], [0.0, 2.0])


def test_a_barrier_is_all_waiting():
    stamps = np.array([[[0.0, 3.0], [4.0, 6.0]], [[2.0, 3.0], [5.0, 6.0]]])
    waited, communicated = split(stamps, (True, False))
    assert waited.tolist() == [4.0, 1.0]
    assert communicated.tolist() == [1.0, 1.0]


def test_waiting_is_for_the_role_of_the_rank_that_came_last():
    # A learner and two actors: all wait for actor 2, who comes at 3; then the actors for the learner, who comes at 9.
    stamps = np.array([[[1.0, 3.0], [9.0, 9.5]], [[0.0, 3.0], [4.0, 9.5]], [[3.0, 3.0], [5.0, 9.5]]])
    waited, communicated = split_waiting(stamps, (True, False), ["learner", "actor", "actor"])
    assert waited["actor"].tolist() == [2.0, 3.0, 0.0]
    assert waited["learner"].tolist() == [0.0, 5.0, 4.0]
    assert communicated.tolist() == [0.5, 0.5, 0.5]


def test_waits_outside_collectives_leave_the_phase_and_are_told_by_role(hands, group):
    clock = IterationClock([group], CPU)
    with clock.phase("rollout"):
        hands.advance(2.0)
        for seconds in (1.0, 0.5):
            start = hands.now
            hands.advance(seconds)
            group.waits.append(Wait("observer", start, hands.now))
    times = clock.lap()
    assert (times.t_iter, times.t_rollout, times.waits) == (3.5, 2.0, {"observer": 1.5})
    assert clock.lap().waits == {}


def test_collectives_of_every_group_leave_the_phase_and_only_messages_are_counted(hands, group):
    some = Group()
    clock = IterationClock([group, some], CPU)
    with clock.phase("learn"):
        hands.advance(1.0)
        communicate(hands, some, 0.5, num_bytes=100)
        communicate(hands, group, 0.25, num_bytes=0)  # received
        communicate(hands, group, 0.25, is_barrier=True)
    times = clock.lap()
    assert (times.t_iter, times.t_learn) == (2.0, 1.0)
    assert [len(of_group.stamps) for of_group in times.collectives] == [2, 1]
    assert (times.num_messages, times.num_bytes) == (2, 100)
    assert group.records == some.records == []


def test_without_collectives_nobody_waits():
    waited, communicated = split(np.zeros((1, 0, 2)), ())
    assert (waited.tolist(), communicated.tolist()) == ([0.0], [0.0])


def test_phases_hold_what_was_not_spent_in_collectives_and_all_parts_sum_to_the_iteration(hands, group):
    clock = IterationClock([group], CPU)
    with clock.phase("rollout"):
        hands.advance(5.0)
    communicate(hands, group, 1.0, is_barrier=True)
    with clock.phase("learn"):
        hands.advance(2.0)
        communicate(hands, group, 0.5, hidden=0.25)
        hands.advance(1.0)
    hands.advance(0.125)
    times = clock.lap()
    assert (times.t_iter, times.t_rollout, times.t_learn, times.hidden_comm) == (9.625, 5.0, 3.0, 0.25)
    (of_all,) = times.collectives
    assert of_all.is_barrier == (True, False)
    waited, communicated = split(of_all.stamps[None], of_all.is_barrier)
    rest = times.t_iter - times.t_rollout - times.t_learn - waited.item() - communicated.item()
    assert rest == pytest.approx(0.125)


def test_a_lap_ends_one_iteration_and_begins_the_next_without_a_gap(hands, group):
    clock = IterationClock([group], CPU)
    for seconds in (1.0, 2.0, 4.0):
        with clock.phase("learn"):
            hands.advance(seconds)
        communicate(hands, group, 0.5)
        times = clock.lap()
        assert (times.t_iter, times.t_learn, len(times.collectives[0].stamps)) == (seconds + 0.5, seconds, 1)
    assert clock.elapsed == 8.5
    assert group.records == []


def test_excluded_sections_leave_no_trace_in_any_account(hands, group):
    clock = IterationClock([group], CPU)
    hands.advance(1.0)
    communicate(hands, group, 0.25)
    with clock.excluded():
        hands.advance(50.0)
        communicate(hands, group, 7.0)
    with clock.phase("rollout"):
        hands.advance(2.0)
    times = clock.lap()
    assert (times.t_iter, times.t_rollout, len(times.collectives[0].stamps)) == (3.25, 2.0, 1)
    assert clock.elapsed == 3.25


def test_what_happened_before_the_clock_was_made_is_on_nobodys_account(hands, group):
    communicate(hands, group, 9.0)
    clock = IterationClock([group], CPU)
    hands.advance(1.0)
    times = clock.lap()
    assert (times.t_iter, len(times.collectives[0].stamps)) == (1.0, 0)


def test_ranks_on_machines_with_different_clocks_count_from_when_the_barrier_let_them_go(hands, group):
    group.clocks_shared = False
    clock = IterationClock([group], CPU)
    communicate(hands, group, 3.0, is_barrier=True)
    hands.advance(1.0)
    communicate(hands, group, 0.5)
    assert clock.lap().collectives[0].stamps.tolist() == [[-3.0, 0.0], [1.0, 1.5]]
