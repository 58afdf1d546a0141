"""A choice in two stages: a node by the critic's values, and then one of the rules offered there."""

from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ddppo.models.distributions import Categorical

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
