"""The account of time, measured on real ranks."""

from statistics import median

import pytest

from ddppo.records.metrics import METRICS
from tests.distributed.forked_ranks import need_shared_memory
from tests.support import TINY, door, lines, summary

PARTS = ("time/t_rollout", "time/t_learn", "time/t_sync", "time/t_comm", "time/t_other")
STEPS = 4  # of a rollout
ITERATIONS = 8
SLOW_S = 0.15
SIZES = [
    *TINY, "env=synthetic", "env.num_envs=4", f"ppo.rollout_steps={STEPS}",
    f"ppo.total_steps={ITERATIONS * 4 * STEPS}", "ppo.num_epochs=1", "ppo.num_minibatches=2", "dist.world_size=2",
]  # fmt: skip


@pytest.fixture(scope="module", params=["shm", "gloo"])
def runs(request, tmp_path_factory):
    """Two runs: rank 1 as fast as rank 0, and .15 s a step slower."""
    if request.param == "shm":
        need_shared_memory()
    folder, kind = tmp_path_factory.mktemp("timing"), f"dist.collective={request.param}"
    finished = {
        "even": door(*SIZES, kind, run_dir=folder / "even"),
        "uneven": door(*SIZES, kind, f"env.slow_ranks={{1: {SLOW_S}}}", run_dir=folder / "uneven"),
    }
    for result in finished.values():
        assert result.code == 0, result.stderr
        assert summary(result.run_dir)["derived"]["collective"] == request.param
    return {name: result.run_dir for name, result in finished.items()}


@pytest.mark.quick_cases("shm-even", "shm-uneven")
@pytest.mark.parametrize("name", ["even", "uneven"])
def test_the_parts_sum_to_t_iter_on_every_iteration_and_rank(runs, name):
    records = lines(runs[name])
    assert len(records) == 2 * ITERATIONS
    for record in records:
        assert sum(record[part] for part in PARTS) == pytest.approx(record["time/t_iter"], rel=0.01)
        assert all(record[part] >= -1e-6 for part in PARTS), record
        assert record["dist/rho_comm"] == pytest.approx(record["time/t_comm"] / record["time/t_iter"])
        assert record["dist/rho_sync"] == pytest.approx(record["time/t_sync"] / record["time/t_iter"])


def test_a_slow_rank_shows_in_the_waiting_of_the_others_and_nowhere_else(runs):
    # What rank 1 sleeps is in one part of each rank; the others take a thousandth of it, on a loaded machine a tenth.
    injected = SLOW_S * STEPS
    spent = {
        (rank, part): median(
            line[part] for line in lines(runs["uneven"]) if line["rank"] == rank and line["iteration"] > 2
        )
        for rank in (0, 1)
        for part in PARTS
    }
    assert spent[1, "time/t_rollout"] >= injected
    holding = {place for place, seconds in spent.items() if seconds > injected / 2}
    assert holding == {(0, "time/t_sync"), (1, "time/t_rollout")}


def test_wall_clock_is_the_sum_of_the_iterations(runs):
    records = [line for line in lines(runs["even"]) if line["rank"] == 0]
    total = 0.0
    for record in records:
        total += record["time/t_iter"]
        assert record["wall_s"] == pytest.approx(total, rel=0.01)


def test_every_name_recorded_is_in_the_table_of_metrics(runs):
    names = {m.name for m in METRICS}
    for record in lines(runs["uneven"]):
        assert set(record) - {"iteration", "rank", "env_steps", "wall_s"} <= names


def test_the_summary_spreads_every_part_over_the_iterations_after_warm_up(runs):
    found = summary(runs["uneven"])
    assert found["warmup"]["left_out"] == 2
    assert found["warmup"]["measured"] == ITERATIONS - 2
    for part in ("time/t_iter", *PARTS):
        by_iteration = [
            sum(r[part] for r in lines(runs["uneven"]) if r["iteration"] == k) / 2
            for k in range(3, ITERATIONS + 1)
        ]
        spread = found["time"][part.removeprefix("time/")]
        assert spread["mean"] == pytest.approx(sum(by_iteration) / (ITERATIONS - 2))
        assert spread["p50"] == pytest.approx(median(by_iteration))
        assert spread["max"] == pytest.approx(max(by_iteration))
        assert spread["p50"] <= spread["p95"] <= spread["max"]
