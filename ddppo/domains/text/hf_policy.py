"""A causal language model of Hugging Face as a policy over its own tokens (extra `hf`).

It is trained whole, or by LoRA (Hu et al. 2021, arXiv:2106.09685) with the library peft. `HuggingFacePolicy` is the
model, `load` reads the weights, and hf_cache.py keeps keys and values while acting.
"""

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from ddppo.domains.text.conversations import language_tokenizer
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.settings import HfSettings
from ddppo.errors import ConfigError, in_one_line
from ddppo.models.actor_critic import Obs
from ddppo.models.distributions import ActionDistribution
from ddppo.package import install_command
from ddppo.spaces import EnvSpec

if TYPE_CHECKING:
    from ddppo.domains.text.hf_cache import HuggingFaceCache

# Of bfloat16. Nets of the tests, with 4 layers and large random adapters, differ by up to 0.12.
_ROUNDS_BY = 0.2
# Values of a model's `layer_types` that name layers with a recurrent state.
_RECURRENT = {"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding"}


class HuggingFacePolicy(TokenActorCritic):
    """Logits come from the language model at model.hf_path, values from a new linear head on its last hidden state.

    With model.lora_rank above 0, the weights of the language model are no parameters: they are not learned, not
    stored in checkpoints, and read from hf_path again.

    With model.precision=bfloat16 the language model computes in bfloat16. Parameters, gradients, moments, logits and
    values stay float32: a parameter is a master weight, which is rounded whenever it is used. Weights that are not
    learned are kept in bfloat16.
    """

    Settings = HfSettings
    exporter = "ddppo.domains.text.hf_export:export"
    masks_typed = True
    typable: torch.Tensor  # [V] bool

    def __init__(self, spec: EnvSpec, config: HfSettings) -> None:
        super().__init__(spec, config)
        self.config = config
        self.temperature = config.sampling_temperature
        self.lm = load(config)
        self.rounds_to = torch.bfloat16 if config.precision == "bfloat16" else None
        self.rounds_by = 0.0 if self.rounds_to is None else _ROUNDS_BY
        self._rounded: dict[int, torch.Tensor] = {}  # of each `_Rounded`, within `rounded_as`
        if self.rounds_to is not None:
            _round_parameters_(self.lm, self._rounded)
        if config.gradient_checkpointing:
            _checkpoint_layers_(self.lm, config)
        lm_config = self.lm.config.get_text_config()
        # BLOOM has no such limit: its attention depends on distances between tokens alone.
        self.most_tokens = getattr(lm_config, "max_position_embeddings", None)
        # Cohere multiplies logits by a factor, Granite divides them, Gemma caps them (see `logits`).
        times, by = (getattr(lm_config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
        self.scale = times / by
        self.softcap: float | None = getattr(lm_config, "final_logit_softcapping", None)
        self.value_head = nn.Linear(self.lm.get_output_embeddings().weight.shape[1], 1, bias=False)
        nn.init.zeros_(self.value_head.weight)
        if self.value_head.weight.is_meta:
            typed = np.ones(self.num_params, bool)
        else:
            typed = language_tokenizer(config, spec.tools or ()).typed
        self.register_buffer("typable", torch.from_numpy(typed), persistent=False)
        self._check_head(config)

    @property
    def body(self) -> Any:
        """The language model without its output layer. Llama 4 does not name it as its base model."""
        return self.lm.model if self.lm.base_model is self.lm else self.lm.base_model

    @property
    def num_params(self) -> int:
        return self.lm.get_output_embeddings().weight.shape[0]

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits `[m * L, V]` and values `[m * L]` of tokens `[m, L]`."""
        assert isinstance(obs, torch.Tensor), "tokens are one array"
        return self._heads(self._hidden(obs).flatten(0, 1))

    def at_own(self, obs: Obs, actions: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(obs, torch.Tensor), "tokens are one array"
        return self._heads(self._hidden(obs).flatten(0, 1)[own])

    def distribution(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> ActionDistribution:
        """Return the distribution of the next token; special tokens that no turn holds have probability 0."""
        return super().distribution(params, self.typable if mask is None else mask & self.typable)

    def train(self, mode: bool = True) -> "HuggingFacePolicy":
        """Stay in evaluation mode: with dropout, the learner would compute another policy than the one that acted."""
        return super().train(False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "HuggingFacePolicy":
        """Keep buffers in bfloat16, weights that are not learned, where a model is cast to float32."""

        def kept(x: torch.Tensor) -> torch.Tensor:
            return fn(x).to(x.dtype) if x.dtype == self.rounds_to else fn(x)

        super()._apply(kept, recurse)
        return self

    def cache(self, num_rows: int, num_tokens: int) -> "HuggingFaceCache":
        from ddppo.domains.text.hf_cache import HuggingFaceCache  # imports transformers

        return HuggingFaceCache(self, num_rows, num_tokens)

    @contextmanager
    def narrowed(self, num_tokens: int) -> Iterator[None]:
        lm_config = self.lm.config.get_text_config()
        wide = {name: getattr(lm_config, name, None) for name in ("sliding_window", "attention_chunk_size")}
        wide = {name: width for name, width in wide.items() if width is not None and width > num_tokens}
        for name in wide:
            setattr(lm_config, name, num_tokens)
        try:
            yield
        finally:
            for name, width in wide.items():
                setattr(lm_config, name, width)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.lm.get_output_embeddings()(hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        logits = logits.to(self.value_head.weight.dtype)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits if self.temperature == 1.0 else logits / self.temperature

    def rounded_weights(self) -> dict[int, torch.Tensor]:
        """Return the parameters as they are used, in bfloat16: none without model.precision=bfloat16."""
        lists = [x for x in self.lm.modules() if isinstance(x, parametrize.ParametrizationList)]
        return {x[0].key: x.original.detach().to(torch.bfloat16) for x in lists if isinstance(x[0], _Rounded)}

    @contextmanager
    def rounded_as(self, weights: dict[int, torch.Tensor]) -> Iterator[None]:
        """Return a context in which parameters are not rounded again, but used as `weights`."""
        self._rounded.update(weights)
        try:
            yield
        finally:
            self._rounded.clear()

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=tokens, use_cache=False).last_hidden_state

    def _heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.logits(hidden), self.value_head(hidden.to(self.value_head.weight.dtype)).squeeze(-1)

    def _check_head(self, config: HfSettings) -> None:
        """Check that `logits` of the last hidden state are the logits of the language model.

        Only then may the learner compute logits for own tokens alone. Raises ConfigError.
        """
        if self.value_head.weight.is_meta:
            return
        head = self.lm.get_output_embeddings()
        tokens = torch.arange(8)[None] % self.num_params  # several, because the embedding of padding may be 0
        with torch.no_grad():
            # Scale logits up to 100, as large as those of a trained model: a cap of 30 does not change logits near 0.
            size = head(self._hidden(tokens)).abs().max().clamp(min=1e-6)
            large = head.register_forward_hook(lambda layer, inputs, logits: logits * (100.0 / size))
            try:
                ours = self.logits(self._hidden(tokens)) * self.temperature
                its = self.lm(input_ids=tokens).logits.to(ours.dtype)
            finally:
                large.remove()
        close = 1e-3 if self.rounds_to is None else 0.03
        if not torch.allclose(ours, its, rtol=close, atol=100 * close if self.rounds_to else close):
            raise ConfigError(
                f"model.hf_path={config.hf_path}: its logits are not its output layer applied to the last hidden "
                "state, and model.name=hf supports no others: use another model"
            )


class _Rounded(nn.Module):
    """A parametrization (torch.nn.utils.parametrize): the weight that a layer uses is its parameter in bfloat16."""

    def __init__(self, key: int, rounded: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.key, self._rounded = key, rounded

    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        found = self._rounded.get(self.key)
        return parameter.to(torch.bfloat16) if found is None else found


def _round_parameters_(lm: nn.Module, rounded: dict[int, torch.Tensor]) -> None:
    """Let layers compute with their parameters in bfloat16. LoRA's stay as they are: peft computes with them so."""
    keys: dict[nn.Parameter, int] = {}  # a weight may be shared by two layers
    for name, module in list(lm.named_modules()):
        for of_module, p in list(module.named_parameters(recurse=False)):
            if ".lora_" not in f".{name}.{of_module}" and p.is_floating_point():
                key = keys.setdefault(p, len(keys))
                parametrize.register_parametrization(module, of_module, _Rounded(key, rounded), unsafe=True)


def _checkpoint_layers_(lm: nn.Module, config: HfSettings) -> None:
    """Let the learner keep only the inputs of each layer, and compute the layer again in the backward pass."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in lm.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing=true: {type(lm).__name__} at model.hf_path={config.hf_path} has no layers "
            "that can be computed again: leave it out"
        )
    # The library's own way asks for training mode, in which layers would draw dropout.
    for layer in layers:
        layer.forward = types.MethodType(_checkpointed, layer)


def _checkpointed(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = types.MethodType(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def load(config: HfSettings) -> Any:
    """Return the language model, with LoRA adapters if lora_rank > 0. Raises ConfigError."""
    try:
        import peft  # noqa: F401, needed if lora_rank > 0
        import transformers
    except ImportError as e:
        raise ConfigError(
            f"model.name=hf needs packages that are not installed: {install_command('hf')}"
        ) from e
    try:
        auto = transformers.AutoModelForCausalLM
        if torch.get_default_device().type == "meta":  # the caller wants shapes alone: load no weights
            lm = auto.from_config(transformers.AutoConfig.from_pretrained(config.hf_path))
        else:
            # Parameters are float32. Weights that LoRA does not learn may be kept in fewer bits.
            is_rounded = config.precision == "bfloat16" and config.lora_rank
            lm = auto.from_pretrained(config.hf_path, dtype=torch.bfloat16 if is_rounded else torch.float32)
    except Exception as e:  # of files, the network, or a model's own code
        raise ConfigError(
            f"model.hf_path={config.hf_path}: no causal language model can be loaded from it: {in_one_line(e)}"
        ) from e
    # Recurrent and convolutional layers keep one state for all rows of a batch, which cannot be cut by row.
    kinds = set(getattr(lm.config.get_text_config(), "layer_types", None) or [])
    if getattr(lm, "_is_stateful", False) or kinds & _RECURRENT:
        raise ConfigError(
            f"model.hf_path={config.hf_path}: {type(lm).__name__} has recurrent or convolutional layers, whose memory "
            "model.name=hf cannot keep for rows of different lengths: use a model whose layers are all attention, such "
            "as Llama, Mistral, Qwen3 or Gemma 3"
        )
    # LoRA adapters are added in place; all other weights become buffers.
    if config.lora_rank:
        _add_lora_(lm, config)
        _freeze_(lm)
    # Dropout modules of adapters as well.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return lm.eval()


def _add_lora_(lm: nn.Module, config: HfSettings) -> None:
    """Add adapters to the layers that model.lora_targets names. Raises ConfigError if there are none."""
    import peft

    named = ",".join(config.lora_targets)
    wanted = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.alpha,
        target_modules=list(config.lora_targets) or "all-linear",
    )
    try:
        with warnings.catch_warnings():
            # peft warns that it sets fan_in_fan_out for GPT-2's layers, as they need it.
            warnings.filterwarnings("ignore", "fan_in_fan_out")
            peft.inject_adapter_in_model(wanted, lm)
    except ValueError as e:
        layers = sorted({name.split(".")[-1] for name, x in lm.named_modules() if hasattr(x, "weight")})
        raise ConfigError(
            f"model.lora_targets=[{named}]: {type(lm).__name__} has no such layers, or peft cannot adapt them "
            f"({in_one_line(e):.150}): its layers with weights are called {', '.join(layers)}"
        ) from e
    for p in lm.parameters():
        if p.requires_grad:
            p.data = p.data.float()  # an adapter has the type of its layer, which may be bfloat16


def _freeze_(lm: nn.Module) -> None:
    """Turn parameters that are not learned into buffers, which are not flattened, averaged, sent or stored."""
    for module in lm.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if not p.requires_grad:
                delattr(module, name)
                module.register_buffer(name, p.data, persistent=False)
