"""From settings to a model: one of ours, one of a plugin, or a user's own class by its import path."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from ddppo.config.model_settings import MODELS, ImageSettings, LayerSettings, ModelSettings
from ddppo.config.variants import model_at
from ddppo.errors import ConfigError, in_one_line
from ddppo.models.actor_critic import MLP, ActorCritic, is_asymmetric
from ddppo.models.recurrent import RecurrentActorCritic
from ddppo.plugins import imported
from ddppo.seeding import derived_seed
from ddppo.spaces import EnvSpec, leaves


def build_model(spec: EnvSpec, config: ModelSettings, seed: int, dtype: torch.dtype) -> ActorCritic:
    """Return the actor-critic that `config` names. Its initial parameters depend on `seed` alone.

    Raises ConfigError for an unknown name, a wrong import path, or a model that cannot be built.
    """
    kind = model_class(config)
    if getattr(kind, "takes_sequences", False) and not kind.takes_text:
        raise ConfigError(
            f"model.name={config.name}: takes_sequences no longer exists: derive {kind.__name__} from "
            "ddppo.domains.text.policy.TokenActorCritic, and leave it out"
        )
    # Text and arrays need different collectors, so a model takes one of them.
    if spec.is_text != kind.takes_text:
        raise ConfigError(
            f"model.name={config.name} with a task of text, and it takes no text: use model=token_policy"
            if spec.is_text
            else f"model.name={config.name} with a task that is not of text, and it takes nothing else: use model=mlp"
        )
    if is_asymmetric(spec) and (config.name in MODELS) and kind is not MLP:
        memory = getattr(config, "memory", "none")
        chosen = f"model.name={config.name}" if memory == "none" else f"model.memory={memory}"
        raise ConfigError(
            f"{chosen}: this task lets its value function read other arrays than its policy, and this model reads the "
            "same for both: use model=mlp, or a model of your own"
        )
    # A setting without effect is an error.
    has_pixels = any(leaf.dtype == "uint8" and len(leaf.shape) == 3 for leaf in leaves(spec.obs))
    if isinstance(config, ImageSettings) and config.pixel_max != ImageSettings().pixel_max and not has_pixels:
        raise ConfigError(
            f"model.pixel_max={config.pixel_max} has no effect: the task observes no image of uint8; leave it out"
        )
    try:
        with seeded(seed):
            return kind(spec, config).to(dtype)
    except ConfigError:
        raise
    except Exception as e:  # a user's model may raise anything
        raise ConfigError(
            f"model.name={config.name}: {kind.__name__}.__init__ raised {in_one_line(e)}"
        ) from e


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator within the context, so that initial parameters depend on the run's seed alone."""
    threads = torch.get_num_threads()
    # Orthogonal initialisation rounds differently with the number of threads, which depends on W: use one thread.
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "model"))
            yield
    finally:
        torch.set_num_threads(threads)


def model_class(config: ModelSettings) -> type[ActorCritic]:
    """Return the class that `config` names. Raises ConfigError if there is none."""
    if config.name not in MODELS:
        return _imported(config.name)
    # model.memory puts a recurrent core on the trunk of this model.
    if isinstance(config, LayerSettings) and config.memory != "none":
        return RecurrentActorCritic
    found: type[ActorCritic] = imported(MODELS[config.name].model)
    return found


def _imported(name: str) -> type[ActorCritic]:
    found = model_at(name)
    if not (isinstance(found, type) and issubclass(found, ActorCritic)):
        raise ConfigError(f"model.name={name}: must be a subclass of ddppo.models.actor_critic.ActorCritic")
    if missing := getattr(found, "__abstractmethods__", None):
        raise ConfigError(f"model.name={name}: does not define {', '.join(sorted(missing))}")
    return found


def part_of(name: str, parts: Iterable[str]) -> str | None:
    """Return the most specific of `parts` that a parameter belongs to: of "critic" and "critic.0", "critic.0.weight"
    belongs to "critic.0".
    """
    return max((part for part in parts if f"{name}.".startswith(f"{part}.")), key=len, default=None)
