"""From a configuration to who acts in text."""

import torch

from ddppo.config import Config
from ddppo.domains.text.acting.collector import TextCollector
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.domains.text.turns.local import Turns
from ddppo.errors import ConfigError
from ddppo.models import ActorCritic


def text_collector(
    config: Config, turns: Turns, model: ActorCritic, *, first_env: int, device: torch.device
) -> TextCollector:
    """Return who acts in these environments by the model. first_env: the global index of the first of them.

    Raises ConfigError where episodes would be longer than the model can read.
    """
    num_tokens, most = config.ppo.rollout_steps, model.most_tokens
    if most is not None and num_tokens >= most:  # the value behind the last token is that of another
        raise ConfigError(
            f"ppo.rollout_steps={num_tokens}, the tokens of an episode: the model knows {most} positions: use a "
            f"ppo.rollout_steps of at most {most - 1}"
        )
    wait_ms = config.env.batch_wait_ms
    return TextCollector(
        turns,
        model,
        make_tokenizer(turns.spec, config.model),
        num_tokens=num_tokens,
        first_env=first_env,
        device=device,
        dtype=getattr(torch, config.dtype),
        wait_s=None if wait_ms is None else wait_ms / 1000,
        max_turns=config.env.max_turns,
        top_p=config.model.top_p,
    )
