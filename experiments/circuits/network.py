"""How fast model gnn is, beside torch_geometric and dense padded tensors compiled by torch: network.md.

    PYTHONPATH=. OMP_NUM_THREADS=1 python experiments/circuits/network.py [circuits=tof_3,tof_5,gf2^4_mult] [rounds=5]

Prints milliseconds of CPU a circuit in minibatches of 512 on one thread, the least of all rounds, which take turns. All
three have the same weights, and their outputs are compared first. torch_geometric and padded tensors are handed their
graphs; model gnn reads observations, and gives logits of pairs and scores too.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import k_hop_subgraph

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.circuits.graph_layers import EDGE_KINDS, QGNN, Graph, graph_around
from ddppo.domains.circuits.model import GNN
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model

BATCH = 512


class GeometricLayer(MessagePassing):
    def __init__(self, ours: QGNN) -> None:
        super().__init__(aggr="sum")
        self.before, self.after = joined(ours.source, ours.edge), joined(ours.own, ours.heard)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        heard = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return self.after(torch.cat([x, heard], dim=-1)).relu()

    def message(self, x_j: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        return self.before(torch.cat([x_j, edge_attr], dim=-1)).relu()


def joined(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Return one layer that does to [x, y] what first(x) + second(y) is."""
    layer = nn.Linear(first.in_features + second.in_features, first.out_features)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([first.weight, second.weight], dim=-1))
        layer.bias.copy_(first.bias if first.bias is not None else second.bias)
    return layer


class Geometric(nn.Module):
    """Values and the actor's features of all gates of a batch of graphs."""

    def __init__(self, ours: GNN) -> None:
        super().__init__()
        self.embedding, self.critic, self.actor = ours.embedding, ours.critic, ours.actor
        self.layers = nn.ModuleList(map(GeometricLayer, ours.convolutions))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> Any:
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden, edge_index, edge_attr)
        return self.critic(hidden).squeeze(-1), self.actor(hidden)


class Padded(nn.Module):
    """The same of gates `[n, max_nodes]`, neighbours `[n, max_nodes * 4]`, max_nodes where there is none."""

    def __init__(self, ours: GNN) -> None:
        super().__init__()
        self.ours = ours

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor, edges: torch.Tensor) -> Any:
        hidden = self.ours.embedding(x)
        for layer in self.ours.convolutions:
            sent = F.pad(layer.source(hidden), (0, 0, 0, 1), value=-torch.inf)
            index = neighbours.unsqueeze(-1).expand(-1, -1, sent.shape[-1])
            messages = (sent.gather(1, index).unflatten(1, (-1, 4)) + layer.edge(edges)).relu()
            hidden = (layer.own(hidden) + layer.heard(messages.sum(2))).relu()
        return self.ours.critic(hidden).squeeze(-1), self.ours.actor(hidden)


def observations(circuit: str) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """Return the spec, BATCH observations of a random walk, and its actions."""
    spec = probe(EnvConfig(id="ddppo/Circuit-v0", kwargs={"circuit": circuit}))
    env, rng = CircuitEnv(circuit), np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    rows, actions = [], []
    while len(rows) < BATCH:
        action = int(rng.integers(obs["num_pairs"][0]))
        rows.append(obs)
        actions.append(action)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    stacked = {key: torch.from_numpy(np.stack([row[key] for row in rows])).float() for key in spec.obs}
    return spec, stacked, torch.tensor(actions)


def features(model: GNN, obs: dict[str, torch.Tensor], nodes: torch.Tensor) -> torch.Tensor:
    """Return what model.embedding takes, of nodes."""
    kinds = F.one_hot(obs["kinds"].flatten()[nodes].long(), 4)
    return torch.cat([kinds, obs["angles"].flatten(0, 1)[nodes]], dim=-1)


def geometric_graph(graph: Graph) -> tuple[torch.Tensor, torch.Tensor]:
    receiver, slot = (graph.neighbours >= 0).nonzero(as_tuple=True)
    kinds = graph.kinds[receiver, slot].long()
    return torch.stack([graph.neighbours[receiver, slot].long(), receiver]), torch.tensor(EDGE_KINDS)[
        kinds
    ].float()


def padded_graph(graph: Graph, max_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, none = graph.nodes, BATCH * max_nodes
    neighbours = torch.full((none, 4), max_nodes)
    inside = nodes[graph.neighbours.clamp(min=0).long()] % max_nodes
    neighbours[nodes] = torch.where(graph.neighbours >= 0, inside, max_nodes)
    edges = torch.zeros(none, 4, len(EDGE_KINDS[0]))
    edges[nodes] = torch.tensor(EDGE_KINDS)[graph.kinds.long()].float()
    return neighbours.view(BATCH, -1), edges.view(BATCH, max_nodes, 4, -1)


def calls(circuit: str) -> tuple[str, dict[str, Callable[[], Any]]]:
    """Return what is measured, by the names of columns, and the circuits in words."""
    spec, obs, actions = observations(circuit)
    model = build_model(spec, settings_of("model", name="gnn"), 0, torch.float32)
    assert isinstance(model, GNN)
    are_nodes = torch.arange(model.max_nodes) < obs["num_nodes"]
    graph = graph_around(are_nodes, obs, 4)
    edge_index, edge_attr = geometric_graph(graph)
    x = features(model, obs, graph.nodes)
    padded_x = torch.zeros(BATCH, model.max_nodes, x.shape[-1])
    padded_x[are_nodes] = x
    neighbours, edges = padded_graph(graph, model.max_nodes)
    geometric, padded = Geometric(model), torch.compile(Padded(model))
    chosen = obs["pairs"].long()[torch.arange(BATCH), actions, 0].clamp(min=0)
    places = (torch.cumsum(obs["num_nodes"], 0) - obs["num_nodes"])[:, 0].long() + chosen

    def near() -> Any:
        nodes, index, at, kept = k_hop_subgraph(places, 4, edge_index, relabel_nodes=True, num_nodes=len(x))
        values, hidden = geometric(x[nodes], index, edge_attr[kept])
        return values[at], hidden[at]

    def all_of(outputs: Any) -> Any:
        return outputs[0][places], outputs[1][places]

    def of_padded() -> Any:
        values, hidden = padded(padded_x, neighbours, edges)
        return values[torch.arange(BATCH), chosen], hidden[torch.arange(BATCH), chosen]

    forwards: dict[str, Callable[[], Any]] = {
        "gnn": lambda: model(obs),
        "gnn, at": lambda: model.evaluate_actions(obs, actions),
        "torch_geometric": lambda: all_of(geometric(x, edge_index, edge_attr)),
        "torch_geometric, 4 hops": near,
        "padded, compiled": of_padded,
    }
    wanted, is_chosen = forwards["torch_geometric"](), (obs["pairs"][torch.arange(BATCH), actions, 0] >= 0)
    torch.testing.assert_close(
        model.evaluate_actions(obs, actions)[1][is_chosen], wanted[0][is_chosen], rtol=1e-4, atol=1e-5
    )
    for name in ("torch_geometric, 4 hops", "padded, compiled"):
        torch.testing.assert_close(forwards[name](), wanted, rtol=1e-4, atol=1e-4)

    def learning(forward: Callable[[], Any]) -> Callable[[], None]:
        return lambda: sum(output.sum() for output in forward()).backward()

    measured = {f"{name}: forward": inferring(f) for name, f in forwards.items()}
    measured |= {f"{name}: and backward": learning(f) for name, f in forwards.items()}
    return f"{circuit}, {obs['num_nodes'].mean():.0f} gates, {obs['num_pairs'].mean():.0f} pairs", measured


def inferring(call: Callable[[], Any]) -> Callable[[], Any]:
    return torch.inference_mode()(call)


def main() -> None:
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    torch.set_num_threads(1)
    for circuit in options.get("circuits", "tof_3,tof_5,gf2^4_mult").split(","):
        words, measured = calls(circuit)
        least = dict.fromkeys(measured, float("inf"))
        for _ in range(1 + int(options.get("rounds", "5"))):  # the first warms up, compiles
            for name, call in measured.items():
                begin = time.process_time()
                call()
                least[name] = min(least[name], time.process_time() - begin)
        print(words)
        for name, seconds in least.items():
            print(
                f"  {name:40} {1e3 * seconds / BATCH:.3f} ms a circuit, {BATCH / seconds:,.0f} circuits/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
