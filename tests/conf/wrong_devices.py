"""Command lines about environments that live on a device, which cannot be, with what is said of them."""

import dataclasses

_ENV = "env=cartpole_device env.num_envs=8 ppo.rollout_steps=16 ppo.num_minibatches=2"

LINES = {
    f"{_ENV} {line}": said
    for line, said in {
        "distributed=sync_actors dist.world_size=3": "nothing leaves its device: use distributed=ddp",
        "distributed=central_inference": "which steps environments by env.backend=pool",
        "distributed=ddp_preempt dist.world_size=2": "use distributed=ddp",
        "dist.reduction=ordered": "use dist.reduction=fast",
        "env.num_workers=2": "has no effect with env.backend=device",
        "env.slow_ranks={0:0.1}": "slow ranks sleep on the host",
        "env.context=4": "resets environments without options",
        "env.urls=[ws://a]": "has no effect with env.backend=device",
        "env.max_turns=3": "its actions are no text",
        "env.id=CartPole-v1": "it names a function or class by its import path",
        "env.id=nothing:X": "it cannot be imported (ModuleNotFoundError",
        "env.id=ddppo.envs.tensor_env:X": "it cannot be imported (AttributeError",
        "env.id=collections:OrderedDict": "OrderedDict has no spec",
        "env.kwargs={bla:1}": "does not take this argument; it takes max_episode_steps, dtype",
        "env.simulator=gymnx": "did you mean gymnax?",
        "env.simulator_options={a:1}": "has no effect with env.simulator=native",
        "env.id=tests.conf.wrong_devices:few": "it made 1 environments and was asked for 2",
        "env.id=tests.conf.wrong_devices:elsewhere": "its environments are on meta, and this rank computes on cpu",
        "env.id=tests.conf.wrong_devices:flat": "it returned observations of reset [2, 4]: must be a tensor [2, 5]",
        "env.id=tests.conf.wrong_devices:unsteppable": "raised ZeroDivisionError in step 1",
    }.items()
} | {
    "env=cartpole_device algorithm=dqn": "it acts on the host, or learns from the successor of each step",
    f"{_ENV} env.simulator=rsl_rl env.id=tests.device.fake_simulators:RslRlCartPole ppo=grpo ppo.group_size=2": "this "
    "simulator has one random stream for all its environments",
    "env=cartpole env.simulator=brax": "set env.backend=device",
    "env=remote env.urls=[ws://127.0.0.1:1] env.simulator=gymnax": "set env.backend=device",
    f"{_ENV} model.name=tests.conf.wrong_devices:HostOnly": "its HostCategorical has no sample_on_device(noise)",
}


def __getattr__(name):
    """Make the model `HostOnly`, whose distribution draws on the host alone: these lines are read without torch."""
    if name != "HostOnly":
        raise AttributeError(name)
    from ddppo.models.actor_critic import MLP
    from ddppo.models.distributions import Categorical

    class HostCategorical:
        def __init__(self, params):
            self._own = Categorical(params)

        def __getattr__(self, name):
            if name == "sample_on_device":
                raise AttributeError(name)
            return getattr(self._own, name)

    class HostOnly(MLP):
        def distribution(self, params, mask=None):
            return HostCategorical(params)

    return HostOnly


def _task(num_envs, device):
    from ddppo.envs.native_tasks import TensorCartPole  # these lines are read without torch

    return TensorCartPole(num_envs, device)


def few(num_envs, device, seed):
    return _task(1, device)


def elsewhere(num_envs, device, seed):
    return _task(num_envs, "meta")


def flat(num_envs, device, seed):
    from ddppo.spaces import ArraySpec

    task = _task(num_envs, device)
    task.spec = dataclasses.replace(task.spec, obs=ArraySpec((5,)))
    return task


def unsteppable(num_envs, device, seed):
    task = _task(num_envs, device)
    task.advance = lambda state, actions: 1 / 0
    return task
