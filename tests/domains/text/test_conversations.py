"""Episodes as conversations in a chat template, with a tokenizer of bytes and tiny models of random weights."""

import json

import pytest

pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.conversations import ChatTokenizer, command_of
from ddppo.domains.text.hf_tokens import PlainTokenizer
from ddppo.domains.text.tokenizers import NoAction, begun, make_tokenizer
from ddppo.envs.probing.probe import probe
from tests.domains.text.chat_models import chat_model

SPEC = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("chatml"), eos="<|endoftext|>")


def made(path, **more):
    return make_tokenizer(
        SPEC, settings_of("model", name="hf", hf_path=path, **({"turn_tokens": 20, "obs_tokens": 40} | more))
    )


def typed(tokenizer, dialogue, text):
    """Type a text as far as the turn lasts; return the action."""
    for token in tokenizer.tokens.encode(text):
        if not dialogue.is_over:
            assert dialogue.allowed()[token]
            dialogue.push(token)
    assert dialogue.is_over
    return dialogue.action()


def test_a_conversation_is_rendered_by_the_template_with_system_message_and_shots(chatml):
    tokenizer = made(chatml, system="Be brief.", shots=[["say a", "a", "right"], ["say b", "b"]])
    assert isinstance(tokenizer, ChatTokenizer)
    read = tokenizer.tokens.decode
    dialogue = begun(tokenizer, "say north", {"system": "of the task"})
    assert read(dialogue.prompt_tokens) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nsay a<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nright\n\nsay b<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nsay north<|im_end|>\n<|im_start|>assistant\n"
    )
    # The token that ends the turn is typed, the line behind it is not.
    assert typed(tokenizer, dialogue, "north<|im_end|>") == "north"
    assert read(dialogue.observe("right")) == "\n<|im_start|>user\nright<|im_end|>\n<|im_start|>assistant\n"
    # The end of text ends a turn too, and stays in its row.
    assert typed(tokenizer, dialogue, "\nnorth\nI said<|endoftext|>") == "north"
    assert read(dialogue.observe("right")) == "\n<|im_start|>user\nright<|im_end|>\n<|im_start|>assistant\n"
    # A turn that is cut gets its end as a token that is read.
    assert typed(tokenizer, dialogue, "north\n" + 20 * "x") == "north"
    assert (
        read(dialogue.observe("ok")) == "<|im_end|>\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_task_brings_system_message_and_shots_where_the_settings_do_not(chatml):
    info = {"system": "Of the task.", "shots": json.dumps([["say a", "a"]])}
    for more, found in (
        (
            {},
            "Of the task.<|im_end|>\n<|im_start|>user\nsay a<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n",
        ),
        ({"system": "Mine.", "shots": []}, "Mine.<|im_end|>\n"),
        ({"system": "", "shots": []}, "You are a small model.<|im_end|>\n"),
    ):
        tokenizer = made(chatml, **more)
        text = tokenizer.tokens.decode(begun(tokenizer, "say b", info).prompt_tokens)
        assert (
            text == f"<|im_start|>system\n{found}<|im_start|>user\nsay b<|im_end|>\n<|im_start|>assistant\n"
        )
    tokenizer = made(chatml, chat="text")
    assert isinstance(tokenizer, PlainTokenizer)
    text = tokenizer.tokens.decode(begun(tokenizer, "say b", info).prompt_tokens)
    assert text == "Of the task.\n\nsay a\n>a\n\nsay b\n>"


def test_plain_text_is_the_form_of_models_without_a_template(tmp_path):
    tokenizer = made(chat_model(tmp_path, template=None))
    assert isinstance(tokenizer, PlainTokenizer)
    assert tokenizer.tokens.decode(begun(tokenizer, "say b", {}).prompt_tokens) == "say b\n>"


def test_the_policy_types_no_special_tokens_but_those_that_end_a_turn(chatml):
    tokenizer = made(chatml, stop_tokens=["<s>"])
    (start,), (end,), (own,) = map(tokenizer.tokens.encode, ("<|im_start|>", "<|im_end|>", "<s>"))
    assert tokenizer.end == end
    assert tokenizer.stops == {end, own, tokenizer.tokens.eos}
    allowed = begun(tokenizer, "say b", {}).allowed()
    assert (allowed[start], allowed[end], allowed[own], allowed[tokenizer.pad]) == (False, True, True, False)
    assert len(allowed) == tokenizer.size
    assert not allowed[-3:].any()  # the model has more tokens than the tokenizer


def test_tokens_that_end_a_turn_come_from_generation_config_too(tmp_path):
    tokenizer = made(chat_model(tmp_path, special=["<stop>"], stops=["</s>", "<stop>"]))
    assert tokenizer.tokens.encode("<stop>")[0] in tokenizer.stops


def test_an_environment_cannot_end_a_message(chatml):
    tokenizer = made(chatml)
    dialogue = begun(tokenizer, "say <|im_end|>", {})
    assert "user\nsay < |im_end|><|im_end|>" in tokenizer.tokens.decode(dialogue.prompt_tokens)


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("aws s3 ls", "aws s3 ls"),
        ("\n\n  $ aws s3 ls \nlists buckets", "aws s3 ls"),
        ("I list buckets:\n```bash\naws s3 ls\naws s3 mb s3://b\n```\nDone.", "aws s3 ls"),
        ("```\naws s3 mb \\\n  s3://b\n```", "aws s3 mb    s3://b"),
        ("<think>\naws s3 rb s3://b\n</think>\n\naws s3 ls", "aws s3 ls"),
        ("which one?\n</think>\naws s3 ls", "aws s3 ls"),
    ],
)
def test_the_command_of_a_message_is_its_first_line_or_that_of_a_block(message, command):
    assert command_of(message, was_cut=False) == command


@pytest.mark.parametrize("message", ["", " \n\n", "```\n```", "<think>\naws s3 ls"])
def test_a_message_without_a_command_is_answered_by_an_error(message):
    assert command_of(message, was_cut=False) == NoAction(
        "error: the message has no command: write one command on its first line"
    )


def test_a_command_that_was_cut_is_not_executed():
    assert command_of("aws s3 rb s3://holi", was_cut=True) == NoAction(
        "error: the message was too long, and was cut before its command ended"
    )
    assert command_of("aws s3 ls\nbecau", was_cut=True) == "aws s3 ls"
