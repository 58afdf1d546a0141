"""A language model of Hugging Face as a policy, on a tiny one with random weights and a tokenizer of bytes."""

import numpy as np
import pytest
import torch

from ddppo.config import EnvConfig, ModelConfig
from ddppo.envs import probe
from ddppo.envs.turns.local import make_turns
from ddppo.errors import ConfigError
from ddppo.models import build_model, check_model
from ddppo.ppo.text import TextCollector
from ddppo.seeding import action_noise
from ddppo.text import make_tokenizer
from tests.support import PATIENCE_S

transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")
pytest.importorskip("peft", reason="needs the extra hf: pip install '.[hf]'")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf: pip install '.[hf]'")

SPEC = probe(EnvConfig(id="tests.unit.text_tasks:tests/BytesRepeat-v0"))


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.models.BPE({char: i for i, char in enumerate([*alphabet, "<end>", "<pad>"])}, [])
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>"
    ).save_pretrained(folder)
    if request.param == "llama":
        config = transformers.LlamaConfig(
            vocab_size=264, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )  # fmt: skip
    else:
        config = transformers.GPT2Config(vocab_size=264, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def of(path, **more):
    return ModelConfig(name="hf", hf_path=path, **({"turn_tokens": 6, "obs_tokens": 12} | more))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_it_passes_what_every_model_is_tried_on(path, lora_rank):
    assert check_model(SPEC, of(path, lora_rank=lora_rank), torch.float32, num_envs=2) is None


def test_what_is_typed_token_by_token_is_what_the_whole_row_says(path):
    model = build_model(SPEC, of(path), 0, torch.float64)
    tokens = np.random.default_rng(0).integers(0, 256, (3, 20))
    with torch.inference_mode():
        whole = model(torch.from_numpy(tokens))[0].view(3, 20, -1)
        cache, rows = model.cache(5, 20), np.array([0, 2, 4])
        counts = np.array([5, 2, 3])
        found = cache.extend(rows, tokens[:, :5], counts)
        assert (found - whole[range(3), counts - 1]).abs().max() < 1e-12
        for some in ([0, 2], [1], [0, 1, 2], [1, 2], [0]):
            some, more = np.array(some), np.array([1, 3, 2])[: len(some)]
            given = tokens[some[:, None], counts[some, None] + np.arange(more.max())]
            counts[some] += more
            found = cache.extend(rows[some], given, more)
            assert (found - whole[some, counts[some] - 1]).abs().max() < 1e-12


def test_by_lora_only_what_was_added_is_learned_and_stored(path):
    model = build_model(SPEC, of(path, lora_rank=2), 0, torch.float32)
    assert all("lora_" in name or name == "value_head.weight" for name, _ in model.named_parameters())
    state = model.state_dict()
    assert set(state) == {name for name, _ in model.named_parameters()}
    whole = build_model(SPEC, of(path, lora_rank=0), 0, torch.float32)
    tokens = torch.arange(30).view(2, 15)
    assert torch.allclose(model(tokens)[0], whole(tokens)[0], atol=1e-6)  # nothing is learned yet
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    assert not torch.allclose(model(tokens)[0], whole(tokens)[0], atol=1e-2)
    other = build_model(SPEC, of(path, lora_rank=2), 1, torch.float32)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens)[0], model(tokens)[0])


def test_turns_end_with_a_line_or_the_end_of_text(path):
    tokenizer = make_tokenizer(SPEC, of(path))
    dialogue = tokenizer.begin("say a very long thing")
    assert tokenizer.tokens.decode(dialogue.prompt_tokens) == "say a very\n>"
    for last in (tokenizer.tokens.encode("\n")[0], tokenizer.end):
        for token in [*tokenizer.tokens.encode(" up"), last]:
            assert not dialogue.is_over
            assert dialogue.allowed()[token]
            dialogue.push(token)
        assert dialogue.is_over
        assert dialogue.action() == "up"
        assert tokenizer.tokens.decode(dialogue.observe("ok")) == "\nok\n>"
    allowed = dialogue.allowed()
    assert allowed.shape == (264,)
    assert not allowed[tokenizer.pad]
    assert not allowed[258:].any()  # the model has more tokens than the tokenizer


def test_it_plays_and_learns_from_the_ratio_of_one(path):
    config, envs = of(path), range(3)
    model = build_model(SPEC, config, 0, torch.float64)
    turns = make_turns(EnvConfig(id="tests.unit.text_tasks:tests/BytesRepeat-v0"), envs, 0, PATIENCE_S, 0)
    collector = TextCollector(
        turns, model, make_tokenizer(SPEC, config), num_tokens=60, first_env=0, device=torch.device("cpu"),
        dtype=torch.float64,
    )  # fmt: skip
    collector.begin([1, 2, 3], [{}] * 3)
    rollout, episodes = collector.collect(action_noise(0, 0, envs, 60, 1, normal=False))
    assert len(episodes) == 3
    own = rollout.valid.T.flatten().nonzero().squeeze(1)
    params, values = model.at_own(rollout.obs.T, rollout.actions.T, own)
    policy = model.distribution(params, rollout.action_mask.transpose(0, 1).flatten(0, 1)[own])
    assert torch.allclose(
        policy.log_prob(rollout.actions.T.flatten()[own]), rollout.logprobs.T.flatten()[own]
    )
    (policy.log_prob(rollout.actions.T.flatten()[own]).sum() + values.sum()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_path_that_leads_nowhere_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"model.hf_path=.*nothing: no .* can be had of it"):
        check_model(SPEC, of(str(tmp_path / "nothing")), torch.float32, num_envs=2)
