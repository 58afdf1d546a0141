"""Red's agents in whole games: when they arrive, where they go on after a failure, and what games come to."""

import numpy as np
import pytest

from ddppo.domains.cage2 import PLUGIN, rules
from ddppo.domains.cage2.rules import HOST, NUM_ACTIONS
from tests.domains.cage2.cage2_play import act, exploit, hold, play, tell


def first_impacts(games, steps):
    """Return the step `[n]` in which OTService first was down, 0 where it never was."""
    first = np.zeros(games.num_games, int)
    for step in range(1, steps + 1):
        act(games)
        first[(first == 0) & games.state_of.down] = step
    return first


def test_b_line_impacts_in_step_15_or_later_and_meander_in_22_or_later():
    first = first_impacts(play(1000, "b_line"), 40)
    assert first.min() == 15
    assert (first > 0).all()
    first = first_impacts(play(4000, "meander"), 60)
    assert first[first > 0].min() == 22
    assert (first == 22).mean() < 0.01


def test_sleep_does_nothing():
    games = play(10, "sleep")
    for _ in range(100):
        assert not act(games).any()
    assert games.state_of.records["root"].tolist() == [1 << HOST["User0"]] * 10
    assert not games.obs.any()


def test_b_line_begins_with_any_of_four_hosts_and_scans_it_once():
    games = play(8000, "b_line")
    act(games)
    np.testing.assert_allclose(np.bincount(games.state_of.first) / 8000, 0.25, atol=0.02)
    act(games)
    scanned = games.obs.reshape(-1, 13, 4)[:, :, 0].argmax(1)
    np.testing.assert_array_equal(scanned, games.state_of.first + HOST["User1"])


def test_b_line_goes_back_to_where_its_way_was_sure():
    after = {0: 0, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 5, 7: 5, 8: 5, 9: 5, 10: 9, 11: 9, 12: 9, 13: 12, 14: 13}
    for phase, expected in after.items():
        games = play(1, "b_line")
        games.state_of.time[:] = 1
        games.state_of.phase[:] = phase
        games.state_of.seen[:, HOST["Op_Server0"]] = rules.ports_as_bits(22)
        act(games)
        assert games.state_of.phase[0] == expected
        games.state_of.phase[:], games.state_of.success[:] = phase, True
        act(games)
        assert games.state_of.phase[0] == min(phase + 1, 14)


def test_b_line_begins_again_when_its_first_scan_of_the_server_finds_nothing():
    games = play(1, "b_line")
    state, server = games.state_of, HOST["Op_Server0"]
    state.time[:], state.phase[:], state.success[:] = 1, 10, True
    act(games)  # the scan, without a session on an Enterprise host: it succeeds, and finds no port
    assert (state.phase[0], state.operation[0], state.target[0]) == (11, rules.SCAN, server)
    assert state.success[0]
    assert not state.seen[0, server]
    act(games)
    assert (state.phase[0], state.operation[0], state.target[0]) == (1, rules.SCAN, HOST["User1"])
    act(games)
    assert (state.phase[0], state.operation[0], state.target[0]) == (2, rules.EXPLOIT, HOST["User1"])


def test_b_line_goes_on_when_a_later_scan_of_the_server_finds_nothing():
    games = play(1, "b_line")
    state, server = games.state_of, HOST["Op_Server0"]
    hold(games, "Enterprise2")
    state.time[:], state.phase[:], state.success[:] = 1, 10, True
    act(games)
    assert state.seen[0, server]
    act(games, "Restore Enterprise2")  # the exploit has no way and fails; B_line goes back to Enterprise2
    assert (state.phase[0], state.success[0]) == (12, False)
    state.phase[:], state.success[:] = 10, True
    act(games)
    act(games)
    assert (state.phase[0], state.target[0]) == (12, server)


def bits(*names):
    return sum(1 << HOST[name] for name in names)


def test_meander_forgets_all_of_the_operational_hosts_after_a_failed_exploit_or_else_the_enterprise():
    every, operational = (1 << 13) - 1, bits("Op_Host0", "Op_Host1")
    for owned, lost in (
        (every ^ bits("Op_Server0", "Op_Host2"), operational),
        (
            every ^ bits("Op_Server0", "Op_Host2") ^ operational,
            bits("Enterprise0", "Enterprise1", "Enterprise2"),
        ),
    ):
        games = play()
        exploit(games, "Defender", "SSHBruteForce")
        games.state_of.escalated[:] = games.state_of.exploited[:] = owned
        act(games)
        assert games.state_of.escalated[0] == owned ^ lost
        assert games.state_of.exploited[0] == owned ^ lost


def test_meander_drops_a_host_where_an_escalation_or_an_impact_failed():
    for operation in (rules.ESCALATE, rules.IMPACT):
        games = play()
        tell(games, operation, "Op_Server0")
        act(games)
        act(games)
        assert not games.state_of.escalated[0] & bits("Op_Server0")
        assert not games.state_of.exploited[0] & bits("Op_Server0")


def test_meander_sweeps_a_subnet_when_it_has_escalated_there():
    games = play()
    hold(games, "Enterprise1", "lasting")
    tell(games, rules.ESCALATE, "Enterprise1")
    act(games)
    act(games)
    assert games.state_of.operation[0] == rules.SWEEP
    assert games.state_of.known[0] == bits("Defender", "Enterprise0", "Enterprise1", "Enterprise2")


PUBLISHED = {  # mean returns after 30, 50 and 100 steps (docs/cage2.md)
    ("sleep", "b_line"): (-218.65, -480.17, -1134.03),
    ("sleep", "meander"): (-39.31, -267.6, -972.43),
    ("random", "b_line"): (-154, -347, -727),
    ("random", "meander"): (-33, -171, -566),
    ("random", "sleep"): (-2.8, -4.45, -8.94),
}


@pytest.mark.parametrize(("blue", "red"), PUBLISHED)
def test_scripted_defenders_come_to_what_was_published_within_three_standard_errors(blue, red):
    rng = np.random.default_rng(0)
    games = play(400, red, faithful_ot_quirk=True)
    sums = np.zeros(400)
    for step in range(1, 101):
        sums += games.step(rng.integers(NUM_ACTIONS, size=400) * (blue == "random"))
        if step in (30, 50, 100):
            error = sums.std(ddof=1) / 20
            published = PUBLISHED[blue, red][(30, 50, 100).index(step)]
            assert sums.mean() == pytest.approx(published, abs=3 * error)


def test_an_action_there_is_not_is_refused():
    for action in (-1, NUM_ACTIONS):
        with pytest.raises(IndexError, match=f"game 1, counted from 0, has no action {action}"):
            play(2).step(np.array([0, action]))


def test_a_batch_of_games_is_as_many_games_by_themselves():
    rng = np.random.default_rng(3)
    for red, green in (("b_line", "active"), ("meander", "active")):
        batch = play(6, red, green=green)
        alone = [play(1, red, green=green) for _ in range(6)]
        for i, game in enumerate(alone):
            game.reset(np.arange(1), np.array([i + 1], np.uint64))
        for _ in range(60):
            actions = rng.integers(NUM_ACTIONS, size=6)
            rewards = batch.step(actions)
            for i, game in enumerate(alone):
                assert game.step(actions[i : i + 1])[0] == rewards[i]
                np.testing.assert_array_equal(game.obs[0], batch.obs[i])
                np.testing.assert_array_equal(game.compromised[0], batch.compromised[i])


@pytest.mark.parametrize("red", rules.AGENTS)
@pytest.mark.parametrize("green", ["sleep", "active"])
def test_games_in_cpp_are_those_in_numpy_to_the_bit(red, green, monkeypatch):
    if reason := PLUGIN.cpp.why_not():
        pytest.skip(reason)
    games, other = (play(64, red, green=green, faithful_ot_quirk=green == "active") for _ in range(2))
    act(games)
    monkeypatch.setattr("ddppo.domains.cage2.games.step_in_cpp", lambda: None)
    act(other)
    assert games._native is not None
    assert other._native is None
    rng = np.random.default_rng(2)
    for _ in range(150):
        repaired = rng.integers(28, NUM_ACTIONS, size=64)  # and decoys
        actions = np.where(rng.random(64) < 0.3, repaired, rng.integers(NUM_ACTIONS, size=64))
        assert games.step(actions).tobytes() == other.step(actions).tobytes()
        assert games.obs.tobytes() == other.obs.tobytes()
        assert games.state_of.records.tobytes() == other.state_of.records.tobytes()


def test_games_go_on_exactly_from_their_state():
    rng = np.random.default_rng(4)
    games, other = play(5, "meander", green="active"), play(5, "meander", green="active")
    for _ in range(40):
        games.step(rng.integers(NUM_ACTIONS, size=5))
    other.restore(games.state())
    for _ in range(40):
        actions = rng.integers(NUM_ACTIONS, size=5)
        np.testing.assert_array_equal(games.step(actions), other.step(actions))
        np.testing.assert_array_equal(games.obs, other.obs)
    assert games.state() == other.state()
