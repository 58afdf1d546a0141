"""ddppo on the stand-in accelerator, which is as strict as CUDA and computes with the CPU: results equal the CPU's.

Then the host copies of an iteration, which docs/devices.md lists. The stand-in itself is tested first.
"""

import json

import pytest
import torch

from ddppo.records import checkpoint
from tests.device import checks
from tests.device.support import called_on_standin, on_standin
from tests.support import CHECKOUT, TINY, lines, summary


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
        "from the host": ["from_host"],
        "copy_ from the host": ["from_host"],
        "numbers": ["from_host"],
        "from the host, not waited for": [],
        "scalars": [],
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
REPLAY = (
    *CONTRACT,
    "algorithm.learning_starts=32",
    "algorithm.batch_size=16",
    "algorithm.updates_per_step=0.25",
)
# Of each: the settings; the steps of an iteration; its copies to the host, of each step and beside those; and likewise
# its copies to the device, as the table of docs/devices.md has them.
CASES = {
    "ppo": (("env=cartpole", *PPO, "eval.final_episodes=2"), 16, 1, 11, 1, 7),
    "normalisers": (("env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", *PPO), 16, 1, 14, 1, 6),
    "gru, masks": (("env=cartpole_masked", "model=gru", "model.memory_size=8", *SHORT), 8, 1, 11, 1, 7),
    "lstm": (("env=cartpole", "model=lstm", "model.memory_size=8", *SHORT), 8, 1, 11, 1, 7),
    "pixels": ((*PICTURE, *SHORT), 8, 1, 11, 1, 7),
    # Episodes end before the rollout does. deterministic=true fills memory that was not written yet with actions that
    # do not exist.
    "grpo": (("env=cartpole", "ppo=grpo", "ppo.group_size=2", "env.max_episode_steps=8", "deterministic=true",
              "ppo.rollout_steps=12", "ppo.total_steps=80", "ppo.num_minibatches=1", "ppo.num_epochs=1"),
             8, 1, 18, 1, 7),
    "reinforce": (("env=cartpole", "algorithm=reinforce", *CONTRACT), 8, 1, 13, 1, 5),
    "dqn": (("env=cartpole", "algorithm=dqn", *REPLAY), 8, 2, 29, 1, 49),
    "sac": (("env=pendulum", "algorithm=sac", *REPLAY, "algorithm.rollout_steps=4", "algorithm.total_steps=48",
             "model.hidden_sizes=[16]"), 4, 2, 22, 1, 32),
}  # fmt: skip


@pytest.mark.quick_cases("ppo")
@pytest.mark.parametrize("case", CASES)
def test_one_rank_learns_there_what_it_learns_on_the_cpu(case):
    settings, num_steps, of_step, of_iteration, to_step, to_iteration = CASES[case]
    found = called_on_standin(checks.compared, *settings)
    assert found["num_iterations"] > 1
    assert found["parameters"] < 1e-6, found["metrics"]
    assert max(found["metrics"].values()) < 1e-3, found["metrics"]
    # The memory is reported, and the host waits no more often than the page says.
    to_device = {where: n for where, n in found["copies"].items() if where.startswith("from_host")}
    to_host = sum(found["copies"].values()) - sum(to_device.values())
    assert num_steps < to_host <= num_steps * of_step + of_iteration, found["copies"]
    assert sum(to_device.values()) <= num_steps * to_step + to_iteration, to_device
    assert found["memory"]


def test_the_page_states_these_numbers():
    page = (CHECKOUT / "docs" / "devices.md").read_text()
    for case, (_, _, *numbers) in CASES.items():
        assert f"| {case} | {' | '.join(map(str, numbers))} |" in page


@pytest.mark.quick_cases("normalisers")
@pytest.mark.parametrize("case", ["normalisers", "dqn"])
def test_a_device_without_float64_differs_by_rounding_alone(case):
    found = called_on_standin(checks.compared, *CASES[case][0], STANDIN_WITHOUT_FLOAT64="1")
    assert found["parameters"] < 1e-6, found["metrics"]
    assert max(found["metrics"].values()) < 1e-3, found["metrics"]


# -- Commands: runs, whose ranks may be many, and what is done with them afterwards.


RUN = (*TINY, "env=cartpole", "env.num_envs=4", "compile=off", "ppo.lr_schedule=none", *PPO)


def parameters(run_dir):
    state = checkpoint.load(checkpoint.last(run_dir / "checkpoints"))
    return torch.cat([x.flatten() for x in state["model"].values()])


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Return the parameters that one rank learns on the CPU."""
    run_dir = tmp_path_factory.mktemp("cpu") / "run"
    assert on_standin("ddppo.train", *RUN, "device=cpu", run_dir=run_dir).code == 0
    return parameters(run_dir)


@pytest.mark.quick_cases("shm")
@pytest.mark.parametrize(
    ("settings", "collective"),
    [
        (["dist.collective=gloo"], "gloo"),
        (["dist.collective=shm"], "shm"),
        (["distributed=sync_actors"], "shm"),
        (["distributed=async_actors", "dist.max_lag=0", "ppo.normalize_obs=true"], "sockets"),
    ],
    ids=["gloo", "shm", "sync_actors", "async_actors"],
)
def test_two_ranks_that_share_a_device_learn_there_what_one_learns_on_the_cpu(
    settings, collective, on_cpu, tmp_path
):
    args = (*RUN, *settings, "dist.world_size=2", "resume_state=approximate")
    done = on_standin("ddppo.train", *args, "dist.share_device=true", run_dir=tmp_path / "run")
    assert done.code == 0, done.stderr
    derived = summary(tmp_path / "run")["derived"]
    assert (derived["device"], derived["collective"]) == ("stand-in accelerator", collective)
    ranks = {each["rank"]: "dist/device_memory" in each for each in lines(tmp_path / "run")}
    if collective == "sockets":  # other actors than one rank's environments, so other numbers
        assert on_standin("ddppo.train", *args, "device=cpu", run_dir=tmp_path / "cpu").code == 0
        on_cpu = parameters(tmp_path / "cpu")
    else:
        assert ranks == {0: True, 1: True}
    assert torch.allclose(parameters(tmp_path / "run"), on_cpu, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_run_there_goes_on_to_the_bit_and_is_evaluated_and_exported_anywhere(tmp_path):
    def trained(folder, *settings):
        done = on_standin("ddppo.train", *settings, run_dir=tmp_path / folder)
        assert done.code == 0, done.stderr
        return summary(tmp_path / folder)

    # In one go, and in two.
    whole = trained("whole", *RUN, "ppo.total_steps=256")
    trained("halves", *RUN)
    halves = trained("halves", f"resume={tmp_path / 'halves'}", "ppo.total_steps=256")
    assert halves["params_hash"] == whole["params_hash"]
    assert halves["env_steps"] == 256
    # Evaluated there and on the CPU. The file holds no tensor of the device: this process, which has none, reads it.
    assert parameters(tmp_path / "halves").isfinite().all()
    scores = []
    for device in ("0", "cpu"):
        words = (str(tmp_path / "halves"), "episodes=3", "json=true", f"device={device}")
        done = on_standin("ddppo.evaluate", *words, run_dir=tmp_path)
        assert done.code == 0, done.stderr
        scores.append(json.loads(done.stdout)["returns"])
    assert scores[0] == scores[1]
    # Exported, where the file is tried against the policy.
    words = (str(tmp_path / "halves"), "format=torch", f"out={tmp_path / 'policy.pt2'}")
    done = on_standin("ddppo.export", *words, run_dir=tmp_path)
    assert done.code == 0, done.stderr


def test_two_ranks_share_no_device_unless_they_are_told_to(tmp_path):
    done = on_standin("ddppo.train", *RUN, "dist.world_size=2", run_dir=tmp_path / "run")
    assert done.code == 2
    assert done.stderr.splitlines()[-1] == (
        "error: device=auto: 2 ranks of this machine compute, each with an accelerator of its own, and this machine "
        "has 1 sim device: use fewer ranks, dist.share_device=true, or device=cpu"
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (
            "device=1",
            "device=1: this machine has 1 sim device, numbered from 0: use device=0, or device=auto",
        ),
        ("device=cuda", "device=cuda, but torch sees 1 sim device here: use device=auto, or device=cpu"),
        ("dtype=float64", "dtype=float64 with device=auto, here sim, which computes in float32 at most"),
        (
            "ppo=grpo ppo.group_size=2",
            "returns of a group are compared in float64, which it lacks: use device=cpu",
        ),
    ],
)
def test_a_device_that_does_not_fit_is_refused(setting, why, tmp_path):
    done = on_standin(
        "ddppo.train", *RUN, *setting.split(), run_dir=tmp_path / "run", STANDIN_WITHOUT_FLOAT64="1"
    )
    assert done.code == 2
    assert why in done.stderr
