"""What a pool of processes does when one of them, or an environment in it, goes wrong; and that it leaves nothing."""

import os
import signal
import socket
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from test_envs_tasks import task

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends import pool as pool_module
from ddppo.envs.backends.pool_memory import receive_byte
from ddppo.envs.backends.pool_process import StepCost, choose_num_workers
from ddppo.envs.make import make_vec_env
from ddppo.errors import EnvRaised, EnvWorkerLost
from ddppo.processes.forking import ForkServer

SHORT = {"id": "CartPole-v1", "max_episode_steps": 15}


@pytest.fixture
def pool():
    """Make pools that are closed after the test."""
    made = []

    def make(env, indices, **more):
        made.append(make_vec_env(env, indices, **{"rank": 3, "cores": 2, **more}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def of_workers(num_workers, **settings):
    return EnvConfig(backend="pool", num_workers=num_workers, **{**SHORT, **settings})


def faulty(fault, num_workers=2):
    """A task whose environment that was reset with seed 1 goes wrong in step 2."""
    return task("Faulty", backend="pool", num_workers=num_workers, kwargs={"fault": fault})


def step_often(envs):
    for _ in range(100):
        envs.step(np.zeros(envs.num_envs, np.int64))


def pids(envs):
    return [worker.process.pid for worker in envs._stepper.workers]


def test_an_environment_that_ends_its_process_is_named_with_its_exit_code_and_those_it_had_beside_it(pool):
    envs = pool(faulty("exit"), range(6, 10))
    envs.reset([0, 0, 0, 1])
    with pytest.raises(
        EnvWorkerLost,
        match=r"^environment 9 of rank 3, in step 2: the process of environments 8 to 9 of rank 3 ended "
        r"\(exit code 7\)",
    ):
        step_often(envs)


def test_a_process_that_is_killed_does_not_hang_its_rank(pool):
    envs = pool(of_workers(2), range(4))
    envs.reset(range(4))
    os.kill(pids(envs)[0], signal.SIGKILL)
    with pytest.raises(
        EnvWorkerLost, match=r"the process of environments 0 to 1 of rank 3 ended \(exit code -9\)"
    ):
        step_often(envs)


def test_a_fork_server_that_is_killed_is_told_of(pool):
    envs = pool(of_workers(2), range(4))
    envs.reset(range(4))
    os.kill(envs._stepper.server.pid, signal.SIGKILL)
    with pytest.raises(
        EnvWorkerLost,
        match=r"^environments 0 to 3 of rank 3, .* fork from ended with signal 9, and they with it$",
    ):
        step_often(envs)


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_an_exception_in_an_environment_is_told_with_its_rank_its_step_and_its_own_traceback(backend):
    env = task("Faulty", backend=backend, kwargs={"fault": "raise"})
    envs = make_vec_env(env, range(6, 8), rank=3, cores=2)
    envs.reset([0, 1])
    with pytest.raises(EnvRaised) as caught:
        step_often(envs)
    envs.close()
    said, heading, *frames, error = str(caught.value).splitlines()
    assert said == "environment 7 of rank 3 raised ArithmeticError in step 2: the wheel came off"
    assert heading == "Traceback (most recent call last):"
    assert error == "ArithmeticError: the wheel came off"
    assert ["test_envs_tasks.py" in line for line in frames if line.startswith("  File ")] == [True]


def test_of_several_exceptions_in_a_step_the_first_environments_is_told_as_if_stepped_in_turn(pool):
    envs = pool(faulty("raise"), range(4))
    envs.reset([0, 1, 1, 1])
    with pytest.raises(EnvRaised, match=r"^environment 1 of rank 3 raised ArithmeticError in step 2"):
        step_often(envs)


def test_an_environment_that_hangs_is_named_and_killed(pool, monkeypatch):
    monkeypatch.setattr("ddppo.envs.backends.pool._CLOSE_S", 0.2)
    envs = pool(faulty("hang"), range(4), timeout_s=5.0)
    envs.reset([0, 0, 1, 0])
    with pytest.raises(
        EnvWorkerLost,
        match=r"^environment 2 of rank 3, in step 2: no answer within 5 s; it hangs, or a step of "
        r"environments 2 to 3 of rank 3, one after another, needs longer$",
    ):
        step_often(envs)
    workers = envs._stepper.workers
    envs.close()
    assert workers[0].process.returncode is not None
    assert workers[1].process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_processes_of_environments_leave_signals_to_the_rank(pool, number):
    envs = pool(of_workers(2), range(2))
    envs.reset([0, 1])
    for pid in (envs._stepper.server.pid, *pids(envs)):
        assert os.getsid(pid) == pid  # so that Ctrl-C in the rank's terminal does not reach it
        os.kill(pid, number)
    step_often(envs)


@pytest.mark.parametrize("num_workers", [1, 3, 5])
def test_unequal_shares_give_the_same_as_environments_in_turn(pool, num_workers):
    played = []
    for env in (of_workers(num_workers), EnvConfig(backend="sync", **SHORT)):
        envs = pool(env, range(5))
        obs, _ = envs.reset(range(5))
        seen = [obs.copy()]
        for row in np.random.default_rng(0).integers(0, 2, (40, 5)):
            step = envs.step(row)
            seen += [step.obs.copy(), step.final_obs, step.rewards.copy(), step.truncated.copy()]
        played.append(seen)
    for pooled, in_turn in zip(*played, strict=True):
        np.testing.assert_array_equal(pooled, in_turn)


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_task_may_keep_the_action_it_was_given(pool, backend):
    envs = pool(task("Keeping", backend=backend), range(2))
    envs.reset([0, 1])
    seen = [envs.step(np.full((2, 1), k, np.float32)).obs[:, 0].tolist() for k in (1, 2, 3)]
    assert seen == [[0, 0], [1, 1], [2, 2]]


def test_a_rank_that_has_threads_has_its_workers_forked_from_a_fresh_process(pool, monkeypatch):
    monkeypatch.setattr(ForkServer, "forked", lambda: None)
    envs = pool(task("Counting", backend="pool", num_workers=2), range(2))
    envs.reset([0, 1])
    assert envs.step(np.zeros(2, np.int64)).obs.tolist() == [[1], [1]]
    assert "torch" not in Path(f"/proc/{pids(envs)[0]}/maps").read_text()


def test_a_pool_that_is_closed_has_closed_its_environments_and_ended_its_processes(pool, tmp_path):
    envs = pool(task("Closing", backend="pool", num_workers=2, kwargs={"folder": str(tmp_path)}), range(4))
    workers, server, pid_of = (
        envs._stepper.workers,
        envs._stepper.server,
        lambda path: path.name.split("-")[0],
    )
    envs.close()
    closed = [pid_of(path) for path in tmp_path.iterdir() if pid_of(path) != str(os.getpid())]
    assert sorted(closed) == sorted(2 * [str(worker.process.pid) for worker in workers])
    assert [worker.process.returncode for worker in workers] == [0, 0]
    assert not server.is_usable


def test_a_hundred_environments_on_two_cores_are_an_ordinary_load(pool, monkeypatch):
    # The cost of CartPole's step on a machine with nothing else to do: a busy one can measure that it sleeps.
    cost = StepCost(20e-6, 20e-6)
    monkeypatch.setattr(pool_module, "choose_num_workers", lambda _, *sizes: choose_num_workers(cost, *sizes))
    envs = pool(of_workers(None), range(100))
    assert len(envs._stepper.workers) < 10
    envs.reset(range(100))
    step_often(envs)


def test_a_process_that_waits_leaves_its_core_to_others():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300_000))
        start, cpu = time.monotonic(), time.process_time()
        with pytest.raises(BlockingIOError):
            receive_byte(ours, pool_module._SPIN_S)
        assert time.process_time() - cpu < 0.1 * (time.monotonic() - start)


@pytest.mark.parametrize(("num_workers", "spin_s"), [(2, pool_module._SPIN_S), (3, 0.0)])
def test_processes_spin_only_if_each_has_a_core(pool, num_workers, spin_s):
    envs = pool(of_workers(num_workers), range(3), cores=2)
    assert [worker.spin_s for worker in envs._stepper.workers] == [spin_s] * num_workers


def test_environments_that_sleep_do_so_side_by_side(pool):
    env = EnvConfig("ddppo/Synthetic-v0", backend="pool", kwargs={"step_time_s": 0.05})
    envs = pool(env, range(20))
    assert len(envs._stepper.workers) == 20
