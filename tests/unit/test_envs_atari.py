"""Games through ale-py's batch; skipped where the extra atari is not installed."""

import dataclasses
import itertools
import zlib

import numpy as np
import pytest

from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.backends import atari
from ddppo.envs.backends.atari import GameJournal
from ddppo.envs.make import choose_backend, make_eval_env, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import ConfigError, EnvStateError
from ddppo.policies.playing import task_of
from ddppo.spaces import ActionSpec, ArraySpec

ale_py = pytest.importorskip("ale_py", reason="needs the extra atari: pip install '.[atari]'")

SEEDS = [10**15, 2, 3]


def game(name="Breakout", backend="auto", num_workers=None, max_episode_steps=None, **kwargs):
    kwargs = {"episodic_life": True, **kwargs}
    return EnvConfig(
        id=f"ALE/{name}-v5", backend=backend, num_workers=num_workers, max_episode_steps=max_episode_steps,
        kwargs=kwargs,
    )  # fmt: skip


def played(env, steps, first=0, last=3, make=None):
    """Step environments first to last - 1 of three with the same actions whoever else is there."""
    envs = make() if make else make_vec_env(env, range(first, last), rank=0, cores=1)
    actions = np.random.default_rng(0).integers(0, envs.spec.action.sizes[0], (steps, 3))
    found = []
    try:
        obs, _ = envs.reset(SEEDS[first:last])
        for row in actions[:, first:last]:
            before, step = obs.copy(), envs.step(row)
            found.append((before, step))
            obs = step.obs.copy()
            step.obs = obs
    finally:
        envs.close()
    return found


def test_a_game_observes_four_grey_frames_of_pixels():
    spec = probe(game("Pong"))
    assert spec.obs == ArraySpec((4, 84, 84), "uint8")
    assert spec.action == ActionSpec("discrete", (6,))
    assert probe(game("Pong", stack_num=2, img_height=42)).obs == ArraySpec((2, 42, 84), "uint8")


@pytest.mark.slow
def test_a_game_s_stream_is_its_own_whoever_it_is_stepped_with_and_on_how_many_threads():
    together = played(game(num_workers=2), 400)
    for first in range(3):
        for (_, a), (_, b) in zip(together, played(game(), 400, first, first + 1), strict=True):
            one = slice(first, first + 1)
            np.testing.assert_array_equal(a.obs[one], b.obs)
            for name in ("rewards", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(a, name)[one], getattr(b, name))


def test_no_ops_let_games_begin_apart_and_without_them_they_begin_alike():
    def first_frames(noop_max):
        env = make_vec_env(game("Freeway", noop_max=noop_max), range(3), rank=0, cores=1)
        try:
            return env.reset(SEEDS)[0][:, -1].copy()
        finally:
            env.close()

    alike, apart = first_frames(0), first_frames(30)
    assert (alike == alike[0]).all()
    assert len({frame.tobytes() for frame in apart}) == 3


def test_a_step_is_four_frames_and_shows_the_maximum_of_the_last_two():
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(ale_py.roms.get_rom_path("pong"))
    buttons = ale.getMinimalActionSet()
    unscaled = {"img_height": 210, "img_width": 160, "noop_max": 0, "use_fire_reset": False}
    env = make_vec_env(game("Pong", **unscaled), range(1), rank=0, cores=1)
    try:
        env.reset([1])
        for action in np.random.default_rng(0).integers(0, len(buttons), 60):
            step, rewards, frames = env.step(np.array([action])), 0, []
            for _ in range(4):
                rewards += ale.act(buttons[action])
                frames.append(ale.getScreenGrayscale())
            np.testing.assert_array_equal(step.obs[0, -1], np.maximum(*frames[-2:]))
            assert step.rewards == [rewards]
    finally:
        env.close()


def test_a_lost_life_ends_an_episode_for_learning_while_the_game_goes_on():
    lives, games = 0, 0
    steps = [step for _, step in played(game(), 800)]
    for step, following in itertools.pairwise(steps):
        is_life_loss = np.zeros(len(step.ended), bool) if step.is_life_loss is None else step.is_life_loss
        for k, i in enumerate(step.ended):
            assert step.terminated[i]
            assert np.array_equal(step.final_obs[k], step.obs[i]) == is_life_loss[k]
            assert (
                following.valid[i] != is_life_loss[k] or following.rewards[i]
            )  # FIRE, then the agent's turn
        lives, games = lives + is_life_loss.sum(), games + (~is_life_loss).sum()
    assert games >= 3
    assert lives in (
        4 * games,
        *range(4 * games - 12, 4 * games + 13),
    )  # five lives a game; three are under way


def test_where_lives_are_no_episodes_the_game_starts_by_the_agent_s_own_fire():
    steps = [step for _, step in played(game(episodic_life=False), 800)]
    assert all(step.valid.all() for step in steps)
    assert sum(len(step.ended) for step in steps) >= 1


@pytest.mark.slow
def test_an_evaluation_plays_whole_games_with_rewards_as_they_are():
    env = game("SpaceInvaders")
    found = played(env, 700, make=lambda: make_eval_env(env, 3))
    assert all(step.is_life_loss is None for _, step in found)
    rewards = np.concatenate([step.rewards for _, step in found])
    assert {5.0, 10.0} <= set(rewards)
    learning = played(env, 700)
    np.testing.assert_array_equal(rewards, np.concatenate([step.rewards for _, step in learning]))


def test_a_time_limit_truncates_with_the_true_final_observation():
    found = played(game("Pong", max_episode_steps=25, noop_max=1), 26)
    for t, (_, step) in enumerate(found, start=1):
        assert step.truncated.all() == (t == 25)
        assert not step.terminated.any()
    end = found[24][1]
    assert end.is_life_loss is None
    # The stack of the last observation holds the frames before it.
    np.testing.assert_array_equal(end.final_obs[:, :3], found[24][0][:, 1:])


def test_auto_is_ale_py_s_batch_and_other_backends_are_gymnasium_s_own_environment():
    env = game("Pong")
    assert choose_backend(env, probe(env), 8, 2).backend == "gym_vector"
    assert probe(EnvConfig(id="ALE/Pong-v5", backend="sync")).obs == ArraySpec((210, 160, 3), "uint8")


@pytest.mark.slow
def test_games_go_on_from_their_states_to_the_bit_whoever_they_are_stepped_with(monkeypatch):
    """Seeds come after 40 steps of a game, which has 150: some games had several, one had its last just now."""
    monkeypatch.setattr(atari, "RESEED_AFTER", 40)
    env = dataclasses.replace(game(repeat_action_probability=0.25), max_episode_steps=50)
    envs = make_vec_env(env, range(3), rank=0, cores=2)
    actions = np.random.default_rng(2).integers(0, 4, (190, 3))
    made = [envs]
    try:
        envs.reset([5, 6, 7])
        for action in actions[:110]:
            obs = envs.step(action).obs.copy()
        states = unpacked(packed(envs.state()))["envs"]
        assert max(state["num_seedings"] for state in states) > 0
        steps = [kept(envs.step(action)) for action in actions[110:]]
        for part in (slice(0, 1), slice(1, 3)):
            made.append(make_vec_env(env, range(3)[part], rank=0, cores=1))
            made[-1].go_on_from({"envs": states[part]})
            again, _ = made[-1].reset(range(3)[part])
            assert np.array_equal(again, obs[part])
            for action, step in zip(actions[110:], steps, strict=True):
                found = kept(made[-1].step(action[part]))
                assert all(np.array_equal(x, y[part]) for x, y in zip(found, step, strict=True))
        states[0]["actions"][-1] += 1
        states[0]["obs_crc"] += 1
        with pytest.raises(
            EnvStateError, match="environment 0 of rank 0 cannot go on from its state: its games"
        ):
            made[1].restore({"envs": states[:1]})
    finally:
        for each in made:
            each.close()


def kept(step):
    """Return copies of what a step says of each environment."""
    ends = np.zeros(len(step.rewards), np.uint64)
    ends[step.ended] = [zlib.crc32(x.tobytes()) for x in step.final_obs]
    parts = (step.obs, step.rewards, step.terminated, step.truncated, step.valid, ends)
    return [np.copy(part) for part in parts]


def test_a_journal_keeps_the_actions_since_each_game_s_seed_and_drops_the_others():
    journal = GameJournal(2, (), np.dtype(np.uint8))
    journal.begin([3, 4])
    first = journal.seeds().tolist()
    for k in range(5000):
        journal.append(np.array([k % 18, (k + 1) % 18]))
        if k % 300 == 299:
            journal.seed(np.array([True, k % 600 == 599]))
    assert journal.lengths().tolist() == [200, 200 + 300 * (5000 // 300 % 2)]
    assert len(journal._rows) < 1300
    one, other = journal.state()
    assert one["actions"].tolist() == [k % 18 for k in range(4800, 5000)]
    assert other["actions"][-1] == 5000 % 18
    assert not {*first} & {*journal.seeds().tolist()}
    again = GameJournal(2, (), np.dtype(np.uint8))
    again.restore([one, other])
    assert [state["actions"].tolist() for state in again.state()] == [
        state["actions"].tolist() for state in (one, other)
    ]
    assert again.seeds().tolist() == journal.seeds().tolist()


def test_a_picture_of_it_is_the_last_frame_that_the_policy_sees_enlarged():
    task = task_of(game("Pong", max_episode_steps=3))
    obs, _ = task.reset(seed=1)
    steps, ended = 0, False
    while not ended:
        assert task.render().shape == (336, 336, 3)
        assert np.array_equal(task.render()[::4, ::4, 1], obs[-1])
        obs, _, _, ended, _ = task.step(0)
        steps += 1
    task.close()
    assert steps == 3


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (game("Pong", reward_clipping=True), "env.kwargs.reward_clipping .*: set ppo.reward_clip"),
        (game("Pong", num_threads=2), "set env.num_workers"),
        (game("Pong", stack=4), "env.kwargs.stack: ALE/Pong-v5 does not accept this keyword .*stack_num"),
        (game("Pnog"), "Gymnasium knows no task ALE/Pnog-v5 .*did you mean ALE/Pong-v5"),
    ],
)
def test_what_is_not_the_game_s_to_set_is_told_in_one_sentence(env, said):
    with pytest.raises(ConfigError, match=said):
        probe(env)


def test_the_number_of_threads_is_checked_as_that_of_processes_is():
    validate(Config(env=game(num_workers=8)))
    with pytest.raises(ConfigError, match="exceeds the 8 environments"):
        validate(Config(env=game(num_workers=9)))
