"""A causal transformer over tokens, with heads for the next token and for the value of what was said so far.

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

_LONGEST_WAVE = 10_000.0  # positions in one radian of the slowest pair of units


class TokenPolicy(TokenActorCritic):
    """Logits of the token that follows each, divided by model.sampling_temperature, and values.

    Weights begin normal of deviation 1 / sqrt(inputs); smaller by sqrt(2 layers) where blocks add to what they were
    given (GPT-2), by 100 in the policy head and by 10 in the value head, so that it begins by typing anything.
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
        length = int((obs != self.pad).any(dim=0).sum())
        hidden = self.hidden(obs[:, :length], torch.arange(length, device=obs.device))
        behind = (0, 0, 0, obs.shape[1] - length)
        params, values = F.pad(self.logits(hidden), behind), F.pad(self.value_head(hidden), behind)
        return params.flatten(0, 1), values.flatten()

    def at_own(self, obs: Obs, actions: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Say what follows own tokens alone: with 1,000 tokens to choose from that is a third of the work of all."""
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

        place: where rows that are remembered go on, else they begin here.
        """
        x = _norm(self.embedding(tokens))
        waves = self._waves(positions, x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x, waves, place, i)
        return _norm(x)

    def _waves(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return e^(i p w) `[..., k, 1, 1, d / 2]` of positions p, w from 1 down to 1 / _LONGEST_WAVE."""
        first = self.blocks[0]
        assert isinstance(first, Block)
        num = first.num_units // 2
        frequencies = _LONGEST_WAVE ** -(torch.arange(num, dtype=dtype, device=positions.device) / num)
        angles = positions.unsqueeze(-1) * frequencies
        return torch.polar(torch.ones_like(angles), angles)[..., None, None, :]


class Block(nn.Module):
    """Attention to what came before, then a layer of units; each adds to what it was given."""

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
        # Pairs of units of q and k are turned by their waves. [n, k, h, d] -> [n, h, k, d]
        pairs = torch.view_as_complex(qkv[:, :, :2].unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * waves).flatten(-2)
        q, k, v = (part.transpose(1, 2) for part in (turned[:, :, 0], turned[:, :, 1], qkv[:, :, 2]))
        if place is None:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values = place.remembered(index, k, v)
            found = F.scaled_dot_product_attention(q, keys, values, attn_mask=place.seen)
        x = x + self.attention_out(found.transpose(1, 2).flatten(2))
        return x + self.layer_out(F.relu(self.layer_in(_norm(x))).square())


@dataclass(frozen=True, slots=True)
class Place:
    """Where tokens `[n, k]` are appended to rows of a memory, each at its own end.

    memory: keys and values of each block, `[E, h, num_tokens, d]`. rows: `[n]`, None for all. is_real: `[n, k]` bool,
    for others only fill up; None if all are. to: row and position of those that are. seen: `[n, 1, k, length]` bool,
    what each may look at.
    """

    memory: list[tuple[torch.Tensor, torch.Tensor]]
    rows: torch.Tensor | None
    is_real: torch.Tensor | None
    to: tuple[torch.Tensor, torch.Tensor]
    seen: torch.Tensor

    def remembered(self, block: int, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        """Append keys and values `[n, h, k, d]`; return all of these rows, `[n, h, length, d]`."""
        found, (rows, positions) = [], self.to
        for kept, new in zip(self.memory[block], (keys, values), strict=True):
            by_token = new.transpose(1, 2)
            kept[rows, :, positions] = (
                by_token.flatten(0, 1) if self.is_real is None else by_token[self.is_real]
            )
            used = kept[:, :, : self.seen.shape[-1]]
            found.append(used if self.rows is None else used[self.rows])
        return found


class Cache:
    """What a model remembers of E rows, each of its own length, so that a token costs one forward of that token."""

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
        """Append counts[i] of tokens[i] `[k]` to row rows[i], ascending; return logits `[n, V]` of what follows."""
        num, width = tokens.shape
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
            None if num == len(self._lengths) else tensor(rows),
            None if is_real is None else tensor(is_real),
            (tensor(to[0]), tensor(to[1])),
            tensor(np.arange(length) <= positions[:, None, :, None]),
        )
        hidden = self._model.hidden(tensor(tokens), tensor(positions), place)
        return self._model.logits(
            hidden[:, 0] if width == 1 else hidden[tensor(np.arange(num)), tensor(counts - 1)]
        )


def _norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer
