"""A process of environments that is lost and started again: what its step becomes, and whom it holds up."""

import os
import signal

import numpy as np
import pytest
import torch

from ddppo.collectives.group import Group
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.topologies.central_inference import CentralCollector
from ddppo.envs.backends import pool_memory as past
from ddppo.envs.backends.observers import Observers
from ddppo.envs.backends.pool_memory import History
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvWorkerLost
from ddppo.models.build import build_model
from tests.distributed.counted import SCALE
from tests.support import NEVER_S
from tests.unit.box2d import BOX2D

COUNTED = EnvConfig(id="tests.distributed.counted:Counted-v0", backend="pool", num_workers=2)
SEEDS = [20, 40, 60, 80]
DEFAULTS = {"rank": 0, "cores": 1, "timeout_s": NEVER_S, "max_restarts": 1}


@pytest.fixture
def closing():
    made = []
    yield lambda envs: made.append(envs) or envs
    for envs in made:
        envs.close()


@pytest.fixture
def forgetful(monkeypatch):
    """Nobody can come to where a lost process was."""
    monkeypatch.setattr(History, "replay", lambda history, rows: None)


@pytest.fixture
def pool(closing):
    return lambda env=COUNTED, **more: closing(make_vec_env(env, range(4), **(DEFAULTS | more)))


def worker(envs, k):
    return envs._stepper.workers[k].process.pid


def at(obs):
    return (obs / SCALE).astype(int).tolist()


def stepped(envs):
    return envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.parametrize(("number", "timeout_s"), [(signal.SIGKILL, NEVER_S), (signal.SIGSTOP, 5.0)])
def test_the_step_under_way_becomes_a_pseudo_step_that_cuts_the_episode(
    pool, capsys, forgetful, number, timeout_s
):
    envs = pool(timeout_s=timeout_s)
    envs.reset(SEEDS)
    stepped(envs)
    os.kill(worker(envs, 1), number)
    step = stepped(envs)
    assert step.valid.tolist() == [True, True, False, False]
    assert step.rewards.tolist() == [2, 2, 0, 0]
    assert step.truncated.tolist() == [False, False, True, True]
    assert not step.terminated.any()
    assert step.ended.tolist() == [2, 3]
    assert at(step.obs)[:2] == [[20, 0, 2], [40, 0, 2]]
    streams = [stream for stream, *_ in at(step.obs)[2:]]
    assert at(step.obs)[2:] == [[stream, 0, 0] for stream in streams]
    assert len({*streams, *SEEDS}) == 6  # seeds that nobody had
    step = stepped(envs)
    assert step.valid.all()
    assert not len(step.ended)
    assert at(step.obs)[2:] == [[stream, 0, 1] for stream in streams]
    assert envs.num_restarts == 1
    said = capsys.readouterr().err
    assert "of rank 0, in step 2: " in said
    assert said.endswith("; it is started again (restart 1 of 1), with new episodes\n")


def test_once_too_often_is_the_end_and_named_as_ever(pool):
    envs = pool()
    envs.reset(SEEDS)
    os.kill(worker(envs, 0), signal.SIGKILL)
    stepped(envs)
    os.kill(worker(envs, 0), signal.SIGKILL)
    with pytest.raises(EnvWorkerLost, match=r"of rank 0, in step 2: the process of environments 0 to 1"):
        stepped(envs)


def test_one_that_is_lost_before_a_reset_costs_no_step(pool):
    envs = pool()
    envs.reset(SEEDS)
    os.kill(worker(envs, 0), signal.SIGKILL)
    obs, _ = envs.reset([21, 41, 61, 81])
    assert at(obs)[2:] == [[61, 0, 0], [81, 0, 0]]
    assert at(obs)[:2] == [[21, 0, 0], [41, 0, 0]]
    assert stepped(envs).valid.all()


def test_nobody_waits_for_an_observer_that_is_started_again(closing, forgetful):
    envs = closing(Observers(COUNTED, probe(COUNTED), EnvNames(range(4), 0), NEVER_S, 1, max_restarts=1))
    envs.reset(SEEDS)
    os.kill(envs._pool.workers[1].process.pid, signal.SIGKILL)
    for k in (0, 1):
        envs.ask(k, np.zeros(2, np.int64))
    assert envs.ready(0.0) == [0]
    assert envs.answer(0).valid.all()
    assert envs.ready(0.0) == [1]
    assert not envs.answer(1).valid.any()
    assert envs.num_restarts == 1


def test_who_is_fast_ends_its_rollout_long_before_who_is_slow(closing):
    """Stream 0 sleeps in every step, and episodes of the two are of unequal lengths."""
    env = EnvConfig(id=COUNTED.id, backend="pool", num_workers=2, kwargs={"sleep_s": 0.02})
    envs = closing(Observers(env, probe(env), EnvNames(range(2), 0), NEVER_S, 1))
    model = build_model(envs.spec, settings_of("model", hidden_sizes=[4]), 0, torch.float64)
    collector = CentralCollector(
        env=envs, model=model, normalizer=None, rollout_steps=40, first_env=0, device=torch.device("cpu"),
        dtype=torch.float64,
    )  # fmt: skip
    collector.group, collector.max_wait_s = Group(), 0.0
    noted = []
    note = collector._receive_step
    collector._receive_step = lambda k, row, ends: (noted.append((k, row)), note(k, row, ends))
    collector.reset([0, 1])
    collector.collect(np.random.default_rng(0).random((40, 2, 1)))
    before = noted[: noted.index((1, 39))]
    assert sum(k == 0 for k, _ in before) < 20
    assert sorted(noted) == [(k, row) for k in (0, 1) for row in range(40)]


LIMITED = EnvConfig(id="Pendulum-v1", backend="pool", num_workers=2, max_episode_steps=40)
LANDER = EnvConfig(id="LunarLander-v3", backend="pool", num_workers=2)


def told(step):
    return [
        x.copy()
        for x in (
            step.obs,
            step.rewards,
            step.terminated,
            step.truncated,
            step.valid,
            step.ended,
            step.final_obs,
        )
    ]


@pytest.mark.parametrize(("env", "save_after"), [(COUNTED, 10**6), (LIMITED, 25), (LANDER, 25)])
def test_who_takes_a_lost_process_s_place_comes_to_where_that_was(pool, monkeypatch, env, save_after):
    if env is LANDER and not BOX2D:
        pytest.skip("needs the extra box2d")
    monkeypatch.setattr(past, "_SAVE_AFTER", save_after)
    monkeypatch.setattr(past, "_SAVING_SHARE", 1e9)
    disturbed, whole = (pool(env=env, max_restarts=4) for _ in range(2))
    rng, spec = np.random.default_rng(0), whole.spec
    for envs in (disturbed, whole):
        envs.reset(SEEDS)
    for k in range(120):
        actions = rng.normal(size=(4, 1)) if spec.action.kind == "box" else rng.integers(0, 2, 4)
        if k in (3, 60, 61):
            os.kill(worker(disturbed, k % 2), signal.SIGKILL)
        if k == 90:  # between two steps it is found by who asks
            os.kill(worker(disturbed, 1), signal.SIGKILL)
            assert packed(disturbed.state()) == packed(whole.state())
        for x, y in zip(told(disturbed.step(actions)), told(whole.step(actions)), strict=True):
            assert np.array_equal(x, y), k
    assert (disturbed.num_restarts, disturbed.num_env_restarts, disturbed.num_lost_episodes) == (4, 8, 0)
    assert disturbed.made_anew() == []


def test_a_process_that_is_stopped_is_replaced_as_one_that_died(pool, capsys):
    envs = pool(timeout_s=5.0)
    envs.reset(SEEDS)
    stepped(envs)
    os.kill(worker(envs, 1), signal.SIGSTOP)
    step = stepped(envs)
    assert at(step.obs) == [[seed, 0, 2] for seed in SEEDS]
    assert step.valid.all()
    assert "no answer within 5 s" in capsys.readouterr().err


def test_observers_that_were_lost_come_back_while_others_go_on(closing):
    envs = closing(Observers(COUNTED, probe(COUNTED), EnvNames(range(4), 0), NEVER_S, 1, max_restarts=1))
    envs.reset(SEEDS)
    for _ in range(3):
        for k in (0, 1):
            envs.ask(k, np.zeros(2, np.int64))
        assert envs.ready(None) == [0, 1]
    os.kill(envs._pool.workers[1].process.pid, signal.SIGKILL)
    for k in (0, 1):
        envs.ask(k, np.zeros(2, np.int64))
    assert envs.ready(0.0) == [0]
    assert envs.ready(0.0) == [1]
    assert envs.answer(1).valid.all()
    assert at(envs.answer(1).obs) == [[60, 0, 4], [80, 0, 4]]
    assert (envs.num_restarts, envs.num_lost_episodes) == (1, 0)


def test_one_that_comes_elsewhere_begins_new_episodes(pool, capsys):
    """What it observes follows from its process, so that nobody can take its place."""
    env = EnvConfig(id=COUNTED.id, backend="pool", num_workers=2, kwargs={"of_process": True})
    envs = pool(env=env)
    envs.reset(SEEDS)
    for _ in range(3):
        stepped(envs)
    os.kill(worker(envs, 1), signal.SIGKILL)
    step = stepped(envs)
    assert step.valid.tolist() == [True, True, False, False]
    assert step.truncated.tolist() == [False, False, True, True]
    assert stepped(envs).valid.all()
    assert (envs.num_restarts, envs.num_lost_episodes, envs.made_anew()) == (1, 2, [2, 3])
    assert "started again, do not come to where they were: they begin new episodes" in capsys.readouterr().err


def test_a_step_that_kills_whoever_does_it_is_not_done_a_third_time(pool, capsys):
    env = EnvConfig(id=COUNTED.id, backend="pool", num_workers=2, kwargs={"deadly": [60, 0, 5]})
    envs = pool(env=env, max_restarts=2)
    envs.reset(SEEDS)
    for _ in range(4):
        assert stepped(envs).valid.all()
    assert stepped(envs).valid.tolist() == [True, True, False, False]
    assert stepped(envs).valid.all()
    assert (envs.num_restarts, envs.num_lost_episodes) == (2, 2)
    said = capsys.readouterr().err
    assert "(restart 1 of 2), and repeats its steps" in said
    assert "(restart 2 of 2), with new episodes" in said
