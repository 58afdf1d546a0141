"""Settings of hydra/sweeper=gp_ucb."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


@dataclass(slots=True)
class GpUcbSweeperConfig:
    """Settings of hydra/sweeper=gp_ucb, named as Optuna's where these mean the same."""

    _target_: str = setting("hydra_plugins.ddppo_gp_ucb.GpUcbSweeper", "")
    direction: str = setting(
        "maximize",
        "of the objective; use minimize with objective=time_to_target",
        choices=("maximize", "minimize"),
    )
    n_trials: int = setting(20, "runs in all; fewer if no other values are left", low=1)
    n_jobs: int = setting(
        1, "runs at once, if the launcher can; the search learns from all of them together", low=1
    )
    beta: float = setting(
        2.0,
        "standard deviations that are added to the mean when a point is judged: a larger number explores "
        "more",
        low=0,
    )
    num_random: int = setting(4, "runs with random values, before values are chosen", low=1)
    seed: int = setting(0, "seed of the random values and of ties; not the seed of the runs", low=0)
    params: dict[str, Any] | None = setting(
        None, "settings to search, {key: interval(...), ...}, in addition to those of the command line"
    )
