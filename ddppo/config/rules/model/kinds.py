"""The rules of models."""

from ddppo.config.rules.model.encoding import check_encoders
from ddppo.config.rules.model.remembering import OF_MEMORY
from ddppo.config.settings import Config, ModelConfig
from ddppo.errors import ConfigError

_OF_LAYERS = ("hidden_sizes", "activation", "shared_trunk", "log_std_init", "log_std", "squash", *OF_MEMORY)

_OF_IMAGES = ("image_layout", "pixel_max", "precision")

_OF_DICTS = ("image_encoder", "encoders", "vector_sizes", "image_features")

_OF_TOKENS = ("turn_tokens", "obs_tokens", "sampling_temperature", "top_p")

_OF_MODELS = {
    "mlp": (*_OF_LAYERS, "orthogonal"),
    "cnn": (*_OF_LAYERS, *_OF_IMAGES, "conv_layers"),
    "resnet": (*_OF_LAYERS, *_OF_IMAGES, "resnet_channels"),
    "dict": (*_OF_LAYERS, *_OF_IMAGES, *_OF_DICTS, "conv_layers", "resnet_channels"),
    "gnn": ("graph_conv", "graph_layers", "graph_width", "graph_prior", "temperature"),
    "token_policy": (
        *("token_width", "token_layers", "token_heads"),
        *_OF_TOKENS,
    ),
    "hf": ("hf_path", "lora_rank", *_OF_TOKENS),
}


def check_model(config: Config) -> None:
    model, defaults = config.model, ModelConfig()
    ours = _OF_MODELS.get(model.name)  # None of a user's own, which may read any setting
    if ours and model.image_layout == "chw":  # the default of earlier runs, which may go on
        ours = (*ours, "image_layout")
    for name in dict.fromkeys(name for names in _OF_MODELS.values() for name in names):
        if ours and name not in ours and (value := getattr(model, name)) != getattr(defaults, name):
            users = " or ".join(f"model={kind}" for kind, names in _OF_MODELS.items() if name in names)
            raise ConfigError(
                f"model.{name}={value} has no effect with model.name={model.name}: use {users}, or leave it out"
            )
    if model.graph_conv == "attention" and model.graph_width % 4:
        raise ConfigError(
            f"model.graph_width={model.graph_width} with model.graph_conv=attention: its 4 heads share the units "
            f"alike: use a multiple of 4, such as {-(-model.graph_width // 4) * 4}"
        )
    if model.token_width % (2 * model.token_heads):
        raise ConfigError(
            f"model.token_width={model.token_width} with model.token_heads={model.token_heads}: each head needs the "
            f"same even number of units: use a multiple of {2 * model.token_heads}"
        )
    if model.name == "hf" and model.hf_path is None:
        raise ConfigError(
            "model.name=hf needs model.hf_path, a folder with a causal language model or the name of one"
        )
    if model.name in ("token_policy", "hf") and config.ppo.normalize_obs:
        raise ConfigError(
            f"ppo.normalize_obs=true with model.name={model.name}: tokens are names, not numbers: use "
            "ppo.normalize_obs=false"
        )
    if model.name == "gnn" and config.ppo.normalize_obs:
        raise ConfigError(
            "ppo.normalize_obs=true with model.name=gnn: what it observes are numbers of gates and rules, which "
            "name things: use ppo.normalize_obs=false"
        )
    check_encoders(config)
