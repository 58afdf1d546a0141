"""A process of environments that is lost and started again: what its step becomes, and whom it holds up."""

import os
import signal

import numpy as np
import pytest
import torch

from ddppo.collectives import Group
from ddppo.config import EnvConfig, ModelConfig
from ddppo.distributed.programs.central import CentralCollector
from ddppo.envs import make_vec_env, probe
from ddppo.envs.faults import EnvNames
from ddppo.envs.pool.observers import Observers
from ddppo.errors import EnvWorkerLost
from ddppo.models import build_model
from tests.distributed.counted import SCALE

COUNTED = EnvConfig(id="tests.distributed.counted:Counted-v0", backend="pool", num_workers=2)
SEEDS = [20, 40, 60, 80]
DEFAULTS = {"rank": 0, "cores": 1, "timeout_s": 20.0, "max_restarts": 1}


@pytest.fixture
def closing():
    made = []
    yield lambda envs: made.append(envs) or envs
    for envs in made:
        envs.close()


@pytest.fixture
def pool(closing):
    return lambda **more: closing(make_vec_env(COUNTED, range(4), **(DEFAULTS | more)))


def worker(envs, k):
    return envs._stepper.workers[k].process.pid


def at(obs):
    return (obs / SCALE).astype(int).tolist()


def stepped(envs):
    return envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.parametrize(("number", "timeout_s"), [(signal.SIGKILL, 20.0), (signal.SIGSTOP, 3.0)])
def test_the_step_under_way_becomes_a_pseudo_step_that_cuts_the_episode(pool, capsys, number, timeout_s):
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
    assert said.endswith("; it is started again (restart 1 of 1)\n")


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
    assert [row[1:] for row in at(obs)] == [[0, 0]] * 4
    assert stepped(envs).valid.all()


def test_nobody_waits_for_an_observer_that_is_started_again(closing):
    envs = closing(Observers(COUNTED, probe(COUNTED), EnvNames(range(4), 0), 20.0, 1, max_restarts=1))
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
    envs = closing(Observers(env, probe(env), EnvNames(range(2), 0), 20.0, 1))
    model = build_model(envs.spec, ModelConfig(hidden_sizes=[4]), 0, torch.float64)
    collector = CentralCollector(
        env=envs, model=model, normalizer=None, rollout_steps=40, first_env=0, device=torch.device("cpu"),
        dtype=torch.float64, group=Group(), max_wait_s=0.0,
    )  # fmt: skip
    noted = []
    note = collector._note
    collector._note = lambda k, row, ends: (noted.append((k, row)), note(k, row, ends))
    collector.reset([0, 1])
    collector.collect(np.random.default_rng(0).random((40, 2, 1)))
    before = noted[: noted.index((1, 39))]
    assert sum(k == 0 for k, _ in before) < 20
    assert sorted(noted) == [(k, row) for k in (0, 1) for row in range(40)]
