"""Batched tasks, in C++ and NumPy, against Gymnasium's own, to the bit: all that a step and a reset return."""

import dataclasses
import json

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends import classic, classic_cpp
from ddppo.envs.backends.batched import BatchedEnvs
from ddppo.envs.backends.classic_cpp import CppEnvs, batched_ids, why_not_batched
from ddppo.envs.make import choose_backend, make_eval_env, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, EnvRaised, EnvStateError
from ddppo.native import why_not

# Settings, and how often an action is drawn anew: held actions swing a task up, and reach its limits and its goal.
PLAYED = {
    "cartpole v0": (EnvConfig(id="CartPole-v0"), 1),
    "cartpole": (EnvConfig(id="CartPole-v1", max_episode_steps=30), 1),
    "cartpole by Sutton and Barto": (EnvConfig(id="CartPole-v1", kwargs={"sutton_barto_reward": True}), 1),
    "acrobot": (EnvConfig(id="Acrobot-v1"), 5),
    "acrobot, short": (EnvConfig(id="Acrobot-v1", max_episode_steps=250), 5),
    "pendulum": (EnvConfig(id="Pendulum-v1"), 20),
    "pendulum on the moon": (EnvConfig(id="Pendulum-v1", kwargs={"g": 1.62}), 20),
    "mountain car": (EnvConfig(id="MountainCar-v0"), 20),
    "mountain car, fast": (EnvConfig(id="MountainCar-v0", kwargs={"goal_velocity": 0.03}), 20),
    "continuous mountain car": (EnvConfig(id="MountainCarContinuous-v0"), 60),
    "synthetic": (EnvConfig(id="ddppo/Synthetic-v0", kwargs={"episode_steps": 7, "obs_size": 3}), 1),
    "masked cartpole": (EnvConfig(id="ddppo/MaskedCartPole-v0"), 1),
    "tmaze": (EnvConfig(id="ddppo/TMaze-v0", kwargs={"length": 2}), 1),
    "tmaze, cut": (EnvConfig(id="ddppo/TMaze-v0", max_episode_steps=12), 3),
    "synthetic, cut": (EnvConfig(id="ddppo/Synthetic-v0", max_episode_steps=5), 1),
}
# Another of the list does all that these do, but for a number: 20,000 steps of them are compared.
SAME_CODE = ("acrobot", "cartpole v0", "cartpole by Sutton and Barto", "pendulum", "mountain car")
NUM_ENVS = 20


@pytest.fixture(params=["C++", "NumPy"])
def stepped_by(request, monkeypatch):
    """Have tasks stepped by one or the other."""
    if request.param == "NumPy":
        without_compiler(monkeypatch)
    else:
        library_or_skip()
    return request.param


def without_compiler(monkeypatch):
    monkeypatch.setattr(classic_cpp, "_functions", lambda: None)


def library_or_skip():
    if reason := why_not():
        pytest.skip(reason)


def batch(env, num_envs=NUM_ENVS, backend="batched", first=0):
    indices = range(first, first + num_envs)
    return make_vec_env(EnvConfig(id=env.id, max_episode_steps=env.max_episode_steps, kwargs=env.kwargs,
                                  backend=backend), indices, rank=0, cores=1)  # fmt: skip


def drawn_actions(action, steps, held, rng):
    """Return actions `[steps, E, ...]` as a model draws them: Gaussians beyond the bounds too."""
    shape = (-(-steps // held), NUM_ENVS, *action.shape)
    if action.kind == "discrete":
        drawn = rng.integers(0, action.sizes[0], shape)
    else:
        drawn = 2 * rng.standard_normal(shape, np.float32)
    return np.repeat(drawn, held, axis=0)[:steps]


def assert_equal_to_scalar_environments(env, held, steps, batches):
    scalars = batch(env, backend="sync")
    seeds = list(range(100, 100 + NUM_ENVS))
    first = scalars.reset(seeds)[0]
    for envs in batches:
        np.testing.assert_array_equal(envs.reset(seeds)[0], first)
    num_ended = 0
    for action in drawn_actions(scalars.spec.action, steps, held, np.random.default_rng(5)):
        expected = scalars.step(action)
        for envs in batches:
            step = envs.step(action)
            for name in ("obs", "rewards", "terminated", "truncated", "valid", "ended", "final_obs"):
                found, wanted = getattr(step, name), getattr(expected, name)
                assert found.dtype == wanted.dtype, name
                assert found.shape == wanted.shape, name
                assert found.tobytes() == np.ascontiguousarray(wanted).tobytes(), (name, envs, found, wanted)
        num_ended += len(expected.ended)
    scalars.close()
    assert num_ended > 0


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_a_batched_task_equals_its_scalar_environments_to_the_bit(name, stepped_by):
    env, held = PLAYED[name]
    assert_equal_to_scalar_environments(env, held, 1000, [batch(env)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLAYED if name not in SAME_CODE])
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_a_batched_task_equals_its_scalar_environments_over_300_000_steps(name, monkeypatch):
    env, held = PLAYED[name]
    batches = [batch(env)]
    if isinstance(batches[0], CppEnvs):
        without_compiler(monkeypatch)  # NumPy beside it: the scalar environments take the time
        batches.append(batch(env))
    assert_equal_to_scalar_environments(env, held, 300_000 // NUM_ENVS, batches)


def ends(envs, steps, held):
    """Return how many episodes terminated, and how many were truncated without that."""
    envs.reset(range(NUM_ENVS))
    counts = np.zeros(2, int)
    for action in drawn_actions(envs.spec.action, steps, held, np.random.default_rng(5)):
        step = envs.step(action)
        counts += step.terminated.sum(), (step.truncated & ~step.terminated).sum()
    return counts.tolist()


@pytest.mark.parametrize("name", ["cartpole", "acrobot, short", "mountain car", "continuous mountain car"])
def test_the_actions_of_these_tests_reach_goals_failures_and_time_limits(name):
    env, held = PLAYED[name]
    terminated, truncated = ends(batch(env), 1000, held)
    assert min(terminated, truncated) > 0, (terminated, truncated)


def test_episodes_do_not_depend_on_which_environments_share_a_batch():
    env, _ = PLAYED["cartpole"]
    whole, parts = batch(env), [batch(env, 7), batch(env, 13, first=7)]
    whole.reset(range(NUM_ENVS))
    parts[0].reset(range(7))
    parts[1].reset(range(7, NUM_ENVS))
    for action in drawn_actions(whole.spec.action, 200, 1, np.random.default_rng(5)):
        step = whole.step(action)
        split = [parts[0].step(action[:7]), parts[1].step(action[7:])]
        np.testing.assert_array_equal(step.obs, np.concatenate([part.obs for part in split]))


@pytest.mark.parametrize("env_id", batched_ids())
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_auto_and_evaluation_step_these_tasks_as_a_batch(env_id):
    env = EnvConfig(id=env_id)
    assert choose_backend(env, probe(env), num_envs=8, cores=2).backend == "batched"
    make_eval_env(env, 2).reset([0, 1])
    assert isinstance(make_eval_env(env, 2)._envs, BatchedEnvs)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (EnvConfig(id="LunarLander-v3", backend="batched"), "only CartPole-v0, CartPole-v1, Acrobot-v1"),
        (EnvConfig(id="ddppo/Synthetic-v0", backend="batched", kwargs={"step_time_s": 0.001}), "step_time_s=0.001"),
        (EnvConfig(id="CartPole-v1", backend="batched", kwargs={"gravity": 1}), "does not accept this keyword"),
    ],
)  # fmt: skip
def test_what_cannot_be_stepped_as_a_batch_is_refused_by_name(env, expected):
    with pytest.raises(ConfigError, match=expected):
        probe(env)


def test_a_task_that_was_registered_anew_under_a_known_id_is_not_taken_for_gymnasiums(monkeypatch):
    mine = dataclasses.replace(gym.registry["CartPole-v1"], kwargs={"sutton_barto_reward": True})
    monkeypatch.setitem(gym.registry, "CartPole-v1", mine)
    env = EnvConfig(id="CartPole-v1")
    assert why_not_batched(env) is not None
    # With more environments the measured time of a step would decide.
    assert choose_backend(env, probe(env), num_envs=1, cores=1).backend == "sync"


@pytest.mark.usefixtures("stepped_by")
def test_an_action_that_the_task_does_not_have_is_told_with_its_step():
    envs = batch(EnvConfig(id="CartPole-v1"), 2)
    envs.reset([0, 1])
    envs.step(np.array([0, 1]))
    with pytest.raises(EnvRaised, match=r"environments 0 to 1 of rank 0 raised IndexError in step 2"):
        envs.step(np.array([0, 2]))


@pytest.mark.usefixtures("stepped_by")
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_an_action_that_is_no_number_comes_back_as_observation_and_reward(env_id):
    results = []
    for backend in ("batched", "sync"):
        envs = batch(EnvConfig(id=env_id), 2, backend)
        envs.reset([0, 1])
        step = envs.step(np.array([[np.nan], [0.5]], np.float32))
        results.append((step.obs, step.rewards))
    for batched, sync in zip(*results, strict=True):
        np.testing.assert_array_equal(batched, sync)
        assert np.isnan(batched[0]).any()


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_a_restored_batch_goes_on_to_the_bit(name, stepped_by):
    env, held = PLAYED[name]
    envs = batch(env)
    envs.reset(range(NUM_ENVS))
    actions = drawn_actions(envs.spec.action, 700, held, np.random.default_rng(5))
    for action in actions[:350]:
        envs.step(action)
    state = json.loads(json.dumps(envs.state()))  # plain values only
    other = batch(env)
    obs, _ = other.restore(state)
    np.testing.assert_array_equal(obs, envs._obs)
    for action in actions[350:]:
        step, again = envs.step(action), other.step(action)
        for field in ("obs", "rewards", "terminated", "truncated", "ended", "final_obs"):
            assert getattr(step, field).tobytes() == getattr(again, field).tobytes(), field


def test_a_state_does_not_depend_on_whether_cpp_or_numpy_stepped(monkeypatch):
    library_or_skip()
    env, held = PLAYED["cartpole"]
    native = batch(env)
    without_compiler(monkeypatch)
    numpy = batch(env)
    assert isinstance(native, CppEnvs)
    assert not isinstance(numpy, CppEnvs)
    for envs in (native, numpy):
        envs.reset(range(NUM_ENVS))
    for k, action in enumerate(drawn_actions(native.spec.action, 90, held, np.random.default_rng(5))):
        for envs in (native, numpy):
            envs.step(action)
        if k == 45:
            assert native.state() == numpy.state()
            native.restore(numpy.state())
    assert native.state() == numpy.state()


def test_where_numpys_functions_are_not_libms_numpy_steps(monkeypatch):
    library_or_skip()
    env, _ = PLAYED["pendulum"]
    monkeypatch.setattr(classic_cpp, "_agreed", {})
    monkeypatch.setattr(classic, "sin", lambda x: np.nextafter(np.sin(x), 2.0))
    assert not isinstance(batch(env), CppEnvs)


def test_a_backend_that_cannot_hand_over_its_state_names_the_environment():
    envs = batch(EnvConfig(id="CartPole-v1"), 2, "gym_vector", first=4)
    envs.reset([0, 1])
    for call in (envs.state, lambda: envs.restore({})):
        with pytest.raises(EnvStateError, match="environment 4 of rank 0 cannot save its state"):
            call()
    envs.close()
