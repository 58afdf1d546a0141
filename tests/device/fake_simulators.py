"""Simulators that behave as the real ones do, with one small task whose every number is known.

Environment i is a cart at `place`, which an action moves by itself, cut to +-1. Its episode fails at a place of 2 or
more, and is cut after 4 steps. It starts at 0.1 i + 0.01 k, k being the number of its episodes before. Observed are
(place, age); the reward is the place.
"""

import os
from collections.abc import MutableMapping
from types import SimpleNamespace

import gymnasium as gym
import torch

from ddppo.envs.native_tasks import TensorCartPole

LIMIT, EDGE = 4, 2.0


def oracle(actions):
    """Return what is true of each step of `actions` `[T, E]`: obs, final_obs, rewards, terminated, truncated."""
    num_envs = actions.shape[1]
    steps = []
    episodes, ages = [0] * num_envs, [0] * num_envs
    places = [0.1 * i for i in range(num_envs)]
    for row in actions.tolist():
        obs, final, rewards, terminated, truncated = [], [], [], [], []
        for i, action in enumerate(row):
            places[i] += max(-1.0, min(1.0, action))
            ages[i] += 1
            rewards.append(places[i])
            final.append([places[i], ages[i]])
            terminated.append(places[i] >= EDGE)
            truncated.append(ages[i] >= LIMIT and not terminated[-1])
            if terminated[-1] or truncated[-1]:
                episodes[i] += 1
                ages[i], places[i] = 0, 0.1 * i + 0.01 * episodes[i]
            obs.append([places[i], ages[i]])
        steps.append(
            SimpleNamespace(
                obs=torch.tensor(obs),
                final_obs=torch.tensor(final),
                rewards=torch.tensor(rewards),
                terminated=torch.tensor(terminated),
                truncated=torch.tensor(truncated),
            )
        )
    return steps


class Carts:
    """The task itself. Every tensor is a buffer that the next step overwrites, as Isaac Lab's are."""

    def __init__(self, num_envs, device="cpu"):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.index = torch.arange(num_envs, device=device)
        self.place = 0.1 * self.index
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.episodes = torch.zeros(num_envs, device=device)
        self.obs_buf = torch.zeros(num_envs, 2, device=device)
        self.rewards = torch.zeros(num_envs, device=device)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.observe()

    def observe(self):
        self.obs_buf[:, 0], self.obs_buf[:, 1] = self.place, self.episode_length_buf
        return self.obs_buf

    def move(self, actions):
        assert actions.shape == (self.num_envs, 1), actions.shape
        assert actions.abs().max() <= 1, "actions have to be clipped"
        self.place += actions[:, 0]
        self.episode_length_buf += 1
        self.rewards[:] = self.place
        self.terminated[:] = self.place >= EDGE
        self.truncated[:] = (self.episode_length_buf >= LIMIT) & ~self.terminated

    def begin(self, mask):
        self.episodes += mask
        self.place[:] = torch.where(mask, 0.1 * self.index + 0.01 * self.episodes, self.place)
        self.episode_length_buf[mask] = 0

    def restart(self):
        self.episodes -= self.episodes + 1
        self.begin(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))


class TensorDict(MutableMapping):
    """As much of tensordict's class as rsl_rl's environments use."""

    def __init__(self, tensors, batch_size):
        self._tensors, self.batch_size = dict(tensors), batch_size

    def __getitem__(self, key):
        return self._tensors[key]

    def __setitem__(self, key, x):
        self._tensors[key] = x

    def __delitem__(self, key):
        del self._tensors[key]

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


class RslRl:
    """rsl_rl 5's VecEnv: no reset, groups of observations, long dones, float time-outs, a log that stays."""

    num_actions = 1
    max_episode_length = LIMIT

    def __init__(self, num_envs, device="cpu", *, has_critic=False, has_time_outs=True, cfg=None):
        self._carts = Carts(num_envs, device)
        self.num_envs, self.device = num_envs, device
        self.cfg = cfg or {}
        self.extras = {}
        self._has_critic, self._has_time_outs = has_critic, has_time_outs

    @property
    def episode_length_buf(self):
        return self._carts.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, lengths):
        self._carts.episode_length_buf = lengths

    def get_observations(self):
        return self._observed()

    def _observed(self):
        groups = {"policy": self._carts.observe()}
        if self._has_critic:
            groups |= {"critic": torch.cat([groups["policy"], self._carts.episodes[:, None]], dim=1)}
            groups |= {"teacher": groups["policy"]}
        return TensorDict(groups, [self.num_envs])

    def step(self, actions):
        carts = self._carts
        carts.move(actions)
        ended = carts.terminated | carts.truncated
        if self._has_time_outs:
            self.extras["time_outs"] = carts.truncated.float()
        if ended.any():
            ends = ended.float()
            mean_age = (carts.episode_length_buf * ends).sum() / ends.sum()
            self.extras["log"] = {
                "/age": mean_age,
                "place": carts.place.clone(),
                "ends": int(ends.sum()),
                "note": "x",
            }
        carts.begin(ended)
        return self._observed(), carts.rewards, ended.long(), self.extras


class RandomCarts(RslRl):
    """Carts at random places at first, from the seed that they are made with; no later reset takes a seed."""

    def __init__(self, num_envs, device, seed):
        super().__init__(num_envs, device)
        self._carts.place = torch.rand(num_envs, generator=torch.Generator().manual_seed(seed))


def noting(num_envs, device, seed, file):
    """Make carts, and append the number of the process to a file."""
    with open(file, "a") as noted:
        noted.write(f"{os.getpid()}\n")
    return RandomCarts(num_envs, device, seed)


class OnlyOne(RandomCarts):
    """Carts of which a process can hold one batch at a time."""

    _is_running = False

    def __init__(self, num_envs, device, seed):
        if OnlyOne._is_running:
            raise RuntimeError("Only one can run")
        super().__init__(num_envs, device, seed)
        OnlyOne._is_running = True

    def close(self):
        OnlyOne._is_running = False


class RslRl2(RslRl):
    """rsl_rl 2's VecEnv: the policy's observations alone, and the groups in extras."""

    def get_observations(self):
        obs = self._observed()["policy"]
        return obs, {"observations": {"critic": obs}}

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions)
        return obs["policy"], rewards, dones, extras | {"observations": {"critic": obs["policy"]}}


class RslRl1(RslRl):
    """rsl_rl 1's VecEnv, as in legged_gym: the critic's observations have a place of their own."""

    def get_observations(self):
        return self._observed()["policy"]

    def get_privileged_observations(self):
        return self._observed()["policy"]

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions)
        return obs["policy"], obs["policy"], rewards, dones, extras


class IsaacLab:
    """Isaac Lab 3's environment: buffers reused, and entries of extras that stay until episodes end again."""

    def __init__(self, num_envs, device="cpu", *, knows_final_obs=True, has_critic=False, **cfg):
        self._carts = Carts(num_envs, device)
        self.device = device
        self.cfg = SimpleNamespace(is_finite_horizon=False, **cfg)
        if knows_final_obs:
            self.cfg.compute_final_obs = False
        self.num_envs = num_envs
        self.max_episode_length = LIMIT
        self.single_action_space = gym.spaces.Box(-float("inf"), float("inf"), (1,))
        self.extras = {}
        self._has_critic = has_critic
        self.seeds = []

    @property
    def unwrapped(self):
        return self

    @property
    def episode_length_buf(self):
        return self._carts.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, lengths):
        self._carts.episode_length_buf = lengths

    def _observed(self):
        groups = {"policy": self._carts.observe()}
        return (
            groups | {"critic": {"all": groups["policy"].double(), "flag": self._carts.terminated}}
            if self._has_critic
            else groups
        )

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self._carts.restart()
        self.extras["log"] = {}
        return self._observed(), self.extras

    def step(self, actions):
        carts = self._carts
        carts.move(actions)
        ended = carts.terminated | carts.truncated
        if ended.any():
            if getattr(self.cfg, "compute_final_obs", False):
                self.extras["final_obs"] = {name: x.clone() for name, x in self._observed().items()}
            carts.begin(ended)
            self.extras["log"] = {"Episode_Reward/place": carts.rewards[ended].mean()}
        return self._observed(), carts.rewards, carts.terminated, carts.truncated, self.extras


class Mjlab(IsaacLab):
    """mjlab's environment: with auto_reset=False a step ends at the true last observation, and the caller resets."""

    def __init__(self, num_envs, device="cpu"):
        super().__init__(num_envs, device, knows_final_obs=False, auto_reset=True)
        self.single_action_space = SimpleNamespace(shape=(1,), dtype="float32", low=-1e30, high=1e30)
        self._pending = torch.zeros(num_envs, dtype=torch.bool)

    def reset(self, *, seed=None, env_ids=None, options=None):
        if env_ids is None:
            return super().reset(seed)
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[env_ids] = True
        self.extras["log"] = {"Episode_Reward/place": self._carts.rewards[mask].mean()}
        self._carts.begin(mask)
        self._carts.terminated[mask] = self._carts.truncated[mask] = False  # managers clear what they reset
        self._carts.rewards[mask] = 0
        self._pending[mask] = False
        return self._observed(), self.extras

    def step(self, actions):
        if not self.cfg.auto_reset and self._pending.any():
            raise RuntimeError(
                "Environments must be reset via reset(env_ids=...) before calling step() again"
            )
        carts = self._carts
        self.extras["log"] = {}
        carts.move(actions)
        ended = carts.terminated | carts.truncated
        if self.cfg.auto_reset:
            carts.begin(ended)
        else:
            self._pending |= ended
        return self._observed(), carts.rewards, carts.terminated, carts.truncated, self.extras


class ManiSkill:
    """ManiSkillVectorEnv: when any episode ends, info has all environments' observations from before the reset."""

    def __init__(self, num_envs, device="cpu", *, auto_reset=True):
        self._carts = Carts(num_envs, device)
        self.num_envs, self.device, self.auto_reset = num_envs, torch.device(device), auto_reset
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.seeds = []

    def _observed(self):
        state = self._carts.observe().clone()
        return {"agent": {"place": state[:, :1]}, "extra": {"age": state[:, 1].long()}}

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self._carts.restart()
        return self._observed(), {}

    def step(self, actions):
        carts = self._carts
        carts.move(actions)
        obs, info = self._observed(), {"success": carts.terminated.clone()}
        terminated, truncated = carts.terminated.clone(), carts.truncated.clone()
        ended = terminated | truncated
        if ended.any():
            info["episode"] = {
                "success_once": carts.terminated.clone(),
                "return": carts.rewards + 100 * ~ended,
            }
            final, final_info = obs, info
            carts.begin(ended)
            obs = self._observed()
            info = {
                "final_observation": final,
                "_final_observation": ended,
                "final_info": final_info,
                "_final_info": ended,
            }
        return obs, carts.rewards.clone(), terminated, truncated, info


class RslRlCartPole:
    """CartPole in rsl_rl's form: a continuous push, of which the sign counts, and the last observation lost."""

    num_actions = 1
    max_episode_length = 500

    def __init__(self, num_envs, device, seed, max_episode_steps=500):
        self._task = TensorCartPole(num_envs, device, seed, max_episode_steps)
        self.num_envs, self.device, self.cfg = num_envs, device, {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._obs = self._task.reset(seed + torch.arange(num_envs, device=device))

    def get_observations(self):
        return TensorDict({"policy": self._obs}, [self.num_envs])

    def step(self, actions):
        step = self._task.step((actions[:, 0] > 0).long())
        self._obs = step.obs
        ended = step.terminated | step.truncated
        share = step.truncated.float().mean()
        extras = {"time_outs": step.truncated.float(), "log": {"/time_outs": share}}
        return self.get_observations(), step.rewards, ended.long(), extras
