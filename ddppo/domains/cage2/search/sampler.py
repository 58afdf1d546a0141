"""A search over orders while a run trains, as a task sampler. An iteration is whole episodes of one order.

One policy learns. When a trial ends, its parameters and Adam's moments are kept, and the next trial starts with those
of the trial that it inherits from, as in population-based training. All ranks swap policies at the same time; rank 0
chooses the next order. `Campaign` decides when a trial ends and what the next one inherits.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddppo.algorithms.task_sampler import EpisodeResults, RunAccess, SamplerRecords, TaskSample, TaskSampler
from ddppo.config.settings import Config, section
from ddppo.domains.cage2.search import orders
from ddppo.domains.cage2.search.campaign import Campaign, OrderTrial, Proposer
from ddppo.domains.cage2.search.orders import KINDS, ORDERS, code
from ddppo.domains.cage2.search.records import SearchRecords
from ddppo.envs.single import CONTEXT
from ddppo.errors import ConfigError, RunFolderError, in_one_line, near
from ddppo.plugins import imported
from ddppo.search.ucb import UCB
from ddppo.seeding import derived_seed
from ddppo.spaces import ArraySpec, EnvSpec

_CODE_SIZE = len(KINDS) ** 2
_WEIGHT = "alignment_weight"  # option of a reset: the weight of the reward for keeping to the order


def ucb_over_orders(*, beta: float, seed: int) -> Proposer:
    return UCB(orders.space(), beta=beta, seed=seed)


PROPOSERS: dict[str, Callable[..., Proposer]] = {"orders": ucb_over_orders}


def make_sampler(config: Config, spec: EnvSpec, num_envs: int) -> "OrderSearch":
    """Return the search that `search.*` names. Raises ConfigError if the task takes no orders or publishes nothing."""
    settings = section(config, "search")
    prefix = f"search.name={settings.name}: env.id={config.env.id}"
    # The policy has to observe the order, and the environment has to publish its results.
    context = spec.obs.get(CONTEXT) if isinstance(spec.obs, dict) else None
    if not (isinstance(context, ArraySpec) and context.shape == (_CODE_SIZE,)):
        raise ConfigError(
            f"{prefix} observes no context of {_CODE_SIZE} numbers, the code of an order: use experiment=workflows, "
            f"env=cage2 with an env.order, or env.context={_CODE_SIZE}"
        )
    if spec.journal is None:
        raise ConfigError(
            f"{prefix} publishes no results of episodes, which a search compares: use experiment=workflows, or give "
            "the task a journal (docs/search.md)"
        )
    proposer = make_proposer(settings.name, settings.beta, derived_seed(config.seed, "search"))
    return OrderSearch(Campaign(settings, num_envs, proposer), config.seed)


def make_proposer(name: str, beta: float, seed: int) -> Proposer:
    """Return the proposer `name`, a key of PROPOSERS or an import path such as my_pkg.searches:make.

    Raises ConfigError.
    """
    if name not in PROPOSERS and ":" not in name:
        raise ConfigError(
            f"search.name={name}: must be one of {', '.join(PROPOSERS)}{near(name, list(PROPOSERS))}, or null; one of "
            "your own goes by its import path, my_pkg.searches:make"
        )
    try:
        made: Proposer = (PROPOSERS.get(name) or imported(name))(beta=beta, seed=seed)
    except Exception as e:  # a user's function may raise anything
        raise ConfigError(f"search.name={name} cannot be made: {in_one_line(e)}") from e
    # A user's proposer is checked now, and not when a missing method is first called.
    methods = ("ask", "tell", "posterior", "best", "state", "restore")
    if missing := [method for method in methods if not callable(getattr(made, method, None))]:
        raise ConfigError(
            f"search.name={name} has no {missing[0]}(): see {Proposer.__module__}.{Proposer.__name__}"
        )
    return made


class OrderSearch(TaskSampler):
    """Gives all environments the order of the current trial, and swaps policies when a trial ends."""

    every_iteration = True
    name = "the search"
    called_before = "program"

    def __init__(self, campaign: Campaign, seed: int) -> None:
        super().__init__(seed)
        self.campaign = campaign
        self._kept: dict[
            int, list[Any]
        ] = {}  # policy snapshots by trial, of the trials in Campaign.to_keep()

    def attach(self, run: RunAccess) -> None:
        self._run = run
        self._initial = run.policy_snapshot()  # for trials that inherit nothing

    def sample(self, iteration: int) -> TaskSample:
        if self.campaign.current is None:  # the run begins, or resumes with a larger budget
            self._begin_trial()
        trial = self.campaign.current
        assert trial is not None
        options = {CONTEXT: code(trial.order).tolist()}
        return TaskSample(iteration, super().sample(iteration).seed_of, lambda i: options)

    def update(self, results: EpisodeResults | None, messages: Sequence[bytes]) -> None:
        # Keep the policy of a trial that ended, then begin the next trial within the budget.
        ended = self.campaign.record(messages)
        if ended is None:
            return
        self._keep(ended)
        if not self.campaign.is_over:
            self._begin_trial()

    def conclude(self) -> None:
        """End the search: the run continues with the policy of the best order, which is evaluated and stored."""
        ended = self.campaign.conclude()
        if ended is not None:
            self._keep(ended)
        best = self.campaign.best()
        assert best is not None, "a run that ended has had an iteration"
        self._run.put_policy_(self._kept[best["trial"]])

    def eval_options(self) -> dict[str, Any]:
        """Return the options of evaluation episodes: the current order, or the best one at the end.

        The weight 0 makes the returns those of the environment alone.
        """
        trial = self.campaign.current
        if trial is None:
            best = self.campaign.best()
            assert best is not None
            order = ORDERS[best["order_id"]]
        else:
            order = trial.order
        return {CONTEXT: code(order).tolist(), _WEIGHT: 0.0}

    def state(self) -> dict[str, Any]:
        return {"campaign": self.campaign.state(), "kept": self._kept}

    def load(self, state: dict[str, Any] | None) -> None:
        if state is None:
            raise RunFolderError("the checkpoint holds no search: begin a new run")
        self.campaign.restore(state["campaign"])
        self._kept = dict(state["kept"])

    def digest(self, before: str = "") -> str:
        return self.campaign.digest(before)

    def metrics(self) -> dict[str, float]:
        return {f"search/{name}": x for name, x in self.campaign.metrics().items()}

    def open_records(self, run_dir: Path) -> SamplerRecords:
        return SearchRecords(self.campaign, run_dir)

    def _begin_trial(self) -> None:
        # The next order comes from rank 0: the posterior may be rounded differently on other machines.
        trial = self.campaign.begin(self._run.number_of_rank_0(self.campaign.choose()))
        source = trial.inherited_from
        self._run.put_policy_(self._initial if source is None else self._kept[source])

    def _keep(self, ended: OrderTrial) -> None:
        self._kept[ended.trial] = self._run.policy_snapshot()
        # Policies that no later trial can inherit are dropped.
        self._kept = {trial: self._kept[trial] for trial in self.campaign.to_keep()}
