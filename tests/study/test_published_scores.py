"""The table of experiments/published_scores: what it says of runs, and that a study adds to those before it."""

import csv

import pytest

from experiments.published_scores import table as published

COMPLETED = {
    "config": {"env": {"id": "Hopper-v5"}, "seed": 3},
    "world_size": 2,
    "env_steps": 1_000_448,
    "eval": {
        "final": {"episodes": 100.0, "return_mean": 2500.126, "return_std": 1.006, "return_min": 2400.499}
    },
    "wall_s": 333.0,
    "git_commit": "0123456789abcdef",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "HERE", tmp_path)
    return tmp_path


def row(env="Hopper-v5", world_size=1, seed=0, score=2500.0, env_steps=1_000_448):
    return {
        "env": env,
        "world_size": world_size,
        "seed": seed,
        "env_steps": env_steps,
        "return_mean": score,
    }


def rows(scores, **of_all):
    return [row(seed=seed, score=score, **of_all) for seed, score in enumerate(scores)]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def said(of_rows):
    """Return the cells of the table's first line under its heading, by the name of their column."""
    lines = published.table(of_rows).splitlines()
    return dict(zip(cells(lines[0]), cells(lines[2]), strict=True))


def test_a_run_is_told_by_its_last_evaluation_in_numbers_a_reader_needs():
    assert published.result(COMPLETED) == {
        "env": "Hopper-v5",
        "world_size": 2,
        "seed": 3,
        "env_steps": 1_000_448,
        "episodes": 100,
        "return_mean": 2500.13,
        "return_std": 1.01,
        "return_min": 2400.5,
        "wall_min": 5.5,
        "commit": "0123456",
    }


def test_a_run_of_no_repository_has_an_unknown_commit():
    assert published.result(COMPLETED | {"git_commit": None})["commit"] == "unknown"


def test_a_study_adds_its_runs_to_those_of_the_file_and_replaces_its_own(here):
    published.merged("results.csv", rows([1.0, 2.0, 3.0]))
    found = published.merged("results.csv", [row(seed=1, score=9.0), row(seed=0, world_size=2, score=4.0)])
    with open(here / "results.csv", newline="") as file:
        kept = [(r["world_size"], r["seed"], r["return_mean"]) for r in csv.DictReader(file)]
    assert kept == [("1", "0", "1.0"), ("1", "1", "9.0"), ("1", "2", "3.0"), ("2", "0", "4.0")]
    assert [(str(r["world_size"]), str(r["seed"]), str(r["return_mean"])) for r in found] == kept


def test_with_no_new_run_the_file_stays_as_it_is(here):
    published.merged("results.csv", rows([1.0, 2.0]))
    before = (here / "results.csv").read_bytes()
    published.merged("results.csv", [])
    assert (here / "results.csv").read_bytes() == before


def test_runs_and_points_of_curves_are_in_the_order_of_numbers_not_of_letters(here):
    points = [
        row(seed=10),
        row(seed=2, env_steps=1000),
        row(seed=2, env_steps=900),
        row(env="Ant-v5", seed=5),
    ]
    found = published.merged("curves.csv", points)
    assert [(r["env"], r["seed"], r["env_steps"]) for r in found] == [
        ("Ant-v5", 5, 1_000_448),
        ("Hopper-v5", 2, 900),
        ("Hopper-v5", 2, 1000),
        ("Hopper-v5", 10, 1_000_448),
    ]


def test_a_line_has_the_mean_of_the_middle_half_of_its_seeds():
    line = said(rows([0.0, 2400.0, 2420.0, 2440.0, 9000.0]))
    assert (line["seeds"], line["steps"], line["IQM"]) == (
        "5",
        "1,000,448",
        "2,420",
    )  # 0 and 9000 are dropped
    low, high = (float(x.replace(",", "")) for x in line["95 % interval"].split(" to "))
    assert 0 <= low < 2420 < high <= 9000
    assert (line["each seed"], line["asked"]) == ("0, 2,400, 2,420, 2,440, 9,000", ">= 2,400")
    assert line["reached"] == "yes"
    assert line["published"] == "SB3 zoo 2,410, CleanRL 2,383, Tianshou 2,609"


def test_seeds_that_score_the_same_have_an_interval_of_one_number():
    assert said(rows([2500.0] * 5))["95 % interval"] == "2,500 to 2,500"


@pytest.mark.parametrize(
    ("scores", "interval", "reached"),
    [
        ([2500.0], "too few seeds", "yes, so far"),
        ([2500.0, 2200.0], "too few seeds", "NO, so far"),
        ([2400.0, 2400.0, 2400.0], "2,400 to 2,400", "yes"),
        ([2399.0, 2399.0, 2399.0], "2,399 to 2,399", "NO"),
    ],
)
def test_fewer_than_three_seeds_say_nothing_for_good(scores, interval, reached):
    line = said(rows(scores))
    assert (line["95 % interval"], line["reached"]) == (interval, reached)


def test_where_every_seed_is_asked_for_one_below_is_a_failure():
    assert said(rows([260.0, 260.0, 201.0, 280.0], env="LunarLander-v3"))["reached"] == "yes"
    failed = said(rows([260.0, 260.0, 199.0, 290.0], env="LunarLander-v3"))
    assert (failed["asked"], failed["reached"]) == (">= 250, each >= 200", "NO")


@pytest.mark.parametrize(("moved", "verdict"), [(0.0, "which holds 0"), (500.0, "which DOES NOT HOLD 0")])
def test_two_world_sizes_are_compared_by_the_interval_of_their_difference(moved, verdict):
    scores = [2490.0, 2500.0, 2510.0]
    found = [*rows(scores), *rows([x - moved for x in scores], world_size=4)]
    last = published.table(found).splitlines()[-1]
    assert last.startswith("- Hopper-v5: W=1 less W=4 is ")
    assert last.endswith(verdict)


def test_one_run_of_each_world_size_is_not_compared():
    text = published.table([row(), row(world_size=4)])
    assert "less" not in text
    assert len(published.groups([row(), row(world_size=4)])) == 2


def test_a_curve_is_the_median_of_its_seeds_as_a_share_of_the_first_published_score(monkeypatch):
    drawn = []
    monkeypatch.setattr(published.Chart, "line", lambda _, *line, **how: drawn.append(line))
    points = [
        row(seed=seed, env_steps=steps, score=share * 2410)  # of the SB3 zoo
        for seed, share in enumerate((0.25, 0.5, 4.0))
        for steps in (100_000, 1_000_000)
    ]
    published.chart("robots", "Robots", points)
    ((xs, ys, _, label),) = drawn
    assert label == "Hopper, W=1"
    assert (xs[-1], len(xs)) == (1, published.NUM_POINTS)
    assert ys == pytest.approx([0.5] * len(xs))


def test_a_curve_of_a_task_that_nobody_published_is_a_share_of_what_is_asked(monkeypatch):
    drawn = []
    monkeypatch.setattr(published.Chart, "line", lambda _, *line, **how: drawn.append(line))
    points = [row(env="ddppo/TMaze-v0", env_steps=steps, score=0.475) for steps in (50_000, 100_000)]
    published.chart("memory", "Memory", points)
    ((_, ys, _, label),) = drawn
    assert label == "TMaze, W=1"
    assert ys == pytest.approx([0.5] * published.NUM_POINTS)


def test_scores_below_ten_have_two_digits_behind_the_point():
    line = said(rows([0.97, 0.968, 0.949], env="ddppo/TMaze-v0"))
    assert (line["asked"], line["reached"], line["each seed"]) == (">= 0.95", "yes", "0.97, 0.97, 0.95")


def test_of_a_task_of_which_nothing_is_asked_nothing_is_reached():
    line = said(rows([100.0, 120.0, 130.0], env="ALE/Breakout-v5"))
    assert (line["asked"], line["reached"], line["published"]) == ("", "", "SB3 zoo 398")
