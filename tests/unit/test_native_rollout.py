"""A rollout in one call of C++ against the collector's own loop, and against itself over other batches."""

import dataclasses

import numpy as np
import pytest
import torch

from ddppo import native
from ddppo.algorithms.contract import Algorithm, AlgorithmSettings
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.envs.backends.classic_cpp import CppEnvs
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.errors import EnvOutputError
from ddppo.models.build import build_model
from ddppo.models.distributions import num_noise
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.seeding import action_noise
from ddppo.spaces import ActionSpec
from tests.unit.test_collector import collector as counting_collector

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
CPU = torch.device("cpu")
STEPS, ENVS = 40, 6
TASKS = {
    "cartpole": EnvConfig(id="CartPole-v1", max_episode_steps=25),
    "acrobot": EnvConfig(id="Acrobot-v1", max_episode_steps=9),
    "pendulum": EnvConfig(id="Pendulum-v1", max_episode_steps=30),
    "mountain car": EnvConfig(id="MountainCar-v0", max_episode_steps=11),
    "continuous mountain car": EnvConfig(id="MountainCarContinuous-v0", max_episode_steps=12),
}


class Recording(Algorithm):
    """Acts as PPO does, and records what PPO records."""

    records = ("logprobs",)
    needs_successors = True


def collector(
    env,
    *,
    is_native=True,
    algorithm=None,
    dtype=torch.float64,
    normalizer=None,
    envs=range(ENVS),
    steps=STEPS,
    **model_settings,
):
    spec = probe(env)
    model = build_model(spec, settings_of("model", hidden_sizes=[16, 16], **model_settings), 0, dtype)
    parameters = FlatParameters(model)
    with torch.no_grad():
        parameters.vector.mul_(3)  # so that policies have preferences
    made = Collector(
        make_vec_env(dataclasses.replace(env, backend="batched"), envs, rank=0, cores=1),
        model,
        normalizer,
        rollout_steps=steps,
        first_env=envs.start,
        device=CPU,
        dtype=dtype,
    )
    made.reset([100 + i for i in envs])
    if algorithm is not None:
        made.use_algorithm(algorithm(spec, AlgorithmSettings(), model))
    if is_native:
        made.use_cpp(CppNetwork(model, spec, parameters.vector))
    return made


def task_of(name):
    """Return a task's settings, and those of the model, from a name such as "squashed pendulum"."""
    heads = {"squashed ": {"squash": "tanh"}, "beta ": {"distribution": "beta"}}
    head = next(filter(name.startswith, heads), "")
    return TASKS[name.removeprefix(head)], heads.get(head, {})


def noise(made, iteration, envs=range(ENVS)):
    action = made.env.spec.action
    return action_noise(
        5, iteration, envs, made.rollout_steps, num_noise(action), normal=action.kind == "box"
    )


def assert_equal(found, expected):
    for field in dataclasses.fields(expected):
        x, y = getattr(found, field.name), getattr(expected, field.name)
        if y is not None:
            torch.testing.assert_close(
                x, y, rtol=1e-5, atol=1e-7, msg=lambda m, name=field.name: f"{name}: {m}"
            )


@pytest.mark.parametrize("algorithm", [None, Recording])
@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("name", [*TASKS, "squashed pendulum", "beta pendulum"])
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_it_is_the_rollout_that_the_loop_collects(name, normalizes, algorithm):
    env, model_settings = task_of(name)
    ended = 0
    normalizer = None
    if normalizes:
        normalizer = ObsNormalizer(probe(env).obs, CPU, torch.float64)
        normalizer.update_(moments(0.3 * torch.randn(50, probe(env).obs_size) + 0.2))
    both = [
        collector(env, is_native=is_native, normalizer=normalizer, algorithm=algorithm, **model_settings)
        for is_native in (True, False)
    ]
    for iteration in range(3):
        (found, episodes), (expected, expected_episodes) = (
            made.collect(noise(made, iteration)) for made in both
        )
        assert_equal(found, expected)
        assert algorithm is None or found.extras.keys() == {"logprobs"}
        assert [(e.step, e.env_index, e.length) for e in episodes] == [
            (e.step, e.env_index, e.length) for e in expected_episodes
        ]
        np.testing.assert_allclose(
            [e.episode_return for e in episodes], [e.episode_return for e in expected_episodes], rtol=1e-5
        )
        ended += len(episodes)
        if normalizer is not None:
            normalizer.update_(moments(expected.raw_obs.flatten(0, 1)))
    assert ended > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["cartpole", "pendulum", "squashed pendulum", "beta pendulum"])
def test_it_does_not_depend_on_which_environments_share_a_batch_to_the_bit(name, dtype):
    env, model_settings = task_of(name)
    parts = [range(0, 1), range(1, ENVS)]
    whole, *split = (
        collector(env, dtype=dtype, envs=envs, **model_settings) for envs in (range(ENVS), *parts)
    )
    for iteration in range(3):
        rollout, episodes = whole.collect(noise(whole, iteration))
        halves = [made.collect(noise(made, iteration, envs)) for made, envs in zip(split, parts, strict=True)]
        for field in dataclasses.fields(rollout):
            if isinstance(x := getattr(rollout, field.name), torch.Tensor):
                assert torch.equal(x, torch.cat([getattr(half, field.name) for half, _ in halves], dim=1)), (
                    field.name
                )
        merged = [episode for _, ended in halves for episode in ended]
        assert episodes == sorted(merged, key=lambda e: (e.step, e.env_index))


def test_a_policy_that_is_no_number_is_told_with_the_environment_and_step_that_met_it():
    made = collector(TASKS["pendulum"])
    made.collect(noise(made, 0))
    drawn = noise(made, 1)
    drawn[3, 2] = np.nan
    with pytest.raises(EnvOutputError, match="environment 2 of rank 0 returned nan as the reward of step 44"):
        made.collect(drawn)


def test_environments_go_on_by_single_steps_where_the_rollout_left_them():
    made = collector(TASKS["cartpole"])
    assert isinstance(made.env, CppEnvs)
    made.collect(noise(made, 0))
    assert made.env.state()["envs"][0]["num_steps"] == STEPS
    step = made.env.step(np.zeros(ENVS, np.int64))
    assert step.obs.shape == (ENVS, 4)


@pytest.mark.parametrize(
    ("action", "masked"),
    [
        (ActionSpec("discrete", (3,)), False),
        (ActionSpec("discrete", (3,)), True),
        (ActionSpec("multi_discrete", (3, 2)), False),
        (ActionSpec("multi_discrete", (3,)), True),
        (ActionSpec("multi_binary", (4,)), False),
        (ActionSpec("box", (2,)), False),
    ],
)
@pytest.mark.parametrize("algorithm", [None, Recording])
def test_where_environments_are_stepped_elsewhere_the_loop_acts_by_it(action, masked, algorithm):
    both = [counting_collector(action, masked=masked, rollout_steps=STEPS) for _ in range(2)]
    if algorithm is not None:
        for made in both:
            made.use_algorithm(algorithm(made.env.spec, AlgorithmSettings(), made.model))
    parameters = FlatParameters(both[0].model)
    both[0].use_cpp(CppNetwork(both[0].model, both[0].env.spec, parameters.vector))
    parameters.vector.data.mul_(2)
    both[1].model.load_state_dict(both[0].model.state_dict())
    for iteration in range(2):
        drawn = np.random.default_rng(iteration).random((STEPS, 2, num_noise(action)))
        found, expected = (made.collect(drawn)[0] for made in both)
        assert_equal(found, expected)
        assert len(found.actions.unique()) > 1
    assert (
        np.array_equal(np.array(both[0].env.actions), np.array(both[1].env.actions)) or action.kind == "box"
    )
