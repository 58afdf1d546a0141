"""A language model of Hugging Face as a policy, on a tiny one with random weights and a tokenizer of bytes."""

import importlib.util
import json
from pathlib import Path

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
from ddppo.policies.export.command import ExportConfig, export
from ddppo.policies.loading import trained
from ddppo.records import checkpoint
from ddppo.seeding import action_noise
from tests.support import PATIENCE_S, door

transformers = pytest.importorskip("transformers", reason="needs the extra hf: pip install '.[hf]'")
if importlib.util.find_spec("peft") is None:  # not imported here: 2.5 s of every process of the tests
    pytest.skip("needs the extra hf: pip install '.[hf]'", allow_module_level=True)
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


NAMED = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "smollm3", "granite", "gpt2")
QUICK = ("llama", "mistral", "gemma3", "gpt2")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize(
    "net", [net if net in QUICK else pytest.param(net, marks=pytest.mark.slow) for net in NAMED]
)
def test_whole_rows_and_rows_in_parts_have_the_same_logits_with_adapters_and_in_fewer_bits(
    net, lora_rank, precision, tmp_path
):
    """Acting reads ragged rows in parts, and learning whole rows: logits within 1e-5, or the rounding of bfloat16."""
    config = of(saved(net, tmp_path), lora_rank=lora_rank, precision=precision)
    model = build_model(SPEC, config, 0, torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():  # as after some learning: an untrained adapter adds nothing
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(std=0.3)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, 256, (3, 24)))
    cache, lengths = model.cache(3, 24), np.zeros(3, np.int64)
    with torch.inference_mode():
        learned = model(tokens)[0].unflatten(0, (3, 24))
        for some, more in (([0, 1, 2], [13, 2, 6]), ([0, 2], [1, 1]), ([1], [9]), ([0, 1, 2], [4, 2, 8])):
            some, more = np.array(some), np.array(more)
            columns = lengths[some, None] + np.arange(more.max())
            lengths[some] += more
            found = cache.extend(some, tokens.numpy()[some[:, None], columns.clip(max=23)], more)
            wanted = learned[some, lengths[some] - 1]
            assert found.dtype == torch.float32
            if precision == "float32":
                assert (found - wanted).abs().max() < 1e-5 * max(1.0, float(learned.std()))
            else:  # 8 bits, and errors of 4 layers: up to 0.12 of the spread of logits
                assert (found - wanted).abs().max() < 0.2 * learned.std()


@pytest.mark.parametrize("net", ["llama", "mistral"])
def test_rows_may_be_read_in_any_order_and_leave_and_come_back(net, tmp_path):
    model = build_model(SPEC, of(saved(net, tmp_path), lora_rank=0), 0, torch.float32)
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(3, 256, (6, 40)))
    cache, lengths = model.cache(6, 40), np.zeros(6, np.int64)
    with torch.inference_mode():
        learned = model(tokens)[0].unflatten(0, (6, 40))
        while (lengths < 40).any():
            some = np.flatnonzero((rng.random(6) < 0.6) & (lengths < 40))
            if len(some) == 0:
                continue
            more = np.minimum(rng.integers(1, 2 + 6 * (rng.random() < 0.2), len(some)), 40 - lengths[some])
            columns = lengths[some, None] + np.arange(more.max())
            lengths[some] += more
            found = cache.extend(some, tokens.numpy()[some[:, None], columns.clip(max=39)], more)
            wanted = learned[some, lengths[some] - 1]
            assert (found - wanted).abs().max() < 1e-4 * learned.std()


def test_a_token_copies_no_keys_of_earlier_tokens(path, monkeypatch):
    """Keys are read where they lie, and rows are moved when a turn starts or a row leaves, not for each token."""
    model = build_model(SPEC, of(path, lora_rank=0), 0, torch.float32)
    cache, rows, moved = model.cache(4, 100), np.arange(4), []
    update = type(cache).update

    def watched(self, *args, **kwargs):
        keys, values = update(self, *args, **kwargs)
        assert {x.untyped_storage().data_ptr() for x in (keys, values)} <= storages
        return keys, values

    def one_token(some):
        before = cache._slots.copy(), cache._ends.copy()
        cache.extend(some, np.ones((len(some), 1), np.int64), np.ones(len(some), np.int64))
        moved.append([np.flatnonzero(cache._slots != before[0]), np.flatnonzero(cache._ends != before[1])])

    with torch.inference_mode():
        cache.extend(rows, np.ones((4, 30), np.int64), np.array([30, 7, 12, 1]))
        storages = {x.untyped_storage().data_ptr() for layer in cache._kept for x in layer}
        monkeypatch.setattr(type(cache), "update", watched)
        for some in ([0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2], [1, 2]):
            one_token(np.array(some))
    assert [slots.tolist() for slots, _ in moved] == [[], [], [0, 3], [], [2, 3], []]
    assert [ends.tolist() for _, ends in moved][:4] == [[0, 1, 2, 3]] * 2 + [[1, 2, 3]] * 2


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


def collector_of(model, config, num_envs, num_tokens, **generation):
    task = EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0", kwargs={"turns": 9})
    return TextCollector(
        make_turns(task, range(num_envs), 0, PATIENCE_S, 0), model, make_tokenizer(SPEC, config),
        GenerationSettings(num_tokens, max_turns=4, **generation),
        first_env=0, device=torch.device("cpu"), dtype=torch.float64,
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
    # The model masks special tokens by itself: a mask of each token, [L, E, V], would be the largest array of a run.
    assert rollout.action_mask is None
    policy = model.distribution(params)
    never = ~torch.from_numpy(collector.tokenizer.typed)
    assert never.any()
    assert not policy.log_probs[:, never].exp().any()
    assert torch.allclose(
        policy.log_prob(rollout.actions.T.flatten()[own]), rollout.logprobs.T.flatten()[own]
    )
    (policy.log_prob(rollout.actions.T.flatten()[own]).sum() + values.sum()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_nucleus_is_kept_for_each_token_and_holds_no_special_token(path):
    config = of(path)
    model = build_model(SPEC, config, 0, torch.float64)
    collector = collector_of(model, config, 3, 60, top_p=0.5)
    collector.reset([1, 2, 3], [{}] * 3)
    rollout, _ = collector.collect(action_noise(0, 0, range(3), 60, 1, normal=False))
    masks = rollout.action_mask[rollout.valid]
    assert masks.any(dim=1).all()
    assert not masks[:, ~torch.from_numpy(collector.tokenizer.typed)].any()
    assert (masks.sum(dim=1) < collector.tokenizer.typed.sum()).all()


def test_log_probabilities_of_a_large_vocabulary_are_computed_some_episodes_at_a_time(path, monkeypatch):
    config = of(path)
    model = build_model(SPEC, config, 0, torch.float64)
    found = []
    for most in (2**26, 1):
        monkeypatch.setattr("ddppo.domains.text.token_rollout._LOGITS_PER_FORWARD", most)
        collector = collector_of(model, config, 3, 60)
        collector.reset([1, 2, 3], [{}] * 3)
        sizes, at_own = [], model.at_own
        monkeypatch.setattr(model, "at_own", lambda obs, *rest, at_own=at_own, sizes=sizes: (
            sizes.append(len(obs)), at_own(obs, *rest))[1])  # fmt: skip
        rollout, _ = collector.collect(action_noise(0, 0, range(3), 60, 1, normal=False))
        monkeypatch.undo()
        found.append((sizes, rollout.logprobs))
    assert [sizes for sizes, _ in found] == [[3], [1, 1, 1]]
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-9, atol=1e-9)


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
    with pytest.raises(
        ConfigError, match="knows 128 positions"
    ):  # before any process starts, and weights are read
        TextCollector.check_task(config, SPEC)
    with torch.inference_mode():  # the value behind the last of 127 is of position 128
        model(torch.zeros(1, 128, dtype=torch.int64))


def test_a_path_that_leads_nowhere_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"model.hf_path=.*nothing: no .* can be loaded from it"):
        check_model(SPEC, of(str(tmp_path / "nothing")), torch.float32, num_envs=2)


# -- bfloat16, less memory, and settings of adapters.


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_in_bfloat16_masters_learn_in_float32(path, lora_rank):
    config = of(path, lora_rank=lora_rank, precision="bfloat16")
    assert check_model(SPEC, config, torch.float32, num_envs=2) is None
    model = build_model(SPEC, config, 0, torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    frozen = {b.dtype for name, b in model.named_buffers() if "weight" in name}
    assert frozen == ({torch.bfloat16} if lora_rank else set())
    tokens = torch.arange(30).view(2, 15)
    model(tokens)[0].logsumexp(-1).sum().backward()
    grads = [p.grad for name, p in model.named_parameters() if name != "value_head.weight"]
    assert {grad.dtype for grad in grads} == {torch.float32}
    # A change of a master that bfloat16 cannot show alone adds up over steps, and the cache uses the rounded masters.
    with torch.inference_mode():
        before = model.cache(2, 15).extend(np.arange(2), tokens.numpy(), np.array([15, 15]))
        for p in model.parameters():
            p.mul_(1.5)
        after = model.cache(2, 15).extend(np.arange(2), tokens.numpy(), np.array([15, 15]))
        learned = model(tokens)[0].unflatten(0, (2, 15))[:, -1]
    assert (after - learned).abs().max() < 0.1 * learned.std()
    if not lora_rank:
        assert (after - before).abs().max() > 0.1 * learned.std()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_gradient_checkpointing_changes_no_gradient(path, lora_rank, precision):
    grads, kept = [], []
    for gradient_checkpointing in (False, True):
        model = build_model(
            SPEC,
            of(path, lora_rank=lora_rank, precision=precision, gradient_checkpointing=gradient_checkpointing),
            0,
            torch.float32,
        )
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, s=sizes: s.append(x.numel()) or x, lambda x: x
        ):
            logits, values = model(torch.arange(30).view(2, 15))
        (logits.logsumexp(-1).sum() + values.sum()).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
        kept.append(sum(sizes))
    assert kept[1] < kept[0]
    for name, grad in grads[0].items():
        assert torch.equal(grad, grads[1][name]), name


def test_adapters_are_added_where_the_settings_say(path):
    targets = ["c_attn"] if "gpt2" in path else ["q_proj", "v_proj"]
    model = build_model(SPEC, of(path, lora_rank=4, lora_alpha=4, lora_targets=targets), 0, torch.float32)
    adapted = {
        name.split(".lora_")[0].split(".")[-1] for name, _ in model.named_parameters() if "lora_" in name
    }
    assert adapted == set(targets)
    layer = next(m for m in model.modules() if isinstance(getattr(m, "scaling", None), dict))
    assert layer.scaling["default"] == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"lora_targets": ["query"]},
            r"model.lora_targets=\[query\]: .* has no such layers, .*its layers with weights are",
        ),
    ],
)
def test_settings_that_do_not_fit_are_a_sentence(path, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_model(SPEC, of(path, **settings), torch.float32, num_envs=2)


def no_tokenizer(folder):
    path = Path(saved("llama", folder))
    for file in path.glob("*token*"):
        file.unlink()
    return path


def encoder(folder):
    transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=264, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    ).save_pretrained(folder)
    return folder


def empty(folder):
    return folder


def half_written(folder):
    path = Path(saved("llama", folder))
    (path / "model.safetensors").write_bytes(b"0123")
    return path


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (no_tokenizer, "its tokenizer cannot be loaded"),
        (encoder, "no causal language model can be loaded from it"),
        (empty, "no causal language model can be loaded from it"),
        (half_written, "no causal language model can be loaded from it"),
    ],
)
def test_folders_without_a_whole_causal_language_model_are_a_sentence(make, sentence, tmp_path):
    with pytest.raises(ConfigError, match=rf"model.hf_path=.*: {sentence}") as e:
        check_model(SPEC, of(str(make(tmp_path))), torch.float32, num_envs=2)
    assert "\n" not in str(e.value)


# -- Export.


TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module", params=["whole", "adapters", "adapters in bfloat16"])
def run_of_a_model(request, tmp_path_factory):
    """A run of one iteration, with the folder of its model. A template is the tokenizer's own, or a file."""
    folder = tmp_path_factory.mktemp("export")
    path = saved("llama", folder / "model")
    if request.param == "whole":
        (folder / "template").write_text(TEMPLATE)
        more = ("model.lora_rank=0", f"model.chat_template={folder / 'template'}")
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(path)
        more = ("model.lora_rank=2", "model.chat=text")
    if "bfloat16" in request.param:
        more += ("model.precision=bfloat16", "model.gradient_checkpointing=true", "ppo.total_steps=5000")
    result = door(
        "env=gym", "env.id=tests.domains.text.text_tasks:tests/BytesPartsRepeat-v0", "env.num_envs=8",
        "model=hf", f"model.hf_path={path}", "model.turn_tokens=6", "model.obs_tokens=20", "ppo=grpo_hf",
        "ppo.learning_rate=0.02", "ppo.rollout_steps=64", "ppo.total_steps=1", *more, "env.max_turns=2",
        "log.progress=none", "eval.final_episodes=0", run_dir=folder / "run",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    return folder, path, request.param


def change_parameters(run):
    """Add noise to the parameters in a run's last checkpoint, as if it had learned much."""
    file = checkpoint.chosen("last", run)
    state = checkpoint.load(file)
    torch.manual_seed(0)
    state["model"] = {name: p + 0.1 * torch.randn_like(p) for name, p in state["model"].items()}
    checkpoint.save(file, state)


@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)  # peft 0.21 with transformers 5.24
def test_an_exported_model_gives_the_same_logits_without_ddppo(run_of_a_model):
    """Adapters load by peft, a whole model by transformers, each from the folder alone."""
    import peft

    folder, path, kind = run_of_a_model
    run = folder / "run"
    change_parameters(run)
    policy = trained(run).policy.model
    dtype = torch.bfloat16 if "bfloat16" in kind else torch.float32
    tokens = torch.arange(3, 33).view(2, 15)
    wanted = policy(tokens)[0].detach().unflatten(0, (2, 15))
    typable = wanted > -1e4

    @torch.inference_mode()
    def off(lm):
        """By how much logits of typable tokens differ (root mean square), as a share of their spread."""
        its = lm.eval()(tokens).logits.float()
        return float((its - wanted)[typable].square().mean().sqrt() / wanted[typable].std())

    near = 1e-5 if dtype == torch.float32 else 0.1
    assert off(transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)) > 2 * near
    text = export(ExportConfig(run=str(run)))
    assert "logits within" in text
    if "adapters" in kind:
        assert f"adapters for {path}" in text
        named = json.loads((run / "adapters" / "adapter_config.json").read_text())
        assert (named["base_model_name_or_path"], named["r"], named["peft_type"]) == (path, 2, "LORA")
        assert off(peft.AutoPeftModelForCausalLM.from_pretrained(run / "adapters", dtype=dtype)) < near
        export(ExportConfig(run=str(run), merge=True))
    assert off(transformers.AutoModelForCausalLM.from_pretrained(run / "merged", dtype=dtype)) < near
    assert not list((run / "merged").glob("adapter*"))
    assert not list(run.glob(".*merged*"))

    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "merged")
    assert tokenizer.decode(tokenizer("a text")["input_ids"]) == "a text"
    hi = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(hi, tokenize=False, add_generation_prompt=True) == "u:hi<end>a:"
    with pytest.raises(ConfigError, match="it exists: name a folder that does not"):
        export(ExportConfig(run=str(run), merge=True))
    with pytest.raises(ConfigError, match="is a task of text"):
        export(ExportConfig(run=str(run), format="torch"))


@pytest.mark.parametrize("run_of_a_model", ["adapters in bfloat16"], indirect=True)
def test_a_run_in_bfloat16_with_checkpointed_layers_learns(run_of_a_model):
    """A reward for few letters, of at most 12 in an episode."""
    lines = (run_of_a_model[0] / "run" / "metrics.jsonl").read_text().splitlines()
    returns = [json.loads(line)["rollout/group_return_mean"] for line in lines]
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 0.015
