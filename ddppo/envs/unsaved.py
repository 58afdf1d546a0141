"""What a batch answers whose environments cannot say what they are in the midst of."""

from typing import Any

import numpy as np

from ddppo.envs.faults import EnvNames, no_state
from ddppo.envs.vec_env import ObsArrays


class Unsaved:
    """The part of a VecEnv that is about states: each method raises EnvStateError, which names the environments."""

    names: EnvNames

    def state(self) -> dict[str, Any]:
        raise no_state(self.names)

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        raise no_state(self.names)

    def go_on_from(self, state: dict[str, Any]) -> None:
        raise no_state(self.names)
