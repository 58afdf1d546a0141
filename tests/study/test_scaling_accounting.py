import math
from dataclasses import replace

import numpy as np
import pytest
from scaling_folders import make_run, points

from ddppo.errors import ConfigError
from ddppo.study.explain.accounting import accounts
from ddppo.study.explain.criteria import (
    FAIL,
    PASS,
    UNCERTAIN,
    UNKNOWN,
    loss_explained,
    returns_agree,
    speedup_increases,
)
from ddppo.study.explain.words import explained
from ddppo.study.measure.speedup import study
from ddppo.study.runs import Origin


def of(*runs):
    return study(list(runs))


def in_words(found):
    """What is said of the largest W."""
    (said,) = explained(found, accounts(found), found.world_sizes[-1:])
    return str(said)


def test_speedup_and_efficiency_of_hand_worked_throughputs():
    found = of(make_run(1, fps=100.0), make_run(2, fps=180.0), make_run(4, fps=240.0))
    assert [row.speedup.median for row in found.rows] == [1.0, 1.8, 2.4]
    assert [row.efficiency.median for row in found.rows] == [1.0, 0.9, 0.6]


def test_throughput_is_the_median_over_seeds():
    found = of(*(make_run(1, seed, fps=fps) for seed, fps in enumerate([100.0, 10.0, 130.0])))
    assert found.rows[0].fps.median == 100.0


def test_speedup_by_time_to_target_is_the_ratio_of_medians():
    runs = [make_run(1, fps=1.0, evaluations=points(0, 0, 60), target_return=50.0)]
    runs += [make_run(2, fps=1.0, evaluations=points(0, 60, every_s=7.5), target_return=50.0)]
    row = of(*runs).row(2)
    assert row.speedup_by_target.median == 2.0
    assert row.efficiency_by_target.median == 1.0


def test_without_one_worker_the_smallest_world_is_the_measure():
    found = of(make_run(2, fps=100.0), make_run(4, fps=150.0))
    assert found.baseline == 2
    assert [row.speedup.median for row in found.rows] == [1.0, 1.5]
    assert [row.efficiency.median for row in found.rows] == [1.0, 0.75]


def test_latency_and_ratios_are_over_means_of_ranks():
    run = make_run(2, parts={"t_rollout": [0.5, 0.3], "t_sync": [0.0, 0.2], "t_comm": 0.5})
    row = of(run).rows[0]
    assert row.t_iter == pytest.approx({"mean": 1.0, "p50": 1.0, "p95": 1.0, "max": 1.0})
    assert row.rho_comm == pytest.approx(0.5)
    assert row.rho_sync == pytest.approx(0.1)


def test_a_rank_a_tenth_slower_than_the_median_rank_is_a_straggler_and_gets_the_blame():
    slow = {"t_rollout": [1.0, 1.0, 1.0, 1.5], "t_sync": [0.5, 0.5, 0.5, 0.0]}
    row = of(make_run(4, parts=slow)).rows[0]
    assert [rank.rank for rank in row.slow_ranks] == [3]
    assert row.ranks[3].ratio == 1.5
    assert [rank.blame for rank in row.ranks] == [0.0, 0.0, 0.0, 1.0]


def test_a_slower_rank_whose_rollout_hardly_matters_is_no_straggler():
    run = make_run(2, parts={"t_rollout": [0.001, 0.002], "t_learn": 10.0})
    assert of(run).rows[0].slow_ranks == ()


def test_the_loss_under_strong_scaling_is_split_by_hand_worked_shares():
    base = make_run(1, parts={"t_rollout": 6.0, "t_learn": 2.0})
    many = make_run(4, parts={"t_rollout": 2.0, "t_learn": 1.0, "t_sync": 0.5, "t_comm": 0.4, "t_other": 0.1})
    (account,) = accounts(of(base, many))
    # 4.0 s where 8 / 4 = 2.0 would be ideal: half is lost.
    assert account.efficiency == pytest.approx(0.5)
    expected = {"acting": 0.5, "learning": 0.5, "waiting": 0.5, "communication": 0.4, "other": 0.1}
    for cause, seconds in expected.items():
        assert account.shares[cause] == pytest.approx(seconds / 4.0)
    assert account.shares["cores"] == 0.0
    assert account.unexplained == pytest.approx(0.0, abs=1e-12)


def test_under_weak_scaling_the_ideal_iteration_takes_as_long_as_with_one_worker():
    base = make_run(1, parts={"t_rollout": 6.0, "t_learn": 2.0}, rule="weak")
    many = make_run(4, parts={"t_rollout": 6.5, "t_learn": 2.0, "t_sync": 1.5}, rule="weak", steps=320)
    found = of(base, many)
    (account,) = accounts(found)
    assert found.row(4).speedup.median == pytest.approx(3.2)
    assert account.efficiency == pytest.approx(0.8)
    assert account.shares["acting"] == pytest.approx(0.05)
    assert account.shares["waiting"] == pytest.approx(0.15)


def test_iterations_that_collect_fewer_steps_are_held_against_less_work():
    base = make_run(1, parts={"t_rollout": 8.0})
    cut_short = make_run(2, parts={"t_rollout": 2.0}, steps=40)
    (account,) = accounts(of(base, cut_short))
    assert account.efficiency == pytest.approx(1.0)
    assert account.shares["acting"] == pytest.approx(0.0, abs=1e-12)


def test_wall_clock_time_that_no_part_covers_is_unexplained():
    base = make_run(1, parts={"t_rollout": 8.0})
    many = make_run(2, parts={"t_rollout": 4.0}, fps=80 / 5.0)
    (account,) = accounts(of(base, many))
    assert account.unexplained == pytest.approx(1.0 / 5.0)
    assert sum(account.shares.values()) == pytest.approx(account.loss, abs=1e-9)


def test_seeds_of_different_speed_still_add_up_to_the_reported_efficiency():
    runs = [make_run(1, seed, parts={"t_rollout": t}) for seed, t in enumerate([8.0, 9.0, 30.0])]
    runs += [
        make_run(2, seed, parts={"t_rollout": t, "t_comm": 1.0}) for seed, t in enumerate([5.0, 5.5, 50.0])
    ]
    found = of(*runs)
    (account,) = accounts(found)
    assert account.loss == 1 - found.row(2).efficiency.median
    assert sum(account.shares.values()) == pytest.approx(account.loss, abs=1e-9)
    assert account.unexplained == pytest.approx(0.0, abs=1e-9)


def test_computing_that_turns_on_shared_cores_stretch_is_charged_to_the_cores():
    # Two cores, 8 ranks: p(8) = 4 (8 / 8 + 0.25) where 0.25 s per rank do not shrink, as W=2 shows.
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    two = make_run(2, parts={"t_rollout": 4.25}, cores=2)
    eight = make_run(8, parts={"t_rollout": 5.0}, cores=2)
    account = accounts(of(base, two, eight))[-1]
    assert account.shares["acting"] == pytest.approx(0.25 / 5.0)
    assert account.shares["cores"] == pytest.approx(3.75 / 5.0)
    assert account.shares["acting"] + account.shares["cores"] == pytest.approx(account.loss)


def test_cores_are_charged_no_more_than_turns_explain():
    base = make_run(1, parts={"t_learn": 1.0}, cores=2)
    four = make_run(4, parts={"t_learn": 10.0}, cores=2)
    (account,) = accounts(of(base, four))
    assert account.shares["cores"] == pytest.approx(0.5)
    assert account.shares["learning"] == pytest.approx((10.0 - 0.25 - 5.0) / 10.0)


def test_sleeping_environments_that_scale_well_blame_the_cores_for_little():
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    eight = make_run(8, parts={"t_rollout": 1.04}, cores=2)
    (account,) = accounts(of(base, eight))
    assert account.shares["cores"] == pytest.approx(0.04 / 1.04)


def test_what_was_lost_before_cores_were_short_is_not_charged_to_them():
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    two = make_run(2, parts={"t_rollout": 4.04}, cores=2)
    eight = make_run(8, parts={"t_rollout": 1.05}, cores=2)
    account = accounts(of(base, two, eight))[-1]
    assert account.shares["acting"] == pytest.approx(0.04 / 1.05)
    assert account.shares["cores"] == pytest.approx(0.01 / 1.05)


def test_what_a_slow_rank_needs_more_is_not_charged_to_the_cores():
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    slow = make_run(4, parts={"t_rollout": [2.0, 2.0, 2.0, 6.0], "t_sync": [4.0, 4.0, 4.0, 0.0]}, cores=2)
    (account,) = accounts(of(base, slow))
    assert account.shares["cores"] == pytest.approx(0.0, abs=1e-12)
    assert account.shares["slow"] == pytest.approx(1.0 / 6.0)
    assert account.shares["waiting"] == pytest.approx(3.0 / 6.0)


def test_runs_without_times_have_no_account():
    found = of(make_run(1, fps=10.0), make_run(2, fps=15.0))
    assert accounts(found) == []
    assert "cannot be explained" in in_words(found)


def test_the_paragraph_names_the_main_cause_the_rank_and_a_remedy():
    base = make_run(1, parts={"t_rollout": 8.0})
    slow = {"t_rollout": [2.0, 2.0, 2.0, 4.0], "t_sync": [2.0, 2.0, 2.0, 0.0]}
    words = in_words(of(base, make_run(4, parts=slow)))
    # 4 s instead of 2; waiting is 1.5 s of the 2 s lost, what rank 3 itself needs more the other (4 - 2) / 4 s.
    assert "75 % of the loss at W=4 is waiting for rank 3" in words
    assert "2 times the median rank's" in words
    assert "slow ranks 25 %" in words
    assert "efficiency 50 %" in words
    assert "What would help" in words


@pytest.mark.parametrize(
    ("collective", "num_hosts", "advised"),
    [
        ("gloo", 1, ["dist.collective=shm"]),
        ("gloo", 2, ["dist.collective=shm", "faster network"]),
        ("shm", 1, []),
        ("shm+gloo", 2, ["faster network"]),
        ("nccl", 1, ["faster network", "dist.grad_sync=ddp"]),
        ("", 0, ["faster network", "dist.grad_sync=ddp"]),
    ],
)
def test_what_costs_less_to_exchange_depends_on_how_ranks_exchange(collective, num_hosts, advised):
    base, two = (make_run(w, parts={"t_learn": 1.0, "t_comm": w - 1.0}) for w in (1, 2))
    words = in_words(of(base, replace(two, origin=Origin(collective=collective, num_hosts=num_hosts))))
    assert "of the loss at W=2 is communication" in words
    assert "fewer exchanges per iteration" in words
    known = ["dist.collective=shm", "faster network", "dist.grad_sync=ddp"]
    assert [word for word in known if word in words] == advised


def test_the_paragraph_says_when_ranks_are_late_in_turn():
    base = make_run(1, parts={"t_rollout": 12.0})
    run = make_run(3, parts={"t_rollout": 6.0}, iterations=3)
    late = np.eye(3)  # in iteration i rank i is last, and the others wait for it
    times = {**run.times, "t_rollout": 4.0 + 2.0 * late, "t_sync": 2.0 * (1 - late)}
    words = in_words(of(base, replace(run, times=times)))
    assert "waiting, for no rank in particular" in words


def test_a_study_that_scales_ideally_has_nothing_to_explain():
    words = in_words(of(make_run(1, parts={"t_rollout": 8.0}), make_run(2, parts={"t_rollout": 4.0})))
    assert "nothing to explain" in words


def test_one_world_size_alone_is_compared_with_nothing():
    assert "Only W=1" in in_words(of(make_run(1, parts={"t_rollout": 8.0})))


def test_no_runs_are_an_error_and_not_a_crash():
    with pytest.raises(ConfigError, match="no usable run"):
        study([])


def test_speedup_must_rise_at_every_step():
    rising = of(make_run(1, fps=100.0), make_run(2, fps=101.0))
    falling = of(*(make_run(w, fps=fps, cores=2) for w, fps in ((1, 100.0), (2, 150.0), (4, 150.0))))
    assert speedup_increases(rising).result == PASS
    verdict = speedup_increases(falling)
    assert verdict.result == FAIL
    assert "W=4 is no faster than W=2" in verdict.reason
    assert "2 compute threads on each of 2 cores" in verdict.reason
    assert speedup_increases(of(make_run(1, fps=1.0))).result == UNKNOWN


def with_returns(at_1, at_2):
    runs = [make_run(1, seed, fps=1.0, final_return=float(r)) for seed, r in enumerate(at_1)]
    return of(*runs, *(make_run(2, seed, fps=2.0, final_return=float(r)) for seed, r in enumerate(at_2)))


@pytest.mark.parametrize(
    ("at_1", "at_2", "options", "result", "said"),
    [
        ([100, 101], [99, 100], {}, PASS, "all intervals lie within"),
        ([100, 101], [60, 61], {}, FAIL, "outside the tolerance"),
        ([100, 101], [60, 110], {}, UNCERTAIN, "more seeds would tell"),
        ([100, 101], [90, 110], {}, PASS, "the interval reaches beyond it"),
        ([100, 101], [60, 61], {"absolute": 50.0}, PASS, "tolerance 50"),
        ([100], [99], {}, PASS, "one seed at some W"),
        ([0, 0], [1, 1], {}, FAIL, "return_tolerance_abs"),
        ([math.nan], [math.nan], {}, UNKNOWN, "no final return"),
    ],
)
def test_final_returns_must_agree_within_the_tolerance(at_1, at_2, options, result, said):
    verdict = returns_agree(with_returns(at_1, at_2), relative=0.05, **options)
    assert verdict.result == result
    assert said in verdict.reason


def test_an_unexplained_part_under_5_percent_passes_and_more_fails():
    base = make_run(1, parts={"t_rollout": 8.0})
    nearly = make_run(2, parts={"t_rollout": 4.0, "t_comm": 3.9}, fps=80 / 8.0)
    hardly = make_run(2, parts={"t_rollout": 4.0, "t_comm": 3.0}, fps=80 / 8.0)
    assert loss_explained(accounts(of(base, nearly)), tolerance=0.05).result == PASS
    assert loss_explained(accounts(of(base, hardly)), tolerance=0.05).result == FAIL
    assert loss_explained([], tolerance=0.05).result == UNKNOWN
