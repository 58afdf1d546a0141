"""A task is tried in a process of its own before training: what that finds, and what it does not reach."""

import itertools
import os
import random
import signal
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Text

from ddppo.config.settings import EnvConfig
from ddppo.envs.probing import dry_run as dry_run_module
from ddppo.envs.probing.dry_run import dry_run
from ddppo.errors import ConfigError
from tests.support import NEVER_S, wait_until

COUNTER = itertools.count()


class Own(gym.Env):
    """Does `does(self, k)` before its step k, and returns what that returns, if anything."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float32), Discrete(3)

    def __init__(self, does=lambda self, k: None, resets=lambda self: None):
        self.does, self.resets, self.num_steps = does, resets, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets(self)
        return self._observed(), {}

    def step(self, action):
        self.num_steps += 1
        returned = self.does(self, self.num_steps)
        return (self._observed(), 1.0, False, False, {}) if returned is None else returned

    def _observed(self):
        return self.np_random.standard_normal(2).astype(np.float32)


@pytest.fixture
def own(monkeypatch):
    """Register a task that does something of its own; return its settings."""

    def register(does=lambda self, k: None, resets=lambda self: None, cls=Own):
        spec = gym.envs.registration.EnvSpec("Own-v0", lambda: cls(does, resets))
        monkeypatch.setitem(gym.registry, "Own-v0", spec)
        return EnvConfig(id="Own-v0")

    return register


@pytest.fixture
def hang(monkeypatch, tmp_path):
    """Return what a task hangs in. Limits begin then: before that a busy machine may take as long as it likes."""
    mark, ours = tmp_path / "hangs", os.getpid()

    def monotonic():
        if os.getpid() == ours:  # and not the task's
            wait_until(mark.exists, "task that hangs")
        return time.monotonic()

    def hang():
        mark.touch()
        time.sleep(NEVER_S)

    monkeypatch.setattr(dry_run_module, "time", SimpleNamespace(monotonic=monotonic))
    return hang


def in_step(number, do):
    return lambda self, k: do() if k == number else None


def test_a_task_that_keeps_its_contract_is_tried_in_silence(own, capfd):
    pids = []
    found = dry_run(own(lambda self, k: print("a step"), lambda self: pids.append(os.getpid())))
    assert found.warnings == ()
    assert found.why_inexact is None
    assert found.spec.action.sizes == (3,)
    assert pids == []  # in another process
    assert "a step" not in capfd.readouterr().out


def test_one_that_computes_with_torch_is_tried_after_torch_has_computed_here(own):
    torch.ones(400, 400) @ torch.ones(400, 400)  # starts threads, where there are cores for them

    def compute(self, k):
        torch.ones(400, 400) @ torch.ones(400, 400)

    assert dry_run(own(compute)).warnings == ()


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda: os._exit(7), "its process ended with exit code 7, after 6 steps at random"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its process ended with signal 9, after 6 steps at"),
        (
            lambda: (np.full(2, np.inf, np.float32), 0.0, False, False, {}),
            "it returned inf in the observation of step 5",
        ),
        (
            lambda: (np.zeros(2, np.float32), np.nan, False, False, {}),
            "it returned nan as the reward of step 5",
        ),
        (lambda: 1 / 0, "it raised ZeroDivisionError in step 5: division by zero"),
        (lambda: exit(3), "it raised SystemExit in step 5: 3"),
        (
            lambda: (np.zeros(3, np.float32), 0.0, False, False, {}),
            "it returned an observation of shape (3,) in",
        ),
        (
            lambda: (np.zeros(2, np.float32), "much", False, False, {}),
            "it returned 'much' of type str as the reward in step 5",
        ),
    ],
)
def test_one_that_breaks_its_contract_in_its_later_step_is_refused(own, do, said):
    env = own(in_step(7, do))
    with pytest.raises(ConfigError) as refused:
        dry_run(env)
    assert str(refused.value).startswith(f"env.id=Own-v0 cannot be trained on: {said}")


def test_one_that_fails_once_and_not_again_is_tried_once_more(own, tmp_path, capsys):
    def fail_once():
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ConnectionError("the server was away")

    assert dry_run(own(in_step(3, fail_once))).spec.obs.shape == (2,)
    err = capsys.readouterr().err
    assert (
        "cannot be trained on: it raised ConnectionError in step 1: the server was away, in fail_once ("
        in err
    )
    assert err.endswith(": it is tried once more\n")


def test_one_that_hangs_in_a_later_step_is_said_to_be_untried(own, hang, monkeypatch):
    monkeypatch.setattr(dry_run_module, "_ENOUGH_S", 0.3)
    found = dry_run(own(in_step(5, hang)))
    assert found.why_inexact is None
    (said,) = found.warnings
    assert said.startswith(
        "env.id=Own-v0 was tried for 0.3 s, which ended after 4 steps at random: its further steps"
    )
    assert "are untried" in said


def test_one_that_resets_slowly_is_reset_a_few_times_only(own, monkeypatch, tmp_path):
    def noted(self):
        with (tmp_path / "resets").open("a") as file:
            file.write("x")

    def num_resets():
        (tmp_path / "resets").unlink(missing_ok=True)
        ends = (np.zeros(2, np.float32), 1.0, True, False, {})
        assert dry_run(own(lambda self, k: ends, noted)).warnings == ()
        return len((tmp_path / "resets").read_text())

    assert num_resets() > 50
    monkeypatch.setattr(dry_run_module, "_SECONDS", 0.0)  # of which any reset takes more
    assert num_resets() <= 12


def interrupt():
    raise KeyboardInterrupt


def test_one_that_breaks_off_the_trial_otherwise_is_said_to_be_untried(own):
    (said,) = dry_run(own(in_step(5, interrupt))).warnings
    assert said.startswith(
        "the dry run of env.id=Own-v0 broke off after 4 steps at random, by KeyboardInterrupt, in inter"
    )
    with pytest.raises(ConfigError, match="cannot be made and started: KeyboardInterrupt, in interrupt"):
        dry_run(own(resets=lambda self: interrupt()))


def test_one_that_hangs_in_its_reset_is_told_of_and_then_refused(own, hang, monkeypatch, capsys):
    monkeypatch.setattr(dry_run_module, "_ENOUGH_S", 0.1)
    monkeypatch.setattr(dry_run_module, "_START_S", 0.3)
    with pytest.raises(ConfigError, match=r"does not answer, in its first reset, within 0.3 s: it hangs"):
        dry_run(own(resets=lambda self: hang()))
    assert "has not answered for 0.1 s, in its first reset; it is given 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("does", "resets", "where"),
    [
        (
            lambda self, k: (np.zeros(2, np.float32), random.random(), False, False, {}),
            lambda self: None,
            "differed in the reward of step 1",
        ),
        (
            lambda self, k: None,
            # The trial makes its two environments in one process, so a count tells them apart.
            lambda self: self.np_random.random(next(COUNTER) + 1),
            "observed",
        ),
        (lambda self, k: (np.full(2, k, np.float32), 0.0, False, False, {}), lambda self: None, "of step 1"),
    ],
    ids=["a generator of all", "resets that differ", "resets that forget to set something back"],
)
def test_one_whose_seed_does_not_decide_all_is_warned_of(own, does, resets, where):
    (said,) = dry_run(own(does, resets)).warnings
    assert said.startswith(
        "env.id=Own-v0: two environments that were reset with one seed and did the same actions "
    )
    assert where in said
    assert "draw from self.np_random alone" in said


def test_statistics_that_a_reset_leaves_as_they_are_are_warned_of(own):
    def learn(self, k):
        self.obs_mean = getattr(self, "obs_mean", 0.0) * 0.9 + self.np_random.random()

    (said,) = dry_run(
        own(learn, lambda self: setattr(self, "obs_mean", getattr(self, "obs_mean", 0.0)))
    ).warnings
    assert said.startswith(
        "env.id=Own-v0: Own.obs_mean of the task changed over an episode, and a reset with the same"
    )


class Speaking(gym.Env):
    """A task of text that answers `returned` to its third step."""

    observation_space, action_space = Text(20), Text(5)
    returned = 0

    def __init__(self, does, resets):
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say", {}

    def step(self, action):
        self.num_steps += 1
        return (self.returned if self.num_steps == 3 else "more"), 0.0, False, False, {}


def test_a_task_of_text_is_stepped_too(own):
    with pytest.raises(
        ConfigError, match="it returned 0 of type int as an observation in step 3, its space says Text"
    ):
        dry_run(own(cls=Speaking))


def test_a_batch_of_its_own_is_stepped_too():
    with pytest.raises(ConfigError, match=r"raised ArithmeticError in step 3: the wheel came off"):
        dry_run(
            EnvConfig(
                id="tests.fault.wrong_env:WrongBatch-v0", backend="gym_vector", kwargs={"fault": "raise"}
            )
        )


def test_where_processes_do_not_fork_the_trial_is_a_program(own, monkeypatch):
    monkeypatch.setattr(dry_run_module, "FORKS", False)
    env = EnvConfig(id="tests.fault.wrong_env:Wrong-v0", kwargs={"fault": "die", "step": 3})
    with pytest.raises(ConfigError, match="its process ended with exit code 7, after 4 steps at random"):
        dry_run(env)
    (said,) = dry_run(own()).warnings
    assert said == "env.id=Own-v0 is registered in this process only: its steps are untried"
