"""Which topology is the soonest on this workload, by how much, and what would have to change for another to be.

Every sentence is of measured numbers; what is said of W not measured is the prediction of that topology's own study.
"""

import math
from collections.abc import Sequence

from ddppo.study.columns import duration, percent, whole
from ddppo.study.measure.topologies import Behind, Side, SideBySide
from ddppo.study.predict.outlook import Outlook

AHEAD = 32  # workers that every topology is predicted for
_PARTS = {"t_rollout": "acting and stepping", "t_learn": "learning", "t_comm": "communication"}
_SMALL = 0.02  # of the time of a rank
_WHOM = {"learner": "the learner", "actor": "actors", "observer": "observers"}


def compared(found: SideBySide, outlooks: Sequence[Outlook]) -> list[str]:
    """Return what is said beside the tables; outlooks are those of the topologies in the order of their sides."""
    said = [_soonest(found), *(f"{_behind(each, found)} {_to_win(each)}".strip() for each in found.behind)]
    return [*said, *_weakness(found), *_crowded(found), _ahead(found, outlooks)]


def _soonest(found: SideBySide) -> str:
    best, row = found.best, found.best.row
    if not found.by_target:
        return f"{best.name} is the fastest here: {whole(row.fps.median)} steps/s, median of {_seeds(row.fps.count)}."
    took, seeds = duration(row.time_to_target.median), _seeds(row.time_to_target.count)
    target = f"{best.study.target_return:g}"
    reached = "" if row.num_reached == row.time_to_target.count else f", of which {row.num_reached} got there"
    return f"{best.name} is soonest at a return of {target} here: {took}, median of {seeds}{reached}."


def _behind(each: Behind, found: SideBySide) -> str:
    """Return how much later a topology is, and how sure that is."""
    times, side = each.times, each.side
    both = sorted(x for x in times.values if 0 < x < math.inf)
    if not math.isfinite(times.median):
        return (
            f"{side.name} was there in {side.row.num_reached} of {_seeds(len(side.runs))}: later, or never."
        )
    sure = f"{both[0]:.3g} to {both[-1]:.3g} over {_seeds(len(both))}" if both else "by medians"
    if len(both) < times.count:
        one_alone = {"it never got there": math.inf, "only it did": 0.0}
        counts = {said: times.values.count(ratio) for said, ratio in one_alone.items()}
        sure += "".join(f", {said} in {_seeds(count)}" for said, count in counts.items() if count)
    elif not math.isfinite(times.low):
        sure += ", too few for an interval"
    else:
        sure = f"95 % interval {times.low:.3g} to {times.high:.3g} over {_seeds(times.count)}"
        sure += "" if times.low > 1 else ", so not surely"
    text = f"{side.name} takes {times.median:.3g} times as long ({sure})"
    if abs(each.steps - 1) >= 0.005:
        text += f", and {each.steps:.3g} times the environment steps"
    return f"{text}."


def _to_win(each: Behind) -> str:
    """Return by how much its iterations would have to be shorter, beside what they are spent on."""
    side, times, role = each.side, each.times.median, each.side.learner
    if not (1 < times < math.inf) or not role:
        return ""
    if each.steps > 1 and each.steps**2 >= times:  # the larger of the two factors
        return f"It needs more steps rather than longer ones: a step takes {times / each.steps:.3g} times as long."
    spent, gap = side.spent[role], 1 - 1 / times
    idle = spent["t_sync"] + spent["t_comm"]
    verdict = "more than all its waiting and communication: acting or learning itself would have to take less"
    if idle > gap:
        verdict = f"{percent(gap / idle)} of its waiting and communication"
    return (
        f"To be as soon its iterations of {duration(side.iteration_s)} would have to be {percent(gap)} shorter: "
        f"of the {role}'s time {_listed(side, spent)}; that is {verdict}."
    )


def _listed(side: Side, spent: dict[str, float]) -> str:
    """Return what a rank's time goes to, the most first."""
    parts = {name: spent[part] for part, name in _PARTS.items()}
    if not math.isnan(side.messages):
        traffic = (
            f"communication ({whole(side.messages)} messages, {whole(side.num_bytes / 1000)} kB an iteration)"
        )
        parts[traffic] = parts.pop(_PARTS["t_comm"])
    waits = {part.removeprefix("for "): x for part, x in spent.items() if part.startswith("for ")}
    others = {side.learner: f"other {side.learner}s"}
    parts |= {f"waiting for {(_WHOM | others).get(role, role)}": x for role, x in waits.items()}
    parts |= {} if waits else {"waiting": spent["t_sync"]}
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{percent(x)} is {name}" for name, x in ordered if x >= _SMALL)


def _weakness(found: SideBySide) -> list[str]:
    """Return what the soonest pays for exchanging, beside the one that exchanges least: dearer messages favour that."""
    told = [side for side in (found.best, *(each.side for each in found.behind)) if side.messages >= 0]
    if found.best not in told or len(told) < 2:
        return []
    least = min(told, key=lambda side: side.messages)
    if least is found.best:
        return [f"Dearer messages would not change that: {_traffic(least)}, the fewest."]
    return [
        f"What could change that is dearer messages, as over a network: {_traffic(found.best)}, {_traffic(least)}."
    ]


def _traffic(side: Side) -> str:
    comm = side.spent[side.learner]["t_comm"]
    return f"{side.name} exchanges {whole(side.messages)} an iteration, {percent(comm)} of the {side.learner}'s time"


def _crowded(found: SideBySide) -> list[str]:
    sides = [
        side for side in (found.best, *(each.side for each in found.behind)) if side.row.oversubscription > 1
    ]
    names = ", ".join(side.name for side in sides)
    return (
        [f"More compute threads than cores: {names}. With a core for each the order may be another."]
        if sides
        else []
    )


def _ahead(found: SideBySide, outlooks: Sequence[Outlook]) -> str:
    """Return what each topology's own study predicts for many workers, and of which it does not."""
    said, few = [], []
    names = dict.fromkeys(side.study.topology for side in found.sides)
    for topology, outlook in zip(names, outlooks, strict=True):
        predicted = next((p for p in outlook.as_measured if p.world_size == AHEAD), None)
        if not outlook.checks:  # fewer than three W, of which none can be held out
            few.append(topology)
            continue
        check = outlook.checks[-1]
        off = f"W={check.world_size}, held out, is missed by {100 * check.error:+.0f} %"
        if not check.within:
            said.append(f"not {topology} ({off})")
        elif predicted is None:
            said.append(f"not {topology}, whose environments do not divide among so many")
        else:
            between = f"{whole(predicted.fps_low)} to {whole(predicted.fps_high)}"
            said.append(f"{topology} {whole(predicted.fps)} steps/s ({between}; {off})")
    said += [f"not {', '.join(few)}, measured at fewer than three W"] if few else []
    return f"Predicted at W={AHEAD}, of others than ddp by a law of W, which knows no environments: {'; '.join(said)}."


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
