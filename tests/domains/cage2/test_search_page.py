"""The page of made-up searches over orders: what it says is true, whole, and readable at any time of a search."""

import json
import math
import random
import re

import numpy as np
import pytest

from ddppo import report as door
from ddppo.domains.cage2.search.orders import ORDERS, words
from ddppo.domains.cage2.search_files import FILE, SAMPLING_LOG, TRAINING_LOG, TrialRecord, read_search
from ddppo.domains.cage2.search_findings import (
    best_so_far,
    by_inheritance,
    by_place,
    curve,
    learned_from,
    lineage,
    named,
    rank_correlation,
)
from ddppo.domains.cage2.search_report import charts, make_report, page
from ddppo.errors import ConfigError, RunFolderError
from ddppo.search.__main__ import SearchOptions, shown
from ddppo.study.report import ReportOptions, read
from tests.domains.cage2.search_folders import MadeUp, searched
from tests.study.test_page import NUMBERS, text_of
from tests.study.test_scaling_garbage import FOREIGN
from tests.study.test_scaling_garbage import NUMBERS as ODD_NUMBERS


@pytest.fixture(scope="module")
def made_up():
    return searched(12)


def change(folder, name, value):
    told = json.loads((folder / FILE).read_text())
    told[name] = value
    (folder / FILE).write_text(json.dumps(told))


def test_a_search_says_its_best_order_the_gate_what_was_inherited_and_the_presets(made_up, tmp_path):
    text = text_of(page(read_search(made_up.complete(made_up.write(tmp_path)))))
    passed = [trial for trial in made_up.trials if trial["passed"]]
    best = max(passed, key=lambda trial: trial["score"])
    assert "The search has ended: 12 trials have a score" in text
    assert "Best of the orders that passed the gate, by the posterior, is" in text
    assert f"(order {best['order_id']}): mean" in text
    assert (
        f"Expected to be higher, but did not pass the gate: {named(37)} (order 37)" in text
    )  # trial 4's, the truth
    assert (
        "10 of 12 trials passed the gate of 95 % compliance; the others met the limit of episodes (2)."
        in text
    )
    assert "trials from nothing took a median of 440 episodes (1 of 1 passed)" in text
    for preset in (
        "critical_first",
        "enterprise_focus",
        "user_priority",
        "operational_focus",
        "balanced",
        "reverse",
    ):
        assert preset in text


def test_the_page_says_what_a_repeated_trial_differs_by_and_not_only_the_spread_of_episodes(tmp_path):
    search = searched(12)
    search.trials[3]["order_id"] = search.trials[2]["order_id"]
    search.trials[2]["score"], search.trials[3]["score"] = -40.0, -46.0
    change(
        search.write(tmp_path),
        "posterior",
        {"mean": [-50.0] * 120, "deviation": [2.0] * 120, "noise_deviation": 3.5},
    )
    text = text_of(page(read_search(tmp_path)))
    assert "Trained again, an order scores differently by a standard deviation of 3.5 (1 repeat " in text
    assert "a pooled deviation of 4.2" in text
    assert "The spread of episodes within a trial alone would say 1." in text


def test_a_trial_that_the_budget_cut_off_is_shown_as_such_and_is_not_compared(tmp_path):
    search = searched(6).trial(ends=False)
    search.trials[-1] |= {"ended_by": "budget", "mean_return": -33.25}
    text = text_of(page(read_search(search.write(tmp_path))))
    assert "6 trials have a score" in text
    assert "Trial 6 was cut off by the budget: its policy had not settled, and it is not scored." in text
    assert "cut off at -33.25" in text


def test_all_orders_have_their_bound_with_its_sign_tried_or_not(made_up, tmp_path):
    text = text_of(page(read_search(made_up.write(tmp_path))))
    tried = len({trial["order_id"] for trial in made_up.trials if trial["score"] is not None})
    assert text.count("not tried") >= 120 - tried
    mean, deviation = made_up.posterior()
    assert f"{mean[5] + made_up.beta * deviation[5]:+.4g}" in text


def test_the_command_lists_trials_and_orders_by_their_bound_with_its_sign(made_up, tmp_path):
    text = shown(SearchOptions(str(made_up.write(tmp_path)), top=3))
    rows = text[text.index("Orders by upper confidence bound") :].splitlines()[2:]
    mean, deviation = made_up.posterior()
    ucb = mean + made_up.beta * deviation
    assert [float(row.split()[0]) for row in rows] == pytest.approx(sorted(ucb)[:-4:-1], abs=0.01)
    assert [row.split()[-1] for row in rows] == [
        words(ORDERS[i]) for i in np.argsort(-ucb, kind="stable")[:3]
    ]
    assert sum("  gate       " in row for row in text.splitlines()) == 10


def test_where_nothing_passed_the_gate_the_best_of_what_was_tried_is_said_to_be_no_more(tmp_path):
    search = MadeUp().trial(passes=False)
    assert "Best of the orders tried (none passed the gate), by" in page(read_search(search.write(tmp_path)))


@pytest.mark.parametrize(
    "search",
    [
        searched(30, inherit="nothing"),
        searched(3, seed=4).trial(ends=False),
        searched(1),
        MadeUp().trial(ends=False),
        MadeUp(),
    ],
    ids=["from nothing", "under way", "one trial", "the first trial is under way", "nothing tried"],
)
def test_the_page_of_a_search_at_any_time_is_whole_and_says_no_number_that_nobody_can_read(search, tmp_path):
    assert NUMBERS.findall(text_of(page(read_search(search.write(tmp_path))))) == []


def test_a_page_of_many_episodes_is_small(tmp_path):
    search = searched(60)
    search.episodes *= 1 + 20_000 // len(search.episodes)
    search.episodes.sort()
    assert len(page(read_search(search.write(tmp_path))).encode()) < 400_000


def test_logs_that_are_not_there_leave_out_what_they_tell_and_the_page_says_so(made_up, tmp_path):
    whole = {chart.name for chart in charts(read_search(made_up.write(tmp_path)))}
    for name in (TRAINING_LOG, SAMPLING_LOG):
        (tmp_path / name).unlink()
    search = read_search(tmp_path)
    assert whole - {chart.name for chart in charts(search)} == {
        "training_compliance",
        "training_reward",
        "ucb",
    }
    assert [f"There is no {name}" in page(search) for name in (TRAINING_LOG, SAMPLING_LOG)] == [True, True]


def test_a_log_whose_last_line_is_cut_short_is_read_without_it(made_up, tmp_path):
    log = made_up.write(tmp_path) / TRAINING_LOG
    whole = len(read_search(tmp_path).episodes.trial)
    log.write_text(log.read_text()[:-9])
    assert len(read_search(tmp_path).episodes.trial) == whole - 1


def test_episodes_of_evaluation_are_no_training(made_up, tmp_path):
    log = made_up.write(tmp_path) / TRAINING_LOG
    whole = len(read_search(tmp_path).episodes.trial)
    log.write_text(log.read_text().replace(",train", ",evaluate", 3))
    assert len(read_search(tmp_path).episodes.trial) == whole - 3


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("names", ["a", "b"], "names are not defender, enterprise, op_server, op_host, user"),
        ("beta", -1, "beta=-1 is not a number of at least 0"),
        (
            "posterior",
            {"mean": [1.0], "deviation": [1.0]},
            "posterior has 1 means and 1 deviations of 120 orders",
        ),
        ("trials", [{"trial": 0, "order_id": 120}], "trials.order_id=120 is above 119"),
    ],
)
def test_what_search_json_has_wrong_is_named(name, value, said, made_up, tmp_path):
    change(made_up.write(tmp_path), name, value)
    with pytest.raises(RunFolderError, match=re.escape(said)):
        read_search(tmp_path)


def test_a_trial_cannot_inherit_from_a_later_one(made_up, tmp_path):
    trials = [dict(trial) for trial in made_up.trials]
    trials[1]["inherited_from"] = 5
    change(made_up.write(tmp_path), "trials", trials)
    with pytest.raises(RunFolderError, match="trial 1 inherits from 5, no earlier trial"):
        read_search(tmp_path)


def test_a_damaged_line_of_a_log_is_named(made_up, tmp_path):
    log = made_up.write(tmp_path) / TRAINING_LOG
    lines = log.read_text().splitlines()
    lines[3] = lines[3].replace("0.5", "x", 1)
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunFolderError, match=r"training_log\.csv, line 4, is not as a search writes it"):
        read_search(tmp_path)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_stands_in_search_json_there_is_a_page_or_one_sentence(seed, made_up, tmp_path):
    draw = random.Random(seed)
    told = json.loads((made_up.write(tmp_path) / FILE).read_text())
    inside = draw.choice([told, draw.choice(told["trials"]), told["posterior"]])
    inside[draw.choice(list(inside))] = draw.choice([*ODD_NUMBERS, *FOREIGN])
    (tmp_path / FILE).write_text(json.dumps(told))
    try:
        said = NUMBERS.findall(text_of(page(read_search(tmp_path))))
    except ConfigError as e:
        said = str(e).splitlines()[1:] + [str(e)] * (len(str(e)) > 700)
    assert said == []


# -- the door --------------------------------------------------------------------------------------------------------


def test_the_report_of_a_search_is_made_by_its_run_folder_and_made_again(
    made_up, tmp_path, monkeypatch, capsys
):
    made_up.write(tmp_path)
    monkeypatch.setattr("sys.argv", ["report.py", str(tmp_path)])
    door.main()
    made = {path.relative_to(tmp_path / "report").as_posix() for path in (tmp_path / "report").rglob("*.*")}
    assert made >= {"report.html", "summary.json", "posterior.csv", "plots/posterior.svg"}
    door.main()
    assert f"report: {tmp_path / 'report' / 'report.html'}" in capsys.readouterr().out


def test_options_of_scaling_have_no_effect_on_a_search_and_are_refused(made_up, tmp_path):
    made_up.write(tmp_path)
    with pytest.raises(ConfigError, match="predict_to=8 has no effect on the run folder of a search"):
        make_report(ReportOptions(path=str(tmp_path), predict_to=8))
    assert not (tmp_path / "report").exists()


def test_a_search_before_its_first_trial_is_told_to_wait(tmp_path):
    (tmp_path / TRAINING_LOG).write_text("")
    with pytest.raises(RunFolderError, match=r"has no search\.json yet"):
        make_report(ReportOptions(path=str(tmp_path)))


def test_who_gives_a_file_of_a_search_is_told_to_give_its_folder(made_up, tmp_path):
    path = made_up.write(tmp_path) / FILE
    with pytest.raises(
        RunFolderError, match=re.escape(f"is a file of a run: give its run folder, {tmp_path}")
    ):
        read(ReportOptions(path=str(path)))


# -- what it computes ------------------------------------------------------------------------------------------------


def trial(number, parent=None, order_id=0, **more):
    told = {
        "episodes": 100,
        "total": 100,
        "passed": True,
        "ended_by": "gate",
        "mean_return": 0.0,
        "score": 0.0,
        "noise_variance": 0.0,
    }
    return TrialRecord(number, order_id, parent, **{**told, **more}, compliance=1.0, repairs=10.0)


def test_the_lineage_is_drawn_as_a_tree():
    parents = {0: None, 1: 0, 2: 1, 3: 1, 4: 0, 5: None}
    drawn = [lines + str(each.number) for lines, each in lineage([trial(n, p) for n, p in parents.items()])]
    assert drawn == ["0", "├ 1", "│ ├ 2", "│ └ 3", "└ 4", "5"]


@pytest.mark.parametrize("parents", [[None, 0, 1, 2], [None, None, None]], ids=["a chain", "no heir"])
def test_a_lineage_without_branches_is_not_drawn(parents):
    assert lineage([trial(n, p) for n, p in enumerate(parents)]) == []


def test_a_long_line_of_descent_is_drawn_too():
    trials = [trial(n, n - 1 if n else None) for n in range(3000)]
    assert len(lineage([*trials, trial(3000, 0)])) == 3001


def test_trials_that_did_not_pass_count_as_longer_than_all_that_did(made_up, tmp_path):
    change(
        made_up.write(tmp_path),
        "trials",
        [
            {
                "trial": n,
                "order_id": n,
                "episodes": 10 * n,
                "episodes_total": 0,
                "passed": n < 3,
                "ended_by": "limit",
            }
            for n in range(6)
        ],
    )
    (nothing,) = by_inheritance(read_search(tmp_path))
    assert (nothing.name, nothing.num_passed, nothing.until_gate) == ("nothing", 3, math.inf)


def test_the_best_so_far_is_worth_what_the_posterior_says_of_it_today(made_up, tmp_path):
    search = read_search(made_up.write(tmp_path))
    means = [search.mean[each["order_id"]] for each in made_up.trials]
    assert best_so_far(search) == [max(means[: n + 1]) for n in range(len(means))]
    scores = [each["score"] for each in made_up.trials]
    change(tmp_path, "posterior", None)
    assert best_so_far(read_search(tmp_path)) == [max(scores[: n + 1]) for n in range(len(scores))]


def test_a_curve_has_a_gap_between_trials_unless_they_are_many(made_up, tmp_path):
    for search, gaps in ((made_up, 12), (searched(60), 1)):
        told = read_search(search.write(tmp_path))
        xs, ys = curve(told, told.episodes.compliance)
        assert sum(map(math.isnan, ys)) == gaps
        assert (xs[0], xs[-1]) == (0, len(told.episodes.trial))


def test_the_mean_by_place_is_over_the_orders_that_have_the_kind_there():
    mean = np.zeros(120)
    mean[96:] = 24.0  # the orders that begin with the last kind
    assert by_place(mean)[4].tolist() == [24.0, 0.0, 0.0, 0.0, 0.0]
    assert by_place(mean)[0].tolist() == [0.0, 6.0, 6.0, 6.0, 6.0]


def test_a_policy_has_learned_from_its_own_episodes_and_from_those_that_it_inherited(made_up, tmp_path):
    parents, episodes = [None, 0, 0, 1], [10, 20, 30, 40]
    trials = [
        {"trial": n, "order_id": n, "inherited_from": p, "episodes": e, "episodes_total": 0, "score": 1.0}
        for n, (p, e) in enumerate(zip(parents, episodes, strict=True))
    ]
    change(made_up.write(tmp_path), "trials", trials)
    assert learned_from(read_search(tmp_path)) == [10, 30, 40, 70]


def test_ranks_alone_correlate_and_equals_share_theirs():
    assert rank_correlation([1, 2, 3, 100], [1, 8, 9, 10]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 1, 2]) == pytest.approx(0)
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


def test_it_is_said_where_scores_rise_with_the_age_of_policies(made_up, tmp_path):
    told = [dict(each) for each in made_up.trials]
    for number, each in enumerate(told):
        each["inherited_from"] = number - 1 if number else None
    for sign, is_said in ((1, True), (-1, False)):
        for number, each in enumerate(told):
            each["score"] = sign * float(number)
        change(made_up.write(tmp_path), "trials", told)
        assert ("Scores rise with the episodes" in page(read_search(tmp_path))) == is_said
