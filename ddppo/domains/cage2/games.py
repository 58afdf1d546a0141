"""CAGE 2 for n games at once: arrays in, arrays out, no Gymnasium. Read `Games._step` first.

With a compiler, games are stepped in C++ (src/cage2.cpp), with the same results to the bit.
"""

import ctypes
import functools
from typing import Any

import numpy as np

from ddppo.domains.cage2 import PLUGIN
from ddppo.domains.cage2.rules import (
    ACTION,
    ACTIVITY,
    AFTER_FAILURE,
    AGENTS,
    ANALYSED,
    ANSWERED,
    BIT,
    BITS,
    CAUGHT,
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
    KNOCKED,
    LASTS,
    LIKE_EXPLOIT,
    MISSED,
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
    QUIET,
    REMOVED,
    RESTORE_TENTHS,
    RESTORED,
    REVEALS,
    ROOT,
    SCAN,
    SCANNED,
    SSH,
    SUBNET,
    SWEEP,
    TARGETS,
    TENTHS,
    TRACED,
    UNSEEN,
    State,
    agent_named,
    draws,
)
from ddppo.errors import ConfigError, near
from ddppo.native import NotCompiled
from ddppo.terminal import warn

# -- Games stepped in C++ (src/cage2.cpp), which reads and writes the arrays of NumPy in place -----------------------


_REDS = ("sleep", "b_line", "meander")  # the index is the agent's number in C++
# By their names in cage2.hpp, and in the order of the struct: int64, then uint16, then uint8.
TABLES = {
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
    "activity": ACTIVITY,
}
_TYPES = [np.int64] * 4 + [np.uint16] * 11 + [np.uint8] * 6
assert [table.dtype for table in TABLES.values()] == _TYPES, {name: t.dtype for name, t in TABLES.items()}
assert all(table.flags.c_contiguous for table in TABLES.values())


class _Batch(ctypes.Structure):
    """The struct `Cage2Batch` of cage2.hpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_games", "red", "has_green", "has_quirk")),
        *((name, ctypes.c_double) for name in ("preferred", "detected")),
        *((name, ctypes.c_void_p) for name in ("games", "obs", "rewards", "actions")),
        *((name, ctypes.c_void_p) for name in TABLES),
    ]


class CppGames:
    """Steps games by a function of the C++ library, which writes records and observations in place."""

    def __init__(
        self, function: Any, records: np.ndarray, obs: np.ndarray, red: str, has_green: bool, has_quirk: bool
    ) -> None:
        # C++ reads and writes the arrays by their addresses, so they are made once and never replaced.
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
        """Step all games by valid actions `[n]`; return rewards `[n]`."""
        self._actions[:] = actions
        self._function(self._address)
        return self._rewards.copy()


@functools.cache
def step_in_cpp() -> Any | None:
    """Return the compiled function cage2_step, or None if it cannot be compiled."""
    try:
        compiled = PLUGIN.cpp.load()
    except NotCompiled as e:
        warn(f"env=cage2 is stepped by NumPy, which takes several times longer than C++: {e}")
        return None
    compiled.cage2_step.argtypes, compiled.cage2_step.restype = [ctypes.c_void_p], None
    assert compiled.cage2_game_bytes() == GAME.itemsize, (compiled.cage2_game_bytes(), GAME.itemsize)
    return compiled.cage2_step


OBS_SIZE = 4 * NUM_HOSTS
NO, UNKNOWN, USER, PRIVILEGED = range(4)  # Blue's assessment of a host: Red's access to it
_CODES = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)  # of an assessment in the observation
_ENTERPRISE, _OPERATIONAL = SUBNET[0], SUBNET[OP_SERVER]
_RESTORE_SERVER = ACTION["Restore Op_Server0"]
_SERVER = BIT[OP_SERVER]
_NONE = np.uint16(0)
_GREEN_AGENTS = ("sleep", "active")


class Games:
    """n games, each stepped by an action of Blue. In a step Blue acts, then Green, then Red; then Blue observes.

    `obs` `[n, 52]` float32 is always the same array, valid after each step and reset. For each host it has 4 bits:
    connections, exploit, and 2 bits of Blue's assessment (docs/cage2.md, "Observation").
    """

    def __init__(
        self,
        num_games: int,
        red: str = "b_line",  # a key of AGENTS, or one of CYBORG_NAMES
        green: str = "sleep",  # or "active": it scans hosts
        faithful_ot_quirk: bool = False,  # as in CybORG, Impact costs nothing once Op_Server0 was restored
    ) -> None:
        # Check the settings here, as users give them on the command line.
        red = agent_named(red)
        if green not in _GREEN_AGENTS:
            raise ConfigError(
                f"green={green} is none of {', '.join(_GREEN_AGENTS)}{near(str(green), _GREEN_AGENTS)}"
            )
        if not isinstance(faithful_ot_quirk, bool):
            raise ConfigError(f"faithful_ot_quirk={faithful_ot_quirk} must be true or false")
        self.num_games = num_games
        self.state_of = State(num_games)
        self.obs = np.zeros((num_games, OBS_SIZE), np.float32)
        self._red = red
        self._has_green = green == "active"
        self._has_quirk = faithful_ot_quirk
        # A view of the observation by host: 4 bits each.
        self._every, self._nobody = np.arange(num_games), np.full(num_games, NOBODY)
        self._host_obs = self.obs.reshape(num_games, NUM_HOSTS, 4)
        self.reset(self._every, np.zeros(num_games, np.uint64))

    @functools.cached_property  # compiled at the first step; a probe of the task makes none
    def _native(self) -> CppGames | None:
        function = step_in_cpp()
        if function is None:
            return None
        return CppGames(
            function, self.state_of.records, self.obs, self._red, self._has_green, self._has_quirk
        )

    @property
    def compromised(self) -> np.ndarray:
        """The true state `[n, 13]` uint8: 0 no session of Red, 1 a user's session, 2 root or SYSTEM."""
        state = self.state_of
        return BITS[self._held()] + BITS[state.root]

    def reset(self, which: np.ndarray, keys: np.ndarray) -> None:
        """Start episodes in the games `which` (indices). `keys` (uint64) determine all their random numbers."""
        self.state_of.begin(which, keys)
        self.obs[which] = 0.0

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Step all games by Blue's actions `[n]`; return rewards `[n]` float64. Raises IndexError."""
        actions = np.asarray(actions, np.int64)
        # Viewed as uint64, negative numbers are too large as well.
        if (actions.view(np.uint64) >= NUM_ACTIONS).any():
            i = int(np.argmax(actions.view(np.uint64) >= NUM_ACTIONS))
            raise IndexError(
                f"game {i}, counted from 0, has no action {actions[i]}: they are 0 to {NUM_ACTIONS - 1}"
            )
        return self._step(actions) if self._native is None else self._native(actions)

    def _step(self, actions: np.ndarray) -> np.ndarray:
        state = self.state_of
        # 1. Blue acts.
        found, new_decoy = self._blue(actions)
        # 2. Green may scan a host.
        numbers = draws(state.key, state.time)
        noisy = GREEN_HOST[(numbers[GREEN_SLOT] * 16).astype(np.int64)] if self._has_green else self._nobody
        # 3. Red chooses an operation, and performs it.
        AGENTS[self._red](state, numbers)
        trace = self._operate(numbers)
        # 4. Blue observes.
        self._monitor(actions, found, new_decoy, noisy, trace)
        state.time += np.uint64(1)
        # 5. The reward: hosts with Red's root, OTService, and Restore (docs/cage2.md, "Reward").
        tenths = TENTHS[state.root] + DOWN_TENTHS * state.down + RESTORE_TENTHS * (RESTORED[actions] != 0)
        return -tenths / 10.0

    def state(self) -> dict[str, Any]:
        """Return the complete state in plain values."""
        return {**self.state_of.as_lists(), "obs": self.obs.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self.state_of.take(state)
        self.obs[:] = state["obs"]

    def _held(self) -> np.ndarray:
        state = self.state_of
        return state.traced | state.lasting | state.root

    def _blue(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Perform Blue's actions; return whether an Analyse found files `[n]`, and the hosts `[n]` of new decoys."""
        state = self.state_of
        # Analyse, Remove and Restore.
        restored = RESTORED[actions]
        found = (state.files & ANALYSED[actions]) != 0
        state.traced &= ~(REMOVED[actions] | restored)
        state.lasting &= ~restored
        state.root &= ~FREED[actions]
        state.files &= ~restored
        (games,) = restored.nonzero()
        state.decoys[games, HOST_OF[actions[games]]] = 0
        # A Restore of Op_Server0 starts OTService again.
        on_server = actions == _RESTORE_SERVER
        state.down &= ~on_server
        state.immune |= on_server & self._has_quirk
        # A decoy opens its port, if the ports that it checks are free.
        new_decoy = self._nobody.copy()
        (games,) = OPENED[actions].nonzero()
        if games.size:
            chosen = actions[games]
            hosts = HOST_OF[chosen]
            is_free = (state.open_ports(games, hosts) & CHECKED[chosen]) == 0
            state.decoys[games, hosts] |= np.where(is_free, OPENED[chosen], _NONE)
            new_decoy[games[is_free]] = hosts[is_free]
        return found, new_decoy

    def _operate(self, numbers: np.ndarray) -> np.ndarray:
        """Perform Red's operations and record their success; return the trace `[n]` that each leaves on its target."""
        state = self.state_of
        operation, target = state.operation, state.target
        trace = np.zeros(self.num_games, np.uint8)
        held = self._held()
        # The operational subnet is reached from the enterprise subnet only: Red needs a session there.
        routed = ((SUBNET[target] & _OPERATIONAL) == 0) | ((held & _ENTERPRISE) != 0)
        sweeps = (operation == SWEEP) & routed
        state.known |= np.where(sweeps, SUBNET[target], _NONE)
        scans = operation == SCAN  # a scan without a route succeeds, and sees nothing
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
        """Perform ESCALATE and IMPACT. Both need a session of Red on the target."""
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
        """Exploit `hosts` of `games`, with their random numbers `[SLOTS, len(games)]`."""
        state = self.state_of
        # 1. Red chooses an exploit by the ports that it saw, which decoys may have opened or closed since.
        seen = state.seen[games, hosts]
        chosen = NTH_EXPLOIT[seen, _nth(NUM_EXPLOITS[seen], numbers[EXPLOIT_SLOT])]
        port = np.where(NUM_EXPLOITS[seen] > 0, EXPLOIT_PORT[chosen], _NONE)
        # 2. An exploit of a decoy's port fails. (A decoy on the port of a real service, as Vsftpd, has no effect.)
        is_real = (OPEN[hosts] & port) != 0
        outcome = np.where(is_real, OUTCOME[hosts, chosen], FAILS)
        succeeds = outcome != FAILS
        detected = numbers[DETECTION_SLOT] < DETECTED
        is_traced = (outcome == TRACED) & detected
        # 3. The new session, and files that Analyse can find.
        bit = BIT[hosts]
        state.traced[games] |= np.where(is_traced, bit, _NONE)
        state.lasting[games] |= np.where((outcome == LASTS) | ((outcome == TRACED) & ~detected), bit, _NONE)
        state.root[games] |= np.where(outcome == ROOT, bit, _NONE)
        state.files[games] |= np.where(succeeds & (chosen != SSH), bit, _NONE)
        state.success[games] = succeeds
        # 4. The trace that the monitor sees.
        traces = np.where(detected, ANSWERED, MISSED)
        traces[~succeeds] = UNSEEN  # another service has the port
        traces[~is_real] = CAUGHT
        traces[chosen == SSH] = KNOCKED
        traces[(state.open_ports(games, hosts) & port) == 0] = UNSEEN
        trace[games] = traces

    def _monitor(
        self,
        actions: np.ndarray,
        found: np.ndarray,
        new_decoy: np.ndarray,
        noisy: np.ndarray,
        trace: np.ndarray,
    ) -> None:
        """Update Blue's assessments and observation.

        Args:
            actions: Blue's own actions.
            found: whether an Analyse found files.
            new_decoy: the hosts on which a decoy was set, or NOBODY.
            noisy: the hosts that Green scanned, or NOBODY.
            trace: the traces of Red's operations on its targets.
        """
        # 1. Blue's own action: a Restore clears the assessment of its host, a Remove lowers it.
        belief, own = self.state_of.belief, HOST_OF[actions]
        (games,) = RESTORED[actions].nonzero()
        belief[games, own[games]] = NO
        (games,) = REMOVED[actions].nonzero()
        belief[games, own[games]] = np.minimum(belief[games, own[games]], UNKNOWN)
        # 2. Activity of this step, on the host that Green scanned and on the target of Red.
        self._host_obs[:, :, :2] = 0.0
        target = self.state_of.target
        if self._has_green:
            (games,) = (noisy < NOBODY).nonzero()
            hosts = noisy[games]
            self._host_obs[games, hosts, 0] = self._activity(games, hosts, noisy, new_decoy, UNSEEN) != QUIET
        (games,) = trace.nonzero()
        hosts = target[games]
        activity = self._activity(games, hosts, noisy, new_decoy, trace[games])
        exploits = activity == LIKE_EXPLOIT
        self._host_obs[games, hosts, 0] = activity != QUIET
        self._host_obs[games, hosts, 1] = exploits
        belief[games[exploits], hosts[exploits]] = USER
        # 3. Files that Analyse found.
        (games,) = found.nonzero()
        belief[games, own[games]] = PRIVILEGED
        self._host_obs[:, :, 2:] = _CODES[belief]

    def _activity(
        self, games: np.ndarray, hosts: np.ndarray, noisy: np.ndarray, new_decoy: np.ndarray, trace: Any
    ) -> np.ndarray:
        """Return what the monitor takes the connections to `hosts` of `games` for."""
        num_open = NUM_PORTS[self.state_of.open_ports(games, hosts)]
        is_noisy, is_decoy = noisy[games] == hosts, new_decoy[games] == hosts
        return ACTIVITY[is_noisy.view(np.uint8), is_decoy.view(np.uint8), trace, num_open]


def _nth(num_exploits: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return the index of the exploit that Red takes among the allowed ones; 0 is the preferred one.

    It has the probability PREFERRED; all others are equally likely (`u` is uniform on [0, 1)).
    """
    others = num_exploits - 1
    other = 1 + ((u - PREFERRED) / (1 - PREFERRED) * others).astype(np.int64)
    return np.where((u < PREFERRED) | (others < 1), 0, other)
