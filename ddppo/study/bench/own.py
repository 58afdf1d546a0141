"""What a user would bring: a loss term (workload W5), a network (W6), a task (W8) and an algorithm (W9).

All are written as docs/guide does it.

Neither is faster than a user's would be: nothing here knows the code that runs it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from ddppo.algorithms.contract import Algorithm, Part, Step, Transitions
from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting
from ddppo.config.model_settings import MlpSettings
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.ppo.advantages import gae
from ddppo.ppo.losses import Samples
from ddppo.spaces import EnvSpec, each

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def undecided(samples: Samples) -> torch.Tensor:
    """Return KL(uniform || pi) in nats, -log n - mean log pi, for Discrete actions with n choices."""
    log_probs = samples.params.log_softmax(dim=-1)
    return -math.log(log_probs.shape[-1]) - log_probs.mean(dim=-1)


class Plain(ActorCritic):
    """Two stacks of linear layers, one for the policy and one for the values, over one vector of numbers.

    Layers begin as torch.nn.Linear does, but for the last one of the policy. The built-in MLP has as many parameters if
    its hidden sizes are the same.
    """

    def __init__(self, spec: EnvSpec, config: MlpSettings) -> None:
        super().__init__(spec, config)
        inputs: Any = spec.obs
        self.policy = self._stack(inputs.shape[0], self.num_params, config)
        self.critic = self._stack(inputs.shape[0], 1, config)
        last: Any = self.policy[-1]
        with torch.no_grad():
            last.weight.mul_(0.01)  # the first policy prefers no action

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]`; used in learning."""
        return self.policy(obs), self.critic(obs).squeeze(-1)

    def action_params(self, obs: Obs) -> torch.Tensor:
        """Return action parameters alone; used in acting."""
        return self.policy(obs)

    def value(self, obs: Obs) -> torch.Tensor:
        """Return values alone; used for the states after a rollout."""
        return self.critic(obs).squeeze(-1)

    @staticmethod
    def _stack(inputs: int, outputs: int, config: MlpSettings) -> nn.Sequential:
        """Return linear layers of model.hidden_sizes with activations between them, and a last one with the outputs."""
        layers: list[nn.Module] = []
        for width in config.hidden_sizes:
            layers += [nn.Linear(inputs, width), _ACTIVATIONS[config.activation]()]
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@dataclass
class OwnPPOSettings(AlgorithmSettings):
    """Settings of `OwnPPO`, as ddppo's PPO has them."""

    learning_rate: float = setting(3e-4, "Adam step size at the start")
    num_epochs: int = setting(4, "passes over the batch")
    num_minibatches: int = setting(4, "minibatches of an epoch")
    gamma: float = setting(0.99, "discount")
    gae_lambda: float = setting(0.95, "lambda of GAE")
    clip_coef: float = setting(0.2, "range of the probability ratio")
    value_coef: float = setting(0.5, "weight of the value loss")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    max_grad_norm: float = setting(0.5, "largest norm of a gradient")


class OwnPPO(Algorithm):
    """PPO by the contract of algorithms alone; a test holds it to the parameters of ddppo's own PPO."""

    settings_class = OwnPPOSettings
    records = ("logprobs",)
    needs_successors = True
    max_lag = None

    def parts(self) -> Mapping[str, Part]:
        """Return one part, with a step size that falls linearly to 0."""
        learning_rate = self.settings.learning_rate * (1.0 - self.progress)
        return {"all": Part(learning_rate, max_grad_norm=self.settings.max_grad_norm, adam_eps=1e-5)}

    def learn(self, rollout: Transitions, step: Step) -> Mapping[str, float]:
        """Improve the clipped surrogate of the rollout, in epochs of minibatches."""
        settings, shape = self.settings, rollout.rewards.shape
        with torch.no_grad():
            values = self.model.value(each(lambda x: x.flatten(0, 1), rollout.obs)).view(shape)
            next_values = self.model.value(each(lambda x: x.flatten(0, 1), rollout.successors())).view(shape)
        advantages = gae(
            rollout.rewards, values, next_values, rollout.terminated, rollout.truncated, rollout.valid,
            gamma=settings.gamma, gae_lambda=settings.gae_lambda,
        )  # fmt: skip
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


class Hovering(gym.Env):
    """A drone that keeps its height by two thrusts, of which a step takes 64 small steps in plain Python (30 us): W8.

    Observations are height, speed, battery and wind `[4]`; an episode ends on the ground or after 300 steps.
    """

    observation_space = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin at height 1, with a wind of this episode."""
        super().reset(seed=seed)
        self._height, self._speed, self._battery, self._num_steps = 1.0, 0.0, 1.0, 0
        self._wind = float(self.np_random.normal(0.0, 0.3))
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Push with 6 or 14 m/s2 against 9.81 of gravity for .08 s; the reward is nearness to height 1, 0 to 1."""
        thrust = 14.0 if action else 6.0
        for _ in range(64):
            drag = 0.1 * self._speed * abs(self._speed)
            self._speed += 0.00125 * (thrust * (0.8 + 0.2 * self._battery) - 9.81 - drag + self._wind)
            self._height = min(self._height + 0.00125 * self._speed, 9.0)
            self._battery = max(self._battery - 2.5e-7 * thrust, 0.0)
        self._num_steps += 1
        reward = math.exp(-abs(self._height - 1.0))
        return self._obs(), reward, self._height < 0.0, self._num_steps == 300, {}

    def _obs(self) -> np.ndarray:
        speed = max(-10.0, min(10.0, self._speed))
        return np.array([max(self._height, -1.0), speed, self._battery, self._wind], dtype=np.float32)


gym.register("Hovering-v0", f"{__name__}:Hovering")
