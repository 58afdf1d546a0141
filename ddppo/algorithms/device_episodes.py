"""Collecting whole episodes of environments on a device, for REINFORCE and GRPO: the other half of `DeviceCollector`.

`EpisodeCollector` (grpo.py) does the same with environments of the host.
"""

from typing import Any

import numpy as np
import torch

from ddppo.ppo.device_collector import DeviceCollector, HostCopy
from ddppo.ppo.rollout import ENDS, FinishedEpisode, Rollout, Transitions
from ddppo.spaces import each

_LOOKS = 32  # rows between two looks at whether all episodes are over, for which the host waits


class DeviceEpisodes(DeviceCollector):
    """Collects one episode of each environment, cut after T steps.

    Rows after the end of an environment's own episode, in which the simulator already plays another, are not valid.
    Values are 0, and a rollout has log-probabilities for GRPO alone.
    """

    whole_episodes = True

    def collect(self, noise: Any) -> tuple[Transitions, list[FinishedEpisode]]:
        host = self._played(noise)
        with torch.inference_mode():
            return self._episodes(host)

    def _is_done(self, t: int) -> bool:
        if (t + 1) % _LOOKS:
            return False
        terminated, truncated, _ = self.flags[:, : t + 1]
        return bool((terminated | truncated).any(dim=0).all())

    def _episodes(self, host: HostCopy) -> tuple[Transitions, list[FinishedEpisode]]:
        # 1. The row in which each episode ends [E]. What is not over after T rows is truncated there.
        steps, num_envs = self.rewards.shape
        ended = host.terminated | host.truncated  # [rows that were played, E]
        is_over = ended.any(axis=0)
        last = np.where(is_over, ended.argmax(axis=0), steps - 1)
        envs = np.arange(num_envs)
        of_end = np.zeros((2, steps, num_envs), dtype=bool)  # terminated, truncated
        of_end[0, last, envs] = is_over & host.terminated[last, envs]
        of_end[1, last, envs] = ~of_end[0, last, envs]
        self.num_steps = int((last + 1).sum())

        # 2. Back to the device by one copy: the three flags, and which rows count.
        valid = np.arange(steps)[:, None] <= last
        begins = np.zeros_like(valid)
        begins[0] = True
        flags = torch.from_numpy(np.stack([*of_end, begins, valid])).to(self.device, non_blocking=True)
        rewards = self.rewards.to(self.wide).masked_fill(~flags[3], 0.0)
        fields: dict[str, Any] = {
            "obs": each(lambda x: x[:steps], self.obs),
            "actions": self.actions,
            "rewards": rewards,
            "terminated": flags[0],
            "truncated": flags[1],
            "valid": flags[3],
            "episode_start": flags[2],
            "action_mask": None,
            "raw_obs": each(lambda x: x[:steps], self.raw_obs),
        }

        # 3. The episodes, in order of their ends.
        played = np.where(valid[: len(host.rewards)], host.rewards.astype(np.float64), 0.0)
        returns = played.sum(axis=0)
        episodes = [
            FinishedEpisode(int(last[i]), self.first_env + int(i), float(returns[i]), int(last[i]) + 1)
            for i in np.lexsort((envs, last))
        ]
        if not self.learns_by_ratio:
            return Transitions(**fields), episodes
        self.acting.write_logprobs(steps, None)
        no_values = torch.zeros_like(self.logprobs)
        by_task = np.where(of_end[0, last, envs], ENDS.index("terminated"), ENDS.index("time_limit"))
        ended_by = np.where(is_over, by_task, ENDS.index("tokens")).astype(np.int8)
        return Rollout(
            **fields,
            logprobs=self.logprobs,
            values=no_values,
            next_values=no_values,
            ended_by=torch.from_numpy(ended_by).to(self.device, non_blocking=True),
        ), episodes
