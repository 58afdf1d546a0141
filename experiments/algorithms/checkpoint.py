"""Print size and CPU time of a checkpoint's replay buffer: 1,000,000 rows of HalfCheetah, one learner.

PYTHONPATH=. python experiments/algorithms/checkpoint.py
"""

import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ddppo.algorithms.contract import Share
from ddppo.algorithms.replay import ReplayBuffer
from ddppo.ppo.rollout import Transitions
from ddppo.records import checkpoint

NUM_ROWS, NUM_ENVS, NUM_STEPS, OBS, ACTION = 1_000_000, 4, 1000, 17, 6


class Alone:
    """Stands for the `step` of the only learner."""

    envs = torch.arange(NUM_ENVS)
    share = Share(envs, NUM_ENVS, torch.ones(NUM_ENVS, dtype=torch.bool))

    def sum(self, x: torch.Tensor | float) -> torch.Tensor:
        return torch.as_tensor(x, dtype=torch.float64)


def rollout() -> Transitions:
    """Return one whole episode of every environment, cut by its time limit."""
    shape = (NUM_STEPS, NUM_ENVS)
    no, ends = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    ends[-1] = True
    obs = torch.randn(*shape, OBS)
    return Transitions(
        obs=obs, actions=torch.randn(*shape, ACTION), rewards=torch.randn(shape), terminated=no, truncated=ends,
        valid=~no, episode_start=ends.roll(1, 0), action_mask=None, raw_obs=obs, last_obs=obs[0],
        final_obs=torch.randn(NUM_ENVS, OBS), ends=ends.nonzero(),
    )  # fmt: skip


def timed(what: str, call: Any) -> Any:
    start = time.process_time()
    found = call()
    print(f"{what}: {time.process_time() - start:.2f} s of CPU time")
    return found


def main() -> None:
    buffer, step = ReplayBuffer(NUM_ROWS, gamma=0.99), Alone()
    for _ in range(NUM_ROWS // (NUM_ENVS * NUM_STEPS)):
        buffer.add(rollout(), step)  # type: ignore[arg-type]
    state = timed("gather the rows, while training waits", buffer.state)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "replay.pt")
        timed("write the file, in a thread", lambda: checkpoint.save(path, {"replay": state}))
        print(f"file: {path.stat().st_size / 1e6:.0f} MB")
        loaded = SimpleNamespace(**timed("read it", lambda: torch.load(path, weights_only=True)))
    buffer.load(loaded.replay)
    timed("take the rows, with the next rollout", lambda: buffer.add(rollout(), step))  # type: ignore[arg-type]
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
