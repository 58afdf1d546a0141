"""What environments do wrong is told by environment and step, whoever steps them."""

import os

import numpy as np
import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.envs.make import make_eval_env, make_vec_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.envs.vec_env import EnvNames, check_finite, check_masks
from ddppo.errors import ConfigError, EnvError, EnvOutputError, EnvRaised, in_one_line, own_traceback
from ddppo.loop.evaluation import Policy, play_episodes
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model
from ddppo.ppo.collector import Collector
from ddppo.spaces import ActionSpec

NAMES = EnvNames(range(6, 9), rank=2)
SEEN = {
    "raise": "{name} raised ArithmeticError in step 13: the wheel came off\nTraceback",
    "leave": "{name} raised SystemExit in step 13: 0\nTraceback",
    "shape": "{name} returned an observation of shape (3,) in step 13, its space says (2,)",
    "text": "{name} returned an observation of type str ('left') in step 13, its space says numbers of shape (2,)",
    "text reward": "{name} returned 'much' of type str as the reward in step 13, it must be one number (task Wrong-v0)",
    "nan": "{name} returned nan in the observation of step 13 (entry 1 of 2, flattened): nothing can be learned",
    "final nan": "{name} returned nan in the observation of step 13 (entry 0 of 2, flattened): nothing can be learned",
    "nan in reset": "{name} returned nan in the observation of the reset after step 10 (entry 0 of 2, flattened)",
    "reward": "{name} returned -inf as the reward of step 13: nothing can be learned from it; mend the task",
    "mask": "{name} returned an action_mask in step 13 that forbids every choice: allow one at least",
}


def wrong(fault, backend="sync", **kwargs):
    return EnvConfig(id="tests.fault.wrong_env:Wrong-v0", backend=backend, kwargs={"fault": fault, **kwargs})


def collector(env, rollout_steps=8, kind=None):
    envs = make_vec_env(env, range(4, 6), rank=1, cores=1)
    small = settings_of("model", hidden_sizes=[8])
    model = build_model(envs.spec, small, 0, torch.float32) if kind is None else kind(envs.spec)
    made = Collector(
        envs,
        model,
        None,
        rollout_steps=rollout_steps,
        first_env=4,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    made.reset([0, 1])
    return made


def collect(made, rollouts=3):
    try:
        for _ in range(rollouts):
            made.collect(np.full((made.rollout_steps, 2, 1), 0.5))
    finally:
        made.env.close()


@pytest.mark.parametrize(
    ("fault", "backend"),
    [*((fault, "sync") for fault in SEEN), *((fault, "pool") for fault in ("raise", "leave", "shape"))],
)
def test_training_names_the_environment_its_rank_and_the_step_whichever_rollout_it_was_in(fault, backend):
    with pytest.raises(EnvError) as caught:
        collect(collector(wrong(fault, backend, seed=1)))
    assert str(caught.value).startswith(SEEN[fault].format(name="environment 5 of rank 1"))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "raise",
            "environments 4 to 5 of rank 1 raised ArithmeticError in step 3: the wheel came off\nTraceback",
        ),
        (
            "shape",
            "environments 4 to 5 of rank 1 returned observations of shape (2, 1) in step 3, their space says",
        ),
        ("rewards", "environments 4 to 5 of rank 1 returned rewards of shape (2, 1) in step 3, there are 2"),
        (
            "nan",
            "environment 5 of rank 1 returned nan in the observation of step 3 (entry 0 of 2, flattened)",
        ),
    ],
)
def test_a_batch_of_its_own_is_told_of_as_a_whole_unless_one_environment_is_to_blame(fault, said):
    env = EnvConfig(id="tests.fault.wrong_env:WrongBatch-v0", backend="gym_vector", kwargs={"fault": fault})
    with pytest.raises(EnvError) as caught:
        collect(collector(env))
    assert str(caught.value).startswith(said)


def test_an_environment_that_can_no_longer_be_made_in_its_process_says_why():
    with pytest.raises(EnvRaised) as caught:
        make_vec_env(wrong("make", "pool", owner=os.getpid()), range(4, 6), rank=1, cores=2)
    assert str(caught.value).startswith(
        "environment 4 of rank 1 raised OSError when it was made: the port is taken\n"
    )


@pytest.mark.parametrize("fault", SEEN)
def test_evaluation_says_that_the_environment_is_its_own(fault):
    env = make_eval_env(wrong(fault, step=7 if fault != "nan in reset" else 10), 2)
    model = build_model(env.spec, settings_of("model", hidden_sizes=[8]), 0, torch.float32)
    with pytest.raises(EnvError) as caught:
        play_episodes(Policy(model, None, env.spec), env, range(2), seed=0)
    expected = SEEN[fault].format(name="evaluation environment 0").replace("step 13", "step 7")
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("fault", ["raise", "shape", "text reward", "nan", "reward", "leave"])
def test_what_the_first_step_does_wrong_is_a_mistake_in_the_configuration_in_one_paragraph(fault):
    with pytest.raises(ConfigError) as caught:
        probe(wrong(fault, step=1))
    message = str(caught.value)
    assert message.startswith("env.id=tests.fault.wrong_env:Wrong-v0")
    assert "\n" not in message
    assert "Traceback" not in message
    if fault == "raise":
        assert "ArithmeticError: the wheel came off, in step (" in message
        assert "wrong_env.py:" in message


def test_a_video_of_a_task_that_raises_has_the_same_sentence():
    env = make_env(wrong("raise", step=1, seed=5))
    env.reset(seed=5)
    with pytest.raises(
        EnvRaised, match=r"^the environment raised ArithmeticError in step 1: the wheel came off"
    ):
        env.step(np.int64(0))


class StrictModel(ActorCritic):
    """Refuses what is not finite, as torch.distributions do."""

    def __init__(self, spec):
        super().__init__(spec, settings_of("model"))

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def value(self, obs):
        return torch.zeros(len(obs))

    def action_params(self, obs):
        if not obs.isfinite().all():
            raise ValueError("the model saw NaN")
        return torch.zeros(len(obs), 2)


def test_a_model_that_chokes_on_an_observation_does_not_hide_the_environment_that_returned_it():
    with pytest.raises(
        EnvOutputError, match="environment 4 of rank 1 returned nan in the observation of step 13"
    ):
        collect(collector(wrong("nan"), rollout_steps=16, kind=StrictModel))


def test_a_model_that_fails_by_itself_keeps_its_own_exception():
    class Broken(StrictModel):
        def action_params(self, obs):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        collect(collector(wrong("nan"), kind=Broken))


def test_the_first_fault_is_told_and_within_a_step_that_of_the_final_observation():
    obs, rewards = np.zeros((4, 3, 2)), np.zeros((4, 3))
    obs[3, 0], rewards[2, 2], obs[2, 1] = np.nan, np.inf, np.nan
    with pytest.raises(
        EnvOutputError, match="environment 8 of rank 2 returned inf as the reward of step 12:"
    ):
        check_finite(NAMES, 10, obs, rewards, [])
    ends = [(2, np.array([1]), np.array([[0.0, -np.inf]]))]
    with pytest.raises(
        EnvOutputError, match=r"environment 7 .* -inf in the observation of step 12 \(entry 1 of 2"
    ):
        check_finite(NAMES, 10, obs, rewards, ends)


def test_large_numbers_are_finite_though_their_sum_is_not():
    obs = np.full((4, 3, 2), 3e38, np.float32)
    check_finite(NAMES, 0, obs, np.full((4, 3), 1.7e308), [])


def test_each_component_of_an_action_needs_a_choice_but_not_where_no_action_is_taken():
    masks = np.ones((3, 3, 5), bool)
    masks[1, 2, 2:] = False
    action, acted_on = ActionSpec("multi_discrete", (2, 3)), np.ones((3, 3), bool)
    with pytest.raises(
        EnvOutputError, match=r"environment 8 of rank 2 .* in step 5 that forbids every choice of component 1"
    ):
        check_masks(NAMES, 4, masks, acted_on, action)
    acted_on[1, 2] = False
    check_masks(NAMES, 4, masks, acted_on, action)


def test_a_single_environment_and_those_of_evaluation_have_names_too():
    assert EnvNames(range(3, 4), rank=0).all() == "environment 3 of rank 0"
    assert NAMES.all() == "environments 6 to 8 of rank 2"
    assert EnvNames(range(2), rank=None).all() == "evaluation environments 0 to 1"
    assert EnvNames(range(2), rank=None)(1) == "evaluation environment 1"


def test_a_task_that_cannot_be_closed_costs_a_warning_not_the_run(caplog):
    env = make_env(wrong("none"))

    def close():
        raise OSError("the socket is gone")

    env.unwrapped.close = close
    env.close()
    assert "the environment raised OSError when it was closed: the socket is gone" in caplog.text


def raise_from_a_cause():
    try:
        np.zeros(2).reshape(3)
    except ValueError as e:
        raise KeyError("observation") from e


def test_a_users_own_traceback_keeps_causes_and_leaves_machinery_out():
    with pytest.raises(KeyError) as caught:
        raise_from_a_cause()
    lines = own_traceback(caught.value).splitlines()
    assert [line for line in lines if not line.startswith(" ") and "Error" in line] == [
        "ValueError: cannot reshape array of size 2 into shape (3,)",
        "KeyError: 'observation'",
    ]
    assert in_one_line(caught.value).startswith("KeyError: 'observation', in raise_from_a_cause (")
    with pytest.raises(TypeError) as caught:
        torch.nn.Linear("a", 2)
    assert "linear.py" not in own_traceback(caught.value)
