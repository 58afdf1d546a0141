"""A search over orders while a run trains: ddp whose iterations are whole episodes of the order that is tried.

One policy learns. When a trial ends, its parameters and Adam's moments are kept, and the next begins
with those of the trial that it inherits from. Ranks swap alike, and rank 0 says which order comes next.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ddppo.config import Config
from ddppo.config.fields import near
from ddppo.distributed.programs.kit import Collected, Kit
from ddppo.distributed.programs.workers import Worker
from ddppo.domains.cage2.search.campaign import Campaign
from ddppo.domains.cage2.search.orders import KINDS, ORDERS, code
from ddppo.domains.cage2.search.proposers import PROPOSERS, Proposer
from ddppo.domains.cage2.search.trial import Trial
from ddppo.envs.scalar.context import CONTEXT
from ddppo.errors import ConfigError
from ddppo.plugins import imported
from ddppo.ppo.acting.collector import Collector
from ddppo.ppo.learning.step import adam_state
from ddppo.seeding import derived_seed
from ddppo.spaces import ArraySpec, EnvSpec
from ddppo.tracebacks import in_one_line

_CODE_SIZE = len(KINDS) ** 2
_WEIGHT = "alignment_weight"  # in a reset's options, of what keeping to the order brings


def check(config: Config, spec: EnvSpec) -> None:
    """Raise ConfigError where the search that is asked for cannot be, or its task takes no orders."""
    said = f"search.name={config.search.name}: env.id={config.env.id}"
    context = spec.obs.get(CONTEXT) if isinstance(spec.obs, dict) else None
    if not (isinstance(context, ArraySpec) and context.shape == (_CODE_SIZE,)):
        raise ConfigError(
            f"{said} observes no context of {_CODE_SIZE} numbers, the code of an order: use experiment=workflows, "
            f"env=cage2 with an env.order, or env.context={_CODE_SIZE}"
        )
    if spec.journal is None:
        raise ConfigError(
            f"{said} publishes nothing, so that nobody knows what came of an order: use experiment=workflows, or give "
            "the task a journal (docs/search.md)"
        )
    proposer(config)


def proposer(config: Config) -> Proposer:
    """Return who proposes orders, a key of PROPOSERS or `my_pkg.searches:make`. Raises ConfigError."""
    name, seed = config.search.name, derived_seed(config.seed, "search")
    assert name is not None
    if name not in PROPOSERS and ":" not in name:
        raise ConfigError(
            f"search.name={name}: must be one of {', '.join(PROPOSERS)}{near(name, list(PROPOSERS))}, or null; one of "
            "your own goes by its import path, my_pkg.searches:make"
        )
    try:
        made: Proposer = (PROPOSERS.get(name) or imported(name))(beta=config.search.beta, seed=seed)
    except Exception as e:  # what a function of a user's own may raise
        raise ConfigError(f"search.name={name} cannot be made: {in_one_line(e)}") from e
    methods = ("ask", "tell", "posterior", "best", "state", "restore")
    if lacking := [method for method in methods if not callable(getattr(made, method, None))]:
        raise ConfigError(
            f"search.name={name} has no {lacking[0]}(): see ddppo.domains.cage2.search.proposers.Proposer"
        )
    return made


class SearchWorker(Worker):
    """A rank that acts by the order of the trial under way, and learns from whole episodes."""

    collector: Collector
    campaign: Campaign

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.campaign = Campaign(kit.config.search, kit.shape.num_envs, proposer(kit.config))
        self._beginning = self._policy()
        self._kept: dict[int, list[torch.Tensor]] = {}  # by trial, of Campaign.to_keep

    def reset(self, iteration: int) -> None:
        """Try an order where a run begins, or goes on after its end; nothing goes on from one iteration to the next."""
        if self.campaign.under_way is None and not self.campaign.is_over:
            self._begin_trial()

    def collect(self, iteration: int) -> Collected:
        trial = self.campaign.under_way
        assert trial is not None
        options = [{CONTEXT: code(trial.order).tolist()}] * len(self._kit.env_indices)
        self.collector.reset(self._kit.seeds(self._kit.env_indices, iteration), options)
        return super().collect(iteration)

    def hear(self, news: Sequence[bytes]) -> None:
        ended = self.campaign.hear(news)
        if ended is None:
            return
        self._keep(ended)
        if not self.campaign.is_over:
            self._begin_trial()

    def conclude(self) -> None:
        """Put the policy of the best order in place."""
        ended = self.campaign.conclude()
        if ended is not None:
            self._keep(ended)
        best = self.campaign.best()
        assert best is not None, "a run that ended has had an iteration"
        self._take(self._kept[best["trial"]])

    def options(self) -> dict[str, Any]:
        """Return what evaluations begin with: the order that is tried, or the best at the end; returns without more."""
        trial = self.campaign.under_way
        if trial is None:
            best = self.campaign.best()
            assert best is not None
            order = ORDERS[best["order_id"]]
        else:
            order = trial.order
        return {CONTEXT: code(order).tolist(), _WEIGHT: 0.0}

    def state(self) -> dict[str, Any]:
        return {"campaign": self.campaign.state(), "kept": self._kept}

    def restore(self, state: dict[str, Any]) -> None:
        self.campaign.restore(state["campaign"])
        self._kept = dict(state["kept"])

    def _begin_trial(self) -> None:
        choice = torch.tensor([self.campaign.choose()])
        trial = self.campaign.begin(int(self._kit.group.gather(choice)[0].item()))
        self._inherit(trial)

    def _inherit(self, trial: Trial) -> None:
        source = trial.inherited_from
        if source is None:
            self._take(self._beginning)
        else:
            self._take(self._kept[source])

    def _keep(self, ended: Trial) -> None:
        self._kept[ended.trial] = self._policy()
        self._kept = {trial: self._kept[trial] for trial in self.campaign.to_keep()}

    def _policy(self) -> list[torch.Tensor]:
        """Return copies of the parameters, and of Adam's steps and moments."""
        vector = self._kit.parameters.vector
        tensors = [vector.detach(), *adam_state(self.learner.optimizer, vector)]
        return [x.clone() for x in tensors]

    def _take(self, policy: Sequence[torch.Tensor]) -> None:
        vector = self._kit.parameters.vector
        own = [vector.detach(), *adam_state(self.learner.optimizer, vector)]
        for x, kept in zip(own, policy, strict=True):
            x.copy_(kept)
