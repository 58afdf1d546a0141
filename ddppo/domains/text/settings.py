"""Settings of the models that read and write tokens, `model.*`. This file imports no torch."""

from dataclasses import dataclass

from ddppo.config.fields import setting
from ddppo.config.model_settings import ModelSettings
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape


@dataclass(slots=True)
class TextSettings(ModelSettings):
    """Settings of every policy over tokens: how much it reads and writes, and how it samples."""

    turn_tokens: int = setting(64, "most tokens of a turn that the policy writes", low=1)
    obs_tokens: int = setting(
        256, "most tokens of the prompt, and of each answer, that the policy reads", low=1
    )
    sampling_temperature: float = setting(
        1.0, "logits are divided by this, in acting and in learning", above=0
    )
    top_p: float = setting(
        1.0,
        "nucleus sampling: tokens are drawn from the likeliest ones that together reach this probability, "
        "and the learner uses the same distribution; 1 is all tokens",
        above=0,
        high=1,
    )

    def check_run(self, config: Config, shape: BatchShape) -> None:
        section = config.training.section
        if config.training.normalize_obs:
            raise ConfigError(
                f"{section}.normalize_obs=true with model.name={self.name}: tokens are names, not numbers: use "
                f"{section}.normalize_obs=false"
            )
        if config.dist.reduction == "ordered":
            raise ConfigError(
                f"model.name={self.name} with dist.reduction=ordered: whole episodes are not computed in shards: use "
                "dist.reduction=fast"
            )


def text_settings(model: ModelSettings) -> TextSettings:
    """Return `model` as the settings of a policy over tokens. Raises ConfigError if it is another model's."""
    if not isinstance(model, TextSettings):
        raise ConfigError(
            f"model.name={model.name}: a policy of text has settings such as model.turn_tokens: give its class "
            "`Settings = TextSettings`, or a dataclass derived from it (ddppo.domains.text.settings)"
        )
    return model


@dataclass(slots=True)
class TokenPolicySettings(TextSettings):
    """A small causal transformer."""

    name: str = setting("token_policy", "this model's")
    token_width: int = setting(64, "units of each token in each layer", low=8)
    token_layers: int = setting(2, "layers, each of attention and an MLP", low=1, high=64)
    token_heads: int = setting(4, "heads of attention, of token_width / token_heads units each", low=1)

    def check(self) -> None:
        if self.token_width % (2 * self.token_heads):
            raise ConfigError(
                f"model.token_width={self.token_width} with model.token_heads={self.token_heads}: each head needs the "
                f"same even number of units: use a multiple of {2 * self.token_heads}"
            )


@dataclass(slots=True)
class HfSettings(TextSettings):
    """A causal language model of Hugging Face, trained whole or by LoRA."""

    name: str = setting("hf", "this model's")
    hf_path: str | None = setting(
        None, "causal language model of Hugging Face, a folder or a name that its library finds"
    )
    lora_rank: int = setting(
        8, "rank of the learned change to each linear layer; 0 learns all weights", low=0
    )

    def check(self) -> None:
        if self.hf_path is None:
            raise ConfigError(
                "model.name=hf needs model.hf_path, a folder with a causal language model or the name of one"
            )
