"""The hosts, ports, exploits, decoys and actions of CAGE 2 as data (docs/cage2.md).

Sets of hosts and of ports are bits of an integer: bit h is host h, bit p is PORTS[p].
"""

from typing import NamedTuple

LINUX, WINDOWS = "Linux", "Windows"
ENTERPRISE, OPERATIONAL, USER = "Enterprise", "Operational", "User"


class Host(NamedTuple):
    """A host: its subnet, its system, what listens, and what it costs in tenths that Red has root on it."""

    name: str
    subnet: str
    system: str
    ports: tuple[int, ...]
    tenths: int


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
NOBODY = NUM_HOSTS  # the host of an action that has none
HOST = {host.name: h for h, host in enumerate(HOSTS)}
OP_SERVER, USER0 = HOST["Op_Server0"], HOST["User0"]
DOWN_TENTHS = 100  # while OTService is down
RESTORE_TENTHS = 10
GREEN_HOSTS = tuple(HOST[f"User{i}"] for i in range(5)) + tuple(HOST[f"Enterprise{i}"] for i in range(3))
# What an escalation tells of; of Op_Server0 it tells of OTService.
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
    """An exploit: the port it goes to, others of which one must be open too, and what it comes to by host."""

    name: str
    port: int
    also: tuple[int, ...]
    outcomes: dict[str, int]


# What an exploit comes to. TRACED sessions can be removed where the exploit was detected.
FAILS, LASTS, TRACED, ROOT = range(4)
_WEB = {"Enterprise1": TRACED, "Enterprise2": TRACED, "User3": TRACED, "User4": TRACED}
_SSH = (
    *("Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"),
    *("User0", "User1", "User4"),
)
EXPLOITS = (  # Red prefers the first
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
PREFERRED = 0.75  # the probability of the first of the exploits that the ports seen allow
DETECTED = 0.95  # of an exploit other than SSH


class Decoy(NamedTuple):
    """A decoy: the port it opens, the one that must not be in use, and the systems it runs on."""

    name: str
    opens: int
    checks: int
    systems: tuple[str, ...]


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
