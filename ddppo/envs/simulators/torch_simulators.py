"""Simulators in torch as `TensorVecEnv`: rsl_rl's form (Genesis, older Isaac Lab), Isaac Lab and mjlab, ManiSkill.

`made` is what the function behind env.id returned. Each class says what its simulators do with the last observation
of an episode, with time limits and with their log, and turns it into a `TensorStep` without waiting for the device.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from ddppo.envs.encoding.gym_spaces import action_spec
from ddppo.envs.tensor_env import TensorStep
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvError, EnvStateError
from ddppo.models.actor_critic import Obs
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

# rsl_rl's names of groups: the policy reads the first of these that there is.
_POLICY = ("policy", "actor")
_VALUES = "critic"  # the value function reads this one; without it, it reads what the policy reads


# -- Parts that all simulators share. --------------------------------------------------------------------------


class SimulatorEnvs:
    """The base of all adapters: the size of the batch, and no state to save, for no simulator gives all of it."""

    has_final_obs = False
    has_own_streams = False  # one random stream serves the batch, so that results depend on W

    spec: EnvSpec

    def __init__(self, made: Any, num_envs: int, device: torch.device, names: EnvNames, seed: int) -> None:
        self.num_envs = num_envs
        self.device = device
        self.names = names
        self._env = made
        self._seed = seed
        found = getattr(made, "num_envs", num_envs)
        if int(found) != num_envs:
            raise ConfigError(
                f"the simulator has {found} environments, and this rank steps {num_envs}: let the function behind "
                "env.id pass its argument num_envs on to the simulator"
            )

    def scatter_ages(self) -> None:
        """Spread the ages of the episodes that began, if an option asks for it: in training only."""

    def state(self) -> dict[str, Any]:
        raise EnvStateError(
            f"{self.names.all()} cannot be saved: their simulator does not give its whole state, so a resumed run "
            "begins new episodes"
        )

    def restore(self, state: Mapping[str, Any]) -> Obs:
        raise EnvStateError(f"{self.names.all()} cannot go on from a saved state: their simulator takes none")

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()


def check_device(found: Any, wanted: torch.device) -> None:
    """Raise ConfigError unless a simulator lives on the device of its rank, index included."""
    on = torch.device(found)
    # A device without an index is the current one, which a rank sets to its own.
    if on.type != wanted.type or (None not in (on.index, wanted.index) and on.index != wanted.index):
        raise ConfigError(
            f"the simulator lives on {on}, and this rank computes on {wanted}: let the function behind env.id pass "
            f"its argument device on to the simulator, or set device={on.type}"
        )


def tensors_of(obs: Any, num_envs: int) -> dict[str, torch.Tensor]:
    """Return the tensors `[E, *shape]` of an observation by their paths: "" for one tensor, else "group.term".

    Pixels stay uint8 and float64 stays; all else becomes float32, in which networks compute.
    """
    if isinstance(obs, Mapping):
        return {
            f"{name}.{inner}" if inner else str(name): x
            for name, part in obs.items()
            for inner, x in tensors_of(part, num_envs).items()
        }
    if not isinstance(obs, torch.Tensor):
        raise ConfigError(
            f"the simulator returned observations of type {type(obs).__name__}: env.backend=device takes torch "
            "tensors, or dicts of them; a simulator on the CPU that returns NumPy arrays needs env.backend=gym_vector"
        )
    if obs.dim() == 0 or obs.shape[0] != num_envs:
        raise ConfigError(
            f"the simulator returned an observation of shape {list(obs.shape)}: the first dimension has to be "
            f"the {num_envs} environments"
        )
    return {"": obs if obs.dtype in (torch.uint8, torch.float32, torch.float64) else obs.float()}


def array_spec(x: torch.Tensor) -> ArraySpec:
    return ArraySpec(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))


class Groups:
    """The observations that are learned from, chosen among those of a simulator by its names of groups.

    The policy reads the group `policy`, or the first of them that there is, and the value function `values` if there is
    such a group. Without names, both read everything. A single tensor stays one, without a name.
    """

    def __init__(
        self,
        obs: Any,
        num_envs: int,
        device: torch.device,
        *,
        policy: tuple[str, ...] = (),
        values: str = "",
    ) -> None:
        self._num_envs = num_envs
        tensors = tensors_of(obs, num_envs)
        for x in tensors.values():
            check_device(x.device, device)
        everything = tuple(tensors)
        of_policy = next((keys for group in policy if (keys := _in_group(tensors, group))), everything)
        of_values = _in_group(tensors, values) or of_policy
        if of_policy == everything:
            of_values = everything
        self.keys = tuple(dict.fromkeys(of_policy + of_values))
        self.is_single = len(self.keys) == 1
        self.policy_keys = of_policy if of_policy != of_values else None
        self.value_keys = of_values if of_policy != of_values else None
        specs = {key: array_spec(tensors[key]) for key in self.keys}
        self.spec = specs[self.keys[0]] if self.is_single else specs

    def __call__(self, obs: Any) -> Obs:
        tensors = tensors_of(obs, self._num_envs)
        return tensors[self.keys[0]] if self.is_single else {key: tensors[key] for key in self.keys}

    def env_spec(self, action: ActionSpec) -> EnvSpec:
        return EnvSpec(self.spec, action, policy_keys=self.policy_keys, value_keys=self.value_keys)


def _in_group(tensors: Mapping[str, Any], group: str) -> tuple[str, ...]:
    return tuple(key for key in tensors if key == group or key.startswith(f"{group}."))


class Actions:
    """From a policy's actions, within the bounds, to those of a task: in the shape and the numbers of its space."""

    def __init__(self, spec: ActionSpec, device: torch.device, space: Any = None) -> None:
        """`space`: the simulator's own, if it has one."""
        self._shape = spec.shape if space is None else tuple(space.shape)
        # Choices of Gymnasium may count from another number than 0.
        start = np.asarray(getattr(space, "start", 0))
        self._start = torch.as_tensor(start, device=device) if start.any() else None

    def __call__(self, actions: torch.Tensor) -> torch.Tensor:
        if self._start is not None:
            actions = actions + self._start
        return actions.reshape(-1, *self._shape)


def box(size: int, clip: float | None) -> ActionSpec:
    """Return the spec of `size` continuous actions, within +-`clip` if that is given."""
    if clip is None:
        return ActionSpec("box", (size,))
    if not clip > 0:
        raise ConfigError(
            f"env.simulator_options.clip_actions={clip}: must be greater than 0, or null for no bound"
        )
    return ActionSpec("box", (size,), (-clip,) * size, (clip,) * size)


def scalars(log: Mapping[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    """Return the numbers of a log as 0-dimensional tensors on the device: the mean, where one is a tensor of several.

    rsl_rl marks names that need no prefix by a slash in front, which is left out here.
    """
    found = {}
    for name, x in log.items():
        if isinstance(x, torch.Tensor):
            found[name.lstrip("/")] = x.to(device, torch.float32).mean()
        elif isinstance(x, (int, float)):
            found[name.lstrip("/")] = torch.full((), float(x), device=device)
    return found


class NewLogs:
    """Passes on extras["log"] (in older tasks extras["episode"]) once: simulators repeat it until episodes end.

    A new dict is new as a whole. Some tasks, such as Isaac Lab's in-hand ones, write into one dict in every step: there
    an entry is new if its value is another object, or a tensor that was written to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: Any = None
        self._seen: dict[
            str, tuple[Any, int]
        ] = {}  # entries of the last log, and how often they were written to

    def __call__(self, extras: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        log = extras.get("log", extras.get("episode"))
        if log is None:
            return {}
        before = self._seen if log is self._last else {}
        # Held, so that no later object can have the identity of one of these.
        self._last, self._seen = log, {name: (x, _num_writes(x)) for name, x in log.items()}
        new = {
            name: x
            for name, (x, writes) in self._seen.items()
            if name not in before or before[name][0] is not x or before[name][1] != writes
        }
        return scalars(new, self._device)


def _num_writes(x: Any) -> int:
    """Return torch's count of the operations that wrote into a tensor; inference tensors have none."""
    return x._version if isinstance(x, torch.Tensor) and not x.is_inference() else 0


def one_seed(seeds: torch.Tensor) -> int:
    """Return the seed of a batch with one stream: that of its first environment."""
    return int(seeds[0]) % 2**31


def set_random_ages(env: Any, num_envs: int, device: torch.device, seed: int) -> None:
    """Set the age of each episode at random, as rsl_rl's init_at_random_ep_len does, so that not all end at once."""
    length = int(env.max_episode_length)
    generator = torch.Generator().manual_seed(seed)
    ages = torch.randint(length, (num_envs,), generator=generator)
    env.episode_length_buf = ages.to(device, env.episode_length_buf.dtype)


def setting_of(env: Any, name: str, default: Any = None) -> Any:
    """Return an entry of a simulator's `cfg`, which is a dict or an object."""
    cfg = getattr(getattr(env, "unwrapped", env), "cfg", None)
    return cfg.get(name, default) if isinstance(cfg, Mapping) else getattr(cfg, name, default)


# -- rsl_rl's VecEnv. ------------------------------------------------------------------------------------------


class RslRlEnvs(SimulatorEnvs):
    """Environments of rsl_rl's form: Genesis' examples, legged_gym, and Isaac Lab or mjlab in their wrappers for it.

    The last observation of an episode is lost, for they reset within the step. extras["time_outs"] tells which ends
    are time limits; a task whose cfg.is_finite_horizon is true has none, and all its ends are terminal.
    """

    def __init__(
        self,
        made: Any,
        num_envs: int,
        device: torch.device,
        names: EnvNames,
        seed: int,
        *,
        init_at_random_ep_len: bool = False,
        clip_actions: float | None = None,
    ) -> None:
        missing = [
            name
            for name in ("num_envs", "num_actions", "get_observations", "step")
            if not hasattr(made, name)
        ]
        if missing:
            raise ConfigError(
                f"env.simulator=rsl_rl: {type(made).__name__} lacks {', '.join(missing)} of rsl_rl's VecEnv: return "
                "an environment of this form, or choose another env.simulator"
            )
        super().__init__(made, num_envs, device, names, seed)
        check_device(made.device, device)
        self._is_scattered = init_at_random_ep_len
        self._log = NewLogs(device)
        self._has_no_limits = bool(setting_of(made, "is_finite_horizon", False))
        self._begun: Any = self._begin()  # the first observations, until reset() takes them
        self._groups = Groups(self._begun, num_envs, device, policy=_POLICY, values=_VALUES)
        self.spec = self._groups.env_spec(box(int(made.num_actions), clip_actions))
        self._actions = Actions(self.spec.action, device)

    def reset(self, seeds: torch.Tensor) -> Obs:
        # What was made has just begun, from make's seed: get_observations() of some wrappers resets once more.
        begun, self._begun = self._begun, None
        is_from_seed = begun is not None and one_seed(seeds) == self._seed % 2**31
        # rsl_rl's form has no seeds. Wrappers of Isaac Lab and mjlab have this method; others go on with their stream.
        if not is_from_seed and callable(set_seed := getattr(self._env, "seed", None)):
            set_seed(one_seed(seeds))
            begun = None
        return self._groups(self._begin() if begun is None else begun)

    def scatter_ages(self) -> None:
        if self._is_scattered:
            set_random_ages(self._env, self.num_envs, self.device, self._seed)

    def step(self, actions: torch.Tensor) -> TensorStep:
        obs, rewards, dones, extras = self._unpacked(self._env.step(self._actions(actions)))
        ended = dones.reshape(-1).bool()
        truncated = torch.zeros_like(ended)
        # Some tasks write time_outs only when an episode ends, and leave it: it counts where one ends now.
        if not self._has_no_limits:
            if "time_outs" not in extras:
                raise EnvError(
                    f'{self.names.all()} returned no extras["time_outs"], so a time limit cannot be told from a '
                    "failure: return which ends are time limits, or set cfg.is_finite_horizon=True on the simulator "
                    "if all ends are terminal"
                )
            truncated = ended & extras["time_outs"].reshape(-1).to(self.device, torch.bool)
        return TensorStep(
            obs=self._groups(obs),
            rewards=rewards.reshape(-1),
            terminated=ended & ~truncated,
            truncated=truncated,
            metrics=self._log(extras),
        )

    def _begin(self) -> Any:
        # rsl_rl's form asks for no reset; where there is one, it also writes the first extras.
        if callable(reset := getattr(self._env, "reset", None)):
            reset()
        return _observed(self._env.get_observations(), self._env)

    def _unpacked(self, step: tuple[Any, ...]) -> tuple[Any, torch.Tensor, torch.Tensor, Mapping[str, Any]]:
        if len(step) == 5:  # rsl_rl 1: the critic's observations have a place of their own
            obs, critic, rewards, dones, extras = step
            return _with_critic(obs, critic), rewards, dones, extras
        obs, rewards, dones, extras = step
        return _observed((obs, extras), self._env), rewards, dones, extras


def _observed(found: Any, env: Any) -> Any:
    """Return the groups of observations: a mapping in rsl_rl 3 and later, before it a tensor and groups in extras."""
    obs, extras = found if isinstance(found, tuple) else (found, {})
    if not isinstance(obs, torch.Tensor):
        return obs
    if isinstance(extras, Mapping) and isinstance(groups := extras.get("observations"), Mapping):
        return {"policy": obs, **groups}  # rsl_rl 2
    if callable(privileged := getattr(env, "get_privileged_observations", None)):
        return _with_critic(obs, privileged())  # rsl_rl 1
    return obs


def _with_critic(obs: torch.Tensor, critic: torch.Tensor | None) -> Any:
    return obs if critic is None else {"policy": obs, "critic": critic}


# -- Isaac Lab and mjlab. --------------------------------------------------------------------------------------


class IsaacLabEnvs(SimulatorEnvs):
    """Isaac Lab's ManagerBasedRLEnv and DirectRLEnv, and mjlab's ManagerBasedRlEnv.

    With final_obs=true their true last observations are asked for. Isaac Lab from 3.0 on computes them before the reset
    (cfg.compute_final_obs). mjlab leaves the reset to the caller (cfg.auto_reset=False), which waits once a step for
    the device. Older ones lose them. cfg.is_finite_horizon makes the time limit an end of the task: it is terminal.
    """

    def __init__(
        self,
        made: Any,
        num_envs: int,
        device: torch.device,
        names: EnvNames,
        seed: int,
        *,
        final_obs: bool = True,
        init_at_random_ep_len: bool = False,
        clip_actions: float | None = None,
    ) -> None:
        inner = getattr(made, "unwrapped", made)
        if hasattr(made, "get_observations") and not hasattr(made, "single_action_space"):
            raise ConfigError(
                f"env.simulator=isaaclab: {type(made).__name__} is a wrapper of rsl_rl's form: return the environment "
                "without it, or set env.simulator=rsl_rl"
            )
        if not (hasattr(inner, "single_action_space") and hasattr(inner, "cfg")):
            raise ConfigError(
                f"env.simulator=isaaclab: {type(made).__name__} is no environment of Isaac Lab or mjlab, which have "
                "single_action_space and cfg: choose another env.simulator"
            )
        super().__init__(made, num_envs, device, names, seed)
        check_device(inner.device, device)
        cfg = inner.cfg
        self._resets_by_hand = False
        if final_obs and hasattr(cfg, "compute_final_obs"):
            cfg.compute_final_obs = True
        elif final_obs and hasattr(cfg, "auto_reset"):
            cfg.auto_reset = False
        if getattr(cfg, "auto_reset", True) is False:
            self._resets_by_hand = True
        self.has_final_obs = self._resets_by_hand or bool(getattr(cfg, "compute_final_obs", False))
        self._inner = inner
        self._is_scattered = init_at_random_ep_len
        self._is_finite = bool(getattr(cfg, "is_finite_horizon", False))
        self._log = NewLogs(device)
        self._begun: Any = made.reset(seed=seed)[0]
        self._groups = Groups(self._begun, num_envs, device, policy=_POLICY, values=_VALUES)
        space = inner.single_action_space
        if clip_actions is not None or not isinstance(space, Space):  # mjlab has spaces of its own
            (size,) = space.shape
            action = box(size, clip_actions)
        else:
            action = action_spec(space)
        self.spec = self._groups.env_spec(action)
        self._actions = Actions(action, device, space)

    def reset(self, seeds: torch.Tensor) -> Obs:
        begun, self._begun = self._begun, None
        if begun is None or one_seed(seeds) != self._seed % 2**31:
            begun = self._env.reset(seed=one_seed(seeds))[0]
        return self._groups(begun)

    def scatter_ages(self) -> None:
        if self._is_scattered:
            set_random_ages(self._inner, self.num_envs, self.device, self._seed)

    def step(self, actions: torch.Tensor) -> TensorStep:
        chosen = self._actions(actions)
        if self.spec.action.kind == "discrete":
            chosen = chosen.unsqueeze(-1)  # a Discrete action has the shape [E, 1] there
        obs, rewards, terminated, truncated, extras = self._env.step(chosen)
        final = None
        if self._resets_by_hand:
            # The reset writes into the buffers of the step, so copy what it would change.
            final = {key: x.clone() for key, x in tensors_of(obs, self.num_envs).items()}
            rewards, terminated, truncated = rewards.clone(), terminated.clone(), truncated.clone()
            ended = (terminated | truncated).nonzero().squeeze(-1)
            if len(ended):
                obs, extras = self._env.reset(env_ids=ended)
        elif self.has_final_obs:
            # Isaac Lab writes the entry when an episode ends and leaves it, so there is none before the first.
            final = extras.get("final_obs", obs)
        if self._is_finite:
            terminated, truncated = terminated | truncated, torch.zeros_like(truncated)
        return TensorStep(
            obs=self._groups(obs),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_obs=None if final is None else self._groups(final),
            metrics=self._log(extras),
        )


# -- ManiSkill. ------------------------------------------------------------------------------------------------


class ManiSkillEnvs(SimulatorEnvs):
    """ManiSkill 3's ManiSkillVectorEnv(env, auto_reset=True), on its GPU or CPU simulation.

    Its step waits once for the device, to see whether an episode ended. With record_metrics=True the scores of the
    episodes that ended (return, success_once, ...) become metrics.
    """

    has_final_obs = True

    def __init__(self, made: Any, num_envs: int, device: torch.device, names: EnvNames, seed: int) -> None:
        if getattr(made, "auto_reset", None) is not True:
            raise ConfigError(
                f"env.simulator=maniskill: {type(made).__name__} does not reset its environments: return "
                "ManiSkillVectorEnv(env, auto_reset=True) of mani_skill.vector.wrappers.gymnasium"
            )
        super().__init__(made, num_envs, device, names, seed)
        check_device(made.device, device)
        every = [(seed + k) % 2**31 for k in range(num_envs)]
        self._groups = Groups(made.reset(seed=every)[0], num_envs, device)
        space = made.single_action_space
        self.spec = self._groups.env_spec(action_spec(space))
        self._actions = Actions(self.spec.action, device, space)

    def reset(self, seeds: torch.Tensor) -> Obs:
        return self._groups(self._env.reset(seed=[int(seed) % 2**31 for seed in seeds.tolist()])[0])

    def step(self, actions: torch.Tensor) -> TensorStep:
        obs, rewards, terminated, truncated, info = self._env.step(self._actions(actions))
        return TensorStep(
            obs=self._groups(obs),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated.to(self.device, torch.bool),
            # One for all environments, in steps in which an episode ended; in others it is not looked at.
            final_obs=self._groups(info.get("final_observation", obs)),
            metrics=self._scores(info),
        )

    def _scores(self, info: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        episode = info.get("final_info", {}).get("episode")
        if not episode:
            return {}
        ended = info["_final_info"]
        count = ended.sum()
        return {name: torch.where(ended, x.float(), 0.0).sum() / count for name, x in episode.items()}
