"""The report of a search over orders: report.html with its charts, summary.json, posterior.csv and plots/.

`report` is the entry point; then come tables, and one function for each chart. Numbers and sentences come from
search_findings.py.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ddppo.domains.cage2.search.orders import KINDS, ORDERS, PRESETS, order_id, words
from ddppo.domains.cage2.search_files import SAMPLING_LOG, TRAINING_LOG, Search, TrialRecord, read_search
from ddppo.domains.cage2.search_findings import (
    NOTHING,
    best_so_far,
    by_inheritance,
    by_mean,
    by_place,
    curve,
    distance,
    learned_from,
    lineage,
    named,
    score,
    sentences,
)
from ddppo.errors import ConfigError
from ddppo.files import write_json
from ddppo.search.ucb import COVERS
from ddppo.study.columns import percent
from ddppo.study.page import files, tables
from ddppo.study.page.chart import Axis, Chart, stylesheet
from ddppo.study.page.chart import named as places
from ddppo.study.page.html import templates
from ddppo.study.page.tables import Shown
from ddppo.study.read.run_folders import REPORT_FILE
from ddppo.study.report import ReportOptions

_KIND = "search report"
_TEMPLATES = templates("ddppo.domains.cage2")
_HAVE_EFFECT = {"path", "out"}
# The part of the report that is missing without a log.
_WITHOUT = {
    TRAINING_LOG: "the curves of training are not shown",
    SAMPLING_LOG: "the best orders by UCB are not shown",
}
_MANY = 60  # more trials than this are drawn as small points
# Colours of the best by UCB; the first is drawn last, above the others.
_RANKS = {
    3: "sky",
    2: "green",
    1: "blue",
}


def report(options: ReportOptions, width: int | None = None) -> str:
    """Write the report of a search; return the text that `python -m ddppo.report` prints. Raises as make_report()."""
    return on_terminal(*make_report(options), width)


def make_report(options: ReportOptions) -> tuple[Search, Path]:
    """Read a search and write its report; return the search and the folder of the report.

    Raises ConfigError for options that apply to studies of scaling alone, RunFolderError for a damaged run folder.
    """
    # 1. Options and the target folder.
    for field in fields(options):
        value, plain = getattr(options, field.name), getattr(ReportOptions(options.path), field.name)
        if field.name not in _HAVE_EFFECT and value != plain:
            raise ConfigError(
                f"{field.name}={value} has no effect on the run folder of a search: leave it out"
            )
    folder = files.folder_of(options)
    files.refuse_to_overwrite(folder)
    # 2. Read everything before the first file is written.
    search = read_search(Path(options.path))
    drawn = charts(search)
    # 3. Write to a temporary folder, which gets its name when it is complete.
    with files.new_folder(folder) as new:
        files.write_plots(new / "plots", drawn)
        if search.mean.size:
            (new / "posterior.csv").write_text(tables.to_csv(_posterior_rows(search)))
        write_json(new / REPORT_FILE, as_json(search))
        (new / "report.html").write_text(page(search), encoding="utf-8")
    return search, folder


def page(search: Search) -> str:
    """Return the whole page."""
    known = bool(search.mean.size)
    return _TEMPLATES.get_template("search.html.j2").render(
        title=f"Search over orders: {search.path.resolve().name}",
        facts=_facts(search),
        said=sentences(search),
        missing=[f"There is no {name}: {_WITHOUT[name]}." for name in search.missing],
        drawn=charts(search),
        trials=_trials(search),
        lineage=_lineage(search),
        presets=_presets(search) if known else None,
        places=_places(search) if known else None,
        ranked=_ranked(search) if known else None,
        style=stylesheet("chart.css") + stylesheet("style.css"),
    )


def as_json(search: Search) -> dict[str, Any]:
    """Return the content of summary.json: the sentences, and the numbers that search.json does not hold."""
    return {
        "kind": _KIND,
        "schema_version": 1,
        "said": sentences(search),
        "facts": _facts(search),
        "trials": [asdict(trial) | {"distance": distance(search, trial)} for trial in search.trials],
        "posterior": _posterior_rows(search) if search.mean.size else [],
    }


def on_terminal(search: Search, folder: Path, width: int | None = None) -> str:
    """Return the text for the terminal."""
    table = tables.on_terminal("Trials", _trials(search), width)
    return "\n".join([table, "", *sentences(search), "", f"report: {folder / 'report.html'}"])


def show(folder: Path, top: int | None) -> str:
    """Return what `python -m ddppo.search` prints: trials, what is known, and orders by upper confidence bound."""
    search = read_search(folder)
    lines = ["trial  from  episodes  compliance  score    ended by   order"]
    for t in search.trials:
        origin = "-" if t.inherited_from is None else str(t.inherited_from)
        result = t.mean_return if math.isnan(t.score) else t.score
        numbers = f"{t.number:>5}  {origin:>4}  {t.episodes:>8,}  {t.compliance:>10.1%}  {result:<+7.2f}"
        lines.append(f"{numbers}  {_end(t):<9}  {words(ORDERS[t.order_id])}")
    lines += ["", *sentences(search)]
    if not search.mean.size:
        return "\n".join(lines)
    lines += ["", "Orders by upper confidence bound (UCB); the first is tried next."]
    lines += [f"{'UCB':>8}  {'mean':>8}  {'95 % interval':<20}  {'trials':<9}  order"]
    for row in sorted(_posterior_rows(search), key=lambda row: (-row["ucb"], row["order_id"]))[:top]:
        spread = f"{row['low']:+.2f} to {row['high']:+.2f}"
        numbers = f"{row['ucb']:>+8.2f}  {row['mean']:>+8.2f}  {spread:<20}"
        lines.append(f"{numbers}  {row['trials']:<9}  {words(ORDERS[row['order_id']])}")
    return "\n".join(lines)


def _facts(search: Search) -> dict[str, str]:
    facts = {
        **search.facts,
        "inherits": search.inherit,
        "beta": f"{search.beta:g}",
        "gate": "" if search.gate != search.gate else percent(search.gate),
        "budget": f"{search.budget_episodes:,} episodes",
    }
    return {name: text for name, text in facts.items() if text}


# -- tables ----------------------------------------------------------------------------------------------------------


def _trials(search: Search) -> Shown:
    return tables.shown(
        {
            "trial": [str(t.number) for t in search.trials],
            "order": [f"{t.order_id}" for t in search.trials],
            "highest priority first": [named(t.order_id) for t in search.trials],
            "from": [_parent(search, t) for t in search.trials],
            "episodes": [f"{t.episodes:,}" for t in search.trials],
            "total": [f"{t.total:,}" for t in search.trials],
            "ended by": [_end(t) for t in search.trials],
            "compliance": [tables.number(100 * t.compliance, "{:.1f} %") for t in search.trials],
            "repairs": [tables.number(t.repairs, "{:.4g}") for t in search.trials],
            "score": [score(t) for t in search.trials],
        }
    )


def _end(trial: TrialRecord) -> str:
    return "cut off" if trial.ended_by == "budget" else trial.ended_by or "under way"


def _parent(search: Search, trial: TrialRecord) -> str:
    far = distance(search, trial)
    return NOTHING if far is None else f"{trial.inherited_from}, distance {far}"


def _lineage(search: Search) -> Shown:
    """Return the tree of inheritance, a line for each trial."""
    rows = lineage(search.trials)
    return tables.shown(
        {
            "trial": [f"{drawn}{t.number}" for drawn, t in rows],
            "distance": ["" if (far := distance(search, t)) is None else str(far) for _, t in rows],
            "highest priority first": [named(t.order_id) for _, t in rows],
            "episodes": [f"{t.episodes:,}" for _, t in rows],
            "ended by": [_end(t) for _, t in rows],
            "score": [score(t) for _, t in rows],
        }
    )


def _posterior_rows(search: Search) -> list[dict[str, Any]]:
    """Return a line for each order, the highest mean first."""
    # The trials of each order; an order may be tried several times.
    of_order: dict[int, list[int]] = {}
    for trial in search.ended:
        of_order.setdefault(trial.order_id, []).append(trial.number)
    presets = {order_id(order): name for name, order in PRESETS.items()}
    return [
        {
            "place": place,
            "order_id": order,
            "order": named(order),
            "mean": float(search.mean[order]),
            "deviation": float(search.deviation[order]),
            "low": float(search.mean[order] - COVERS * search.deviation[order]),
            "high": float(search.mean[order] + COVERS * search.deviation[order]),
            "ucb": float(search.mean[order] + search.beta * search.deviation[order]),
            "preset": presets.get(order, ""),
            "trials": " ".join(map(str, of_order.get(order, ()))) or "not tried",
        }
        for place, order in enumerate(by_mean(search), start=1)
    ]


def _ranked(search: Search) -> Shown:
    head = ["place", "order", "highest priority first", "mean", "95 % interval", "UCB", "preset", "trials"]
    forms = (
        *(
            "{place}",
            "{order_id}",
            "{order}",
            "{mean:+.4g}",
            "{low:+.4g} to {high:+.4g}",
            "{ucb:+.4g}",
            "{preset}",
        ),
        "{trials}",
    )
    return Shown(head, [[form.format(**row) for form in forms] for row in _posterior_rows(search)])


def _presets(search: Search) -> Shown:
    ranked = _ranked(search)
    return Shown(ranked.head, [line for line in ranked.lines if line[ranked.head.index("preset")]])


def _places(search: Search) -> Shown:
    means = by_place(search.mean)
    head = ["kind", *(f"place {i + 1}" for i in range(len(KINDS)))]
    return Shown(head, [[kind, *(f"{m:.4g}" for m in row)] for kind, row in zip(KINDS, means, strict=True)])


def charts(search: Search) -> list[Chart]:
    """Return the charts for which there is data."""
    ended = [_by_trial(search), _by_episodes(search)] if search.ended else []
    drawn = [
        *([_posterior(search)] if search.mean.size else []),
        *([_best_by_ucb(search)] if search.sampled else []),
        *ended,
        *([_compliance(search)] if any(math.isfinite(t.compliance) for t in search.trials) else []),
        *([_until_gate(search)] if by_inheritance(search) else []),
        *([_by_age(search)] if search.ended and search.inherit != NOTHING else []),
    ]
    return drawn + (_training(search) if len(search.episodes.trial) else [])


# -- the Gaussian process --------------------------------------------------------------------------------------------


def _posterior(search: Search) -> Chart:
    chart = Chart(
        "posterior",
        f"Expected scores of all {len(ORDERS)} orders",
        Axis("place by posterior mean"),
        Axis("score"),
        "The band holds 95 % (docs/search.md has how often it did in planted searches); the dashed line is the upper "
        "confidence bound by which the next order is chosen. Each dot has its order as a tooltip."
        + ("" if search.inherit == NOTHING else " Means are for a policy of the mean age."),
    )
    # The posterior of all orders, by falling mean.
    ranked = by_mean(search)
    place = {order: 1 + i for i, order in enumerate(ranked)}
    mean, deviation, xs = search.mean[ranked], search.deviation[ranked], list(range(1, len(ranked) + 1))
    chart.band(xs, (mean - COVERS * deviation).tolist(), (mean + COVERS * deviation).tolist(), "blue")
    ucb = (mean + search.beta * deviation).tolist()
    chart.line(xs, ucb, "green", f"UCB: mean + {search.beta:g} deviations", dashed=True)
    chart.line(xs, mean.tolist(), "blue", "posterior mean")
    tooltips = [
        f"place {i}: {named(o)} (order {o}), {_expected(search, o)}" for i, o in zip(xs, ranked, strict=True)
    ]
    chart.seeds(xs, mean.tolist(), "blue", tooltips)
    # Scores of single trials, and the presets.
    scores = [t.score for t in search.ended]
    _draw_trials(
        chart, search.ended, [place[t.order_id] for t in search.ended], scores, "orange", "scores of trials"
    )
    presets = {name: order_id(order) for name, order in PRESETS.items()}
    chart.dots(
        [place[o] for o in presets.values()],
        [float(search.mean[o]) for o in presets.values()],
        "purple",
        [f"{name}, place {place[o]}: {named(o)}, {_expected(search, o)}" for name, o in presets.items()],
        "presets",
    )
    return chart


def _expected(search: Search, order: int) -> str:
    ucb = search.mean[order] + search.beta * search.deviation[order]
    return f"mean {search.mean[order]:+.4g}, deviation {search.deviation[order]:.2g}, UCB {ucb:+.4g}"


def _best_by_ucb(search: Search) -> Chart:
    chart = Chart(
        "ucb",
        "The best by UCB when each trial was chosen",
        Axis("trial"),
        Axis(f"mean + {search.beta:g} deviations"),
        "They fall towards the best mean as the possible gain of the search shrinks.",
    )
    # A line for each rank, over the trials.
    for rank, colour in _RANKS.items():
        of_rank = [s for s in search.sampled if s.rank == rank]
        xs, ys = [s.trial for s in of_rank], [s.ucb for s in of_rank]
        chart.line(xs, ys, colour)
        tooltips = [
            f"trial {s.trial}, rank {s.rank}: {named(s.order_id)} (order {s.order_id}), UCB {s.ucb:.4g}, mean "
            f"{s.mean:.4g}, deviation {s.deviation:.2g}"
            for s in of_rank
        ]
        draw = chart.dots if len(search.trials) <= _MANY else chart.seeds
        draw(xs, ys, colour, tooltips, f"rank {rank}")
    return chart


# -- trials ----------------------------------------------------------------------------------------------------------


def _by_trial(search: Search) -> Chart:
    numbers = [trial.number for trial in search.ended]
    chart = Chart("best_by_trial", "The best so far, by trial", Axis("trial"), Axis("score"))
    return _regret(chart, search, numbers)


def _by_episodes(search: Search) -> Chart:
    totals = [trial.total for trial in search.ended]
    chart = Chart("best_by_episodes", "The best so far, by episodes", Axis("episodes"), Axis("score"))
    return _regret(chart, search, totals)


def _regret(chart: Chart, search: Search, xs: list[int]) -> Chart:
    """Draw scores, the value of the best order so far as steps, and the highest posterior mean as a dashed line."""
    best, ended = best_so_far(search), search.ended
    if search.mean.size:
        chart.line(
            [xs[0], xs[-1]], [float(search.mean.max())] * 2, "grey", "highest posterior mean", dashed=True
        )
        chart.caption = (
            "The distance of the line from the dashed one is the regret, as estimated by the posterior."
        )
    # Corners of the steps: each value holds until the next trial.
    corners = [x for x in xs for _ in range(2)][1:]
    chart.line(corners, [y for y in best for _ in range(2)][:-1], "blue", "best so far")
    for x, trial in zip(xs, ended, strict=True):
        # One deviation of repeated trials; with many trials the chart would be full of them.
        if not math.isnan(search.noise) and len(ended) <= _MANY:
            chart.whisker(x, trial.score - search.noise, trial.score + search.noise, "orange")
    _draw_trials(chart, ended, xs, [t.score for t in ended], "orange", "scores of trials")
    return chart


def _compliance(search: Search) -> Chart:
    chart = Chart(
        "compliance",
        "Compliance at the end of each trial",
        Axis("trial"),
        Axis("repairs that comply (%)", shows=(100,)),
    )
    # The gate is a dashed line; each trial is a dot, coloured by whether it passed.
    known = [trial for trial in search.trials if math.isfinite(trial.compliance)]
    if math.isfinite(search.gate):
        ends = [known[0].number, known[-1].number]
        chart.line(ends, [100 * search.gate] * 2, "grey", f"gate: {percent(search.gate)}", dashed=True)
    _passed_or_not(chart, known, [t.number for t in known], [100 * t.compliance for t in known])
    return chart


def _until_gate(search: Search) -> Chart:
    groups = by_inheritance(search)
    chart = Chart(
        "until_gate",
        "Episodes until the gate, by inheritance",
        places(
            [group.name.removeprefix("distance ") for group in groups],
            "nothing, or Kendall's distance to the parent",
        ),
        Axis("episodes", shows=(0,)),
        "A bar is a median; there is none if half of the trials did not pass.",
    )
    # A bar for each group with a finite median, then a dot for each trial.
    for i, group in enumerate(groups):
        middle = group.until_gate
        if math.isfinite(middle):
            tooltip = (
                f"{group.name}: a median of {middle:,.0f}, {group.num_passed} of {len(group.trials)} passed"
            )
            chart.bar(i, 0, middle, "sky", tooltip)
    every = [(i, trial) for i, group in enumerate(groups) for trial in group.trials]
    _passed_or_not(chart, [t for _, t in every], [i for i, _ in every], [t.episodes for _, t in every])
    return chart


def _by_age(search: Search) -> Chart:
    chart = Chart(
        "age",
        "Scores, by the age of the policy",
        Axis("episodes learned from, inherited ones included"),
        Axis("score"),
        "If all policies had the same age, differences would come from the orders alone.",
    )
    _passed_or_not(chart, search.ended, learned_from(search), [trial.score for trial in search.ended])
    return chart


def _passed_or_not(chart: Chart, trials: list[TrialRecord], xs: list[int], ys: list[float]) -> None:
    states = ["passed" if t.passed else "did not pass" if t.ended_by else "under way" for t in trials]
    for kind, colour in (("passed", "green"), ("did not pass", "red"), ("under way", "ink")):
        chosen = [i for i, state in enumerate(states) if state == kind]
        at, heights = [xs[i] for i in chosen], [ys[i] for i in chosen]
        _draw_trials(chart, [trials[i] for i in chosen], at, heights, colour, kind)


def _draw_trials(
    chart: Chart,
    trials: Sequence[TrialRecord],
    xs: Sequence[float],
    ys: Sequence[float],
    colour: str,
    label: str,
) -> None:
    draw = chart.dots if len(trials) <= _MANY else chart.seeds
    draw(xs, ys, colour, [_tooltip(trial) for trial in trials], label)


def _tooltip(trial: TrialRecord) -> str:
    began = NOTHING if trial.inherited_from is None else f"trial {trial.inherited_from}"
    kept = "" if math.isnan(trial.compliance) else f", compliance {percent(trial.compliance)}"
    return (
        f"trial {trial.number}: {named(trial.order_id)} (order {trial.order_id}), from {began}, score {score(trial)}"
        f"{kept}, {trial.episodes:,} episodes"
    )


# -- training --------------------------------------------------------------------------------------------------------


def _training(search: Search) -> list[Chart]:
    """Return the curves of training, as means over stretches of episodes."""
    compliance = Chart(
        "training_compliance",
        "Compliance while training",
        Axis("episodes"),
        Axis("repairs that comply (%)", shows=(100,)),
        "Means over stretches of episodes; with few trials, the line has a gap between two of them.",
    )
    rewards = Chart(
        "training_reward",
        "Environment return while training",
        Axis("episodes"),
        Axis("return"),
        compliance.caption,
    )
    # Compliance with the gate, and the return of the environment.
    xs, ys = curve(search, 100 * search.episodes.compliance)
    if math.isfinite(search.gate):
        compliance.line(
            [0, xs[-1]], [100 * search.gate] * 2, "grey", f"gate: {percent(search.gate)}", dashed=True
        )
    compliance.line(xs, ys, "green")
    rewards.line(*curve(search, search.episodes.reward), "blue")
    return [compliance, rewards]
