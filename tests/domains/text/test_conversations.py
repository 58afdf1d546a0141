"""Episodes as conversations in a chat template, with a tokenizer of bytes and tiny models of random weights."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")
if importlib.util.find_spec("peft") is None:  # not imported here: 2.5 s of every process of the tests
    pytest.skip("needs the extra hf: pip install '.[hf]'", allow_module_level=True)

import torch

from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.fields import check_fields
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.stored import without_others
from ddppo.config.variants import settings_of
from ddppo.domains.text.collector import GenerationSettings, TextCollector
from ddppo.domains.text.conversations import ChatTokenizer
from ddppo.domains.text.hf_tokens import PlainTokenizer
from ddppo.domains.text.tokenizers import NoAction, begun, make_tokenizer
from ddppo.domains.text.turns import make_turns
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, EnvOutputError
from ddppo.models.build import build_model
from ddppo.spaces import tools_of
from tests.domains.text.chat_models import CHATML, HERMES, LLAMA3, MISTRAL, QWEN3_CODER, chat_model
from tests.support import PATIENCE_S

SPEC = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("chatml"), eos="<|endoftext|>")


def made(path, spec=SPEC, **more):
    return make_tokenizer(
        spec, settings_of("model", name="hf", hf_path=path, **({"turn_tokens": 20, "obs_tokens": 40} | more))
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
        assert tokenizer.system_of(info) == (more.get("system", "Of the task.") or None)  # of records
        text = tokenizer.tokens.decode(begun(tokenizer, "say b", info).prompt_tokens)
        assert (
            text == f"<|im_start|>system\n{found}<|im_start|>user\nsay b<|im_end|>\n<|im_start|>assistant\n"
        )
    tokenizer = made(chatml, chat="text")
    assert isinstance(tokenizer, PlainTokenizer)
    text = tokenizer.tokens.decode(begun(tokenizer, "say b", info).prompt_tokens)
    assert text == "Of the task.\n\nsay a\n>a\n\nsay b\n>"


def test_plain_text_is_the_form_of_models_without_a_template(tmp_path):
    tokenizer = made(chat_model(tmp_path, template=None, weights=False))
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


# -- calls of tools


SAY = tools_of([{"name": "say", "parameters": {"properties": {"word": {"type": "string"}}}}])
TWO = tools_of(
    [{"name": "say", "parameters": {"properties": {"word": {"type": "string"}}}}, {"name": "wait"}]
)
TOLD = dataclasses.replace(SPEC, tools=SAY)
TEMPLATES = {"hermes": HERMES, "qwen3_coder": QWEN3_CODER, "llama3": LLAMA3, "mistral": MISTRAL}
CALLS = {  # a turn, and the text between it and the next one
    "hermes": (
        '<tool_call>\n{"name": "say", "arguments": {"word": "up"}}\n</tool_call><|im_end|>',
        "\n<|im_start|>user\n<tool_response>right</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen3_coder": (
        "I say it.\n</think>\n<tool_call>\n<function=say>\n<parameter=word>\nup\n</parameter>\n</function>\n"
        "</tool_call><|im_end|>",
        "\n<|im_start|>user\n<tool_response>right</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "llama3": (
        '{"name": "say", "parameters": {"word": "up"}}<|eot_id|>',
        '<|start_header_id|>ipython<|end_header_id|>\n\n"right"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": (
        '[TOOL_CALLS][{"name": "say", "arguments": {"word": "up"}}]</s>',
        '[TOOL_RESULTS]{"content": "right"}[/TOOL_RESULTS]',
    ),
}


@pytest.mark.parametrize("form", TEMPLATES)
def test_calls_are_read_as_the_template_writes_them(form, tmp_path):
    tokenizer = made(
        chat_model(tmp_path, TEMPLATES[form], weights=False),
        TOLD,
        turn_tokens=200,
        system="Be brief.",
        shots=[["say a", "a"]],
    )
    assert tokenizer.template.form == form
    read = tokenizer.decode
    dialogue = begun(tokenizer, "say up", {})
    prompt = read(dialogue.prompt_tokens)
    # The tools, the system message, and the example as a call with an answer. The begin of text is there once.
    example = "\na\n" if form == "qwen3_coder" else '"a"'
    assert prompt.index("Be brief.") < prompt.rindex("say a") < prompt.rindex(example)
    assert '"properties": {"word"' in prompt
    assert prompt.count("<s>") == (form in ("llama3", "mistral"))
    # The end of a call is typed; the answer and the marks around it are read.
    turn, answer = CALLS[form]
    for _ in range(3):
        assert typed(tokenizer, dialogue, turn) == "up"
        assert read(dialogue.observe("right")) == answer
    # No call: the policy reads why, in the same form, and types on.
    refused = typed(tokenizer, dialogue, turn.replace("say", "shout"))
    assert refused == NoAction("error: there is no tool shout: use say")
    assert read(dialogue.observe(refused.message)) == answer.replace("right", refused.message)


def test_calls_of_several_tools_reach_the_environment_as_json(tmp_path):
    tokenizer = made(
        chat_model(tmp_path, HERMES, weights=False), dataclasses.replace(SPEC, tools=TWO), turn_tokens=200,
        shots=[["say a", '{"name": "say", "arguments": {"word": "a"}}']],
    )  # fmt: skip
    dialogue = begun(tokenizer, "say up", {})
    assert json.loads(typed(tokenizer, dialogue, CALLS["hermes"][0])) == {
        "name": "say",
        "arguments": {"word": "up"},
    }


def test_a_tool_of_one_text_takes_commands_where_the_template_has_no_tools(chatml):
    tokenizer = made(chatml, TOLD)
    assert tokenizer.template.form is None
    assert typed(tokenizer, begun(tokenizer, "say up", {}), "up<|im_end|>") == "up"


# -- texts that do not fit


@pytest.mark.parametrize("chat", ["template", "text"])
def test_texts_that_are_too_long_are_cut_by_the_rule_and_counted(chatml, chat):
    for rule, kept in (("cut_end", "abcdefgh"), ("cut_front", "ijklmnop")):
        tokenizer = made(chatml, chat=chat, obs_tokens=8 + 2 * (chat == "text"), long_texts=rule)
        dialogue = begun(tokenizer, "abcdefghijklmnop", {})
        text = tokenizer.decode(dialogue.prompt_tokens)
        assert kept in text
        assert not set("abcdefghijklmnop") - set(kept) & set(
            text.replace("<|im_start|>", "").split("user\n")[-1][:8]
        )
        assert dialogue.num_cut == 1
        dialogue.observe("ok")
        dialogue.observe("abcdefghijklmnop")
        assert dialogue.num_cut == 2
    tokenizer = made(chatml, chat=chat, obs_tokens=8, long_texts="error")
    with pytest.raises(
        EnvOutputError, match=r"a text of 16 tokens with model.obs_tokens=8 and model.long_texts=error"
    ):
        begun(tokenizer, "abcdefghijklmnop", {})


# -- wrong settings and templates: one sentence each, before a run begins


FIRST = CHATML.replace("{{ message.content }}", "{{ message.content if loop.last }}")
STRIPPED = QWEN3_CODER.replace(
    "if message.role == 'assistant'", "if message.role == 'assistant' and loop.last"
)


@pytest.mark.parametrize(
    ("template", "more", "said"),
    [
        (CHATML, {"chat_template": "none.jinja"}, "model.chat_template=none.jinja is not a file"),
        (CHATML, {"chat": "text", "chat_template": "x"}, "with model.chat=text: plain text has no template"),
        (None, {"chat": "template"}, "has no chat template: give a file by model.chat_template"),
        ("{% if %}", {}, "leaves|cannot render a conversation of user.*: Expected an expression"),
        ("{{ raise_exception('never') }}", {}, "cannot render a conversation of user: .*never"),
        (CHATML, {"chat_template_kwargs": {"tools": 3}}, "cannot render a conversation of user"),
        (CHATML, {"tools": TWO}, r"ignores tools, and the environment has some \(say\)"),
        (CHATML, {"tools": SAY, "tool_calls": "hermes"}, "ignores tools, and the environment has some"),
        (HERMES, {"tools": SAY, "tool_calls": "llama3"}, "writes calls in the form hermes: use model.tool_calls=auto"),
        (HERMES, {"tool_calls": "hermes"}, "the environment has no tools: use model.tool_calls=auto"),
        (HERMES.replace("tool_call>", "do>"), {"tools": SAY}, "writes calls in a form that is not known: .<do>"),
        (FIRST, {}, "does not preserve prefixes: it renders earlier messages differently"),
        (STRIPPED, {}, "does not preserve prefixes"),
        (CHATML.replace("{{ message.content }}", ""), {}, "leaves out the prompt"),
        (CHATML.replace("<|im_start|>", "#").replace("<|im_end|>", ""), {}, "ends no message of the assistant by a sp"),
        (CHATML + "<|channel|>", {}, "splits a message into channels, as gpt-oss does"),
        (CHATML, {"stop_tokens": ["<|stop|>"]}, r"model.stop_tokens: '<\|stop\|>' is not one token of .*, it is 8"),
        (CHATML, {"shots": "say a"}, "model.shots: 'say a' is not a list of shots; a shot is a list of texts: prompt"),
        (CHATML, {"shots": [["say a"]]}, r"model.shots: \['say a'\] is not a shot"),
        (CHATML, {"shots": [["say a", 3]]}, "is not a shot"),
        (CHATML, {"shots": [["say a", " "]]}, "has an empty prompt or command"),
        (HERMES, {"tools": TWO, "shots": [["say a", "a"]]}, "the command 'a' of a shot is no call of a tool: the JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused_by_a_sentence(tmp_path, template, more, said):
    path = chat_model(tmp_path, template, weights=False)
    more = dict(more)
    spec = dataclasses.replace(SPEC, tools=more.pop("tools", None))

    def prepared():
        config = settings_of("model", name="hf", hf_path=path, **more)
        check_fields(config, "model.")
        return make_tokenizer(spec, config)

    with pytest.raises(ConfigError, match=said) as e:
        prepared()
    assert "\n" not in str(e.value)


def test_wrong_openings_of_a_task_are_named(chatml):
    tokenizer = made(chatml)
    for info, said in (
        ({"system": 3}, 'returned 3 as info."system".: it must be a text'),
        ({"shots": "say a"}, 'info."shots"., the JSON of shots: .say a. is not a list of shots'),
        ({"shots": "[[3, 4]]"}, "is not a shot"),
    ):
        with pytest.raises(EnvOutputError, match=said):
            begun(tokenizer, "say a", info)


def test_a_template_that_prints_the_day_prints_the_same_one_on_every_day(tmp_path):
    """Else a run would end at midnight, and a resumed run would read other prompts."""
    dated = "{{ strftime_now('%d %b %Y %H:%M:%S.%f') }} " + CHATML
    tokenizer = made(chat_model(tmp_path, dated, weights=False))
    first, again = begun(tokenizer, "say b", {}), begun(tokenizer, "say b", {})
    assert first.prompt_tokens == again.prompt_tokens
    assert tokenizer.decode(first.prompt_tokens).startswith("01 Jan 2025 00:00:00")


def test_a_text_with_half_of_a_character_is_read_with_a_question_mark(chatml):
    dialogue = begun(made(chatml), "say \ud83d", {})
    assert "say ?" in made(chatml).decode(dialogue.prompt_tokens)


def test_a_template_may_come_from_a_file(chatml, tmp_path):
    path = tmp_path / "other.jinja"
    path.write_text(CHATML.replace("<|im_start|>", "<s>"))
    tokenizer = made(chatml, chat_template=str(path))
    assert tokenizer.decode(begun(tokenizer, "say b", {}).prompt_tokens).startswith("<s>system\nYou are")


# -- a run


def test_a_turn_without_an_action_is_answered_and_steps_no_environment(chatml):
    config = settings_of("model", name="hf", hf_path=chatml, turn_tokens=5, obs_tokens=20, lora_rank=0)
    task = EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0", kwargs={"turns": 2})
    tokenizer = make_tokenizer(SPEC, config)
    turns = make_turns(task, range(2), 0, PATIENCE_S, 0)
    collector = TextCollector(
        turns, build_model(SPEC, config, 0, torch.float64), tokenizer,
        GenerationSettings(400, max_turns=4, reward_weights={"right": 1.0}), first_env=0,
        device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    # Messages without a command first: in the first turn from both environments, so that none steps then.
    script = {
        0: ["<|im_end|>", "\n<|im_end|>", "up<|im_end|>", "up<|im_end|>"],
        1: ["<|im_end|>", "up<|im_end|>", "up<|im_end|>"],
    }
    queues = {env: [list(tokenizer.tokens.encode(turn)) for turn in each] for env, each in script.items()}

    def choose(params, allowed, noise, envs):
        chosen = []
        for env in envs.tolist():
            chosen.append(queues[env][0].pop(0))
            queues[env] = [turn for turn in queues[env] if turn]
        return np.array(chosen), allowed

    ready, num_stepping = turns.ready, []
    turns.ready = lambda wait_s: num_stepping.append(collector._num_stepping) or ready(wait_s)
    collector._choose = choose
    collector._reward = lambda turn: turn.reward
    collector.reset([1, 2], [{"task": "up"}] * 2)
    collector.play(None)
    first, second = collector.transcripts
    assert first.actions == [None, None, "up", "up"]
    error = "error: the message has no command: write one command on its first line"
    assert [said for said, *_ in first.answers] == [error, error, "right again", "right again"]
    assert [failed for *_, failed in first.answers] == [True, True, None, None]
    assert second.actions == [None, "up", "up"]
    # Turns over ranks end all episodes by a call of `ready` without a busy environment: the last one alone.
    assert num_stepping == [2, 1, 2, 1, 0]
    assert collector.achieved.tolist() == [1.0, 1.0]
    turns.close()


def test_a_window_too_small_for_the_opening_is_refused(chatml):
    config = Config(
        env=EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"),
        model=settings_of(
            "model", name="hf", hf_path=chatml, system="x" * 100, obs_tokens=40, turn_tokens=10
        ),
        ppo=PPOSettings(rollout_steps=160),
    )
    turns = make_turns(config.env, range(1), 0, PATIENCE_S, 0)
    model = build_model(SPEC, config.model, 0, torch.float32)
    with pytest.raises(ConfigError, match=r"model.obs_tokens=40 and 1\d\d tokens of system message"):
        TextCollector.from_config(config, turns, model, first_env=0, device=torch.device("cpu"))
    turns.close()


def test_stored_runs_go_on_in_plain_text_without_an_opening(chatml):
    of_before = {"model": {"name": "hf", "hf_path": chatml, "lora_rank": 4}}
    assert without_others(of_before)["model"] == {
        "name": "hf", "hf_path": chatml, "lora_rank": 4, "chat": "text", "system": "", "shots": [],
        "begin_text": False,
    }  # fmt: skip
    assert without_others({"model": {"name": "hf", "chat": "auto"}})["model"]["chat"] == "auto"
