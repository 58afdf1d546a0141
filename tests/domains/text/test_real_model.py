"""A real language model answers a question, by the cache with which it acts. No package holds its weights."""

import os

import numpy as np
import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.tokenizers import begun, make_tokenizer
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model

FOLDER = os.environ.get("DDPPO_REAL_MODEL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER,
        reason="DDPPO_REAL_MODEL names no model folder: PYTHONPATH=. python experiments/real_model/prepare.py <folder>",
    ),
]
SPEC = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"))


@pytest.fixture(scope="module")
def settings():
    return settings_of("model", name="hf", hf_path=FOLDER, turn_tokens=24, obs_tokens=64, lora_rank=0)


def test_it_passes_what_every_model_is_tried_on(settings):
    assert check_model(SPEC, settings, torch.float32, num_envs=2) is None


@torch.inference_mode()
def test_it_answers_a_question_in_its_chat_template(settings):
    model, tokenizer = build_model(SPEC, settings, 0, torch.float32), make_tokenizer(SPEC, settings)
    dialogue = begun(tokenizer, "What is the capital of France?", {})
    cache, tokens, typed = model.cache(1, 128), dialogue.prompt_tokens, []
    while not dialogue.is_over:
        logits = cache.extend(np.array([0]), np.array([tokens]), np.array([len(tokens)]))
        allowed = torch.from_numpy(dialogue.allowed())[None]
        tokens = model.distribution(logits, allowed).mode().tolist()
        dialogue.push(tokens[0])
        typed += tokens
    assert "Paris" in tokenizer.decode(typed)
    assert typed[-1] in tokenizer.stops
