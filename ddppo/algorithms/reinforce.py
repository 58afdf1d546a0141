"""REINFORCE with a baseline (Williams 1992; Sutton and Barto, "Reinforcement Learning", section 13.4).

Each iteration plays one whole episode in every environment, and makes one step: up the log-probability of each action,
weighted by how much better its return was than the value of its state.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ddppo.algorithms.contract import Algorithm, Part, Step, Transitions
from ddppo.config.algorithm_settings import ReinforceSettings
from ddppo.spaces import each


def returns_to_go(rewards: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return G_t = r_t + gamma * G_{t+1} `[T, E]`, of episodes with reward 0 after their end."""
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * running
        returns[t] = running
    return returns


class Reinforce(Algorithm):
    settings_class = ReinforceSettings
    hands_over = "episodes"

    def parts(self) -> Mapping[str, Part]:
        settings: Any = self.settings
        learning_rate = settings.learning_rate * (1 - self.progress)
        return {"all": Part(learning_rate, max_grad_norm=settings.max_grad_norm)}

    def learn(self, rollout: Transitions, step: Step) -> Mapping[str, float]:
        settings, valid = self.settings, rollout.valid
        rewards = torch.where(valid, rollout.rewards, 0.0)
        returns = returns_to_go(rewards, settings.gamma)[valid]  # [n] of the n steps of whole episodes

        # Log-probabilities and values of these steps by the present parameters.
        obs, actions = each(lambda x: x[valid], rollout.obs), rollout.actions[valid]
        mask = None if rollout.action_mask is None else rollout.action_mask[valid]
        params, values = self.model.evaluate_actions(obs, actions)
        policy = self.model.distribution(params, mask)

        # Advantages G - V, normalised over all learners; then one step. Losses are sums over this learner's steps.
        advantages = torch.zeros_like(rewards)
        advantages[valid] = returns - values.detach()
        advantages = step.normalized(advantages, valid)[valid]
        policy_loss = -(advantages * policy.log_prob(actions)).sum()
        value_loss = 0.5 * (values - returns).square().sum()
        entropy = policy.entropy().sum()
        num_steps = step.sum(len(returns)).item()
        step(
            policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy,
            num_steps,
        )
        sums = step.sum(torch.stack([policy_loss, value_loss, entropy]).detach()) / num_steps
        return dict(zip(("policy_loss", "value_loss", "entropy"), sums.tolist(), strict=True))
