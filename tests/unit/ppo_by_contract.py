"""PPO written by the contract of algorithms alone, to compare it with the learner that PPO has of its own."""

from dataclasses import dataclass

import torch

from ddppo.algorithms.contract import Acted, Algorithm, Part
from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting
from ddppo.spaces import each


@dataclass
class PPOByContractSettings(AlgorithmSettings):
    learning_rate: float = setting(3e-4, "Adam step size at the start")
    num_epochs: int = setting(4, "passes over the batch")
    num_minibatches: int = setting(4, "minibatches of an epoch")
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "lambda of GAE")
    clip_coef: float = setting(0.2, "range of the probability ratio")
    value_coef: float = setting(0.5, "weight of the value loss")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    max_grad_norm: float = setting(0.5, "largest norm of a gradient")


def gae(rollout, values, next_values, gamma, gae_lambda):
    """Return A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V(s'_t) - V(s_t), of each episode."""
    advantages, running = torch.zeros_like(values), torch.zeros_like(values[0])
    for t in reversed(range(len(values))):
        goes_on = ~rollout.terminated[t]
        delta = rollout.rewards[t] + gamma * next_values[t] * goes_on - values[t]
        running = delta + gamma * gae_lambda * running * (goes_on & ~rollout.truncated[t])
        running = running * rollout.valid[t]
        advantages[t] = running
    return advantages


class PPOByContract(Algorithm):
    settings_class = PPOByContractSettings
    needs_successors = True
    max_lag = None

    def parts(self):
        learning_rate = self.settings.learning_rate * (1.0 - self.progress)
        return {"all": Part(learning_rate, max_grad_norm=self.settings.max_grad_norm, adam_eps=1e-5)}

    def act(self, obs, mask, noise, memory):
        policy = self.model.distribution(self.model.action_params(obs), mask)
        actions = policy.sample(noise)
        return Acted(actions, {"logprobs": policy.log_prob(actions)})

    def learn(self, rollout, step):
        settings, shape = self.settings, rollout.rewards.shape
        with torch.no_grad():
            values = self.model.value(each(lambda x: x.flatten(0, 1), rollout.obs)).view(shape)
            next_values = self.model.value(each(lambda x: x.flatten(0, 1), rollout.successors())).view(shape)
        advantages = gae(rollout, values, next_values, settings.gamma, settings.gae_lambda)
        flat = {
            "returns": values + advantages,
            "advantages": step.normalized(advantages, rollout.valid),
            "actions": rollout.actions,
            "old": rollout.extras["logprobs"],
        }
        flat = {name: x.flatten(0, 1) for name, x in flat.items()}
        flat["obs"] = each(lambda x: x.flatten(0, 1), rollout.obs)
        for rows, num_valid in step.minibatches(rollout, settings.num_epochs, settings.num_minibatches):
            batch = {name: each(lambda x, rows=rows: x[rows], field) for name, field in flat.items()}
            params, values = self.model(batch["obs"])
            policy = self.model.distribution(params)
            ratio = (policy.log_prob(batch["actions"]) - batch["old"]).exp()
            clipped = ratio.clamp(1 - settings.clip_coef, 1 + settings.clip_coef)
            policy_loss = -torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"]).sum()
            value_loss = 0.5 * (values - batch["returns"]).square().sum()
            entropy = policy.entropy().sum()
            loss = policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy
            step(loss, num_valid)
        return {}
