"""Gymnasium's classic-control tasks for a whole batch at once, bit-identical to its single environments.

Each formula is computed in the order and the float type in which Gymnasium computes it for one environment. Two
operations give other last bits for an array than for a number, so they are done number by number: the power `x**2` of a
NumPy scalar, which is libm's pow and not x * x, and `math.cos`.
"""

import math

import numpy as np
from numpy import cos, pi, sin

from ddppo.envs.backends.batched import Dynamics


def _squares(x: np.ndarray) -> np.ndarray:
    """Return x**2 `[E]` with the bits of NumPy scalars."""
    return np.array([value**2 for value in x], x.dtype)


def _math_cos(x: np.ndarray) -> np.ndarray:
    """Return the cosine `[E]` of libm, float64."""
    return np.array([math.cos(value) for value in x.tolist()])


class CartPole(Dynamics):
    """Barto, Sutton and Anderson 1983; gymnasium/envs/classic_control/cartpole.py. State: x, theta and velocities."""

    def __init__(self, num_envs: int, sutton_barto_reward: bool = False) -> None:
        super().__init__(4, num_envs)
        self._force = np.array([-10.0, 10.0])
        self._sutton_barto_reward = sutton_barto_reward
        self._ones = np.ones(num_envs)
        self._limit = np.array([[2.4], [12 * 2 * math.pi / 360]])
        self._acceleration = np.empty((2, num_envs))

    def reset(self, i: int) -> np.ndarray:
        x, x_dot, theta, theta_dot = drawn = self.generators[i].uniform(-0.05, 0.05, (4,))
        self.state[:, i] = x, theta, x_dot, theta_dot
        return drawn

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place, speed = self.state[:2], self.state[2:]
        total_mass, polemass_length = 0.1 + 1.0, 0.1 * 0.5
        # The equations of motion for the angular and the linear acceleration, then one step of Euler's method.
        sin_theta, cos_theta = sin(place[1]), cos(place[1])
        temp = (self._force[actions] + polemass_length * np.square(speed[1]) * sin_theta) / total_mass
        acceleration = self._acceleration
        acceleration[1] = (9.8 * sin_theta - cos_theta * temp) / (
            0.5 * (4.0 / 3.0 - 0.1 * np.square(cos_theta) / total_mass)
        )
        acceleration[0] = temp - polemass_length * acceleration[1] * cos_theta / total_mass
        place += 0.02 * speed
        speed += 0.02 * acceleration
        obs[:, ::2] = place.T
        obs[:, 1::2] = speed.T
        terminated = np.logical_or.reduce(np.abs(place) > self._limit, axis=0)
        return np.where(terminated, -1.0, 0.0) if self._sutton_barto_reward else self._ones, terminated


class Acrobot(Dynamics):
    """Sutton 1996, the book's equations; gymnasium/envs/classic_control/acrobot.py. State: two angles, two speeds."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(4, num_envs)
        self._torque = np.array([-1.0, 0.0, 1.0])

    def reset(self, i: int) -> np.ndarray:
        # Gymnasium rounds the first state to float32.
        drawn = self.generators[i].uniform(-0.1, 0.1, (4,)).astype(np.float32)
        self.state[:, i] = drawn
        angles = drawn[:2]
        return np.concatenate([np.stack([cos(angles), sin(angles)], axis=1).ravel(), drawn[2:]])

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, torque, dt = self.state, self._torque[actions], 0.2
        # One step of the classical Runge-Kutta method.
        k1 = _acrobot_derivative(state, torque)
        k2 = _acrobot_derivative(state + dt / 2.0 * k1, torque)
        k3 = _acrobot_derivative(state + dt / 2.0 * k2, torque)
        k4 = _acrobot_derivative(state + dt * k3, torque)
        state = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        # Wrap the angles to [-pi, pi], and clip the velocities.
        angles, speeds = state[:2], state[2:]
        while (above := angles > pi).any():
            angles[above] -= 2 * pi
        while (below := angles < -pi).any():
            angles[below] += 2 * pi
        limit = np.array([[4 * pi], [9 * pi]])
        np.clip(speeds, -limit, limit, out=speeds)
        self.state = state
        cosines = cos(angles)
        obs[:, 0:4:2], obs[:, 1:4:2], obs[:, 4:] = cosines.T, sin(angles).T, speeds.T
        terminated = -cosines[0] - cos(angles[1] + angles[0]) > 1.0
        return np.where(terminated, 0.0, -1.0), terminated


def _acrobot_derivative(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Return the time derivative of the state `[4, E]` under torque `[E]`; masses, lengths and inertias are 1."""
    m1 = m2 = l1 = i1 = i2 = 1.0
    lc1 = lc2 = 0.5
    g = 9.8
    theta1, theta2, dtheta1, dtheta2 = state
    cos2, sin2 = cos(theta2), sin(theta2)
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + i1 + i2
    d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + i2
    phi2 = m2 * lc2 * g * cos(theta1 + theta2 - pi / 2.0)
    phi1 = (
        -m2 * l1 * lc2 * _squares(dtheta2) * sin2
        - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
        + (m1 * lc1 + m2 * l1) * g * cos(theta1 - pi / 2)
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * _squares(dtheta1) * sin2 - phi2) / (
        m2 * lc2**2 + i2 - _squares(d2) / d1
    )
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return np.stack([dtheta1, dtheta2, ddtheta1, ddtheta2])


class Pendulum(Dynamics):
    """gymnasium/envs/classic_control/pendulum.py; never terminates. State: angle and speed."""

    def __init__(self, num_envs: int, g: float = 10.0) -> None:
        super().__init__(2, num_envs)
        self._g = g
        self._never = np.zeros(num_envs, bool)
        self._bound = np.array([pi, 1.0])

    def reset(self, i: int) -> np.ndarray:
        theta, speed = self.state[:, i] = self.generators[i].uniform(-self._bound, self._bound)
        return np.array([cos(theta), sin(theta), speed])

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        torque = actions[:, 0]  # float32, and so is what comes of it alone
        theta, speed = self.state
        angle = (theta + pi) % (2 * pi) - pi
        costs = _squares(angle) + 0.1 * _squares(speed) + 0.001 * _squares(torque)
        speed += (3 * self._g / (2 * 1.0) * sin(theta) + 3.0 / (1.0 * 1.0**2) * torque) * 0.05
        np.clip(speed, -8, 8, out=speed)
        theta += speed * 0.05
        obs[:, 0], obs[:, 1], obs[:, 2] = cos(theta), sin(theta), speed
        return -costs, self._never


class MountainCar(Dynamics):
    """Moore 1990; gymnasium/envs/classic_control/mountain_car.py. State: position and velocity."""

    def __init__(self, num_envs: int, goal_velocity: float = 0) -> None:
        super().__init__(2, num_envs)
        self._goal_velocity = goal_velocity
        self._push = np.array([-1, 0, 1]) * 0.001
        self._rewards = np.full(num_envs, -1.0)

    def reset(self, i: int) -> np.ndarray:
        self.state[:, i] = self.generators[i].uniform(-0.6, -0.4), 0.0
        return self.state[:, i]

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        position, velocity = self.state
        # Gravity along the slope, then limits of velocity and position; the left wall stops the car.
        velocity += self._push[actions] + _math_cos(3 * position) * -0.0025
        np.clip(velocity, -0.07, 0.07, out=velocity)
        position += velocity
        np.clip(position, -1.2, 0.6, out=position)
        velocity[(position == -1.2) & (velocity < 0)] = 0
        obs[:] = self.state.T
        return self._rewards, (position >= 0.5) & (velocity >= self._goal_velocity)


class ContinuousMountainCar(Dynamics):
    """gymnasium/envs/classic_control/continuous_mountain_car.py. State: position, velocity, and whether just reset.

    Gymnasium draws the first state of an episode in float64 and keeps every later one in float32.
    """

    def __init__(self, num_envs: int, goal_velocity: float = 0) -> None:
        super().__init__(3, num_envs)
        self._goal_velocity = goal_velocity

    def reset(self, i: int) -> np.ndarray:
        self.state[:, i] = self.generators[i].uniform(-0.6, -0.4), 0.0, 1.0
        return self.state[:2, i]

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        force = actions[:, 0]
        # Compute all in float32, then those in the first step of their episode again in float64.
        moved, reached = self._move(self.state[:2].astype(np.float32), force)
        (first,) = np.nonzero(self.state[2])
        if first.size:
            moved[:, first], reached[first] = self._move(self.state[:2, first], force[first])
        self.state[:2], self.state[2] = moved, 0.0
        obs[:] = moved.T
        return np.where(reached, 100.0, 0.0) - np.square(force, dtype=np.float64) * 0.1, reached

    def _move(self, state: np.ndarray, force: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next states `[2, n]` as float32, and whether they reach the goal, in the type of `state`."""
        # As in Gymnasium: the cosine in float64, its product with gravity rounded to float32.
        position, velocity = state
        slope = 0.0025 * _math_cos(3 * position)
        velocity = velocity + (force * 0.0015 - slope.astype(np.float32))
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity[(position == state.dtype.type(-1.2)) & (velocity < 0)] = 0
        reached = (position >= 0.45) & (velocity >= self._goal_velocity)
        return np.stack([position, velocity]).astype(np.float32), reached
