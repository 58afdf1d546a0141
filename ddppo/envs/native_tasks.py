"""Tasks that live on a device: tensors in, tensors out, for thousands of environments at once (env.backend=device).

`DeviceTask` has what the tasks share: masked resets from each environment's own seed, time limits, true final
observations and exact states. A task adds its equations. No operation waits for the device.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ddppo.device_random import bits, stream, uniform_pairs
from ddppo.envs.tensor_env import TensorStep
from ddppo.models.actor_critic import Obs
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec


class DeviceTask(ABC):
    """E environments with one state vector each, `[E, S]`: a `TensorVecEnv`."""

    has_final_obs = True
    has_own_streams = True
    # Whether kernels of a step may be recorded: `begin`, `advance`, `observe` and `metrics` are functions of their
    # tensors alone, and of tensors of the task that stay the same (TensorVecEnv).
    is_recordable: ClassVar[bool] = False
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
        # [E] int64. The numbers that begin an episode are those of its environment's stream from its place on.
        self._keys, self._places, self._steps = (
            torch.zeros(num_envs, dtype=torch.int64, device=self.device) for _ in range(3)
        )
        self._num_drawn = -(-self.num_uniforms // 2)  # two numbers from each 64 bits
        self._numbers = torch.arange(self._num_drawn, device=self.device)
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
        self._keys.copy_(bits(seeds.to(self.device), "episode"))
        self._places.zero_()
        self._steps.zero_()
        return self.observe(self._kept(self._first_states()))

    def step(self, actions: torch.Tensor) -> TensorStep:
        state, rewards, terminated = self.advance(self._state, actions)
        truncated = self._steps.add_(1) >= self._limit
        ended = terminated | truncated
        # A first state is drawn for every environment. A mask chooses it where an episode ended.
        self._places.add_(ended, alpha=self._num_drawn)
        self._steps.masked_fill_(ended, 0)
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
            "keys": self._keys,
            "places": self._places,
            "steps": self._steps,
        }

    def restore(self, state: Mapping[str, Any]) -> Obs:
        self._kept(state["state"])
        for own, name in ((self._keys, "keys"), (self._places, "places"), (self._steps, "steps")):
            own.copy_(state[name])
        return self.observe(self._state)

    def close(self) -> None:  # noqa: B027 (tensors need no closing)
        """Do nothing."""

    def _kept(self, state: torch.Tensor) -> torch.Tensor:
        """Return the tensor of states, which stays the same from the first `reset` on, with the given numbers."""
        if self._state.shape != state.shape:
            self._state = torch.empty_like(state, dtype=self.dtype, device=self.device)
        return self._state.copy_(state)

    def _first_states(self) -> torch.Tensor:
        drawn = stream(self._keys[:, None], self._places[:, None] + self._numbers)
        return self.begin(uniform_pairs(drawn, self.dtype)[:, : self.num_uniforms])


class TensorCartPole(DeviceTask):
    """CartPole-v1: Barto, Sutton and Anderson 1983; gymnasium/envs/classic_control/cartpole.py.

    State and observation: position, its velocity, angle, its velocity. The reward is 1 in every step.
    """

    is_recordable = True
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


# -- A task in the form of Isaac Lab's and mjlab's locomotion tasks, small enough for a CPU.

_BODY, _JOINTS = 9, 12
# Parts of a state `[E, 48]`: the body (below), joint positions and velocities, the last action, the commands.
_PARTS = (_BODY, _JOINTS, _JOINTS, _JOINTS, 3)
_STAND = 0.3  # height of the body over straight feet, in m


class Quadruped(DeviceTask):
    """A body on four legs of three joints each, which follows commands (forward, sideways, turn) on flat ground.

    Not a rigid-body simulation: legs have no mass. A joint follows its action as a damped spring; a leg that is longer
    than its hip is high pushes the body up as a spring; a foot in contact drags the body along as it moves backwards.
    The body has a height, pitch and roll, their velocities, two horizontal velocities and a turning rate.

    The policy reads "actor": angular velocities, direction of gravity, commands, joints, and its last action, 45
    numbers. The value function also reads "critic": velocities, height and contacts, 8 numbers that a robot lacks.
    An episode terminates if the body is low or tilts, and is truncated after 500 steps of 20 ms.
    """

    is_recordable = True
    num_uniforms = 8

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        seed: int = 0,  # unused: `reset` gets a seed for each environment
        max_episode_steps: int = 500,
        dtype: str = "float32",
    ) -> None:
        spec = EnvSpec(
            {"actor": ArraySpec((9 + 3 * _JOINTS,), dtype), "critic": ArraySpec((8,), dtype)},
            ActionSpec("box", (_JOINTS,), (-2.0,) * _JOINTS, (2.0,) * _JOINTS),
            policy_keys=("actor",),
            value_keys=("actor", "critic"),
        )
        super().__init__(spec, num_envs, device, max_episode_steps, dtype)

        def tensor(*rows: list[float]) -> torch.Tensor:
            return torch.tensor(rows, dtype=self.dtype, device=self.device)

        # Places of the hips relative to the middle of the body, in m: front left, front right, hind left, hind right.
        self._hips_x, self._hips_y = tensor([0.2, 0.2, -0.2, -0.2], [0.1, -0.1, 0.1, -0.1])
        self._command_low, self._command_span = tensor([0.4, -0.2, -0.5], [0.6, 0.4, 1.0])

    def begin(self, u: torch.Tensor) -> torch.Tensor:
        state = u.new_zeros(len(u), sum(_PARTS))
        state[:, 0] = _STAND
        state[:, 1:3] = (u[:, :2] - 0.5) * 0.2  # pitch and roll
        state[:, 3:6] = (u[:, 2:5] - 0.5) * 0.4  # velocities: up, of pitch, of roll
        state[:, -3:] = self._command_low + self._command_span * u[:, 5:8]
        return state

    def advance(
        self, state: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        body, q, q_dot, last, command = state.split(_PARTS, dim=1)
        actions = actions.to(self.dtype)
        target = 0.3 * actions
        # Two steps of the semi-implicit Euler method, of 10 ms.
        for _ in range(2):
            q_dot = q_dot + 0.01 * (400.0 * (target - q) - 30.0 * q_dot)
            q = q + 0.01 * q_dot
            body = body + 0.01 * self._acceleration(body, q, q_dot)
            # Positions move by the new velocities.
            body = torch.cat([body[:, :3] + 0.01 * body[:, 3:6], body[:, 3:]], dim=1)
        height, tilt = body[:, 0], body[:, 1:3].abs().amax(dim=1)
        velocity = torch.stack([body[:, 6], body[:, 7], body[:, 8]], dim=1)
        errors = (command - velocity).square()
        rewards = (
            (-4.0 * (errors[:, 0] + errors[:, 1])).exp()
            + 0.5 * (-4.0 * errors[:, 2]).exp()
            - 0.2 * body[:, 3:6].square().sum(1)
            - 0.5 * body[:, 1:3].square().sum(1)
            - 0.005 * (actions - last).square().sum(1)
        )
        following = torch.cat([body, q, q_dot, actions, command], dim=1)
        return following, rewards, (height < 0.15) | (tilt > 0.6)

    def _acceleration(self, body: torch.Tensor, q: torch.Tensor, q_dot: torch.Tensor) -> torch.Tensor:
        """Return time derivatives `[E, 9]` of the body's velocities, and 0 for all else."""
        height, pitch, roll, rise, pitching, rolling, forward, sideways, turning = body.unbind(1)
        hip, thigh, _ = q_dot.unflatten(1, (4, 3)).unbind(2)
        load = self._loads(body, q)  # [E, 4], in shares of the weight
        up = load - 0.1 * rise[:, None] * (load > 0)
        # Friction pulls the body towards the velocity at which the feet in contact would not slip.
        grip = 6.0 * load.clamp(max=0.5)
        ahead = grip * (-_STAND * thigh - forward[:, None] + self._hips_y * turning[:, None])
        aside = grip * (-_STAND * hip - sideways[:, None] - self._hips_x * turning[:, None])
        zero = torch.zeros_like(height)
        return torch.stack(
            [
                zero,
                zero,
                zero,
                9.8 * (up.sum(1) - 1.0),
                -60.0 * (up * self._hips_x).sum(1) - 4.0 * pitching - 5.0 * pitch,
                60.0 * (up * self._hips_y).sum(1) - 4.0 * rolling - 5.0 * roll,
                ahead.sum(1),
                aside.sum(1),
                20.0 * (aside * self._hips_x - ahead * self._hips_y).sum(1) - turning,
            ],
            dim=1,
        )

    def _loads(self, body: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return how much of the weight each leg carries `[E, 4]`; 0 where the foot is off the ground."""
        hip, thigh, calf = q.unflatten(1, (4, 3)).unbind(2)
        length = _STAND * hip.cos() * (0.5 * thigh.cos() + 0.5 * (thigh + calf).cos()) + 0.02 - 0.1 * calf
        # A hip is higher where the body tilts away from it.
        hip_height = body[:, :1] - body[:, 1:2] * self._hips_x + body[:, 2:3] * self._hips_y
        return (12.5 * (length - hip_height)).clamp(0.0, 2.0)

    def observe(self, state: torch.Tensor) -> Obs:
        body, q, q_dot, last, command = state.split(_PARTS, dim=1)
        pitch, roll = body[:, 1], body[:, 2]
        gravity = torch.stack([pitch.sin(), -roll.sin() * pitch.cos(), -roll.cos() * pitch.cos()], dim=1)
        turning = torch.cat([body[:, 4:6], body[:, 8:9]], dim=1)
        seen = [0.25 * turning, gravity, command, q, 0.05 * q_dot, last]
        hidden = [body[:, 6:8], body[:, 3:4], body[:, :1] - _STAND, self._loads(body, q)]
        return {"actor": torch.cat(seen, dim=1), "critic": torch.cat(hidden, dim=1)}

    def metrics(self, state: torch.Tensor) -> dict[str, torch.Tensor]:
        error = (state[:, -3:-1] - state[:, 6:8]).abs().mean()
        return {"height": state[:, 0].mean(), "velocity_error": error}
