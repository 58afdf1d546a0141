"""A small causal transformer over tokens, with one head for the next token and one for the value.

Pre-norm blocks of attention with rotary positions (RoFormer, Su et al. 2021, arXiv:2104.09864) and of squared ReLUs
(Primer, So et al. 2021, arXiv:2109.08668); norms are RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) without gain.
Shapes: n rows of k tokens, h heads of d units.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.settings import TokenPolicySettings
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.models.actor_critic import Obs
from ddppo.spaces import EnvSpec

_LONGEST_WAVE = (
    10_000.0  # the slowest pair of units turns by one radian in so many positions (RoFormer, section 3.2.2)
)


class TokenPolicy(TokenActorCritic):
    """Returns logits of the token that follows each token, divided by model.sampling_temperature, and values.

    Initial weights are normal with deviation 1 / sqrt(inputs), times
    - 1 / sqrt(2 layers) in layers that add to the residual stream (GPT-2: Radford et al. 2019, section 2.3),
    - 0.01 in the policy head, so that the first policy is nearly uniform, and 0.1 in the value head.
    """

    Settings = TokenPolicySettings

    def __init__(self, spec: EnvSpec, config: TokenPolicySettings) -> None:
        super().__init__(spec, config)
        tokenizer = make_tokenizer(spec, config)
        self.size, self.pad = tokenizer.size, tokenizer.pad
        self.temperature = config.sampling_temperature
        width, layers = config.token_width, config.token_layers
        self.embedding = nn.Embedding(self.size, width)
        self.blocks = nn.ModuleList(Block(width, config.token_heads, layers) for _ in range(layers))
        self.policy_head = _linear(width, self.size, gain=0.01)
        self.value_head = _linear(width, 1, gain=0.1)

    @property
    def num_params(self) -> int:
        return self.size

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits `[m * L, V]` and values `[m * L]` of tokens `[m, L]`; 0 behind the end of the longest row."""
        assert isinstance(obs, torch.Tensor), "tokens are one array"
        # Columns that hold nothing but padding are not computed.
        length = int((obs != self.pad).any(dim=0).sum())
        hidden = self.hidden(obs[:, :length], torch.arange(length, device=obs.device))
        behind = (0, 0, 0, obs.shape[1] - length)
        params, values = F.pad(self.logits(hidden), behind), F.pad(self.value_head(hidden), behind)
        return params.flatten(0, 1), values.flatten()

    def at_own(self, obs: Obs, actions: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows `own` of `evaluate_actions`.

        The heads read own rows only. With a vocabulary of 1,000 tokens this takes a third of the time of all rows.
        """
        assert isinstance(obs, torch.Tensor), "tokens are one array"
        hidden = self.hidden(obs, torch.arange(obs.shape[1], device=obs.device)).flatten(0, 1)[own]
        return self.logits(hidden), self.value_head(hidden).squeeze(-1)

    def num_products(self) -> int:
        return sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()

    def cache(self, num_rows: int, num_tokens: int) -> "Cache":
        return Cache(self, num_rows, num_tokens)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.policy_head(hidden) / self.temperature

    def hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, place: "Place | None" = None
    ) -> torch.Tensor:
        """Return features `[n, k, width]` of tokens `[n, k]` at positions `[k]` or `[n, k]`.

        Args:
            place: where the tokens are appended to cached rows. None: rows are whole and start at position 0.
        """
        x = _norm(self.embedding(tokens))
        waves = self._waves(positions, x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x, waves, place, i)
        return _norm(x)

    def _waves(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the rotations e^(i p w) `[..., k, 1, 1, d / 2]` of positions p.

        The frequencies w fall geometrically from 1 to nearly 1 / _LONGEST_WAVE (RoFormer, section 3.2.2).
        """
        first = self.blocks[0]
        assert isinstance(first, Block)
        num = first.num_units // 2
        frequencies = _LONGEST_WAVE ** -(torch.arange(num, dtype=dtype, device=positions.device) / num)
        angles = positions.unsqueeze(-1) * frequencies
        return torch.polar(torch.ones_like(angles), angles)[..., None, None, :]


class Block(nn.Module):
    """A layer of the transformer: causal attention, then an MLP; each adds to the residual stream."""

    def __init__(self, width: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.num_heads, self.num_units = num_heads, width // num_heads
        added = (2 * num_layers) ** -0.5
        self.attention_in = _linear(width, 3 * width)
        self.attention_out = _linear(width, width, added)
        self.layer_in = _linear(width, 4 * width)
        self.layer_out = _linear(4 * width, width, added)

    def forward(
        self, x: torch.Tensor, waves: torch.Tensor, place: "Place | None", index: int
    ) -> torch.Tensor:
        qkv = self.attention_in(_norm(x)).unflatten(-1, (3, self.num_heads, self.num_units))
        # Rotary positions: a pair of units of q and k is one complex number, which is multiplied by its rotation.
        # Layout: [n, k, h, d] -> [n, h, k, d].
        pairs = torch.view_as_complex(qkv[:, :, :2].unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * waves).flatten(-2)
        q, k, v = (part.transpose(1, 2) for part in (turned[:, :, 0], turned[:, :, 1], qkv[:, :, 2]))
        if place is None:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values = place.append_(index, k, v)
            found = F.scaled_dot_product_attention(q, keys, values, attn_mask=place.seen)
        x = x + self.attention_out(found.transpose(1, 2).flatten(2))
        return x + self.layer_out(F.relu(self.layer_in(_norm(x))).square())


@dataclass(frozen=True, slots=True)
class Place:
    """Where tokens `[n, k]` are appended to the cached rows, each row at its own end."""

    memory: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each block, `[E, h, num_tokens, d]`
    rows: torch.Tensor | None  # `[n]`, ascending; None for all rows
    is_real: torch.Tensor | None  # `[n, k]` bool, False for padding; None if there is no padding
    to: tuple[torch.Tensor, torch.Tensor]  # row and position of each token that is no padding
    seen: torch.Tensor  # `[n, 1, k, length]` bool: the cached positions that each token attends to

    def append_(self, block: int, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        """Append keys and values `[n, h, k, d]`; return all keys and values of these rows, `[n, h, length, d]`."""
        found, (rows, positions) = [], self.to
        for kept, new in zip(self.memory[block], (keys, values), strict=True):
            by_token = new.transpose(1, 2)  # [n, h, k, d] -> [n, k, h, d]
            kept[rows, :, positions] = (
                by_token.flatten(0, 1) if self.is_real is None else by_token[self.is_real]
            )
            used = kept[:, :, : self.seen.shape[-1]]
            found.append(used if self.rows is None else used[self.rows])
        return found


class Cache:
    """Keys and values of E rows, each of its own length, so that a token costs the forward pass of one token."""

    def __init__(self, model: TokenPolicy, num_rows: int, num_tokens: int) -> None:
        self._model = model
        like = model.value_head.weight
        self.device = like.device
        self._memory = []
        for block in model.blocks:
            assert isinstance(block, Block)
            shape = (num_rows, block.num_heads, num_tokens, block.num_units)
            self._memory.append((like.new_zeros(shape), like.new_zeros(shape)))
        self._lengths = np.zeros(num_rows, np.int64)

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Append counts[i] of tokens[i] `[k]` to row rows[i]; return logits `[n, V]` of the next tokens.

        `rows` are ascending. See TokenCache.extend.
        """
        num, width = tokens.shape
        # Each part starts at the end of its own row. With one token each, no part is padded.
        positions = self._lengths[rows, None] + np.arange(width)
        self._lengths[rows] += counts
        length = int(self._lengths[rows].max())
        is_real = None if width == 1 else np.arange(width) < counts[:, None]
        to = (rows.repeat(width), positions.ravel())
        if is_real is not None:
            to = (to[0][is_real.ravel()], to[1][is_real.ravel()])

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self.device)

        place = Place(
            self._memory,
            rows=None if num == len(self._lengths) else tensor(rows),
            is_real=None if is_real is None else tensor(is_real),
            to=(tensor(to[0]), tensor(to[1])),
            seen=tensor(np.arange(length) <= positions[:, None, :, None]),  # causal: up to its own position
        )
        hidden = self._model.hidden(tensor(tokens), tensor(positions), place)
        # The next token follows the last real token of each part.
        return self._model.logits(
            hidden[:, 0] if width == 1 else hidden[tensor(np.arange(num)), tensor(counts - 1)]
        )


def _norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer
