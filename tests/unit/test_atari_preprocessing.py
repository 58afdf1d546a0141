"""What ale-py's batch makes of frames, beside the same done by hand from the emulator's own frames."""

import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe

ale_py = pytest.importorskip("ale_py", reason="needs the extra atari: pip install '.[atari]'")

SEEDS = list(range(12))
ACTIONS = [2, 2, 3, 3, 3, 0, 2, 5, 4, 1] * 6  # of the 6 of Pong


def game(name, **kwargs):
    return EnvConfig(id=f"ALE/{name}-v5", kwargs={"noop_max": 0, "use_fire_reset": False, **kwargs})


def stepped(env, actions, seeds=SEEDS):
    """Return observations `[T + 1, E, ...]` and rewards `[T, E]` of games that all do the same."""
    envs = make_vec_env(env, range(len(seeds)), rank=0, cores=2)
    try:
        seen, rewards = [envs.reset(seeds)[0].copy()], []
        for action in actions:
            step = envs.step(np.full(len(seeds), action))
            seen.append(step.obs.copy())
            rewards.append(step.rewards.copy())
    finally:
        envs.close()
    return np.array(seen), np.array(rewards)


class Emulator:
    """Pong of the emulator alone, frame by frame."""

    def __init__(self, num_noops):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", 0)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path("pong"))
        self.ale.reset_game()
        for _ in range(num_noops):
            self.ale.act(0)

    def skipped(self, action, frames=4):
        """Do an action for 4 frames; return the maximum of the last two `[210, 160]` and the sum of rewards."""
        rewards, seen = 0, []
        for _ in range(frames):
            rewards += self.ale.act(self.ale.getMinimalActionSet()[action])
            seen.append(self.ale.getScreenGrayscale())
        return np.maximum(seen[-1], seen[-2]), rewards

    def after(self, actions):
        """Return the last picture of these actions."""
        return [self.skipped(action)[0] for action in actions][-1]


def smaller(frame, height=84, width=84):
    """Return the means of the areas that the pixels of a smaller image cover."""
    return weights(height, frame.shape[0]) @ frame.astype(float) @ weights(width, frame.shape[1]).T


def weights(few, many):
    """Return `[few, many]`, the share of each of `many` intervals of [0, 1] in each of `few`."""
    ends = np.linspace(0, 1, few + 1), np.linspace(0, 1, many + 1)
    low = np.maximum(ends[0][:-1, None], ends[1][None, :-1])
    high = np.minimum(ends[0][1:, None], ends[1][None, 1:])
    return np.clip(high - low, 0, None) * few


def test_a_step_is_4_frames_of_one_action_the_maximum_of_the_last_two_grey_and_84_by_84_and_4_are_stacked():
    seen, rewards = stepped(game("Pong"), ACTIONS)
    by_hand, emulator = [], Emulator(num_noops=0)
    for t, action in enumerate(ACTIONS):
        frame, reward = emulator.skipped(action)
        by_hand.append(smaller(frame))
        assert reward == rewards[t, 0]
        assert np.abs(seen[t + 1, 0, -1] - by_hand[-1]).max() <= 2  # of 255: they round
        if t >= 3:
            assert np.abs(seen[t + 1, 0] - np.array(by_hand[-4:])).max() <= 2


@pytest.mark.slow
def test_a_game_starts_with_up_to_30_no_ops_by_its_seed():
    starts = [smaller(Emulator(k).after(ACTIONS[:40])) for k in range(31)]
    together, _ = stepped(game("Pong"), ACTIONS[:40])
    apart, _ = stepped(game("Pong", noop_max=30), ACTIONS[:40])
    assert len({picture.tobytes() for picture in together[-1]}) == 1
    assert len({picture.tobytes() for picture in apart[-1]}) >= 4
    for picture in apart[-1, :, -1]:
        assert min(np.abs(picture - start).max() for start in starts) <= 2


def test_sticky_actions_make_games_of_one_start_part_and_all_18_actions_can_be_had():
    sticky = game("Pong", repeat_action_probability=0.25, full_action_space=True)
    assert probe(sticky).action.sizes == (18,)
    seen, _ = stepped(sticky, [3, 4] * 20)  # right and left, the paddle's up and down
    assert len({pictures.tobytes() for pictures in seen.swapaxes(0, 1)}) >= len(SEEDS) - 1


@pytest.mark.parametrize("fires", [True, False])
def test_fire_starts_a_game_that_waits_for_it(fires):
    """The ball of Breakout moves, or is not there."""
    seen, _ = stepped(game("Breakout", use_fire_reset=fires), [0] * 12, SEEDS[:1])
    assert (seen[-1, 0, -1] != seen[-2, 0, -1]).any() == fires
