"""How often does a model solve each task? Plays sampled episodes, and writes successes and dialogues as JSON.

python experiments/real_model/success.py out=first.json episodes=8 env=cloud model=hf model.hf_path=/tmp/smollm2 ...
python experiments/real_model/success.py out=grpo.json episodes=8 run=/tmp/grpo env=cloud model=hf ...

All words but those of `OWN` are settings of `ddppo.train`: which tasks, how many turns and tokens. With `run`, the model
is that of a run folder. `env.num_envs` episodes are played side by side. Tokens are sampled as in training; with
`greedy=true` the likeliest are typed, one episode a task. learning.sh has the commands of the experiment.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ddppo.config.settings import Config
from ddppo.domains.text.collector import TextCollector
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.turns import make_turns
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model
from ddppo.policies.loading import trained
from ddppo.seeding import action_noise, derived_seed
from experiments.real_model.supervised import arguments

OWN = {"out": "", "run": "", "episodes": "8", "greedy": "false", "play_seed": "0"}


def play(
    config: Config, model: TokenActorCritic, episodes: int, seed: int, *, greedy: bool
) -> list[dict[str, Any]]:
    """Play `episodes` episodes of every task; return task, tier, success, score and text of each."""
    num_envs = config.env.num_envs
    turns = make_turns(config.env, range(num_envs), 0, config.dist.timeout_s, 0)
    tiers, rows = dict(turns.spec.tasks), []
    games = [(task, k) for k in range(1 if greedy else episodes) for task in tiers]
    try:
        collector = TextCollector.from_config(config, turns, model, first_env=0, device=torch.device("cpu"))
        for first in range(0, len(games), num_envs):
            wave = games[first : first + num_envs]
            # Environments without a game of their own play the first one again; its result is not read.
            filled = [*wave, *(num_envs - len(wave)) * wave[:1]]
            collector.reset(
                [derived_seed(seed, "eval", k) for _, k in filled], [{"task": task} for task, _ in filled]
            )
            noise = action_noise(
                seed, first, range(num_envs), collector.num_tokens, model.num_noise, normal=False
            )
            done = {each.env_index: each for each in collector.play(None if greedy else noise)}
            record = collector._record  # its tokens are the dialogue
            for i, (task, k) in enumerate(wave):
                text = collector.tokenizer.decode(record.tokens[i, : record.lengths[i]].tolist())
                rows.append(
                    {
                        "task": task,
                        "tier": tiers[task],
                        "episode": k,
                        "success": bool(collector.achieved[i]),
                        "score": round(done[i].episode_return, 4),
                        "typed_tokens": done[i].length,
                        "text": text,
                    }
                )
            won = sum(row["success"] for row in rows)
            print(f"{len(rows)} of {len(games)} episodes, {won} solved; {collector.measured()}", flush=True)
    finally:
        turns.close()
    return rows


def wilson(won: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate by Wilson's formula (Wilson 1927), which holds near 0 and 1 too."""
    z, rate = 1.96, won / of
    middle, half = rate + z * z / (2 * of), z * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def main(words: Sequence[str]) -> None:
    options, config = arguments(words, OWN)
    if options["run"]:
        found = trained(options["run"])
        config, model = replace(found.config, env=config.env), found.policy.model
    else:
        model = build_model(probe(config.env), config.model, config.seed, torch.float32)
    assert isinstance(model, TokenActorCritic)
    began = time.perf_counter()
    rows = play(
        config, model, int(options["episodes"]), int(options["play_seed"]), greedy=options["greedy"] == "true"
    )
    for tier in dict.fromkeys(row["tier"] for row in rows):
        won = [row["success"] for row in rows if row["tier"] == tier]
        low, high = wilson(sum(won), len(won))
        print(f"{tier}: {sum(won)} of {len(won)} solved, {sum(won) / len(won):.3f} [{low:.3f}, {high:.3f}]")
    result = {"settings": list(words), "seconds": round(time.perf_counter() - began, 1), "episodes": rows}
    Path(options["out"]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
