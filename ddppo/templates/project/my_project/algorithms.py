"""The algorithm: advantage actor-critic, with one step of Adam an iteration (Mnih et al. 2016, arXiv:1602.01783).

The page docs/guide/algorithm.md of ddppo lists what else an algorithm may define.
"""

import torch

from ddppo.algorithms.contract import Algorithm, Part
from my_project.settings import A2CSettings


class A2C(Algorithm):
    """Returns of several steps, by GAE, and a loss of policy and values over all steps of an iteration."""

    settings_class = A2CSettings
    needs_successors = True  # for the value of what follows each step

    def parts(self):
        learning_rate = self.settings.learning_rate * (1 - self.progress)
        return {"all": Part(learning_rate, max_grad_norm=0.5)}

    def learn(self, rollout, step):
        gamma, gae_lambda, valid = self.settings.gamma, self.settings.gae_lambda, rollout.valid

        # A_t = delta_t + gamma lambda A_{t+1} within an episode, delta_t = r_t + gamma V(s_{t+1}) - V(s_t).
        with torch.no_grad():
            values, next_values = self.model.value(rollout.obs), self.model.value(rollout.successors())
        deltas = rollout.rewards + gamma * next_values * ~rollout.terminated - values
        goes_on = ~(rollout.terminated | rollout.truncated)
        advantages = torch.zeros_like(deltas)
        running = torch.zeros_like(deltas[0])
        for t in reversed(range(len(deltas))):
            running = (deltas[t] + gamma * gae_lambda * running * goes_on[t]) * valid[t]
            advantages[t] = running
        returns = values + advantages
        advantages = step.normalized(advantages, valid)  # by moments of all learners

        # Losses are sums over this learner's steps; step divides them by the number of steps of all learners.
        params, values = self.model(rollout.obs[valid])
        policy = self.model.distribution(params)
        policy_loss = -(advantages[valid] * policy.log_prob(rollout.actions[valid])).sum()
        value_loss = 0.5 * (values - returns[valid]).square().sum()
        count = step.sum(valid.sum())
        step(policy_loss + 0.5 * value_loss - self.settings.entropy_coef * policy.entropy().sum(), count)
        return {"value_loss": step.sum(value_loss) / count}
