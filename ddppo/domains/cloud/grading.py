"""Whether a task is done: read off the world's state and off the calls that the world made, never off what was said."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.domains.cloud.cli import Call
from ddppo.domains.cloud.world import World

MISSING = object()


@dataclass(frozen=True)
class StateGoal:
    """A reading command, whose answer (through its --query) is to be `equals`, to contain `contains`, or an error.

    Lists are compared without regard to order. Where `equals` is a mapping and the answer a text, the text is read as
    JSON, of which services accept 3 for "3".
    """

    read: str
    equals: Any = MISSING
    contains: Any = MISSING
    error: str = ""

    def holds(self, world: World) -> bool:
        found, code = world.look(self.read)
        if self.error or code:
            return self.error == code
        if self.contains is not MISSING:
            return isinstance(found, list | str | dict) and self.contains in found
        if isinstance(self.equals, dict) and isinstance(found, str):
            return _of_json(found) == {key: str(value) for key, value in self.equals.items()}
        return _sorted(found) == _sorted(self.equals)


@dataclass(frozen=True)
class CallGoal:
    """A call that is to have succeeded, with these of its parameters. For tasks that only read."""

    service: str
    operation: str
    params: dict[str, Any]

    def is_met_by(self, call: Call) -> bool:
        return (call.service, call.operation) == (self.service, self.operation) and all(
            call.params.get(key) == value for key, value in self.params.items()
        )


Goal = StateGoal | CallGoal


class Grader:
    """Grades one episode. Goals that hold at its start are not goals but kept, so nothing old counts as new.

    `ordered`: call goals count only in their order.
    """

    def __init__(
        self, world: World, goals: Sequence[Goal], keep: Sequence[StateGoal], *, ordered: bool
    ) -> None:
        self._world, self._ordered = world, ordered
        held = [goal for goal in goals if isinstance(goal, StateGoal) and goal.holds(world)]
        self.goals = tuple(goal for goal in goals if goal not in held)
        self.keep = (*keep, *held)
        self._met: set[int] = set()  # call goals, which stay met
        self.look_again()

    def note(self, calls: Sequence[Call]) -> None:
        """Hear of the calls that the world made at the player's word; reads, and what it refused, change nothing."""
        if not all(call.is_read for call in calls):
            self.look_again()
        for call in calls:
            for at, goal in enumerate(self.goals):
                if not isinstance(goal, CallGoal) or at in self._met or not goal.is_met_by(call):
                    continue
                if self._ordered and any(before not in self._met for before in self._call_goals(at)):
                    continue
                self._met.add(at)
                break  # one call is one goal's

    def look_again(self) -> None:
        """Forget what was seen: the world has changed, or may have."""
        self._seen: dict[int, bool] = {}  # by the goals' ids, as what they equal may be a list

    def progress(self) -> float:
        """Return the share of the goals that hold now; looking leaves no trace in the world or in the calls."""
        held = [
            at in self._met if isinstance(goal, CallGoal) else self._holds(goal)
            for at, goal in enumerate(self.goals)
        ]
        return sum(held) / len(held)

    def num_kept(self) -> int:
        return sum(map(self._holds, self.keep))

    def _holds(self, goal: StateGoal) -> bool:
        if id(goal) not in self._seen:
            self._seen[id(goal)] = goal.holds(self._world)
        return self._seen[id(goal)]

    def _call_goals(self, until: int) -> list[int]:
        return [at for at in range(until) if isinstance(self.goals[at], CallGoal)]


def _of_json(text: str) -> dict[str, str] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else None


def _sorted(value: Any) -> Any:
    """Return `value` with its lists in one order."""
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=repr)
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in sorted(value.items())}
    return value
