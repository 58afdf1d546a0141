"""eval.env and eval.seed: evaluations in other environments, or on other episodes, than training."""

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from ddppo import api
from ddppo.config import rules
from ddppo.config.settings import Config, eval_env, eval_seed
from ddppo.errors import ConfigError
from ddppo.launch import checks
from ddppo.loop.evaluation import Evaluator
from ddppo.policies.playing import task_of

HERE = "tests.unit.test_eval_env"


class Level(gym.Env):
    """Observes its level; an episode is as long as `steps`."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, level=1, steps=3, actions=2, render_mode=None):
        self.level, self.steps, self.render_mode = level, steps, render_mode
        self.action_space = gym.spaces.Discrete(actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.done = 0
        return np.array([self.level], np.float32), {}

    def step(self, action):
        self.done += 1
        return np.array([self.level], np.float32), float(self.level), self.done >= self.steps, False, {}


if "EvalLevel-v0" not in gym.registry:  # the trial of a task imports this file by its name
    gym.register("EvalLevel-v0", f"{HERE}:Level")


def configured(given, **env):
    config = Config()
    config.env.id, config.eval.env = "EvalLevel-v0", given
    config.env.kwargs = {"level": 1}
    for name, value in env.items():
        setattr(config.env, name, value)
    return config


@pytest.mark.parametrize("backend", ["sync", "pool", "auto"])
def test_evaluations_have_the_keywords_of_both_and_training_its_own(backend):
    config = configured({"kwargs": {"level": 5}}, backend=backend)
    config.env.kwargs["steps"] = 4
    rules.validate(config)
    policy = SimpleNamespace(model=torch.nn.Linear(1, 1))
    batch = Evaluator(policy, config)._batch(2, 0)
    try:
        obs, _ = batch.reset([1, 2])
        assert obs.tolist() == [[5], [5]]
        ends = [batch.step(np.array([0, 0])).ended.tolist() for _ in range(4)]
        assert ends == [[], [], [], [0, 1]]
    finally:
        batch.close()
    assert config.env.kwargs == {"level": 1, "steps": 4}
    task = task_of(eval_env(config), render_mode="rgb_array")
    assert task.reset(seed=0)[0] == [5]
    task.close()


def test_a_run_is_evaluated_there_at_its_end_and_by_evaluate(tmp_path):
    settings = ["env=cartpole", "ppo.total_steps=512", "eval.final_episodes=3", "log.tensorboard=false"]
    here = [f"hydra.run.dir={tmp_path}", "eval.env.max_episode_steps=7", "eval.seed=5", "log.progress=none"]
    run = api.train([*settings, *here])
    final = run["eval"]["final"]
    assert final["length_mean"] == 7
    found = api.evaluate(run, episodes=3)
    assert (found["lengths"], found["seed"]) == ([7, 7, 7], 5)


def test_the_seed_of_evaluations_is_the_runs_unless_another_is_given():
    config = configured({})
    config.seed = 3
    assert (eval_env(config) is config.env, eval_seed(config)) == (True, 3)
    config.eval.seed = 0
    assert eval_seed(config) == 0


@pytest.mark.parametrize(
    ("given", "env", "said"),
    [
        ({"levle": 3}, {}, "eval.env.levle=3: evaluations may differ in id, kwargs, max_episode_steps, wrappers;"),
        ({"kwarg": {}}, {}, "(did you mean kwargs?)"),
        ({"kwargs": 3}, {}, "eval.env.kwargs=3: must be keyword arguments"),
        ({"max_episode_steps": 0}, {}, "eval.env.max_episode_steps=0: must be a whole number of at least 1"),
        ({"max_episode_steps": True}, {}, "must be a whole number"),
        ({"wrappers": ["Noisy"]}, {}, "[Noisy]: must be an import path"),
        ({"max_episode_steps": 3}, {"backend": "device"}, "with env.backend=device: evaluations have the environments"),
        ({"max_episode_steps": 3}, {"urls": ["ws://x:1"], "backend": "remote"}, "with env.urls=[ws://x:1]"),
    ],
)  # fmt: skip
def test_what_evaluations_cannot_have_is_one_sentence(given, env, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        rules._check_eval_env(configured(given, **env))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kwargs": {"actions": 3}}, "a policy of EvalLevel-v0 cannot act there: "),
        ({"kwargs": {"lvl": 3}}, "EvalLevel-v0 does not accept this keyword (did you mean level?)"),
        (
            {"kwargs": {"render_mode": "rgb_array"}},
            "training renders nothing; evaluation chooses a mode itself",
        ),
    ],
)
def test_an_environment_in_which_the_policy_cannot_act_is_refused_before_training(given, said):
    config = configured(given)
    spec = checks.dry_run(config.env, "cpu").spec
    with pytest.raises(ConfigError, match=re.escape(said)) as e:
        checks._check_eval_env(config, spec)
    assert str(e.value).startswith(f"eval.env={given}")


def test_a_task_with_an_evaluation_of_its_own_refuses(monkeypatch):
    monkeypatch.setattr(checks, "evaluator_of", lambda spec: type("Own", (Evaluator,), {}))
    with pytest.raises(
        ConfigError, match="has no effect with EvalLevel-v0, which is evaluated in environments of its"
    ):
        checks._check_eval_env(configured({"max_episode_steps": 3}), None)
