"""Which studies cannot be believed: each reason is told, and only for runs that give it."""

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from ddppo.study.explain.sentences import covered, outside_training
from ddppo.study.measure.belief import doubts, in_blocks
from ddppo.study.measure.pace import steady
from ddppo.study.measure.speedup import study
from ddppo.study.page.answer import answer
from ddppo.study.read.record import Evaluation, Machine, Origin, Reading
from ddppo.study.read.selection import FoundStudies, with_target
from ddppo.study.report import ReportOptions, compute
from tests.study.disturbed import one_after_another, slowed
from tests.study.scaling_folders import make_run


def sweep(world_sizes=(1, 2, 4), seeds=3, *, interleaved=True, iterations=120):
    """Runs of a system that loses a little at every doubling, with noise of 1 %, one after another on one host."""
    rng, runs = np.random.default_rng(0), []
    for w in world_sizes:
        for seed in range(seeds):
            run = make_run(
                w,
                seed,
                parts={"t_rollout": 0.8 / w, "t_learn": 0.4 / w, "t_comm": 0.02 * (w - 1)},
                iterations=iterations,
                origin=Origin(hostname="here", hosts=("here",) * w, machines=(Machine("here", "Xeon"),)),
            )
            runs.append(slowed(run, np.exp(0.01 * rng.standard_normal(iterations))))
    return one_after_another(runs, interleaved=interleaved)


def changed(runs, change, *world_sizes, seed=None):
    return [change(r) if r.world_size in world_sizes and seed in (None, r.seed) else r for r in runs]


def kinds(runs):
    return [doubt.kind for doubt in doubts(study(runs))]


def test_runs_that_were_measured_well_are_believed():
    for interleaved in (True, False):
        assert kinds(sweep(interleaved=interleaved)) == []
    assert kinds(sweep((1,))) == []


def test_runs_at_the_same_time_on_one_host_are_the_only_reason_told():
    runs = sweep()
    start = runs[0].origin.started_at
    together = [replace(run, origin=replace(run.origin, started_at=start)) for run in runs]
    (doubt,) = doubts(study(changed(together, lambda r: slowed(r, 2.0), 1)))
    assert doubt.kind == "overlap"
    assert "hydra.launcher.one_at_a_time=true" in doubt.again
    elsewhere = [replace(r, origin=replace(r.origin, hostname=r.path, hosts=(r.path,))) for r in together]
    assert "overlap" not in kinds(elsewhere)


def test_another_processor_at_some_w_is_told_and_names_both():
    slower = lambda r: replace(r, origin=replace(r.origin, machines=(Machine("here", "Atom"),)))  # noqa: E731
    (doubt,) = doubts(study(changed(sweep(), slower, 4)))
    assert doubt.kind == "processor"
    assert "W=4 ran on another processor (Atom) than W=1 (Xeon)" in doubt.sentence
    assert kinds(changed(sweep(), slower, 4, seed=1)) == []  # it is in the spread over seeds


def test_hosts_that_go_with_w_are_told_and_more_hosts_for_more_workers_are_not():
    def on(*hosts):
        return lambda r: replace(r, origin=replace(r.origin, hosts=hosts))

    assert kinds(changed(sweep(), on("there"), 4)) == ["hosts"]
    assert kinds(changed(sweep(), on("here", "there"), 4)) == []


def test_a_machine_that_drifts_is_told_where_the_order_of_runs_goes_with_w():
    def drifting(interleaved):
        runs = sweep(interleaved=interleaved)
        begins = [datetime.fromisoformat(r.origin.started_at).timestamp() for r in runs]
        part = [(begin - min(begins)) / (max(begins) - min(begins)) for begin in begins]
        return [slowed(r, 1.3**x) for r, x in zip(runs, part, strict=True)]

    (doubt,) = doubts(study(drifting(False)))
    assert doubt.kind == "order"
    assert "slower" in doubt.sentence
    assert "dist.world_size=1,2,4 seed=0,1,2" in doubt.again
    assert "order" not in kinds(drifting(True))
    assert (in_blocks(study(sweep(interleaved=False))), in_blocks(study(sweep()))) == (True, False)


@pytest.mark.parametrize(
    ("factors", "how"),
    [
        (np.where(np.arange(120) > 70, 1.5, 1.0), "slower from about iteration 70 of 120 on"),
        (np.linspace(1, 1.6, 120), "steadily slower"),
        (np.where(np.arange(120) // 15 % 2, 1.9, 1.0), "stretches of iterations were 1.9 times slower"),
        (np.where(np.arange(120) % 10, 1.0, 30.0), "12 of 120 iterations took more than 20 times the median"),
    ],
)
def test_a_change_of_pace_within_runs_is_told_with_its_size(factors, how):
    (doubt, *_) = doubts(study(changed(sweep(), lambda r: slowed(r, factors), 2)))
    assert doubt.kind == "pace"
    assert how in doubt.sentence
    assert "dist.world_size=2 seed=0,1,2" in doubt.again


def test_a_change_of_pace_that_all_w_share_is_training():
    assert kinds([slowed(run, np.linspace(1, 1.6, 120)) for run in sweep()]) == []


def test_an_odd_seed_is_named_with_its_figures():
    (doubt,) = doubts(study(changed(sweep(), lambda r: slowed(r, 1.5), 2, seed=1)))
    assert doubt.kind == "run"
    assert doubt.sentence.startswith("W=2, seed 1 made 8")
    assert "other seeds made 12" in doubt.sentence
    assert "dist.world_size=2 seed=1" in doubt.again


def scaled(run, by):
    """The same run, faster by a factor in everything."""
    return replace(
        run, fps=by * run.fps, wall_s=run.wall_s / by, times={n: t / by for n, t in run.times.items()}
    )


def at_speeds(speeds):
    """Runs of a system, brought to these FPS: {W: one for each seed}."""
    runs = {(r.world_size, r.seed): r for r in sweep(tuple(speeds), max(map(len, speeds.values())))}
    return [
        scaled(runs[w, s], fps / runs[w, s].fps) for w, of_w in speeds.items() for s, fps in enumerate(of_w)
    ]


@pytest.mark.parametrize(
    ("speeds", "told", "again"),
    [
        (  # so few others tell nothing of chance, but five times is no repeat
            {1: [72, 300, 310], 2: [330, 480, 560], 4: [600, 650, 850]},
            "W=1, seed 0 made 72 steps/s where its other seeds made 300 to 310.",
            "dist.world_size=1 seed=0 again",
        ),
        (  # which of two is the odd one, nobody knows
            {1: [100, 310], 2: [400, 410]},
            "W=1, seed 0 made 100 steps/s where its other seed made 310.",
            "dist.world_size=1 seed=0,1 again",
        ),
    ],
)
def test_seeds_that_differ_by_more_than_a_factor_of_two_are_no_repeats(speeds, told, again):
    (doubt,) = doubts(study(at_speeds(speeds)))
    assert (doubt.kind, doubt.sentence) == ("run", told)
    assert again in doubt.again


def test_a_run_has_one_reason_and_is_to_be_run_again_once():
    factors = np.where(np.arange(120) > 70, 6.0, 1.0)
    (doubt,) = doubts(study(changed(sweep(), lambda r: slowed(r, factors), 2, seed=1)))
    assert doubt.kind == "pace"


def test_a_w_that_may_be_slower_than_the_smallest_is_recommended_with_a_perhaps_only():
    runs = at_speeds({1: [200, 300, 310], 2: [330, 480, 560]})
    said = compute(ReportOptions(path="made up"), FoundStudies([Reading(runs, [])], [])).studies[0]
    assert said.study.rows[1].speedup.low < 1
    assert said.ahead.recommendation.doubt == "It may be slower than W=1: run more seeds before you use it."
    first = next(line for line in answer(said, ReportOptions(path="")) if line.about == "Use")
    assert first.text.startswith("Perhaps W=2: ")
    assert first.text.endswith(said.ahead.recommendation.doubt)


def test_a_cause_whose_interval_reaches_0_is_not_certain_and_has_no_remedy():
    runs = at_speeds({1: [200, 300, 310], 2: [330, 440, 560]})
    said = compute(ReportOptions(path="made up"), FoundStudies([Reading(runs, [])], [])).studies[0]
    (why,) = said.why
    assert said.accounts[-1].between[why.main][0] < 0
    assert why.remedy == ""
    lines = {line.about: line.text for line in answer(said, ReportOptions(path=""))}
    assert "(not certainly)" in lines["Time"]
    assert "Against the loss" not in lines.get("Next", "")


def test_a_base_that_was_slow_throughout_is_told_by_an_efficiency_above_one():
    runs = changed(sweep(), lambda r: slowed(r, 1.5), 1)
    (doubt,) = doubts(study(runs))
    assert doubt.kind == "base"
    assert "dist.world_size=1" in doubt.again


def test_a_base_that_is_off_the_line_of_the_others_is_told_without_an_efficiency_above_one():
    def lossy(factor):
        runs = [
            make_run(w, seed, parts={"t_rollout": 0.8 / w, "t_learn": 0.2 + 0.2 / w}, iterations=60)
            for w in (1, 2, 4, 8)
            for seed in range(3)
        ]
        return study(changed(runs, lambda r: slowed(r, factor), 1))

    assert max(row.efficiency.median for row in lossy(1.2).rows) < 1.1
    (doubt,) = doubts(lossy(1.2))
    assert doubt.kind == "base"
    assert "1.2 times as slowly as the other W let expect" in doubt.sentence
    assert doubts(lossy(1.0)) == []


def test_a_gain_of_learning_alone_has_a_cause_that_is_seen():
    def cached(run):
        times = {name: t.copy() for name, t in run.times.items()}
        times["t_iter"] -= 0.7 * times["t_learn"]
        times["t_learn"] *= 0.3
        return replace(run, times=times, fps=80 / float(times["t_iter"].mean()))

    found = study(changed(sweep((1, 2)), cached, 2))
    assert found.row(2).efficiency.median > 1.1
    assert doubts(found) == []


def test_a_doubted_study_names_no_cause_no_remedy_no_w_and_passes_nothing():
    runs = changed(sweep(), lambda r: slowed(r, 1.5), 1)
    said = compute(ReportOptions(path="made up"), FoundStudies([Reading(runs, [])], [])).studies[0]
    assert said.doubts
    assert (said.why, said.accounts, said.ahead.recommendation, said.ahead.as_measured) == ([], [], None, ())
    assert said.criteria[0].result == "NOT CERTAIN"


# -- What is left out, and what lies outside.


def test_a_slow_start_and_a_stall_are_left_out_of_all_speeds_and_told():
    factors = np.ones(120)
    factors[:10], factors[60] = 5.0, 40.0
    before = sweep()
    after, (told,) = steady(changed(before, lambda r: slowed(r, factors), 4, seed=0))
    assert study(after).row(4).speedup.median == pytest.approx(study(before).row(4).speedup.median, rel=0.01)
    assert "W=4, seed 0: the first 10 iterations (5 times as long as the others" in told
    assert "W=4, seed 0: iteration 61 after warm-up" in told
    kept, told = steady(before)
    assert told == []
    assert kept == before


def test_an_evaluation_that_takes_longer_than_training_is_told():
    runs = [replace(run, eval_s=30 * run.wall_s if run.world_size == 4 else 0.1) for run in sweep()]
    (told,) = outside_training(study(runs))
    assert "at W=4 30 times as long" in told
    assert outside_training(study(sweep())) == []


def test_it_is_told_what_the_intervals_cover():
    (turns,), (blocks,) = (covered(study(sweep(interleaved=x))) for x in (True, False))
    assert "this machine, this day" in turns
    assert "took turns" in turns
    assert "in no interval" in blocks
    assert "seeds take turns over W" in blocks


def test_weak_scaling_without_a_target_is_compared_at_the_highest_return_that_all_reached():
    def learning(run):
        curve = tuple(Evaluation(i, i * run.world_size, 10.0 * i / run.world_size) for i in (1, 2, 4))
        return replace(run, rule="weak", evaluations=curve)

    runs, (remark,) = with_target([learning(run) for run in sweep()], None)
    assert {run.target_return for run in runs} == {10.0}  # 40 / 4
    assert "the highest that every W reached" in remark
    assert with_target(sweep(), None)[1] == []


def test_a_target_that_only_one_side_reached_bounds_the_speedup_by_time():
    def at(times):
        found = {"target_return": 50.0, "wall_s": 100.0}
        runs = [
            make_run(w, s, fps=float(w), reached_at_s=t, **found) for w, t in times.items() for s in range(3)
        ]
        return study(runs).row(2).speedup_by_target

    never = at({1: float("inf"), 2: 20.0})
    assert (never.low, never.high) == (5.0, float("inf"))
    lost = at({1: 20.0, 2: float("inf")})
    assert (lost.low, lost.high) == (0.0, 0.2)
