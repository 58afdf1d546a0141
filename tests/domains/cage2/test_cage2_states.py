"""Games go on from their states as any environment does, and their sums are ordered on any number of ranks."""

import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.dry_run import dry_run
from tests.distributed.test_ordered import assert_same_bits, runs
from tests.unit.test_env_states import _with, batch, goes_on_to_the_bit  # noqa: F401 (a fixture)

TASKS = {
    "cage2": EnvConfig(id="ddppo/CAGE2-v0", kwargs={"episode_steps": 30, "green": "active"}),
    "cage2_by_orders": EnvConfig(id="ddppo/CAGE2-v0", kwargs={"episode_steps": 30, "order": "balanced"}),
    "cage2_with_a_limit": EnvConfig(id="ddppo/CAGE2-v0", max_episode_steps=20),
}


@pytest.mark.parametrize("name", ["cage2", "cage2_by_orders"])
def test_batched_games_dealt_otherwise_go_on_to_the_bit(batch, name):  # noqa: F811
    goes_on_to_the_bit(batch, TASKS[name], "batched")


@pytest.mark.parametrize("name", TASKS)
def test_games_stepped_in_turn_and_dealt_otherwise_go_on_to_the_bit(batch, name):  # noqa: F811
    goes_on_to_the_bit(batch, TASKS[name], "sync")


@pytest.mark.slow
def test_games_of_a_pool_dealt_otherwise_go_on_to_the_bit(batch):  # noqa: F811
    goes_on_to_the_bit(batch, TASKS["cage2_by_orders"], "pool")


@pytest.mark.parametrize("name", TASKS)
def test_the_door_finds_that_games_can_be_saved(name):
    assert dry_run(TASKS[name]).why_inexact is None
    assert dry_run(_with(TASKS[name], "sync")).why_inexact is None


@pytest.mark.parametrize(
    ("arguments", "world_sizes"),
    [
        (["ppo.rollout_steps=40", "ppo.total_steps=1280", "eval.final_episodes=0"], "1,2"),
        pytest.param([], "1,2,4,8", marks=pytest.mark.slow),
    ],
)
def test_with_ordered_sums_games_are_learned_from_to_the_same_bits(arguments, world_sizes, tmp_path):
    assert_same_bits(runs(tmp_path, "env=cage2", *arguments, world_sizes=world_sizes))
