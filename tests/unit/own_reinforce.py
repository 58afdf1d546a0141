"""REINFORCE with a baseline: a step up the log-probability of each action, times how much better its return was."""

from dataclasses import dataclass

import torch

from ddppo.algorithms.contract import Algorithm, AlgorithmSettings, Part
from ddppo.config.fields import setting


@dataclass
class ReinforceSettings(AlgorithmSettings):
    learning_rate: float = setting(1e-2, "step size of Adam; it falls linearly to 0", above=0)
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    rollout_steps: int = setting(500, "steps after which an episode is cut", low=1)


class Reinforce(Algorithm):
    settings_class = ReinforceSettings
    hands_over = "episodes"  # an iteration is one whole episode of every environment

    def parts(self):
        return {"all": Part(self.settings.learning_rate * (1 - self.progress), max_grad_norm=0.5)}

    def learn(self, rollout, step):
        # Returns G_t = r_t + gamma G_{t+1}, for T steps of this learner's E environments.
        valid = rollout.valid  # [T, E], False after the end of an episode
        returns = torch.zeros_like(rollout.rewards)
        running = torch.zeros_like(returns[0])
        for t in reversed(range(len(returns))):
            running = torch.where(valid[t], rollout.rewards[t] + self.settings.gamma * running, 0.0)
            returns[t] = running

        # The policy and its values now, and advantages G - V by moments over all learners.
        params, values = self.model(rollout.obs.flatten(0, 1))
        values = values.view(valid.shape)
        advantages = step.normalized(returns - values.detach(), valid)
        logprobs = self.model.distribution(params).log_prob(rollout.actions.flatten(0, 1)).view(valid.shape)

        # Losses are sums over this learner's steps; step divides by the number of steps of all learners.
        policy_loss = -(advantages * logprobs)[valid].sum()
        value_loss = (values - returns)[valid].square().sum()
        num_steps = step.sum(valid.sum())
        step(policy_loss + 0.25 * value_loss, num_steps)
        return {
            "policy_loss": step.sum(policy_loss) / num_steps,
            "value_loss": step.sum(value_loss) / num_steps,
        }
