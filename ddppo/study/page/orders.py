"""The report of a search over orders: report.html, summary.json, posterior.csv and plots/."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ddppo.domains.cage2.search.orders import KINDS, PRESETS, order_id
from ddppo.errors import ConfigError
from ddppo.files import write_json
from ddppo.study.columns import percent
from ddppo.study.explain.orders import named, said, score
from ddppo.study.measure.orders import NOTHING, by_mean, by_place, distance, lineage
from ddppo.study.page import files, tables
from ddppo.study.page.chart import stylesheet
from ddppo.study.page.html import TEMPLATES
from ddppo.study.page.order_figures import charts
from ddppo.study.page.tables import Shown
from ddppo.study.read.run_folders import REPORT_FILE, SEARCH_KIND
from ddppo.study.read.search_files import SAMPLING_LOG, TRAINING_LOG, Search, Trial, read_search
from ddppo.study.report import ReportOptions

_HAVE_EFFECT = {"path", "out"}
_WITHOUT = {TRAINING_LOG: "what training reached is not shown", SAMPLING_LOG: "the best by UCB are not shown"}


def make_report(options: ReportOptions) -> tuple[Search, Path]:
    """Read a search and write its report; return both it and the report's folder.

    Raises ConfigError for options that only studies of scaling know, RunFolderError for a damaged run folder.
    """
    for field in fields(options):
        value, plain = getattr(options, field.name), getattr(ReportOptions(options.path), field.name)
        if field.name not in _HAVE_EFFECT and value != plain:
            raise ConfigError(
                f"{field.name}={value} has no effect on the run folder of a search: leave it out"
            )
    folder = files.folder_of(options)
    files.refuse_to_overwrite(folder)
    search = read_search(Path(options.path))
    drawn = charts(search)
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
    return TEMPLATES.get_template("orders.html.j2").render(
        title=f"Search over orders: {search.path.resolve().name}",
        facts=_facts(search),
        said=said(search),
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
    """Return what summary.json holds: what is said, and the numbers that search.json has not."""
    return {
        "kind": SEARCH_KIND,
        "schema_version": 1,
        "said": said(search),
        "facts": _facts(search),
        "trials": [asdict(trial) | {"distance": distance(search, trial)} for trial in search.trials],
        "posterior": _posterior_rows(search) if search.mean.size else [],
    }


def on_terminal(search: Search, folder: Path, width: int | None = None) -> str:
    """Return what the door prints."""
    table = tables.on_terminal("Trials", _trials(search), width)
    return "\n".join([table, "", *said(search), "", f"report: {folder / 'report.html'}"])


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
            "ended by": [t.ended_by or "under way" for t in search.trials],
            "compliance": [tables.number(100 * t.compliance, "{:.1f} %") for t in search.trials],
            "repairs": [tables.number(t.repairs, "{:.4g}") for t in search.trials],
            "score": [score(t) for t in search.trials],
        }
    )


def _parent(search: Search, trial: Trial) -> str:
    far = distance(search, trial)
    return NOTHING if far is None else f"{trial.inherited_from}, distance {far}"


def _lineage(search: Search) -> Shown:
    """Return the tree of what inherited from what, a line for each trial."""
    rows = lineage(search.trials)
    return tables.shown(
        {
            "trial": [f"{drawn}{t.number}" for drawn, t in rows],
            "distance": ["" if (far := distance(search, t)) is None else str(far) for _, t in rows],
            "highest priority first": [named(t.order_id) for _, t in rows],
            "episodes": [f"{t.episodes:,}" for _, t in rows],
            "ended by": [t.ended_by or "under way" for _, t in rows],
            "score": [score(t) for _, t in rows],
        }
    )


def _posterior_rows(search: Search) -> list[dict[str, Any]]:
    """Return a line for each order, the highest mean first."""
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
            "preset": presets.get(order, ""),
            "trials": " ".join(map(str, of_order.get(order, ()))),
        }
        for place, order in enumerate(by_mean(search), start=1)
    ]


def _ranked(search: Search) -> Shown:
    head = ["place", "order", "highest priority first", "mean", "deviation", "preset", "trials"]
    forms = ("{place}", "{order_id}", "{order}", "{mean:.4g}", "{deviation:.2g}", "{preset}", "{trials}")
    return Shown(head, [[form.format(**row) for form in forms] for row in _posterior_rows(search)])


def _presets(search: Search) -> Shown:
    ranked = _ranked(search)
    return Shown(ranked.head, [line for line in ranked.lines if line[ranked.head.index("preset")]])


def _places(search: Search) -> Shown:
    means = by_place(search.mean)
    head = ["kind", *(f"place {i + 1}" for i in range(len(KINDS)))]
    return Shown(head, [[kind, *(f"{m:.4g}" for m in row)] for kind, row in zip(KINDS, means, strict=True)])
