"""From a task and settings to its tokenizer: the task's own, or bytes."""

import importlib

from ddppo.config import ModelConfig
from ddppo.domains.text.tokenizers.bytes import BytesTokenizer
from ddppo.domains.text.tokenizers.contract import Tokenizer
from ddppo.errors import ConfigError
from ddppo.spaces import EnvSpec
from ddppo.tracebacks import in_one_line

_HAS = ("size", "pad", "end", "begin")


def make_tokenizer(spec: EnvSpec, config: ModelConfig) -> Tokenizer:
    """Return the tokenizer of model.name=hf, else the one that the task names, else bytes. Raises ConfigError."""
    assert spec.action.kind == "text", spec
    if config.name == "hf":
        from ddppo.domains.text.tokenizers.hf import HuggingFaceTokenizer

        assert config.hf_path is not None, "checked before"
        return HuggingFaceTokenizer(config.hf_path, config.turn_tokens, config.obs_tokens)
    limits = {"turn_tokens": config.turn_tokens, "obs_tokens": config.obs_tokens}
    if spec.tokens is None:
        limits["turn_tokens"] = min(config.turn_tokens, spec.action.sizes[0])  # a byte is a character at most
        return BytesTokenizer(**limits)
    said = f"the task's attribute tokens={spec.tokens}"
    module_name, _, name = spec.tokens.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{said}: must be an import path such as my_pkg.words:WordTokenizer")
    try:
        tokenizer: Tokenizer = getattr(importlib.import_module(module_name), name)(**limits)
    except ConfigError:
        raise
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(
            f"{said} cannot be imported and made as {name}(turn_tokens={config.turn_tokens}, "
            f"obs_tokens={config.obs_tokens}): {in_one_line(e)}"
        ) from e
    if lacking := [attribute for attribute in _HAS if not hasattr(tokenizer, attribute)]:
        raise ConfigError(
            f"{said}: a {name} has no {', '.join(lacking)}; see ddppo.domains.text.tokenizers.Tokenizer"
        )
    return tokenizer
