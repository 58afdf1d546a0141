"""Where an iteration's time went, and what ranks and topologies cost."""

from ddppo.run.records.metrics.metric import DDPPO, PER_RANK, TIME, TOPOLOGY, Metric

# Roles that topologies give ranks, or processes of theirs; one of your own goes by "other".
ROLES = ("worker", "learner", "actor", "environments", "agent", "observer", "other")

# What a topology measures on a rank, where it makes sense.
OF_TOPOLOGIES: tuple[Metric, ...] = (
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

OF_TIME: tuple[Metric, ...] = (
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
    *OF_TOPOLOGIES,
    Metric("dist/rho_comm", "fraction", PER_RANK, "t_comm / t_iter", TIME),
    Metric("dist/rho_sync", "fraction", PER_RANK, "t_sync / t_iter", TIME),
)

# In the order of the table; t_iter is the sum of the exclusive parts.
WAIT_NAMES = tuple(f"time/t_wait_{role}" for role in ROLES)  # of t_sync, where there are such roles
TIME_NAMES = tuple(m.name for m in OF_TIME if m.name.startswith("time/") and m.name not in WAIT_NAMES)
EXCLUSIVE_PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")
