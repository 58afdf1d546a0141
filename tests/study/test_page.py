"""The page of made-up studies: whole, small, and without a number that nobody can read."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ddppo.study.measure.belief import odd_runs
from ddppo.study.measure.speedup import study as compute_study
from ddppo.study.page import curves, figures, html
from ddppo.study.page.answer import answer
from ddppo.study.page.html import chapter
from ddppo.study.read.record import Reading
from ddppo.study.read.selection import FoundStudies
from ddppo.study.report import ReportOptions, compute, read
from tests.study import planted
from tests.study.scaling_folders import make_run, points

NUMBERS = re.compile(r"(?<![\w.])(nan|inf|None|never)(?![\w.])")
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Nesting(HTMLParser):
    """Checks that every element is closed, by its own end; collects the text of the body, and that of it unfolded."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.unfolded, self.folded = [], [], [], False

    def handle_starttag(self, tag, attrs):
        self.folded |= tag == "details"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)
            if not self.folded and "title" not in self.open:
                self.unfolded.append(data)


def made(*studies, **options):
    """The report of studies, each a list of runs, and its page."""
    found = FoundStudies([Reading(runs, []) for runs in studies], [])
    report = compute(ReportOptions(path="made up", **options), found)
    return report, html.page(report, [chapter(each) for each in report.studies])


def parsed(page):
    nesting = Nesting()
    nesting.feed(page)
    nesting.close()
    assert nesting.open == []
    return nesting


def text_of(page):
    return "\n".join(parsed(page).text)


def words_unfolded(page):
    """The words that are seen before anything is opened, those in charts included."""
    return [word for word in " ".join(parsed(page).unfolded).split() if re.search("[A-Za-z]", word)]


@pytest.mark.parametrize("study", planted.studies(13, seed=7), ids=str)
def test_the_page_of_any_study_is_whole_short_and_says_no_number_that_nobody_can_read(study):
    _, page = made(study.runs())
    assert NUMBERS.findall("\n".join(parsed(page).text)) == []
    assert len(words_unfolded(page)) <= 250


@pytest.mark.parametrize("name", ["scaling_cartpole", "scaling_slept_env"])
def test_the_page_of_a_real_study_has_at_most_250_words_before_the_first_fold(name):
    options = ReportOptions(path=f"experiments/{name}/report/per_run.csv", rule="strong")
    report = compute(options, read(options))
    page = html.page(report, [chapter(each) for each in report.studies])
    assert 60 <= len(words_unfolded(page)) <= 250


def test_the_style_sheet_has_each_rule_of_the_first_screen_once_and_hides_in_print_what_is_for_the_screen():
    style = (Path(html.__file__).parent / "templates" / "style.css").read_text()
    assert style.count("\n.first {") == style.count("dl.answer {") == 1
    assert ".up, .live { display: none }" in style.partition("@media print {")[2]


def test_a_page_of_32_workers_and_five_seeds_is_small():
    truth = planted.Truth(iterations=40, cores=2)
    _, page = made(planted.runs(truth, (1, 2, 4, 8, 16, 32), 5))
    assert len(page.encode()) < 150_000


def test_there_is_one_measured_column_and_every_w_one_efficiency():
    for sizes in ((1, 2, 4, 8), (2, 4, 8)):
        report, page = made(planted.runs(planted.Truth(iterations=40), sizes, 3))
        assert page.count("<th>measured</th>") == 0
        (each,) = report.studies
        shown = html.tables.study_table(each.study)
        assert shown.head.count("E") == 1
        efficiencies = {line[0]: line[shown.head.index("E")].split(" [")[0] for line in shown.lines}
        for choice in each.ahead.recommendation.table:
            if choice.measured:
                assert f"{choice.efficiency:.3g}" == efficiencies[str(choice.world_size)]


def learnt(world_size, seed, returns):
    part = {"t_rollout": 0.4 / world_size, "t_learn": 0.1 / world_size}
    return make_run(world_size, seed, parts=part, evaluations=points(*returns, every_s=10 / world_size))


def test_curves_that_are_the_same_at_every_w_are_drawn_once_and_said():
    runs = [learnt(w, seed, [10 + seed, 20, 30]) for w in (1, 2, 4) for seed in range(2)]
    study = compute_study(runs)
    drawn, said = curves.learning(study)
    assert "a seed has the same returns for any W" in said[0]
    steps, wall = curves.returns(study).svg(), next(c for c in drawn if c.name == "learning_wall").svg()
    assert ("every W" in steps, "W=4" in steps, "W=4" in wall) == (True, False, True)


def test_curves_that_differ_at_one_w_are_all_drawn():
    runs = [learnt(w, seed, [10 + seed, 20, 30 + (w == 4)]) for w in (1, 2, 4) for seed in range(2)]
    study = compute_study(runs)
    assert curves.learning(study)[1] == []
    assert "W=4" in curves.returns(study).svg()


def test_of_many_curves_only_the_first_has_a_band():
    runs = [learnt(w, seed, [10 + seed, 20, 30 + w]) for w in (1, 2, 4, 8) for seed in range(2)]
    drawn = curves.returns(compute_study(runs))
    assert drawn.svg().count('class="band') == 1
    assert "Bands: all seeds of W=1." in drawn.caption


def test_the_figure_of_the_loss_says_its_shares_and_those_of_its_seeds():
    report, _ = made(planted.runs(planted.Truth(latency_s=1e-4, iterations=40), (1, 2, 8), 3))
    (each,) = report.studies
    svg = figures.loss(each.study, each.accounts).svg()
    account = each.accounts[-1]
    shares = html.tables.percent(account.shares["communication"])
    seeds = ", ".join(map(html.tables.percent, account.by_seed["communication"]))
    assert f"<title>W=8: communication {shares} (seeds: {seeds})</title>" in svg
    assert svg.count('class="bar red"') == 3  # one in the legend


def test_a_bar_of_time_is_the_whole_iteration_and_its_ideal_is_the_efficiency():
    runs = [make_run(w, parts={"t_rollout": 0.4 / w, "t_comm": 0.1 if w > 1 else 0.0}) for w in (1, 2, 4)]
    chart = figures.time_of_iterations(compute_study(runs))
    svg = chart.svg()
    assert "<title>W=4: acting, stepping 50 % of 200 ms</title>" in svg
    assert "<title>W=4: communication 50 % of 200 ms</title>" in svg
    assert "<title>W=4: E = 50 %</title>" in svg


def test_an_odd_seed_is_labelled_in_the_figure_of_efficiency_and_named_with_its_folder():
    runs = planted.runs(planted.Truth(iterations=40), (1, 2, 4), 4)
    calm = compute_study(runs)
    assert odd_runs(calm) == []
    odd = next(run for run in runs if (run.world_size, run.seed) == (4, 2))
    runs[runs.index(odd)] = replace(odd, fps=0.6 * odd.fps, path="sweep/W4-odd")
    chart = figures.efficiency(compute_study(runs))
    assert ">seed 2</text>" in chart.svg()
    assert chart.caption.endswith("Odd: W=4, seed 2: W4-odd.")


def test_numbers_that_cannot_be_believed_have_their_reasons_first_and_no_cause_remedy_or_w():
    runs = planted.runs(planted.Truth(iterations=40), (1, 2, 4), 3)
    runs[-1] = replace(runs[-1], fps=runs[-1].fps / 2)
    report, page = made(runs)
    (each,) = report.studies
    assert each.doubts
    text = "\n".join(parsed(page).text)
    assert text.index(each.doubts[0].sentence) < text.index("Speedup S(W)")
    unfolded = " ".join(words_unfolded(page))
    assert " ".join(each.doubts[0].again.split()[:4]) in unfolded
    for word in ("Use", "Time W=", "Against the loss", "predicted"):
        assert word not in unfolded
    assert "Why efficiency is lost" not in text


def test_the_fold_of_iterations_has_a_panel_for_each_w_and_a_line_for_each_run():
    runs = planted.runs(planted.Truth(iterations=40), (1, 2, 4), 3)
    drawn = curves.pace(runs)
    assert [chart.name for chart in drawn] == ["pace_1", "pace_2", "pace_4"]
    assert [chart.svg().count("thin") for chart in drawn] == [6, 3, 3]  # three runs, and once the legend
    assert "seconds since the run" in drawn[0].x.label


def test_runs_of_one_day_are_placed_by_the_time_of_day():
    runs = [
        replace(
            run,
            origin=replace(
                run.origin,
                started_at=f"2026-01-01T10:0{i}:00+00:00",
                finished_at=f"2026-01-01T10:0{i}:50+00:00",
            ),
        )
        for i, run in enumerate(planted.runs(planted.Truth(iterations=40), (1, 2), 2))
    ]
    drawn = curves.pace(runs)
    assert drawn[0].x.label == "time of day (UTC)"
    assert {"10:01", "10:03"} <= set(drawn[0].x.ticks.values())
    assert drawn[0].x == drawn[1].x


def test_a_w_without_a_run_has_its_prediction_in_one_table_only():
    runs = planted.runs(planted.Truth(iterations=40), (1, 2, 4), 2)
    for asked, sizes in ((None, ["1", "2", "4", "8"]), (16, ["1", "2", "4", "8", "16"])):
        report, _ = made(runs, predict_to=asked)
        (section,) = [s for s in chapter(report.studies[0]).folded if "predictions" in s.title]
        assert [line[0] for table in section.tables for line in table.lines] == sizes


def test_a_row_of_the_table_agrees_with_itself():
    runs = planted.runs(planted.Truth(iterations=40, run_cv=0.1), (1, 2, 4), 3)
    study = compute_study(runs)
    head, lines = (lambda shown: (shown.head, shown.lines))(html.tables.study_table(study))
    for row, line in zip(study.rows, lines, strict=True):
        took = html.tables.duration(row.steps_per_iter / row.fps.median)
        assert line[head.index("iteration")] == took


def test_a_price_gives_costs_and_none_gives_none():
    runs = planted.runs(planted.Truth(iterations=40), (1, 2, 4), 2)
    assert "<th>cost</th>" not in made(runs)[1]
    assert "<th>cost</th>" in made(runs, price_per_worker_hour=2.0)[1]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 s"),
        (3.2e-7, "0.32 µs"),
        (0.0123, "12.3 ms"),
        (7.249, "7.25 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
    ],
)
def test_times_are_said_in_the_unit_that_fits(seconds, said):
    assert html.tables.duration(seconds) == said


def test_the_first_screen_says_what_is_predicted_what_w_1_is_missing_and_how_many_seeds_are_too_few():
    runs = planted.runs(planted.Truth(iterations=40), (2, 4, 8), 1)
    (each,) = made(runs)[0].studies
    lines = {line.about: line for line in answer(each, ReportOptions(path=""))}
    assert "against W=2 (W=1 was not measured)" in lines["Use"].text
    assert "Run 3 seeds or more of each W" in lines["Next"].text
    chosen = each.ahead.recommendation.chosen
    assert ("are predicted" in lines["Use"].text, "Measure it" in lines["Use"].more) == (
        not chosen.measured,
    ) * 2
