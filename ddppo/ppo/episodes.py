"""Acting in whole episodes: every environment plays one, and none goes on into the next iteration."""

import numpy as np
import torch

from ddppo.envs.vec_env import End
from ddppo.ppo.collector import Collector
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.spaces import each


class EpisodeCollector(Collector):
    """Collects one episode of each environment, cut after T steps; rows after its end are not valid.

    An episode whose process was lost has no valid row. Values are 0, for nobody learns any. A batch steps all of its
    environments until the last episode is over; what others answer after their own counts for nothing.
    """

    whole_episodes = True

    @torch.inference_mode()
    def _collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        self._begin()
        ends: list[End] = []
        is_over = np.zeros(self.env.num_envs, dtype=bool)
        last = np.full(self.env.num_envs, self.rollout_steps - 1)
        try:
            for t, step_noise in enumerate(torch.from_numpy(noise).to(self.logprobs.dtype).unbind()):
                self._step(t, step_noise, ends)
                self._num_acted = t + 1
                ended = [i for i in _ended_in(t, ends) if (t, i) not in self._life_losses and not is_over[i]]
                is_over[ended], last[ended] = True, t
                if is_over.all():
                    break
        except Exception:  # as the collector's own
            self._check(ends)
            raise
        self._check(ends)
        return self._finished(is_over, last)

    def _finished(self, is_over: np.ndarray, last: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        """Return the rollout of episodes whose last rows are `last` `[E]`, and those that were not lost."""
        envs, is_within = np.arange(self.env.num_envs), np.arange(self.rollout_steps)[:, None] <= last
        terminated, truncated, valid, episode_start = self.flags
        is_lost = is_over & ~valid[last, envs]  # a step that nobody answered ended it
        for t, i in self._life_losses:
            terminated[t, i] = False
        terminated &= is_within
        truncated &= is_within
        truncated[last, envs] |= ~is_over
        valid &= is_within & ~is_lost
        episode_start[:] = False
        episode_start[0] = valid[0]
        rewards = np.where(valid, self.rewards, 0.0)
        episodes = [
            FinishedEpisode(
                int(last[i]), self.first_env + i, float(rewards[:, i].sum()), int(valid[:, i].sum())
            )
            for i in np.flatnonzero(~is_lost).tolist()
        ]
        masks, _ = self._compute_logprobs(self.rollout_steps)
        nothing = torch.zeros_like(self.logprobs)
        flags = torch.from_numpy(self.flags).to(self.device)
        rollout = Rollout(
            obs=each(lambda x: x[:-1], self.obs),
            actions=self.actions,
            logprobs=self.logprobs,
            values=nothing,
            next_values=nothing,
            rewards=torch.from_numpy(rewards).to(self.device),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=masks,
            raw_obs=each(lambda x: x[:-1], self.raw_obs),
        )
        return rollout, sorted(episodes, key=lambda e: (e.step, e.env_index))


def _ended_in(t: int, ends: list[End]) -> list[int]:
    return ends[-1][1].tolist() if ends and ends[-1][0] == t else []
