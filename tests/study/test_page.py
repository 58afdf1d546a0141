"""The page of made-up studies: whole, small, and without a number that nobody can read."""

import re
from html.parser import HTMLParser

import pytest

from ddppo.study.page import html
from ddppo.study.page.html import chapter
from ddppo.study.read.record import Reading
from ddppo.study.read.selection import FoundStudies
from ddppo.study.report import ReportOptions, compute
from tests.study import planted
from tests.study.scaling_folders import make_run, points

NUMBERS = re.compile(r"(?<![\w.])(nan|inf|None|never)(?![\w.])")
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Nesting(HTMLParser):
    """Checks that every element is closed, by its own end; collects the text of the body."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def made(*studies, **options):
    """The report of studies, each a list of runs, and its page."""
    found = FoundStudies([Reading(runs, []) for runs in studies], [])
    report = compute(ReportOptions(path="made up", **options), found)
    return report, html.page(report, [chapter(each) for each in report.studies])


def text_of(page):
    nesting = Nesting()
    nesting.feed(page)
    nesting.close()
    assert nesting.open == []
    return "\n".join(nesting.text)


@pytest.mark.parametrize("study", planted.studies(13, seed=7), ids=str)
def test_the_page_of_any_study_is_whole_and_says_no_number_that_nobody_can_read(study):
    _, page = made(study.runs())
    assert NUMBERS.findall(text_of(page)) == []


def test_a_page_of_32_workers_and_five_seeds_under_two_rules_is_small():
    studies = []
    for rule in ("strong", "weak"):
        truth = planted.Truth(rule=rule, iterations=40, cores=2)
        studies.append(planted.runs(truth, (1, 2, 4, 8, 16, 32), 5))
    _, page = made(*studies)
    assert len(page.encode()) < 300_000


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
    drawn, said = html.figures.learning(made(runs)[0].studies[0].study)
    assert "Every W learned the same" in said[0]
    steps, wall = (
        next(c for c in drawn if c.name == name).svg() for name in ("learning_steps", "learning_wall")
    )
    assert ("every W" in steps, "W=4" in steps, "W=4" in wall) == (True, False, True)


def test_curves_that_differ_at_one_w_are_all_drawn():
    runs = [learnt(w, seed, [10 + seed, 20, 30 + (w == 4)]) for w in (1, 2, 4) for seed in range(2)]
    drawn, said = html.figures.learning(made(runs)[0].studies[0].study)
    assert said == []
    assert "W=4" in next(c for c in drawn if c.name == "learning_steps").svg()


def test_the_figure_of_the_loss_says_its_shares_and_those_of_its_seeds():
    report, _ = made(planted.runs(planted.Truth(latency_s=1e-4, iterations=40), (1, 2, 8), 3))
    (each,) = report.studies
    _, loss = html.chapter(each).overview
    svg = loss.svg()
    account = each.accounts[-1]
    shares = html.tables.percent(account.shares["communication"])
    seeds = ", ".join(map(html.tables.percent, account.by_seed["communication"]))
    assert f"<title>W=8: communication {shares} (seeds: {seeds})</title>" in svg
    assert svg.count('class="bar red"') == 3  # one in the legend


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
