"""Runs with a curriculum: what they tell of it, how they evaluate its tasks. (W: test_groups_of_episodes.py.)"""

import json
import os
import shutil

import pytest

from ddppo.domains.text.curriculum.contract import UniformCurriculum
from tests.support import TINY, door, lines, summary

TASK = [
    "env=gym", "env.id=tests.domains.text.text_tasks:tests/Repeat-v0", "model=token_policy",
    "ppo=grpo", "env.num_envs=8",
    "ppo.group_size=4", "ppo.rollout_steps=16", "model.obs_tokens=4", "model.turn_tokens=2", "model.token_width=16",
    "model.token_heads=2", "model.token_layers=1", "device=cpu", "dist.check_every=1", "ppo.total_steps=200",
]  # fmt: skip


class OfRank(UniformCurriculum):
    """Replicas that part."""

    def state(self):
        return {**super().state(), "rank": int(os.environ["RANK"])}


def told(run_dir):
    """Return what the curriculum said of itself after every iteration."""
    return [
        {name: x for name, x in line.items() if name.startswith("curriculum/")}
        for line in lines(run_dir)
        if line["rank"] == 0
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two ranks, which evaluate each some tasks."""
    run_dir = tmp_path_factory.mktemp("curriculum") / "run"
    result = door(
        *TINY, *TASK, "dist.world_size=2", "eval.final_episodes=7", "log.progress=plain", run_dir=run_dir
    )
    assert result.code == 0, result.stderr
    return result


def test_a_run_tells_of_its_curriculum_in_metrics_in_a_file_and_on_the_terminal(finished):
    metrics = told(finished.run_dir)
    assert [each["curriculum/round"] for each in metrics] == list(range(1, len(metrics) + 1))
    assert metrics[-1]["curriculum/untried"] < 6
    table = (finished.run_dir / "curriculum.txt").read_text()
    assert table.startswith(f"round {len(metrics)}, tier ")
    assert table in finished.stdout
    assert {"north", "east", "south", "west"} <= set(table.split())


def test_evaluation_plays_every_task_and_says_which_tiers_are_achieved(finished, tmp_path):
    final = summary(finished.run_dir)["eval"]["final"]
    assert final["episodes"] == 12  # twice each of 6 tasks, for 7 asks for more than once
    assert final["success_rate"] == pytest.approx(
        (4 * final["success_rate_warm-up"] + 2 * final["success_rate_beginner"]) / 6
    )
    arguments = (f"run={finished.run_dir}", "episodes=7")
    again = door(*arguments, "json=true", run_dir=tmp_path, module="ddppo.evaluate")
    scores = json.loads(again.stdout)
    assert {name: scores[name] for name in final if name != "t_eval"} == pytest.approx(
        {name: x for name, x in final.items() if name != "t_eval"}
    )
    assert len(scores["achieved"]) == len(scores["tiers"]) == len(scores["returns"]) == 12
    said = door(*arguments, run_dir=tmp_path, module="ddppo.evaluate").stdout
    assert f"success {final['success_rate']:.2f} (warm-up " in said
    assert f"length  {final['length_mean']:.1f} tokens" in said


def test_a_run_whose_environment_has_other_tasks_by_now_is_not_resumed(finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished.run_dir, run_dir)
    arguments = (f"resume={run_dir}", "ppo.total_steps=400")
    result = door(*arguments, run_dir=run_dir, TESTS_MORE_WORDS="upstairs")
    assert result.code == 2, result.stderr
    assert (
        "the checkpoint's curriculum has other tasks (upstairs): resume with the tasks it had"
        in result.stderr
    )
    assert "rank" not in result.stderr
    assert door(*arguments, run_dir=run_dir).code == 0


def test_no_curriculum_tells_nothing(tmp_path):
    result = door(*TINY, *TASK, "curriculum.name=null", "ppo.total_steps=50", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert not any(told(tmp_path / "run"))
    assert not (tmp_path / "run" / "curriculum.txt").exists()


def test_replicas_of_a_curriculum_that_part_end_the_run(tmp_path):
    mine = f"curriculum.name={__name__}:OfRank"
    result = door(*TINY, *TASK, mine, "dist.world_size=2", run_dir=tmp_path / "run")
    assert result.code == 1
    # Neither is more common, so that rank 0's is taken for right.
    assert (
        "after iteration 1 the parameters or the curriculum of rank 1 differ from those of the other 1 of 2"
        in result.stderr
    )


def test_a_curriculum_that_is_never_told_what_was_achieved_ends_the_run_with_the_remedy(tmp_path):
    silent = "env.id=tests.domains.text.text_tasks:tests/SilentRepeat-v0"
    result = door(*TINY, *TASK, silent, "dist.world_size=2", run_dir=tmp_path / "run")
    assert result.code == 1
    assert 'SilentRepeat-v0 reported info["is_success"] in no episode of iteration 1' in result.stderr
    assert "curriculum.name=null" in result.stderr
    result = door(
        *TINY, *TASK, silent, "curriculum.name=null", "ppo.total_steps=50", run_dir=tmp_path / "other"
    )
    assert result.code == 0, result.stderr
