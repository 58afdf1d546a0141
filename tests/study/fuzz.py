"""What a report says of made-up studies whose truth is known: `python -m tests.study.fuzz 400 [seed=1]`.

Each study of tests/study/planted.py goes through the whole of ddppo.study; its words and numbers are compared with what
was planted. Prints the rates that docs/report.md quotes, and every study that was misjudged.
"""

import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace

from ddppo.study.read.record import Reading
from ddppo.study.read.selection import FoundStudies
from ddppo.study.report import ReportOptions, compute
from tests.study import planted
from tests.study.planted import Planted

SHARE_TOLERANCE = 0.03


@dataclass
class Findings:
    """counts: {what: [held, asked]}; misjudged: the studies where something did not hold, in words."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    misjudged: list[str] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def note(self, what: str, held: bool, study: Planted, words: str) -> None:
        count = self.counts.setdefault(what, [0, 0])
        count[0] += held
        count[1] += 1
        if not held:
            self.misjudged.append(f"{what}: {study}: {words}")

    def rate(self, what: str) -> float:
        held, asked = self.counts[what]
        return held / asked

    def text(self) -> str:
        lines = [
            f"{what}: {held} of {asked} ({100 * held / asked:.1f} %)"
            for what, (held, asked) in self.counts.items()
        ]
        middle = sorted(self.widths)[len(self.widths) // 2] if self.widths else math.nan
        return "\n".join(
            [
                *self.misjudged,
                "",
                *lines,
                f"median width of a prediction's interval: {100 * middle:.0f} % of it",
            ]
        )


def judge(studies: list[Planted], progress=lambda study: None) -> Findings:
    """Report every study and compare."""
    findings = Findings()
    for study in studies:
        progress(study)
        said = compute(ReportOptions(path="planted"), FoundStudies([Reading(study.runs(), [])], [])).studies[
            0
        ]
        _causes(study, said, findings)
        _measured(study, said, findings)
        _ahead(study, said, findings)
        _advice(study, said, findings)
    return findings


def _causes(study, said, findings):
    """The main cause at the largest W is the planted one, and shares are true at every W."""
    base = study.world_sizes[0]
    for account in said.accounts:
        w = account.world_size
        true = planted.true_shares(study.truth, w, base)
        shares = dict(account.shares)
        if w == study.world_sizes[-1] and study.main:
            main = max(shares, key=lambda cause: shares[cause])
            told = ", ".join(
                f"{c} {s:.3f} (true {true.get(c, 0):.3f})" for c, s in shares.items() if abs(s) > 0.01
            )
            findings.note("main cause", main == study.main, study, told)
        for cause, share in shares.items():
            off = share - true.get(cause, 0.0)
            words = f"W={w} {cause} {share:.3f}, true {true.get(cause, 0.0):.3f}"
            findings.note("share within .03", abs(off) <= SHARE_TOLERANCE, study, words)


def _measured(study, said, findings):
    """Intervals of FPS, S and E hold the true value."""
    stalled = {w for w, _, _ in study.truth.stalls}
    speeds = {w: planted.true_fps(study.truth, w) for w in study.world_sizes}
    base = speeds[study.world_sizes[0]]
    for row in said.study.rows:
        fps = speeds[row.world_size]
        relative = row.world_size / study.world_sizes[0]
        true = {"fps": fps, "speedup": fps / base, "efficiency": fps / base / relative}
        for name, value in true.items():
            estimate = getattr(row, name)
            if math.isnan(estimate.low) or row.world_size in stalled:
                continue
            held = estimate.low <= value <= estimate.high
            words = f"W={row.world_size} {estimate.low:.5g} to {estimate.high:.5g}, true {value:.5g}"
            findings.note("interval of " + name, held, study, words)


def _ahead(study, said, findings):
    """Predictions at W not measured lie within their intervals; the model's own S(1) is 1."""
    for p in said.ahead.as_measured:
        if p.world_size in study.world_sizes or p.world_size > 4 * study.world_sizes[-1]:
            continue
        true = planted.true_fps(study.truth, p.world_size)
        held = p.fps_low <= true <= p.fps_high
        words = f"W={p.world_size} {p.fps:,.0f} [{p.fps_low:,.0f}, {p.fps_high:,.0f}], true {true:,.0f}"
        findings.note("prediction in its interval", held, study, words)
        findings.widths.append((p.fps_high - p.fps_low) / p.fps)


def _advice(study, said, findings):
    """Neither the W recommended nor a remedy makes the planted system slower than what it was."""
    chosen = said.ahead.recommendation
    chosen = chosen and chosen.fastest
    if chosen is not None:
        best = max(planted.true_fps(study.truth, w) for w in study.world_sizes)
        mine = planted.true_fps(study.truth, chosen.world_size)
        words = f"W={chosen.world_size} {mine:,.0f}, the best measured {best:,.0f}"
        findings.note("the W recommended is no slower", mine >= 0.97 * best, study, words)
    for explained in said.why:
        for words, change in REMEDIES.items():
            if words in explained.remedy:
                before = planted.true_fps(study.truth, explained.world_size)
                after = planted.true_fps(change(study.truth), explained.world_size)
                told = f"W={explained.world_size}, {words}: {before:,.0f} to {after:,.0f}"
                findings.note("a remedy does not slow", after >= 0.99 * before, study, told)


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


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    seed = next((int(a.removeprefix("seed=")) for a in sys.argv[2:] if a.startswith("seed=")), 1)
    kinds: Counter[str] = Counter()

    def progress(study):
        kinds[study.kind] += 1
        if sys.stderr.isatty():
            print(f"\r{sum(kinds.values())} of {count}", end="", file=sys.stderr, flush=True)

    print(judge(planted.studies(count, seed), progress).text())


if __name__ == "__main__":
    main()
