"""A choice in two stages: a node by the critic's values, and then one of the rules offered there."""

from functools import cached_property

import torch

from ddppo.models.distributions import Categorical

NOWHERE = -2  # the node of a pair that cannot be chosen; -1 is that of changing nothing


class NodeThenRule:
    """pi(node) = softmax of the scores of all nodes with a pair, pi(rule | node) = softmax of the logits of its pairs.

    An action is the number of a pair. params `[..., 3 * max_pairs]`: of each pair the logit, the score of its node and
    the number of its node, ascending but for those NOWHERE; mask `[..., max_pairs]` bool allows pairs. The node is not
    learned: log_prob and entropy are those of the rule, given the node.
    """

    def __init__(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> None:
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
        return self._rules_at(actions).log_prob(actions)

    def entropy(self) -> torch.Tensor:
        """Return the entropy of the rule, its mean over nodes where they are several."""
        number = (
            self._is_first.cumsum(-1).sub(1).clamp(min=0)
        )  # of the pair's node, among those of this observation
        is_offered = self.nodes > NOWHERE
        logits = self.logits.masked_fill(~is_offered, torch.finfo(self.logits.dtype).min)
        zeros = torch.zeros_like(logits)
        with torch.no_grad():
            largest = zeros.scatter_reduce(-1, number, logits, "amax", include_self=False).gather(-1, number)
        weights = (logits - largest).exp() * is_offered
        sums = zeros.scatter_add(-1, number, weights).gather(-1, number)
        shares = weights / torch.where(is_offered, sums, 1)
        log_shares = torch.where(is_offered, logits - largest, 0) - torch.where(is_offered, sums, 1).log()
        of_nodes = zeros.scatter(-1, number, zeros).scatter_add(
            -1, number, self._nodes_to_choose.log_probs.exp() * self._is_first
        )
        return -(of_nodes.gather(-1, number) * shares * log_shares).sum(-1)

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
