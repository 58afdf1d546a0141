"""Settings of a search over orders, `search.*`, its rules for the rest of the settings, and its metrics.

Imports no torch.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

from ddppo.algorithms.known import algorithm_name, algorithm_setting
from ddppo.config.fields import setting
from ddppo.config.settings import Config, SamplerSettings
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError
from ddppo.records.metrics import Metric
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec

METRICS = tuple(
    Metric(f"search/{name}", unit, "same on all ranks", meaning, "docs/search.md")
    for name, unit, meaning in (
        ("trial", "1", "number of the iteration's trial, from 0"),
        ("order_id", "1", "index of its order among all 120"),
        ("return_mean", "reward", "return of the environment alone, mean over the iteration's episodes"),
        (
            "alignment_mean",
            "reward",
            "reward for keeping to the order, mean over the iteration's episodes",
        ),
        (
            "compliance",
            "fraction",
            "of repairs that kept to the order, mean over the iteration's episodes; 1/2 for one without a repair",
        ),
        ("repairs", "repairs", "in all episodes of the iteration"),
        ("without_repairs", "fraction", "of the iteration's episodes without a repair"),
        ("passed", "trials", "that passed their gate so far"),
        ("episodes", "episodes", "of all environments so far"),
    )
)


@dataclass(slots=True)
class SearchSettings(SamplerSettings):
    may_change: ClassVar[tuple[str, ...]] = ("budget_episodes",)
    takes_shards: ClassVar[bool] = False

    name: str | None = setting(
        None,
        "for tasks that receive an order at every reset, how the next order is chosen: orders (upper confidence "
        "bounds of a Gaussian process over all 120, docs/search.md), an import path of your own "
        "(my_pkg.searches:make), null (no search)",
    )
    budget_episodes: int = setting(100_000, "episodes of all environments until the search ends", low=1)
    max_episodes_per_order: int = setting(
        100, "most episodes of each environment in a trial of one order", low=1
    )
    gate_compliance: float = setting(
        0.95,
        "a trial may end when an iteration's compliance, mean over its episodes, reaches this",
        low=0,
        high=1,
    )
    gate_repairs: int = setting(10, "least number of repairs in an iteration for the gate to open", low=0)
    plateau: int | None = setting(
        None,
        "iterations without a rise of compliance by 0.01 after which a trial ends; null is no limit",
        low=1,
    )
    settle_iterations: int = setting(
        10,
        "a trial ends at its gate when the mean return of the last search.score_iterations has not risen "
        "by 1 % for this many iterations; 0 ends it at once",
        low=0,
    )
    inherit: str = setting(
        "nearest",
        "policy with which a trial begins: nothing (the initial parameters of the run), shared (the policy of the "
        "trial before), same (of the last trial of this order, else nothing), nearest (of the order at the "
        "least Kendall distance)",
        choices=("nothing", "shared", "same", "nearest"),
    )
    beta: float = setting(2.0, "weight of the deviation in the upper confidence bound", low=0)
    score_iterations: int = setting(
        5, "a trial's score is its mean environment return over this many last iterations", low=1
    )
    shortfall_weight: float = setting(
        30.0,
        "score that a trial loses per unit of missing compliance if it failed its gate",
        low=0,
    )

    def asks(self, config: Config, spec: EnvSpec) -> bool:
        return self.name is not None

    def check_run(self, config: Config, shape: BatchShape) -> None:
        if self.name is None:
            self._check_nothing_else()
            return
        # Trials swap the policy of all environments at once, so each rule below keeps an iteration to one order.
        search = f"search.name={self.name}"
        find(config.dist.topology).check_work("orders", search)
        if (algorithm := algorithm_name(config)) != "ppo":
            why = "a search gives all environments one order, and needs no groups: use ppo.algorithm=ppo"
            if algorithm != "grpo":
                why = "the policies that a search keeps and swaps are PPO's: use algorithm=ppo"
            raise ConfigError(f"{algorithm_setting(config)} with {search}: {why}")
        if config.training.normalize_obs:
            raise ConfigError(
                f"ppo.normalize_obs=true with {search}: the running moments change with every trial, so that a kept "
                "policy would see other observations than it learned from: use ppo.normalize_obs=false"
            )
        if config.env.backend in ("gym_vector", "remote"):
            raise ConfigError(
                f"env.backend={config.env.backend} with {search}: it starts episodes without the options of a reset, "
                "which name the order: use env.backend=auto"
            )
        if shape.num_shards:
            raise ConfigError(
                f"{search} with dist.reduction=ordered: a search is not computed in shards: use dist.reduction=fast"
            )
        # Each environment plays one episode per iteration.
        if self.budget_episodes < shape.num_envs:
            raise ConfigError(
                f"search.budget_episodes={self.budget_episodes} is less than one episode of each of the "
                f"{shape.num_envs} environments: use at least {shape.num_envs}"
            )
        total_steps = self.budget_episodes * shape.rollout_steps
        if config.training.total_steps != total_steps:
            raise ConfigError(
                f"ppo.total_steps={config.training.total_steps} is not search.budget_episodes * ppo.rollout_steps = "
                f"{self.budget_episodes} * {shape.rollout_steps}: use ppo.total_steps={total_steps}"
            )

    def check_memory(self, said: str) -> None:
        if self.name is not None:
            raise ConfigError(f"search.name={self.name} with {said}: a search has no memory: use model=mlp")

    def _check_nothing_else(self) -> None:
        defaults = SearchSettings()
        # A setting that the user changed, but that nothing reads.
        for item in fields(self):
            if (value := getattr(self, item.name)) != getattr(defaults, item.name):
                raise ConfigError(
                    f"search.{item.name}={value} has no effect without a search: use experiment=workflows, or leave "
                    "it out"
                )
