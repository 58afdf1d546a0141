from dataclasses import replace

import numpy as np
import pytest

from ddppo.errors import ConfigError
from ddppo.study.explain.accounting import accounts
from ddppo.study.explain.sentences import explained
from ddppo.study.measure.pace import steady
from ddppo.study.measure.slow import slowness
from ddppo.study.measure.speedup import study
from ddppo.study.predict.model import fit
from ddppo.study.read.record import Origin
from tests.study.scaling_folders import make_run, points


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


@pytest.mark.parametrize(
    ("rollout", "slow"),
    [([2.0, 1.0], {}), ([4.0, 1.0], {0: 2.0}), ([1.2, 1.0], {}), ([2.0, 2.0], {1: 2.0})],
    ids=["in proportion", "twice as slow", "nearly as fast", "slow with fewer"],
)
def test_a_rank_with_an_environment_more_is_slow_only_if_it_is_for_their_number(rollout, slow):
    # 8 environments over 7 ranks: rank 0 has two.
    times = [*rollout, 1.0, 1.0, 1.0, 1.0, 1.0]
    run = make_run(7, parts={"t_rollout": times, "t_sync": [max(times) - t for t in times]})
    assert slowness(run, expected={}).ranks.get("t_rollout", {}) == slow


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
    # Two cores. p = 0.5 + 7.5 g as W=1 and 2 show, 1.4375 at W=8, which turns stretch 4 times.
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    two = make_run(2, parts={"t_rollout": 4.25}, cores=2)
    eight = make_run(8, parts={"t_rollout": 5.75}, cores=2)
    account = accounts(of(base, two, eight))[-1]
    assert account.shares["acting"] == pytest.approx(0.4375 / 5.75)
    assert account.shares["cores"] == pytest.approx(3 * 1.4375 / 5.75)
    assert account.shares["acting"] + account.shares["cores"] == pytest.approx(account.loss)


def test_cores_are_charged_no_more_than_turns_explain():
    # f = 2 stretches the ideal 0.25 s to 0.5 s at most; that 10 s are half turns, as was said once, nothing shows.
    base = make_run(1, parts={"t_learn": 1.0}, cores=2)
    four = make_run(4, parts={"t_learn": 10.0}, cores=2)
    (account,) = accounts(of(base, four))
    assert account.shares["cores"] == pytest.approx(0.025)
    assert account.shares["learning"] == pytest.approx(0.95)


def test_learning_that_takes_the_same_at_1_and_8_workers_is_not_the_cores_fault():
    base = make_run(1, parts={"t_learn": 1.0}, cores=2)
    found = of(base, make_run(8, parts={"t_learn": 1.0}, cores=2))
    (account,) = accounts(found)
    assert account.shares["learning"] == pytest.approx(0.5)
    assert account.shares["cores"] == pytest.approx(3 / 8)
    assert account.cores_between == pytest.approx((0.0, 3 / 8))
    assert "cannot be told apart, and the cores may take from 0 % to 38 %" in in_words(found)


@pytest.mark.parametrize("collective", ["shm", "gloo", ""])
def test_exchanges_and_waiting_that_grow_only_where_cores_are_crowded_are_the_cores_share(collective):
    # 32 ranks on 2 cores. At W=2 waiting takes 0.4 ms, exchanges 0.3 ms; at W=32 60 and 45 ms.
    parts = {
        1: {"t_rollout": 0.001, "t_learn": 0.02},
        2: {"t_rollout": 0.0005, "t_learn": 0.011, "t_sync": 0.0004, "t_comm": 0.0003},
        32: {"t_rollout": 0.0002, "t_learn": 0.0044, "t_sync": 0.06, "t_comm": 0.045},
    }
    runs = [make_run(w, parts=p, cores=2, num_parameters=9155) for w, p in parts.items()]
    runs = [replace(run, origin=Origin(collective=collective, num_hosts=1)) for run in runs]
    found = of(*runs)
    shares = accounts(found)[-1].shares
    assert shares["cores"] > 0.85
    assert shares["communication"] < 0.1  # at most 31 times what it takes at W=2
    assert shares["waiting"] == pytest.approx(0.0004 * 2.07 / 0.564 / 0.1096, rel=0.01)
    words = in_words(found)
    assert "32 compute threads take turns on 2 cores" in words
    assert not any(word in words for word in ("network", "grad_sync", "fewer exchanges"))


def test_what_exchanging_itself_grows_by_stays_communication_on_crowded_cores():
    # Latency alone: 0.07 s at W=2 is 0.49 s at W=8, whatever the cores; the other 0.51 s are turns.
    runs = [
        make_run(w, parts={"t_learn": 8.0 / w, "t_comm": t}, cores=2)
        for w, t in ((1, 0), (2, 0.07), (8, 1.0))
    ]
    shares = accounts(of(*(replace(run, num_parameters=0) for run in runs)))[-1].shares
    assert shares["communication"] == pytest.approx(0.49 / 2.0)
    assert shares["cores"] == pytest.approx(0.51 / 2.0)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.05, "more cores, or fewer workers: W=2 is 1.5 times as fast."), (0.01, "more cores.")],
)
def test_fewer_workers_are_advised_on_crowded_cores_only_where_they_are_no_slower(seconds, said):
    runs = [
        make_run(w, parts={"t_rollout": 0.08 / w, "t_sync": t}, cores=2)
        for w, t in ((1, 0), (2, 0.0001), (8, seconds))
    ]
    assert in_words(of(*runs)).endswith(f"Remedy: {said}")


def test_sleeping_environments_that_scale_well_blame_the_cores_for_little():
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    eight = make_run(8, parts={"t_rollout": 1.04}, cores=2)
    (account,) = accounts(of(base, eight))
    assert account.shares["cores"] == pytest.approx(0.04 / 1.04)


def test_what_was_lost_before_cores_were_short_is_not_charged_to_them():
    # 0.04 s at W=2 are 0.08 (1 - g) s that do not shrink: 0.07 s at W=8.
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    two = make_run(2, parts={"t_rollout": 4.04}, cores=2)
    eight = make_run(8, parts={"t_rollout": 1.09}, cores=2)
    account = accounts(of(base, two, eight))[-1]
    assert account.shares["acting"] == pytest.approx(0.07 / 1.09)
    assert account.shares["cores"] == pytest.approx(0.02 / 1.09)


def test_what_a_slow_rank_needs_more_is_not_charged_to_the_cores():
    # Three times the others' is more than two ranks on a core make of a rollout.
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    slow = make_run(4, parts={"t_rollout": [2.0, 2.0, 2.0, 6.0], "t_sync": [4.0, 4.0, 4.0, 0.0]}, cores=2)
    (account,) = accounts(of(base, slow))
    assert account.shares["cores"] == pytest.approx(0.0, abs=1e-12)
    assert account.shares["slow"] == pytest.approx(4.0 / 6.0)
    assert account.shares["waiting"] == pytest.approx(0.0, abs=1e-12)


def test_a_rank_that_taking_turns_alone_makes_later_is_not_slow():
    base = make_run(1, parts={"t_rollout": 8.0}, cores=2)
    late = make_run(4, parts={"t_rollout": [2.8, 2.0, 2.0, 2.0], "t_sync": [0.0, 0.8, 0.8, 0.8]}, cores=2)
    found = of(base, late)
    assert found.row(4).slow_ranks == ()
    assert "waiting for rank 0" not in in_words(found)


def test_runs_without_times_have_no_account():
    found = of(make_run(1, fps=10.0), make_run(2, fps=15.0))
    assert accounts(found) == []
    assert "cannot be explained" in in_words(found)


def test_the_paragraph_names_the_main_cause_the_rank_what_curing_it_gives_and_a_remedy():
    base = make_run(1, parts={"t_rollout": 8.0})
    slow = {"t_rollout": [2.0, 2.0, 2.0, 4.0], "t_sync": [2.0, 2.0, 2.0, 0.0]}
    found = of(base, make_run(4, parts=slow))
    # 4 s instead of 2. Like the others the rank would take 2 s, and nothing would be lost.
    assert accounts(found)[0].shares["slow"] == pytest.approx(0.5)
    words = in_words(found)
    assert "50 % of the iteration (2 s) goes to waiting for rank 3" in words
    assert "whose rollouts took 2 times as long as the others'" in words
    assert "efficiency 50 %" in words
    assert "Without that loss, efficiency would be about 100 %" in words
    assert "Remedy: find what slows rank 3 (other programs, its environments)" in words


@pytest.mark.parametrize(
    ("at", "rollout", "slow"),
    [
        (2, [4.0, 8.0], [1]),
        (4, [2.0, 2.0, 4.0, 4.0], [2, 3]),
        (4, [2.0, 4.0, 4.0, 4.0], [1, 2, 3]),
        (4, [2.0, 2.0, 2.0, 2.1], []),
        (4, [1.0, 2.0, 2.0, 2.0], []),  # one is fast, and the others as W=1 lets expect
        (2, [8.0, 8.0], []),  # both: nothing tells it from acting that does not shrink
    ],
)
def test_the_slow_ranks_are_those_above_the_level_that_other_world_sizes_let_expect(at, rollout, slow):
    waits = [max(rollout) - x for x in rollout]
    found = of(
        make_run(1, parts={"t_rollout": 8.0}), make_run(at, parts={"t_rollout": rollout, "t_sync": waits})
    )
    assert [rank.rank for rank in found.rows[1].slow_ranks] == slow
    (account,) = accounts(found)
    assert account.shares["slow"] == pytest.approx(account.loss if slow else 0.0, abs=0.03)


def test_a_rank_that_is_slow_in_learning_is_named_with_learning():
    base = make_run(1, parts={"t_rollout": 4.0, "t_learn": 4.0})
    slow = {"t_rollout": 1.0, "t_learn": [1.0, 2.5, 1.0, 1.0], "t_sync": [1.5, 0.0, 1.5, 1.5]}
    words = in_words(of(base, make_run(4, parts=slow)))
    assert "waiting for rank 1, whose learning took 2.5 times as long as the others'" in words
    assert "preemption" not in words


def test_slow_ranks_that_are_all_those_of_one_node_are_named_as_the_node():
    base = make_run(1, parts={"t_rollout": 4.0, "t_learn": 4.0})
    halves = [1.0, 1.0, 2.0, 2.0]
    slow = {"t_rollout": halves, "t_learn": halves, "t_sync": [2.0, 2.0, 0.0, 0.0]}
    nodes = Origin(hosts=("a", "a", "b", "b"), num_hosts=2)
    words = in_words(of(base, replace(make_run(4, parts=slow), origin=nodes)))
    assert "waiting for node b (ranks 2, 3), whose rollouts and learning took up to 2 times as long" in words
    assert "find what slows node b" in words


def test_a_learner_among_actors_is_not_slow_for_learning():
    runs = [make_run(1, parts={"t_rollout": 0.4, "t_learn": 0.4})]
    runs.append(
        make_run(
            4,
            parts={"t_rollout": [0, 0.2, 0.2, 0.2], "t_learn": [0.4, 0, 0, 0], "t_sync": 0.1},
            topology="sync_actors",
        )
    )
    assert study(runs).row(4).slow_ranks == ()
    with pytest.raises(ConfigError, match="not other topologies"):
        fit(runs)


def test_noise_makes_no_slow_rank():
    rng = np.random.default_rng(0)
    base = make_run(1, parts={"t_rollout": 8.0}, iterations=60)
    run = make_run(8, parts={"t_rollout": 1.0}, iterations=60)
    found = []
    for seed in range(40):
        rollout = rng.lognormal(0, 0.5, (60, 8))
        times = {**run.times, "t_rollout": rollout, "t_sync": rollout.max(axis=1, keepdims=True) - rollout}
        found += of(base, replace(run, seed=seed, times=times)).row(8).slow_ranks
    assert len(found) <= 1


def test_a_stall_of_one_seed_changes_nothing_that_is_said_but_a_remark():
    base = [make_run(1, seed, parts={"t_learn": 0.02}, iterations=1500) for seed in range(3)]
    many = [
        make_run(4, seed, parts={"t_learn": 0.012 + 0.0001 * seed, "t_comm": 0.002}, iterations=1500)
        for seed in range(3)
    ]
    times = {name: t.copy() for name, t in many[0].times.items()}
    times["t_rollout"][700, 3] += 4.0
    times["t_sync"][700, :3] += 4.0
    times["t_iter"][700] += 4.0
    stalled = replace(many[0], times=times, fps=80 / float(times["t_iter"].mean()))
    kept, told = steady([*base, stalled, *many[1:]])
    before, after = of(*base, *many), of(*kept)
    assert accounts(after)[0].shares == pytest.approx(accounts(before)[0].shares, abs=0.01)
    (said,), (now,) = (explained(found, accounts(found), [4]) for found in (before, after))
    assert said.main == now.main == "learning"
    assert after.row(4).slow_ranks == ()
    assert len(accounts(after)[0].by_seed["learning"]) == 3
    (remark,) = told
    assert "W=4, seed 0: iteration 701 after warm-up (4.01 s" in remark
    assert after.row(4).fps.median == pytest.approx(before.row(4).fps.median)
    assert steady([*base, *many])[1] == []


def test_no_part_is_more_than_the_whole():
    base = make_run(1, parts={"t_rollout": 8.0, "t_learn": 2.0})
    words = in_words(of(base, make_run(4, parts={"t_rollout": 1.0, "t_learn": 0.5, "t_comm": 1.5})))
    # Efficiency 83 %: exchanges take 50 % of the iteration, acting on less data 33 % less than ideal.
    assert "50 % of the iteration (1.5 s) goes to communication" in words
    assert "Less than ideal, a gain: acting 33 %" in words
    assert "efficiency would be about" not in words  # efficiency would be 167 %


def test_what_a_part_takes_is_unexplained_where_runs_do_not_tell_it():
    base, two = (make_run(w, parts={"t_rollout": 8.0 / w, "t_learn": 1.0}) for w in (1, 2))
    told = {"t_rollout", "t_iter"}
    found = of(
        *(replace(run, times={n: t for n, t in run.times.items() if n in told}) for run in (base, two))
    )
    (account,) = accounts(found)
    assert account.missing == ("t_learn", "t_sync", "t_comm", "t_other")
    assert account.shares["unexplained"] == pytest.approx(account.loss)
    assert "do not record t_learn, t_sync, t_comm, t_other" in in_words(found)


@pytest.mark.parametrize(
    ("origin", "num_parameters", "advised"),
    [
        (Origin(collective="gloo", num_hosts=1), 10**6, ["dist.collective=shm"]),
        (Origin(collective="gloo", num_hosts=2), 10**6, ["dist.collective=shm", "faster network"]),
        (Origin(collective="shm", num_hosts=1), 10**6, []),
        (Origin(collective="shm+gloo", hosts=("a", "b")), 10**6, ["faster network"]),
        (Origin(collective="nccl", num_hosts=1), 10**6, ["dist.grad_sync=ddp"]),
        (Origin(collective="nccl", num_hosts=2), 9155, ["faster network"]),
        (Origin(), 9155, []),
    ],
)
def test_what_costs_less_to_exchange_depends_on_hosts_parameters_and_collective(
    origin, num_parameters, advised
):
    runs = [
        make_run(w, parts={"t_learn": 1.0, "t_comm": w - 1.0}, num_parameters=num_parameters) for w in (1, 2)
    ]
    words = in_words(of(runs[0], replace(runs[1], origin=origin)))
    assert "goes to communication" in words
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
