"""Write the table of docs/topologies.md: which work runs under which topology, and why a cell is refused.

    python docs/topologies.py

Every cell is a command line that is checked as `python -m ddppo.train` checks it. tests/distributed/test_cells.py runs
the cells, and compares the results with the page.
"""

import sys
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from ddppo.errors import ConfigError  # noqa: E402
from ddppo.launch.arguments import composed  # noqa: E402
from ddppo.launch.checks import check  # noqa: E402

PAGE = CHECKOUT / "docs" / "topologies.md"
BEGIN, END = "<!-- cells: python docs/topologies.py -->", "<!-- end of cells -->"

# Kinds of work, and the command line of each: small, so that a test may run it.
WORK = {
    "PPO": ["env=cartpole", "ppo.rollout_steps=16", "ppo.total_steps=256"],
    "PPO with memory": ["env=tmaze", "model=gru", "ppo.rollout_steps=16", "ppo.total_steps=256"],
    "GRPO": ["env=cartpole", "ppo=grpo", "ppo.group_size=4", "ppo.rollout_steps=30", "ppo.total_steps=300"],
    "REINFORCE": [
        "env=cartpole",
        "algorithm=reinforce",
        "algorithm.rollout_steps=30",
        "algorithm.total_steps=300",
    ],
    "DQN": ["env=cartpole", "algorithm=dqn", "algorithm.learning_starts=100", "algorithm.total_steps=512"],
    "SAC": ["env=pendulum", "algorithm=sac", "algorithm.learning_starts=100", "algorithm.total_steps=256"],
    "GRPO on text": [
        "env=cloud",
        "env.max_turns=2",
        "env.num_envs=8",
        "ppo=cloud",
        "ppo.group_size=4",
        "ppo.total_steps=60",
    ],
    "order search": ["experiment=workflows", "env.num_envs=20", "search.budget_episodes=40"],
    "circuits": [
        "experiment=circuits/train",
        "env.num_envs=8",
        "env.backend=auto",
        "ppo.rollout_steps=8",
        "ppo.total_steps=128",
    ],
}
RANKS = {
    "ddp": 2,
    "ddp_preempt": 2,
    "sync_actors": 3,
    "async_actors": 3,
    "multi_learner": 4,
    "env_workers": 3,
    "central_inference": 2,
}


def arguments(work: str, topology: str) -> list[str]:
    """Return the command line of a cell."""
    return [
        *WORK[work],
        f"distributed={topology}",
        f"dist.world_size={RANKS[topology]}",
        "dist.oversubscribe=warn",
    ]


def refusal(work: str, topology: str) -> str | None:
    """Return why a cell is refused; None if it is not."""
    try:
        check(composed(arguments(work, topology)), local_world_size=RANKS[topology])
    except ConfigError as e:
        return str(e)
    return None


def table(refusal: Callable[[str, str], str | None] = refusal) -> str:
    """Return the table and the refusals below it, as they stand on the page. refusal: why a cell is refused."""
    reasons: dict[str, int] = {}
    lines = ["| work | " + " | ".join(f"`{name}`" for name in RANKS) + " |", "|---" * (len(RANKS) + 1) + "|"]
    for work in WORK:
        cells = []
        for topology in RANKS:
            why = refusal(work, topology)
            cells.append("yes" if why is None else f"no ({reasons.setdefault(why, len(reasons) + 1)})")
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {why}" for why, number in reasons.items()]
    return "\n".join([*lines, "", *notes])


def with_table(page: str, refusal: Callable[[str, str], str | None] = refusal) -> str:
    """Return the page with the table as it is now, or would be if `refusal` said why cells are refused."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(refusal)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
