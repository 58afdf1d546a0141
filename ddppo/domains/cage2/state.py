"""What a batch of games remembers, one record each, so that it can be reset, kept and handed to C++ as a whole."""

from typing import Any

import numpy as np

from ddppo.domains.cage2.rules import NUM_HOSTS, hosts_as_bits
from ddppo.domains.cage2.tables import OPEN

# Fields are in the order of `Game` in src/cage2.hpp; sets of hosts are bits.
GAME = np.dtype(
    [
        ("key", np.uint64),  # of the episode's random numbers
        ("time", np.uint64),  # steps done
        ("decoys", np.uint16, NUM_HOSTS),  # ports that decoys opened, by host
        ("seen", np.uint16, NUM_HOSTS),  # ports that Red saw when it last scanned a host
        ("traced", np.uint16),  # hosts with a session of a user that Remove ends,
        ("lasting", np.uint16),  # with one that it does not end,
        ("root", np.uint16),  # with root or SYSTEM
        ("files", np.uint16),  # with files that Analyse finds
        ("known", np.uint16),  # hosts whose addresses Red knows; what follows is Meander's memory
        ("subnets", np.uint16),  # subnets that it knows, as the bit of their first host
        ("swept", np.uint16),
        ("scanned", np.uint16),
        ("exploited", np.uint16),  # hosts that it believes to have exploited,
        ("escalated", np.uint16),
        ("entered", np.uint16),  # that it ever exploited with success
        ("belief", np.uint8, NUM_HOSTS),  # what Blue takes the host for
        ("operation", np.uint8),  # what Red did last, to which host, and whether it succeeded
        ("target", np.uint8),
        ("success", np.bool_),
        ("phase", np.uint8),  # B_line's, and the host it begins with
        ("first", np.uint8),
        ("down", np.bool_),  # OTService,
        ("found", np.bool_),  # known to Red,
        ("immune", np.bool_),  # or no more to be harmed (faithful_ot_quirk)
    ],
    align=True,
)


_FRESH = np.zeros((), GAME)  # Red has SYSTEM on User0, and knows it and its subnet
for _name in ("root", "known", "subnets"):
    _FRESH[_name] = hosts_as_bits("User0")


class State:
    """The records of n games; every field is also an attribute, a view `[n, ...]`."""

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
        """Put the games `which` at the beginning of the episodes `keys`."""
        self.records[which] = _FRESH
        self.key[which] = keys

    def open_ports(self, games: np.ndarray, hosts: np.ndarray) -> np.ndarray:
        return OPEN[hosts] | self.decoys[games, hosts]

    def as_lists(self) -> dict[str, Any]:
        return {name: self.records[name].tolist() for name in GAME.names or ()}

    def take(self, lists: dict[str, Any]) -> None:
        for name in GAME.names or ():
            self.records[name] = lists[name]
