"""Calls of tools in messages: their forms, and what is no call."""

import json
import re

import pytest

from ddppo.domains.text.tokenizers import NoAction
from ddppo.domains.text.tool_calls import FORMS, action_of, call_of, command_of, form_of
from ddppo.spaces import tools_of

CLI = tools_of([{"name": "cli", "parameters": {"properties": {"command": {"type": "string"}}}}])
SHOP = tools_of(
    [
        {"name": "look"},
        {
            "name": "buy",
            "parameters": {
                "properties": {
                    "item": {"type": "string"},
                    "count": {"type": "integer"},
                    "now": {"type": "boolean"},
                },
                "required": ["item"],
            },
        },
    ]
)
LINE = "aws s3 mb s3://b --tags '{\"a\": [1]}'"
TEXT = json.dumps(LINE)
WRITTEN = {
    "hermes": f'I make it.\n<tool_call>\n{{"name": "cli", "arguments": {{"command": {TEXT}}}}}\n</tool_call>',
    "llama3": f'<|python_tag|>{{"name": "cli", "parameters": {{"command": {TEXT}}}}}',
    "mistral": f'[TOOL_CALLS] [{{"name": "cli", "arguments": {{"command": {TEXT}}}, "id": "call00000"}}]',
    "qwen3_coder": (
        f"<tool_call>\n<function=cli>\n<parameter=command>\n{LINE}\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm": (f"<tool_call>cli\n<arg_key>command</arg_key>\n<arg_value>{LINE}</arg_value>\n</tool_call>"),
    "python": f"<|tool_call_start|>[cli(command={LINE!r})]<|tool_call_end|>",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_read_in_each_form(form):
    assert action_of(WRITTEN[form], form, CLI) == LINE
    assert action_of(f"<think>\nWhich <tool_call>?\n</think>\n\n{WRITTEN[form].strip()}", form, CLI) == LINE
    assert form_of(WRITTEN[form], ("cli", {"command": LINE})) == form


@pytest.mark.parametrize("tools", [CLI, SHOP])
def test_half_of_a_character_in_a_call_is_no_action(tools):
    name, key = ("cli", "command") if tools is CLI else ("buy", "item")
    message = f'<tool_call>{{"name": "{name}", "arguments": {{"{key}": "\\ud83d"}}}}</tool_call>'
    action = action_of(message, "hermes", tools)
    assert isinstance(action, NoAction)
    assert "half of a character" in action.message


def test_a_call_of_mistral_may_name_the_tool_before_its_arguments():
    for message in (f'[TOOL_CALLS]cli[ARGS]{{"command": {TEXT}}}', f'[TOOL_CALLS]cli{{"command": {TEXT}}}'):
        assert action_of(message, "mistral", CLI) == LINE


def test_calls_of_several_tools_are_json_with_values_of_their_types():
    bought = {"name": "buy", "arguments": {"item": "tea", "count": 2, "now": True}}
    for form, message in {
        "hermes": f"<tool_call>{json.dumps(bought)}</tool_call>",
        "python": "<|tool_call_start|>[buy(item='tea', count=2, now=True)]<|tool_call_end|>",
        "qwen3_coder": "<tool_call><function=buy><parameter=item>tea</parameter><parameter=count>2</parameter>"
        "<parameter=now>true</parameter></function></tool_call>",
    }.items():
        action = action_of(message, form, SHOP)
        assert json.loads(action) == bought
        assert call_of(action, SHOP) == ("buy", bought["arguments"])
    assert json.loads(action_of('<tool_call>{"name": "look"}</tool_call>', "hermes", SHOP))["arguments"] == {}
    assert call_of(LINE, CLI) == ("cli", {"command": LINE})


def hermes(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("form", "message", "said"),
    [
        (
            "hermes",
            "I would buy tea.",
            "the message has no call of a tool: write exactly one, as <tool_call>{",
        ),
        ("hermes", "<think><tool_call>{}</tool_call>", "the message has no call of a tool"),
        ("hermes", hermes("look") * 2, "the message has 2 calls: write exactly one"),
        ("hermes", '<tool_call>{"name": "look"', "the JSON of the call cannot be read"),
        ("hermes", "<tool_call>[1]</tool_call>", 'a call is a JSON object with "name" and "arguments"'),
        (
            "hermes",
            '<tool_call>{"name": "buy", "arguments": 3}</tool_call>',
            "arguments of a call are a JSON object",
        ),
        ("hermes", hermes("sell", item="tea"), "there is no tool sell: use look, buy"),
        ("hermes", hermes("buy", count=2), "the call of buy lacks item"),
        ("hermes", hermes("buy", item="tea", size=2), "buy has no parameter size: use item, count, now"),
        ("hermes", hermes("buy", item="tea", count="two"), "count of buy must be of the type integer"),
        ("hermes", hermes("buy", item="tea", count=True), "count of buy must be of the type integer"),
        ("llama3", "buy tea", "the message has no call of a tool"),
        ("llama3", '{"name": "buy", ', "the JSON of the call cannot be read"),
        ("mistral", "[TOOL_CALLS]buy", "the call has no arguments in JSON"),
        ("qwen3_coder", "<function=buy", "the name of the function is not closed by >"),
        ("qwen3_coder", "<function=buy><parameter=item>tea", "a parameter is not closed by </parameter>"),
        (
            "qwen3_coder",
            "<function=buy><parameter=item>tea</parameter><parameter=count>x</parameter>",
            "type integer",
        ),
        ("glm", "<tool_call>buy<arg_key>item</arg_key>", "an argument is not closed by </arg_value>"),
        (
            "python",
            "<|tool_call_start|>buy tea",
            r"the call cannot be read: it is \[name\(argument=value\)\]",
        ),
        ("python", "<|tool_call_start|>[f()()]", r"the call cannot be read"),
        ("hermes", '<tool_call>{"name": ' + "[" * 100_000, "the call is nested too deeply"),
        ("python", "<|tool_call_start|>" + "-" * 100_000, "the call is nested too deeply|cannot be read"),
        ("python", "<|tool_call_start|>[buy(item=open('x'))]", r"the call cannot be read"),
    ],
)
def test_a_message_without_a_call_that_fits_is_answered_by_one_sentence(form, message, said):
    found = action_of(message, form, SHOP)
    assert isinstance(found, NoAction)
    assert found.message.startswith("error: ")
    assert "\n" not in found.message
    assert re.search(said, found.message), found.message


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
