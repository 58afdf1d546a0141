"""Tasks that live on a device: tensors in, tensors out, for thousands of environments at once (env.backend=device).

`DeviceTask` has what the tasks share: masked resets from each environment's own seed, time limits, true final
observations and exact states. A task adds its equations. No operation waits for the device.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ddppo.device_random import bits, uniform
from ddppo.envs.tensor_env import TensorStep
from ddppo.models.actor_critic import Obs
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec


class DeviceTask(ABC):
    """E environments with one state vector each, `[E, S]`; a `TensorVecEnv` but for its names."""

    has_final_obs = True
    has_own_streams = True
    num_uniforms: ClassVar[int]  # random numbers that a first state is made of

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        device: torch.device | str,
        max_episode_steps: int,
        dtype: str = "float32",  # of states and rewards
    ) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._limit = max_episode_steps
        # [E] int64. The first state of an episode follows from the seed of its environment and the episode's number.
        self._seeds, self._episodes, self._steps = (
            torch.zeros(num_envs, dtype=torch.int64, device=self.device) for _ in range(3)
        )
        self._numbers = torch.arange(self.num_uniforms, device=self.device)
        self._state = torch.empty(0)  # [E, S], made by `reset`

    # -- The equations of a task.

    @abstractmethod
    def begin(self, u: torch.Tensor) -> torch.Tensor:
        """Return first states `[E, S]` from uniform numbers `[E, num_uniforms]` on [0, 1)."""

    @abstractmethod
    def advance(
        self, state: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the next states `[E, S]`, rewards `[E]` and terminated `[E]`."""

    def observe(self, state: torch.Tensor) -> Obs:
        """Return the observations `[E, *shape]` of states."""
        return state

    def metrics(self, state: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return scalars to log, by name."""
        return {}

    # -- TensorVecEnv.

    def reset(self, seeds: torch.Tensor) -> Obs:
        self._seeds.copy_(seeds)
        self._episodes.zero_()
        self._steps.zero_()
        self._state = self._first_states()
        return self.observe(self._state)

    def step(self, actions: torch.Tensor) -> TensorStep:
        state, rewards, terminated = self.advance(self._state, actions)
        truncated = self._steps.add_(1) >= self._limit
        ended = terminated | truncated
        # Every environment gets a first state, and those whose episode ended take it: a mask instead of a list.
        self._episodes.add_(ended)
        self._steps.mul_(~ended)
        torch.where(ended[:, None], self._first_states(), state, out=self._state)
        return TensorStep(
            self.observe(self._state),
            rewards,
            terminated,
            truncated,
            final_obs=self.observe(state),
            metrics=self.metrics(state),
        )

    def state(self) -> dict[str, Any]:
        return {
            "state": self._state,
            "seeds": self._seeds,
            "episodes": self._episodes,
            "steps": self._steps,
        }

    def restore(self, state: Mapping[str, Any]) -> Obs:
        self._state = state["state"].to(self.device, self.dtype, copy=True)
        for own, name in ((self._seeds, "seeds"), (self._episodes, "episodes"), (self._steps, "steps")):
            own.copy_(state[name])
        return self.observe(self._state)

    def close(self) -> None:  # noqa: B027 (tensors need no closing)
        """Do nothing."""

    def _first_states(self) -> torch.Tensor:
        drawn = bits(self._seeds[:, None], "episode", self._episodes[:, None], self._numbers)
        return self.begin(uniform(drawn, self.dtype))


class CartPole(DeviceTask):
    """CartPole-v1: Barto, Sutton and Anderson 1983; gymnasium/envs/classic_control/cartpole.py.

    State and observation: position, its velocity, angle, its velocity. The reward is 1 in every step.
    """

    num_uniforms = 4

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        seed: int = 0,  # unused: `reset` gets a seed for each environment
        max_episode_steps: int = 500,
        dtype: str = "float32",
    ) -> None:
        spec = EnvSpec(ArraySpec((4,), dtype), ActionSpec("discrete", (2,)))
        super().__init__(spec, num_envs, device, max_episode_steps, dtype)
        self._bounds = torch.tensor([2.4, 12 * 2 * math.pi / 360], dtype=self.dtype, device=self.device)
        self._ones = torch.ones(num_envs, dtype=self.dtype, device=self.device)

    def begin(self, u: torch.Tensor) -> torch.Tensor:
        return u.mul_(0.1).sub_(0.05)

    def advance(
        self, state: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        _, x_dot, theta, theta_dot = state.unbind(1)
        total_mass, polemass_length = 0.1 + 1.0, 0.1 * 0.5
        sin, cos = theta.sin(), theta.cos()
        force = actions.to(self.dtype).mul_(20.0).sub_(10.0)
        temp = force.add_(theta_dot.square().mul_(sin), alpha=polemass_length).div_(total_mass)
        # theta_acc = (g sin - cos temp) / (l (4 / 3 - m cos^2 / M))
        inertia = cos.square().mul_(-0.1 / total_mass).add_(4.0 / 3.0).mul_(0.5)
        theta_acc = sin.mul_(9.8).sub_(cos * temp).div_(inertia)
        x_acc = temp.sub_(cos.mul_(theta_acc), alpha=polemass_length / total_mass)
        # One step of Euler's method, all derivatives at the old state.
        derivative = torch.stack([x_dot, x_acc, theta_dot, theta_acc], dim=1)
        following = torch.add(state, derivative, alpha=0.02)
        terminated = (following[:, ::2].abs() > self._bounds).any(dim=1)
        return following, self._ones, terminated
