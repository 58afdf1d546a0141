"""What does a report say first? A few lines: which W and what it buys, speed, time, learning, and what to do next.

If the numbers cannot be believed, the page shows the reasons first, and only the line that does not rest on speeds.
"""

import math
from dataclasses import dataclass

from ddppo.statistics import LEAST_SEEDS
from ddppo.study.columns import duration, percent
from ddppo.study.explain.accounting import cause_name
from ddppo.study.explain.criteria import FAIL, PASS, UNCERTAIN, Criterion
from ddppo.study.explain.sentences import outside_training
from ddppo.study.measure.speedup import SpeedupRow
from ddppo.study.predict.recommend import Recommendation, RecommendedW
from ddppo.study.report import ReportOptions, StudyReport


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """A line of the answer."""

    about: str  # one or two words
    text: str
    more: str = ""  # smaller, below the text
    result: str = ""  # of a criterion


def answer(each: StudyReport, options: ReportOptions) -> list[AnswerLine]:
    """Return the lines about a study, without those for which it has no numbers."""
    speed, learning = each.criteria
    learned = AnswerLine("Learning", _learning(learning), learning.reason, learning.result)
    evaluation = [AnswerLine("Evaluation", text) for text in outside_training(each.study)]
    if each.doubts:
        return [learned, *evaluation]
    found = each.ahead.recommendation
    best = [AnswerLine("Use", *_best(each, found, options))] if found else []
    return [
        *best,
        AnswerLine("Speed", speed.reason, result=speed.result),
        *_time(each),
        learned,
        *_next(each),
    ]


def _best(each: StudyReport, found: Recommendation, options: ReportOptions) -> tuple[str, str]:
    """Return the recommended W and how fast it is; then the time that it takes, and the alternatives."""
    c, base = found.chosen, each.study.rows[0]
    if c is None:
        return found.text(), ""
    kept, fastest = c.efficiency >= options.efficiency_floor, found.fastest
    floor = f"an efficiency of {100 * options.efficiency_floor:g} %"
    further = "" if kept else f"No larger W keeps {floor}. "
    if fastest is not None and fastest.world_size != c.world_size:
        how = "is" if fastest.measured else "is predicted to be"
        times = f"{fastest.fps / base.fps.median:.3g} times, efficiency {percent(fastest.efficiency)}"
        further += f"The fastest {how} W={fastest.world_size}: {times}. "
    if c.world_size == base.world_size:
        slower = all(o.seconds >= c.seconds for o in found.table if o.measured)
        why = "no larger W is faster" if slower else f"no larger W that is faster keeps {floor}"
        return f"W={c.world_size}: {why}.", further.strip()
    row = next((row for row in each.study.rows if row.world_size == c.world_size), None)
    between = "" if row is None or math.isnan(row.speedup.low) else f" ({_between(row)})"
    how = "steps per second" if c.measured else "steps per second are predicted"
    speed = f"{c.fps:,.0f} {how}, {c.fps / base.fps.median:.3g} times those of W={base.world_size}{between}"
    # A run to the target, or of as many steps.
    alone = next(choice for choice in found.table if choice.world_size == base.world_size)
    what = f"{found.basis.removeprefix('for ')} take"
    if each.study.row(base.world_size).time_to_target.count:
        what = f"A return of {each.study.target_return:g} takes"
    took = f"{what} {duration(c.seconds)}, at W={base.world_size} {duration(alone.seconds)}{_cost(c, alone)}."
    predicted = "" if c.measured else "Measure it before you rely on it."
    against = "" if base.world_size == 1 else f" against W={base.world_size} (W=1 was not measured)"
    text = f"W={c.world_size}: {speed}, efficiency {percent(c.efficiency)}{against}."
    if found.doubt:
        text = f"Perhaps W={c.world_size}: {speed}. {found.doubt}"
    return text, f"{took} {further}{predicted}".strip()


def _between(row: SpeedupRow) -> str:
    return f"95 % interval {row.speedup.low:.3g} to {row.speedup.high:.3g}"


def _cost(c: RecommendedW, alone: RecommendedW) -> str:
    known = c.cost is not None and alone.cost is not None
    return f", and costs {c.cost:.3g}, at W={alone.world_size} {alone.cost:.3g}" if known else ""


def _time(each: StudyReport) -> list[AnswerLine]:
    """Return where the time of the largest W goes: what is lost, and its main causes."""
    why = each.why[-1] if each.why else None
    account = next((a for a in each.accounts if why and a.world_size == why.world_size), None)
    if why is None or account is None or why.main is None:
        return [AnswerLine("Time", why.sentences[-1])] if why else []
    row = each.study.row(account.world_size)
    named = {cause: cause_name(cause, each.study.rule) for cause in account.shares}
    if row.slow_ranks:
        ranks = [str(rank.rank) for rank in row.slow_ranks]
        more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
        named["slow"] = f"slow rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:4])}{more}"
    # The main cause, and the next one if it matters.
    ordered = sorted(account.shares, key=lambda cause: (cause != why.main, -account.shares[cause]))
    told = [
        f"{percent(account.shares[c])} to {named[c]}{'' if account.is_certain(c) else ' (not certainly)'}"
        for c in ordered[:2]
        if account.shares[c] >= 0.02
    ]
    lost = f"W={account.world_size} loses {percent(account.loss)} of an iteration"
    return [AnswerLine("Time", f"{lost}: {', '.join(told)}." if told else f"{lost}.")]


def _learning(found: Criterion) -> str:
    """Return whether larger W learned as well, in words."""
    said = {
        PASS: "No larger W learned worse.",
        FAIL: "A larger W learned worse.",
        UNCERTAIN: "It is not certain that no larger W learned worse.",
    }
    return said.get(found.result, "Not compared.")


def _next(each: StudyReport) -> list[AnswerLine]:
    """Return what to do next: seeds for intervals, the remedy against the main cause, a larger W to measure."""
    texts = [
        f"Against the loss: {why.remedy.removeprefix('Remedy: ')}" for why in each.why[-1:] if why.remedy
    ]
    # A cause without a remedy is one that is not certain.
    if each.why and each.why[-1].main and not texts:
        texts.append("Run more seeds: these do not tell the causes.")
    elif few := [row.world_size for row in each.study.rows if len(row.seeds) < LEAST_SEEDS]:
        some = "each W" if len(few) == len(each.study.rows) else f"W={', '.join(map(str, few))}"
        texts.insert(0, f"Run {LEAST_SEEDS} seeds or more of {some}: fewer have no intervals.")
    # A larger W that is predicted to be faster, and was not chosen.
    found = each.ahead.recommendation
    if found is not None and found.chosen is not None:
        largest = each.study.world_sizes[-1]
        ahead = [c for c in found.table if c.world_size > largest and c.seconds < found.chosen.seconds]
        if found.chosen.world_size == largest and ahead:
            texts.append(f"Measure W={ahead[0].world_size}, which may be faster still.")
    return [AnswerLine("Next", " ".join(texts))] if texts else []
