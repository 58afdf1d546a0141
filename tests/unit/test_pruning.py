"""Runs of a sweep that fall behind end: ddppo.records.pruning."""

import json
import sys

import pytest

from ddppo.errors import ConfigError
from ddppo.records.callbacks import LiveRun
from ddppo.records.pruning import StopBelowMedian
from tests.support import TINY, run


def recorded(folder, *evaluations):
    """Write the records of a run: (steps, mean return) of its evaluations, between rows without one."""
    folder.mkdir(parents=True)
    rows = [{"env_steps": 1}]
    for steps, score in evaluations:
        rows += [{"env_steps": steps, "eval/return_mean": score}, {"env_steps": steps + 1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def live(folder, env_steps, score, total_steps=100):
    facts = {
        "folder": folder,
        "iteration": 1,
        "env_steps": env_steps,
        "total_steps": total_steps,
        "wall_s": 1.0,
    }
    facts |= {"world_size": 1, "status": "running", "metrics": {"eval/return_mean": score}}
    return LiveRun(facts | {"coefficients": {}, "checkpoint": None})


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "sweep.jsonl").write_text("{}\n")
    for name, scores in {"a": (1, 9), "b": (5, 2), "c": (3, 4)}.items():
        recorded(tmp_path / name, *zip((10, 20), scores, strict=True))
    recorded(tmp_path / "short", (10, 99))  # it has not come to 20 steps
    return tmp_path


# At 20 steps the bests of the others are 9, 5 and 4: their median is 5.
@pytest.mark.parametrize(
    ("earlier", "now", "ends"), [([], 4.9, True), ([], 5, False), ([(10, 6)], 0, False), ([(10, 2)], 3, True)]
)
def test_a_run_ends_if_its_best_so_far_is_below_the_median_of_the_others(sweep, earlier, now, ends):
    mine = live(recorded(sweep / "mine", *earlier), 20, now)
    StopBelowMedian(min_runs=3).on_evaluation(mine)
    assert ("stop" in mine.asked) == ends
    if ends:
        assert "below 5.00, the median of 3 other runs at 20 steps" in mine.asked["stop"]


def test_the_rule_waits_for_enough_runs_and_steps_and_leaves_the_end_alone(sweep):
    mine = recorded(sweep / "mine")
    for rule, asking in (
        (StopBelowMedian(min_runs=4), live(mine, 20, 0)),
        (StopBelowMedian(min_runs=3, after_steps=21), live(mine, 20, 0)),
        (StopBelowMedian(min_runs=3), live(mine, 20, 0, total_steps=20)),
    ):
        rule.on_evaluation(asking)
        assert asking.asked == {}


def test_runs_in_a_folder_that_is_no_sweep_s_are_not_compared(sweep):
    (sweep / "sweep.jsonl").unlink()
    mine = live(recorded(sweep / "mine"), 20, 0)
    StopBelowMedian(min_runs=1).on_evaluation(mine)
    assert mine.asked == {}


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="min_runs=0 must be at least 1"):
        StopBelowMedian(min_runs=0)


def test_a_run_of_a_sweep_that_is_below_the_median_ends_and_its_summary_says_why(tmp_path):
    rule = "run.callbacks=[{path:ddppo.records.pruning:StopBelowMedian,min_runs:1}]"
    sizes = ("ppo.total_steps=2048", "eval.every_steps=512", "eval.episodes=2", "checkpoint.every_steps=0")
    sweep = tmp_path / "sweep"
    swept = ("-m", "env=cartpole", "ppo.learning_rate=1e-3,1e-9", f"sweep={sweep}", *TINY, *sizes, rule)
    command = [sys.executable, "-m", "ddppo.train", *swept]
    done = run(command, tmp_path)
    assert done.code == 0, done.stderr
    ends = [json.loads(path.read_text()) for path in sorted(sweep.glob("*/summary.json"))]
    assert sorted(end["env_steps"] < 2048 for end in ends) == [False, True]
    (ended,) = [end["ended"] for end in ends if end["env_steps"] < 2048]
    assert "the median of 1 other runs" in json.dumps(ended)
