"""A causal language model of Hugging Face as a policy over its own tokens, trained whole or by LoRA (extra `hf`).

LoRA: Hu et al. 2021, arXiv:2106.09685; by the library peft.
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.settings import HfSettings
from ddppo.errors import ConfigError, in_one_line
from ddppo.models.actor_critic import Obs
from ddppo.package import install_command
from ddppo.spaces import EnvSpec

_RECURRENT = {"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding"}  # of layer_types


class HuggingFacePolicy(TokenActorCritic):
    """Logits of the language model in the folder, or of the name, model.hf_path, and values by a head of its own.

    With model.lora_rank above 0 the language model's own weights are no parameters: they are neither learned nor in
    checkpoints, and come from hf_path again.
    """

    Settings = HfSettings

    def __init__(self, spec: EnvSpec, config: HfSettings) -> None:
        super().__init__(spec, config)
        self.temperature = config.sampling_temperature
        self.lm = _loaded(config)
        said = self.lm.config.get_text_config()
        # BLOOM's says none: distances between tokens are all that it knows.
        self.most_tokens = getattr(said, "max_position_embeddings", None)
        times, by = (getattr(said, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
        self.scale = times / by  # Cohere's and Granite's
        self.softcap: float | None = getattr(said, "final_logit_softcapping", None)  # Gemma's
        self.value_head = nn.Linear(self.lm.get_output_embeddings().weight.shape[1], 1, bias=False)
        nn.init.zeros_(self.value_head.weight)
        self._check_head(config)

    @property
    def body(self) -> Any:
        """The language model without its output layer. Llama 4's does not say which part that is."""
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

    def train(self, mode: bool = True) -> "HuggingFacePolicy":
        """Stay as in evaluation: dropout would make what is learned another policy than what acted."""
        return super().train(False)

    def cache(self, num_rows: int, num_tokens: int) -> "HuggingFaceCache":
        return HuggingFaceCache(self, num_rows, num_tokens)

    @contextmanager
    def narrowed(self, num_tokens: int) -> Iterator[None]:
        said = self.lm.config.get_text_config()
        wide = {name: getattr(said, name, None) for name in ("sliding_window", "attention_chunk_size")}
        wide = {name: width for name, width in wide.items() if width is not None and width > num_tokens}
        for name in wide:
            setattr(said, name, num_tokens)
        try:
            yield
        finally:
            for name, width in wide.items():
                setattr(said, name, width)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.lm.get_output_embeddings()(hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits / self.temperature

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=tokens, use_cache=False).last_hidden_state

    def _heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.logits(hidden), self.value_head(hidden).squeeze(-1)

    def _check_head(self, config: HfSettings) -> None:
        """See that logits are what the output layer says of the last hidden state, so that few need be computed."""
        if self.value_head.weight.is_meta:
            return
        head = self.lm.get_output_embeddings()
        tokens = torch.arange(8)[None] % self.num_params  # several: that of padding may be 0 throughout
        with torch.no_grad():
            # Made large, as those of a trained model are: a cap of 30 does not show in logits near 0.
            size = head(self._hidden(tokens)).abs().max().clamp(min=1e-6)
            large = head.register_forward_hook(lambda layer, inputs, logits: logits * (100.0 / size))
            try:
                ours = self.logits(self._hidden(tokens)) * self.temperature
                its = self.lm(input_ids=tokens).logits
            finally:
                large.remove()
        if not torch.allclose(ours, its, rtol=1e-3, atol=1e-3):
            raise ConfigError(
                f"model.hf_path={config.hf_path}: its logits are more than what its output layer says of the last "
                "hidden state, which model.name=hf does not know: use another model"
            )


class HuggingFaceCache:
    """Keys and values of E rows, each of its own length, `[E, num_tokens, heads, units]` of each layer.

    The library's cache knows one length for all rows. So it is given those of the rows at hand with their ends side by
    side, padded on the left and masked there, and what it adds is taken out of it. Then two tokens of a row are as far
    apart in the cache as they are in the text, which sliding windows, chunks and ALiBi count: a gap between what a
    short row remembers and what it reads would be counted, too.
    """

    def __init__(self, policy: HuggingFacePolicy, num_rows: int, num_tokens: int) -> None:
        self._policy = policy
        self._num_rows, self._num_tokens = num_rows, num_tokens
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lengths = np.zeros(num_rows, np.int64)
        self._reads = set(inspect.signature(policy.body.forward).parameters)

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        from transformers import DynamicCache

        device = self._policy.value_head.weight.device
        starts, width = self._lengths[rows], tokens.shape[1]
        longest, steps = int(starts.max()), np.arange(width)
        before = np.arange(longest) - longest + starts[:, None]  # positions, negative where padding is
        is_real = steps < counts[:, None]
        # What fills up short parts is seen by none but itself: it is later. Were it masked, it would see nothing at all
        # in a window, and attention of nothing is NaN, which a weight of 0 does not undo.
        seen = np.concatenate([before >= 0, np.ones_like(is_real)], axis=1)
        cache = DynamicCache()
        if longest:
            at = torch.from_numpy(rows[:, None]).to(device), torch.from_numpy(before.clip(min=0)).to(device)
            for i, kept in enumerate(self._kept):  # [n, longest, heads, units] -> [n, heads, longest, units]
                cache.update(*(part[at].transpose(1, 2) for part in kept), i)
        inputs = {
            "input_ids": torch.from_numpy(tokens).to(device),
            "attention_mask": torch.from_numpy(seen.astype(np.int64)).to(device),
            "position_ids": torch.from_numpy(starts[:, None] + steps * is_real).to(device),
            "cache" if "cache" in self._reads else "past_key_values": cache,  # since 5.24, and before
        }
        # Models that take no positions (OPT, BLOOM) count those of the mask.
        found = self._policy.body(
            **{name: x for name, x in inputs.items() if name in self._reads}, use_cache=True
        )
        self._keep(cache, longest, rows, starts, is_real)
        self._lengths[rows] += counts
        last = torch.from_numpy(counts - 1).to(device)
        return self._policy.logits(found.last_hidden_state[torch.arange(len(rows), device=device), last])

    def _keep(
        self, cache: Any, longest: int, rows: np.ndarray, starts: np.ndarray, is_real: np.ndarray
    ) -> None:
        """Take out of the library's cache what follows `longest`, each row's to its own end."""
        row, step = np.nonzero(is_real)
        for i, layer in enumerate(cache.layers):
            both = (layer.keys, layer.values)
            if len(self._kept) <= i:
                shape = (self._num_rows, self._num_tokens)
                keys, values = (x.new_zeros(*shape, x.shape[1], x.shape[3]) for x in both)
                self._kept.append((keys, values))
            for kept, new in zip(self._kept[i], both, strict=True):
                kept[rows[row], starts[row] + step] = new[row, :, longest + step]


def _loaded(config: HfSettings) -> Any:
    """Return the language model, with LoRA if it is to have it."""
    try:
        import peft
        import transformers
    except ImportError as e:
        raise ConfigError(
            f"model.name=hf needs packages that are not installed: {install_command('hf')}"
        ) from e
    try:
        auto = transformers.AutoModelForCausalLM
        if torch.get_default_device().type == "meta":  # its size is asked for
            lm = auto.from_config(transformers.AutoConfig.from_pretrained(config.hf_path))
        else:
            lm = auto.from_pretrained(config.hf_path, dtype=torch.float32)
    except Exception as e:  # of files, the network, or a model's own code
        raise ConfigError(
            f"model.hf_path={config.hf_path}: no causal language model can be had of it: {in_one_line(e)}"
        ) from e
    kinds = set(getattr(lm.config.get_text_config(), "layer_types", None) or [])
    if getattr(lm, "_is_stateful", False) or kinds & _RECURRENT:
        raise ConfigError(
            f"model.hf_path={config.hf_path}: {type(lm).__name__} has recurrent or convolutional layers, whose memory "
            "model.name=hf cannot keep for rows of different lengths: use a model whose layers are all attention, such "
            "as Llama, Mistral, Qwen3 or Gemma 3"
        )
    if config.lora_rank:
        wanted = peft.LoraConfig(
            r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules="all-linear"
        )
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "fan_in_fan_out"
            )  # of GPT-2's layers; it is set as they need it
            peft.inject_adapter_in_model(wanted, lm)
        _freeze_(lm)
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return lm.eval()


def _freeze_(lm: nn.Module) -> None:
    """Make buffers of all parameters that are not learned: buffers are not flattened, averaged, sent or stored."""
    for module in lm.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if not p.requires_grad:
                delattr(module, name)
                module.register_buffer(name, p.data, persistent=False)
