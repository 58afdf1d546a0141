"""A hundred games of CAGE 2 in processes of a pool: the numbers of one batch, and nothing left of those killed."""

import os
import signal

import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.errors import EnvWorkerLost
from tests.support import wait_until

NUM_ENVS = 100


def step_often(envs):
    for _ in range(100):
        envs.step(np.zeros(NUM_ENVS, np.int64))


def played(backend):
    envs = make_vec_env(
        EnvConfig("ddppo/CAGE2-v0", backend=backend, kwargs={"episode_steps": 6}), range(NUM_ENVS), 0, 2
    )
    obs, _ = envs.reset(range(NUM_ENVS))
    seen = [obs.copy()]
    for actions in np.random.default_rng(0).integers(0, 145, (15, NUM_ENVS)):
        step = envs.step(actions)
        seen += [step.obs.copy(), step.rewards.copy(), step.ended.copy(), step.final_obs.copy()]
    envs.close()
    return seen


def test_a_hundred_games_in_processes_are_those_of_one_batch():
    for pooled, batched in zip(played("pool"), played("batched"), strict=True):
        np.testing.assert_array_equal(pooled, batched)


@pytest.mark.slow
def test_nothing_is_left_of_a_hundred_games_whose_processes_are_killed():
    before = set(os.listdir("/dev/shm"))
    env = EnvConfig("ddppo/CAGE2-v0", backend="pool", num_workers=NUM_ENVS)
    envs = make_vec_env(env, range(NUM_ENVS), rank=0, cores=2)
    envs.reset(range(NUM_ENVS))
    processes = [worker.process for worker in envs._stepper.workers]
    assert len(processes) == NUM_ENVS
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EnvWorkerLost, match=r"exit code -9"):
        step_often(envs)
    envs.close()
    # Other programs of this machine may have files there that come and go.
    wait_until(lambda: set(os.listdir("/dev/shm")) <= before, "end of what is new in /dev/shm")
    assert all(process.returncode == -signal.SIGKILL for process in processes)
