"""Keys and values of a language model of Hugging Face while it acts. Imported only when a model=hf acts."""

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Cache

if TYPE_CHECKING:
    from ddppo.domains.text.hf_policy import HuggingFacePolicy


class HuggingFaceCache(Cache):
    """Keys and values of E rows, each of its own length, in the library's layout: `[E, heads, num_tokens, units]`.

    The library attends to one block of keys for all rows of a batch. Therefore the n rows at hand lie in slots 0 to
    n - 1, and all end at the same column: then the block is a view, new tokens are written behind it in place, and a
    token costs the forward pass of one token. A row is moved when that fails: it changes places with another one when
    the set of rows changes, and is shifted when rows have grown by different numbers of tokens, once or twice a turn.

    Aligned at their ends, two tokens of a row are as far apart in the cache as in the text. Sliding windows, chunks
    and ALiBi depend on that distance. What lies to the left of a short row is masked.
    """

    def __init__(self, policy: "HuggingFacePolicy", num_rows: int, num_tokens: int) -> None:
        super().__init__(layers=[])  # no layer of the library: this class keeps all of them
        self._policy = policy
        self._num_rows, self._num_tokens = num_rows, num_tokens
        self._kept: list[
            list[torch.Tensor]
        ] = []  # keys and values of each layer, allocated at its first update
        self._lengths = np.zeros(num_rows, np.int64)
        self._slots = np.arange(num_rows)  # the slot of each row
        self._ends = np.zeros(num_rows, np.int64)  # the column behind each row's last token
        self._reads = set(inspect.signature(policy.body.forward).parameters)
        self._weights = policy.rounded_weights()  # once for all tokens: parameters do not change while acting
        # Of the forward pass under way: its rows, its columns, and where its real tokens are.
        self._num, self._width, self._end = 0, 0, 0
        self._real: tuple[torch.Tensor, torch.Tensor] | None = None

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        num, width = tokens.shape
        # 1. Move rows so that this batch is a block, whose rows all end at the same column with their new tokens.
        end = self._common_end(rows, counts)
        self._align(rows, end - counts)
        order = np.argsort(self._slots[rows])
        self._lengths[rows] += counts
        self._ends[rows] = end
        # 2. New tokens end at the last column as well. Padding before them is read, and not kept.
        lengths, steps = self._lengths[rows][order, None], np.arange(width) - width
        positions, is_real = lengths + steps, -steps <= counts[order, None]
        given = np.take_along_axis(tokens[order], (steps + counts[order, None]).clip(min=0), axis=1)
        seen = np.arange(end) >= end - lengths
        self._num, self._width, self._end = num, width, end
        device = self._policy.value_head.weight.device
        self._real = None
        if not is_real.all():
            row, step = (torch.from_numpy(x).to(device) for x in np.nonzero(is_real))
            self._real = row, step
        # 3. One forward pass. Models that take no positions (OPT, BLOOM) count them from the mask.
        inputs = {
            "input_ids": torch.from_numpy(given).to(device),
            "attention_mask": torch.from_numpy(seen.astype(np.int64)).to(device),
            "position_ids": torch.from_numpy(positions.clip(min=0)).to(device),
            "cache" if "cache" in self._reads else "past_key_values": self,
        }
        with self._policy.rounded_as(self._weights):
            found = self._policy.body(**{k: x for k, x in inputs.items() if k in self._reads}, use_cache=True)
            # 4. Logits behind the last token of each row, in the order in which the rows were given.
            last = found.last_hidden_state[:, -1]
            return self._policy.logits(last[torch.from_numpy(np.argsort(order)).to(device)])

    # -- Where rows are.

    def _common_end(self, rows: np.ndarray, counts: np.ndarray) -> int:
        """Return the column at which all rows shall end with their new tokens.

        The longest row must fit. Beyond that, the end at which most rows need no shift is the best one.
        """
        longest = int((self._lengths[rows] + counts).max())
        ends, num = np.unique(self._ends[rows] + counts, return_counts=True)
        best = int(ends[num.argmax()])
        is_kept = longest <= best <= self._num_tokens and 2 * num.max() > len(rows)
        return best if is_kept else longest

    def _align(self, rows: np.ndarray, ends: np.ndarray) -> None:
        """Move these rows into the first slots, and shift them so that their cached tokens end at `ends` `[n]`."""
        num = len(rows)
        slots, new_ends = self._slots.copy(), self._ends.copy()
        new_ends[rows] = ends
        # Rows beyond the first slots change places with rows that are not of this batch.
        incoming = rows[slots[rows] >= num]
        is_other = np.ones(self._num_rows, bool)
        is_other[rows] = False
        outgoing = np.flatnonzero(is_other & (slots < num))
        slots[incoming], slots[outgoing] = slots[outgoing].copy(), slots[incoming].copy()
        # Copy the tokens of all rows that move, from (slot, column) to (slot, column).
        has_moved = (slots != self._slots) | (new_ends != self._ends)
        moved = np.flatnonzero(has_moved & (self._lengths > 0))
        if len(moved):
            back = np.arange(1, self._lengths[moved].max() + 1)
            which, at = np.nonzero(back <= self._lengths[moved, None])
            row, back = moved[which], back[at]
            device = self._policy.value_head.weight.device
            source, target = (
                (torch.from_numpy(slot[row]).to(device), torch.from_numpy(end[row] - back).to(device))
                for slot, end in ((self._slots, self._ends), (slots, new_ends))
            )
            for both in self._kept:
                for kept in both:
                    kept[target[0], :, target[1]] = kept[source[0], :, source[1]]
        self._slots, self._ends = slots, new_ends

    # -- What layers of the library call.

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values `[n, heads, k, units]`, and return those of all columns."""
        both = (key_states, value_states)
        while len(self._kept) <= layer_idx:
            self._kept.append([])
        if not self._kept[layer_idx]:
            shape = self._num_rows, self._num_tokens
            self._kept[layer_idx] = [x.new_zeros(shape[0], x.shape[1], shape[1], x.shape[3]) for x in both]
        start = self._end - self._width
        for kept, new in zip(self._kept[layer_idx], both, strict=True):
            if self._real is None:
                kept[: self._num, :, start : self._end] = new
            else:
                row, step = self._real
                kept[row, :, start + step] = new[row, :, step]
        keys, values = (kept[: self._num, :, : self._end] for kept in self._kept[layer_idx])
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._end - self._width

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._end - self._width

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._end, 0
