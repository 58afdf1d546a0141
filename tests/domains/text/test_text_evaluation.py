"""Evaluation of tasks of text: every task in turn, by a collector, and by nothing else."""

import math
from types import SimpleNamespace

import pytest
import torch

from ddppo.config.settings import Config, DistSettings, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.evaluation import TextEvaluator, play_tasks, rounded_up
from ddppo.domains.text.playing import conversations
from ddppo.domains.text.rollouts import read_rollouts
from ddppo.domains.text.token_policy import TokenPolicy
from ddppo.enjoy import EnjoyConfig, enjoy
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, EnvError, TrainingError
from ddppo.evaluate import EvaluateConfig, evaluate
from ddppo.loop.evaluation import Evaluator, Policy, evaluator_of
from ddppo.models.build import build_model
from ddppo.policies.acting import load_policy
from ddppo.policies.loading import trained
from ddppo.policies.scores import evaluated as evaluated_run
from ddppo.ppo.rollout import FinishedEpisode
from ddppo.seeding import derived_seed
from tests.domains.text.text_tasks import TIERS, RepeatEnv
from tests.unit.test_policies import run_folder

TASKS = {"a": "warm-up", "b": "warm-up", "c": "expert"}


class Played:
    """A collector of E environments whose episodes return their seed; those of `lost` seeds are lost."""

    def __init__(self, num_envs, tasks=TASKS, lost=()):
        self.turns = SimpleNamespace(num_envs=num_envs, spec=SimpleNamespace(tasks=tasks))
        self.first_env, self.lost, self.begun = 5, lost, []

    def reset(self, seeds, options):
        assert len(seeds) == len(options) == self.turns.num_envs
        self.now = list(zip(seeds, options, strict=True))
        self.begun += self.now

    def play(self, noise):
        assert noise is None
        self.achieved = [options.get("task") != "b" for _, options in self.now]
        ended = [
            FinishedEpisode(0, self.first_env + i, float(seed), 10 + i)
            for i, (seed, _) in enumerate(self.now)
            if seed not in self.lost
        ]
        return ended[::-1]


def evaluator(tasks=TASKS):
    return TextEvaluator(Policy(None, None, SimpleNamespace(tasks=tasks)), Config())


def seeds(*episodes):
    return [derived_seed(7, "eval", j) for j in episodes]


def test_every_task_is_played_in_turn_from_seeds_of_the_episodes():
    collector = Played(3)
    rows = play_tasks(collector, range(6), seed=7)
    assert collector.begun == [
        (seed, {"task": task}) for seed, task in zip(seeds(*range(6)), "abcabc", strict=True)
    ]
    assert rows[:, 0].tolist() == seeds(*range(6))
    assert rows[:, 1].tolist() == [10, 11, 12, 10, 11, 12]
    assert rows[:, 2].tolist() == [1, 0, 1, 1, 0, 1]


def test_the_episodes_of_a_rank_are_the_same_whoever_plays_the_others():
    whole = play_tasks(Played(4), range(9), seed=7)
    for world_size in (2, 3):
        for rank in range(world_size):
            own = play_tasks(Played(2), range(rank, 9, world_size), seed=7)
            assert own[:, [0, 2]].equal(whole[rank::world_size][:, [0, 2]])


def test_a_task_without_names_is_told_none():
    collector = Played(2, tasks=None)
    assert play_tasks(collector, range(2), seed=7).shape == (2, 3)
    assert [options for _, options in collector.begun] == [{}, {}]


def test_a_rank_without_episodes_plays_none():
    collector = Played(2)
    assert play_tasks(collector, range(0), seed=7).shape == (0, 3)
    assert collector.begun == []


@pytest.mark.parametrize(("asked", "played"), [(1, 3), (3, 3), (4, 6), (100, 102)])
def test_every_task_has_as_many_episodes(asked, played):
    assert rounded_up(asked, TASKS) == played
    assert rounded_up(asked, None) == asked


def test_rates_are_of_all_tasks_and_of_each_tier_without_what_was_lost():
    rows = play_tasks(Played(3, lost=seeds(0)), range(6), seed=7)
    scores = evaluator().scores(rows.T.tolist())
    assert scores.returns == tuple(seeds(1, 2, 3, 4, 5))
    assert scores.tiers == ("warm-up", "expert", "warm-up", "warm-up", "expert")
    assert evaluator().metrics(scores) == {
        "eval/success_rate": 3 / 5,
        "eval/success_rate_warm-up": 1 / 3,
        "eval/success_rate_expert": 1.0,
    }


def test_an_evaluation_of_which_nothing_is_left_ends_the_run():
    rows = play_tasks(Played(3, lost=seeds(0, 1, 2)), range(3), seed=7)
    with pytest.raises(TrainingError, match="all 3 episodes of the evaluation were lost"):
        evaluator().scores(rows.T.tolist())


def test_of_tasks_that_do_not_tell_nothing_is_said_of_success():
    scores = evaluator(None).scores([[1.0, 2.0], [3, 4], [math.nan, math.nan]])
    assert (scores.returns, scores.lengths) == ((1.0, 2.0), (3, 4))
    assert evaluator(None).metrics(scores) == {}


def evaluated(num_episodes=10, num_envs=4, task="Repeat", backend="auto", fails=(), **dist):
    """Return the scores of a policy that has learned nothing."""
    env = EnvConfig(
        id=f"tests.domains.text.text_tasks:tests/{task}-v0",
        num_envs=num_envs,
        backend=backend,
        kwargs={"fails": list(fails)},
    )
    config = Config(env=env, dist=DistSettings(**dist), dtype="float64", device="cpu")
    config.model = settings_of("model", name="token_policy", turn_tokens=2, obs_tokens=4)
    config.ppo.rollout_steps = 24
    spec = probe(config.env)
    policy = Policy(build_model(spec, config.model, 3, torch.float64), None, spec)
    alone = TextEvaluator(policy, config)
    (rows,) = alone.play([range(alone.num_episodes(num_episodes))], 64, seed=0)
    return alone.scores(rows.T.tolist())


def test_tasks_of_text_have_an_evaluator_of_their_own_and_others_that_of_batches():
    assert evaluator_of(probe(EnvConfig(id="tests.domains.text.text_tasks:tests/Repeat-v0"))) is TextEvaluator
    assert evaluator_of(probe(EnvConfig(id="CartPole-v1"))) is Evaluator


def test_the_likeliest_tokens_score_the_same_however_many_play_side_by_side():
    scores = [evaluated(num_envs=num) for num in (1, 4, 16)]
    assert scores[0] == scores[1] == scores[2]
    assert len(scores[0].returns) == 12
    assert scores[0].tiers == ("warm-up",) * 4 + ("beginner",) * 2 + ("warm-up",) * 4 + ("beginner",) * 2


def test_evaluation_computes_nothing_that_only_learning_needs(monkeypatch):
    monkeypatch.setattr(TokenPolicy, "at_own", None)
    assert len(evaluated().returns) == 12


def test_a_world_that_is_lost_costs_its_episode_where_the_run_says_so():
    with pytest.raises(EnvError, match="cannot hear"):
        evaluated(fails=["east"])
    scores = evaluated(fails=["east"], on_lost="restart")
    assert len(scores.returns) == 10  # of 12 episodes twice that task is none


def test_worlds_of_which_a_process_holds_one_are_served_to_who_plays_all_of_them():
    pytest.importorskip("fastapi", reason="needs the extra serve: pip install '.[serve]'")
    whole = evaluated(num_envs=1, task="AloneRepeat")
    assert evaluated(num_envs=2, task="AloneRepeat", backend="sync") == whole == evaluated(num_envs=1)


@pytest.fixture(scope="module")
def typing(tmp_path_factory):
    """The folder of a run whose policy has learned nothing."""
    folder = tmp_path_factory.mktemp("run")
    return run_folder(
        folder, "tests.domains.text.text_tasks:tests/Repeat-v0", normalized=False, name="token_policy"
    )


def test_a_loaded_policy_types_what_it_types_in_an_evaluation(typing):
    evaluator = TextEvaluator(trained(typing).policy, trained(typing).config)
    evaluator.play([range(12)], 4, seed=7)
    policy, env = load_policy(typing), RepeatEnv()
    for record in evaluator.rollouts:
        obs, info = env.reset(seed=record.seed, options={"task": record.task})
        policy.reset(info)
        for turn in record.turns:
            action = policy(obs)
            assert action == turn.action
            obs, *_ = env.step(action)


def test_drawn_episodes_are_those_of_their_numbers_whoever_plays_beside_them(typing):
    found = [evaluated_run(trained(typing), n, [7], deterministic=False)["returns"][:6] for n in (6, 18)]
    assert found[0] == found[1]
    assert found[0] != evaluated_run(trained(typing), 6, [8], deterministic=False)["returns"]


def test_a_loaded_policy_is_given_one_text_until_its_tokens_are_used_up(typing):
    policy = load_policy(typing)
    with pytest.raises(ValueError, match="is given one text, and no mask: it was given list"):
        policy(["say up"])
    with pytest.raises(ValueError, match=r"has used up ppo.rollout_steps=128 tokens"):  # noqa: PT012
        for _ in range(100):
            assert policy("say up").strip() in (*TIERS, "")
    policy.reset()
    assert policy("say up").strip() in (*TIERS, "")


def test_enjoy_prints_the_conversations_of_the_episodes_of_an_evaluation(typing, capsys):
    before = list((typing / "rollouts").glob("*"))
    enjoy(EnjoyConfig(str(typing), episodes=2))
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("e300.")] == [
        "e300.0  north (warm-up)", "e300.1  east (warm-up)"
    ]  # fmt: skip
    assert "prompt\n    say north\n" in printed
    assert list((typing / "rollouts").glob("*")) == before
    with pytest.raises(ConfigError, match=r"fps=3.0: .* is a task of text, without pictures"):
        enjoy(EnjoyConfig(str(typing), fps=3.0))


def test_enjoy_tells_each_episode_as_soon_as_it_is_over(typing, monkeypatch):
    played = []
    play = TextEvaluator.play

    def counted(self, chunks, *more, **settings):
        played.extend(chunks)
        return play(self, chunks, *more, **settings)

    monkeypatch.setattr(TextEvaluator, "play", counted)
    told = conversations(trained(typing), range(3), 1)
    for number in range(3):
        assert next(told).startswith(f"e300.{number} ")
        assert played == [[n] for n in range(number + 1)]
    assert list(told) == []


def test_an_evaluation_records_its_episodes_in_the_run_folder(tmp_path):
    run = run_folder(
        tmp_path, "tests.domains.text.text_tasks:tests/Repeat-v0", normalized=False, name="token_policy"
    )
    assert "mean" in evaluate(EvaluateConfig(str(run), episodes=6, seeds=[1, 2], deterministic=False))
    found = read_rollouts(run)
    assert [(r.env, r.task, r.policy, r.env_steps) for r in found] == [
        (j, task, 3, 300) for j, task in enumerate(TIERS) for _ in range(2)
    ]
    assert len({r.seed for r in found}) == 12
