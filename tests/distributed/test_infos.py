"""Numbers in an episode's last info are recorded as means over ranks, in training and in evaluation."""

import json

import numpy as np
import pytest

from ddppo.envs.encoding.step_values import numbers_in
from ddppo.records.metrics import info_metrics
from tests.support import TINY, door, lines, summary

TASK = (
    *TINY, "env=gym", "env.id=tests.distributed.infos_task:tests/Scored-v0", "env.num_envs=4", "ppo.rollout_steps=16",
    "ppo.num_minibatches=2", "ppo.num_epochs=1", "ppo.total_steps=128", "device=cpu", "checkpoint.every_steps=0",
    "eval.final_episodes=6", "compile=off", "dtype=float64",
)  # fmt: skip
OF_TASK = {"env/is_success", "env/score", "env/bonus", "env/coins"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run by two backends, and on two ranks."""
    found = {}
    for name, more in {
        "sync": ("env.backend=sync",),
        "pool": ("env.backend=pool", "env.num_workers=2"),
        "two ranks": ("env.backend=sync", "dist.world_size=2"),
    }.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
        done = door(*TASK, *more, run_dir=folder)
        assert (done.code, done.stderr) == (0, "")
        found[name] = folder
    return found


def test_training_records_the_means_over_the_episodes_of_all_ranks(runs):
    of_runs = {}
    for name, folder in runs.items():
        of_rank_0 = [record for record in lines(folder) if record["rank"] == 0]
        of_runs[name] = [{k: x for k, x in r.items() if k.startswith("env/")} for r in of_rank_0]
        for record in of_rank_0:
            assert record["rollout/success_rate"] == record["env/is_success"]
            assert (record["env/coins"], record["env/bonus"]) == (3.0, 2.0)
        assert [numbers.keys() for numbers in of_runs[name]] == [OF_TASK] * 2
        assert 0 < of_runs[name][0]["env/is_success"] < 1
    assert of_runs["sync"] == of_runs["pool"] == of_runs["two ranks"]


def test_an_evaluation_has_them_too_and_so_has_the_command(runs):
    finals = [summary(folder)["eval"]["final"] for folder in runs.values()]
    names = ("env/score", "env/is_success", "success_rate", "env/coins")
    assert len({tuple(final[name] for name in names) for final in finals}) == 1
    assert finals[0]["success_rate"] == finals[0]["env/is_success"]
    done = door(
        f"run={runs['sync']}", "episodes=6", "json=true", module="ddppo.evaluate", run_dir=runs["sync"]
    )
    assert json.loads(done.stdout)["env/score"] == finals[0]["env/score"]


def test_a_task_without_numbers_records_none(tmp_path):
    numbers = numbers_in({"text": "a", "_hidden": 3, "inf": np.inf, "a b": 1, "array": np.ones(2), 3: 4})
    assert numbers == {}
    assert numbers_in({"ok": np.bool_(True), "episode": {"r": 1, "l": 2, "t": 3, "extra": 5}}) == {
        "ok": 1.0,
        "extra": 5.0,
    }
    assert len(numbers_in({f"x{i}": i for i in range(100)})) == 64


@pytest.mark.parametrize(
    ("means", "rate"),
    [({"success": 0.5}, 0.5), ({"success": 0.5, "is_success": 0.25}, 0.25), ({"x": 1.0}, None)],
)
def test_is_success_or_else_success_is_the_rate(means, rate):
    assert info_metrics(means, "env/", "rollout/success_rate").get("rollout/success_rate") == rate
