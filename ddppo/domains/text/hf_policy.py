"""A causal language model of Hugging Face as a policy over its own tokens (extra `hf`).

It is trained whole, or by LoRA (Hu et al. 2021, arXiv:2106.09685) with the library peft. `HuggingFacePolicy` is the
model, `HuggingFaceCache` keeps keys and values while acting, `_load` reads the weights.
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

# Values of a model's `layer_types` that name layers with a recurrent state.
_RECURRENT = {"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding"}


class HuggingFacePolicy(TokenActorCritic):
    """Logits come from the language model at model.hf_path, values from a new linear head on its last hidden state.

    With model.lora_rank above 0, the weights of the language model are no parameters: they are not learned, not
    stored in checkpoints, and read from hf_path again.
    """

    Settings = HfSettings

    def __init__(self, spec: EnvSpec, config: HfSettings) -> None:
        super().__init__(spec, config)
        self.temperature = config.sampling_temperature
        self.lm = _load(config)
        lm_config = self.lm.config.get_text_config()
        # BLOOM has no such limit: its attention depends on distances between tokens alone.
        self.most_tokens = getattr(lm_config, "max_position_embeddings", None)
        # Cohere multiplies logits by a factor, Granite divides them, Gemma caps them (see `logits`).
        times, by = (getattr(lm_config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
        self.scale = times / by
        self.softcap: float | None = getattr(lm_config, "final_logit_softcapping", None)
        self.value_head = nn.Linear(self.lm.get_output_embeddings().weight.shape[1], 1, bias=False)
        nn.init.zeros_(self.value_head.weight)
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

    def train(self, mode: bool = True) -> "HuggingFacePolicy":
        """Stay in evaluation mode: with dropout, the learner would compute another policy than the one that acted."""
        return super().train(False)

    def cache(self, num_rows: int, num_tokens: int) -> "HuggingFaceCache":
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
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits / self.temperature

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(input_ids=tokens, use_cache=False).last_hidden_state

    def _heads(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.logits(hidden), self.value_head(hidden).squeeze(-1)

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
                its = self.lm(input_ids=tokens).logits
            finally:
                large.remove()
        if not torch.allclose(ours, its, rtol=1e-3, atol=1e-3):
            raise ConfigError(
                f"model.hf_path={config.hf_path}: its logits are not its output layer applied to the last hidden "
                "state, and model.name=hf supports no others: use another model"
            )


class HuggingFaceCache:
    """Keys and values of E rows, each of its own length: `[E, num_tokens, heads, units]` for each layer.

    The library's cache has one length for all rows. Therefore each call of `extend` builds such a cache from the rows
    at hand, aligned at their ends, padded and masked on the left, and copies the new keys and values out of it.
    Aligned at their ends, two tokens of a row are as far apart in the cache as in the text. Sliding windows, chunks
    and ALiBi depend on that distance, and would count a gap between the cached part of a short row and its new
    tokens.
    """

    def __init__(self, policy: HuggingFacePolicy, num_rows: int, num_tokens: int) -> None:
        self._policy = policy
        self._num_rows, self._num_tokens = num_rows, num_tokens
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lengths = np.zeros(num_rows, np.int64)
        self._reads = set(inspect.signature(policy.body.forward).parameters)

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        from transformers import DynamicCache

        # 1. Positions of cached and of new tokens. The cached parts of all rows end at the same column.
        device = self._policy.value_head.weight.device
        starts, width = self._lengths[rows], tokens.shape[1]
        longest, steps = int(starts.max()), np.arange(width)
        before = np.arange(longest) - longest + starts[:, None]  # positions, negative where padding is
        is_real = steps < counts[:, None]
        # Padding of short parts stays unmasked. It comes later than all real tokens, so none of them attends to it.
        # If it were masked, its own attention in a sliding window would be over nothing, which is NaN, and NaN times
        # a weight of 0 is NaN.
        seen = np.concatenate([before >= 0, np.ones_like(is_real)], axis=1)
        # 2. A cache of the library with the keys and values of these rows.
        cache = DynamicCache()
        if longest:
            at = torch.from_numpy(rows[:, None]).to(device), torch.from_numpy(before.clip(min=0)).to(device)
            for i, kept in enumerate(self._kept):  # [n, longest, heads, units] -> [n, heads, longest, units]
                cache.update(*(part[at].transpose(1, 2) for part in kept), i)
        # 3. One forward pass of the new tokens. Models that take no positions (OPT, BLOOM) count them from the mask.
        inputs = {
            "input_ids": torch.from_numpy(tokens).to(device),
            "attention_mask": torch.from_numpy(seen.astype(np.int64)).to(device),
            "position_ids": torch.from_numpy(starts[:, None] + steps * is_real).to(device),
            "cache"
            if "cache" in self._reads
            else "past_key_values": cache,  # since transformers 5.24, before
        }
        found = self._policy.body(
            **{name: x for name, x in inputs.items() if name in self._reads}, use_cache=True
        )
        # 4. Keep the new keys and values, and return logits behind the last real token of each row.
        self._keep(cache, longest, rows, starts, is_real)
        self._lengths[rows] += counts
        last = torch.from_numpy(counts - 1).to(device)
        return self._policy.logits(found.last_hidden_state[torch.arange(len(rows), device=device), last])

    def _keep(
        self, cache: Any, longest: int, rows: np.ndarray, starts: np.ndarray, is_real: np.ndarray
    ) -> None:
        """Copy the new keys and values, behind column `longest` of the library's cache, to the end of each row."""
        # Allocated at the first call, when the number of layers and their shapes are known.
        row, step = np.nonzero(is_real)
        for i, layer in enumerate(cache.layers):
            both = (layer.keys, layer.values)
            if len(self._kept) <= i:
                shape = (self._num_rows, self._num_tokens)
                keys, values = (x.new_zeros(*shape, x.shape[1], x.shape[3]) for x in both)
                self._kept.append((keys, values))
            for kept, new in zip(self._kept[i], both, strict=True):
                kept[rows[row], starts[row] + step] = new[row, :, longest + step]


def _load(config: HfSettings) -> Any:
    """Return the language model, with LoRA adapters if lora_rank > 0. Raises ConfigError."""
    try:
        import peft
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
            lm = auto.from_pretrained(config.hf_path, dtype=torch.float32)
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
        wanted = peft.LoraConfig(
            r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules="all-linear"
        )
        with warnings.catch_warnings():
            # peft warns that it sets fan_in_fan_out for GPT-2's layers, as they need it.
            warnings.filterwarnings("ignore", "fan_in_fan_out")
            peft.inject_adapter_in_model(wanted, lm)
        _freeze_(lm)
    # Dropout modules of adapters as well.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return lm.eval()


def _freeze_(lm: nn.Module) -> None:
    """Turn parameters that are not learned into buffers, which are not flattened, averaged, sent or stored."""
    for module in lm.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if not p.requires_grad:
                delattr(module, name)
                module.register_buffer(name, p.data, persistent=False)
