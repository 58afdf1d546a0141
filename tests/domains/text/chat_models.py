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

# ChatML whose calls are JSON in <tool_call>, as Hermes and Qwen 2.5 write them.
HERMES = """{%- if tools -%}
<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' }} Tools: {{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% elif message.role != 'system' or not tools -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

# The same with calls as Qwen 3 Coder writes them, and thoughts that the template opens.
QWEN3_CODER = (
    HERMES.replace(
        """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
""",
        """<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
""",
    )
    .replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    .replace(
        "<|im_start|>{{ message.role }}\n",
        "<|im_start|>{{ message.role }}\n{{ '<think>\n\n</think>\n' if message.role == 'assistant' }}",
    )
)

# Begins with its BOS; a call is the message, in JSON; the answer of a tool is JSON too.
LLAMA3 = """{{- bos_token -}}
{%- for message in messages -%}
<|start_header_id|>{{ 'ipython' if message.role == 'tool' else message.role }}<|end_header_id|>

{% if message.tool_calls -%}
{%- set function = message.tool_calls[0].function -%}
{"name": "{{ function.name }}", "parameters": {{ function.arguments | tojson }}}
{%- elif message.role == 'tool' -%}
{{ message.content | tojson }}
{%- else -%}
{{ tools | tojson ~ '\n\n' if tools and loop.first }}{{ message.content | trim }}
{%- endif -%}
<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}"""

# No system message, roles alternate, no tokens between an answer of a tool and the next turn.
MISTRAL = """{{- bos_token -}}
{%- set ns = namespace(last='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ raise_exception('no system message') }}
{%- elif message.role == 'user' -%}
{%- if ns.last in ('user', 'tool') -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{ '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' if tools and loop.first }}[INST]{{ message.content }}[/INST]
{%- elif message.tool_calls -%}
[TOOL_CALLS][{"name": "{{ message.tool_calls[0].function.name }}", "arguments": {{ message.tool_calls[0].function.arguments | tojson }}, "id": "{{ message.tool_calls[0].id }}"}]{{ eos_token }}
{%- elif message.role == 'tool' -%}
[TOOL_RESULTS]{"content": {{ message.content | tojson }}}[/TOOL_RESULTS]
{%- else -%}
{{ message.content }}{{ eos_token }}
{%- endif -%}
{%- set ns.last = message.role -%}
{%- endfor -%}"""  # noqa: E501

_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s{}]{1,40}[|｜]?>|<[^|｜<>\s{}]{1,40}[|｜]>"  # <|name|>, and with one bar alone
    r"|</?s>|<(?:bos|eos|start_of_turn|end_of_turn|pad)>|\[/?[A-Z_]{3,30}\]"
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


def chat_model(folder, template=CHATML, stops=None, *, weights=True, **more):
    """Write a Llama of random weights, or its settings alone, with such a tokenizer, and return the folder.

    stops: names of the tokens that end a turn by its generation_config.
    """
    tokenizer = tokenizer_of(template, **more)
    tokenizer.save_pretrained(folder)
    if not weights:
        transformers.LlamaConfig(vocab_size=len(tokenizer) + 3).save_pretrained(folder)
        return str(folder)
    lm = _weights(len(tokenizer) + 3)
    lm.generation_config.eos_token_id = stops and tokenizer.convert_tokens_to_ids(stops)
    lm.save_pretrained(folder)
    return str(folder)
