"""ddppo on the stand-in accelerator, which is as strict as CUDA and computes with the CPU: results equal the CPU's.

Then the host copies of an iteration, which docs/devices.md lists. The stand-in itself is tested first.
"""

import pytest

from tests.device import checks
from tests.device.support import called_on_standin


def test_a_network_learns_on_the_stand_in_to_the_bits_of_the_cpu():
    assert called_on_standin(checks.losses, "sim") == checks.losses("cpu")


def test_the_stand_in_refuses_what_cuda_refuses():
    answers = called_on_standin(checks.refused)
    assert {name: answer for name, answer in answers.items() if answer == "allowed"} == {}
    assert answers["gloo"].startswith("No backend type associated with device type sim")
    assert "Expected all tensors to be on the same device" in answers["two devices"]


def test_it_counts_what_a_host_would_wait_for_and_nothing_else():
    assert called_on_standin(checks.waits) == {
        "item": ["_local_scalar_dense"],
        "if": ["_local_scalar_dense"],
        "cpu": ["_to_copy"],
        "to": ["_to_copy"],
        "copy_": ["copy_"],
        "rows by mask": ["index"],
        "nonzero": ["nonzero"],
        "fill": [],
        "where": [],
        "compute": [],
        "from the host": [],
    }


def test_it_names_the_line_that_waits():
    assert called_on_standin(checks.place_of_item).rpartition(":")[0].endswith("tests/device/checks.py")


def test_without_float64_it_refuses_it_as_mps_does():
    with pytest.raises(AssertionError, match="Cannot convert a MPS Tensor to float64"):
        called_on_standin(checks.float64, STANDIN_WITHOUT_FLOAT64="1")


# -- One rank.


PPO = ("ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_minibatches=2", "ppo.num_epochs=2")
SHORT = ("ppo.rollout_steps=8", "ppo.total_steps=64", "ppo.num_minibatches=2", "ppo.num_epochs=1")
PICTURE = ("env=gym", "env.id=tests.golden.golden_parts:golden/Picture-v0", "model=cnn", "model.hidden_sizes=[16]",
           "model.conv_layers=[[4,4,2],[8,3,1]]")  # fmt: skip
CONTRACT = ("algorithm.rollout_steps=8", "algorithm.total_steps=96")
REPLAY = (*CONTRACT, "algorithm.learning_starts=32", "algorithm.batch_size=16")
# Of each: the settings, the steps of a rollout, and the host copies of an iteration beyond those of its steps.
CASES = {
    "ppo": (("env=cartpole", *PPO, "eval.final_episodes=2"), 16, 12),
    "normalisers": (("env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", *PPO), 2 * 16, 15),
    "masks": (("env=cartpole_masked", "model=mlp", *SHORT), 8, 12),
    "gru": (("env=cartpole", "model=gru", "model.memory_size=8", *SHORT), 8, 14),
    "lstm": (("env=cartpole", "model=lstm", "model.memory_size=8", *SHORT), 8, 14),
    "pixels": ((*PICTURE, *SHORT), 8, 12),
    # Fills memory that nothing has written with actions that do not exist.
    "grpo": (("env=cartpole", "ppo=grpo", "ppo.group_size=2", "env.max_episode_steps=8", "deterministic=true",
              "ppo.rollout_steps=12", "ppo.total_steps=80", "ppo.num_minibatches=1", "ppo.num_epochs=1"), 12, 16),
    "reinforce": (("env=cartpole", "algorithm=reinforce", *CONTRACT), 8, 14),
    "dqn": (("env=cartpole", "algorithm=dqn", *REPLAY), 2 * 8, 30),
    "sac": (("env=pendulum", "algorithm=sac", *REPLAY, "algorithm.rollout_steps=4", "algorithm.total_steps=48", "model.hidden_sizes=[16]"), 2 * 8, 30),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_rank_learns_there_what_it_learns_on_the_cpu(case):
    settings, of_steps, of_iteration = CASES[case]
    found = called_on_standin(checks.compared, *settings)
    assert found["num_iterations"] > 1
    assert found["parameters"] < 1e-6, found["metrics"]
    assert max(found["metrics"].values()) < 1e-3, found["metrics"]
    num_copies = sum(found["copies"].values())
    assert of_steps < num_copies <= of_steps + of_iteration, found["copies"]
