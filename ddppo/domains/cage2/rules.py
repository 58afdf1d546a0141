"""The rules of CAGE 2 as data: hosts, ports, exploits, decoys, actions, the state of a game and Red's agents.

The source are the published rules of CAGE challenge 2 (CybORG, 2022, github.com/cage-challenge/cage-challenge-2).
docs/cage2.md, "Rules", states them in words, with details that CybORG decides. Sets of hosts and of ports are bits of
an integer: bit h is host h, bit p is PORTS[p].
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ddppo.errors import ConfigError, near

LINUX, WINDOWS = "Linux", "Windows"
ENTERPRISE, OPERATIONAL, USER = "Enterprise", "Operational", "User"


class Host(NamedTuple):
    """A host of the network."""

    name: str
    subnet: str
    system: str
    ports: tuple[int, ...]  # of real services
    tenths: int  # tenths of reward that each step costs while Red has root on it


# The hosts of the challenge's scenario. Rewards are counted in tenths, so that sums are exact.
_OFFICE = (22, 80, 135, 139, 443, 445, 3389)
HOSTS = (
    Host("Defender", ENTERPRISE, LINUX, (22, 53, 68), 1),
    Host("Enterprise0", ENTERPRISE, LINUX, (22,), 10),
    Host("Enterprise1", ENTERPRISE, WINDOWS, _OFFICE, 10),
    Host("Enterprise2", ENTERPRISE, WINDOWS, _OFFICE, 10),
    Host("Op_Host0", OPERATIONAL, LINUX, (22,), 1),
    Host("Op_Host1", OPERATIONAL, LINUX, (22,), 1),
    Host("Op_Host2", OPERATIONAL, LINUX, (22,), 1),
    Host("Op_Server0", OPERATIONAL, LINUX, (22,), 10),
    Host("User0", USER, WINDOWS, (21, 22), 0),
    Host("User1", USER, WINDOWS, (21, 22), 1),
    Host("User2", USER, WINDOWS, (135, 139, 445, 3389), 1),
    Host("User3", USER, LINUX, (25, 80, 443, 3389), 1),
    Host("User4", USER, LINUX, (22, 25, 80, 443, 3390), 1),
)
NUM_HOSTS = len(HOSTS)
NOBODY = NUM_HOSTS  # stands for the host of an action without one
HOST = {host.name: h for h, host in enumerate(HOSTS)}
OP_SERVER, USER0 = HOST["Op_Server0"], HOST["User0"]
DOWN_TENTHS = 100  # a step while OTService is down
RESTORE_TENTHS = 10  # a Restore
GREEN_HOSTS = tuple(HOST[f"User{i}"] for i in range(5)) + tuple(HOST[f"Enterprise{i}"] for i in range(3))
# Host -> the host that Red learns of when it escalates there. (On Op_Server0 it finds OTService.)
REVEALED = {
    "User1": "Enterprise1",
    "User2": "Enterprise1",
    "User3": "Enterprise0",
    "User4": "Enterprise0",
    "Enterprise2": "Op_Server0",
}

PORTS = (21, 22, 25, 53, 68, 80, 135, 139, 443, 445, 3389, 3390)


def hosts_as_bits(*names: str) -> int:
    return sum(1 << HOST[name] for name in names)


def ports_as_bits(*ports: int) -> int:
    return sum(1 << PORTS.index(port) for port in ports)


class Exploit(NamedTuple):
    """An exploit of Red."""

    name: str
    port: int  # that it attacks
    also: tuple[int, ...]  # at least one of these has to be open, too; () for no condition
    outcomes: dict[str, int]  # by host; it fails on all others


# Outcomes of an exploit: no session, a user's session that Remove cannot end, a user's session that Remove can end if
# the exploit was detected, a session of root or SYSTEM.
FAILS, LASTS, TRACED, ROOT = range(4)
_WEB = {"Enterprise1": TRACED, "Enterprise2": TRACED, "User3": TRACED, "User4": TRACED}
_SSH = (
    *("Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"),
    *("User0", "User1", "User4"),
)
# In the order in which Red prefers them.
EXPLOITS = (
    Exploit("FTPDirectoryTraversal", 21, (), {"User0": ROOT, "User1": ROOT}),
    Exploit("HarakaRCE", 25, (), {"User3": ROOT, "User4": ROOT}),
    Exploit("SQLInjection", 3390, (80, 443), {"User4": ROOT}),
    Exploit("HTTPSRFI", 443, (), _WEB),
    Exploit("HTTPRFI", 80, (), _WEB),
    Exploit("EternalBlue", 139, (), {"User2": ROOT}),
    Exploit("BlueKeep", 3389, (), {"Enterprise1": ROOT, "Enterprise2": ROOT, "User2": TRACED}),
    Exploit("SSHBruteForce", 22, (), dict.fromkeys(_SSH, LASTS)),
)
SSH = len(EXPLOITS) - 1
PREFERRED = 0.75  # probability that Red takes the most preferred exploit that the seen ports allow
DETECTED = 0.95  # probability that an exploit other than SSH is detected


class Decoy(NamedTuple):
    """A decoy service of Blue."""

    name: str
    opens: int  # the port it opens
    checks: int  # the port that must not be in use
    systems: tuple[str, ...]  # on which it runs


DECOYS = (
    Decoy("DecoyApache", 80, 80, (LINUX, WINDOWS)),
    Decoy("DecoyFemitter", 21, 21, (WINDOWS,)),
    Decoy("DecoyHarakaSMPT", 25, 25, (LINUX,)),
    Decoy("DecoySmss", 139, 139, (WINDOWS,)),
    Decoy("DecoySSHD", 22, 22, (LINUX, WINDOWS)),
    Decoy("DecoySvchost", 3389, 3389, (WINDOWS,)),
    Decoy("DecoyTomcat", 443, 443, (LINUX, WINDOWS)),
    Decoy("DecoyVsftpd", 80, 21, (LINUX,)),
)
ACTION_KINDS = ("Analyse", "Remove", *(decoy.name for decoy in DECOYS), "Restore")
ACTIONS = ("Sleep", "Monitor", *(f"{kind} {host.name}" for kind in ACTION_KINDS for host in HOSTS))
ACTION = {name: a for a, name in enumerate(ACTIONS)}
NUM_ACTIONS = len(ACTIONS)


# -- Lookup tables of a step, made once from the rules -----------------------------------------------------------------


# By set of hosts.
_SETS = np.arange(1 << NUM_HOSTS)
BITS = (_SETS[:, None] >> np.arange(NUM_HOSTS) & 1).astype(np.uint8)  # [8192, 13] 1 for each host in the set
COUNT = BITS.sum(1)  # [8192] number of hosts
NTH = np.argsort(1 - BITS, axis=1, kind="stable").astype(np.uint8)  # [8192, 13] the k-th host
TENTHS = BITS @ np.array([host.tenths for host in HOSTS])  # [8192] cost of Red's root on these hosts

# By host; the last entry, that of NOBODY, is empty.
BIT = np.array([1 << h for h in range(NUM_HOSTS)] + [0], np.uint16)  # [14]
_SUBNETS = {
    subnet: hosts_as_bits(*(host.name for host in HOSTS if host.subnet == subnet))
    for subnet in dict.fromkeys(host.subnet for host in HOSTS)
}
# [14] the hosts of the same subnet; the first of them, which stands for the subnet
SUBNET = np.array([_SUBNETS[host.subnet] for host in HOSTS] + [0], np.uint16)
FIRST = np.array([_SUBNETS[host.subnet] & -_SUBNETS[host.subnet] for host in HOSTS] + [0], np.uint16)
# [14] the host that an escalation reveals
REVEALS = np.array(
    [hosts_as_bits(*filter(None, [REVEALED.get(host.name)])) for host in HOSTS] + [0], np.uint16
)
# [14] ports of real services
OPEN = np.array([ports_as_bits(*host.ports) for host in HOSTS] + [0], np.uint16)

# [145] by action: its host, and the host's bit if the action is of a kind, else 0.
HOST_OF = np.array([NOBODY] * 2 + list(range(NUM_HOSTS)) * len(ACTION_KINDS))


def _bits_of(kind: str) -> np.ndarray:
    return np.array(
        [1 << HOST[name.split()[1]] if name.startswith(f"{kind} ") else 0 for name in ACTIONS], np.uint16
    )


ANALYSED, REMOVED, RESTORED = _bits_of("Analyse"), _bits_of("Remove"), _bits_of("Restore")
# [145] hosts on which a Restore ends Red's root sessions: all but User0, where Red keeps its first session.
FREED = RESTORED & ~np.uint16(1 << USER0)
# [145] by action: the port that a decoy opens, and the ports that must not be in use; all ports on the wrong system.
OPENED = np.zeros(NUM_ACTIONS, np.uint16)
CHECKED = np.zeros(NUM_ACTIONS, np.uint16)
for _decoy, (_h, _host) in itertools.product(DECOYS, enumerate(HOSTS)):
    _a = ACTIONS.index(f"{_decoy.name} {_host.name}")
    OPENED[_a] = ports_as_bits(_decoy.opens)
    CHECKED[_a] = ports_as_bits(_decoy.checks) if _host.system in _decoy.systems else np.uint16(0xFFFF)

EXPLOIT_PORT = np.array([ports_as_bits(exploit.port) for exploit in EXPLOITS], np.uint16)  # [8]
OUTCOME = np.array([[e.outcomes.get(host.name, 0) for e in EXPLOITS] for host in HOSTS], np.uint8)  # [13, 8]


# By set of ports that Red has seen: the exploits that they allow, the preferred first.
_NEEDED = [(ports_as_bits(e.port), ports_as_bits(*e.also) or (1 << len(PORTS)) - 1) for e in EXPLOITS]
_ALLOWED = [
    [e for e, (port, also) in enumerate(_NEEDED) if seen & port and seen & also]
    for seen in range(1 << len(PORTS))
]
NUM_EXPLOITS = np.array([len(allowed) for allowed in _ALLOWED])  # [4096]
# [4096, 8]
NTH_EXPLOIT = np.array([allowed + [0] * (len(EXPLOITS) - len(allowed)) for allowed in _ALLOWED], np.uint8)
NUM_PORTS = np.array([ports.bit_count() for ports in range(1 << len(PORTS))], np.uint8)  # [4096]
# [16] the host that Green scans, by the sixteenth in which a random number lies; none in half of the steps.
GREEN_HOST = np.array([*GREEN_HOSTS, *[NOBODY] * len(GREEN_HOSTS)])


# What Red's operation leaves on its target: nothing, a scan, an exploit that was missed, one that a decoy caught, one
# that was answered by a connection from port 4444, an SSH exploit, which tries ten passwords or more.
UNSEEN, SCANNED, MISSED, CAUGHT, ANSWERED, KNOCKED = range(6)
_EXPLOITS_LEAVE = {MISSED: (1, 1), CAUGHT: (2, 1), ANSWERED: (2, 2), KNOCKED: (11, 1)}  # connections, ports
QUIET, LIKE_SCAN, LIKE_EXPLOIT = range(3)  # what the monitor takes the connections to a host in a step for


def _activity(is_noisy: int, is_decoy: int, trace: int, num_open: int) -> int:
    """Return what the monitor takes a host's list of a step for: the connections, and a decoy that was set in it."""
    num_scans = is_noisy + (trace == SCANNED)  # each connects to all open ports
    num_connections, num_ports = _EXPLOITS_LEAVE.get(trace, (0, 0))
    if num_scans:
        num_ports = num_open + (trace == ANSWERED)  # the answer comes to a port of its own
    num_entries = num_scans * num_open + num_connections + is_decoy
    if num_entries >= 3 and num_ports >= 3:
        return LIKE_SCAN
    if trace == ANSWERED or (num_entries >= 3 and num_ports == 1):
        return LIKE_EXPLOIT
    return QUIET if is_decoy or not num_entries else LIKE_SCAN


# By: Green scanned the host, a decoy was set, Red's trace, number of open ports.
ACTIVITY = np.zeros((2, 2, 6, len(PORTS) + 1), np.uint8)
for _place in np.ndindex(*ACTIVITY.shape):
    ACTIVITY[_place] = _activity(*_place)


# -- The state of a game, one record each. A batch can be reset, saved and passed to C++ as a whole. -----------------


# Fields are in the order of `Game` in src/cage2.hpp. A set of hosts is an integer of bits.
GAME = np.dtype(
    [
        ("key", np.uint64),  # of the episode's random numbers
        ("time", np.uint64),  # steps done
        # The network.
        ("decoys", np.uint16, NUM_HOSTS),  # ports opened by decoys, by host
        ("seen", np.uint16, NUM_HOSTS),  # ports that Red saw at its last scan, by host
        ("traced", np.uint16),  # hosts with a user's session that Remove ends
        ("lasting", np.uint16),  # hosts with a user's session that Remove does not end
        ("root", np.uint16),  # hosts with a session of root or SYSTEM
        ("files", np.uint16),  # hosts with files that Analyse finds
        # Red's knowledge. Only Meander uses `subnets` to `entered`.
        ("known", np.uint16),  # hosts with an address that Red knows
        ("subnets", np.uint16),  # known subnets, each as the bit of its first host
        ("swept", np.uint16),  # subnets swept
        ("scanned", np.uint16),  # hosts scanned
        ("exploited", np.uint16),  # hosts that Red believes to have exploited
        ("escalated", np.uint16),  # hosts on which Red believes to have root
        ("entered", np.uint16),  # hosts that Red has exploited with success at any time
        ("belief", np.uint8, NUM_HOSTS),  # Blue's assessment of each host: NO to PRIVILEGED of games.py
        # Red's last operation.
        ("operation", np.uint8),
        ("target", np.uint8),
        ("success", np.bool_),
        ("phase", np.uint8),  # of B_line
        ("first", np.uint8),  # index in FIRST_HOSTS of the host with which B_line begins
        # OTService.
        ("down", np.bool_),
        ("found", np.bool_),  # by Red
        ("immune", np.bool_),  # can no longer be harmed (faithful_ot_quirk)
    ],
    align=True,
)


_FRESH = np.zeros((), GAME)  # at the beginning Red has SYSTEM on User0, and knows User0 and its subnet
for _name in ("root", "known", "subnets"):
    _FRESH[_name] = hosts_as_bits("User0")


class State:
    """The records of n games. Each field of GAME is also an attribute, a view `[n, ...]` of the records."""

    key: np.ndarray
    time: np.ndarray
    decoys: np.ndarray
    seen: np.ndarray
    traced: np.ndarray
    lasting: np.ndarray
    root: np.ndarray
    files: np.ndarray
    known: np.ndarray
    subnets: np.ndarray
    swept: np.ndarray
    scanned: np.ndarray
    exploited: np.ndarray
    escalated: np.ndarray
    entered: np.ndarray
    belief: np.ndarray
    operation: np.ndarray
    target: np.ndarray
    success: np.ndarray
    phase: np.ndarray
    first: np.ndarray
    down: np.ndarray
    found: np.ndarray
    immune: np.ndarray

    def __init__(self, num_games: int) -> None:
        self.records = np.zeros(num_games, GAME)
        for name in GAME.names or ():
            setattr(self, name, self.records[name])

    def begin(self, which: np.ndarray, keys: np.ndarray) -> None:
        """Start the episodes `keys` in the games `which`."""
        self.records[which] = _FRESH
        self.key[which] = keys

    def open_ports(self, games: np.ndarray, hosts: np.ndarray) -> np.ndarray:
        return OPEN[hosts] | self.decoys[games, hosts]

    def as_lists(self) -> dict[str, Any]:
        return {name: self.records[name].tolist() for name in GAME.names or ()}

    def take(self, lists: dict[str, Any]) -> None:
        for name in GAME.names or ():
            self.records[name] = lists[name]


# -- Random numbers by position, without a generator: equal in NumPy and C++, and for a game in any batch ------------
# Number `slot` of step t of an episode is output t * SLOTS + slot of SplitMix64 seeded with the episode's key; its
# upper 53 bits are a number in [0, 1). Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".


SLOTS = 4
GREEN_SLOT, TARGET_SLOT, EXPLOIT_SLOT, DETECTION_SLOT = range(SLOTS)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_PLACES = _GAMMA * np.arange(1, SLOTS + 1, dtype=np.uint64)[:, None]
_STRIDE = _GAMMA * np.array([SLOTS], np.uint64)


def draws(keys: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the numbers `[SLOTS, n]` of steps `times` `[n]` of episodes `keys` `[n]`, both uint64."""
    z = keys + times * _STRIDE + _PLACES
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


# -- Red's agents: each chooses the next operation and target in all games at once -----------------------------------
# Source: the agents B_line and Meander of the challenge (docs/cage2.md).


# The target of SWEEP is the first host of the subnet.
SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)

# B_line is a fixed sequence of 15 phases. By phase: the operation, the target for each first host, and the phase to
# continue with after a failure.
FIRST_SCAN, SERVER_EXPLOIT, LAST_PHASE = 1, 12, 14
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
    """Do nothing in all steps."""


def b_line(state: State, numbers: np.ndarray) -> None:
    """Take the shortest path to Op_Server0. After a failure, go back to the phase that AFTER_FAILURE names.

    If its first scan of Op_Server0 found nothing, begin again with the scan of the first host.
    """
    begins = state.time == 0
    if begins.any():
        state.first[begins] = (numbers[TARGET_SLOT, begins] * len(FIRST_HOSTS)).astype(np.uint8)
    next_phase = np.minimum(state.phase + np.uint8(1), np.uint8(LAST_PHASE))
    state.phase[:] = np.where(state.success, next_phase, AFTER_FAILURE[state.phase])
    is_blind = (state.phase == SERVER_EXPLOIT) & (state.seen[:, OP_SERVER] == 0)
    state.phase[is_blind] = FIRST_SCAN
    state.operation[:] = OPERATIONS[state.phase]
    state.target[:] = TARGETS[state.phase, state.first]


def meander(state: State, numbers: np.ndarray) -> None:
    """Conquer the network subnet by subnet: sweep, scan, escalate and exploit known hosts, at random among hosts."""
    _update_knowledge(state)
    # The first kind of operation that has a candidate.
    choices = (
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
        operation == SLEEP, NOBODY, NTH[hosts, (numbers[TARGET_SLOT] * COUNT[hosts]).astype(np.int64)]
    )
    # Red notes an operation as done before it knows whether it succeeds; _update_knowledge corrects it.
    bit = BIT[state.target]
    for kind, tried in (
        (SWEEP, state.swept),
        (SCAN, state.scanned),
        (ESCALATE, state.escalated),
        (EXPLOIT, state.exploited),
    ):
        tried |= np.where(operation == kind, bit, _NONE)


def _update_knowledge(state: State) -> None:
    """Correct Meander's knowledge after its last operation.

    If an exploit failed, it forgets its sessions on all Op_* hosts; if it has none, on all Enterprise* hosts; and the
    target itself. If another operation failed, it forgets the target.
    """
    bit, exploit = BIT[state.target], state.operation == EXPLOIT
    state.entered |= np.where(exploit & state.success, bit, _NONE)
    lost = np.where(~state.success & (state.operation >= ESCALATE), bit, _NONE)
    held = state.escalated & _OPERATIONAL
    held = np.where(held, held, state.escalated & _ENTERPRISE)
    failed = exploit & ~state.success
    state.escalated &= ~(lost | np.where(failed, held, _NONE))
    state.exploited &= ~(lost | np.where(failed, held | bit, _NONE))


# CybORG's names of the agents, which settings may use as well.
CYBORG_NAMES = {"b_line": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}


def agent_named(red: str) -> str:
    """Return our name of an agent of Red, given by our name or by CybORG's. Raises ConfigError."""
    names = {**dict.fromkeys(AGENTS), **{theirs: ours for ours, theirs in CYBORG_NAMES.items()}}
    if red not in names:
        known = ", ".join(f"{ours} (or {theirs})" for ours, theirs in CYBORG_NAMES.items())
        raise ConfigError(f"red={red} is none of {known}{near(str(red), list(names))}")
    return names[red] or red


AGENTS: dict[str, Callable[[State, np.ndarray], None]] = {
    "b_line": b_line,
    "meander": meander,
    "sleep": sleep,
}
