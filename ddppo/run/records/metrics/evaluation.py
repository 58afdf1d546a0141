"""What an evaluation says."""

from ddppo.run.records.metrics.metric import EPISODES, GREEDY, OF_USER, SUCCESS_OF, TIME, Metric

OF_EVALUATION: tuple[Metric, ...] = (
    Metric(
        f"{OF_USER}<name>",
        "yours",
        "mean by count, or sum",
        "a metric of your own (log.metrics)",
        "docs/guide/metric.md",
    ),
    Metric("eval/return_mean", "reward", EPISODES, "mean undiscounted return", GREEDY),
    Metric("eval/return_median", "reward", EPISODES, "median return", GREEDY),
    Metric(
        "eval/return_iqm",
        "reward",
        EPISODES,
        "mean of the returns after the lowest and the highest quarter are dropped",
        "rliable, arXiv:2108.13264",
    ),
    Metric("eval/return_std", "reward", EPISODES, "standard deviation, divided by n", GREEDY),
    Metric("eval/return_min", "reward", EPISODES, "lowest return", GREEDY),
    Metric("eval/return_max", "reward", EPISODES, "highest return", GREEDY),
    Metric("eval/length_mean", "steps", EPISODES, "mean episode length", GREEDY),
    Metric("eval/episodes", "episodes", "sum", "episodes of the evaluation", "count"),
    Metric(
        "eval/success_rate",
        "fraction",
        EPISODES,
        "episodes of text that achieved their task, of those whose environment tells (is_success in its info)",
        GREEDY,
    ),
    Metric(f"{SUCCESS_OF}<tier>", "fraction", EPISODES, "the same of the tasks of a tier", GREEDY),
    Metric("eval/t_eval", "s", "rank 0", "duration, in neither t_iter nor wall_s", TIME),
)
