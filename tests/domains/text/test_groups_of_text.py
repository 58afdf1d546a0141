"""Groups of whole episodes of text: the same numbers however many ranks share them, and across an interruption."""

import pytest

from tests.distributed.test_groups_of_episodes import (
    assert_goes_on_to_the_bit,
    assert_same,
    last_state,
    of_rank_0,
    trained,
)
from tests.support import TINY, door

TEXT = [
    "env=gym", "env.id=tests.domains.text.text_tasks:tests/PartsRepeat-v0",
    "model=token_policy", "model.token_width=16",
    "model.token_layers=1", "model.token_heads=2", "model.obs_tokens=8", "model.turn_tokens=3", "env.num_envs=8",
    "ppo.group_size=4", "ppo.rollout_steps=24", "ppo.num_epochs=2", "ppo.num_minibatches=3", "ppo.total_steps=120",
    "ppo.learning_rate=1e-2", "ppo.lr_schedule=none", "dtype=float64", "dist.check_every=1",
]  # fmt: skip
KINDS = {
    "grpo": ["ppo=grpo", *TEXT, "ppo.kl_coef=0.1", "model.top_p=0.9", "ppo.clip_coef_high=0.28"],
    "sequence": [
        *("ppo=grpo", *TEXT, "ppo.ratio=sequence", "ppo.token_mean=episodes", "ppo.scale_by=batch"),
        *("ppo.mask_truncated=true", "env.max_turns=1", "env.kwargs.turns=2", "ppo.clip_coef=0.01"),
    ],
    "values": ["ppo=default", *TEXT, "ppo.gamma=1", "ppo.target_kl=0.05"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_group_statistics_are_those_of_one_rank(tmp_path, kind):
    folders = trained(tmp_path, KINDS[kind], "1,2,4")
    assert_same(folders[1], folders[2])
    assert_same(folders[1], folders[4])


EVALUATED = ["curriculum.name=uniform", "eval.every_steps=60", "eval.episodes=6", "eval.final_episodes=6"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    result = door(*TINY, *KINDS["grpo"], *EVALUATED, "dist.world_size=1", run_dir=folder)
    assert result.code == 0, result.stderr
    return folder


def scores(run_dir):
    """Return the scores of all evaluations, without their times."""
    return [
        {name: x for name, x in line.items() if name.startswith("eval/") and "/t_" not in name}
        for line in of_rank_0(run_dir)
        if line.get("eval/return_mean") is not None
    ]


@pytest.mark.quick_cases("sync_actors-3", "env_workers-3")
@pytest.mark.parametrize(
    ("topology", "world_size"),
    [("sync_actors", 3), ("multi_learner", 4), ("env_workers", 3), ("env_workers", 4)],
)
def test_a_topology_types_and_learns_what_one_rank_does(alone, tmp_path, topology, world_size):
    how = [f"distributed={topology}", f"dist.world_size={world_size}"]
    result = door(*TINY, *KINDS["grpo"], *EVALUATED, *how, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert_same(alone, tmp_path / "run")
    # The same tokens: episodes, and the task sampler that learns from whether they achieved their tasks.
    for key in ("window", "sampler"):
        assert last_state(tmp_path / "run")[key] == last_state(alone)[key]
    assert len(scores(alone)) > 1
    for expected, found in zip(scores(alone), scores(tmp_path / "run"), strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_rollouts_that_failed_are_left_out_whatever_rank_they_were_on(tmp_path):
    fails = ["env.kwargs.fails=[east,down]", "dist.on_lost=restart", "dist.max_restarts=1000"]
    folders = trained(tmp_path, ["ppo=grpo", *TEXT, *fails, "curriculum.name=uniform"], "2,4")
    assert_same(folders[2], folders[4])
    numbers = of_rank_0(folders[2])
    assert 0 < max(line["rollout/failed"] for line in numbers) <= 8
    assert sum(line["rollout/failed"] + line["rollout/episodes"] for line in numbers) == 8 * len(numbers)


def test_a_run_that_is_gone_on_with_is_to_the_bit_the_one_that_was_not_interrupted(tmp_path):
    assert_goes_on_to_the_bit(tmp_path, KINDS["grpo"], 120, 60)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["sync_actors", "env_workers"])
def test_so_it_is_with_an_actor_or_a_rank_that_steps(tmp_path, topology):
    assert_goes_on_to_the_bit(
        tmp_path, [*KINDS["grpo"], f"distributed={topology}", "dist.world_size=3"], 120, 60
    )


@pytest.mark.parametrize("topology", ["sync_actors", "env_workers"])
def test_a_task_that_fails_in_an_evaluation_is_named_and_no_rank_waits_for_it(tmp_path, topology):
    # The one iteration draws other tasks; the evaluation plays all of them.
    how = ["ppo.total_steps=20", "eval.final_episodes=6", "env.kwargs.fails=[up]", f"distributed={topology}"]
    result = door(*TINY, *KINDS["grpo"], *how, "dist.world_size=3", run_dir=tmp_path / "run")
    assert result.code == 5, result.stderr
    assert "the final evaluation failed" in result.stderr
    assert "raised RuntimeError in step 2: cannot hear" in result.stderr
    assert last_state(tmp_path / "run")["iteration"] >= 1
