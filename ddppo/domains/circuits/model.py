"""The actor-critic over circuits: values of nodes, logits of rules, and only as much of a circuit as they depend on."""

import math
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.domains.circuits.graph_layers import CONVOLUTIONS, Graph, graph_around
from ddppo.domains.circuits.settings import GnnSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, Obs, linear
from ddppo.models.distributions import Categorical
from ddppo.spaces import EnvSpec

# -- A choice in two stages: a node by the critic's values, and then one of the rules offered there ------------------


NOWHERE = -2  # the node of a pair that cannot be chosen; -1 is that of changing nothing


class Offered(NamedTuple):
    """All pairs of a batch that are offered, K end to end, in order.

    places `[K]`: row * max_pairs + number; rows `[K]`; nodes `[K]`, counted through the batch; firsts: the first pair
    of each node; log_shares `[K]`: log pi(rule | node).
    """

    places: torch.Tensor
    rows: torch.Tensor
    nodes: torch.Tensor
    firsts: torch.Tensor
    log_shares: torch.Tensor
    num_rows: int


class NodeThenRule:
    """pi(node) = softmax of the scores of all nodes with a pair, pi(rule | node) = softmax of the logits of its pairs.

    An action is the number of a pair. params `[..., 3 * max_pairs]`: of each pair the logit, the score of its node and
    the number of its node, ascending but for those NOWHERE; mask `[..., max_pairs]` bool allows pairs. The node is not
    learned: log_prob and entropy are those of the rule, given the node.
    """

    def __init__(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        self.params = params
        self.logits, self.scores, nodes = params.chunk(3, dim=-1)
        self.nodes = nodes if mask is None else nodes.masked_fill(~mask, NOWHERE)

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return pairs `[...]` from noise `[..., 2]`, uniform on [0, 1): one for the node, one for the rule."""
        node = self._nodes_to_choose.sample(noise[..., :1]).to(self.nodes.device)
        return self._rules_at(node).sample(noise[..., 1:])

    def mode(self) -> torch.Tensor:
        """Return the likeliest rule at the likeliest node."""
        return self._rules_at(self._nodes_to_choose.mode()).mode()

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Return log pi(rule | node) `[...]`; 0 of a pair that is not offered."""
        offered = self._offered
        wanted = actions.flatten() + torch.arange(actions.numel(), device=actions.device) * self.max_pairs
        at = torch.searchsorted(offered.places, wanted)
        is_there = (F.pad(offered.places, (0, 1), value=-1)[at] == wanted).to(self.params.dtype)
        return (F.pad(offered.log_shares, (0, 1))[at] * is_there).unflatten(0, actions.shape)

    def entropy(self) -> torch.Tensor:
        """Return the entropy of the rule, its mean over nodes where they are several."""
        offered = self._offered
        of_nodes = self.scores.detach().flatten()[offered.places[offered.firsts]]
        shares = log_softmax_by_group(of_nodes, offered.rows[offered.firsts], offered.num_rows).exp()
        parts = -shares[offered.nodes] * offered.log_shares.exp() * offered.log_shares
        total = parts.new_zeros(offered.num_rows).index_add(0, offered.rows, parts)
        return total.unflatten(0, self.params.shape[:-1])

    @property
    def max_pairs(self) -> int:
        return self.nodes.shape[-1]

    @cached_property
    def _offered(self) -> "Offered":
        # Of one node in hundreds few pairs are offered, in learning: there is no work on the others.
        width = self.max_pairs
        places = (self.nodes > NOWHERE).flatten().nonzero()[:, 0]
        rows = places.div(width, rounding_mode="floor")
        nodes = self.nodes.flatten()[places]
        is_first = F.pad((rows[1:] != rows[:-1]) | (nodes[1:] != nodes[:-1]), (1, 0), value=True)[: len(rows)]
        firsts = is_first.nonzero()[:, 0]
        node = is_first.cumsum(0) - 1
        logits = self.params.flatten().index_select(0, places + rows * (2 * width))
        log_shares = log_softmax_by_group(logits, node, len(firsts))
        return Offered(places, rows, node, firsts, log_shares, self.nodes.shape[:-1].numel())

    @cached_property
    def _is_first(self) -> torch.Tensor:
        """Return `[..., max_pairs]` bool: the first pair of its node."""
        before = self.nodes.cummax(-1).values
        before = torch.cat([torch.full_like(before[..., :1], NOWHERE), before[..., :-1]], dim=-1)
        return self.nodes > before

    @cached_property
    def _nodes_to_choose(self) -> Categorical:
        """Return the choice of a node, each by its first pair."""
        return Categorical(self.scores, self._is_first)

    def _rules_at(self, pairs: torch.Tensor) -> Categorical:
        node = self.nodes.gather(-1, pairs.unsqueeze(-1))
        return Categorical(self.logits, (self.nodes == node) & (node > NOWHERE))


def log_softmax_by_group(x: torch.Tensor, groups: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Return log(exp(x_i) / sum of exp(x_j) over the group of i) `[K]` of x and groups `[K]`."""
    largest = x.new_full((num_groups,), -torch.inf).scatter_reduce(0, groups, x.detach(), "amax")
    centred = x - largest[groups]
    return centred - x.new_zeros(num_groups).index_add(0, groups, centred.exp()).log()[groups]


_KINDS = 4  # of gates: h, x, cx, rz
_EMBEDDING = 16
_SHARE_OF_BEST = 0.9  # pi(node) where its value is 1 above that of all others, by the temperature of Quarl
_KEYS = (
    "kinds",
    "angles",
    "edges",
    "pairs",
    "num_nodes",
    "num_edges",
    "num_pairs",
    "num_rules",
    "fresh",
    "growth",
)

Circuits = dict[str, torch.Tensor]


class Roots(NamedTuple):
    """Nodes that something is asked of: hidden `[R, C]`, values `[R]`, the observation `[R]` of each.

    places `[n * max_nodes]`: which of them a node is.
    """

    hidden: torch.Tensor
    values: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor


class GNN(ActorCritic):
    """Graph convolutions over gates, a value of every gate and logits of the rules at it (Quarl, arXiv:2307.10120).

    The value of an observation is the largest of its fresh nodes, 0 without one. What is learned of a transition is the
    value of the node that was chosen and the logits there, which depend on nodes within graph_layers edges alone:
    `evaluate_actions` computes no others. Before anything is learned, a rule that adds n gates is e^(-graph_prior n) as
    likely as one that adds none, at every node: the logits are those of this prior and of the actor together, a node's
    score is its value's and the prior's of all that is offered there. To change nothing where that is offered once, as
    node -1, is worth 0 and has no parameters. A pair whose rule is num_rules stands for all rules that do not match at
    its node, and has their weights' sum.
    """

    Settings = GnnSettings
    values_are_beside = True
    values_are_of_actions = True
    stays_eager = (
        "every minibatch has as many nodes as its circuits have, and what is no product of matrices is C++"
    )

    def __init__(self, spec: EnvSpec, config: GnnSettings) -> None:
        super().__init__(spec, config)
        self.max_nodes, self.max_pairs, self.num_rules = _sizes(spec)
        self.temperature = config.temperature
        self.prior = config.graph_prior
        width = config.graph_width
        self.embedding = linear(_KINDS + 2, _EMBEDDING, gain=1.0)
        inputs = [_EMBEDDING, *[width] * (config.graph_layers - 1)]
        self.convolutions = nn.ModuleList(CONVOLUTIONS[config.graph_conv](size, width) for size in inputs)
        # Small at first: what is drawn by values about 0 is drawn alike from all nodes.
        self.critic = nn.Sequential(linear(width, width, 2**0.5), nn.ReLU(), linear(width, 1, gain=0.01))
        self.actor = nn.Sequential(linear(width, 2 * width, 2**0.5), nn.ReLU())
        self.rules = linear(2 * width, self.num_rules, gain=0.01)

    @property
    def num_params(self) -> int:
        return 3 * self.max_pairs

    @property
    def num_noise(self) -> int:
        return 2

    def distribution(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> NodeThenRule:
        return NodeThenRule(params, mask)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(obs, dict)
        are_nodes = _first(obs["num_nodes"], self.max_nodes)
        roots = self._roots(obs, are_nodes)
        is_fresh = (obs["fresh"] > 0.5)[are_nodes]
        worth = _largest(roots.values[is_fresh], roots.rows[is_fresh], len(are_nodes))
        scores = roots.values.detach() * self._inverse_temperature(obs)[roots.rows]
        return self._params(obs, _first(obs["num_pairs"], self.max_pairs), roots, scores), worth

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self.forward(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, dict)
        roots = self._roots(obs, _first(obs["num_nodes"], self.max_nodes) & (obs["fresh"] > 0.5))
        return _largest(roots.values, roots.rows, len(obs["fresh"]))

    def evaluate_actions(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters of the pairs at the nodes that were chosen, all others out of choice, and their values.

        Gradients of both reach the parameters of the network; scores are 0, for they have none.
        """
        assert isinstance(obs, dict)
        nodes = obs["pairs"][..., 0]
        chosen = nodes.gather(1, actions.unsqueeze(1))  # [n, 1]
        numbers = torch.arange(self.max_nodes, device=nodes.device)
        roots = self._roots(obs, _first(obs["num_nodes"], self.max_nodes) & (numbers == chosen.long()))
        is_offered = _first(obs["num_pairs"], self.max_pairs) & (nodes == chosen)
        params = self._params(obs, is_offered, roots, torch.zeros_like(roots.values))
        values = roots.values.new_zeros(len(chosen)).index_put((roots.rows,), roots.values)
        return params, values

    def num_products(self) -> int:
        layers = sum(layer.num_products() for layer in self.convolutions)  # type: ignore[operator]
        heads = sum(
            p.numel() for head in (self.embedding, self.critic, self.actor) for p in head.parameters()
        )
        return self.max_nodes * (layers + heads) + self.max_pairs * self.rules.in_features

    def _roots(self, obs: Circuits, are_roots: torch.Tensor) -> Roots:
        """Return the nodes `[n, max_nodes]` that are roots, from a graph of what they depend on."""
        graph = graph_around(are_roots, obs, len(self.convolutions))
        hidden = self._hidden(obs, graph)
        index = graph.nodes[: graph.sizes[-1]]
        places = index.new_zeros(are_roots.numel())
        places[index] = torch.arange(len(index), device=index.device)
        rows = index.div(self.max_nodes, rounding_mode="floor")
        return Roots(hidden, self.critic(hidden).squeeze(-1), rows, places)

    def _hidden(self, obs: Circuits, graph: Graph) -> torch.Tensor:
        kinds = obs["kinds"].flatten()[graph.nodes]
        is_kind = kinds.unsqueeze(1) == torch.arange(_KINDS, device=kinds.device)
        angles = obs["angles"].flatten(0, 1)[graph.nodes]
        hidden = self.embedding(torch.cat([is_kind.to(angles.dtype), angles], dim=-1))
        for layer, receivers in zip(self.convolutions, graph.sizes[1:], strict=True):
            hidden = layer(hidden, graph, receivers)
        return hidden

    def _inverse_temperature(self, obs: Circuits) -> torch.Tensor:
        """Return 1 / tau = ln(h (N - 1) / (1 - h)) `[n]` of circuits of N nodes, unless it is fixed."""
        num_nodes = obs["num_nodes"][:, 0]
        if self.temperature is not None:
            return torch.full_like(num_nodes, 1 / self.temperature)
        return (_SHARE_OF_BEST / (1 - _SHARE_OF_BEST) * (num_nodes - 1).clamp(min=1)).log()

    def _params(
        self, obs: Circuits, is_offered: torch.Tensor, roots: Roots, scores: torch.Tensor
    ) -> torch.Tensor:
        """Return logits, scores `[R]` and nodes of all pairs as `[n, 3 * max_pairs]`; those not offered are NOWHERE."""
        pairs, nodes = obs["pairs"], obs["pairs"][..., 0]
        params = pairs.new_zeros(len(pairs), 3, self.max_pairs)
        params[:, 2] = torch.where(is_offered, nodes, NOWHERE)
        limits = obs["num_nodes"].long().clamp(max=self.max_nodes)
        row, column = (is_offered & (nodes >= 0) & (nodes < limits)).nonzero(as_tuple=True)
        node, rule = pairs[row, column].long().unbind(-1)
        root = roots.places[row * self.max_nodes + node]
        favoured = -self.prior * obs["growth"][row, column]
        at_node = favoured.new_zeros(len(scores)).index_add(0, root, favoured.exp()).log()
        params[row, 1, column] = (scores.detach() + at_node)[root]
        logits = self._logits(roots.hidden, root, rule) + favoured
        return params.flatten(1).index_put((row, column), logits)

    def _logits(self, hidden: torch.Tensor, root: torch.Tensor, rule: torch.Tensor) -> torch.Tensor:
        """Return the logit of each rule at hidden[root]."""
        features = self.actor(hidden)
        known = rule.clamp(0, self.num_rules - 1)
        logits = (features[root] * self.rules.weight[known]).sum(-1) + self.rules.bias[known]
        is_none = rule >= self.num_rules
        if is_none.any():
            matches = torch.zeros(len(hidden), self.num_rules, dtype=torch.bool, device=rule.device)
            matches[root[~is_none], known[~is_none]] = True
            of_none = self.rules(features).masked_fill(matches, -math.inf).logsumexp(-1)
            logits = torch.where(is_none, of_none[root], logits)
        return logits


def _first(counts: torch.Tensor, most: int) -> torch.Tensor:
    """Return `[n, most]` bool, true of the first counts `[n, 1]`."""
    return torch.arange(most, device=counts.device) < counts.long()


def _largest(values: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return the largest of the values of each row `[num_rows]`, 0 of none."""
    none = values.new_full((num_rows,), -math.inf)
    largest = none.scatter_reduce(0, rows, values, "amax")
    return torch.where(largest.isinf(), 0, largest)


def _sizes(spec: EnvSpec) -> tuple[int, int, int]:
    """Return max_nodes, max_pairs and num_rules. Raises ConfigError where circuits are not what is observed."""
    obs = spec.obs
    if not (isinstance(obs, dict) and set(obs) == set(_KEYS) and (num_rules := obs["num_rules"].high)):
        found = f"a dict of {', '.join(obs)}" if isinstance(obs, dict) else f"an array {list(obs.shape)}"
        raise ConfigError(
            f"model.name=gnn takes circuits as ddppo/Circuit-v0 observes them ({', '.join(_KEYS)}), but the task "
            f"observes {found}: use model=mlp or model=cnn"
        )
    return obs["kinds"].shape[0], obs["pairs"].shape[0], num_rules
