"""What the circuit environment observes, by NumPy alone and step by step, for its tests."""

import math

import numpy as np

from ddppo.domains.circuits.quantum import RZ
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.task.board import NO_NODE, at_every_node, growth_of


def listed(rewriter, circuit, max_nodes, max_pairs, episode):
    """Return the pairs, how many were too large, and how many had no room."""
    pairs, growth = rewriter.pairs(circuit), growth_of(rewriter)
    fits = growth[pairs[:, 1]] <= max_nodes - len(circuit)
    num_too_large = int((~fits).sum())
    pairs = pairs[fits].tolist()
    always = [[NO_NODE, rewriter.nop]] if episode.nop == "once" else []
    always += [[node, rule] for node in range(len(circuit)) for rule in at_every_node(rewriter, episode)]
    room = max_pairs - len(always)
    pairs.sort(key=lambda pair: (growth[pair[1]], pair[1], pair[0]))
    return sorted(always + pairs[:room]), num_too_large, max(0, len(pairs) - room)


def observed(env, pairs, fresh):
    """Return the observation of an environment's circuit with these pairs and fresh nodes."""
    space, circuit = env.observation_space, env.circuit
    obs = {
        name: np.full(part.shape, -1 if name in ("kinds", "edges", "pairs") else 0, part.dtype)
        for name, part in space.items()
    }
    turned = np.flatnonzero(circuit.kinds == RZ)
    radians = circuit.angles[turned] * (2 * math.pi / TURN)
    obs["angles"][turned, 0], obs["angles"][turned, 1] = np.sin(radians), np.cos(radians)
    links = circuit.links
    source, port = np.nonzero(links.next >= 0)
    edges = np.stack([source, port, links.next[source, port], links.next_port[source, port]], 1)
    for name, rows in (("kinds", circuit.kinds), ("edges", edges), ("pairs", np.array(pairs).reshape(-1, 2))):
        obs[name][: len(rows)] = rows
    for what, number in (("nodes", len(circuit)), ("edges", len(edges)), ("pairs", len(pairs))):
        obs[f"num_{what}"][:] = number
    obs["num_rules"][:] = env.rewriter.num_rules
    growth = growth_of(env.rewriter)
    obs["growth"][: len(pairs)] = [growth[rule] if rule < len(growth) else 0 for _, rule in pairs]
    obs["fresh"][list(fresh)] = 1
    obs["action_mask"][: len(pairs)] = 1
    return obs
