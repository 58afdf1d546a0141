"""The contract of environments that live on a device: tensors in, tensors out (env.backend=device).

Simulators such as Isaac Lab, ManiSkill, MuJoCo Playground and Genesis step thousands of environments at once on an
accelerator. `VecEnv` (vec_env.py) would copy every step to the host; with `TensorVecEnv` a rollout stays where it is.
Nothing here waits for the device: no flag is read by Python, and which episodes ended is a mask, not a list.

The randomness of an environment follows from its seed by arithmetic on the device (`ddppo.device_random`), so that a
task written for this contract gives the same episodes on any device and any rank. Simulators with one random stream
for the whole batch cannot promise this; their `has_own_streams` is False, and GRPO, whose groups begin equally, refuses
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ddppo.models.actor_critic import Obs
from ddppo.spaces import EnvSpec


@dataclass(slots=True)
class TensorStep:
    """The result of one step of E environments, on their device. The simulator may reuse the tensors: clone to keep."""

    obs: Obs  # [E, *shape] to act on next; after an end, the first observation of the next episode
    rewards: torch.Tensor  # [E]
    terminated: torch.Tensor  # [E] bool
    truncated: torch.Tensor  # [E] bool
    # [E, *shape]: where an episode ended, its true last observation; anything elsewhere. None if the simulator
    # overwrites it: a truncated episode is then bootstrapped by V of the state that was acted in, as rsl_rl does.
    final_obs: Obs | None = None
    # Scalars that the simulator logs, by name.
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)


class TensorVecEnv(Protocol):
    """E environments on one device, which reset themselves in the step in which an episode ends."""

    has_final_obs: bool  # whether steps carry `final_obs`
    has_own_streams: bool  # whether an environment's episodes follow from its seed alone
    # Optional, else False: whether kernels of `step` may be recorded and started again. Then a step starts the same
    # kernels each time: it reads no number of a tensor, it keeps no number in Python that changes, and the state stays
    # in the same tensors, also in `reset` and `restore`.
    is_recordable: bool

    spec: EnvSpec
    num_envs: int  # E
    device: torch.device

    def reset(self, seeds: torch.Tensor) -> Obs:
        """Begin an episode in every environment, each from its own seed `[E]` int64; return obs `[E, *shape]`."""
        ...

    def step(self, actions: torch.Tensor) -> TensorStep:
        """Step all environments with actions `[E, *spec.action.shape]`, within the bounds of a Box that has some."""
        ...

    def state(self) -> dict[str, Any]:
        """Return tensors `[E, ...]` by name, which determine all that follows.

        Raises EnvStateError if the simulator does not know them: a resumed run then begins new episodes.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> Obs:
        """Continue from `state`, of these environments in this order; return obs as `reset` does."""
        ...

    def close(self) -> None: ...
