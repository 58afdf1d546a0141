"""Games of CAGE 2 put into a position by hand: what Red does next follows from what Meander remembers."""

import numpy as np

from ddppo.domains.cage2 import rules
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import ACTION, EXPLOITS, HOST, ports_as_bits

ALL = (1 << 13) - 1
NO, UNKNOWN, USER, PRIVILEGED = [0, 0], [1, 0], [0, 1], [1, 1]  # what Blue takes a host for
QUIET, SCAN, EXPLOIT = [0, 0], [1, 0], [1, 1]  # what it saw of it


def play(num_games=1, red="meander", **settings):
    games = Games(num_games, red, **settings)
    games.reset(np.arange(num_games), np.arange(1, num_games + 1, dtype=np.uint64))
    return games


def act(games, name="Sleep"):
    return games.step(np.full(games.num_games, ACTION[name]))


def tell(games, operation, host):
    """Have Red, who forgets what it did last, do `operation` on `host` next."""
    state, bit = games.state_of, 1 << HOST[host]
    state.operation[:] = rules.SLEEP
    state.known[:] = state.subnets[:] = state.swept[:] = 0
    state.exploited[:] = state.scanned[:] = ALL
    state.entered[:] = state.escalated[:] = ALL ^ 1 << HOST["Op_Server0"]
    match operation:
        case rules.SWEEP:
            state.subnets[:] = bit
        case rules.SCAN:
            state.known[:], state.scanned[:] = bit, ALL ^ bit
        case rules.EXPLOIT:
            state.known[:], state.exploited[:] = bit, ALL ^ bit
        case rules.ESCALATE:
            state.entered[:] |= bit
            state.escalated[:] &= ALL ^ bit
        case rules.IMPACT:
            state.escalated[:] |= bit


def hold(games, host, kind="root"):
    getattr(games.state_of, kind)[:] |= 1 << HOST[host]


def exploit(games, host, name, blue="Sleep"):
    """Have Red, who has a way to every host, exploit `host` by `name` alone; return the rewards."""
    wanted = next(exploit for exploit in EXPLOITS if exploit.name == name)
    tell(games, rules.EXPLOIT, host)
    games.state_of.seen[:, HOST[host]] = ports_as_bits(wanted.port, *wanted.also[:1])
    return act(games, blue)


def scan(games, host, blue="Sleep"):
    tell(games, rules.SCAN, host)
    return act(games, blue)


def seen(games, host, game=0):
    """Return what was seen of a host, and what it is taken for."""
    bits = games.obs[game].reshape(13, 4)[HOST[host]].astype(int).tolist()
    return bits[:2], bits[2:]


def compromised(games, host):
    return games.compromised[:, HOST[host]]
