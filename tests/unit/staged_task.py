"""A task of rooms with doors, and a model that chooses a room by values and learns which door; imported by name."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from torch import nn

from ddppo.models.actor_critic import ActorCritic

ROOMS, DOORS = 4, 2
NEVER = -1e30


class RoomsEnv(gym.Env):
    """Choice room * 2 + door changes what is seen of a room and the next one, the fresh ones, where a door may be shut.

    Worth what is seen of the room, with a sign by the door. Ends by itself after 5 steps or is cut after 3, in turn.
    """

    observation_space = Dict(
        {
            "seen": Box(-1, 1, (ROOMS, 3), np.float64),
            "fresh": MultiBinary(ROOMS),
            "action_mask": MultiBinary(ROOMS * DOORS),
        }
    )
    action_space = Discrete(ROOMS * DOORS)
    num_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_episodes += 1
        self.num_steps = 0
        self.seen = self.np_random.uniform(-1, 1, (ROOMS, 3))
        return self.observe([]), {}

    def step(self, action):
        assert self.mask[action], (action, self.mask)
        room, door = divmod(int(action), DOORS)
        reward = float(self.seen[room].sum()) * (1 if door else -1)
        fresh = [room, (room + 1) % ROOMS]
        self.seen[fresh] = self.np_random.uniform(-1, 1, (2, 3))
        self.num_steps += 1
        ends_by_itself = self.num_episodes % 2 == 0
        terminated, truncated = (
            ends_by_itself and self.num_steps == 5,
            not ends_by_itself and self.num_steps == 3,
        )
        return self.observe(fresh), reward, terminated, truncated, {}

    def observe(self, fresh):
        is_fresh = np.zeros(ROOMS, np.int8)
        is_fresh[fresh] = 1
        self.mask = np.ones(ROOMS * DOORS, np.int8)
        self.mask[self.np_random.permutation(ROOMS * DOORS)[:3]] = 0
        return {"seen": self.seen.copy(), "fresh": is_fresh, "action_mask": self.mask}


class TwoStages:
    """A room by weights `[..., ROOMS]`, then a door by logits `[..., ROOMS * DOORS]` among those that are open."""

    def __init__(self, params, mask):
        weights, logits = params.split([ROOMS, ROOMS * DOORS], dim=-1)
        shut = ~mask.unflatten(-1, (ROOMS, DOORS))
        logits = logits.unflatten(-1, (ROOMS, DOORS)).masked_fill(shut, NEVER)
        self.rooms = weights.masked_fill(shut.all(-1), NEVER).log_softmax(-1)
        self.doors = logits.log_softmax(-1)

    def sample(self, noise):
        room = drawn(self.rooms, noise[..., 0])
        door = drawn(at_room(self.doors, room), noise[..., 1])
        return room * DOORS + door

    def mode(self):
        room = self.rooms.argmax(-1)
        return room * DOORS + at_room(self.doors, room).argmax(-1)

    def log_prob(self, actions):
        joint = self.rooms.unsqueeze(-1) + self.doors
        return joint.flatten(-2).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self):
        def of(log_probs):
            return -(log_probs.exp() * log_probs).sum(-1)

        return of(self.rooms) + (self.rooms.exp() * of(self.doors)).sum(-1)


def drawn(log_probs, uniform):
    """Return choices `[...]` by the cumulative distribution of `[..., n]`."""
    cumulative = log_probs.cpu().exp().cumsum(-1)
    return (cumulative / cumulative[..., -1:] <= uniform.clamp(max=1 - 1e-9).unsqueeze(-1)).sum(-1)


def at_room(x, room):
    """Return `[..., DOORS]` of x `[..., ROOMS, DOORS]`."""
    index = room.to(x.device)[..., None, None].expand(*room.shape, 1, DOORS)
    return x.gather(-2, index).squeeze(-2)


class Staged(ActorCritic):
    """Rooms have values by what is seen of them; the value of a state is the largest of its fresh rooms, or 0."""

    values_are_of_actions = True
    temperature = 0.5
    num_params = ROOMS + ROOMS * DOORS
    num_noise = 2

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.actor = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, DOORS))
        self.critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def distribution(self, params, mask=None):
        return TwoStages(params, mask)

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        doors = self.actor(obs["seen"]).flatten(-2)
        return torch.cat([self.rooms(obs) / self.temperature, doors], dim=-1)

    def value(self, obs):
        is_fresh = obs["fresh"] > 0.5
        best = self.rooms(obs).masked_fill(~is_fresh, NEVER).amax(-1)
        return best.where(is_fresh.any(-1), 0)

    def evaluate_actions(self, obs, actions):
        room = (actions // DOORS).unsqueeze(-1)
        chosen = torch.zeros_like(obs["fresh"]).scatter(-1, room, 1) > 0
        weights = torch.zeros_like(obs["fresh"]).masked_fill(~chosen, NEVER)
        params = torch.cat([weights, self.actor(obs["seen"]).flatten(-2)], dim=-1)
        return params, self.rooms(obs).gather(-1, room).squeeze(-1)

    def rooms(self, obs):
        return self.critic(obs["seen"]).squeeze(-1)


class Beside(Staged):
    """The same, whose values of states are noted while acting."""

    values_are_beside = True


gym.register("staged/Rooms-v0", RoomsEnv)
