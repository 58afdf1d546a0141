"""Chat templates of real models, which the wheel of trl holds (`make test-chat`), turn by turn and whole."""

import pytest

pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")

import transformers

from ddppo.config.variants import settings_of
from ddppo.domains.text.conversations import ChatTokenizer, language_tokenizer
from ddppo.errors import ConfigError
from tests.domains.text.chat_models import tokenizer_of
from tests.support import CHECKOUT

TEMPLATES = sorted((CHECKOUT / "build" / "trl" / "trl").glob("chat_templates/*.jinja"))
if not TEMPLATES:
    pytest.skip("needs the chat templates of trl 1.16: make test-chat", allow_module_level=True)

TOOL = {
    "type": "function",
    "function": {
        "name": "aws_cli",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "A line."}},
        },
    },
}
# Refused templates, by the first words of the reason; the table of docs/language_models.md names them too.
PREFIXES, CHANNELS = "does not preserve prefixes", "splits a message into channels"
PARTS = "leaves out the prompt"  # their messages are lists of texts and pictures
REFUSED = {
    **dict.fromkeys(["deepseek_r1_distill", "deepseekv3"], PREFIXES),
    **dict.fromkeys(
        ["nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"], PREFIXES
    ),
    "gptoss": CHANNELS,
    **dict.fromkeys(["idefics3", "llava_next", "smolvlm"], PARTS),
}
# Refused with plain commands: they drop their empty thoughts once a user's message follows.
REFUSED_WITH_COMMANDS = dict.fromkeys(["qwen3_5_nothink", "qwen3_5_think", "qwen3_6"], PREFIXES)
# Refused with calls, and not with plain commands.
REFUSED_WITH_CALLS = {
    **dict.fromkeys(
        ["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"], "a form that is not known"
    ),
    **dict.fromkeys(["diffusion_gemma", "muse_glimmer"], "a form that is not known"),
    "lfm2": "leaves out calls of tools",
}
FORMS = {
    **dict.fromkeys(["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"], "hermes"),
    **dict.fromkeys(["qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"], "qwen3_coder"),
    **dict.fromkeys(["llama3_1", "llama3_2"], "llama3"),
    **dict.fromkeys(["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"], "python"),
    "glm4moe": "glm",
}


def family(path):
    return path.stem.removesuffix("_training")


def made(path, folder, tools, **more):
    """The tokenizer of a template, in bytes, and the library's renderer of whole conversations."""
    tokens = tokenizer_of(path.read_text(), bos="<bos>", eos="<eos>")
    tokens.save_pretrained(folder)
    transformers.LlamaConfig(vocab_size=len(tokens)).save_pretrained(folder)
    config = settings_of("model", name="hf", hf_path=str(folder), turn_tokens=500, system="Be brief.", **more)
    return language_tokenizer(config, tools), tokens


def played(tokenizer, whole, commands):
    """Play an episode whose turns are those in a rendering; return its tokens and its actions."""
    dialogue = tokenizer.begin("List all.")
    row, actions = list(dialogue.prompt_tokens), []
    for i in range(len(commands)):
        # The policy types as the template writes: up to the token that ends the turn.
        for token in whole[len(row) :]:
            dialogue.push(token)
            row.append(token)
            if dialogue.is_over:
                break
        actions.append(dialogue.action())
        row += dialogue.observe(f"answer {i}\nof two lines")
    return row, actions


COMMANDS = ["aws s3 ls", "aws s3 mb s3://b --region eu", "aws iam list-users"]


def written(prompt, *, calls):
    """The whole conversation, as a user of the library writes it."""
    whole = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List all."}]
    if "Be brief.\n\nList all." in prompt:  # a template without a system message
        whole = [{"role": "user", "content": "Be brief.\n\nList all."}]
    for i, command in enumerate(COMMANDS):
        answer, function = f"answer {i}\nof two lines", {"name": "aws_cli", "arguments": {"command": command}}
        if calls:
            call = {"id": "call00000", "type": "function", "function": function}
            whole.append({"role": "assistant", "content": "", "tool_calls": [call]})
            whole.append({"role": "tool", "name": "aws_cli", "tool_call_id": "call00000", "content": answer})
        else:
            whole += [{"role": "assistant", "content": command}, {"role": "user", "content": answer}]
    return whole


def check(path, folder, refused, *, calls):
    tools = [TOOL] if calls else None
    if (said := refused.get(path.stem) or REFUSED.get(family(path))) is not None:
        with pytest.raises(ConfigError, match=said):
            made(path, folder, tools or ())
        return
    tokenizer, library = made(path, folder, tools or ())
    assert isinstance(tokenizer, ChatTokenizer)
    assert tokenizer.template.form == (FORMS.get(family(path)) if calls else None)
    prompt = tokenizer.decode(tokenizer.begin("List all.").prompt_tokens)
    text = library.apply_chat_template(
        written(prompt, calls=tokenizer.template.form is not None),
        tools=tools if tokenizer.template.form else None,
        tokenize=False,
        add_generation_prompt=True,
        # The day that ddppo lets templates print.
        **({"date_string": "01 Jan 2025"} if "strftime_now" in path.read_text() else {}),
    )
    whole = library.encode(text, add_special_tokens=False)
    row, actions = played(tokenizer, whole, COMMANDS)
    assert (row, actions) == (whole, COMMANDS)
    assert row.count(library.bos_token_id) <= 1


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_conversation_of_commands_is_the_same_turn_by_turn_and_whole(path, tmp_path):
    check(path, tmp_path, REFUSED_WITH_COMMANDS, calls=False)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_conversation_of_calls_is_the_same_turn_by_turn_and_whole(path, tmp_path):
    check(path, tmp_path, {path.stem: REFUSED_WITH_CALLS.get(family(path))}, calls=True)


def test_most_templates_are_supported():
    refused = [path.stem for path in TEMPLATES if family(path) in REFUSED]
    assert len(TEMPLATES) - len(refused) >= 50
