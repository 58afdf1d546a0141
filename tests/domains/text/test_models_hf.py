"""A language model of Hugging Face as a policy, on a tiny one with random weights and a tokenizer of bytes."""

import numpy as np
import pytest
import torch

from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of as settings_by_name
from ddppo.domains.text.collector import GenerationSettings, TextCollector
from ddppo.domains.text.hf_policy import HuggingFacePolicy
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.domains.text.turns import make_turns
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.seeding import action_noise
from tests.support import PATIENCE_S

transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")
pytest.importorskip("peft", reason="needs the extra hf: pip install '.[hf]'")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf: pip install '.[hf]'")

SPEC = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"))


# Tiny nets, by the classes of their settings. A window or a chunk of 4 tokens is shorter than every row below.
COMMON = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EVERY_OTHER = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
NETS = {
    "llama": ("LlamaConfig", COMMON | {"num_hidden_layers": 2}),
    "gpt2": ("GPT2Config", {"vocab_size": 264, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "mistral": ("MistralConfig", COMMON | {"sliding_window": 4}),
    "mixtral": ("MixtralConfig", COMMON | {"sliding_window": 4, "num_local_experts": 4}),
    "phi3": ("Phi3Config", COMMON | {"sliding_window": 4}),
    "qwen2": ("Qwen2Config", COMMON | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "qwen3": ("Qwen3Config", COMMON | {"head_dim": 8}),
    "gemma2": ("Gemma2Config", COMMON | {"head_dim": 8, "sliding_window": 4}),
    "gemma3": ("Gemma3TextConfig", COMMON | {"head_dim": 8} | EVERY_OTHER),
    "gpt_oss": ("GptOssConfig", COMMON | {"head_dim": 8, "num_local_experts": 4} | EVERY_OTHER),
    "olmo3": ("Olmo3Config", COMMON | EVERY_OTHER),
    "cohere2": ("Cohere2Config", COMMON | EVERY_OTHER),
    "granite": ("GraniteConfig", COMMON | {"logits_scaling": 8.0}),
    "smollm3": ("SmolLM3Config", COMMON),
    "llama4": ("Llama4TextConfig", COMMON | {
        "head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": 4,
        "layer_types": ["chunked_attention", "full_attention"] * 2, "no_rope_layers": [1, 0, 1, 0],
    }),
    "gpt_neo": ("GPTNeoConfig", {
        "vocab_size": 264, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 128,
        "attention_types": [[["global", "local"], 2]], "window_size": 4,
    }),
    "opt": ("OPTConfig", {
        "vocab_size": 264, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 128, "word_embed_proj_dim": 32,
    }),
    "bloom": ("BloomConfig", {"vocab_size": 264, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
}  # fmt: skip
RECURRENT = {
    "mamba": ("MambaConfig", {}),
    "mamba2": ("Mamba2Config", {}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 16}),
    "qwen3_next": ("Qwen3NextConfig", {}),
    "jamba": ("JambaConfig", {}),
    "minimax": ("MiniMaxConfig", {}),
}


def settings_of(net):
    name, kwargs = (NETS | RECURRENT)[net]
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, name)(**kwargs)


def saved(net, folder, **others):
    """Write a net of random weights and a tokenizer of bytes, and return the folder. others: more of its settings."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.models.BPE({char: i for i, char in enumerate([*alphabet, "<end>", "<pad>"])}, [])
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>"
    ).save_pretrained(folder)
    config = settings_of(net)
    for name, value in others.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    lm = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in lm.parameters():
            if p.dim() > 1:
                p.mul_(5.0)  # else attention is nearly even, and tokens hardly matter
    lm.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def path(request, tmp_path_factory):
    return saved(request.param, tmp_path_factory.mktemp(request.param))


def of(path, **more):
    return settings_by_name("model", name="hf", hf_path=path, **({"turn_tokens": 6, "obs_tokens": 12} | more))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_it_passes_what_every_model_is_tried_on(path, lora_rank):
    assert check_model(SPEC, of(path, lora_rank=lora_rank), torch.float32, num_envs=2) is None


def logits_of_rows_alone(model, tokens, rows, ends):
    """What the whole of each row says behind its first `ends` tokens, without a cache, a mask or another row."""
    with torch.inference_mode():
        return torch.stack(
            [model(tokens[None, row, :end])[0][-1] for row, end in zip(rows, ends, strict=True)]
        )


@pytest.mark.parametrize("net", NETS)
def test_what_is_typed_token_by_token_is_what_each_row_says_alone(net, tmp_path):
    model = build_model(SPEC, of(saved(net, tmp_path), lora_rank=0), 0, torch.float32)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, 256, (3, 24)))
    cache, rows = model.cache(5, 24), np.array([0, 2, 4])
    # The first is 11 tokens ahead of the second: that many would be counted in its window if they lay between.
    lengths = np.array([13, 2, 6])
    with torch.inference_mode():
        size = model(tokens)[0].std()
        found = cache.extend(rows, tokens[:, :13].numpy(), lengths)
        assert (found - logits_of_rows_alone(model, tokens, range(3), lengths)).abs().max() < 1e-4 * size
        for some in ([0, 2], [1], [0, 1, 2], [1, 2], [1], [0, 1, 2]):
            some, more = np.array(some), np.array([1, 3, 2])[: len(some)]
            given = tokens.numpy()[some[:, None], lengths[some, None] + np.arange(more.max())]
            lengths[some] += more
            found = cache.extend(rows[some], given, more)
            assert (
                found - logits_of_rows_alone(model, tokens, some, lengths[some])
            ).abs().max() < 1e-4 * size


@pytest.mark.parametrize("net", ["mistral", "gemma3", "gpt_oss", "llama4"])
def test_models_with_windows_are_tried_in_rows_beyond_them(net, tmp_path):
    name = "attention_chunk_size" if net == "llama4" else "sliding_window"
    path = saved(net, tmp_path, **{name: 64})
    tokens = torch.arange(3, 17)[None]
    wide, narrow = (build_model(SPEC, of(path, lora_rank=0), 0, torch.float32) for _ in range(2))
    setattr(narrow.lm.config, name, 4)
    with torch.inference_mode():
        before = wide(tokens)[0]
        with wide.narrowed(4):
            assert torch.equal(wide(tokens)[0], narrow(tokens)[0])
        assert torch.equal(wide(tokens)[0], before)
    assert (narrow(tokens)[0] - before).abs().max() > 0.01
    if net == "mistral":
        assert check_model(SPEC, of(path, lora_rank=0), torch.float32, num_envs=2) is None


@pytest.mark.parametrize("net", ["gemma2", "granite", "cohere2"])
def test_logits_are_capped_and_scaled_as_the_language_model_says(net, tmp_path):
    path = saved(net, tmp_path)
    model = build_model(SPEC, of(path, lora_rank=0), 0, torch.float32)
    with torch.inference_mode():
        model.lm.get_output_embeddings().weight.mul_(30.0)
        tokens = torch.arange(3, 17)[None]
        its = model.lm(input_ids=tokens).logits[0]
        assert torch.allclose(model(tokens)[0], its, rtol=1e-4, atol=1e-4)
        plain = model.lm.get_output_embeddings()(model.body(input_ids=tokens).last_hidden_state)[0]
        assert (plain - its).abs().max() > 1.0


def test_what_is_done_to_logits_and_not_known_is_refused(tmp_path, monkeypatch):
    path = saved("gemma2", tmp_path)
    monkeypatch.setattr(HuggingFacePolicy, "logits", lambda self, x: self.lm.get_output_embeddings()(x))
    with pytest.raises(ConfigError, match="its logits are not its output layer applied to the last hidden"):
        build_model(SPEC, of(path, lora_rank=0), 0, torch.float32)


@pytest.mark.parametrize("net", RECURRENT)
def test_recurrent_and_hybrid_models_are_refused_by_name_before_their_weights_are_read(net, tmp_path):
    settings = settings_of(net)
    settings.save_pretrained(tmp_path)
    kind = transformers.AutoModelForCausalLM._model_mapping[type(settings)].__name__
    with pytest.raises(ConfigError) as e:
        check_model(SPEC, of(str(tmp_path)), torch.float32, num_envs=2)
    assert f"model.hf_path={tmp_path}: {kind} has recurrent or convolutional layers" in str(e.value)
    assert "use a model whose layers are all attention, such as Llama" in str(e.value)


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


def collector_of(model, config, num_envs, num_tokens):
    task = EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0", kwargs={"turns": 9})
    return TextCollector(
        make_turns(task, range(num_envs), 0, PATIENCE_S, 0), model, make_tokenizer(SPEC, config),
        GenerationSettings(num_tokens, max_turns=4), first_env=0, device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip


def test_it_plays_and_learns_from_the_ratio_of_one(path):
    config = of(path)
    model = build_model(SPEC, config, 0, torch.float64)
    collector = collector_of(model, config, 3, 60)
    collector.reset([1, 2, 3], [{}] * 3)
    rollout, episodes = collector.collect(action_noise(0, 0, range(3), 60, 1, normal=False))
    assert len(episodes) == 3
    own = rollout.valid.T.flatten().nonzero().squeeze(1)
    params, values = model.at_own(rollout.obs.T, rollout.actions.T, own)
    policy = model.distribution(params, rollout.action_mask.transpose(0, 1).flatten(0, 1)[own])
    assert torch.allclose(
        policy.log_prob(rollout.actions.T.flatten()[own]), rollout.logprobs.T.flatten()[own]
    )
    (policy.log_prob(rollout.actions.T.flatten()[own]).sum() + values.sum()).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("net", ["llama", "mistral", "gemma3"])
def test_tokens_are_drawn_from_the_distribution_that_is_learned(net, tmp_path, monkeypatch):
    """A ratio of 1 does not show it: log-probabilities of a rollout are the learner's own, whoever drew the tokens."""
    config = of(saved(net, tmp_path), turn_tokens=9)
    model = build_model(SPEC, config, 0, torch.float64)
    collector, drawn_from = collector_of(model, config, 4, 60), {}
    chosen = collector._choose

    def watched(params, allowed, noise, envs):
        for i, env in enumerate(envs.tolist()):
            drawn_from[int(collector._record.lengths[env]) - 1, env] = params[i].clone()
        return chosen(params, allowed, noise, envs)

    monkeypatch.setattr(collector, "_choose", watched)
    collector.reset([1, 2, 3, 4], [{"task": task} for task in ("up", "north", "east", "down")])
    rollout, _ = collector.collect(action_noise(0, 0, range(4), 60, 1, normal=False))
    rows, envs = rollout.valid.nonzero(as_tuple=True)
    assert set(zip(rows.tolist(), envs.tolist(), strict=True)) == set(drawn_from)
    assert rollout.valid.sum(0).unique().numel() > 1  # rows of other lengths, and all beyond the window
    with torch.inference_mode():
        learned = model(rollout.obs.T)[0].unflatten(0, (4, 60))[envs, rows].log_softmax(-1)
    drawn = torch.stack(
        [drawn_from[at] for at in zip(rows.tolist(), envs.tolist(), strict=True)]
    ).log_softmax(-1)
    assert (drawn - learned).abs().max() < 1e-5


def test_episodes_longer_than_the_model_has_positions_are_refused(path):
    """GPT-2 has a table of them, and Llama would be asked for distances that it was never taught."""
    ppo = PPOSettings(rollout_steps=128)
    config = Config(
        env=EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"), model=of(path), ppo=ppo
    )
    model = build_model(SPEC, config.model, 0, torch.float32)
    turns = make_turns(config.env, range(1), 0, PATIENCE_S, 0)
    with pytest.raises(
        ConfigError, match=r"ppo.rollout_steps=128, .* knows 128 positions: use .* at most 127"
    ):
        TextCollector.from_config(config, turns, model, first_env=0, device=torch.device("cpu"))
    with torch.inference_mode():  # the value behind the last of 127 is of position 128
        model(torch.zeros(1, 128, dtype=torch.int64))


def test_a_path_that_leads_nowhere_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"model.hf_path=.*nothing: no .* can be loaded from it"):
        check_model(SPEC, of(str(tmp_path / "nothing")), torch.float32, num_envs=2)
