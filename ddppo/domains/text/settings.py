"""Settings of the models that read and write tokens, `model.*`. This file imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        8, "rank of the learned change to each layer of lora_targets; 0 learns all weights", low=0
    )
    chat: str = setting(
        "auto",
        "form of an episode. template: messages in the chat template; text: plain text, prompt\\n> and after each turn "
        "\\nanswer\\n>; auto: template if the tokenizer has one or model.chat_template is given",
        choices=("auto", "template", "text"),
    )
    chat_template: str | None = setting(
        None, "file with a chat template in Jinja, instead of the tokenizer's"
    )
    chat_template_kwargs: dict[str, Any] = setting(
        meaning="more variables of the chat template, e.g. {enable_thinking:false}", factory=dict
    )
    tool_calls: str = setting(
        "auto",
        "how a message names the action: by a call of a tool, in one of the forms of docs/language_models.md, or by a "
        "command. auto: as the chat template writes a call of the environment's tools, else by a command",
        choices=("auto", "command", "hermes", "llama3", "mistral", "qwen3_coder", "glm", "python"),
    )
    stop_tokens: list[str] = setting(
        meaning="more tokens that end a turn, beside those of the tokenizer, its chat template and generation_config",
        factory=list,
    )
    system: str | None = setting(
        None, "text of the system message, instead of the task's; '' is no such message"
    )
    shots: list[Any] | None = setting(
        None,
        "worked examples before the prompt, instead of the task's: a list of [prompt,command,answer,command,...]; "
        "[] is no examples",
    )
    begin_text: bool = setting(
        True,
        "plain text begins with the begin of text, if the tokenizer puts it there; a chat template writes its own",
    )
    long_texts: str = setting(
        "cut_end",
        "a prompt or an answer of more than obs_tokens loses its end (cut_end) or its front (cut_front), or ends the "
        "run (error)",
        choices=("cut_end", "cut_front", "error"),
    )
    lora_alpha: int | None = setting(
        None, "the learned change is multiplied by lora_alpha / lora_rank; null is 2 * lora_rank", low=1
    )
    lora_targets: list[str] = setting(
        meaning="names of the layers that get adapters, e.g. [q_proj,v_proj]; [] is every linear layer but the last",
        factory=list,
    )
    precision: str = setting(
        "float32",
        "float32, or bfloat16: the language model computes in bfloat16, and parameters, optimizer, logits and values "
        "stay float32 (master weights)",
        choices=("float32", "bfloat16"),
    )
    gradient_checkpointing: bool = setting(
        False,
        "keep only the inputs of each layer for the backward pass and compute the layer again: less memory, a third "
        "more time",
    )

    @property
    def alpha(self) -> int:
        """LoRA's factor of the learned change, times its rank."""
        return 2 * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    def check(self) -> None:
        if self.hf_path is None:
            raise ConfigError(
                "model.name=hf needs model.hf_path, a folder with a causal language model or the name of one"
            )
        for name in ("lora_alpha", "lora_targets"):
            if not self.lora_rank and getattr(self, name):
                raise ConfigError(
                    f"model.{name} with model.lora_rank=0 has no effect: all weights are learned, without adapters: "
                    "leave it out, or use a model.lora_rank above 0"
                )
        if self.chat_template is not None and self.chat == "text":
            raise ConfigError(
                f"model.chat_template={self.chat_template} with model.chat=text: plain text has no template: use "
                "model.chat=template, or leave out model.chat_template"
            )
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise ConfigError(
                f"model.chat_template={self.chat_template} is not a file: give the path of a file with a chat template "
                "in Jinja"
            )
        if (wrong := wrong_shots(self.shots)) is not None:
            raise ConfigError(f"model.shots: {wrong}")

    def check_run(self, config: Config, shape: BatchShape) -> None:
        TextSettings.check_run(self, config, shape)
        if self.precision == "bfloat16" and config.dtype != "float32":
            raise ConfigError(f"model.precision=bfloat16 with dtype={config.dtype}: use dtype=float32")


def wrong_shots(shots: Any) -> str | None:
    """Return what is wrong with the form of worked examples, and what it must be; None if nothing is."""
    if shots is None:
        return None
    rule = "a shot is a list of texts: prompt, command, answer, command, ...; the last answer may be left out"
    if not isinstance(shots, Sequence) or isinstance(shots, str):
        return f"{shots!r} is not a list of shots; {rule}"
    for shot in shots:
        is_list = isinstance(shot, Sequence) and not isinstance(shot, str)
        if not is_list or len(shot) < 2 or not all(isinstance(text, str) for text in shot):
            return f"{shot!r} is not a shot; {rule}"
        if not all(text.strip() for text in (shot[0], *shot[1::2])):
            return f"{shot!r} has an empty prompt or command; {rule}"
    return None
