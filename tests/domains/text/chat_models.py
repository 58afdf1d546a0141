"""Tiny language models with chat templates: bytes as tokens, and the special tokens that a template writes."""

import re
from functools import cache

import tokenizers
import torch
import transformers

CHATML = """{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
<|im_start|>system
You are a small model.<|im_end|>
{% endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s{}]{1,40}[|｜]>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn|pad)>|\[/?[A-Z_]{3,30}\]"
)


def special_tokens(template):
    """The names of special tokens that a template writes: <|name|>, <s>, <bos>, [INST] and their like."""
    return sorted(set(_SPECIAL.findall(template)))


def tokenizer_of(template=None, *, bos="<s>", eos="</s>", special=()):
    """A tokenizer of bytes with the special tokens of a template, and this template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, [])
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    names = dict.fromkeys([bos, eos, "<pad>", *special, *special_tokens(template or "")])
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token="<pad>",
        additional_special_tokens=[name for name in names if name not in (bos, eos, "<pad>")],
    )  # fmt: skip
    found.chat_template = template
    return found


@cache
def _weights(size):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def chat_model(folder, template=CHATML, stops=None, **more):
    """Write a Llama of random weights with such a tokenizer, and return the folder.

    stops: names of the tokens that end a turn by its generation_config.
    """
    tokenizer = tokenizer_of(template, **more)
    tokenizer.save_pretrained(folder)
    lm = _weights(len(tokenizer) + 3)
    lm.generation_config.eos_token_id = stops and tokenizer.convert_tokens_to_ids(stops)
    lm.save_pretrained(folder)
    return str(folder)
