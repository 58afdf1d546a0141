"""What a step looks up, made once of the rules: arrays by action, by host, by set of hosts and by set of ports."""

import itertools

import numpy as np

from ddppo.domains.cage2.rules import (
    ACTION_KINDS,
    ACTIONS,
    DECOYS,
    EXPLOITS,
    GREEN_HOSTS,
    HOST,
    HOSTS,
    NOBODY,
    NUM_ACTIONS,
    NUM_HOSTS,
    PORTS,
    REVEALED,
    USER0,
    hosts_as_bits,
    ports_as_bits,
)

_SETS = np.arange(1 << NUM_HOSTS)
BITS = (_SETS[:, None] >> np.arange(NUM_HOSTS) & 1).astype(np.uint8)  # [8192, 13] by set of hosts
COUNT = BITS.sum(1)  # [8192] how many are in the set
# [8192, 13] the k-th host of a set, by k.
NTH = np.argsort(1 - BITS, axis=1, kind="stable").astype(np.uint8)
TENTHS = BITS @ np.array([host.tenths for host in HOSTS])  # [8192] what root on a set of hosts costs

BIT = np.array([1 << h for h in range(NUM_HOSTS)] + [0], np.uint16)  # [14] by host; of nobody no bit
_SUBNETS = {
    subnet: hosts_as_bits(*(host.name for host in HOSTS if host.subnet == subnet))
    for subnet in dict.fromkeys(host.subnet for host in HOSTS)
}
SUBNET = np.array(
    [_SUBNETS[host.subnet] for host in HOSTS] + [0], np.uint16
)  # [14] the hosts of a host's subnet,
FIRST = np.array(
    [_SUBNETS[host.subnet] & -_SUBNETS[host.subnet] for host in HOSTS] + [0], np.uint16
)  # and the first
REVEALS = np.array(
    [hosts_as_bits(*filter(None, [REVEALED.get(host.name)])) for host in HOSTS] + [0], np.uint16
)
OPEN = np.array(
    [ports_as_bits(*host.ports) for host in HOSTS] + [0], np.uint16
)  # [14] ports of real services

# [145] by action: its host, and that host's bit where the action is of that kind.
HOST_OF = np.array([NOBODY] * 2 + list(range(NUM_HOSTS)) * len(ACTION_KINDS))


def _bits_of(kind: str) -> np.ndarray:
    return np.array(
        [1 << HOST[name.split()[1]] if name.startswith(f"{kind} ") else 0 for name in ACTIONS], np.uint16
    )


ANALYSED, REMOVED, RESTORED = _bits_of("Analyse"), _bits_of("Remove"), _bits_of("Restore")
FREED = RESTORED & ~np.uint16(
    1 << USER0
)  # [145] whom a Restore rids of root: of User0 Red keeps its first session
# [145] by action: the port that a decoy opens, and those of which none may be in use; all where the system is wrong.
OPENED = np.zeros(NUM_ACTIONS, np.uint16)
CHECKED = np.zeros(NUM_ACTIONS, np.uint16)
for _decoy, (_h, _host) in itertools.product(DECOYS, enumerate(HOSTS)):
    _a = ACTIONS.index(f"{_decoy.name} {_host.name}")
    OPENED[_a] = ports_as_bits(_decoy.opens)
    CHECKED[_a] = ports_as_bits(_decoy.checks) if _host.system in _decoy.systems else np.uint16(0xFFFF)

EXPLOIT_PORT = np.array([ports_as_bits(exploit.port) for exploit in EXPLOITS], np.uint16)  # [8]
OUTCOME = np.array([[e.outcomes.get(host.name, 0) for e in EXPLOITS] for host in HOSTS], np.uint8)  # [13, 8]


_NEEDED = [(ports_as_bits(e.port), ports_as_bits(*e.also) or (1 << len(PORTS)) - 1) for e in EXPLOITS]
# The exploits that a set of ports seen allows, the preferred first.
_ALLOWED = [
    [e for e, (port, also) in enumerate(_NEEDED) if seen & port and seen & also]
    for seen in range(1 << len(PORTS))
]
NUM_EXPLOITS = np.array([len(allowed) for allowed in _ALLOWED])  # [4096] by ports seen
NTH_EXPLOIT = np.array([allowed + [0] * (len(EXPLOITS) - len(allowed)) for allowed in _ALLOWED], np.uint8)
NUM_PORTS = np.array([ports.bit_count() for ports in range(1 << len(PORTS))], np.uint8)  # [4096]
# [16] whom Green scans, by sixteenths of a random number: half of the time nobody.
GREEN_HOST = np.array([*GREEN_HOSTS, *[NOBODY] * len(GREEN_HOSTS)])
