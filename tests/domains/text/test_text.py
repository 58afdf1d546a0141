"""Text as tokens: what a task of text says of itself, bytes, and a tokenizer of a task's own."""

import json
import sys

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.settings import TextSettings
from ddppo.domains.text.tokenizers import BytesTokenizer, make_tokenizer
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.models.build import build_model
from ddppo.serve.protocol import plain_spec, spec_of
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.domains.text.text_tasks import TIERS, RepeatEnv, WordTokenizer
from tests.support import CHECKOUT

REPEAT = "tests.domains.text.text_tasks:tests/Repeat-v0"
BYTES = "tests.domains.text.text_tasks:tests/BytesRepeat-v0"


def type_in(dialogue, text):
    for byte in text.encode():
        assert not dialogue.is_over
        assert dialogue.allowed()[byte]
        dialogue.push(byte)


def test_the_probe_tells_of_a_task_of_text():
    spec = probe(EnvConfig(id=REPEAT))
    assert (spec.obs, spec.action) == (ArraySpec((64,), "text"), ActionSpec("text", (16,)))
    assert spec.is_text
    assert not spec.obs.is_float
    assert (spec.tokens, spec.tasks, spec.one_a_process) == (
        "tests.domains.text.text_tasks:WordTokenizer",
        TIERS,
        False,
    )
    assert not probe(EnvConfig(id="CartPole-v1")).is_text


def test_the_tools_of_a_task_are_in_its_spec_and_pass_a_wire(monkeypatch):
    tool = {"name": "say", "parameters": {"properties": {"word": {"type": "string"}}}}
    monkeypatch.setattr(RepeatEnv, "tools", (tool,), raising=False)
    spec = probe(EnvConfig(id=REPEAT))
    assert spec.tools == [{"type": "function", "function": tool}]
    assert spec_of(json.loads(json.dumps(plain_spec(spec)))) == spec


@pytest.mark.parametrize("backend", ["pool", "batched", "gym_vector"])
def test_text_is_stepped_by_no_backend_that_carries_arrays(backend):
    with pytest.raises(ConfigError, match=f"env.backend={backend}"):
        probe(EnvConfig(id=REPEAT, backend=backend))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"action_space": Dict({"command": Text(9)})}, "action space Dict.* is not supported"),
        ({"tokens": 3}, "must be the import path"),
        ({"tools": {"name": "cli"}}, "its attribute tools: .* is not a list of tools"),
        ({"tools": [{"description": "no name"}]}, 'is not a tool: it needs a "name"'),
        (
            {"tools": [{"name": "cli", "parameters": {"properties": ["a"]}}]},
            "of the tool cli are no JSON schema",
        ),
        ({"tools": [{"name": "cli", "description": b"x"}]}, "hold a value that JSON cannot"),
        ({"task_tiers": {}}, "must be a mapping"),
        ({"task_tiers": {"a": 1}}, "must be a mapping"),
    ],
)
def test_what_a_task_of_text_says_wrongly_of_itself_is_a_sentence(monkeypatch, attributes, said):
    for name, value in attributes.items():
        monkeypatch.setattr(RepeatEnv, name, value, raising=False)
    with pytest.raises(ConfigError, match=said):
        probe(EnvConfig(id=REPEAT))


def test_actions_and_observations_are_both_text_or_neither(monkeypatch):
    monkeypatch.setattr(RepeatEnv, "action_space", Discrete(2))
    with pytest.raises(ConfigError, match=r"observation space Text.* is not supported with actions"):
        probe(EnvConfig(id=REPEAT))
    monkeypatch.undo()
    monkeypatch.setattr(RepeatEnv, "observation_space", Box(0, 1, (2,)))
    with pytest.raises(ConfigError, match=r"action space Text.* is not supported with observations"):
        probe(EnvConfig(id=REPEAT))


def test_bytes_are_typed_until_a_newline_and_come_back_as_text():
    tokenizer = BytesTokenizer(turn_tokens=64, obs_tokens=32)
    dialogue = tokenizer.begin("say ü")
    assert dialogue.prompt_tokens == [*"say ü".encode(), tokenizer.turn]
    type_in(dialogue, "größer\n")
    assert dialogue.is_over
    assert dialogue.action() == "größer"
    assert not dialogue.is_over
    assert dialogue.observe("ok\n") == [*b"ok\n", tokenizer.turn]
    type_in(dialogue, "\n")
    assert dialogue.is_over
    assert dialogue.action() == ""


def test_bytes_have_limits_for_turns_and_answers():
    tokenizer = BytesTokenizer(turn_tokens=3, obs_tokens=4)
    dialogue = tokenizer.begin("a long prompt")
    assert dialogue.prompt_tokens == [*b"a l", tokenizer.turn]
    type_in(dialogue, "abc")
    assert dialogue.is_over
    assert dialogue.action() == "abc"
    assert dialogue.observe("") == [tokenizer.turn]


def test_bytes_that_are_no_text_are_replaced():
    dialogue = BytesTokenizer(turn_tokens=8, obs_tokens=8).begin("")
    dialogue.push(255)
    dialogue.push(10)
    assert dialogue.action() == "\ufffd"


def test_markers_are_never_typed():
    tokenizer = BytesTokenizer(turn_tokens=3, obs_tokens=4)
    allowed = tokenizer.begin("x").allowed()
    assert allowed.shape == (tokenizer.size,)
    assert np.flatnonzero(~allowed).tolist() == [tokenizer.pad, tokenizer.turn]


def test_a_task_brings_its_own_tokenizer_made_with_the_limits():
    made = make_tokenizer(probe(EnvConfig(id=REPEAT)), TextSettings(turn_tokens=5, obs_tokens=7))
    assert isinstance(made, WordTokenizer)
    assert (made.turn_tokens, made.obs_tokens) == (5, 7)
    made = make_tokenizer(probe(EnvConfig(id=BYTES)), TextSettings(turn_tokens=50, obs_tokens=7))
    assert isinstance(made, BytesTokenizer)
    assert (made.turn_tokens, made.obs_tokens) == (16, 7)  # no more than the characters of an action


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("nowhere", "must be an import path"),
        ("nowhere:Words", "cannot be imported and made"),
        ("tests.domains.text.text_tasks:Words", "cannot be imported and made"),
        ("tests.domains.text.text_tasks:RepeatEnv", "unexpected keyword argument"),
        ("builtins:dict", "a dict has no size, pad, end, begin"),
    ],
)
def test_a_tokenizer_that_cannot_be_made_is_a_sentence(tokens, said):
    spec = EnvSpec(ArraySpec((9,), "text"), ActionSpec("text", (9,)), tokens=tokens)
    with pytest.raises(ConfigError, match=said):
        make_tokenizer(spec, TextSettings())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_text_needs_a_model_of_sequences(name):
    with pytest.raises(ConfigError, match="use model=token_policy"):
        build_model(probe(EnvConfig(id=REPEAT)), settings_of("model", name=name), 0, torch.float32)


def test_the_tokenizer_of_the_documentation_works():
    page = (CHECKOUT / "docs" / "text.md").read_text(encoding="utf-8")
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    words = names["Words"](turn_tokens=4, obs_tokens=3)
    dialogue = words.begin("a wall , left of it")
    assert dialogue.prompt_tokens == [2, 5, 2]
    assert np.flatnonzero(dialogue.allowed()).tolist() == [3, 4]
    assert not dialogue.is_over
    dialogue.push(4)
    assert dialogue.is_over
    assert dialogue.action() == "right"
    assert not dialogue.is_over
    assert dialogue.observe("") == [2]
    assert len(dialogue.allowed()) == words.size


def test_a_language_model_without_its_packages_says_how_to_get_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="pip install 'transformers"):
        build_model(
            probe(EnvConfig(id=REPEAT)), settings_of("model", name="hf", hf_path="x"), 0, torch.float32
        )
    with pytest.raises(ConfigError, match="pip install 'transformers"):
        make_tokenizer(probe(EnvConfig(id=REPEAT)), settings_of("model", name="hf", hf_path="x"))
