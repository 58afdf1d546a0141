"""CAGE 2 for n games at once: arrays in, arrays out, no Gymnasium.

What is here is stepped in C++ where there is a compiler (src/cage2.cpp), to the same bits.
"""

import ctypes
import functools
import logging
from typing import Any

import numpy as np

from ddppo.domains.cage2 import PLUGIN
from ddppo.domains.cage2.rules import (
    ACTION,
    AFTER_FAILURE,
    AGENTS,
    ANALYSED,
    BIT,
    BITS,
    CHECKED,
    DETECTED,
    DETECTION_SLOT,
    DOWN_TENTHS,
    ESCALATE,
    EXPLOIT,
    EXPLOIT_PORT,
    EXPLOIT_SLOT,
    FAILS,
    FIRST,
    FREED,
    GAME,
    GREEN_HOST,
    GREEN_SLOT,
    HOST_OF,
    IMPACT,
    LASTS,
    NOBODY,
    NTH_EXPLOIT,
    NUM_ACTIONS,
    NUM_EXPLOITS,
    NUM_HOSTS,
    NUM_PORTS,
    OP_SERVER,
    OPEN,
    OPENED,
    OPERATIONS,
    OUTCOME,
    PREFERRED,
    REMOVED,
    RESTORE_TENTHS,
    RESTORED,
    REVEALS,
    ROOT,
    SCAN,
    SSH,
    SUBNET,
    SWEEP,
    TARGETS,
    TENTHS,
    TRACED,
    State,
    draws,
)
from ddppo.errors import ConfigError, near
from ddppo.native import NotCompiled

# -- Games stepped in C++ (src/cage2.cpp), which is told where the arrays and tables of NumPy are --------------------


_logger = logging.getLogger(__name__)

_REDS = ("sleep", "b_line", "meander")  # by their numbers there
TABLES = {  # by their names in cage2.hpp; int64, then uint16, then uint8
    "tenths": TENTHS,
    "host_of": HOST_OF,
    "num_exploits": NUM_EXPLOITS,
    "green": GREEN_HOST,
    "subnet": SUBNET,
    "first": FIRST,
    "reveals": REVEALS,
    "open": OPEN,
    "analysed": ANALYSED,
    "removed": REMOVED,
    "restored": RESTORED,
    "freed": FREED,
    "opened": OPENED,
    "checked": CHECKED,
    "exploit_port": EXPLOIT_PORT,
    "outcome": OUTCOME,
    "nth_exploit": NTH_EXPLOIT,
    "operations": OPERATIONS,
    "after_failure": AFTER_FAILURE,
    "targets": TARGETS,
}
_TYPES = [np.int64] * 4 + [np.uint16] * 11 + [np.uint8] * 5
assert [table.dtype for table in TABLES.values()] == _TYPES, {name: t.dtype for name, t in TABLES.items()}
assert all(table.flags.c_contiguous for table in TABLES.values())


class _Batch(ctypes.Structure):
    """`Cage2Batch` of cage2.hpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_games", "red", "has_green", "has_quirk")),
        *((name, ctypes.c_double) for name in ("preferred", "detected")),
        *((name, ctypes.c_void_p) for name in ("games", "obs", "rewards", "actions")),
        *((name, ctypes.c_void_p) for name in TABLES),
    ]


class CppGames:
    """Steps games by `function` of the library: their records and observations are written in place."""

    def __init__(
        self, function: Any, records: np.ndarray, obs: np.ndarray, red: str, has_green: bool, has_quirk: bool
    ) -> None:
        self._function = function
        self._rewards = np.zeros(len(records))
        self._actions = np.zeros(len(records), np.int64)
        self._batch = _Batch(
            num_games=len(records),
            red=_REDS.index(red),
            has_green=has_green,
            has_quirk=has_quirk,
            preferred=PREFERRED,
            detected=DETECTED,
            games=records.ctypes.data,
            obs=obs.ctypes.data,
            rewards=self._rewards.ctypes.data,
            actions=self._actions.ctypes.data,
            **{name: table.ctypes.data for name, table in TABLES.items()},
        )
        self._address = ctypes.addressof(self._batch)

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Do actions `[n]`, each one of the game's; return rewards `[n]`."""
        self._actions[:] = actions
        self._function(self._address)
        return self._rewards.copy()


@functools.cache
def step_in_cpp() -> Any | None:
    """Return cage2_step, or None where it cannot be compiled."""
    try:
        compiled = PLUGIN.cpp.load()
    except NotCompiled as e:
        _logger.debug("CAGE 2 is stepped by NumPy: %s", e)
        return None
    compiled.cage2_step.argtypes, compiled.cage2_step.restype = [ctypes.c_void_p], None
    assert compiled.cage2_game_bytes() == GAME.itemsize, (compiled.cage2_game_bytes(), GAME.itemsize)
    return compiled.cage2_step


OBS_SIZE = 4 * NUM_HOSTS
NO, UNKNOWN, USER, PRIVILEGED = range(4)  # what Blue takes a host for
_CODES = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)
# What a monitor sees of Red's operation on its target: nothing, connections, 11 of them to port 22, one from port 4444.
UNSEEN, SCANNED, KNOCKED, ANSWERED = range(4)
_ENTERPRISE, _OPERATIONAL = SUBNET[0], SUBNET[OP_SERVER]
_RESTORE_SERVER = ACTION["Restore Op_Server0"]
_SERVER = BIT[OP_SERVER]
_NONE = np.uint16(0)
_GREEN_AGENTS = ("sleep", "active")


class Games:
    """n games, each stepped by Blue's action; in a step Blue acts, then Green, then Red, then the monitor looks.

    obs: `[n, 52]` float32 after each step and reset, always the same array. red: a key of `AGENTS`. green:
    sleep, or active, which scans. faithful_ot_quirk: once Op_Server0 was restored, Impact costs nothing, as in CybORG.
    """

    def __init__(
        self, num_games: int, red: str = "b_line", green: str = "sleep", faithful_ot_quirk: bool = False
    ) -> None:
        for key, value, known in (("red", red, AGENTS), ("green", green, _GREEN_AGENTS)):
            if value not in known:
                raise ConfigError(
                    f"{key}={value} is none of {', '.join(known)}{near(str(value), list(known))}"
                )
        if not isinstance(faithful_ot_quirk, bool):
            raise ConfigError(f"faithful_ot_quirk={faithful_ot_quirk} must be true or false")
        self.num_games = num_games
        self.state_of = State(num_games)
        self.obs = np.zeros((num_games, OBS_SIZE), np.float32)
        self._red = red
        self._has_green = green == "active"
        self._has_quirk = faithful_ot_quirk
        self._every = np.arange(num_games)
        self._host_obs = self.obs.reshape(num_games, NUM_HOSTS, 4)
        self.reset(self._every, np.zeros(num_games, np.uint64))

    @functools.cached_property  # at the first step, which a task that is probed does not do
    def _native(self) -> CppGames | None:
        function = step_in_cpp()
        if function is None:
            return None
        return CppGames(
            function, self.state_of.records, self.obs, self._red, self._has_green, self._has_quirk
        )

    @property
    def compromised(self) -> np.ndarray:
        """The true state `[n, 13]` uint8 now: 0 none of Red's, 1 a session of a user, 2 root or SYSTEM."""
        state = self.state_of
        return BITS[self._held()] + BITS[state.root]

    def reset(self, which: np.ndarray, keys: np.ndarray) -> None:
        """Begin in the games `which` (indices) the episodes `keys` (uint64), which decide all that is random."""
        self.state_of.begin(which, keys)
        self.obs[which] = 0.0

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Do Blue's actions `[n]`; return rewards `[n]` float64. Raises IndexError."""
        actions = np.asarray(actions, np.int64)
        if (actions.view(np.uint64) >= NUM_ACTIONS).any():
            i = int(np.argmax(actions.view(np.uint64) >= NUM_ACTIONS))
            raise IndexError(
                f"game {i}, counted from 0, has no action {actions[i]}: they are 0 to {NUM_ACTIONS - 1}"
            )
        return self._step(actions) if self._native is None else self._native(actions)

    def _step(self, actions: np.ndarray) -> np.ndarray:
        state = self.state_of
        found = self._blue(actions)
        numbers = draws(state.key, state.time)
        noisy = GREEN_HOST[(numbers[GREEN_SLOT] * 16).astype(np.int64)] if self._has_green else None
        AGENTS[self._red](state, numbers)
        trace = self._operate(numbers)
        self._monitor(actions, found, noisy, trace)
        state.time += np.uint64(1)
        tenths = TENTHS[state.root] + DOWN_TENTHS * state.down + RESTORE_TENTHS * (RESTORED[actions] != 0)
        return -tenths / 10.0

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
        return {**self.state_of.as_lists(), "obs": self.obs.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self.state_of.take(state)
        self.obs[:] = state["obs"]

    def _held(self) -> np.ndarray:
        state = self.state_of
        return state.traced | state.lasting | state.root

    def _blue(self, actions: np.ndarray) -> np.ndarray:
        """Do what Blue chose; return whether an Analyse found files `[n]`."""
        state = self.state_of
        restored = RESTORED[actions]
        found = (state.files & ANALYSED[actions]) != 0
        state.traced &= ~(REMOVED[actions] | restored)
        state.lasting &= ~restored
        state.root &= ~FREED[actions]
        state.files &= ~restored
        (games,) = restored.nonzero()
        state.decoys[games, HOST_OF[actions[games]]] = 0
        on_server = actions == _RESTORE_SERVER
        state.down &= ~on_server
        state.immune |= on_server & self._has_quirk
        (games,) = OPENED[actions].nonzero()
        if games.size:
            chosen = actions[games]
            hosts = HOST_OF[chosen]
            is_free = (state.open_ports(games, hosts) & CHECKED[chosen]) == 0
            state.decoys[games, hosts] |= np.where(is_free, OPENED[chosen], _NONE)
        return found

    def _operate(self, numbers: np.ndarray) -> np.ndarray:
        """Do what Red chose; note its success; return what the monitor can see of it on the target `[n]`."""
        state = self.state_of
        operation, target = state.operation, state.target
        trace = np.zeros(self.num_games, np.uint8)
        held = self._held()
        routed = ((SUBNET[target] & _OPERATIONAL) == 0) | ((held & _ENTERPRISE) != 0)
        sweeps = (operation == SWEEP) & routed
        state.known |= np.where(sweeps, SUBNET[target], _NONE)
        scans = operation == SCAN  # one that is not routed succeeds, and sees nothing
        (games,) = (scans & routed).nonzero()
        state.seen[games, target[games]] = state.open_ports(games, target[games])
        trace[games] = SCANNED
        state.success[:] = sweeps | scans
        self._escalate(held)
        (games,) = ((operation == EXPLOIT) & routed).nonzero()
        if games.size:
            self._exploit(games, target[games], numbers[:, games], trace)
        return trace

    def _escalate(self, held: np.ndarray) -> None:
        """Escalate on the target, or harm OTService: where Red has a session there."""
        state = self.state_of
        bit = BIT[state.target]
        present = (held & bit) != 0
        escalates = (state.operation == ESCALATE) & present
        gained = np.where(escalates, bit, _NONE)
        state.files |= gained & ~state.root
        state.root |= gained
        state.known |= np.where(escalates, REVEALS[state.target], _NONE)
        state.subnets |= np.where(escalates, FIRST[state.target], _NONE)
        state.found |= (gained & _SERVER) != 0
        harms = (state.operation == IMPACT) & present & state.found
        state.down |= harms & ~state.immune
        state.success |= escalates | harms

    def _exploit(self, games: np.ndarray, hosts: np.ndarray, numbers: np.ndarray, trace: np.ndarray) -> None:
        """Exploit `hosts` of `games`; `numbers` `[SLOTS, len(games)]` are their random numbers."""
        state = self.state_of
        seen = state.seen[games, hosts]
        chosen = NTH_EXPLOIT[seen, _nth(NUM_EXPLOITS[seen], numbers[EXPLOIT_SLOT])]
        port = np.where(NUM_EXPLOITS[seen] > 0, EXPLOIT_PORT[chosen], _NONE)
        is_real = (OPEN[hosts] & port) != 0  # a decoy on the port of a service (Vsftpd) catches nothing
        outcome = np.where(is_real, OUTCOME[hosts, chosen], FAILS)
        succeeds = outcome != FAILS
        detected = numbers[DETECTION_SLOT] < DETECTED
        is_traced = (outcome == TRACED) & detected
        bit = BIT[hosts]
        state.traced[games] |= np.where(is_traced, bit, _NONE)
        state.lasting[games] |= np.where((outcome == LASTS) | ((outcome == TRACED) & ~detected), bit, _NONE)
        state.root[games] |= np.where(outcome == ROOT, bit, _NONE)
        state.files[games] |= np.where(succeeds & (chosen != SSH), bit, _NONE)
        state.success[games] = succeeds
        is_reached = (state.open_ports(games, hosts) & port) != 0
        trace[games] = np.where(is_reached, np.where(succeeds & detected, ANSWERED, SCANNED), UNSEEN)
        trace[games[is_real & (chosen == SSH)]] = KNOCKED

    def _monitor(
        self, actions: np.ndarray, found: np.ndarray, noisy: np.ndarray | None, trace: np.ndarray
    ) -> None:
        """Observe: Blue's own action, what Red did on its target, Green's scan of `noisy`, and files `found`."""
        belief, own = self.state_of.belief, HOST_OF[actions]
        (games,) = RESTORED[actions].nonzero()
        belief[games, own[games]] = NO
        (games,) = REMOVED[actions].nonzero()
        belief[games, own[games]] = np.minimum(belief[games, own[games]], UNKNOWN)
        self._host_obs[:, :, :2] = 0.0
        if noisy is not None:
            (games,) = (noisy < NOBODY).nonzero()
            self._host_obs[games, noisy[games], 0] = 1.0
        (games,) = trace.nonzero()
        hosts, trace = self.state_of.target[games], trace[games]
        exploits = trace >= KNOCKED
        if noisy is not None:  # Green's connections to other ports hide Red's
            num_ports = NUM_PORTS[self.state_of.open_ports(games, hosts)]
            exploits &= (noisy[games] != hosts) | (num_ports < np.where(trace == KNOCKED, 2, 3))
        self._host_obs[games, hosts, 0] = 1.0
        self._host_obs[games, hosts, 1] = exploits
        belief[games[exploits], hosts[exploits]] = USER
        (games,) = found.nonzero()
        belief[games, own[games]] = PRIVILEGED
        self._host_obs[:, :, 2:] = _CODES[belief]


def _nth(num_exploits: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return which of the exploits that are allowed is taken, the preferred being 0."""
    others = num_exploits - 1
    other = 1 + ((u - PREFERRED) / (1 - PREFERRED) * others).astype(np.int64)
    return np.where((u < PREFERRED) | (others < 1), 0, other)
