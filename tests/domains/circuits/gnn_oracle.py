"""The graph network by plain loops over one circuit, slow and in float64, and random circuits to compare it on."""

import math
import random
from types import SimpleNamespace

import numpy as np
import torch

from ddppo.config.variants import settings_of
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.task.settings import graph_space
from ddppo.envs.encoding.gym_spaces import obs_spec
from ddppo.models.build import build_model
from ddppo.spaces import ActionSpec, EnvSpec
from tests.domains.circuits.circuit_oracle import random_circuit
from tests.domains.circuits.circuit_slow import observed

MAX_NODES, MAX_PAIRS, NUM_RULES = 26, 60, 9
# Of rules nothing counts but how many gates they add; the last changes nothing.
GROWTH = (0, -1, 2, 1, -2, 0, 1, -1, 0)
RULES = [SimpleNamespace(source="ss", target="s" * (2 + growth)) for growth in GROWTH[:-1]]
SPACE = graph_space(MAX_NODES, MAX_PAIRS, NUM_RULES)
CONVOLUTIONS = ("qgnn", "gin", "attention")


def spec_of(max_nodes=MAX_NODES, max_pairs=MAX_PAIRS, num_rules=NUM_RULES):
    space = graph_space(max_nodes, max_pairs, num_rules)
    return EnvSpec(obs_spec(space), ActionSpec("discrete", (max_pairs,)), max_pairs)


def network(dtype=torch.float64, seed=0, spec=None, **settings):
    """Return a small network whose outputs are of order 1, not near 0 as they begin."""
    wanted = {"graph_layers": 3, "graph_width": 8, **settings}
    model = build_model(spec or spec_of(), settings_of("model", name="gnn", **wanted), seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data = p.data + 0.3 * torch.randn(p.shape, dtype=torch.float64, generator=generator).to(dtype)
    return model


def circuits(sizes=(20, 26, 7, 1, 2, 0), seed=0, nop=True):
    """Return observations of random circuits of so many gates, and their masks; any pairs, as if rules were there."""
    rng, rows = random.Random(seed), []
    for size in sizes:
        circuit = random_circuit(rng, num_qubits=3, num_gates=size) if size else Circuit.from_gates(3, [])
        pairs = [(node, rule) for node in range(size) for rule in range(NUM_RULES - 1) if rng.random() < 0.2]
        pairs = [(-1, NUM_RULES - 1)] * nop + pairs[: MAX_PAIRS - 1]
        fresh = [node for node in range(size) if rng.random() < 0.2]
        env = SimpleNamespace(
            observation_space=SPACE,
            circuit=circuit.canonical(),
            rewriter=SimpleNamespace(num_rules=NUM_RULES, rules=RULES),
        )
        rows.append(observed(env, pairs, fresh))
    return batch_of(rows)


def batch_of(rows, dtype=torch.float64):
    stacked = {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}
    mask = stacked.pop("action_mask").bool()
    return {key: x.to(dtype) for key, x in stacked.items()}, mask


def row_of(obs, i):
    """Return kinds, angles, edges, pairs and fresh nodes of one circuit, as lists without padding."""
    counts = {what: int(obs[f"num_{what}"][i, 0]) for what in ("nodes", "edges", "pairs")}
    whole = {key: obs[key][i].long().tolist() for key in ("kinds", "edges", "pairs", "fresh")}
    nodes = counts["nodes"]
    fresh = [node for node in range(nodes) if whole["fresh"][node]]
    return (whole["kinds"][:nodes], obs["angles"][i][:nodes].tolist(), whole["edges"][: counts["edges"]],
            whole["pairs"][: counts["pairs"]], fresh)  # fmt: skip


def hidden_of(model, obs, i):
    """Return what the network makes of every gate of circuit i, `[C]` each, by loops over gates and edges."""
    kinds, angles, edges, _, _ = row_of(obs, i)
    hidden = []
    for kind, angle in zip(kinds, angles, strict=True):
        features = torch.tensor([float(kind == k) for k in range(4)] + angle, dtype=torch.float64)
        hidden.append(model.embedding(features))
    for layer in model.convolutions:
        heard = [
            [] for _ in hidden
        ]  # of each node: (neighbour, the neighbour's port, its own, whether reversed)
        for source, port, destination, entry in edges:
            heard[destination].append((source, port, entry, 0))
            heard[source].append((destination, entry, port, 1))
        convolved = {"QGNN": qgnn, "GIN": gin, "Attention": attention}[type(layer).__name__]
        hidden = [convolved(layer, hidden, node, heard[node]) for node in range(len(hidden))]
    return hidden


def described(edge):
    return torch.tensor(edge[1:], dtype=torch.float64)


def qgnn(layer, hidden, node, edges):
    total = torch.zeros(layer.own.out_features, dtype=torch.float64)
    for edge in edges:
        total = total + torch.relu(layer.source.weight @ hidden[edge[0]] + layer.edge(described(edge)))
    return torch.relu(layer.own(hidden[node]) + layer.heard.weight @ total)


def gin(layer, hidden, node, edges):
    total = (1 + layer.eps) * hidden[node]
    for edge in edges:
        total = total + torch.relu(hidden[edge[0]] + layer.edge(described(edge)))
    return torch.relu(layer.second(torch.relu(layer.first(total))))


def attention(layer, hidden, node, edges):
    outputs = layer.own.out_features
    d = outputs // 4
    query, heard = layer.query(hidden[node]), []
    for head in range(4):
        part, total, weight = slice(head * d, head * d + d), torch.zeros(d, dtype=torch.float64), 0.0
        for edge in edges:
            both = layer.source.weight @ hidden[edge[0]] + layer.edge(described(edge))
            share = torch.exp(query[part] @ both[:outputs][part] / math.sqrt(d))
            total, weight = total + share * both[outputs:][part], weight + share
        heard.append(total / weight if edges else total)
    return torch.relu(layer.own(hidden[node]) + layer.heard.weight @ torch.cat(heard))


def expected(model, obs, i):
    """Return values of nodes, and of each pair of circuit i: logit, score and node."""
    pairs = row_of(obs, i)[3]
    hidden = hidden_of(model, obs, i)
    values = [model.critic(h)[0] for h in hidden]
    all_logits = [model.rules(model.actor(h)) for h in hidden]
    tau = model.temperature or 1 / math.log(0.9 * max(len(hidden) - 1, 1) / 0.1)
    favoured = [-model.prior * (GROWTH[rule] if rule < model.num_rules else 0) for _, rule in pairs]
    weights = {
        node: sum(math.exp(f) for f, (n, _) in zip(favoured, pairs, strict=True) if n == node)
        for node, _ in pairs
    }
    if model.scores_by_values:
        weights = dict.fromkeys(weights, 1.0)
    rows = []
    for (node, rule), prior in zip(pairs, favoured, strict=True):
        if node < 0:
            rows.append((*torch.zeros(2, dtype=torch.float64), -1))
        elif rule == model.num_rules:
            here = {r for n, r in pairs if n == node}
            rest = [all_logits[node][r].exp() for r in range(model.num_rules) if r not in here]
            rows.append((torch.stack(rest).sum().log(), values[node] / tau + math.log(weights[node]), node))
        else:
            score = values[node] / tau + math.log(weights[node])
            rows.append((all_logits[node][rule] + prior, score, node))
    return values, rows
