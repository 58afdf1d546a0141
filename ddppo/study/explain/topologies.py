"""Which topology is fastest on this workload, by how much, and what would have to change? The answer as sentences.

Sentences are about measured numbers. A number for a W that was not measured is a prediction from that topology's study.
"""

import math
from collections.abc import Sequence

from ddppo.study.columns import duration, percent, whole
from ddppo.study.measure.topologies import Behind, Side, SideBySide
from ddppo.study.predict.outlook import Outlook

_PARTS = {"t_rollout": "acting and stepping", "t_learn": "learning", "t_comm": "communication"}
_SMALL = 0.02  # part of a rank's time that is not worth a word
_ROLE_NAMES = {"learner": "the learner", "actor": "actors", "observer": "observers"}


def compared(found: SideBySide, outlooks: Sequence[Outlook]) -> list[str]:
    """Return the sentences of the comparison. outlooks: of the topologies, in the order of their sides."""
    sentences = [
        _fastest(found),
        *(f"{_behind(each, found)} {_to_win(each)}".strip() for each in found.behind),
    ]
    return [*sentences, *_weakness(found), *_crowded(found), _ahead(found, outlooks)]


def _fastest(found: SideBySide) -> str:
    best, row = found.best, found.best.row
    if not found.by_target:
        return f"{best.name} is the fastest here: {whole(row.fps.median)} steps/s, median of {_seeds(row.fps.count)}."
    took, seeds = duration(row.time_to_target.median), _seeds(row.time_to_target.count)
    target = f"{best.study.target_return:g}"
    reached = "" if row.num_reached == row.time_to_target.count else f", {row.num_reached} of them reached it"
    return f"{best.name} reaches a return of {target} first here: {took}, median of {seeds}{reached}."


def _behind(each: Behind, found: SideBySide) -> str:
    """Return how much slower a topology is, and how certain that is."""
    times, side = each.times, each.side
    # Ratios of seeds in which both reached the target.
    both = sorted(x for x in times.values if 0 < x < math.inf)
    if not math.isfinite(times.median):
        return (
            f"{side.name} reached it in {side.row.num_reached} of {_seeds(len(side.runs))}: later, or never."
        )
    sure = f"{both[0]:.3g} to {both[-1]:.3g} over {_seeds(len(both))}" if both else "by medians"
    if len(both) < times.count:
        # Seeds in which one of the two never reached the target have the ratio inf or 0.
        one_alone = {"only it never reached the target": math.inf, "only it reached the target": 0.0}
        counts = {text: times.values.count(ratio) for text, ratio in one_alone.items()}
        sure += "".join(f", {text} in {_seeds(count)}" for text, count in counts.items() if count)
    elif not math.isfinite(times.low):
        sure += ", too few for an interval"
    else:
        sure = f"95 % interval {times.low:.3g} to {times.high:.3g} over {_seeds(times.count)}"
        sure += "" if times.low > 1 else ", so the order is not certain"
    text = f"{side.name} takes {times.median:.3g} times as long ({sure})"
    # More environment steps are a reason of their own.
    if abs(each.steps - 1) >= 0.005:
        text += f", and {each.steps:.3g} times the environment steps"
    return f"{text}."


def _to_win(each: Behind) -> str:
    """Return by how much the topology's iterations would have to be shorter, and how their time is spent."""
    side, times, role = each.side, each.times.median, each.side.learner
    if not (1 < times < math.inf) or not role:
        return ""
    if each.steps > 1 and each.steps**2 >= times:  # the larger of the two factors
        return f"It needs more environment steps; a step takes {times / each.steps:.3g} times as long."
    # Compare the necessary gain with waiting and communication.
    spent, gap = side.spent[role], 1 - 1 / times
    idle = spent["t_sync"] + spent["t_comm"]
    verdict = "more than all its waiting and communication: acting or learning itself would have to take less"
    if idle > gap:
        verdict = f"{percent(gap / idle)} of its waiting and communication"
    return (
        f"To be equally fast, its iterations of {duration(side.iteration_s)} would have to be {percent(gap)} shorter: "
        f"of the {role}'s time {_listed(side, spent)}; that is {verdict}."
    )


def _listed(side: Side, spent: dict[str, float]) -> str:
    """Return the parts of the learner's time, the largest first."""
    parts = {name: spent[part] for part, name in _PARTS.items()}
    if not math.isnan(side.messages):
        traffic = (
            f"communication ({whole(side.messages)} messages, {whole(side.num_bytes / 1000)} kB an iteration)"
        )
        parts[traffic] = parts.pop(_PARTS["t_comm"])
    # Waiting by role, if the runs record it.
    waits = {part.removeprefix("for "): x for part, x in spent.items() if part.startswith("for ")}
    others = {side.learner: f"other {side.learner}s"}
    parts |= {f"waiting for {(_ROLE_NAMES | others).get(role, role)}": x for role, x in waits.items()}
    parts |= {} if waits else {"waiting": spent["t_sync"]}
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{percent(x)} is {name}" for name, x in ordered if x >= _SMALL)


def _weakness(found: SideBySide) -> list[str]:
    """Return whether more expensive messages could change the order: they favour the side with the fewest messages."""
    known = [side for side in (found.best, *(each.side for each in found.behind)) if side.messages >= 0]
    if found.best not in known or len(known) < 2:
        return []
    least = min(known, key=lambda side: side.messages)
    if least is found.best:
        return [f"More expensive messages would not change that: {_traffic(least)}, the fewest."]
    traffic = f"{_traffic(found.best)}, {_traffic(least)}"
    return [f"More expensive messages, as over a network, could change that: {traffic}."]


def _traffic(side: Side) -> str:
    comm = side.spent[side.learner]["t_comm"]
    return f"{side.name} exchanges {whole(side.messages)} in an iteration, {percent(comm)} of the {side.learner}'s time"


def _crowded(found: SideBySide) -> list[str]:
    sides = [
        side for side in (found.best, *(each.side for each in found.behind)) if side.row.oversubscription > 1
    ]
    names = ", ".join(side.name for side in sides)
    return (
        [f"More compute threads than cores: {names}. With a core for each thread the order may differ."]
        if sides
        else []
    )


def _ahead(found: SideBySide, outlooks: Sequence[Outlook]) -> str:
    """Return the predictions of the topologies' own studies for many workers, and the topologies without one."""
    predictions, few = [], []
    names = dict.fromkeys(side.study.topology for side in found.sides)
    # The largest W that is predicted for all of them, or else for any.
    predicted_at = [{p.world_size for p in outlook.as_measured} for outlook in outlooks if outlook.checks]
    common = set.intersection(*predicted_at) if predicted_at else set()
    at = max(common or set().union(*predicted_at), default=0)
    for topology, outlook in zip(names, outlooks, strict=True):
        predicted = next((p for p in outlook.as_measured if p.world_size == at), None)
        if not outlook.checks:  # fewer than three W: none can be held out as a check
            few.append(topology)
            continue
        # A prediction counts only if the largest W was predicted well when held out.
        check = outlook.checks[-1]
        off = f"W={check.world_size}, held out, is missed by {100 * check.error:+.0f} %"
        if not check.within:
            predictions.append(f"not {topology} ({off})")
        elif predicted is None:
            predictions.append(f"not {topology}: its W do not allow a prediction")
        else:
            between = f"{whole(predicted.fps_low)} to {whole(predicted.fps_high)}"
            predictions.append(f"{topology} {whole(predicted.fps)} steps/s ({between}; {off})")
    predictions += [f"not {', '.join(few)}, measured at fewer than three W"] if few else []
    law = "by the model of ddp, or for another topology by a law of W that does not know environments"
    return f"Predicted{f' at W={at}' if at else ''}, {law}: {'; '.join(predictions)}."


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
