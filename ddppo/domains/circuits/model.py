"""The actor-critic over circuits: a value for each node, logits for the rules at a node (Quarl, arXiv:2307.10120).

`NodeThenRule` is the action distribution in two stages; `GNN` is the model. Learning evaluates only the nodes that were
chosen, and only the neighbourhoods that they depend on.
"""

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

# -- A choice in two stages: a node by the values of the critic, then one of the rules offered there -----------------


NOWHERE = -2  # node of a pair that cannot be chosen; node -1 belongs to the choice to change nothing


class Offered(NamedTuple):
    """The K offered pairs of a batch, without the padding between rows, in order."""

    places: torch.Tensor  # [K] row * max_pairs + number of the pair in its row
    rows: torch.Tensor  # [K] row of the batch
    nodes: torch.Tensor  # [K] number of the node among all offered nodes of the batch
    firsts: torch.Tensor  # index in K of the first pair of each node
    log_shares: torch.Tensor  # [K] log pi(rule | node)
    num_rows: int


class NodeThenRule:
    """pi(node) = softmax of the scores of all nodes with a pair, pi(rule | node) = softmax of the logits of its pairs.

    An action is the index of a pair. The policy gradient learns pi(rule | node) alone: log_prob and entropy are those
    of the rule, given the node. (The scores come from the critic.)

    Args:
        params: `[..., 3 * max_pairs]`: logits of all pairs, then scores of their nodes, then the nodes, which ascend
            except for the pairs that are NOWHERE.
        mask: `[..., max_pairs]` bool, the pairs that may be chosen.
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
        """Return log pi(rule | node) `[...]`; 0 for a pair that is not offered."""
        offered = self._offered
        # Find each action among the offered pairs by binary search: their places ascend.
        wanted = actions.flatten() + torch.arange(actions.numel(), device=actions.device) * self.max_pairs
        at = torch.searchsorted(offered.places, wanted)
        is_there = (F.pad(offered.places, (0, 1), value=-1)[at] == wanted).to(self.params.dtype)
        return (F.pad(offered.log_shares, (0, 1))[at] * is_there).unflatten(0, actions.shape)

    def entropy(self) -> torch.Tensor:
        """Return the entropy of the rule, averaged over nodes by pi(node) if several nodes are offered."""
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
        # In learning, only the pairs of the chosen node are offered, a few of hundreds. All work below is on those.
        width = self.max_pairs
        places = (self.nodes > NOWHERE).flatten().nonzero()[:, 0]
        rows = places.div(width, rounding_mode="floor")
        nodes = self.nodes.flatten()[places]
        # Pairs of one node stand side by side: a node begins where the row or the node changes.
        is_first = F.pad((rows[1:] != rows[:-1]) | (nodes[1:] != nodes[:-1]), (1, 0), value=True)[: len(rows)]
        firsts = is_first.nonzero()[:, 0]
        node = is_first.cumsum(0) - 1
        logits = self.params.flatten().index_select(0, places + rows * (2 * width))
        log_shares = log_softmax_by_group(logits, node, len(firsts))
        return Offered(places, rows, node, firsts, log_shares, self.nodes.shape[:-1].numel())

    @cached_property
    def _is_first(self) -> torch.Tensor:
        """Return `[..., max_pairs]` bool: whether a pair is the first of its node."""
        # Nodes ascend, so a node is new where it exceeds all before it.
        before = self.nodes.cummax(-1).values
        before = torch.cat([torch.full_like(before[..., :1], NOWHERE), before[..., :-1]], dim=-1)
        return self.nodes > before

    @cached_property
    def _nodes_to_choose(self) -> Categorical:
        """Return the distribution over nodes. The first pair of a node stands for the node."""
        return Categorical(self.scores, self._is_first)

    def _rules_at(self, pairs: torch.Tensor) -> Categorical:
        node = self.nodes.gather(-1, pairs.unsqueeze(-1))
        return Categorical(self.logits, (self.nodes == node) & (node > NOWHERE))


def log_softmax_by_group(x: torch.Tensor, groups: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Return log(exp(x_i) / sum of exp(x_j) over the group of i) `[K]` for x and groups `[K]`."""
    # Subtract the largest x of each group first, so that exp cannot overflow.
    largest = x.new_full((num_groups,), -torch.inf).scatter_reduce(0, groups, x.detach(), "amax")
    centred = x - largest[groups]
    return centred - x.new_zeros(num_groups).index_add(0, groups, centred.exp()).log()[groups]


_KINDS = 4  # of gates: h, x, cx, rz
_EMBEDDING = 16
_SHARE_OF_BEST = (
    0.9  # h of Quarl's temperature: pi(node) if its value is 1 above the values of all other nodes
)
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
    """The R nodes for which values and logits are needed."""

    hidden: torch.Tensor  # [R, C] features
    values: torch.Tensor  # [R]
    rows: torch.Tensor  # [R] row of the batch
    places: torch.Tensor  # [n * max_nodes] the index in R of each root, 0 for all other nodes


class GNN(ActorCritic):
    """Graph convolutions over gates, a value for every gate, and logits for the rules at it (Quarl, arXiv:2307.10120).

    Value of an observation: the largest value of its fresh nodes, 0 if there are none.

    Learning: a transition updates the value of the chosen node and the logits there. Both depend only on nodes within
    graph_layers edges; `evaluate_actions` computes no others.

    Prior: before learning, a rule that adds n gates is e^(-graph_prior n) times as likely as a rule that adds none. The
    prior is added to the logits of rules, and its log-sum over the rules offered at a node to the score of the node,
    unless model.node_scores=values.

    Special pairs: the choice to change nothing, if it is offered once as node -1, has value and logit 0 and no
    parameters. Rule num_rules stands for all rules that do not match at its node; its weight is the sum of theirs.
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
        self.scores_by_values = config.node_scores == "values"
        # Quarl's network: an embedding of gates, convolutions, a critic of nodes, and an actor with one output per
        # rule.
        width = config.graph_width
        self.embedding = linear(_KINDS + 2, _EMBEDDING, gain=1.0)
        inputs = [_EMBEDDING, *[width] * (config.graph_layers - 1)]
        self.convolutions = nn.ModuleList(CONVOLUTIONS[config.graph_conv](size, width) for size in inputs)
        # Small gains in the last layers: with all values near 0, nodes are drawn uniformly at first.
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
        # Acting needs all real nodes.
        are_nodes = _first(obs["num_nodes"], self.max_nodes)
        roots = self._roots(obs, are_nodes)
        # V(observation) = max over its fresh nodes.
        is_fresh = (obs["fresh"] > 0.5)[are_nodes]
        worth = _largest(roots.values[is_fresh], roots.rows[is_fresh], len(are_nodes))
        # Scores of nodes are values / temperature. They carry no gradient: the critic's loss trains the values.
        scores = roots.values.detach() * self._inverse_temperature(obs)[roots.rows]
        return self._params(obs, _first(obs["num_pairs"], self.max_pairs), roots, scores), worth

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self.forward(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, dict)
        roots = self._roots(obs, _first(obs["num_nodes"], self.max_nodes) & (obs["fresh"] > 0.5))
        return _largest(roots.values, roots.rows, len(obs["fresh"]))

    def evaluate_actions(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters of the pairs at the chosen nodes, and the values of these nodes.

        All other pairs are NOWHERE. Gradients flow through logits and values; scores are 0, because they have none.
        """
        assert isinstance(obs, dict)
        # The roots are the chosen nodes, one for each observation; node -1 has none.
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
        """Return features and values of the roots `[n, max_nodes]` bool, from the graph of all that they depend on."""
        graph = graph_around(are_roots, obs, len(self.convolutions))
        hidden = self._hidden(obs, graph)
        # The roots come first in the graph, and are the only nodes that the last layer computes.
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
        # Each layer computes fewer nodes: those within one edge less of a root.
        for layer, receivers in zip(self.convolutions, graph.sizes[1:], strict=True):
            hidden = layer(hidden, graph, receivers)
        return hidden

    def _inverse_temperature(self, obs: Circuits) -> torch.Tensor:
        """Return 1 / t = ln(h (N - 1) / (1 - h)) `[n]` for circuits of N nodes, or 1 / model.temperature.

        With it, a node of value v + 1 among N - 1 nodes of value v has pi(node) = h (Quarl, arXiv:2307.10120).
        """
        num_nodes = obs["num_nodes"][:, 0]
        if self.temperature is not None:
            return torch.full_like(num_nodes, 1 / self.temperature)
        return (_SHARE_OF_BEST / (1 - _SHARE_OF_BEST) * (num_nodes - 1).clamp(min=1)).log()

    def _params(
        self, obs: Circuits, is_offered: torch.Tensor, roots: Roots, scores: torch.Tensor
    ) -> torch.Tensor:
        """Return the parameters `[n, 3 * max_pairs]` of NodeThenRule. Pairs that are not offered are NOWHERE.

        Args:
            is_offered: pairs `[n, max_pairs]` bool.
            scores: of the roots `[R]`.
        """
        pairs, nodes = obs["pairs"], obs["pairs"][..., 0]
        params = pairs.new_zeros(len(pairs), 3, self.max_pairs)
        params[:, 2] = torch.where(is_offered, nodes, NOWHERE)
        # Offered pairs at real nodes have a root; the pair of node -1 keeps its zeros.
        limits = obs["num_nodes"].long().clamp(max=self.max_nodes)
        row, column = (is_offered & (nodes >= 0) & (nodes < limits)).nonzero(as_tuple=True)
        node, rule = pairs[row, column].long().unbind(-1)
        root = roots.places[row * self.max_nodes + node]
        # The prior: -graph_prior * growth in the logit of a pair; its log-sum over a node's pairs in the node's score.
        prior = -self.prior * obs["growth"][row, column]
        of_nodes = scores.detach()
        if not self.scores_by_values:
            of_nodes = of_nodes + prior.new_zeros(len(scores)).index_add(0, root, prior.exp()).log()
        params[row, 1, column] = of_nodes[root]
        logits = self._logits(roots.hidden, root, rule) + prior
        return params.flatten(1).index_put((row, column), logits)

    def _logits(self, hidden: torch.Tensor, root: torch.Tensor, rule: torch.Tensor) -> torch.Tensor:
        """Return the logit of each rule at hidden[root]."""
        # Only the offered rules: a product with the whole matrix would compute num_rules logits for every node.
        features = self.actor(hidden)
        known = rule.clamp(0, self.num_rules - 1)
        logits = (features[root] * self.rules.weight[known]).sum(-1) + self.rules.bias[known]
        # Without a mask, rule num_rules at a node: the log-sum of the logits of all rules that do not match there.
        is_none = rule >= self.num_rules
        if is_none.any():
            matches = torch.zeros(len(hidden), self.num_rules, dtype=torch.bool, device=rule.device)
            matches[root[~is_none], known[~is_none]] = True
            of_none = self.rules(features).masked_fill(matches, -math.inf).logsumexp(-1)
            logits = torch.where(is_none, of_none[root], logits)
        return logits


def _first(counts: torch.Tensor, most: int) -> torch.Tensor:
    """Return `[n, most]` bool, true for the first `counts` `[n, 1]` of each row."""
    return torch.arange(most, device=counts.device) < counts.long()


def _largest(values: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return the largest value of each row `[num_rows]`; 0 for a row without values."""
    none = values.new_full((num_rows,), -math.inf)
    largest = none.scatter_reduce(0, rows, values, "amax")
    return torch.where(largest.isinf(), 0, largest)


def _sizes(spec: EnvSpec) -> tuple[int, int, int]:
    """Return max_nodes, max_pairs and num_rules. Raises ConfigError if the observations are not those of circuits."""
    obs = spec.obs
    if not (isinstance(obs, dict) and set(obs) == set(_KEYS) and (num_rules := obs["num_rules"].high)):
        found = f"a dict of {', '.join(obs)}" if isinstance(obs, dict) else f"an array {list(obs.shape)}"
        raise ConfigError(
            f"model.name=gnn takes circuits as ddppo/Circuit-v0 observes them ({', '.join(_KEYS)}), but the task "
            f"observes {found}: use model=mlp or model=cnn"
        )
    return obs["kinds"].shape[0], obs["pairs"].shape[0], num_rules
