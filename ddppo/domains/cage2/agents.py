"""Red's agents: what they do next, for all games at once, from what Red knows. docs/cage2.md has their rules."""

from collections.abc import Callable

import numpy as np

from ddppo.domains.cage2.draws import TARGET
from ddppo.domains.cage2.rules import HOST, NOBODY, OP_SERVER, REVEALED, USER0, hosts_as_bits
from ddppo.domains.cage2.state import State
from ddppo.domains.cage2.tables import BIT, COUNT, NTH

SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)  # of a subnet SWEEP names the first host

# B_line: the operation of each phase, its target by the host it begins with, and where it goes on after a failure.
LAST_PHASE = 14
OPERATIONS = np.array(
    [SWEEP, *[SCAN, EXPLOIT, ESCALATE] * 2, SWEEP, *[SCAN, EXPLOIT, ESCALATE] * 2, IMPACT], np.uint8
)
AFTER_FAILURE = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13], np.uint8)
FIRST_HOSTS = tuple(HOST[f"User{i}"] for i in range(1, 5))
TARGETS = np.array(  # [15, 4]
    [
        [
            USER0,
            *[HOST[first]] * 3,
            *[HOST[REVEALED[first]]] * 3,
            0,
            *[HOST["Enterprise2"]] * 3,
            *[OP_SERVER] * 4,
        ]
        for first in ("User1", "User2", "User3", "User4")
    ],
    np.uint8,
).T.copy()

_SERVER = BIT[OP_SERVER]
_OPERATIONAL = np.uint16(hosts_as_bits("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"))
_ENTERPRISE = np.uint16(hosts_as_bits("Enterprise0", "Enterprise1", "Enterprise2"))
_NONE = np.uint16(0)


def sleep(state: State, numbers: np.ndarray) -> None:
    """Do nothing, ever."""


def b_line(state: State, numbers: np.ndarray) -> None:
    """Go by the shortest way to Op_Server0, and after a failure back to where the way was sure."""
    begins = state.time == 0
    if begins.any():
        state.first[begins] = (numbers[TARGET, begins] * len(FIRST_HOSTS)).astype(np.uint8)
    next_phase = np.minimum(state.phase + np.uint8(1), np.uint8(LAST_PHASE))
    state.phase[:] = np.where(state.success, next_phase, AFTER_FAILURE[state.phase])
    state.operation[:] = OPERATIONS[state.phase]
    state.target[:] = TARGETS[state.phase, state.first]


def meander(state: State, numbers: np.ndarray) -> None:
    """Take the network subnet by subnet: sweep, scan, escalate, exploit what is known, in any order of hosts."""
    _learn(state)
    choices = (  # the first that is not empty
        (IMPACT, state.escalated & _SERVER),
        (SWEEP, state.subnets & ~state.swept),
        (SCAN, state.known & ~state.scanned),
        (ESCALATE, (state.entered | BIT[USER0]) & ~state.escalated & (state.exploited | ~state.entered)),
        (EXPLOIT, state.known & ~state.exploited),
    )
    hosts, operation = np.zeros_like(state.known), np.zeros_like(state.operation)
    for kind, candidates in choices:
        free = operation == SLEEP
        hosts = np.where(free, candidates, hosts)
        operation = np.where(free & (candidates != 0), np.uint8(kind), operation)
    state.operation[:] = operation
    state.target[:] = np.where(
        operation == SLEEP, NOBODY, NTH[hosts, (numbers[TARGET] * COUNT[hosts]).astype(np.int64)]
    )
    bit = BIT[state.target]
    for kind, tried in (
        (SWEEP, state.swept),
        (SCAN, state.scanned),
        (ESCALATE, state.escalated),
        (EXPLOIT, state.exploited),
    ):
        tried |= np.where(operation == kind, bit, _NONE)


def _learn(state: State) -> None:
    """Forget what a failure belies: of an exploit all of Op_*, or else of Enterprise*, else the host itself."""
    bit, exploit = BIT[state.target], state.operation == EXPLOIT
    state.entered |= np.where(exploit & state.success, bit, _NONE)
    lost = np.where(~state.success & (state.operation >= ESCALATE), bit, _NONE)
    held = state.escalated & _OPERATIONAL
    held = np.where(held, held, state.escalated & _ENTERPRISE)
    failed = exploit & ~state.success
    state.escalated &= ~(lost | np.where(failed, held, _NONE))
    state.exploited &= ~(lost | np.where(failed, held | bit, _NONE))


AGENTS: dict[str, Callable[[State, np.ndarray], None]] = {
    "b_line": b_line,
    "meander": meander,
    "sleep": sleep,
}
