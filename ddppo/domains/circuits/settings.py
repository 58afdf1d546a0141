"""Settings of model=pairs and model=gnn. Imports no torch."""

from dataclasses import dataclass

from ddppo.config.fields import setting
from ddppo.config.model_settings import ModelSettings
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape


@dataclass(slots=True)
class PairSettings(ModelSettings):
    """A softmax over all pairs of a node and a rule, linear in features of the pair."""

    name: str = setting("pairs", "this model's")
    observe: str = setting(
        "features",
        "what env=circuit observes for it (env.observe): features of each rewrite",
        choices=("features",),
    )
    prior: float = setting(
        3.0,
        "before learning, a rewrite that adds n gates is e^(-prior n) times as likely as one that adds none; 0 makes "
        "all equal",
        low=0,
        high=20,
    )
    limit: float | None = setting(
        3.0,
        "bound of what learning adds to a logit, so that no rewrite becomes more than e^(2 limit) times as likely as "
        "another beside the prior; null for none",
        above=0,
    )
    value_width: int = setting(16, "units of the hidden layer of the value function", low=1, high=4096)

    def check_run(self, config: Config, shape: BatchShape) -> None:
        name = config.training.section
        if config.training.normalize_obs:
            raise ConfigError(
                f"{name}.normalize_obs=true with model.name=pairs: its observations are places in a table, which must "
                f"not be scaled: use {name}.normalize_obs=false"
            )


@dataclass(slots=True)
class GnnSettings(ModelSettings):
    """A graph network over circuits (Quarl: Li et al. 2023, arXiv:2307.10120)."""

    name: str = setting("gnn", "this model's")
    graph_conv: str = setting(
        "qgnn",
        "convolution: qgnn (Quarl's: linear messages over typed edges), gin (graph isomorphism "
        "network), attention (4 heads)",
        choices=("qgnn", "gin", "attention"),
    )
    graph_layers: int = setting(
        4,
        "number of convolutions; a gate receives information from gates up to this far away",
        low=1,
        high=64,
    )
    graph_width: int = setting(
        128, "units of each convolution and of the critic; the actor has twice as many", low=4
    )
    graph_prior: float = setting(
        3.0,
        "before learning, a rule that adds n gates is e^(-graph_prior n) times as likely as one that"
        " adds none; 0 makes all equal",
        low=0,
        high=20,
    )
    node_scores: str = setting(
        "rules",
        "gates are drawn by exp(value / temperature), times the prior weight of the rules there (rules) or by it alone "
        "(values, as in Quarl)",
        choices=("rules", "values"),
    )
    temperature: float | None = setting(
        None,
        "gates are drawn by exp(value / temperature). null follows the number of gates N, 1 / ln(9 "
        "(N - 1)): a gate worth 1 more than all others is then drawn 9 times in 10",
        above=0,
    )

    def check(self) -> None:
        if self.graph_conv == "attention" and self.graph_width % 4:
            raise ConfigError(
                f"model.graph_width={self.graph_width} with model.graph_conv=attention: its 4 heads share the units "
                f"alike: use a multiple of 4, such as {-(-self.graph_width // 4) * 4}"
            )

    def check_run(self, config: Config, shape: BatchShape) -> None:
        name = config.training.section
        if config.training.normalize_obs:
            raise ConfigError(
                f"{name}.normalize_obs=true with model.name=gnn: its observations are indices of gates and rules, "
                f"which must not be scaled: use {name}.normalize_obs=false"
            )
