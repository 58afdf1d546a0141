"""Environments that go on from their states do what those did that gave them: every backend, every kind of task."""

import dataclasses
import importlib.util
import io
import random
import re
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.observations import RowEncoder
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.dry_run import dry_run
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import EnvStateError
from tests.unit.box2d import BOX2D

TASKS = {
    "cartpole": EnvConfig(id="CartPole-v1"),
    "acrobot": EnvConfig(id="Acrobot-v1", max_episode_steps=60),
    "pendulum": EnvConfig(id="Pendulum-v1", max_episode_steps=45),
    "mountain_car": EnvConfig(id="MountainCar-v0", max_episode_steps=45),
    "continuous_mountain_car": EnvConfig(id="MountainCarContinuous-v0", max_episode_steps=45),
    "synthetic": EnvConfig(id="ddppo/Synthetic-v0", kwargs={"episode_steps": 33}),
    "lander": EnvConfig(id="LunarLander-v3"),
    "continuous_lander": EnvConfig(id="LunarLander-v3", kwargs={"continuous": True}),
    "walker": EnvConfig(id="BipedalWalker-v3"),
    "blackjack": EnvConfig(id="Blackjack-v1"),
    "frozen_lake": EnvConfig(id="FrozenLake-v1"),
    "taxi": EnvConfig(id="Taxi-v4", max_episode_steps=45),
    "cartpole_with_context": EnvConfig(id="CartPole-v1", context=2),
    "tmaze": EnvConfig(id="ddppo/TMaze-v0", kwargs={"length": 3}),
    "cartpole_masked": EnvConfig(id="ddppo/MaskedCartPole-v0"),
}
if not BOX2D:
    TASKS = {
        name: env for name, env in TASKS.items() if name not in ("lander", "continuous_lander", "walker")
    }
if importlib.util.find_spec("minigrid"):
    TASKS["minigrid"] = EnvConfig(id="MiniGrid-DoorKey-6x6-v0", max_episode_steps=60)
if importlib.util.find_spec("popgym"):
    TASKS["popgym"] = EnvConfig(id="popgym-PositionOnlyCartPoleEasy-v0")
BATCHED = ("cartpole", "acrobot", "pendulum", "mountain_car", "continuous_mountain_car", "synthetic", "tmaze",
           "cartpole_masked")  # fmt: skip
NUM_ENVS, BEFORE, AFTER = 6, 70, 200


@pytest.fixture
def batch():
    made = []

    def make(env, indices, backend):
        made.append(make_vec_env(_with(env, backend), indices, 0, 2, 60.0))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def _with(env, backend):
    return dataclasses.replace(env, backend=backend, num_workers=2 if backend == "pool" else None)


def actions_for(envs, num_steps, seed=0):
    rng, action = np.random.default_rng(seed), envs.spec.action
    shape = (num_steps, NUM_ENVS, *action.shape)
    if action.kind == "box":
        return rng.standard_normal(shape, np.float32)
    return (
        rng.integers(0, action.sizes, shape)
        if action.kind != "discrete"
        else rng.integers(0, action.sizes[0], shape)
    )


def as_bytes(obs, of=slice(None)):
    parts = obs.values() if isinstance(obs, dict) else [obs]
    return [part[of].tobytes() for part in parts]


def done(envs, actions, places=slice(None)):
    """Return, step by step and environment by environment, all that a batch answers."""
    said = []
    for action in actions[:, places]:
        step = envs.step(action)
        finals = dict(zip(step.ended.tolist(), range(len(step.ended)), strict=True))
        said.append(
            [
                (
                    as_bytes(step.obs, i),
                    step.rewards[i].tobytes(),
                    bool(step.terminated[i]),
                    bool(step.truncated[i]),
                    bool(step.valid[i]),
                    as_bytes(step.final_obs, finals[i]) if i in finals else None,
                )
                for i in range(envs.num_envs)
            ]
        )
    return said


def goes_on_to_the_bit(batch, env, backend):
    envs = batch(env, range(NUM_ENVS), backend)
    envs.reset(range(40, 40 + NUM_ENVS))
    actions = actions_for(envs, BEFORE + AFTER)
    done(envs, actions[: BEFORE - 1])
    last = envs.step(actions[BEFORE - 1]).obs
    expected_obs = [as_bytes(last, i) for i in range(NUM_ENVS)]
    states = unpacked(packed(envs.state()))["envs"]
    expected = done(envs, actions[BEFORE:])
    assert any(x[2] or x[3] for step in expected for x in step), "no episode ended, so nothing was tried"
    for part in (range(2), range(2, NUM_ENVS)):
        others, places = batch(env, part, backend), slice(part.start, part.stop)
        others.reset(range(7, 7 + len(part)))
        obs, _ = others.restore({"envs": states[places]})
        assert [as_bytes(obs, i) for i in range(len(part))] == expected_obs[places]
        assert done(others, actions[BEFORE:], places) == [step[places] for step in expected]


@pytest.mark.parametrize("name", BATCHED)
def test_batched_environments_dealt_otherwise_go_on_to_the_bit(batch, name):
    goes_on_to_the_bit(batch, TASKS[name], "batched")


@pytest.mark.parametrize("name", TASKS)
def test_environments_stepped_in_turn_and_dealt_otherwise_go_on_to_the_bit(batch, name):
    goes_on_to_the_bit(batch, TASKS[name], "sync")


@pytest.mark.quick_cases("pendulum")
@pytest.mark.parametrize("name", sorted({"pendulum", "lander", "blackjack"} & set(TASKS)))
def test_environments_of_a_pool_dealt_otherwise_go_on_to_the_bit(batch, name):
    goes_on_to_the_bit(batch, TASKS[name], "pool")


@pytest.mark.parametrize("name", TASKS)
def test_the_door_finds_that_they_can_be_saved(name):
    assert dry_run(TASKS[name]).why_inexact is None
    assert dry_run(_with(TASKS[name], "sync")).why_inexact is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, -3, 2**127 + 1, 0.1 + 0.2, -0.0, 5e-324, "a\0b", b"\x00\xff", {"": [], "of": {}}],
        [float("inf"), -float("inf")],
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([np.nan, -np.nan, np.inf, -0.0]),
        np.zeros((0,), np.uint8),
        np.array(7, np.int16),
        np.zeros(2, [("obs 0", np.float32, (3,)), ("mask", bool)]),
    ],
)
def test_a_state_in_bytes_comes_back_as_it_was(value):
    found = unpacked(packed({"it": value}))["it"]
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        assert (found.dtype, found.shape, found.strides) == (value.dtype, value.shape, value.strides)
        assert found.tobytes() == value.tobytes()
    else:
        assert found == value
        assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(()), np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6)[::2],
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2), np.array(["ab", "c"]), np.zeros((0, 3), np.float32),
        np.zeros(2, dtype=[("a", "<f4"), ("b", "i8", (2,))]), np.array(3, ">i4"), np.zeros((1, 5), order="F"),
    ],
    ids=lambda x: f"{x.dtype.str}{x.shape}",
)  # fmt: skip
def test_an_array_is_stored_as_the_npy_file_that_numpy_writes(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    assert packed(array).endswith(file.getvalue())


def test_what_is_large_in_several_states_is_held_once_beside_them():
    large, beside = np.arange(20_000.0), {}
    states = [
        {"map": large.copy(), "own": large + 1 + i, "small": np.arange(3), "text": b"x" * 70_000}
        for i in range(3)
    ]
    parts = [packed(state, beside) for state in states]
    assert len(beside) == 1 + 3 + 1
    assert max(map(len, parts)) < 1000
    for part, state in zip(parts, states, strict=True):
        found = unpacked(part, beside)
        assert found.keys() == state.keys()
        assert all(np.array_equal(found[name], state[name]) for name in state)
    first, second = (unpacked(part, beside)["map"] for part in parts[:2])
    first[0] = 7
    assert second[0] == 0


@pytest.mark.parametrize("value", [(1,), {1: 2}, np.float32(1), np.array([None]), object(), {"a": [{2}]}])
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(TypeError, match="cannot be saved"):
        packed(value)


def test_bytes_of_no_state_are_refused_and_so_is_every_part_of_one():
    whole = packed({"a": np.arange(3), "b": b"xyz"})
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"no state of environments|cut short"):
            unpacked(whole[:length])
    with pytest.raises(ValueError, match="no state of environments"):
        unpacked(b"\x80\x04" + whole)


class Shared(gym.Env):
    """Forgets nothing that any of its kind has seen."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(2)
    steps_of_all = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Shared.steps_of_all += 1
        return np.full(1, Shared.steps_of_all, np.float32), 0.0, False, False, {}


class Opaque(gym.Env):
    """Draws from generators of its own, one of them out of Gymnasium's sight, and hides what it has drawn."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), MultiBinary(2)

    def __init__(self, forgets=True):
        self._hidden = iter(())  # no data
        self._legacy, self._plain = np.random.RandomState(3), random.Random(4)
        self._num_episodes, self._forgets = 0, forgets

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_episodes += 1
        drawn = [self._legacy.random_sample() + self._plain.random() + k for k in range(30)]
        self._hidden = iter(drawn if self._forgets else [x * self._num_episodes for x in drawn])
        return np.zeros(1, np.float32), {}

    def step(self, action):
        action += 1  # it was given to keep
        number = next(self._hidden, None)
        over = number is None
        return np.full(1, 0.0 if over else number + self.np_random.random(), np.float32), 0.0, over, False, {}


def registered(monkeypatch, cls):
    monkeypatch.setitem(
        gym.registry, f"{cls.__name__}-v0", gym.envs.registration.EnvSpec(f"{cls.__name__}-v0", cls)
    )
    return f"{cls.__name__}-v0"


def test_a_task_that_is_no_data_plays_its_episode_again(batch, monkeypatch):
    env = EnvConfig(id=registered(monkeypatch, Opaque))
    assert dry_run(env).why_inexact is None
    goes_on_to_the_bit(batch, env, "sync")


def test_an_episode_that_is_too_long_to_be_played_again_is_not_kept(batch, monkeypatch):
    monkeypatch.setattr("ddppo.envs.single.LONGEST", 10)
    envs = batch(EnvConfig(id=registered(monkeypatch, Opaque)), range(1), "sync")
    envs.reset([0])
    for k in range(31):  # its episodes have 31 steps
        if k == 15:
            with pytest.raises(
                EnvStateError, match=r"environment 0 of rank 0 cannot .* longer than .* steps"
            ):
                envs.state()
        envs.step(np.zeros((1, 2), np.int64))
    assert len(envs.state()["envs"][0]["saved"]["actions"]) == 0


@pytest.mark.parametrize(("cls", "kwargs"), [(Shared, {}), (Opaque, {"forgets": False})])
def test_a_task_that_remembers_elsewhere_is_found_at_the_door(monkeypatch, cls, kwargs):
    reason = dry_run(EnvConfig(id=registered(monkeypatch, cls), kwargs=kwargs)).why_inexact
    assert "another observation" in reason


class Slow(Shared):
    """Remembers in its resets alone; a step takes 20 ms."""

    def reset(self, *, seed=None, options=None):
        Shared.steps_of_all += 1
        return np.full(1, Shared.steps_of_all, np.float32), {}

    def step(self, action):
        time.sleep(0.02)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_of_a_slow_task_fewer_steps_are_tried_but_the_next_episode_still_is(monkeypatch):
    env = EnvConfig(id=registered(monkeypatch, Slow))
    assert re.search(r"another observation in the reset after [34] steps", dry_run(env).why_inexact)  # not 21


class Own(Opaque):
    """Hands its state over by itself."""

    def state(self):
        return {"episodes": self._num_episodes}

    def restore(self, state):
        self._num_episodes = state["episodes"]
        return np.zeros(1, np.float32), {}


def test_one_whose_wrapper_hides_something_beside_its_own_state_says_so(monkeypatch):
    class Hiding(gym.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.hidden = iter(())

    name = registered(monkeypatch, Own)
    monkeypatch.setattr("ddppo.envs.single.make_task", lambda env: Hiding(gym.make(name)))
    reason = dry_run(EnvConfig(id=name)).why_inexact
    assert "cannot save its state: Hiding.hidden holds a tuple_iterator, which may hide a state" in reason


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs the extra atari")
def test_a_game_that_gymnasium_steps_is_its_emulator_s_state_unless_actions_stick():
    env = EnvConfig(id="ALE/Pong-v5", backend="sync", max_episode_steps=30)
    assert dry_run(env).why_inexact.endswith(
        "use env.backend=auto, or env.kwargs.repeat_action_probability=0"
    )
    kwargs = {"repeat_action_probability": 0.0}
    assert dry_run(dataclasses.replace(env, kwargs=kwargs)).why_inexact is None


def test_who_cannot_hand_states_over_is_named():
    assert "env.backend=gym_vector" in dry_run(EnvConfig(id="CartPole-v1", backend="gym_vector")).why_inexact


def test_the_state_of_another_task_is_refused(batch, monkeypatch):
    own = EnvConfig(id=registered(monkeypatch, Own))
    ones = {"pendulum": batch(TASKS["pendulum"], range(1), "sync"), "own": batch(own, range(1), "sync")}
    batched = batch(TASKS["pendulum"], range(1), "batched")
    for envs in (*ones.values(), batched):
        envs.reset([0])
    with pytest.raises(
        EnvStateError, match=r"environment 0 of rank 0 cannot go on .* saved as own, .* as attributes"
    ):
        ones["pendulum"].restore(ones["own"].state())
    with pytest.raises(EnvStateError, match="saved as attributes, and is saved as batched here: resume with"):
        batched.restore(ones["pendulum"].state())


def test_rows_of_one_observation_are_equal_to_the_last_byte_those_between_fields_too():
    spec = probe(TASKS["taxi"])
    encode = RowEncoder(gym.spaces.Discrete(500), spec)
    assert encode.layout.dtype.itemsize > 500 * 4 + 6  # there are such bytes
    garbage = [np.full(encode.layout.dtype.itemsize, k, np.uint8) for k in range(1, 100)]
    del garbage  # whose memory rows are given
    assert len({encode(7, {}).tobytes() for _ in range(100)}) == 1
