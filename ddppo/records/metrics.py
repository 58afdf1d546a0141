"""The table of metrics: every number that a run records has its name, unit, reduction and source here.

To add a metric, add a row to one of the tables below; a name that is in no table raises KeyError. The file ends with
`IterationReport`, the numbers of one iteration. `python -m ddppo.records.metrics` prints the table of docs/metrics.md.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddppo.plugins import added, imported

# -- A row of the table, and words that rows share.


PER_RANK = "per rank"  # the reduction of metrics that stay one number for each rank


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table."""

    name: str  # group/name, as in metrics.jsonl; <name> stands for any text
    unit: str
    reduction: str  # how the values of the ranks become one, or PER_RANK
    meaning: str
    source: str  # a paper's equation, a page of docs/, or "count"


# Sources and reductions that several rows share.
TIME = "docs/metrics.md, Time"
TOPOLOGY = "docs/topologies.md"
PPO = "PPO, arXiv:1707.06347"
DDPPO = "DD-PPO, arXiv:1911.00357"
GRPO = "GRPO, arXiv:2402.03300"
SAMPLES = "mean by count"
EPISODES = "over all episodes"
GREEDY = "deterministic evaluation"

# Prefixes of names that the table does not list one by one.
SUCCESS_RATE_PREFIX = "eval/success_rate_"  # + name of a tier
REWARD_PREFIX = "reward/"  # + name of a part of the reward
LOSS_PREFIX = "loss/"  # + name of a loss term of ppo.losses
ALGORITHM_PREFIX = "algorithm/"  # + name that an algorithm's learn returns
USER_PREFIX = "user/"  # + name that a function of log.metrics returns
ENV_PREFIX = "env/"  # + name of a number in an episode's last info
EVAL_ENV_PREFIX = "eval/env/"  # the same in an evaluation
TASK_PREFIX = "task/"  # + name that the task's journal lists (records/recorder.py)


# -- Evaluation.


EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric(
        f"{USER_PREFIX}<name>",
        "yours",
        "mean by count, or sum",
        "your own metric (log.metrics)",
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
        "episodes that achieved their task / episodes that say so, by is_success or success in their last info",
        GREEDY,
    ),
    Metric(
        f"{EVAL_ENV_PREFIX}<name>",
        "the task's",
        EPISODES,
        "a number in the info of an episode's last step, as env/<name>",
        GREEDY,
    ),
    Metric(
        f"{SUCCESS_RATE_PREFIX}<tier>",
        "fraction",
        EPISODES,
        "the success rate on the tasks of a tier",
        GREEDY,
    ),
    Metric("eval/t_eval", "s", "rank 0", "duration of the evaluation, in neither t_iter nor wall_s", TIME),
)


# -- Rollouts and updates.


# Training episodes, groups of grpo, statistics of the update, and what on_nonfinite did.
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
        "undiscounted return, mean over the last log.episode_window finished training episodes; "
        "absent until an episode has finished",
        "Gymnasium's reward, before normalisation",
    ),
    Metric("rollout/length_mean", "steps", EPISODES, "length of the same episodes", "count"),
    Metric(
        "rollout/episodes", "episodes", "sum", "training episodes that finished in the iteration", "count"
    ),
    Metric(
        "rollout/success_rate",
        "fraction",
        EPISODES,
        "episodes that achieved their task / episodes that say so, by is_success or success in their last info",
        "count",
    ),
    Metric(
        f"{ENV_PREFIX}<name>",
        "the task's",
        EPISODES,
        "a number in the info of an episode's last step, or in its info['episode'], mean over the episodes of the "
        "iteration; env.backend=sync and pool",
        "docs/environments.md",
    ),
    *(
        Metric(name, unit, EPISODES, f"text tasks: {meaning}", "count")
        for name, unit, meaning in (
            (
                "rollout/truncated",
                "fraction",
                "episodes of the iteration that training cut: ended_by max_turns, tokens or prompt / those not lost",
            ),
            (
                "rollout/tokens_min",
                "tokens",
                "tokens that the policy typed in the shortest of these episodes",
            ),
            ("rollout/tokens_mean", "tokens", "the mean of these episodes"),
            ("rollout/tokens_max", "tokens", "the longest of these episodes"),
            ("rollout/turns_mean", "turns", "turns played in an episode"),
            (
                "rollout/tool_failures",
                "fraction",
                "turns with info['tool_failed'] or without an action / turns; absent if no episode has or reports any",
            ),
            ("rollout/ended_by_terminated", "fraction", "episodes that the task terminated"),
            ("rollout/ended_by_time_limit", "fraction", "episodes that the task truncated"),
            ("rollout/ended_by_max_turns", "fraction", "episodes cut after env.max_turns turns"),
            (
                "rollout/ended_by_tokens",
                "fraction",
                "episodes cut after ppo.rollout_steps tokens; a turn cut short is not played",
            ),
            (
                "rollout/ended_by_prompt",
                "fraction",
                "episodes cut because a prompt or answer did not fit into the tokens that were left",
            ),
        )
    ),
    Metric(
        f"{REWARD_PREFIX}<name>",
        "reward",
        EPISODES,
        "text tasks: a named part of the reward (info['reward_parts']), summed over an episode, mean over the "
        "episodes of the iteration that report it",
        "docs/text.md",
    ),
    Metric(
        f"{REWARD_PREFIX}<name>_std",
        "reward",
        EPISODES,
        "the standard deviation of this sum within a group, mean over groups",
        "docs/text.md",
    ),
    Metric(
        "rollout/failed",
        "rollouts",
        "sum",
        "grpo: lost rollouts, left out of their groups and the update",
        "count",
    ),
    Metric(
        "rollout/group_return_mean",
        "reward",
        "moments by count",
        "grpo: mean over groups of the mean return in a group",
        GRPO,
    ),
    Metric(
        "rollout/group_return_std",
        "reward",
        "moments by count",
        "grpo: mean over groups of the standard deviation of returns in a group",
        GRPO,
    ),
    Metric(
        "train/groups_without_spread",
        "fraction",
        "moments by count",
        "grpo: groups in which all returns are equal, so that their advantages are 0",
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
        "samples with r outside [1 - ppo.clip_coef, 1 + ppo.clip_coef], or of grpo 1 + ppo.clip_coef_high; with "
        "ppo.ratio=sequence r is that of the rollout",
        f"{PPO}, eq. 7",
    ),
    *(
        Metric(f"train/clip_fraction_{side}", "fraction", SAMPLES, f"grpo: samples with {meaning}", source)
        for side, meaning, source in (
            (
                "low",
                "r < 1 - ppo.clip_coef and A < 0, which have no gradient; with ppo.loss=cispo 0",
                f"{PPO}, eq. 7",
            ),
            (
                "high",
                "r > 1 + ppo.clip_coef_high and A > 0, which have no gradient; with ppo.loss=cispo those whose weight "
                "is cut, at any A",
                "DAPO, arXiv:2503.14476, eq. 10",
            ),
        )
    ),
    Metric(
        "train/kl_reference",
        "nats",
        SAMPLES,
        "grpo with ppo.kl_coef: k3 of KL(pi || pi_ref); pi_ref is the policy at the start of the run",
        f"{GRPO}, eq. 4",
    ),
    Metric(
        f"{LOSS_PREFIX}<name>",
        "1",
        SAMPLES,
        "your own loss term, before its coefficient",
        "docs/guide/loss.md",
    ),
    Metric(
        f"{ALGORITHM_PREFIX}<name>",
        "1",
        "same on all ranks",
        "a metric of the algorithm: what its learn returned, besides train/policy_loss, value_loss and entropy",
        "docs/guide/algorithm.md",
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
        "L2 norm of the synchronised gradient before clipping, mean over the iteration's optimizer steps",
        "Pascanu et al., arXiv:1211.5063",
    ),
    Metric(
        "train/learning_rate",
        "1",
        "same on all ranks",
        "step size of Adam in the iteration, for parameters without their own in ppo.learning_rates",
        "arXiv:1412.6980",
    ),
    *(
        Metric(
            f"train/{name}",
            unit,
            "same on all ranks",
            f"ppo.{name} in the iteration, if it has a schedule or a callback has set it",
            "docs/callbacks.md",
        )
        for name, unit in (("clip_coef", "1"), ("entropy_coef", "1"), ("target_kl", "nats"))
    ),
    Metric(
        "train/epochs",
        "epochs",
        "same on all ranks",
        "epochs completed; fewer than ppo.num_epochs if ppo.target_kl stopped the update",
        f"{PPO}, algorithm 1",
    ),
    Metric(
        "train/skipped_batches",
        "batches",
        "same on all ranks",
        "with on_nonfinite=skip_batch: updates undone so far because a number was not finite",
        "docs/faults.md",
    ),
    Metric(
        "train/restores",
        "restores",
        "same on all ranks",
        "with on_nonfinite=restore: returns to a checkpoint so far, each with a smaller step size",
        "docs/faults.md",
    ),
)


# -- Time, messages, and the metrics of topologies.


# Roles of ranks and of their helper processes, and how docs call one of them. A role of a user's topology is "other".
_NAMED_ROLES = {
    "worker": "a worker",
    "learner": "the learner",
    "actor": "an actor",
    "environments": "a rank that steps environments",
    "agent": "an agent",
    "observer": "an observer",
    "other": "other ranks",
}
ROLES = tuple(_NAMED_ROLES)

# Measured by a topology on its ranks; each topology measures some of them.
TOPOLOGY_METRICS: tuple[Metric, ...] = (
    Metric("rollout/inference_batch", "rows", PER_RANK, "environments in one forward pass, mean", TOPOLOGY),
    Metric(
        "dist/queue_depth",
        "rollouts",
        PER_RANK,
        "rollouts in the learner's queue when it took one, mean",
        TOPOLOGY,
    ),
    Metric(
        "dist/lag_mean",
        "updates",
        PER_RANK,
        "updates between the parameters that acted and the parameters that the rollout updated, mean over rollouts",
        "IMPALA, arXiv:1802.01561",
    ),
    Metric("dist/lag_max", "updates", PER_RANK, "largest lag; at most dist.max_lag", TOPOLOGY),
    *(
        Metric(
            f"dist/lag_{name}",
            "rollouts",
            PER_RANK,
            f"rollouts in the update with a lag of {meaning}",
            TOPOLOGY,
        )
        for name, meaning in (
            ("0", "0"),
            ("1", "1"),
            ("2_3", "2 or 3"),
            ("4_7", "4 to 7"),
            ("8", "8 or more"),
        )
    ),
    Metric(
        "dist/refused",
        "rollouts",
        PER_RANK,
        "rollouts left out because their lag exceeded dist.max_lag",
        TOPOLOGY,
    ),
    Metric(
        "dist/preempted_fraction",
        "fraction",
        PER_RANK,
        "ddp_preempt: share of the rollout that was cut off, 1 - steps / ppo.rollout_steps",
        DDPPO,
    ),
    Metric(
        "dist/awaited_ranks",
        "ranks",
        PER_RANK,
        "ddp_preempt: ranks that must finish their rollouts before the others are cut off",
        TOPOLOGY,
    ),
    Metric(
        "dist/restarts",
        "processes",
        PER_RANK,
        "processes started again after they were lost, or sessions reopened with a server, so far",
        TOPOLOGY,
    ),
    Metric(
        "rollout/env_restarts",
        "environments",
        PER_RANK,
        "environments made again so far because their process or session was lost; an episode lost with them is in "
        "dist/lost_episodes",
        TOPOLOGY,
    ),
    Metric(
        "dist/lost_episodes",
        "episodes",
        PER_RANK,
        "episodes cut so far because their process or session was lost, or because a text environment raised",
        TOPOLOGY,
    ),
    *(
        Metric(name, unit, PER_RANK, f"text tasks: {meaning}", "docs/text.md")
        for name, unit, meaning in (
            ("rollout/turns", "turns", "turns played in the iteration"),
            (
                "rollout/cut_observations",
                "texts",
                "prompts and answers longer than model.obs_tokens, which were cut",
            ),
            ("rollout/tokens_per_s", "tokens/s", "tokens generated by the policy / t_generate"),
            (
                "rollout/t_generate",
                "s",
                "part of t_rollout: forward passes over prompts and generated tokens",
            ),
            (
                "rollout/t_answers",
                "s",
                "part of t_rollout: waiting for environments with nothing to generate",
            ),
        )
    ),
)

# Formulas of the times: records/timing.py.
TIME_METRICS: tuple[Metric, ...] = (
    Metric("time/t_iter", "s", PER_RANK, "the whole iteration without evaluation", TIME),
    Metric("time/t_rollout", "s", PER_RANK, "choosing actions and stepping environments", TIME),
    Metric("time/t_learn", "s", PER_RANK, "returns, forward, backward, optimizer", TIME),
    Metric("time/t_sync", "s", PER_RANK, "waiting for other ranks", TIME),
    Metric(
        "time/t_comm",
        "s",
        PER_RANK,
        "exposed communication: time in collectives after the last rank has entered",
        TIME,
    ),
    Metric("time/t_other", "s", PER_RANK, "the rest: logging, checkpoints", TIME),
    Metric(
        "time/t_checkpoint",
        "s",
        PER_RANK,
        "part of t_other: saving a checkpoint after the iteration before this one; 0 if none was saved",
        "docs/checkpoints.md",
    ),
    Metric(
        "time/t_comm_total",
        "s",
        PER_RANK,
        "t_comm + communication that overlapped with backward; not one of the parts of t_iter",
        TIME,
    ),
    *(
        Metric(f"time/t_wait_{role}", "s", PER_RANK, f"part of t_sync: waiting for {named}", TIME)
        for role, named in _NAMED_ROLES.items()
    ),
    Metric(
        "dist/messages", "messages", PER_RANK, "sums, gathers, broadcasts and sends of this rank", TOPOLOGY
    ),
    Metric("dist/bytes", "bytes", PER_RANK, "bytes that this rank handed over in its messages", TOPOLOGY),
    Metric(
        "dist/device_memory",
        "bytes",
        PER_RANK,
        "the most bytes that tensors took on this rank's accelerator in the iteration; absent on a CPU",
        "docs/devices.md",
    ),
    *TOPOLOGY_METRICS,
    Metric("dist/rho_comm", "fraction", PER_RANK, "t_comm / t_iter", TIME),
    Metric("dist/rho_sync", "fraction", PER_RANK, "t_sync / t_iter", TIME),
)

WAIT_NAMES = tuple(f"time/t_wait_{role}" for role in ROLES)  # parts of t_sync
TIME_NAMES = tuple(m.name for m in TIME_METRICS if m.name.startswith("time/") and m.name not in WAIT_NAMES)
EXCLUSIVE_PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")  # they sum to t_iter


# -- The whole table, and the check that a name is in it.


METRICS: tuple[Metric, ...] = (*LEARNING_METRICS, *TIME_METRICS, *EVALUATION_METRICS)

PER_RANK_NAMES = frozenset(m.name for m in METRICS if m.reduction == PER_RANK)
GLOBAL_NAMES = frozenset(m.name for m in METRICS if m.reduction != PER_RANK)
_OPEN_PREFIXES = (
    ENV_PREFIX,
    EVAL_ENV_PREFIX,
    TASK_PREFIX,
    REWARD_PREFIX,
    LOSS_PREFIX,
    ALGORITHM_PREFIX,
    USER_PREFIX,
    SUCCESS_RATE_PREFIX,
)  # any name may follow


@functools.cache
def plugin_metrics() -> tuple[Metric, ...]:
    """Return the rows that plugins add to the table; none of them is per rank."""
    return tuple(row for path in added("metrics").values() for row in imported(path))


def check_names(names: Iterable[str], *, per_rank: bool) -> None:
    """Raise KeyError, with near matches, for a name that the table does not list as per rank, or as global."""
    # The common case first: the name is in the table, or begins with a prefix that is open.
    listed = PER_RANK_NAMES if per_rank else GLOBAL_NAMES
    for name in names:
        if name in listed or (name.startswith(_OPEN_PREFIXES) and not per_rank):
            continue
        if not per_rank and any(_matches(row, name) for row in plugin_metrics()):
            continue
        # A mistake: either the wrong kind, or a name that is not listed.
        kind, other = ("per rank", "global") if per_rank else ("global", "per rank")
        if name in PER_RANK_NAMES | GLOBAL_NAMES:
            raise KeyError(f"metric {name} is {other} in the table of ddppo/records/metrics.py, not {kind}")
        near = difflib.get_close_matches(name, sorted(listed), n=3, cutoff=0.6)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise KeyError(f"{kind} metric {name} is not listed in ddppo/records/metrics.py: add it there{hint}")


def _matches(row: Metric, name: str) -> bool:
    """Return whether a row describes the metric `name`; the row loss/<name> describes all that begin with loss/."""
    # A row with <name> stands for a family of metrics.
    start, placeholder, _ = row.name.partition("<")
    return name.startswith(start) if placeholder else name == start


def markdown() -> str:
    """Return METRICS and the rows of plugins as the table of docs/metrics.md."""
    lines = ["| name | unit | reduction over ranks | meaning | source |", "|---|---|---|---|---|"]
    for m in (*METRICS, *plugin_metrics()):
        # An unescaped | would end the table's cell.
        cells = [f"`{m.name}`", m.unit, m.reduction, m.meaning, m.source]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


# -- Numbers of a task's infos.


def info_metrics(means: Mapping[str, float], prefix: str, success_rate: str) -> dict[str, float]:
    """Return the means of infos as metrics, and once more the success rate if they have one."""
    found = {prefix + name: mean for name, mean in means.items()}
    for name in ("is_success", "success"):
        if name in means:
            return found | {success_rate: means[name]}
    return found


# -- The numbers of one iteration.


# rollout/steps and rollout/fps say the same over all ranks.
_NOT_AVERAGED = {"rollout/local_steps", "rollout/local_fps"}


@dataclass(frozen=True, slots=True)
class IterationReport:
    """The numbers of one iteration. Raises KeyError for a metric that is not in the table."""

    iteration: int  # counted from 1
    env_steps: int  # of all ranks since the start of training, this iteration included
    wall_s: float  # seconds of training so far, without evaluation; it continues across resumes
    rank_metrics: tuple[dict[str, float], ...]  # the per-rank metrics of each rank
    global_metrics: dict[str, float]
    resumed: bool = False  # whether a resumed run began with this iteration; set if read from metrics.jsonl

    def __post_init__(self) -> None:
        assert self.rank_metrics, f"iteration {self.iteration} reports no rank"
        for metrics in self.rank_metrics:
            check_names(metrics, per_rank=True)
        check_names(self.global_metrics, per_rank=False)

    def rank_mean(self, name: str) -> float | None:
        """Return the mean over ranks of a per-rank metric, or None if no rank has it."""
        # Ranks of a topology need not all have a metric.
        values = [metrics[name] for metrics in self.rank_metrics if name in metrics]
        return sum(values) / len(values) if values else None

    def scalars(self) -> dict[str, float]:
        """Return the global metrics, and the per-rank metrics as means over the ranks that have them."""
        names = {name for metrics in self.rank_metrics for name in metrics if name not in _NOT_AVERAGED}
        return self.global_metrics | {name: self.rank_mean(name) or 0.0 for name in names}


if __name__ == "__main__":
    print(markdown(), end="")
