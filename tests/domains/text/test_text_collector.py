"""Episodes of text: what is typed, remembered and recorded."""

import numpy as np
import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.collector import GenerationSettings, TextCollector
from ddppo.domains.text.settings import TextSettings
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.domains.text.turns import make_turns
from ddppo.envs.probing.probe import probe
from ddppo.errors import EnvError, EnvOutputError, TrainingError
from ddppo.models.build import build_model
from ddppo.ppo.rollout import ENDS, EpisodeOutcome, outcome_metrics
from ddppo.seeding import action_noise
from tests.domains.text.text_tasks import TIERS, WORDS, RepeatEnv

REPEAT = "tests.domains.text.text_tasks:tests/Repeat-v0"
BYTES = "tests.domains.text.text_tasks:tests/BytesRepeat-v0"
PARTS = "tests.domains.text.text_tasks:tests/PartsRepeat-v0"
LENGTH = 24


def shaken(spec, config, dtype):
    """Return a model whose every weight matters."""
    model = build_model(spec, config, 0, dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def made(task=REPEAT, envs=range(6), dtype=torch.float64, max_restarts=0, length=LENGTH, **more):
    kwargs = more.pop("kwargs", {})
    settings = {
        key: more.pop(key) for key in ("turn_tokens", "obs_tokens", "sampling_temperature") if key in more
    }
    env, config = EnvConfig(id=task, kwargs=kwargs), settings_of("model", name="token_policy", **settings)
    spec = probe(env)
    turns = more.pop("turns", None) or make_turns(env, envs, 0, 10.0, max_restarts)
    return TextCollector(
        turns,
        shaken(spec, config, dtype),
        make_tokenizer(spec, config),
        GenerationSettings(length, **more),
        first_env=envs.start,
        device=torch.device("cpu"),
        dtype=dtype,
    )


def played(collector, envs=range(6), seed=3, greedy=False, tasks=None):
    options = [{"task": tasks[i]} for i in envs] if tasks else [{}] * len(envs)
    collector.reset([100 + i for i in envs], options)
    noise = action_noise(seed, 0, envs, collector.num_tokens, 1, normal=False)
    return collector.collect(None if greedy else noise)


FIELDS = (
    *("obs", "actions", "logprobs", "values", "next_values", "rewards", "terminated", "truncated", "valid"),
    *("episode_start", "action_mask", "achieved"),
)


def words(tokens):
    names = make_tokenizer(probe(EnvConfig(id=REPEAT)), TextSettings()).words
    return [names[token] for token in tokens]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_what_is_typed_token_by_token_is_what_the_whole_row_says(dtype, close):
    collector = made(BYTES, dtype=dtype)
    model = collector.model
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 250, (5, 30))
    with torch.inference_mode():
        whole = model(torch.from_numpy(tokens))[0].view(5, 30, -1)
        cache = model.cache(8, 30)
        rows, counts = np.array([0, 2, 3, 6, 7]), np.array([3, 7, 1, 5, 2])
        assert (cache.extend(rows, tokens[:, :7], counts) - whole[range(5), counts - 1]).abs().max() < close
        for _ in range(10):
            some = np.sort(generator.choice(5, generator.integers(1, 6), replace=False))
            more = generator.integers(1, 3, len(some))
            given = tokens[some[:, None], counts[some, None] + np.arange(2)]
            counts[some] += more
            found = cache.extend(rows[some], given, more)
            assert (found - whole[some, counts[some] - 1]).abs().max() < close


def test_values_and_logits_depend_on_nothing_that_comes_later():
    model = made(BYTES).model
    tokens = torch.randint(0, 250, (3, 12))
    others = tokens.clone()
    others[:, 7:] = 9
    params, values = model(tokens)
    params_of_others, values_of_others = model(others)
    same, differs = (slice(None, 7), slice(7, None))
    for x, y in ((params, params_of_others), (values[:, None], values_of_others[:, None])):
        x, y = x.view(3, 12, -1), y.view(3, 12, -1)
        assert torch.allclose(x[:, same], y[:, same], atol=1e-12)
        assert not torch.allclose(x[:, differs], y[:, differs], atol=1e-3)


def test_pad_behind_the_end_changes_nothing():
    model = made(BYTES).model
    tokens = torch.randint(0, 250, (3, 12))
    padded = torch.nn.functional.pad(tokens, (0, 5), value=model.pad)
    params, values = (x.view(3, 17, -1) for x in model(padded))
    assert torch.allclose(params[:, :12], model(tokens)[0].view(3, 12, -1), atol=1e-12)
    assert (params[:, 12:] == 0).all()
    assert (values[:, 12:] == 0).all()


def test_an_episode_is_one_row_of_prompt_turns_and_answers():
    rollout, episodes = played(made(), tasks=[*TIERS])
    for i, task in enumerate(TIERS):
        row = [*words(rollout.obs[:, i].tolist()), words([rollout.actions[-1, i]])[0]]
        assert row[:2] == ["say", task]
        own = rollout.valid[:, i].nonzero().flatten().tolist()
        assert own[0] == 1
        typed = [row[k + 1] for k in own]
        assert typed.count("<end>") == 2
        first = row[2 : row.index("<end>") + 1]
        answer = row[row.index("<end>") + 1 :][:2]
        assert answer == ["right" if first == [task, "<end>"] else "wrong", "again"]
        ends = [k for k in own if row[k + 1] == "<end>"]
        rewards = rollout.rewards[:, i]
        assert rewards[ends[0]] == (0.5 if answer[0] == "right" else 0.0)
        assert set(rewards.nonzero().flatten().tolist()) <= set(ends)
        assert rollout.terminated[:, i].nonzero().flatten().tolist() == [own[-1]]
        assert not rollout.truncated[:, i].any()
        assert rollout.episode_start[:, i].nonzero().flatten().tolist() == [1]
        assert rollout.achieved[i] == float(rewards.sum() == 1.0)
        episode = next(e for e in episodes if e.env_index == i)
        assert (episode.step, episode.episode_return, episode.length) == (own[-1], rewards.sum(), len(own))
    assert len(episodes) == 6


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_learning_begins_with_a_ratio_of_one(dtype, close, top_p):
    collector = made(dtype=dtype, top_p=top_p, sampling_temperature=0.7)
    rollout, _ = played(collector)
    own = rollout.valid.T
    params, values = collector.model.evaluate_actions(rollout.obs.T, rollout.actions.T)
    policy = collector.model.distribution(params.view(6, LENGTH, -1), rollout.action_mask.transpose(0, 1))
    logprobs = policy.log_prob(rollout.actions.T)
    assert (logprobs - rollout.logprobs.T)[own].abs().max() < close
    assert (values.view(6, LENGTH) - rollout.values.T)[own].abs().max() < close
    assert rollout.logprobs[rollout.valid].min() < -0.1
    assert (rollout.logprobs[~rollout.valid] == 0).all()


def test_tokens_are_drawn_as_likely_as_the_log_probabilities_say():
    """The grammar leaves 7 first tokens; 1000 draws of them from one prompt against their probabilities."""
    envs = range(200)
    collector = made(envs=envs)
    tasks = ["north"] * len(envs)
    counts, probs = np.zeros(collector.tokenizer.size), None
    for seed in range(5):
        rollout, _ = played(collector, envs, seed, tasks=tasks)
        counts += np.bincount(rollout.actions[1], minlength=len(counts))
        params = collector.model(rollout.obs.T[:1, :2])[0][1]
        probs = (
            collector.model.distribution(params, rollout.action_mask[1, 0]).log_probs.exp().detach().numpy()
        )
    assert counts[probs < 1e-9].sum() == 0
    assert (probs > 1e-9).sum() == 7
    spread = np.sqrt(probs * (1 - probs) / counts.sum())
    assert (np.abs(counts / counts.sum() - probs) <= 4 * spread + 1e-9).all()


def test_the_nucleus_is_what_tokens_were_drawn_from():
    rollout, _ = played(made(top_p=0.5))
    whole, _ = played(made(top_p=1.0))
    num = rollout.action_mask[rollout.valid].sum(dim=-1)
    assert num.max() <= 7
    assert (num < whole.action_mask[1, 0].sum()).any()
    chosen = rollout.action_mask.gather(-1, rollout.actions[..., None]).squeeze(-1)
    assert chosen[rollout.valid].all()


def test_tokens_drawn_on_the_device_are_those_drawn_on_the_host():
    host, there = made(), made()
    there._samples_there = True
    (one, _), (other, _) = played(host), played(there)
    assert torch.equal(one.actions, other.actions)
    assert one.valid.any()


def test_greedy_episodes_need_no_noise_and_repeat():
    one, _ = played(made(), greedy=True)
    other, _ = played(made(), greedy=True, seed=4)
    assert torch.equal(one.actions, other.actions)
    policy_mode = (
        made()
        .model(one.obs.T)[0]
        .view(6, LENGTH, -1)
        .masked_fill(~one.action_mask.transpose(0, 1), -torch.inf)
    )
    assert torch.equal(policy_mode.argmax(-1)[one.valid.T], one.actions.T[one.valid.T])


class Shuffled:
    """Turns that answer in another order, some at a time: first the last told, whatever was asked."""

    def __init__(self, turns, at_once):
        self._turns, self._at_once, self._answers = turns, at_once, []
        self.num_envs, self.spec, self.names = turns.num_envs, turns.spec, turns.names
        self.batches = []

    def begin(self, i, seed, options):
        self._turns.begin(i, seed, options)

    def act(self, i, action):
        self._turns.act(i, action)

    def ready(self, wait_s):
        self._answers += self._turns.ready(wait_s)[::-1]
        answers, self._answers = self._answers[: self._at_once], self._answers[self._at_once :]
        self.batches.append([turn.env for turn in answers])
        return answers

    def close(self):
        self._turns.close()


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_nothing_depends_on_who_waited_for_whom(at_once):
    turns = Shuffled(make_turns(EnvConfig(id=REPEAT), range(6), 0, 10.0, 0), at_once)
    one, episodes = played(made())
    other, others = played(made(turns=turns))
    assert max(map(len, turns.batches)) == at_once
    for field in FIELDS:
        assert torch.allclose(getattr(one, field).double(), getattr(other, field).double(), atol=1e-12), field
    assert episodes == others


def test_nor_on_how_environments_are_dealt_to_ranks():
    whole, episodes = played(made())
    parts = [played(made(envs=envs), envs) for envs in (range(2), range(2, 6))]
    for field in FIELDS:
        dim = 0 if field == "achieved" else 1
        joined = torch.cat([getattr(rollout, field) for rollout, _ in parts], dim=dim)
        assert torch.allclose(getattr(whole, field).double(), joined.double(), atol=1e-12), field
    assert sorted(episodes, key=str) == sorted(parts[0][1] + parts[1][1], key=str)


def test_an_episode_that_failed_counts_for_nothing():
    collector = made(max_restarts=1, kwargs={"fails": ["east", "up"]})
    rollout, episodes = played(collector, tasks=[*TIERS])
    failed = [i for i, task in enumerate(TIERS) if task in ("east", "up")]
    assert not rollout.valid[:, failed].any()
    assert (rollout.rewards[:, failed] == 0).all()
    assert rollout.achieved[failed].isnan().all()
    assert rollout.achieved.isnan().sum() == 2
    assert {e.env_index for e in episodes} == set(range(6)) - set(failed)
    again, _ = played(collector, tasks=[*WORDS[:1] * 6])
    assert again.valid.any(dim=0).all()
    with pytest.raises(EnvError, match="cannot hear"):
        played(collector, tasks=[*TIERS])


@pytest.mark.parametrize(
    ("reward", "said"),
    [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf"), ("1e39", "1e+39, more than torch.float32 holds,")],
)
def test_a_reward_that_is_no_number_is_a_sentence_with_task_episode_and_turn(reward, said):
    collector = made(dtype=torch.float32, kwargs={"pays": [0.5, reward]}, envs=range(2, 4))
    with pytest.raises(EnvOutputError) as e:
        played(collector, range(2, 4), tasks=["north"] * 4)
    assert str(e.value) == (
        f"environment 2 of rank 0 returned {said} as the reward in turn 2 of the episode of the task north from seed "
        "102: nothing can be learned from it; mend the task, or wrap it so that it returns finite numbers"
    )


@pytest.mark.parametrize(
    ("part", "said"),
    [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf"), ("1e39", "1e+39, more than torch.float32 holds,")],
)
def test_a_part_of_a_reward_that_is_no_number_is_a_sentence_too(part, said):
    for weights in (None, {"right": 1.0, "short": 1.0, "bonus": 0.0}):
        collector = made(
            PARTS,
            dtype=torch.float32,
            kwargs={"adds": {"bonus": part}},
            envs=range(2, 4),
            reward_weights=weights,
        )
        with pytest.raises(EnvOutputError) as e:
            played(collector, range(2, 4), tasks=["north"] * 4)
        assert str(e.value) == (
            f"environment 2 of rank 0 returned {said} as the part bonus of the reward in turn 1 of the episode of the "
            "task north from seed 102: nothing can be learned from it; mend the task, or wrap it so that it returns "
            "finite numbers"
        )


def test_the_parts_of_a_reward_are_summed_over_an_episode_and_weighed_if_asked():
    told, episodes = played(made(PARTS), tasks=[*TIERS])
    weights = {"short": 0.5, "right": 100.0}
    collector = made(PARTS, reward_weights=weights)
    rollout, weighed = played(collector, tasks=[*TIERS])
    assert torch.equal(rollout.actions, told.actions)
    num_failed = 0
    for i, outcome in enumerate(collector.outcomes()):
        row = [words([token])[0] for token in rollout.actions[rollout.valid[:, i], i].tolist()]
        typed = " ".join(row).split("<end>")[:2]
        right = sum(0.5 * (word.strip() == [*TIERS][i]) for word in typed)
        short = sum(-0.01 * len(word.strip()) for word in typed)
        assert outcome.reward_parts == pytest.approx({"right": right, "short": short}, abs=1e-12)
        assert outcome.num_tool_failures == sum(not word.strip() for word in typed)
        num_failed += outcome.num_tool_failures
        (ours,) = (e.episode_return for e in weighed if e.env_index == i)
        (theirs,) = (e.episode_return for e in episodes if e.env_index == i)
        assert ours == pytest.approx(100 * right + 0.5 * short, abs=1e-12)
        assert theirs == pytest.approx(right + short, abs=1e-12)
    assert outcome_metrics(collector.outcomes())["rollout/tool_failures"] == num_failed / 12
    assert 0 < num_failed < 12


@pytest.mark.parametrize(
    ("task", "weights", "said"),
    [
        (
            "Parts",
            {"right": 1.0, "shrot": 1.0},
            "the parts right, short of its reward in turn 1 of the episode of the task north from seed 100: and "
            "env.reward_weights names right, shrot: give each part a weight, 0 to leave it out",
        ),
        (
            "",
            {"right": 1.0},
            'no info["reward_parts"] in turn 1 of the episode of the task north from seed 100: and env.reward_weights '
            "weighs the parts of a reward: let each step report them, or leave the weights out",
        ),
    ],
)
def test_weights_of_parts_that_there_are_not_name_those_that_there_are(task, weights, said):
    with pytest.raises(EnvOutputError) as e:
        played(made(REPEAT.replace("Repeat", f"{task}Repeat"), reward_weights=weights), tasks=["north"] * 6)
    assert str(e.value) == f"environment 0 of rank 0 returned {said}"


@pytest.mark.parametrize("parts", [3.0, {"right": "much"}, {"right": None}, {1: 2.0}, {"": 1.0}, [1.0]])
def test_parts_that_are_no_numbers_by_names_are_a_fault_of_the_environment(parts, monkeypatch):
    monkeypatch.setattr(RepeatEnv, "info", lambda self: {"reward_parts": parts} if self.num_steps else {})
    with pytest.raises(EnvOutputError, match=r"reward_parts.*must be a dict of numbers by their names"):
        played(made())


@pytest.mark.parametrize("told", ["yes", 2, None, 1])
def test_a_tool_that_failed_or_not_is_true_or_false(told, monkeypatch):
    monkeypatch.setattr(RepeatEnv, "info", lambda self: {"tool_failed": told} if self.num_steps else {})
    if told is None:
        collector = made()
        played(collector)
        assert {o.num_tool_failures for o in collector.outcomes()} == {None}
        return
    with pytest.raises(EnvOutputError) as e:
        played(made())
    assert str(e.value) == (
        f'environment 0 of rank 0 returned {told!r} as info["tool_failed"] in turn 1 of the episode from seed 100: '
        "return True if the tool of the turn failed, else False"
    )


def test_the_parts_of_rewards_are_means_over_episodes_and_deviations_within_groups():
    parts = [{"a": 1.0}, {"a": 3.0, "b": 4.0}, {"a": 10.0}, {"a": 10.0, "b": 2.0}, {"a": 99.0}]
    outcomes = [
        EpisodeOutcome(
            i, "failed" if i == 4 else "terminated", 1, 2, num_tool_failures=i % 2, reward_parts=of
        )
        for i, of in enumerate(parts)
    ]
    found = outcome_metrics(outcomes, group_size=2)
    assert {name: x for name, x in found.items() if name.startswith("reward/")} == {
        "reward/a": 6.0,  # of 1, 3, 10 and 10
        "reward/a_std": 0.5,  # of 1 in the first group, and 0 in the second
        "reward/b": 3.0,
        "reward/b_std": 0.0,
    }
    assert found["rollout/tool_failures"] == 2 / 8
    assert "reward/a_std" not in outcome_metrics(outcomes)


def test_episodes_without_an_action_count_in_shares_of_failures_and_in_parts_of_rewards():
    """Left out, a policy that seldom acts would look better than one that acts and fails."""
    parts, failures = [{"a": 3.0}, {"a": 6.0}, {}], [None, None, 4]
    outcomes = [
        EpisodeOutcome(i, "terminated", 1, 4, num_tool_failures=failures[i], reward_parts=of)
        for i, of in enumerate(parts)
    ]
    found = outcome_metrics(outcomes)
    assert found["rollout/tool_failures"] == 4 / 12
    assert found["reward/a"] == 3.0
    assert "rollout/tool_failures" not in outcome_metrics(outcomes[:2])


@pytest.mark.parametrize("told", ["yes", 2.0, np.nan])
def test_a_success_that_is_neither_true_nor_false_is_a_sentence(told, monkeypatch):
    monkeypatch.setattr(RepeatEnv, "info", lambda self: {"is_success": told if self.num_steps else None})
    with pytest.raises(EnvOutputError) as e:
        played(made())
    assert str(e.value) == (
        f'environment 0 of rank 0 returned {told!r} as info["is_success"] in turn 1 of the episode from seed 100: '
        "return True if the task is achieved, else False"
    )


def test_rewards_stay_what_the_task_said_whatever_is_computed_in():
    rollout, episodes = played(made(dtype=torch.float32, kwargs={"pays": [30_000_000.1, 1]}))
    assert rollout.rewards.sum(dim=0).tolist() == [30_000_001.1] * 6
    assert [episode.episode_return for episode in episodes] == [30_000_001.1] * 6
    assert rollout.logprobs.dtype == torch.float32


def test_a_prompt_that_leaves_no_token_to_type_is_a_sentence_with_its_remedy():
    with pytest.raises(TrainingError) as e:
        played(made(length=1))
    assert str(e.value) == (
        "environment 0 of rank 0: its tokenizer made a prompt of 2 tokens, system message, tools and examples "
        "included, and ppo.rollout_steps=1 leaves none to "
        "type: have it keep to model.obs_tokens, or set a larger ppo.rollout_steps"
    )


def test_turns_have_a_limit_and_what_is_left_is_worth_what_follows():
    collector = made(max_turns=1)
    rollout, _ = played(collector)
    last = rollout.valid.long().cumsum(0).argmax(0)
    for i in range(6):
        assert rollout.truncated[:, i].nonzero().flatten().tolist() == [last[i].item()]
        row = rollout.obs[:, i]
        length = int((row != 0).sum())
        assert words(row[length - 2 : length].tolist())[1] == "again"
        assert last[i] + 1 < length - 1  # the answer was read
        assert torch.allclose(rollout.next_values[last[i], i], collector.model(row[None])[1][length - 1])
    assert not rollout.terminated.any()


def test_where_the_environment_truncates_it_is_the_same():
    rollout, _ = played(made(kwargs={"truncates": True}))
    limited, _ = played(made(kwargs={"turns": 9}, max_turns=2))
    for field in ("obs", "actions", "truncated", "next_values", "rewards"):
        assert torch.equal(getattr(rollout, field), getattr(limited, field)), field


@pytest.mark.parametrize(
    ("how", "ended_by", "num_turns"),
    [
        ({}, "terminated", 2),
        ({"kwargs": {"truncates": True}}, "time_limit", 2),
        ({"max_turns": 1}, "max_turns", 1),
        ({"max_turns": 2, "kwargs": {"truncates": True}}, "time_limit", 2),
        # A prompt of 2 tokens; the turn of 3 bytes is cut short, and not played.
        ({"task": BYTES, "length": 3, "obs_tokens": 2, "turn_tokens": 3}, "tokens", 0),
        # A prompt of 2 tokens, a turn of 1 and an answer of 2.
        ({"length": 3, "turn_tokens": 1}, "prompt", 1),  # one token is left for the answer
        ({"length": 4, "turn_tokens": 1}, "tokens", 1),  # the answer fills the row
        ({"max_restarts": 1, "kwargs": {"fails": TIERS}}, "failed", 1),
    ],
)
def test_why_an_episode_ended_is_one_word(how, ended_by, num_turns):
    collector = made(**how)
    rollout, _ = played(collector, tasks=["north"] * 6)
    assert collector.ended_by == [ended_by] * 6
    assert [ENDS[place] for place in rollout.ended_by] == [ended_by] * 6
    found = [(o.env_index, o.ended_by, o.num_turns) for o in collector.outcomes()]
    assert found == [(i, ended_by, num_turns) for i in range(6)]
    if ended_by != "failed":
        assert [o.length for o in collector.outcomes()] == rollout.valid.sum(dim=0).tolist()


def test_metrics_of_episodes_leave_out_those_that_failed():
    outcomes = [
        EpisodeOutcome(0, "terminated", 4, 2),
        EpisodeOutcome(1, "tokens", 9, 3),
        EpisodeOutcome(2, "failed", 99, 9),
        EpisodeOutcome(3, "time_limit", 5, 1),
        EpisodeOutcome(4, "max_turns", 2, 2),
    ]
    assert outcome_metrics(outcomes) == {
        "rollout/truncated": 0.5,
        "rollout/tokens_min": 2,
        "rollout/tokens_mean": 5,
        "rollout/tokens_max": 9,
        "rollout/turns_mean": 2,
        "rollout/ended_by_terminated": 0.25,
        "rollout/ended_by_time_limit": 0.25,
        "rollout/ended_by_max_turns": 0.25,
        "rollout/ended_by_tokens": 0.25,
        "rollout/ended_by_prompt": 0,
    }
    assert outcome_metrics(outcomes[2:3]) == {}


def test_values_of_the_next_are_those_of_the_policy_s_next_token():
    rollout, _ = played(made())
    for i in range(6):
        own = rollout.valid[:, i].nonzero().flatten()
        assert torch.equal(rollout.next_values[own[:-1], i], rollout.values[own[1:], i])


@pytest.mark.parametrize("length", range(3, 10))
def test_an_episode_is_cut_where_its_tokens_are_spent(length):
    whole, _ = played(made(BYTES, obs_tokens=2, turn_tokens=3, length=30, kwargs={"turns": 9}, max_turns=6))
    collector = made(BYTES, obs_tokens=2, turn_tokens=3, length=length, kwargs={"turns": 9}, max_turns=6)
    rollout, episodes = played(collector)
    assert len(episodes) == 6
    for field in ("obs", "actions"):
        mine, all_of_it = getattr(rollout, field), getattr(whole, field)[:length]
        assert torch.equal(mine, all_of_it), field
    assert torch.equal(rollout.valid, whole.valid[:length])
    for i in range(6):
        own = rollout.valid[:, i].nonzero().flatten().tolist()
        assert rollout.truncated[:, i].nonzero().flatten().tolist() == [own[-1]]
        tokens = torch.cat([rollout.obs[:, i], rollout.actions[-1:, i]])
        used = tokens[: int((tokens != collector.tokenizer.pad).sum())]
        assert torch.allclose(rollout.next_values[own[-1], i], collector.model(used[None])[1][-1])


def test_slow_environments_do_not_hold_back_quick_ones():
    class Slow(Shuffled):
        """Environment 0 answers only when nobody else is under way."""

        def ready(self, wait_s):
            self._answers += self._turns.ready(wait_s)
            quick = [turn for turn in self._answers if turn.env]
            answers = quick or self._answers
            self._answers = [turn for turn in self._answers if turn not in answers]
            self.batches.append([turn.env for turn in answers])
            return answers

    turns = Slow(make_turns(EnvConfig(id=REPEAT), range(4), 0, 10.0, 0), 0)
    rollout, episodes = played(made(turns=turns, envs=range(4)), range(4))
    assert len(episodes) == 4
    first_of_slow = next(k for k, batch in enumerate(turns.batches) if 0 in batch)
    assert all(0 in batch or not batch for batch in turns.batches[first_of_slow:])
    assert torch.equal(rollout.actions, played(made(envs=range(4)), range(4))[0].actions)


def test_what_it_took_is_counted():
    collector = made()
    rollout, _ = played(collector)
    measured = collector.measured()
    assert measured["rollout/turns"] == 12
    assert 1 < measured["rollout/inference_batch"] <= 6
    assert measured["rollout/t_generate"] > 0
    assert measured["rollout/tokens_per_s"] == pytest.approx(
        int(rollout.valid.sum()) / measured["rollout/t_generate"]
    )
