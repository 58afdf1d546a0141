"""What does a report say of made-up studies whose truth is known? `python -m tests.study.fuzz [each=5] [seed=1]`.

Each study of tests/study/planted.py and tests/study/disturbed.py goes through the whole of ddppo.study; its sentences
and numbers are compared with what was planted. Prints, for each kind of study, the numbers that docs/report.md quotes,
and every statement that was false. Further options: kind= one kind, workers= processes, csv= a file for the table,
only=speeds for no more than doubts and the intervals of FPS, S and E.
"""

import csv
import math
import multiprocessing
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ddppo.study.measure.speedup import study as measured_study
from ddppo.study.read.record import Reading
from ddppo.study.read.selection import FoundStudies
from ddppo.study.report import ReportOptions, compute
from tests.study import disturbed, planted
from tests.study.planted import Planted

SHARE_TOLERANCE = 0.03
KINDS = planted.KINDS | disturbed.DISTURBED
# A statement on a page (counted as true or false), and an interval of 95 % (counted as a hit or a miss).
STATEMENTS = (
    "a cause",
    "nothing to explain",
    "a remedy",
    "the W recommended",
    "S increases",
    "returns",
    "a slow rank",
    "no slow rank",
    "S(W)",
    "a doubt",
)
INTERVALS = ("fps", "speedup", "efficiency", "share", "prediction")
ADVICE = ("the W recommended", "a remedy")
MAIN = "main cause named, or not to be told"


@dataclass
class Findings:
    """counts: {kind: {what: [held, asked]}}; misjudged: what did not hold, in words; widths of predictions."""

    counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    misjudged: list[str] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def note(self, what: str, held: bool, study: Planted, words: str) -> None:
        count = self.counts.setdefault(study.kind, {}).setdefault(what, [0, 0])
        count[0] += bool(held)
        count[1] += 1
        if not held and what not in ("page", "share within .03"):
            self.misjudged.append(f"{what}: {study}: {words}")

    def sums(self, *what: str, kind: str | None = None) -> tuple[int, int]:
        """Return how many held, and how many were asked."""
        of = [c for k, c in self.counts.items() if kind in (None, k)]
        return tuple(sum(c.get(w, (0, 0))[i] for c in of for w in what) for i in (0, 1))

    def rate(self, *what: str, kind: str | None = None) -> float:
        held, asked = self.sums(*what, kind=kind)
        return held / asked if asked else math.nan

    def false_per_page(self, kind: str | None = None) -> float:
        held, asked = self.sums(*STATEMENTS, kind=kind)
        return (asked - held) / self.sums("page", kind=kind)[1]

    def rows(self) -> list[dict[str, object]]:
        """Return a line for each kind, and one for all."""
        return [self._row(kind) for kind in (*self.counts, None)]

    def _row(self, kind):
        lost = self.sums(*ADVICE, kind=kind)
        rates = {what: self.rate(what, kind=kind) for what in INTERVALS}
        return {
            "kind": kind or "all",
            "pages": self.sums("page", kind=kind)[1],
            "false_per_page": round(self.false_per_page(kind), 3),
            "main_or_not_told": _shown(self.rate(MAIN, kind=kind)),
            **{f"held_{what}": _shown(rate) for what, rate in rates.items()},
            "intervals": self.sums(*INTERVALS, kind=kind)[1],
            "advice": lost[1],
            "advice_that_loses": lost[1] - lost[0],
            "doubted": self.sums("doubted", kind=kind)[0],
        }

    def text(self) -> str:
        rows = self.rows()
        widths = [max(len(str(row[name])) for row in (*rows, {name: name})) for name in rows[0]]
        lines = ["  ".join(str(x).rjust(w) for x, w in zip(row, widths, strict=True)) for row in _table(rows)]
        whole = [f"{w}: {self.sums(w)[0]} of {self.sums(w)[1]}" for w in (MAIN, *STATEMENTS, *INTERVALS)]
        middle = sorted(self.widths)[len(self.widths) // 2] if self.widths else math.nan
        return "\n".join(
            [
                "",
                *lines,
                "",
                *whole,
                f"median width of a prediction's interval: {middle:.3f} of it",
            ]
        )


def _table(rows):
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _shown(rate):
    return "" if math.isnan(rate) else f"{rate:.3f}"


def judge(studies: Iterable[Planted]) -> Findings:
    """Report every study and compare."""
    findings = Findings()
    for study in studies:
        said = compute(ReportOptions(path="planted"), FoundStudies([Reading(study.runs(), [])], [])).studies[
            0
        ]
        doubts = getattr(said, "doubts", [])  # the report of an older version has none
        findings.note("page", True, study, "")
        findings.note("doubted", bool(doubts), study, "") if doubts else None
        for doubt in doubts:
            findings.note("a doubt", doubt.kind in study.doubts, study, str(doubt))
        _causes(study, said, doubts, findings)
        _verdict(study, said, findings)
        _slow(study, said, findings, doubts)
        _measured(study, said.study, doubts, findings)
        _ahead(study, said, findings)
        _advice(study, said, findings)
    return findings


def _causes(study, said, doubts, findings):
    """Causes that sentences name are the largest; shares are true at every W, and their intervals hold."""
    base, largest = study.world_sizes[0], study.world_sizes[-1]
    for explained in said.why:
        true = planted.true_shares(study.truth, explained.world_size, base)
        words = f"W={explained.world_size} {explained.main}, true {_listed(true)}"
        if explained.main:
            near = true.get(explained.main, 0.0) >= max(true.values()) - SHARE_TOLERANCE
            findings.note("a cause", near or _seen(study), study, words)
        elif "nothing to explain" in str(explained):
            findings.note("nothing to explain", sum(true.values()) < 0.06 or _seen(study), study, words)
    if study.main or study.doubts:
        named = next((e.main for e in said.why if e.world_size == largest), None)
        true = planted.true_shares(study.truth, largest, base)
        near = true.get(named, 0.0) >= max(true.values()) - SHARE_TOLERANCE
        words = f"{named}, planted {study.main or study.doubts}"
        findings.note(MAIN, bool(doubts) or (near if study.doubts else named == study.main), study, words)
    if study.shift or study.doubts:
        return
    for account in said.accounts:
        true = planted.true_shares(study.truth, account.world_size, base)
        between = getattr(account, "between", None)
        for cause, share in account.shares.items():
            off = share - true.get(cause, 0.0)
            words = f"W={account.world_size} {cause} {share:.3f}, true {true.get(cause, 0.0):.3f}"
            findings.note("share within .03", abs(off) <= SHARE_TOLERANCE, study, words)
            if max(abs(share), true.get(cause, 0.0)) < 0.02 or study.truth.stalls:
                continue
            # An older version printed the lowest and the highest seed.
            each = account.by_seed[cause]
            low, high = between.get(cause, (math.nan,) * 2) if between is not None else (min(each), max(each))
            if not math.isnan(low) and (between is not None or len(each) > 1):
                findings.note(
                    "share", low <= true.get(cause, 0.0) <= high, study, f"{words} [{low:.3f}, {high:.3f}]"
                )


def _seen(study):
    """A study whose own shift makes shares unlike those of the truth."""
    return bool(study.shift)


def _listed(shares):
    return ", ".join(f"{c} {s:.3f}" for c, s in sorted(shares.items(), key=lambda x: -x[1]) if abs(s) > 0.01)


def _verdict(study, said, findings):
    speed, returns = said.criteria[:2]
    speeds = [study.fps(w) for w in study.world_sizes]
    grows = [b / a for a, b in pairwise(speeds)]
    if speed.result == "PASS":
        findings.note("S increases", min(grows) > 1, study, f"PASS, grows by {min(grows):.3f}")
    if speed.result == "FAIL":
        findings.note("S increases", min(grows) < 1.01, study, f"FAIL, grows by {min(grows):.3f}")
    if returns.result in ("PASS", "FAIL"):
        lost = -min([0.0, *study.returns.values()])
        agrees = (returns.result == "PASS") == (lost <= 0.05)
        findings.note("returns", agrees, study, f"{returns.result}: lost {lost:.2f}: {returns.reason}")


def _slow(study, said, findings, doubts):
    if doubts:
        return
    for row in said.study.rows[1:]:
        # What a rank is slower by in its own phase, and what that costs of an iteration.
        true = {r for r, f in study.truth.slow.items() if r < row.world_size and f > 1.0}
        cost = planted.true_shares(study.truth, row.world_size, study.world_sizes[0]).get("slow", 0.0)
        named = {rank.rank for rank in row.slow_ranks}
        for rank in named:
            findings.note("a slow rank", rank in true, study, f"W={row.world_size} rank {rank}")
        if not named and row.ranks:
            findings.note(
                "no slow rank", not true or cost < 0.03, study, f"W={row.world_size}: {true}, {cost:.3f}"
            )


def _measured(study, measured, doubts, findings):
    """Intervals of FPS, S and E hold the true value; S itself is near it."""
    stalled = {w for w, _, _ in study.truth.stalls}
    speeds = {w: study.fps(w) for w in study.world_sizes}
    base = speeds[study.world_sizes[0]]
    for row in measured.rows if not doubts else ():
        fps = speeds[row.world_size]
        relative = row.world_size / study.world_sizes[0]
        true = {"fps": fps, "speedup": fps / base, "efficiency": fps / base / relative}
        for name, value in true.items():
            estimate = getattr(row, name)
            held = estimate.low <= value <= estimate.high
            if name == "speedup" and row.world_size != study.world_sizes[0]:
                near = abs(math.log(estimate.median / value)) < 0.1
                words = f"W={row.world_size} {estimate.median:.4g}, true {value:.4g}"
                findings.note("S(W)", near or held, study, words)
            if math.isnan(estimate.low) or row.world_size in stalled:
                continue
            words = f"W={row.world_size} {estimate.low:.5g} to {estimate.high:.5g}, true {value:.5g}"
            findings.note(name, held, study, words)


def _ahead(study, said, findings):
    """Predictions at W not measured lie within their intervals."""
    if study.doubts or study.shift:
        return
    for p in said.ahead.as_measured:
        if p.world_size in study.world_sizes or p.world_size > 2 * study.world_sizes[-1]:
            continue
        true = study.fps(p.world_size)
        held = p.fps_low <= true <= p.fps_high
        words = f"W={p.world_size} {p.fps:,.0f} [{p.fps_low:,.0f}, {p.fps_high:,.0f}], true {true:,.0f}"
        findings.note("prediction", held, study, words)
        findings.widths.append((p.fps_high - p.fps_low) / p.fps)


def _advice(study, said, findings):
    """Neither the W recommended nor a remedy makes the planted system slower than what it was."""
    chosen = said.ahead.recommendation
    chosen = chosen and chosen.chosen
    if chosen is not None:
        # By the truth it is about as fast as any W that surely keeps the floor, keeps it itself, and learns as well.
        speeds = {w: study.fps(w) for w in {*study.world_sizes, chosen.world_size}}
        first = study.world_sizes[0]
        kept = {w: x / speeds[first] * first / w for w, x in speeds.items()}
        learns = {w for w in speeds if study.returns.get(w, 0.0) >= -0.05}
        best = max(speeds[w] for w in study.world_sizes if w in learns and kept[w] > 0.73)
        mine = speeds[chosen.world_size]
        good = mine >= 0.96 * best and kept[chosen.world_size] > 0.67 and chosen.world_size in learns
        efficiency = kept[chosen.world_size]
        words = f"W={chosen.world_size} {mine:,.0f}, E {efficiency:.3f}; the best that keeps the floor {best:,.0f}"
        findings.note("the W recommended", good, study, words)
    for explained in said.why:
        for words, change in REMEDIES.items():
            if words in explained.remedy:
                before = planted.true_fps(study.truth, explained.world_size)
                after = planted.true_fps(change(study.truth), explained.world_size)
                told = f"W={explained.world_size}, {words}: {before:,.0f} to {after:,.0f}"
                findings.note("a remedy", after >= 0.99 * before, study, told)


# What a remedy would change of the system, by the words that give it.
REMEDIES = {
    "faster network": lambda t: replace(t, latency_s=t.latency_s / 2, byte_s=t.byte_s / 2),
    "larger minibatches": lambda t: replace(t, num_minibatches=max(1, t.num_minibatches // 2)),
    "fewer minibatches": lambda t: replace(t, num_minibatches=max(1, t.num_minibatches // 2)),
    "larger batch": lambda t: replace(t, num_envs=2 * t.num_envs),
    "longer rollouts": lambda t: replace(t, rollout_steps=2 * t.rollout_steps),
    "more cores": lambda t: replace(t, cores=None if t.cores is None else 2 * t.cores),
    "more environments": lambda t: replace(t, num_envs=2 * t.num_envs),
    "what slows": lambda t: replace(t, slow={}),
    "what the workers share": lambda t: replace(t, contention=(0.0, 0.0)),
    "rarer checkpoints": lambda t: replace(t, other_s=t.other_s / 2),
}


def speeds_of(studies: Iterable[Planted]) -> Findings:
    """Judge the doubts and the intervals of FPS, S and E alone, which takes a tenth of the time."""
    from ddppo.study.measure.belief import doubts
    from ddppo.study.measure.pace import steady

    findings = Findings()
    for study in studies:
        rows = measured_study(steady(study.runs())[0])
        found = doubts(rows)
        findings.note("page", True, study, "")
        findings.note("doubted", True, study, "") if found else None
        for doubt in found:
            findings.note("a doubt", doubt.kind in study.doubts, study, str(doubt))
        _measured(study, rows, found, findings)
    return findings


def of_one_kind(asked: tuple[str, int, int, bool]) -> Findings:
    """Judge so many studies of a kind."""
    kind, count, seed, speeds_only = asked
    made = planted.studies(count, [seed, *kind.encode()], {kind: KINDS[kind]})
    return speeds_of(made) if speeds_only else judge(made)


def main() -> None:
    given = dict(text.partition("=")[::2] for text in sys.argv[1:])
    count, seed = int(given.get("each", 5)), int(given.get("seed", 1))
    speeds_only = given.get("only") == "speeds"
    asked = [(kind, count, seed, speeds_only) for kind in KINDS if given.get("kind", kind) == kind]
    found = Findings()
    with multiprocessing.get_context("spawn").Pool(int(given.get("workers", 1))) as pool:
        for of_kind in pool.imap_unordered(of_one_kind, asked):
            found.counts |= of_kind.counts
            found.widths += of_kind.widths
            print("\n".join(of_kind.misjudged), flush=True)
    found.counts = {kind: found.counts[kind] for kind, *_ in asked}
    print(found.text())
    if "csv" in given:
        with open(given["csv"], "w", newline="") as file:
            writer = csv.DictWriter(file, list(found.rows()[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found.rows())


if __name__ == "__main__":
    main()
