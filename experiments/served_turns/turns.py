"""8 environments, 6 turns of 50 ms, in turn and served: `python experiments/served_turns/turns.py [rounds]`."""

import sys
import time
from itertools import repeat

from ddppo.config.settings import EnvConfig
from ddppo.domains.text.turns import make_turns

NUM_ENVS, NUM_TURNS, STEP_S = 8, 6, 0.05


def seconds(backend: str, rounds: int) -> list[float]:
    """Return how long the turns of an episode of every environment took, each round."""
    kwargs = {"step_time_s": STEP_S, "episode_steps": 100}
    env = EnvConfig(id="ddppo/Synthetic-v0", num_envs=NUM_ENVS, backend=backend, kwargs=kwargs)
    turns = make_turns(env, range(NUM_ENVS), 0, 60.0, 0)
    found = []
    for k in range(rounds):
        for i in range(NUM_ENVS):
            turns.begin(i, k, {})
        turns.ready(None)
        began = time.perf_counter()
        for _ in repeat(None, NUM_TURNS):
            for i in range(NUM_ENVS):
                turns.act(i, 0)
            turns.ready(None)
        found.append(time.perf_counter() - began)
    turns.close()
    return found


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for backend in ("sync", "remote"):
        took = sorted(seconds(backend, rounds if backend == "remote" else 2))
        print(f"{backend}: best {took[0]:.3f} s, median {took[len(took) // 2]:.3f} s, of {len(took)}")
