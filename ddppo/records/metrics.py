"""The one table of metrics: every number that is written has its name, unit, reduction and source here.

`python -m ddppo.records.metrics` prints the table of docs/metrics.md.
"""

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from ddppo.plugins import added, imported

# -- What a metric is, and the words that the table's rows share.


PER_RANK = "per rank"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an iteration. `reduction` says how the ranks' values became one, or that they did not.

    on_line: what the progress line calls it, with its value as a whole number; "" where it is not there.
    """

    name: str
    unit: str
    reduction: str
    meaning: str
    source: str
    on_line: str = ""


# Reductions and sources of several.
TIME = "docs/metrics.md, Time"
TOPOLOGY = "docs/topologies.md"
PPO = "PPO, arXiv:1707.06347"
DDPPO = "DD-PPO, arXiv:1911.00357"
GRPO = "GRPO, arXiv:2402.03300"
SAMPLES = "mean by count"
EPISODES = "over all episodes"
GREEDY = "deterministic evaluation"

# What names begin with.
SUCCESS_RATE_PREFIX = "eval/success_rate_"  # and the name of a tier
LOSS_PREFIX = "loss/"  # and the name of one of ppo.losses
USER_PREFIX = "user/"  # and what one of log.metrics calls its own
TASK_PREFIX = "task/"  # listed by a task's journal (ddppo/records/recorder.py)


# -- What an evaluation says.


EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric(
        f"{USER_PREFIX}<name>",
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
    Metric(f"{SUCCESS_RATE_PREFIX}<tier>", "fraction", EPISODES, "the same of the tasks of a tier", GREEDY),
    Metric("eval/t_eval", "s", "rank 0", "duration, in neither t_iter nor wall_s", TIME),
)


# -- What a rollout brought, and how the update went.


LEARNING_METRICS: tuple[Metric, ...] = (
    Metric("rollout/local_steps", "steps", PER_RANK, "valid environment steps of this rank", "count"),
    Metric(
        "rollout/local_fps",
        "steps/s",
        PER_RANK,
        "local_steps / t_iter of this rank",
        DDPPO,
    ),
    Metric("rollout/steps", "steps", "sum", "valid environment steps of the iteration", "count"),
    Metric(
        "rollout/fps",
        "steps/s",
        "sum / largest",
        "steps of all ranks / the largest t_iter of a rank",
        DDPPO,
    ),
    Metric(
        "rollout/return_mean",
        "reward",
        EPISODES,
        "undiscounted return, mean over the last log.episode_window training episodes that ended; "
        "absent until one has",
        "Gymnasium's reward, before normalisation",
    ),
    Metric("rollout/length_mean", "steps", EPISODES, "length of the same episodes", "count"),
    Metric("rollout/episodes", "episodes", "sum", "training episodes that ended in the iteration", "count"),
    Metric(
        "rollout/success_rate",
        "fraction",
        EPISODES,
        "rollouts of text that achieved their task, of those whose environment tells (is_success in its info)",
        "count",
    ),
    Metric(
        "rollout/failed", "rollouts", "sum", "of grpo: lost, so in no group and not learned from", "count"
    ),
    Metric(
        "rollout/group_return_mean",
        "reward",
        "moments by count",
        "of grpo: the groups' mean returns, mean",
        GRPO,
    ),
    Metric(
        "rollout/group_return_std",
        "reward",
        "moments by count",
        "of grpo: standard deviation of the returns in a group, mean over groups",
        GRPO,
    ),
    Metric(
        "train/groups_without_spread",
        "fraction",
        "moments by count",
        "of grpo: groups whose returns are all equal, from which nothing is learned",
        "DAPO, arXiv:2503.14476",
    ),
    Metric("train/policy_loss", "1", SAMPLES, "negative clipped surrogate", f"{PPO}, eq. 7"),
    Metric(
        "train/value_loss",
        "reward²",
        SAMPLES,
        "(V - R)² / 2 against the GAE returns R, clipped or not, before ppo.value_coef",
        f"{PPO}, eq. 9",
    ),
    Metric("train/entropy", "nats", SAMPLES, "entropy of pi, before ppo.entropy_coef", f"{PPO}, eq. 9"),
    Metric(
        "train/approx_kl",
        "nats",
        SAMPLES,
        "k3 = mean((r - 1) - log r), r = new / old probability of the action taken",
        "Schulman, http://joschu.net/blog/kl-approx.html",
    ),
    Metric(
        "train/clip_fraction",
        "fraction",
        SAMPLES,
        "samples with |r - 1| > ppo.clip_coef",
        f"{PPO}, eq. 7",
    ),
    Metric(
        "train/kl_reference",
        "nats",
        SAMPLES,
        "of grpo with ppo.kl_coef: k3 of KL(pi || pi_ref), pi_ref the policy that the run began with",
        f"{GRPO}, eq. 4",
    ),
    Metric(
        f"{LOSS_PREFIX}<name>",
        "1",
        SAMPLES,
        "a loss term of your own, before its coefficient",
        "docs/guide/loss.md",
    ),
    Metric(
        "train/ratio_outliers",
        "fraction",
        SAMPLES,
        "samples with r outside [1/2, 2]: the batch is far off-policy",
        "ours",
    ),
    Metric(
        "train/explained_variance",
        "1",
        "moments by count",
        "1 - Var(returns - values) / Var(returns) of the rollout; 1 is perfect, a constant reaches 0",
        "OpenAI baselines, common/math_util.py; returns: GAE, arXiv:1506.02438",
    ),
    Metric(
        "train/grad_norm",
        "1",
        "same on all ranks",
        "L2 norm of the synchronised gradient before clipping, mean over the updates",
        "Pascanu et al., arXiv:1211.5063",
    ),
    Metric(
        "train/learning_rate",
        "1",
        "same on all ranks",
        "step size of Adam in the iteration, but of parts that ppo.learning_rates names",
        "arXiv:1412.6980",
    ),
    Metric(
        "train/epochs",
        "epochs",
        "same on all ranks",
        "epochs completed; fewer than ppo.num_epochs where ppo.target_kl stopped them",
        f"{PPO}, algorithm 1",
    ),
    Metric(
        "train/skipped_batches",
        "batches",
        "same on all ranks",
        "with on_nonfinite=skip_batch: taken back because something was not finite, so far",
        "docs/faults.md",
    ),
    Metric(
        "train/restores",
        "ways back",
        "same on all ranks",
        "with on_nonfinite=restore: to a checkpoint, each with a smaller step, so far",
        "docs/faults.md",
    ),
)


# -- Where an iteration's time went, and what ranks and topologies cost.


# Roles that topologies give ranks, or processes of theirs; one of your own goes by "other".
ROLES = ("worker", "learner", "actor", "environments", "agent", "observer", "other")

# What a topology measures on a rank, where it makes sense.
TOPOLOGY_METRICS: tuple[Metric, ...] = (
    Metric(
        "rollout/inference_batch", "rows", PER_RANK, "environments answered by one forward, mean", TOPOLOGY
    ),
    Metric(
        "dist/queue_depth",
        "rollouts",
        PER_RANK,
        "rollouts that were there when the learner took one, mean",
        TOPOLOGY,
    ),
    Metric(
        "dist/lag_mean",
        "updates",
        PER_RANK,
        "updates between the parameters that acted and those that learned, mean over rollouts",
        "IMPALA, arXiv:1802.01561",
    ),
    Metric("dist/lag_max", "updates", PER_RANK, "the largest of them; at most dist.max_lag", TOPOLOGY),
    *(
        Metric(f"dist/lag_{name}", "rollouts", PER_RANK, f"learned from with a lag of {meaning}", TOPOLOGY)
        for name, meaning in (
            ("0", "0"),
            ("1", "1"),
            ("2_3", "2 or 3"),
            ("4_7", "4 to 7"),
            ("8", "8 or more"),
        )
    ),
    Metric("dist/refused", "rollouts", PER_RANK, "older than dist.max_lag, not learned from", TOPOLOGY),
    Metric(
        "dist/preempted_fraction",
        "fraction",
        PER_RANK,
        "of ddp_preempt: steps of the rollout that were left out, 1 - steps / ppo.rollout_steps",
        DDPPO,
    ),
    Metric(
        "dist/awaited_ranks",
        "ranks",
        PER_RANK,
        "of ddp_preempt: after whose rollouts' end the others end theirs",
        TOPOLOGY,
    ),
    Metric(
        "dist/restarts",
        "processes",
        PER_RANK,
        "lost and started again, or sessions with a server opened anew, so far",
        TOPOLOGY,
    ),
    Metric(
        "rollout/env_restarts",
        "environments",
        PER_RANK,
        "made again because their process or session was lost, so far; their episodes were not, unless counted as lost",
        TOPOLOGY,
    ),
    Metric(
        "dist/lost_episodes",
        "episodes",
        PER_RANK,
        "cut because their process or session was lost, or of text because they raised, so far",
        TOPOLOGY,
    ),
    *(
        Metric(name, unit, PER_RANK, f"of tasks of text: {meaning}", "docs/text.md")
        for name, unit, meaning in (
            ("rollout/turns", "turns", "that were played in the iteration"),
            ("rollout/tokens_per_s", "tokens/s", "typed by the policy / t_generate"),
            ("rollout/t_generate", "s", "part of t_rollout: reading and typing tokens"),
            ("rollout/t_answers", "s", "part of t_rollout: waiting for environments while none is typed to"),
        )
    ),
)

TIME_METRICS: tuple[Metric, ...] = (
    Metric("time/t_iter", "s", PER_RANK, "the whole iteration without evaluation", TIME),
    Metric("time/t_rollout", "s", PER_RANK, "acting and stepping environments", TIME),
    Metric("time/t_learn", "s", PER_RANK, "returns, forward, backward, optimizer", TIME),
    Metric("time/t_sync", "s", PER_RANK, "waiting for others", TIME),
    Metric("time/t_comm", "s", PER_RANK, "exposed: in collectives once all ranks have arrived", TIME),
    Metric("time/t_other", "s", PER_RANK, "the rest: logging, checkpoint", TIME),
    Metric(
        "time/t_checkpoint",
        "s",
        PER_RANK,
        "part of t_other: what saving after the iteration before held up; 0 where none was saved",
        "docs/checkpoints.md",
    ),
    Metric(
        "time/t_comm_total",
        "s",
        PER_RANK,
        "communication including what overlapped with backward; not one of the parts of t_iter",
        TIME,
    ),
    *(
        Metric(f"time/t_wait_{role}", "s", PER_RANK, f"part of t_sync: waiting for {whom}", TIME)
        for role, whom in zip(
            ROLES,
            (
                "a worker",
                "the learner",
                "an actor",
                "who steps environments",
                "an agent",
                "an observer",
                "others",
            ),
            strict=True,
        )
    ),
    Metric("dist/messages", "messages", PER_RANK, "sums, gathers, broadcasts and sends", TOPOLOGY),
    Metric("dist/bytes", "bytes", PER_RANK, "that this rank handed over in them", TOPOLOGY),
    *TOPOLOGY_METRICS,
    Metric("dist/rho_comm", "fraction", PER_RANK, "t_comm / t_iter", TIME),
    Metric("dist/rho_sync", "fraction", PER_RANK, "t_sync / t_iter", TIME),
)

# In the order of the table; t_iter is the sum of the exclusive parts.
WAIT_NAMES = tuple(f"time/t_wait_{role}" for role in ROLES)  # of t_sync, where there are such roles
TIME_NAMES = tuple(m.name for m in TIME_METRICS if m.name.startswith("time/") and m.name not in WAIT_NAMES)
EXCLUSIVE_PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")


# -- The one table of metrics, and what it says about names.


METRICS: tuple[Metric, ...] = (*LEARNING_METRICS, *TIME_METRICS, *EVALUATION_METRICS)

PER_RANK_NAMES = frozenset(m.name for m in METRICS if m.reduction == PER_RANK)
GLOBAL_NAMES = frozenset(m.name for m in METRICS if m.reduction != PER_RANK)
_OF_OTHERS = (TASK_PREFIX, LOSS_PREFIX, USER_PREFIX, SUCCESS_RATE_PREFIX)  # who name what follows


@functools.cache
def of_plugins() -> tuple[Metric, ...]:
    """Return the rows that plugins bring, all of them global."""
    return tuple(row for path in added("metrics").values() for row in imported(path))


def check_names(names: Iterable[str], *, per_rank: bool) -> None:
    """Raise KeyError, with near matches, for a name that is not in the table as per rank, or as global."""
    listed = PER_RANK_NAMES if per_rank else GLOBAL_NAMES
    for name in names:
        if name in listed or (name.startswith(_OF_OTHERS) and not per_rank):
            continue
        if not per_rank and any(_is_of(row, name) for row in of_plugins()):
            continue
        kind, other = ("per rank", "global") if per_rank else ("global", "per rank")
        if name in PER_RANK_NAMES | GLOBAL_NAMES:
            raise KeyError(f"metric {name} is {other} in the table of ddppo/records/metrics.py, not {kind}")
        near = difflib.get_close_matches(name, sorted(listed), n=3, cutoff=0.6)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise KeyError(f"{kind} metric {name} is not listed in ddppo/records/metrics.py: add it there{hint}")


def _is_of(row: Metric, name: str) -> bool:
    """Return whether a row is of this name: loss/<name> is of all that begin with loss/."""
    start, placeholder, _ = row.name.partition("<")
    return name.startswith(start) if placeholder else name == start


def markdown() -> str:
    """Return METRICS and those of plugins as the table of docs/metrics.md."""
    lines = ["| name | unit | reduction over ranks | meaning | source |", "|---|---|---|---|---|"]
    for m in (*METRICS, *of_plugins()):
        # A bare | would end the cell.
        cells = [f"`{m.name}`", m.unit, m.reduction, m.meaning, m.source]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


# -- One iteration in numbers.


_SAID_BY_GLOBAL = {"rollout/local_steps", "rollout/local_fps"}  # rollout/steps and rollout/fps


@dataclass(frozen=True, slots=True)
class IterationReport:
    """Everything known about one iteration, on rank 0. Raises KeyError for a metric that the table lacks."""

    iteration: int
    """Counted from 1."""
    env_steps: int
    """Of all ranks, since the start of training, this iteration included."""
    wall_s: float
    """Seconds of training so far: evaluation excluded, continuing across resumes."""
    rank_metrics: tuple[dict[str, float], ...]
    """One dict per rank, with the metrics that are per rank."""
    global_metrics: dict[str, float]
    resumed: bool = False
    """Whether a resumed run began with it; known of what is read from metrics.jsonl."""

    def __post_init__(self) -> None:
        assert self.rank_metrics, f"iteration {self.iteration} reports no rank"
        for metrics in self.rank_metrics:
            check_names(metrics, per_rank=True)
        check_names(self.global_metrics, per_rank=False)

    def rank_mean(self, name: str) -> float | None:
        """Return the mean over ranks of a per-rank metric, or None if no rank has it."""
        values = [metrics[name] for metrics in self.rank_metrics if name in metrics]
        return sum(values) / len(values) if values else None

    def scalars(self) -> dict[str, float]:
        """Return the global metrics, and of those per rank that these do not say the means over ranks."""
        names = {name for metrics in self.rank_metrics for name in metrics if name not in _SAID_BY_GLOBAL}
        return self.global_metrics | {name: self.rank_mean(name) or 0.0 for name in names}


if __name__ == "__main__":
    print(markdown(), end="")
