"""Which tasks are stepped as one batch, and who steps them."""

from collections.abc import Callable

import gymnasium as gym

from ddppo.config import EnvConfig
from ddppo.envs.batched import classic, synthetic
from ddppo.envs.batched.batch import BatchedEnvs
from ddppo.envs.batched.dynamics import Dynamics
from ddppo.envs.batched.native_tasks import make_fastest
from ddppo.envs.faults import EnvNames
from ddppo.envs.scalar.row_env import make_task
from ddppo.envs.vec_env import EnvSpec
from ddppo.plugins import added, imported

_CLASSIC = "gymnasium.envs.classic_control"
# By what Gymnasium makes of an id, which a user may register anew. Paths are imported when a batch is made.
_DYNAMICS: dict[str, Callable[..., Dynamics] | str] = {
    f"{_CLASSIC}.cartpole:CartPoleEnv": classic.CartPole,
    f"{_CLASSIC}.acrobot:AcrobotEnv": classic.Acrobot,
    f"{_CLASSIC}.pendulum:PendulumEnv": classic.Pendulum,
    f"{_CLASSIC}.mountain_car:MountainCarEnv": classic.MountainCar,
    f"{_CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": classic.ContinuousMountainCar,
    "ddppo.envs.tasks.synthetic:SyntheticEnv": synthetic.Synthetic,
    "ddppo.envs.tasks.masked_cartpole:MaskedCartPoleEnv": "ddppo.envs.tasks.masked_cartpole:MaskedCartPole",
    "ddppo.envs.tasks.tmaze:TMazeEnv": "ddppo.envs.tasks.tmaze:TMazes",
}
_IDS = (
    "CartPole-v0",
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "ddppo/Synthetic-v0",
    "ddppo/MaskedCartPole-v0",
    "ddppo/TMaze-v0",
)
_COSTS = ("step_time_s", "reset_time_s")


def batched_ids() -> list[str]:
    """Return the ids of all tasks that are stepped as one batch, those of plugins last."""
    dynamics = added("dynamics")
    return [
        *_IDS,
        *(task for task, keywords in added("tasks").items() if keywords["entry_point"] in dynamics),
    ]


def _dynamics(entry_point: object) -> Callable[..., Dynamics] | None:
    found = (
        _DYNAMICS.get(entry_point) or added("dynamics").get(entry_point)
        if isinstance(entry_point, str)
        else None
    )
    return imported(found) if isinstance(found, str) else found


def why_not_batched(env: EnvConfig) -> str | None:
    """Return why the task cannot be stepped as a batch, and what can; None where it can."""
    registered = gym.registry[env.id.rpartition(":")[2]]
    ours = (
        _dynamics(registered.entry_point) is not None
        and not registered.kwargs
        and not registered.additional_wrappers
    )
    if not ours:
        return f"only {', '.join(batched_ids())} are: use env.backend=auto"
    if env.context is not None:
        return f"with env.context={env.context} every environment is wrapped by itself: use env.backend=auto"
    for name in _COSTS:
        if env.kwargs.get(name):
            return (
                f"with env.kwargs.{name}={env.kwargs[name]} every environment takes that long by itself: "
                "use env.backend=auto"
            )
    return None


def make_batched(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> BatchedEnvs:
    """Step all environments at once in this process. There is nothing to wait for, so timeout_s is not used."""
    registered = gym.registry[env.id.rpartition(":")[2]]
    make = _dynamics(registered.entry_point)
    assert make is not None, registered
    dynamics = make(len(names.indices), **env.kwargs)
    limits = (env.max_episode_steps or registered.max_episode_steps, dynamics.max_episode_steps)
    task = make_task(env)
    try:
        limit = min(filter(None, limits), default=None)
        return make_fastest(env.kwargs, dynamics, task.action_space, spec, names, limit)
    finally:
        task.close()
