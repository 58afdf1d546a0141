"""How often does chance solve a task of the cloud? A policy that types every allowed token equally often.

python -m experiments.cloud.chance episodes=40 tiers=warm-up,beginner seed=0
"""

import sys
from collections import defaultdict

import numpy as np

from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.tokenizer import CloudTokens

TURNS = (6, 10, 15)


def main(episodes: int, tiers: list[str], seed: int) -> None:
    env, tokens, random = CloudEnv(), CloudTokens(turn_tokens=8, obs_tokens=64), np.random.default_rng(seed)
    print(f"{len(tokens.forms)} operations, {tokens.size} tokens; {episodes} episodes a task, seed {seed}")
    print(
        f"{'task':<32}{'tier':<14}" + "".join(f"{f'in {turns}':>8}" for turns in TURNS) + "  best score, mean"
    )
    of_tier = defaultdict(list)
    for name, task in env.tasks.items():
        if task.tier not in tiers:
            continue
        played = [play(env, tokens, random, name, seed=at) for at in range(episodes)]
        row = [np.mean([at <= turns for at, _ in played]) for turns in TURNS] + [
            np.mean([best for _, best in played])
        ]
        of_tier[task.tier].append(row)
        print(f"{name:<32}{task.tier:<14}" + _shown(row), flush=True)
    for tier, rows in of_tier.items():
        print(f"{f'all {len(rows)}':<32}{tier:<14}" + _shown(np.mean(rows, axis=0)))


def play(
    env: CloudEnv, tokens: CloudTokens, random: np.random.Generator, task: str, seed: int
) -> tuple[float, float]:
    """Play one episode; return the turn in which it was solved (inf: never), and its best score."""
    prompt, _ = env.reset(seed=seed, options={"task": task})
    dialogue, turn, best, is_over, info = tokens.begin(prompt), 0, 0.0, False, {}
    while not is_over:
        while not dialogue.is_over:
            dialogue.push(int(random.choice(np.flatnonzero(dialogue.allowed()))))
        observation, _, terminated, truncated, info = env.step(dialogue.action())
        dialogue.observe(observation)
        turn, best, is_over = turn + 1, max(best, info["score"]), terminated or truncated
    return (turn if info["is_success"] else float("inf")), best


def _shown(row) -> str:
    return "".join(f"{value:>8.3f}" for value in row)


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    main(
        int(given.get("episodes", 40)),
        given.get("tiers", "warm-up,beginner").split(","),
        int(given.get("seed", 0)),
    )
