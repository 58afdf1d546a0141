"""Observers go at their own pace; what is collected from them does not depend on it."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_envs_tasks import task

from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.topologies.central_inference import CentralCollector, CentralEpisodes
from ddppo.envs.backends.observers import Observers
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvWorkerLost
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution
from ddppo.ppo.collector import Collector
from ddppo.spaces import leaves
from tests.support import PATIENCE_S

NUM_ENVS, STEPS = 6, 40
CARTPOLE = EnvConfig(id="CartPole-v1", max_episode_steps=15, backend="pool", num_workers=3)
SLEEPY = EnvConfig(id="ddppo/Synthetic-v0", backend="pool", num_workers=2, kwargs={"step_time_s": 0.02})


@pytest.fixture
def observers():
    made = []

    def make(env, num_envs=NUM_ENVS, timeout_s=PATIENCE_S):
        made.append(Observers(env, probe(env), EnvNames(range(num_envs), 0), timeout_s, 2))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rollouts(collector, num_envs, times=2):
    """Collect so often; return copies, for a rollout's tensors are written again."""
    collector.reset(list(range(num_envs)))
    noise = np.random.default_rng(0).random((times, STEPS, num_envs, 1))
    found = []
    for one in noise:
        rollout, episodes = collector.collect(one)
        arrays = [rollout.actions, rollout.rewards, rollout.logprobs, rollout.values, rollout.next_values]
        arrays += [rollout.terminated, rollout.truncated, rollout.episode_start, *leaves(rollout.obs)]
        found.append(([x.clone() for x in arrays], sorted(episodes, key=lambda e: (e.step, e.env_index))))
    return found


def made_of(env, model, dtype=torch.float64):
    how = {"rollout_steps": STEPS, "first_env": 0, "device": torch.device("cpu"), "dtype": dtype}
    return {"env": env, "model": model, "normalizer": None, **how}


def central_of(env, model, max_wait_s=None, kind=CentralCollector, **more):
    collector = kind(**made_of(env, model, **more))
    collector.group, collector.max_wait_s = Group(), max_wait_s
    return collector


@pytest.mark.parametrize("max_wait_s", [None, 0.0, 0.001])
def test_the_rollout_is_that_of_environments_stepped_in_turn(observers, max_wait_s):
    model = build_model(probe(CARTPOLE), settings_of("model", hidden_sizes=[16]), 0, torch.float64)
    in_turn = make_vec_env(replace(CARTPOLE, backend="sync", num_workers=None), range(NUM_ENVS), 0, 1)
    central = central_of(observers(CARTPOLE), model, max_wait_s)
    for (a, episodes_a), (b, episodes_b) in zip(
        rollouts(Collector(**made_of(in_turn, model)), NUM_ENVS), rollouts(central, NUM_ENVS), strict=True
    ):
        assert episodes_a == episodes_b
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


class NeedsSuccessors(Algorithm):
    hands_over = "episodes"
    needs_successors = True


def test_successors_of_whole_episodes_are_those_of_environments_stepped_in_turn(observers):
    spec = probe(CARTPOLE)
    model = build_model(spec, settings_of("model", hidden_sizes=[16]), 0, torch.float64)
    in_turn = make_vec_env(replace(CARTPOLE, backend="sync", num_workers=None), range(NUM_ENVS), 0, 1)
    found = []
    for collector in (
        EpisodeCollector(**made_of(in_turn, model)),
        central_of(observers(CARTPOLE), model, kind=CentralEpisodes),
    ):
        collector.use_algorithm(NeedsSuccessors(spec, AlgorithmSettings(), model))
        collector.reset(list(range(NUM_ENVS)))
        rollout, _ = collector.collect(np.random.default_rng(0).random((STEPS, NUM_ENVS, 1)))
        found.append((rollout.ends[rollout.ends[:, 1].argsort()], rollout.successors()[rollout.valid]))
    assert len(found[0][0]) == NUM_ENVS
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_batch_of_all_gives_the_same_bits_by_any_number_of_observers(observers):
    model = build_model(probe(CARTPOLE), settings_of("model", hidden_sizes=[64, 64]), 0, torch.float64)
    found = []
    for num_workers in (1, NUM_ENVS):
        env = replace(CARTPOLE, max_episode_steps=None, num_workers=num_workers)
        central = central_of(observers(env), model, kind=CentralEpisodes)
        central.reset(list(range(NUM_ENVS)))
        rollout, episodes = central.collect(np.random.default_rng(0).random((STEPS, NUM_ENVS, 1)))
        assert len({episode.step for episode in episodes}) == NUM_ENVS  # observers are done one by one
        found.append([x[rollout.valid] for x in (central.params, rollout.actions, rollout.logprobs)])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_a_batch_of_all_takes_one_forward_a_step_though_episodes_are_of_unequal_length(observers):
    model = build_model(probe(CARTPOLE), settings_of("model", hidden_sizes=[16]), 0, torch.float64)
    central = central_of(observers(CARTPOLE), model)
    ((arrays, episodes),) = rollouts(central, NUM_ENVS, times=1)
    assert central.num_forwards == STEPS
    assert len({episode.length for episode in episodes}) > 1
    assert len(arrays[0]) == STEPS


def test_batches_that_close_at_once_are_more_and_collect_the_same(observers):
    sleepy = replace(SLEEPY, kwargs={"step_time_s": 0.01})
    model = build_model(probe(sleepy), settings_of("model", hidden_sizes=[16]), 0, torch.float64)
    found = []
    for max_wait_s in (None, 0.0):  # of observers of one and of two environments, which sleep in turn
        central = central_of(observers(sleepy, num_envs=3), model, max_wait_s)
        found.append((central, rollouts(central, 3, times=1)))
    (of_all, ((a, episodes_a),)), (at_once, ((b, episodes_b),)) = found
    assert of_all.num_forwards == STEPS < at_once.num_forwards
    assert episodes_a == episodes_b
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_in_float32_actions_are_those_of_one_forward_each(observers):
    pendulum = EnvConfig(id="Pendulum-v1", backend="pool", num_workers=3)
    spec = probe(pendulum)
    model = build_model(spec, settings_of("model", hidden_sizes=[64, 64]), 0, torch.float32)
    central = central_of(observers(pendulum), model, dtype=torch.float32)
    central.reset(list(range(NUM_ENVS)))
    noise = np.random.default_rng(0).standard_normal((STEPS, NUM_ENVS, 1))
    rollout, _ = central.collect(noise)
    assert isinstance(rollout.obs, torch.Tensor)
    draws = torch.from_numpy(noise).float()
    with torch.no_grad():
        for t, i in np.ndindex(STEPS, NUM_ENVS):
            params = model.action_params(rollout.obs[t, i : i + 1])
            alone = action_distribution(spec.action, params).sample(draws[t, i : i + 1])
            torch.testing.assert_close(rollout.actions[t, i : i + 1], alone, rtol=1e-6, atol=1e-6)


def test_messages_to_and_from_observers_are_counted_and_waiting_for_them_is_noted(observers):
    model = build_model(probe(CARTPOLE), settings_of("model", hidden_sizes=[16]), 0, torch.float64)
    central = central_of(observers(CARTPOLE), model)
    ((_, episodes),) = rollouts(central, NUM_ENVS, times=1)
    sends, num_observers = central.group.sends, len(central.env.parts)
    assert len(sends) == 2 * STEPS * num_observers
    # An action; an observation, a reward and two flags; and the last observation of every episode.
    assert sum(sends) == STEPS * NUM_ENVS * (8 + 16 + 10) + 16 * len(episodes)
    assert [wait.role for wait in central.group.waits] == ["observer"] * STEPS


def test_who_answers_early_is_not_held_up_by_who_is_late(observers):
    envs = observers(SLEEPY, num_envs=4)
    envs.reset([0, 1, 2, 3])
    late = envs._pool.workers[0].process.pid
    os.kill(late, signal.SIGSTOP)
    for k in (0, 1):
        envs.ask(k, np.zeros(2, np.int64))
    assert envs.ready(0.0) == [1]
    os.kill(late, signal.SIGCONT)
    assert envs.ready(0.0) == [0]
    for k in (0, 1):
        envs.ask(k, np.zeros(2, np.int64))
    assert sorted(envs.ready(None)) == [0, 1]


def test_an_observer_that_dies_is_named_and_holds_nobody_for_ever(observers):
    envs = observers(task("Faulty", backend="pool", num_workers=2, kwargs={"fault": "exit"}), num_envs=4)
    envs.reset([0, 0, 0, 1])

    def step_often():
        for _ in range(100):
            for k in (0, 1):
                envs.ask(k, np.zeros(2, np.int64))
            envs.ready(None)

    with pytest.raises(EnvWorkerLost, match="environment 3 of rank 0"):
        step_often()
