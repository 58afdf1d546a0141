"""The one table of metrics: every number that is written has its name, unit, reduction and source here.

`python -m ddppo.run.records.metrics` prints the table of docs/metrics.md.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ddppo.curriculum.tiers import METRICS as _OF_TIERS
from ddppo.curriculum.tiers import RATE_OF

PER_RANK = "per rank"

# Roles that topologies give ranks, or processes of theirs; one of your own goes by "other".
ROLES = ("worker", "learner", "actor", "environments", "agent", "observer", "other")


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an iteration. `reduction` says how the ranks' values became one, or that they did not."""

    name: str
    unit: str
    reduction: str
    meaning: str
    source: str


_TIME = "docs/metrics.md, Time"
_TOPOLOGY = "docs/topologies.md"
_PPO = "PPO, arXiv:1707.06347"
_DDPPO = "DD-PPO, arXiv:1911.00357"
_GRPO = "GRPO, arXiv:2402.03300"
_SAMPLES = "mean by count"
_EPISODES = "over all episodes"
_GREEDY = "deterministic evaluation"
SUCCESS_OF = "eval/success_rate_"  # and the name of a tier
OF_SEARCH = "search/"
OF_CURRICULUM = "curriculum/"  # and what a curriculum calls its own; a user's has other names than ours

# What a topology measures on a rank, where it makes sense.
OF_TOPOLOGIES: tuple[Metric, ...] = (
    Metric(
        "rollout/inference_batch", "rows", PER_RANK, "environments answered by one forward, mean", _TOPOLOGY
    ),
    Metric(
        "dist/queue_depth",
        "rollouts",
        PER_RANK,
        "rollouts that were there when the learner took one, mean",
        _TOPOLOGY,
    ),
    Metric(
        "dist/lag_mean",
        "updates",
        PER_RANK,
        "updates between the parameters that acted and those that learned, mean over rollouts",
        "IMPALA, arXiv:1802.01561",
    ),
    Metric("dist/lag_max", "updates", PER_RANK, "the largest of them; at most dist.max_lag", _TOPOLOGY),
    *(
        Metric(f"dist/lag_{name}", "rollouts", PER_RANK, f"learned from with a lag of {meaning}", _TOPOLOGY)
        for name, meaning in (
            ("0", "0"),
            ("1", "1"),
            ("2_3", "2 or 3"),
            ("4_7", "4 to 7"),
            ("8", "8 or more"),
        )
    ),
    Metric("dist/refused", "rollouts", PER_RANK, "older than dist.max_lag, not learned from", _TOPOLOGY),
    Metric(
        "dist/preempted_fraction",
        "fraction",
        PER_RANK,
        "of ddp_preempt: steps of the rollout that were left out, 1 - steps / ppo.rollout_steps",
        _DDPPO,
    ),
    Metric(
        "dist/awaited_ranks",
        "ranks",
        PER_RANK,
        "of ddp_preempt: after whose rollouts' end the others end theirs",
        _TOPOLOGY,
    ),
    Metric(
        "dist/restarts",
        "processes",
        PER_RANK,
        "lost and started again, or sessions with a server opened anew, so far",
        _TOPOLOGY,
    ),
    Metric(
        "rollout/env_restarts",
        "environments",
        PER_RANK,
        "made again because their process or session was lost, so far; their episodes were not, unless counted as lost",
        _TOPOLOGY,
    ),
    Metric(
        "dist/lost_episodes",
        "episodes",
        PER_RANK,
        "cut because their process or session was lost, or of text because they raised, so far",
        _TOPOLOGY,
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

METRICS: tuple[Metric, ...] = (
    Metric("rollout/local_steps", "steps", PER_RANK, "valid environment steps of this rank", "count"),
    Metric(
        "rollout/local_fps",
        "steps/s",
        PER_RANK,
        "local_steps / t_iter of this rank",
        _DDPPO,
    ),
    Metric("rollout/steps", "steps", "sum", "valid environment steps of the iteration", "count"),
    Metric(
        "rollout/fps",
        "steps/s",
        "sum / largest",
        "steps of all ranks / the largest t_iter of a rank",
        _DDPPO,
    ),
    Metric(
        "rollout/return_mean",
        "reward",
        _EPISODES,
        "undiscounted return, mean over the last log.episode_window training episodes that ended; "
        "absent until one has",
        "Gymnasium's reward, before normalisation",
    ),
    Metric("rollout/length_mean", "steps", _EPISODES, "length of the same episodes", "count"),
    Metric("rollout/episodes", "episodes", "sum", "training episodes that ended in the iteration", "count"),
    Metric(
        "rollout/success_rate",
        "fraction",
        _EPISODES,
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
        _GRPO,
    ),
    Metric(
        "rollout/group_return_std",
        "reward",
        "moments by count",
        "of grpo: standard deviation of the returns in a group, mean over groups",
        _GRPO,
    ),
    Metric(
        "train/groups_without_spread",
        "fraction",
        "moments by count",
        "of grpo: groups whose returns are all equal, from which nothing is learned",
        "DAPO, arXiv:2503.14476",
    ),
    Metric("train/policy_loss", "1", _SAMPLES, "negative clipped surrogate", f"{_PPO}, eq. 7"),
    Metric(
        "train/value_loss",
        "reward²",
        _SAMPLES,
        "(V - R)² / 2 against the GAE returns R, clipped or not, before ppo.value_coef",
        f"{_PPO}, eq. 9",
    ),
    Metric("train/entropy", "nats", _SAMPLES, "entropy of pi, before ppo.entropy_coef", f"{_PPO}, eq. 9"),
    Metric(
        "train/approx_kl",
        "nats",
        _SAMPLES,
        "k3 = mean((r - 1) - log r), r = new / old probability of the action taken",
        "Schulman, http://joschu.net/blog/kl-approx.html",
    ),
    Metric(
        "train/clip_fraction",
        "fraction",
        _SAMPLES,
        "samples with |r - 1| > ppo.clip_coef",
        f"{_PPO}, eq. 7",
    ),
    Metric(
        "train/kl_reference",
        "nats",
        _SAMPLES,
        "of grpo with ppo.kl_coef: k3 of KL(pi || pi_ref), pi_ref the policy that the run began with",
        f"{_GRPO}, eq. 4",
    ),
    Metric(
        "train/ratio_outliers",
        "fraction",
        _SAMPLES,
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
        f"{_PPO}, algorithm 1",
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
    Metric("time/t_iter", "s", PER_RANK, "the whole iteration without evaluation", _TIME),
    Metric("time/t_rollout", "s", PER_RANK, "acting and stepping environments", _TIME),
    Metric("time/t_learn", "s", PER_RANK, "returns, forward, backward, optimizer", _TIME),
    Metric("time/t_sync", "s", PER_RANK, "waiting for others", _TIME),
    Metric("time/t_comm", "s", PER_RANK, "exposed: in collectives once all ranks have arrived", _TIME),
    Metric("time/t_other", "s", PER_RANK, "the rest: logging, checkpoint", _TIME),
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
        _TIME,
    ),
    *(
        Metric(f"time/t_wait_{role}", "s", PER_RANK, f"part of t_sync: waiting for {whom}", _TIME)
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
    Metric("dist/messages", "messages", PER_RANK, "sums, gathers, broadcasts and sends", _TOPOLOGY),
    Metric("dist/bytes", "bytes", PER_RANK, "that this rank handed over in them", _TOPOLOGY),
    *OF_TOPOLOGIES,
    Metric("dist/rho_comm", "fraction", PER_RANK, "t_comm / t_iter", _TIME),
    Metric("dist/rho_sync", "fraction", PER_RANK, "t_sync / t_iter", _TIME),
    *(
        Metric(OF_CURRICULUM + name, unit, "same on all ranks", meaning, "docs/curriculum.md")
        for name, (unit, meaning) in {
            **_OF_TIERS,
            f"{RATE_OF}<tier>": ("fraction", "mean rate of the tasks of a tier, 0 of those never tried"),
        }.items()
    ),
    *(
        Metric(OF_SEARCH + name, unit, "same on all ranks", meaning, "docs/search.md")
        for name, unit, meaning in (
            ("trial", "1", "number of the trial that the iteration was of, from 0"),
            ("order_id", "1", "place of its order among all 120"),
            ("return_mean", "reward", "by the environment alone, mean over the iteration's episodes"),
            ("alignment_mean", "reward", "what keeping to the order brought besides, mean over them"),
            (
                "compliance",
                "fraction",
                "of repairs that kept to it, mean over them; 1/2 of one without a repair",
            ),
            ("repairs", "repairs", "of all of them"),
            ("without_repairs", "fraction", "of them that had no repair"),
            ("passed", "trials", "that passed their gate so far"),
            ("episodes", "episodes", "of all environments so far"),
        )
    ),
    Metric("eval/return_mean", "reward", _EPISODES, "mean undiscounted return", _GREEDY),
    Metric("eval/return_median", "reward", _EPISODES, "median return", _GREEDY),
    Metric(
        "eval/return_iqm",
        "reward",
        _EPISODES,
        "mean of the returns after the lowest and the highest quarter are dropped",
        "rliable, arXiv:2108.13264",
    ),
    Metric("eval/return_std", "reward", _EPISODES, "standard deviation, divided by n", _GREEDY),
    Metric("eval/return_min", "reward", _EPISODES, "lowest return", _GREEDY),
    Metric("eval/return_max", "reward", _EPISODES, "highest return", _GREEDY),
    Metric("eval/length_mean", "steps", _EPISODES, "mean episode length", _GREEDY),
    Metric("eval/episodes", "episodes", "sum", "episodes of the evaluation", "count"),
    Metric(
        "eval/success_rate",
        "fraction",
        _EPISODES,
        "episodes of text that achieved their task, of those whose environment tells (is_success in its info)",
        _GREEDY,
    ),
    Metric(f"{SUCCESS_OF}<tier>", "fraction", _EPISODES, "the same of the tasks of a tier", _GREEDY),
    Metric("eval/t_eval", "s", "rank 0", "duration, in neither t_iter nor wall_s", _TIME),
)

PER_RANK_NAMES = frozenset(m.name for m in METRICS if m.reduction == PER_RANK)
GLOBAL_NAMES = frozenset(m.name for m in METRICS if m.reduction != PER_RANK)
OF_TASK = "task/"  # what names begin with that are listed by a task's journal (ddppo/run/records/journal.py)
# In the order of the table; t_iter is the sum of the exclusive parts.
WAIT_NAMES = tuple(f"time/t_wait_{role}" for role in ROLES)  # of t_sync, where there are such roles
TIME_NAMES = tuple(m.name for m in METRICS if m.name.startswith("time/") and m.name not in WAIT_NAMES)
EXCLUSIVE_PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")

_SAID_BY_GLOBAL = {"rollout/local_steps", "rollout/local_fps"}  # rollout/steps and rollout/fps


def check_names(names: Iterable[str], *, per_rank: bool) -> None:
    """Raise KeyError, with near matches, for a name that is not in the table as per rank, or as global."""
    listed = PER_RANK_NAMES if per_rank else GLOBAL_NAMES
    for name in names:
        if name in listed or (name.startswith((OF_TASK, OF_CURRICULUM, SUCCESS_OF)) and not per_rank):
            continue
        kind, other = ("per rank", "global") if per_rank else ("global", "per rank")
        if name in PER_RANK_NAMES | GLOBAL_NAMES:
            raise KeyError(
                f"metric {name} is {other} in the table of ddppo/run/records/metrics.py, not {kind}"
            )
        near = difflib.get_close_matches(name, sorted(listed), n=3, cutoff=0.6)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise KeyError(
            f"{kind} metric {name} is not listed in ddppo/run/records/metrics.py: add it there{hint}"
        )


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


def markdown() -> str:
    """Return METRICS as the table of docs/metrics.md."""
    lines = ["| name | unit | reduction over ranks | meaning | source |", "|---|---|---|---|---|"]
    for m in METRICS:
        # A bare | would end the cell.
        cells = [f"`{m.name}`", m.unit, m.reduction, m.meaning, m.source]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
