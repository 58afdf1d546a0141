"""CAGE 2 against a second game written from the rules alone: rewards, observations and true states, step by step."""

import numpy as np
import pytest

from ddppo.domains.cage2 import PLUGIN
from ddppo.domains.cage2.games import Games
from tests.domains.cage2.cage2_oracle import Game

NUM_STEPS = 100
FRONTS = [range(13), range(4), range(8, 13)] * 4  # of each game the hosts that Blue cares for
REDS = ["sleep", "b_line", "meander"]
ANALYSE, REMOVE, *DECOYS, RESTORE = range(2, 145, 13)
BLUES = {  # how often it does nothing, and what it does else
    "anything": (0.1, [ANALYSE, REMOVE, *DECOYS, RESTORE]),
    "repairs": (0.5, [ANALYSE, REMOVE, RESTORE, RESTORE]),
    "decoys": (0.4, [*DECOYS, *DECOYS, *DECOYS, ANALYSE, REMOVE, RESTORE]),
}


@pytest.fixture(params=["C++", "NumPy"], autouse=True)
def _stepped_by(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr("ddppo.domains.cage2.games.step_in_cpp", lambda: None)
    elif reason := PLUGIN.cpp.why_not():
        pytest.skip(reason)


def choose(rng, blue):
    idle, first_actions = BLUES[blue]
    hosts = [rng.choice(front) for front in FRONTS]
    sleep_or_monitor = rng.integers(2, size=len(FRONTS))
    return np.where(
        rng.random(len(FRONTS)) < idle, sleep_or_monitor, rng.choice(first_actions, len(FRONTS)) + hosts
    )


@pytest.mark.parametrize("blue", BLUES)
@pytest.mark.parametrize("has_quirk", [False, True], ids=["plain", "quirk"])
@pytest.mark.parametrize("has_green", [False, True], ids=["quiet", "green"])
@pytest.mark.parametrize("red", REDS)
def test_every_step_is_that_of_a_game_written_from_the_rules(red, has_green, has_quirk, blue):
    rng = np.random.default_rng([REDS.index(red), has_green, has_quirk, list(BLUES).index(blue)])
    keys = rng.integers(2**64, size=len(FRONTS), dtype=np.uint64)
    games = Games(len(FRONTS), red, "active" if has_green else "sleep", has_quirk)
    games.reset(np.arange(len(FRONTS)), keys)
    oracles = [Game(int(key), red, has_green, has_quirk) for key in keys]
    for step in range(NUM_STEPS):
        actions = choose(rng, blue)
        rewards, held = games.step(actions), games.compromised
        for i, oracle in enumerate(oracles):
            stepped = (rewards[i], games.obs[i].tolist(), held[i].tolist())
            assert stepped == oracle.step(actions[i]), f"game {i}, step {step}, action {actions[i]}"
