"""The command `python -m my_project <run folder>`: watch the policy of a run push the point."""

import sys
from dataclasses import dataclass

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.options import door, parse

USAGE = "python -m my_project <run folder> [key=value ...]"


@dataclass
class Options:
    run: str = setting(MISSING, "a run folder of ddppo.train env=my_project")
    seed: int = setting(0, "of the episode", low=0)


@door()  # prints errors of ddppo as one sentence
def main() -> None:
    options = parse(Options, sys.argv[1:], path="run", usage=USAGE)
    from ddppo import load_policy
    from my_project.envs import Reach

    policy, env = load_policy(options.run), Reach()
    obs, _ = env.reset(seed=options.seed)
    for step in range(50):
        line = [" "] * 41
        line[round((env.target + 2) * 10)] = "x"
        line[round((env.position + 2) * 10)] = "o"
        print(f"{step:3} |{''.join(line)}|")
        obs, *_ = env.step(policy(obs))


if __name__ == "__main__":
    main()
