"""Studies of several topologies: sorted apart, and compared side by side."""

import csv
import json
import math

import numpy as np
import pytest

from ddppo.errors import ConfigError
from ddppo.report import main
from ddppo.study.measure.speedup import study
from ddppo.study.measure.topologies import side_by_side
from ddppo.study.page import html
from ddppo.study.predict.usl import Usl, fit_usl
from ddppo.study.read.record import Reading
from ddppo.study.read.run_folders import read_runs
from ddppo.study.read.selection import FoundStudies, named, studies
from ddppo.study.report import ReportOptions, compute, read
from tests.study.scaling_folders import change_summary, make_run, points, write_run


def test_the_runs_of_each_topology_are_a_study(tmp_path):
    for topology in ("sync_actors", "ddp"):
        write_run(tmp_path / topology, 2, dist__topology=topology)
    found = studies(read_runs(tmp_path))
    assert [named(each.runs) for each in found.studies] == [
        "Task-v0, strong scaling",
        "Task-v0, strong scaling, sync_actors",
    ]
    assert found.left_out == []


def test_of_several_settings_all_topologies_have_the_same_if_they_can(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"ddp-{seed}", 2, seed)
    write_run(tmp_path / "sync", 2, dist__topology="sync_actors")
    for seed in range(2):
        write_run(tmp_path / f"other-{seed}", 2, seed, dist__topology="sync_actors", ppo__learning_rate=0.002)
    found = studies(read_runs(tmp_path))
    assert {run.config["ppo"]["learning_rate"] for each in found.studies for run in each.runs} == {0.001}
    assert [len(each.left_out) for each in found.studies] == [0, 2]


def test_a_topology_that_was_tried_with_several_settings_of_its_own_is_a_study_for_each(tmp_path):
    for workers in (2, 3):
        own = {"dist__topology": "central_inference", "env__num_workers": workers}
        write_run(tmp_path / f"central-{workers}", 2, **own)
    write_run(tmp_path / "ddp", 2)
    found = studies(read_runs(tmp_path))
    assert [each.runs[0].topology for each in found.studies] == [
        "ddp", "central_inference num_workers=2", "central_inference num_workers=3",
    ]  # fmt: skip
    assert [each.left_out for each in found.studies] == [[], [], []]


def test_settings_of_a_topology_that_differ_with_w_are_of_one_study(tmp_path):
    for world_size in (2, 4):
        own = {"dist__topology": "multi_learner", "dist__num_learners": world_size // 2}
        write_run(tmp_path / str(world_size), world_size, **own)
    assert [each.runs[0].topology for each in studies(read_runs(tmp_path)).studies] == ["multi_learner"]


# -- side by side ----------------------------------------------------------------------------------------------------


def ddp(seed, seconds, **more):
    """Two workers that learn for 2 ms, exchange for 3 ms and wait for 5 ms of 10."""
    waits = {"time/t_wait_worker": 0.005, "dist/messages": 20.0, "dist/bytes": 1000.0}
    parts = {"t_learn": 0.002, "t_comm": 0.003, "t_sync": 0.005}
    ranks = {"roles": ("worker",) * 2, "num_stepping": 2, "rank_means": (waits,) * 2}
    return make_run(2, seed, parts=parts, **{"reached_at_s": seconds, "target_return": 50.0} | ranks | more)


def sync_actors(seed, seconds, **more):
    """A learner that learns for 6 ms of 8 and then waits for its two actors, who wait for it."""
    ranks = {
        "roles": ("learner", "actor", "actor"),
        "num_stepping": 2,
        "rank_means": (
            {"time/t_wait_actor": 0.002, "dist/messages": 2.0, "dist/bytes": 300.0},
            *({"time/t_wait_learner": 0.006, "dist/messages": 2.0, "dist/bytes": 100.0},) * 2,
        ),
    }
    parts = {"t_rollout": [0, 0.002, 0.002], "t_learn": [0.006, 0, 0], "t_sync": [0.002, 0.006, 0.006]}
    own = {"topology": "sync_actors", "reached_at_s": seconds, "target_return": 50.0}
    return make_run(3, seed, parts=parts, **own | ranks | more)


def side(*groups):
    return side_by_side([study(list(runs)) for runs in groups])


def report(*groups):
    found = FoundStudies([Reading(list(runs), []) for runs in groups], [])
    return compute(ReportOptions(path="made up"), found)


SEEDS = [
    [ddp(0, 4.0), ddp(1, 9.0), ddp(2, 20.0)],
    [sync_actors(0, 2.0), sync_actors(1, 6.0), sync_actors(2, 16.0)],
]


def test_the_soonest_has_the_least_median_time_to_target_and_others_are_compared_with_it_by_seed():
    found = side(*SEEDS)
    assert found.by_target
    assert found.best.name == "sync_actors at W=3"
    (behind,) = found.behind
    assert behind.times.values == (2.0, 1.5, 1.25)
    assert behind.times.median == 1.5
    # exp(0.4406 +- 4.303 * 0.2370 / sqrt(3)), mean and standard deviation of the logarithms 0.693, 0.405, 0.223
    assert (behind.times.low, behind.times.high) == pytest.approx((0.8624, 2.7989), abs=1e-3)


def test_the_time_of_a_role_is_that_of_its_ranks_with_waiting_by_whom_it_is_for():
    ddp_side, sync_side = side(*SEEDS).sides
    assert (ddp_side.ranks, sync_side.ranks) == ({"worker": 2}, {"learner": 1, "actor": 2})
    assert sync_side.learner == "learner"
    assert sync_side.spent["learner"]["for actor"] == pytest.approx(0.25)
    assert sync_side.spent["actor"]["for learner"] == pytest.approx(0.75)
    assert (sync_side.messages, sync_side.num_bytes) == (2.0, 500.0)  # of the busiest rank, of all
    assert math.isnan(sync_side.lag)


def test_where_no_seed_got_to_the_target_throughput_decides():
    found = side([ddp(0, math.inf)], [sync_actors(0, math.inf)])
    assert not found.by_target
    assert found.best.study.topology == "sync_actors"  # 80 steps in 8 ms, not in 10
    assert found.behind[0].times.values == pytest.approx((1.25,))


def test_a_seed_that_never_gets_there_is_slower_than_all_that_do_and_leaves_no_interval():
    found = side([ddp(0, math.inf), ddp(1, math.inf), ddp(2, 2.0)], SEEDS[1])
    assert found.best.study.topology == "sync_actors"
    assert found.behind[0].times.median == math.inf
    said = report([ddp(0, math.inf), ddp(1, math.inf), ddp(2, 2.0)], SEEDS[1]).topologies[0].sentences
    assert said[1].startswith("ddp at W=2 reached it in 1 of 3 seeds: later, or never.")


def test_seeds_where_one_of_two_never_got_there_count_and_are_told():
    found = side([ddp(0, 4.0), ddp(1, 9.0), ddp(2, math.inf)], SEEDS[1]).behind[0]
    assert found.times.values == (2.0, 1.5, math.inf)
    said = report([ddp(0, 4.0), ddp(1, 9.0), ddp(2, math.inf)], SEEDS[1]).topologies[0].sentences
    assert said[1].startswith(
        "ddp at W=2 takes 2 times as long (1.5 to 2 over 2 seeds, only it never reached the target in 1 seed)"
    )
    best = [sync_actors(0, 2.0), sync_actors(1, math.inf), sync_actors(2, 3.0)]
    said = report(SEEDS[0], best).topologies[0].sentences
    assert said[1].startswith(
        "ddp at W=2 takes 2 times as long (2 to 6.67 over 2 seeds, only it reached the target in 1 seed)"
    )


def test_it_is_said_what_another_would_have_to_lose_of_what_it_is_measured_to_spend():
    said = " ".join(report(*SEEDS).topologies[0].sentences)
    assert "sync_actors at W=3 reaches a return of 50 first here: 6 s, median of 3 seeds." in said
    assert (
        "ddp at W=2 takes 1.5 times as long (95 % interval 0.862 to 2.8 over 3 seeds, so the order is not certain)"
        in said
    )
    assert (
        "its iterations of 10 ms would have to be 33 % shorter: of the worker's time 50 % is waiting" in said
    )
    assert "30 % is communication (20 messages, 2 kB an iteration)" in said
    assert "that is 42 % of its waiting and communication." in said  # a third of 80 %
    assert "sync_actors at W=3 exchanges 2 in an iteration, 0 % of the learner's time, the fewest." in said
    assert (
        "Predicted, by the model of ddp, or for another topology by a law of W that does not know "
        "environments: not ddp, sync_actors," in said
    )


def test_where_more_steps_are_needed_rather_than_longer_ones_that_is_said():
    late = points(10.0, 20.0, 60.0, every_s=4.0)  # at 50 after 300 steps, 12 s
    soon = points(60.0, every_s=5.0)  # after 100 steps
    unknown = {"reached_at_s": math.nan}
    said = report(
        [ddp(0, 0.0, evaluations=late, **unknown)], [sync_actors(0, 0.0, evaluations=soon, **unknown)]
    )
    behind = said.topologies[0].sentences[1]
    assert "takes 2.4 times as long (2.4 to 2.4 over 1 seed, too few for an interval)" in behind
    assert "and 3 times the environment steps" in behind
    assert behind.endswith("It needs more environment steps; a step takes 0.8 times as long.")


def test_settings_that_differ_besides_the_topology_are_said():
    other = {"ppo": {"learning_rate": 0.1}}
    said = report([ddp(0, 1.0)], [sync_actors(0, 2.0, config=other)]).topologies[0].sentences
    expected = "sync_actors has ppo.learning_rate=0.1 (ddp: unset)"
    assert said[-1] == f"They differ in more than the topology: {expected}."


def test_one_topology_is_not_compared():
    assert report(SEEDS[0]).topologies == []


def test_runs_that_do_not_tell_their_roles_are_compared_by_what_they_tell():
    bare = {"roles": (), "rank_means": (), "num_stepping": 0}
    made = report([ddp(0, 4.0, **bare)], [sync_actors(0, 2.0, **bare)])
    assert made.topologies[0].found.best.study.topology == "sync_actors"
    assert "–" in html.page(made, [html.chapter(each) for each in made.studies])


def test_what_steps_no_environments_is_no_worker_of_the_scalability_law():
    law = Usl(0.001, 0.0002, 0.0, besides=1)
    fps = {w: [law.fps(w)] for w in (2, 3, 5)}
    assert fps[2] == [pytest.approx(1000)]
    assert fit_usl(fps, besides=1).fps(32) == pytest.approx(law.fps(32))
    assert law.peak == math.inf
    assert Usl(0.001, 0.0, 0.001 / 16, besides=1).peak == 5


def test_the_law_of_actors_is_held_out_and_predicts_many():
    runs = [
        make_run(
            w,
            seed,
            fps=1000 * (w - 1) / (1 + 0.1 * (w - 2)) * (1 + 0.001 * seed),
            topology="sync_actors",
            num_stepping=w - 1,
        )
        for w in (2, 3, 5)
        for seed in range(3)
    ]
    said = report([ddp(seed, math.inf) for seed in range(3)], runs).topologies[0].sentences
    # Twice the largest W is 10, so 8 is the largest power of 2: 7,000 / 1.6 of seed 0.
    assert "Predicted at W=8" in said[-1]
    assert "sync_actors 4,3" in said[-1]
    assert "W=5, held out, is missed by" in said[-1]


# -- from folders to files -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A sweep of ddp and one of sync_actors, whose runs tell their roles."""
    folders = [tmp_path_factory.mktemp(name) for name in ("ddp", "sync")]
    names, of_ranks = ("ddp", "sync_actors"), (("worker",) * 2, ("learner", "actor"))
    for folder, topology, roles in zip(folders, names, of_ranks, strict=True):
        for seed in range(2):
            write_run(folder / str(seed), 2, seed, t_iter=0.1, dist__topology=topology, target_return=70.0)
            per_rank = [
                {"rank": rank, "role": role, "time": {"t_wait_learner": 0.02, "t_iter": 0.1}, "dist": {"bytes": 100.0}}
                for rank, role in enumerate(roles)
            ]  # fmt: skip
            change_summary(folder / str(seed), per_rank=per_rank)
    return folders


def test_several_sweeps_are_one_report_with_a_part_of_its_own(sweeps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", *map(str, sweeps), f"out={tmp_path / 'out'}"])
    main()
    printed = capsys.readouterr().out
    assert "1 x learner, 1 x actor" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("Topologies side by side") == 1
    assert "<dt>Speed" not in page  # of one W there is none
    assert (tmp_path / "out" / "plots" / "topologies.svg").is_file()
    with (tmp_path / "out" / "topologies.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["topology"], row["role"], row["ranks"]) for row in rows] == [
        ("ddp", "worker", "2"),
        ("sync_actors", "learner", "1"),
        ("sync_actors", "actor", "1"),
    ]
    assert float(rows[0]["share_for_learner"]) == pytest.approx(0.2)


def test_an_actor_that_is_silent_in_an_iteration_tells_of_it_in_the_next(tmp_path):
    run = write_run(tmp_path / "async", 2, dist__topology="async_actors", iterations=6, warmup=2, t_iter=0.5)
    per_rank = [{"rank": 0, "role": "learner"}, {"rank": 1, "role": "actor"}]
    change_summary(run, per_rank=per_rank)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["rank"] == 1:
            times = 0 if line["iteration"] % 2 else 2
            line |= {name: times * value for name, value in line.items() if name.startswith("time/")}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(tmp_path / "ddp", 2)
    options = ReportOptions(path=str(tmp_path))
    made = compute(options, read(options))
    assert made.left_out == []
    _, side = made.topologies[0].found.sides
    assert side.spent["actor"]["t_rollout"] == pytest.approx(0.2)
    assert side.row.t_iter["mean"] == pytest.approx(0.5)
    html.page(made, [html.chapter(each) for each in made.studies])


def test_the_loss_of_ranks_that_share_no_iteration_has_no_account():
    parts = {"t_rollout": [0, 0.2], "t_sync": [0.1, 0]}
    runs = [
        make_run(2, 0, parts=parts, topology="async_actors"),
        make_run(2, 1, parts=parts, topology="async_actors"),
    ]
    runs += [make_run(4, seed, fps=900, topology="async_actors") for seed in range(2)]
    (found,) = report(runs).studies
    assert found.accounts == []
    assert "share no iteration" in str(found.why[0])


def test_a_sweep_that_is_named_twice_counts_once(sweeps):
    found = read(ReportOptions(path=str(sweeps[0]), others=[str(sweeps[0])]))
    assert [len(each.runs) for each in found.studies] == [2]
    with pytest.raises(ConfigError, match="is no sweep folder"):
        read(ReportOptions(path=str(sweeps[0]), others=["nowhere"]))


def test_a_topology_of_a_table_is_told_by_a_column(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("topology,W,FPS\nddp,4,1000\nsync_actors,4,900\n")
    options = ReportOptions(path=str(table), columns={"world_size": "W", "fps": "FPS"})
    found = compute(options, read(options)).topologies[0].found
    assert (found.best.study.topology, found.by_target) == ("ddp", False)
    assert np.isnan(found.best.messages)
