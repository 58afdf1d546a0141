"""Rollouts of environments on an accelerator stay there, and so does learning from them, but for a few numbers."""

import pytest

from tests.device import checks, rollout_checks
from tests.device.support import called_on_standin
from tests.support import CHECKOUT


@pytest.mark.parametrize("settings", [{}, {"normalized": True}, {"memory": "gru", "memory_size": 8}])
def test_a_rollout_copies_once_to_the_host_and_equals_that_of_the_cpu(settings):
    apart, has_same_episodes, waits = called_on_standin(rollout_checks.compared_rollouts, settings)
    assert apart < 1e-5
    assert has_same_episodes
    # One copy in each of the two rollouts, of rewards, flags and metrics together.
    assert waits == 2 * ["_to_copy ddppo/ppo/device_collector.py"]


SHORT = ("env.max_episode_steps=5", "ppo.rollout_steps=8", "ppo.total_steps=64", "ppo.num_minibatches=2",
         "ppo.num_epochs=2")  # fmt: skip
# Of each: the settings, and the most host copies of an iteration, as the table of docs/devices.md has them.
CASES = {
    "cartpole_device": (("env=cartpole_device", *SHORT), 7),
    "quadruped": (("env=quadruped", *SHORT), 9),
    "normalisers and lstm": (
        ("env=cartpole_device", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "model=lstm",
         "model.memory_size=8", *SHORT), 12,
    ),
    "grpo on cartpole_device": (("env=cartpole_device", *SHORT, "ppo=grpo", "ppo.group_size=2"), 19),
    "reinforce on cartpole_device": (
        ("env=cartpole_device", "env.max_episode_steps=5", "algorithm=reinforce", "algorithm.rollout_steps=8",
         "algorithm.total_steps=64"), 13,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learning_from_environments_there_equals_that_on_the_cpu_and_copies_little(case):
    settings, most = CASES[case]
    found = called_on_standin(checks.compared, *settings)
    assert found["parameters"] < 1e-6, found["metrics"]
    assert sum(found["copies"].values()) <= most, found["copies"]


@pytest.mark.parametrize("case", ["cartpole_device", "quadruped"])
def test_recorded_kernels_act_and_learn_as_the_eager_code_of_the_cpu_and_copy_no_more(case):
    settings, most = CASES[case]
    found = called_on_standin(checks.compared_when_recorded, *settings)
    assert found["graphs"] == "minibatches, acting, environments"
    assert found["parameters"] < 1e-5, found["metrics"]
    assert sum(found["copies"].values()) <= most, found["copies"]


@pytest.mark.parametrize("case", CASES)
def test_no_step_of_a_rollout_and_no_epoch_waits_for_the_device(case):
    settings, most = CASES[case]
    assert 0 < called_on_standin(checks.trained_without_waiting, *settings) <= most


def test_no_recorded_step_waits_for_the_device():
    settings, most = CASES["quadruped"]
    assert 0 < called_on_standin(checks.recorded_without_waiting, *settings) <= most


def test_a_wait_within_a_step_is_an_error_there():
    with pytest.raises(AssertionError, match="called a synchronizing operation: _local_scalar_dense"):
        called_on_standin(rollout_checks.waits_in_a_step)


def test_the_page_states_these_numbers():
    page = (CHECKOUT / "docs" / "devices.md").read_text()
    for case, (_, most) in CASES.items():
        assert f"| {case} | 0 | {most} |" in page


def test_with_an_eager_step_acting_and_environments_are_recorded():
    settings, most = CASES["quadruped"]
    found = called_on_standin(checks.compared_when_recorded, *settings, "compile=auto")
    assert found["graphs"] == "acting, environments"
    assert found["parameters"] < 1e-5, found["metrics"]
    assert sum(found["copies"].values()) <= most, found["copies"]


def test_what_tests_on_a_gpu_call_composes_settings_in_pytests_own_process():
    assert checks.composed(*CASES["quadruped"][0], "device=cpu").env.id == "ddppo.envs.native_tasks:Quadruped"
