"""How often does a model solve each task? Plays sampled episodes, and writes their records (docs/rollouts.md).

python experiments/real_model/success.py out=first.jsonl episodes=8 env=cloud model=hf model.hf_path=/tmp/smollm2 ...
python experiments/real_model/success.py out=grpo.jsonl episodes=8 run=/tmp/grpo env=cloud model=hf ...

All words but those of `OWN` are settings of `ddppo.train`: which tasks, how many turns and tokens. With `run`, the
model is that of a run folder. `env.num_envs` episodes are played side by side. Tokens are sampled as in training.
learning.sh has the commands of the experiment. (`ddppo.evaluate` does this for run folders; a model that has not been
trained yet has none.)
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ddppo.domains.text.evaluation import TextEvaluator
from ddppo.domains.text.rollouts import RolloutRecord
from ddppo.envs.probing.probe import probe
from ddppo.files import jsonable
from ddppo.loop.evaluation import Policy
from ddppo.models.build import build_model
from ddppo.policies.loading import trained
from experiments.real_model.supervised import arguments

OWN = {"out": "", "run": "", "episodes": "8", "play_seed": "0"}


def wilson(won: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate by Wilson's formula (Wilson 1927), which holds near 0 and 1 too."""
    z, rate = 1.96, won / of
    middle, half = rate + z * z / (2 * of), z * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of))
    return max(0.0, middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def table(records: Iterable[RolloutRecord]) -> str:
    """Return the success of each tier with its interval."""
    of_tier: dict[str, list[bool]] = {}
    for record in records:
        of_tier.setdefault(str(record.tier), []).append(bool(record.is_success))
    lines = []
    for tier, won in of_tier.items():
        low, high = wilson(sum(won), len(won))
        lines.append(
            f"{tier}: {sum(won)} of {len(won)} solved, {sum(won) / len(won):.3f} [{low:.3f}, {high:.3f}]"
        )
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    options, config = arguments(words, OWN)
    # 1. The model: as its folder has it, or as a run has trained it.
    spec = probe(config.env)
    if options["run"]:
        found = trained(options["run"])
        config, policy = replace(found.config, env=config.env), replace(found.policy, spec=spec)
    else:
        policy = Policy(build_model(spec, config.model, config.seed, torch.float32), None, spec)
    # 2. Episode j plays task j modulo their number.
    evaluator = TextEvaluator(policy, config, keeps=True)
    num_episodes = int(options["episodes"]) * len(spec.tasks or {})

    def progress() -> None:
        print(f"{len(evaluator.rollouts)} of {num_episodes} episodes", flush=True)

    seed = int(options["play_seed"])
    evaluator.play([range(num_episodes)], config.env.num_envs, seed, deterministic=False, check_stop=progress)
    # 3. The records, a line each.
    print(table(evaluator.rollouts))
    lines = [json.dumps(jsonable(asdict(record))) for record in evaluator.rollouts]
    Path(options["out"]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
