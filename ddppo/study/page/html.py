"""report.html: one file with everything in it, which opens without a network."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.explain.criteria import Criterion
from ddppo.study.measure.speedup import STRAGGLER_MATTERS, STRAGGLER_RATIO, Study
from ddppo.study.page.figure_style import Plot
from ddppo.study.page.figures import CAUSE_COLOURS
from ddppo.study.page.tables import iqm_table, number, speed_table, time_table, title
from ddppo.study.runs import LeftOut

_CSS = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto;
  max-width: 1180px; padding: 24px 28px 60px }
h1 { font-size: 25px; margin: 0 0 2px }
h2, h3 { font-size: 18px; margin: 36px 0 8px; border-bottom: 1px solid #ddd; padding-bottom: 4px }
h2.chapter { font-size: 22px; margin-top: 64px; border-bottom: 3px solid #0072b2 }
nav th:nth-child(n+5) { white-space: normal; max-width: 24ch }
nav td:first-child { min-width: 22ch }
p { max-width: 92ch; margin: 8px 0 }
.quiet { color: #5c5c5c }
.scroll { overflow-x: auto; margin: 10px 0 }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 4px 10px; white-space: nowrap; vertical-align: top }
td { border-bottom: 1px solid #e6e6e6 }
th { font-weight: 600; border-bottom: 2px solid #bbb }
td small { color: #6a6a6a; display: block; font-size: 11px }
td.name, table.text td, table.text th { text-align: left }
table.text td { white-space: normal }
table.text td:first-child { overflow-wrap: anywhere; min-width: 9ch }
table.paths td:first-child { min-width: 30ch }
.badge { display: inline-block; min-width: 46px; text-align: center; font-weight: 700; font-size: 12px;
  padding: 2px 8px; border-radius: 4px; white-space: nowrap }
.pass { background: #d9f0e6; color: #00553c }
.fail { background: #fbe0d2; color: #8f3200 }
.unknown { background: #ececec; color: #444 }
.why { background: #f5f8fb; border-left: 4px solid #0072b2; padding: 8px 16px; margin: 12px 0 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr));
  grid-auto-flow: dense; gap: 22px 26px; align-items: start }
figure { margin: 0 }
figure.wide { grid-column: 1 / -1 }
figure img { width: 100%; height: auto; display: block }
figcaption { font-size: 12.5px; color: #5c5c5c; margin-top: 2px }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; font-size: 13.5px }
dt { font-weight: 600 }
dd { margin: 0; max-width: 90ch }
pre { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; margin: 0; white-space: pre-wrap }
"""
_WIDE = ("ranks", "stability", "studies")


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the page says of one study. `outlook` is HTML of the section "What if, and which W"."""

    study: Study
    accounts: Sequence[Account]
    criteria: Sequence[Criterion]
    why: str
    plots: Sequence[Plot]
    remarks: Sequence[str] = ()
    outlook: Sequence[str] = ()


def page(
    chapters: Sequence[Chapter],
    left_out: Sequence[LeftOut],
    remarks: Sequence[str] = (),
    overview: Sequence[Plot] = (),
) -> str:
    """Return the whole page: one study, or several as chapters under a table of contents."""
    said = [f"<p>{escape(remark)}</p>" for remark in remarks]
    if len(chapters) == 1:
        name = title(chapters[0].study)
        parts = [f"<h1>{escape(name)}</h1>", *_chapter(chapters[0], "h2", said)]
    else:
        name = f"Scaling report of {len(chapters)} studies"
        parts = [f"<h1>{escape(name)}</h1>", *said, _contents(chapters), _grid(overview)]
        for place, chapter in enumerate(chapters, start=1):
            heading = f'<h2 class="chapter" id="study-{place}">{escape(title(chapter.study))}</h2>'
            parts += [heading, *_chapter(chapter, "h3", [])]
        parts.append('<h2 class="chapter">The folder</h2>')
    level = "h2" if len(chapters) == 1 else "h3"
    parts += [
        _section("Runs left out", _left_out(left_out), level),
        _section("Definitions", _definitions([chapter.study for chapter in chapters]), level),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon: browsers would otherwise ask for /favicon.ico.
        f'<link rel="icon" href="data:,"><title>{escape(name)}</title>'
        f"<style>{_CSS}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _chapter(chapter: Chapter, level: str, remarks: Sequence[str]) -> list[str]:
    study = chapter.study
    why = f'<div class="why"><p>{escape(chapter.why)}</p></div>' + _accounts(study, chapter.accounts)
    return [
        f'<p class="quiet">{escape(_sizes(study))}</p>',
        *remarks,
        *[f"<p>{escape(remark)}</p>" for remark in chapter.remarks],
        _section("Verdict", _verdict(chapter.criteria), level),
        _section("Table", _table(study), level),
        _section("Why", why, level),
        *([_section("What if, and which W", "".join(chapter.outlook), level)] if chapter.outlook else []),
        _section("Figures", _grid(chapter.plots), level),
    ]


def _contents(chapters: Sequence[Chapter]) -> str:
    """Return the table of contents: a line per study with its result at the largest W."""
    names = [criterion.name for criterion in chapters[0].criteria]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("study", "W", "S", "E", *names))
    lines = []
    for place, chapter in enumerate(chapters, start=1):
        study, last = chapter.study, chapter.study.rows[-1]
        cells = [
            f'<a href="#study-{place}">{escape(title(study))}</a>',
            escape(", ".join(map(str, study.world_sizes))),
            escape(_plain(last.speedup.median)),
            escape(_plain(last.efficiency.median)),
            *(_badge(criterion.result) for criterion in chapter.criteria),
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        f'<nav class="scroll"><table class="text"><tr>{head}</tr>{"".join(lines)}</table></nav>'
        '<p class="quiet">S and E by throughput, at the largest W of each.</p>'
    )


def _plain(value: float) -> str:
    return number(value, "{:.3g}")


def _badge(result: str) -> str:
    kind = {"PASS": "pass", "FAIL": "fail"}.get(result, "unknown")
    return f'<span class="badge {kind}">{escape(result)}</span>'


def _grid(plots: Sequence[Plot]) -> str:
    return '<div class="plots">' + "".join(map(embed, plots)) + "</div>" if plots else ""


def embed(plot: Plot) -> str:
    """Return a figure as an image inside the page; an <img> keeps the ids of one SVG apart from the next one's."""
    data = base64.b64encode(plot.svg).decode()
    wide = ' class="wide"' if plot.name in _WIDE else ""
    caption = escape(plot.caption)
    return (
        f'<figure{wide}><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are text, left-aligned; the first of a row is a path."""
    return f'<div class="scroll"><table class="text paths">{_head(head)}{"".join(map(_line, rows))}</table></div>'


def preformatted(text: str) -> str:
    """Return text whose lines and columns stay as they are."""
    return f'<div class="scroll"><pre>{escape(text)}</pre></div>'


def number_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of numbers; what stands in brackets goes below in small print."""
    return f'<div class="scroll"><table>{_head(head)}{"".join(map(_line, rows))}</table></div>'


def _section(heading: str, body: str, level: str) -> str:
    return f"<{level}>{escape(heading)}</{level}>\n{body}"


def _head(head: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"


def _line(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in cells) + "</tr>"


def _cell(text: str) -> str:
    value, bracket, rest = text.partition(" [")
    return escape(value) + (f"<small>[{escape(rest)}</small>" if bracket else "")


def _sizes(study: Study) -> str:
    row = study.rows[-1]
    seeds = sorted({seed for each in study.rows for seed in each.seeds})
    sizes = [
        f"W = {', '.join(map(str, study.world_sizes))}",
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
    ]
    if row.num_envs:
        if study.rule == "strong":
            sizes.append(
                f"one batch of {row.num_envs * row.rollout_steps:,} steps per iteration whatever W is"
            )
        else:
            sizes.append(
                f"{row.num_envs * row.rollout_steps // row.world_size:,} steps per worker and iteration"
            )
    cores = sorted({row.cores for row in study.rows if row.cores})
    if cores:
        sizes.append(" to ".join(map(str, dict.fromkeys((cores[0], cores[-1])))) + " cores")
    return " · ".join(sizes)


def _verdict(criteria: Sequence[Criterion]) -> str:
    rows = "".join(
        f"<tr><td>{_badge(c.result)}</td><td>{escape(c.name)}</td><td>{escape(c.reason)}</td></tr>"
        for c in criteria
    )
    return f'<table class="text">{rows}</table>'


def _table(study: Study) -> str:
    note = "Medians over seeds (IQM: interquartile means); in brackets 95 % bootstrap intervals. "
    if study.rule == "strong":
        note += "Strong scaling: all W share one batch, so S and E compare the same work."
    else:
        note += (
            "Weak scaling: every worker keeps its batch, so S and E are of throughput; S by time also contains how "
            "learning takes to the larger batch."
        )
    further = "".join(
        number_table(head, lines) for head, lines in (iqm_table(study), time_table(study)) if lines
    )
    return number_table(*speed_table(study)) + further + f'<p class="quiet">{note}</p>'


def _accounts(study: Study, accounts: Sequence[Account]) -> str:
    if not accounts:
        return ""
    causes = list(accounts[0].shares)
    head = '<th style="text-align: left">cause</th>' + "".join(f"<th>W={a.world_size}</th>" for a in accounts)
    lines = []
    for cause in causes:
        swatch = f'<span class="swatch" style="background:{CAUSE_COLOURS[cause]}"></span>'
        cells = "".join(f"<td>{100 * a.shares[cause]:.1f} %</td>" for a in accounts)
        name = escape(cause_name(cause, study.rule))
        lines.append(f'<tr><td class="name">{swatch}{name}</td>{cells}</tr>')
    total = "".join(f"<td><b>{100 * a.loss:.1f} %</b></td>" for a in accounts)
    lines.append(f'<tr><td class="name"><b>lost efficiency 1 - E(W)</b></td>{total}</tr>')
    return (
        f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
        '<p class="quiet">Shares of the iteration at that W; they add up. Negative: a gain.</p>'
    )


def _left_out(left_out: Sequence[LeftOut]) -> str:
    if not left_out:
        return '<p class="quiet">None.</p>'
    return text_table(
        ["folder or row", "why", "what to do"], [(item.path, item.reason, item.remedy) for item in left_out]
    )


def _definitions(studies: Sequence[Study]) -> str:
    if any(study.baseline != 1 for study in studies):
        speedup = "FPS(W) / FPS(W₁), and S(W) * W₁ / W, with W₁ the smallest W of the study"
        first, strong = "W₁", "W₁/W"
    else:
        speedup, first, strong = "FPS(W) / FPS(1), and S(W) / W", "1", "1/W"
    work = {"strong": f"{strong} under strong scaling", "weak": "1 under weak scaling"}
    g = ", ".join(work[rule] for rule in sorted({study.rule for study in studies}))
    terms = {
        "FPS(W)": "environment steps of all workers / seconds of training, after warm-up; evaluation is not training",
        "S(W), E(W)": speedup,
        "time to target": (
            "training seconds until the first evaluation at or above the target (or training return, where a run was "
            "evaluated only at its end); nothing is interpolated; a seed that never gets there counts as +inf. "
            f"S by time = T({first}) / T(W) of the medians"
        ),
        "ideal iteration": f"g times that at W={first}; g = {g}",
        "t_iter": "an iteration without evaluation, mean over ranks; over iterations and seeds",
        "t_rollout, t_learn, t_sync, t_comm, t_other": (
            "exclusive parts of t_iter: acting and stepping; returns, forward, backward, optimizer; waiting for the "
            "slowest rank; in collectives once all have arrived; the rest"
        ),
        "rho_comm, rho_sync": "mean t_comm / mean t_iter, mean t_sync / mean t_iter",
        "slow ranks": (
            f"mean t_rollout above {STRAGGLER_RATIO:g} times the median rank's, by more than "
            f"{100 * STRAGGLER_MATTERS:g} % of t_iter"
        ),
        "why": (
            f"a part that takes p(W) seconds of an iteration should take g * p({first}); the surplus over the "
            "iteration's wall-clock time is its share of 1 - E(W). Oversubscribed cores: of the surplus of acting and "
            "learning, what exceeds that at the largest W with a core for each thread, at most what turns explain"
        ),
    }
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in terms.items()) + "</dl>"
