"""The rules of policies with memory: what they need of the batch, and who can act with one."""

from ddppo.config.settings import Config, section, sections
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

_THAT_REMEMBER = (
    *("ddp", "ddp_preempt", "sync_actors", "multi_learner"),
    *("env_workers", "central_inference"),
)


def check_memory(config: Config, shape: BatchShape) -> None:
    """Raise ConfigError where model.memory cannot be trained, and for ppo.sequence_length without any memory."""
    memory, length = getattr(config.model, "memory", "none"), config.ppo.sequence_length
    if memory != "none":
        check_remembering(config, shape, f"model.memory={memory}")
    elif (
        length is not None and ":" not in config.model.name
    ):  # of one's own models the door asks whether they remember
        raise ConfigError(
            f"ppo.sequence_length={length} has no effect with model.memory=none: use model=lstm or gru, or leave it out"
        )


def check_remembering(config: Config, shape: BatchShape, said: str) -> None:
    """Raise ConfigError where a model with memory cannot be trained; `said` is what brings the memory."""
    if config.dist.topology not in _THAT_REMEMBER:
        raise ConfigError(
            f"distributed={config.dist.topology} with {said}: only {', '.join(_THAT_REMEMBER)} carry what a policy "
            "remembers: use distributed=ddp"
        )
    if config.ppo.algorithm != "ppo":
        raise ConfigError(f"ppo.algorithm={config.ppo.algorithm} with {said}: use ppo.algorithm=ppo")
    for name in sections():
        section(config, name).check_memory(said)
    length, steps = config.ppo.sequence_length, shape.rollout_steps
    if length is not None and steps % length:
        divisors = [n for n in range(1, steps + 1) if steps % n == 0]
        near = [*[n for n in divisors if n < length][-1:], *[n for n in divisors if n > length][:1]]
        raise ConfigError(
            f"ppo.sequence_length={length} does not divide the {steps} steps of a rollout: use "
            f"{' or '.join(map(str, near))}, or another ppo.rollout_steps"
        )
    if length is not None and config.dist.topology == "ddp_preempt":
        raise ConfigError(
            f"ppo.sequence_length={length} with distributed=ddp_preempt, whose rollouts end after any number of steps: "
            "leave it out, so that each is one sequence"
        )
    num_sequences = shape.num_envs * (steps // length if length else 1)
    if shape.num_minibatches > num_sequences:
        raise ConfigError(
            f"ppo.num_minibatches={shape.num_minibatches} with {said}: minibatches are of whole sequences, of which "
            f"there are {num_sequences}: use ppo.num_minibatches={num_sequences} or less, a smaller "
            "ppo.sequence_length, or more env.num_envs"
        )
