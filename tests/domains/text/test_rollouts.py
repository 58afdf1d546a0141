"""Records of rollouts: what is kept, who writes it, and how it is shown."""

import json
import zipfile
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from ddppo.algorithms.grpo import group_advantages, group_statistics, rounding_of_returns
from ddppo.domains.text.rollout_views import (
    RolloutsConfig,
    excerpts,
    fitting,
    in_full,
    newest,
    page,
    view,
    visible,
    write_inspect,
)
from ddppo.domains.text.rollouts import (
    RolloutRecord,
    TurnRecord,
    chosen,
    read_rollouts,
    records_of,
    write_records,
)
from ddppo.errors import ConfigError, RunFolderError
from ddppo.ppo.rollout import CUTS, ENDS
from tests.domains.text.test_groups_of_text import KINDS
from tests.domains.text.test_text_collector import BYTES, made, played
from tests.domains.text.text_tasks import TIERS
from tests.support import TINY, door

KNOWN = {"kind": "training", "iteration": 4, "env_steps": None, "group": 0, "policy": 3}
EVIL = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e"


def recorded(*envs, **more):
    collector = made(**more)
    _, episodes = played(collector, tasks=list(TIERS))
    return records_of(collector, envs or range(6), **KNOWN), {each.env_index: each for each in episodes}


def test_a_record_holds_the_prompt_and_every_turn_with_its_answer_and_reward():
    records, episodes = recorded()
    for i, record in enumerate(records):
        word = list(TIERS)[i]
        assert (record.env, record.seed, record.task, record.tier) == (i, 100 + i, word, TIERS[word])
        assert (record.prompt, record.ended_by, record.name) == (f"say {word}", "terminated", f"4.{i}")
        assert record.episode_return == episodes[i].episode_return == sum(t.reward for t in record.turns)
        assert record.num_tokens == episodes[i].length == sum(turn.num_tokens for turn in record.turns)
        assert [t.answer for t in record.turns] == [
            "right again" if turn.action.strip() == word else "wrong again" for turn in record.turns
        ]
        assert record.is_success == all(turn.action.strip() == word for turn in record.turns)


def test_what_was_typed_is_kept_as_it_was_beside_the_line_that_was_played():
    records, _ = recorded(task=BYTES, turn_tokens=5, length=60)
    turns = [turn for record in records for turn in record.turns]
    assert turns
    for turn in turns:
        if turn.action is not None:
            assert turn.action == turn.typed.removesuffix("\n")


def test_a_turn_that_is_cut_short_has_no_line_and_no_answer():
    (record,), _ = recorded(3, task=BYTES, turn_tokens=16, length=14)
    assert record.ended_by == "tokens"
    last = record.turns[-1]
    assert (last.action, last.answer, last.reward) == (None, None, None)
    assert (
        last.num_tokens == 15 - len("say west") - 1
    )  # a row has L + 1 tokens, and the prompt ends with a mark
    assert "cut short and not played" in in_full(record)


def test_a_rollout_that_failed_has_no_return_and_is_listed_as_failed():
    records, _ = recorded(kwargs={"fails": ["east"]}, max_restarts=3)
    (lost,) = [record for record in records if record.ended_by == "failed"]
    assert (lost.task, lost.episode_return) == ("east", None)
    assert len(lost.turns) == 2
    assert lost.turns[0].answer is not None
    assert lost.turns[1].answer is None


@pytest.mark.parametrize("iteration", [1, 2, 3, 4, 5])
def test_each_iteration_records_one_group_in_turn_and_the_best_and_the_worst(iteration):
    returns = np.array([0.0, 3.0, 1.0, 1.0, 9.0, 9.0, -2.0, -2.0])
    was_played = np.array([True] * 4 + [False] + [True] * 3)
    found = np.flatnonzero(chosen(returns, was_played, 2, iteration)).tolist()
    group = (iteration - 1) % 4
    assert found == sorted({2 * group, 2 * group + 1, 5, 6})


def record(env=0, **more):
    turn = TurnRecord("aws\n", "aws", "ok", 0.5, 4)
    given = {"task": "a", "tier": "warm-up", "seed": 1, "episode_return": 0.5, "ended_by": "terminated"}
    return RolloutRecord(
        **KNOWN | given | {"env": env, "turns": [turn], "num_tokens": 4, "prompt": "do"} | more
    )


def run_of(folder, *records):
    write_records(folder / "rollouts" / "rank_0" / "iteration_00000004.jsonl", records)
    return folder


def test_what_is_written_is_read_again(tmp_path):
    odd = [record(), record(1, prompt="\u2028\ud800\n\x00", episode_return=None, is_success=True)]
    found = read_rollouts(run_of(tmp_path, *odd))
    assert found == [odd[0], replace(odd[1], prompt="\u2028?\n\x00")]


def test_a_broken_line_is_left_out_with_a_warning_that_names_it(tmp_path, capsys):
    path = run_of(tmp_path, record(), record(1)) / "rollouts/rank_0/iteration_00000004.jsonl"
    for broken in ('{"kind": "tra', "[1]", '{"turns": []}', '{"turns": 3, "env": 1}', ""):
        path.write_text(json.dumps(asdict(record())) + "\n" + broken + "\n")
        assert read_rollouts(tmp_path) == [record()]
        assert (
            capsys.readouterr().err == f"warning: {path} line 2 is no record of a rollout: it is left out\n"
        )


def test_a_line_that_a_full_disk_cut_is_named_too(tmp_path, capsys):
    path = run_of(tmp_path, record()) / "rollouts/rank_0/iteration_00000004.jsonl"
    path.write_text(path.read_text()[:-9])
    assert read_rollouts(tmp_path) == []
    assert "line 1 is no record of a rollout: it is left out" in capsys.readouterr().err


def test_a_field_of_a_later_version_is_no_fault(tmp_path):
    path = run_of(tmp_path, record()) / "rollouts/rank_0/iteration_00000004.jsonl"
    line = json.loads(path.read_text())
    line["turns"][0]["later"] = line["later"] = 1
    path.write_text(json.dumps(line) + "\n")
    assert read_rollouts(tmp_path) == [record()]


def test_a_run_without_records_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(RunFolderError, match="has no records of rollouts: tasks of text have them"):
        read_rollouts(tmp_path)
    with pytest.raises(RunFolderError, match="there is no such folder"):
        read_rollouts(tmp_path / "none")


MANY = [
    record(0, task="a", episode_return=0.0, is_success=False, ended_by="max_turns"),
    record(1, task="b", tier="expert", episode_return=1.0, is_success=True, iteration=5),
    record(2, task="b", tier="expert", episode_return=0.5, is_success=False, group=1, iteration=6),
    record(3, task="c", episode_return=None, ended_by="failed", iteration=12),
    record(4, kind="evaluation", env_steps=70, group=None, iteration=12, is_success=True, prompt="Buckets"),
]


@pytest.mark.parametrize(
    ("given", "envs"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"task": "b"}, [1, 2]),
        ({"tier": "expert", "success": True}, [1]),
        ({"success": False}, [0, 2]),
        ({"kind": "evaluation"}, [4]),
        ({"iteration": "5..6"}, [1, 2]),
        ({"iteration": "12"}, [3, 4]),
        ({"iteration": "..5"}, [0, 1]),
        ({"env": "2.."}, [2, 3]),
        ({"group": "1"}, [2]),
        ({"ended_by": "failed"}, [3]),
        ({"min_return": 0.5, "max_return": 0.9}, [2, 4]),
        ({"contains": "BUCKET"}, [4]),
        ({"name": "e70.4"}, [4]),
        ({"best": 1}, [1]),
        ({"worst": 2}, [4, 0]),
        ({"best": 3, "worst": 2}, [1, 2, 4, 0]),
    ],
)
def test_filters_keep_the_rollouts_that_fit_all_of_them(given, envs):
    assert [found.env for found in fitting(MANY, RolloutsConfig("run", **given))] == envs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "d"}, "task=d: none of 5 rollouts fits: there are a, b, c"),
        (
            {"tier": "exprt"},
            r"tier=exprt: none of 5 rollouts fits \(did you mean expert\?\): there are warm-up",
        ),
        ({"task": "a", "tier": "expert"}, "tier=expert: none of 2 rollouts fits: there are warm-up"),
        ({"iteration": "x"}, r"iteration=x: a number, or a range such as 10..20, 10.. or ..20"),
        ({"env": ".."}, "env=..: a number, or a range"),
        ({"min_return": 7.0}, "min_return=7.0: none of 5 rollouts fits"),
    ],
)
def test_a_filter_that_fits_nothing_says_what_there_is(given, said):
    with pytest.raises(ConfigError, match=said):
        fitting(MANY, RolloutsConfig("run", **given))


def test_the_list_has_a_line_for_each_of_the_newest(tmp_path):
    text = view(RolloutsConfig(str(run_of(tmp_path, *MANY)), most=2), width=160)
    assert text.startswith("5 rollouts, of which 2 are listed (most=5 lists all)")
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["12.3", "e70.4"]


@pytest.mark.parametrize(
    ("num_training", "num_evaluations", "listed"),
    [(30, 30, (10, 10)), (3, 30, (3, 17)), (30, 3, (17, 3)), (0, 30, (0, 20)), (4, 5, (4, 5))],
)
def test_the_list_of_the_newest_shows_training_and_evaluations(num_training, num_evaluations, listed):
    of_training = [record(i) for i in range(num_training)]
    of_evaluations = [record(i, kind="evaluation", env_steps=70, group=None) for i in range(num_evaluations)]
    shown = newest([*of_training, *of_evaluations], 20)
    num_shown, num_evaluated = listed
    assert list(shown) == [
        *of_training[num_training - num_shown :], *of_evaluations[num_evaluations - num_evaluated :]
    ]  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
def test_a_ranking_is_shown_whole_however_long_it_is(tmp_path, full):
    folder = run_of(tmp_path, *(record(i, episode_return=i / 8) for i in range(32)))
    text = view(RolloutsConfig(str(folder), best=24, full=full), width=160)
    names = [line.split()[0] for line in text.splitlines() if line.startswith("4.")]
    assert names == [f"4.{i}" for i in range(31, 7, -1)]


def test_a_long_line_is_cut_at_the_width_of_the_terminal_and_takes_nothing_from_other_columns(tmp_path):
    long = record(11, task="t" * 40, turns=[TurnRecord(None, "x" * 500, "", 0.0, 1)])
    lines = view(RolloutsConfig(str(run_of(tmp_path, record(), long))), width=150).splitlines()
    assert max(map(len, lines)) == 150
    assert lines[-1].startswith(f"4.11   {'t' * 40}   warm-up")
    assert lines[-1].endswith("x…")


def test_a_rollout_in_full_shows_its_conversation_its_rewards_and_where_it_is_from():
    turns = [
        TurnRecord(
            "I think\n`x`", "x", "done\nwell", 0.25, 7, False, {"score": 0.5, "hint": -0.25, "retry": 1e-17}
        ),
        TurnRecord("prose", None, "no command in it", 0.0, 2, True),
    ]
    full = record(1, turns=turns, group_mean=0.1, advantage=0.4, is_success=True, system="Be brief.")
    assert in_full(full).split("\n") == [
        "4.1  a (warm-up)",
        "    return 0.5, mean of its group 0.1, advantage +0.4, success, ended by terminated",
        "    iteration 4, environment 1, group 0; policy after 3 iterations; seed 1; 2 turns, 4 tokens",
        "", "system", "    Be brief.", "", "prompt", "    do", "",
        "1 > x", "    typed:", "    | I think", "    | `x`", "    done", "    well",
        "    [reward +0.25: score +0.5, hint -0.25; 7 tokens]", "",
        "2 > prose", "    no command in it", "    [no command, and not played; 2 tokens]",
    ]  # fmt: skip


def test_control_characters_are_shown_and_not_obeyed():
    assert visible("a\x1b[2Jb\tc\n\u202e") == "a\\x1b[2Jb\tc\n\\u202e"
    shown = in_full(record(prompt=EVIL, turns=[TurnRecord(EVIL, "x\ry", EVIL, 0.0, 1)]))
    assert "\x1b" not in shown
    assert "\r" not in shown


def test_no_text_of_a_rollout_is_markup_of_the_page():
    text = page([record(task=EVIL, prompt=EVIL, turns=[TurnRecord(EVIL, EVIL, EVIL, 0.0, 1)])], EVIL)
    assert text.count("</script>") == 2  # the data's and the program's
    assert "<img" not in text
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["rollouts"][0]["prompt"] == EVIL


def test_a_log_for_inspect_is_a_zip_of_a_header_summaries_and_a_file_for_each_rollout(tmp_path):
    path = tmp_path / "run.eval"
    write_inspect(path, MANY, "outputs/run")
    with zipfile.ZipFile(path) as archive:
        files = {name: json.loads(archive.read(name)) for name in archive.namelist()}
    samples = ["a_epoch_1", "b_epoch_1", "b_epoch_2", "c_epoch_1", "a_epoch_2"]
    assert set(files) == {
        "header.json", "summaries.json", "_journal/start.json", *(f"samples/{name}.json" for name in samples)
    }  # fmt: skip
    assert files["header.json"]["status"] == "success"
    assert [(each["id"], each["epoch"]) for each in files["summaries.json"]] == [
        ("a", 1), ("b", 1), ("b", 2), ("c", 1), ("a", 2)
    ]  # fmt: skip
    sample = files["samples/b_epoch_1.json"]
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant", "tool"]
    assert sample["scores"] == {"return": {"value": 1.0}, "success": {"value": 1.0}}
    assert (sample["metadata"]["iteration"], sample["metadata"]["name"]) == (5, "5.1")


def test_a_log_for_inspect_has_a_file_and_no_folder_for_a_task_with_a_slash_in_its_name(tmp_path):
    path = tmp_path / "run.eval"
    write_inspect(path, [record(task="s3/make bucket")], "outputs/run")
    with zipfile.ZipFile(path) as archive:
        sample = json.loads(archive.read("samples/s3%2Fmake bucket_epoch_1.json"))
        (summary,) = json.loads(archive.read("summaries.json"))
    assert sample["id"] == summary["id"] == "s3%2Fmake bucket"
    assert sample["metadata"]["task"] == "s3/make bucket"


@pytest.mark.parametrize("given", [{"html": "page.txt"}, {"inspect": "nowhere/run.eval"}])
def test_a_file_that_cannot_be_is_refused_before_anything_is_read(given):
    with pytest.raises(ConfigError, match="a file that ends in"):
        view(RolloutsConfig("no run", **given))


# -- Runs.

ALL = ["log.rollouts=all", "eval.final_episodes=6", "curriculum.name=uniform"]


def of_run(folder):
    return [asdict(each) for each in read_rollouts(folder)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    result = door(*TINY, *KINDS["grpo"], *ALL, run_dir=folder)
    assert result.code == 0, result.stderr
    return folder


def test_a_run_records_every_rollout_with_the_advantage_that_the_learner_gave_it(alone):
    found = read_rollouts(alone)
    training = [each for each in found if each.kind == "training"]
    iterations = {each.iteration for each in training}
    assert [(r.iteration, r.env) for r in training] == [
        (i, env) for i in sorted(iterations) for env in range(8)
    ]
    assert [each.env for each in found if each.kind == "evaluation"] == list(range(6))
    assert {each.ended_by for each in found} <= set(ENDS)
    for i in iterations:
        returns = torch.tensor(
            [[r.episode_return] for r in training if r.iteration == i], dtype=torch.float64
        )[:, 0]
        groups, valid = torch.arange(8) // 4, torch.ones(8, dtype=torch.bool)
        rewards = torch.tensor(
            [[sum(t.reward for t in r.turns)] for r in training if r.iteration == i]
        ).T.double()
        merged = group_statistics(returns, rounding_of_returns(rewards, rewards), groups, valid, 2)
        advantages, _ = group_advantages(returns, groups, valid, merged)
        assert [r.advantage for r in training if r.iteration == i] == pytest.approx(
            advantages.tolist(), abs=1e-12
        )


@pytest.mark.parametrize(
    "limits", [[], ["ppo.mask_truncated=true", "env.max_turns=1", "env.kwargs.turns=2"]], ids=["whole", "cut"]
)
def test_a_recorded_advantage_is_of_the_rewards_that_learning_sees_and_absent_if_left_out(tmp_path, limits):
    learning = ["ppo.scale_by=none", "ppo.reward_scale=0.5", "ppo.reward_clip=0.3", *limits]
    result = door(*TINY, *KINDS["grpo"], *ALL, *learning, "ppo.total_steps=60", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    groups = {}
    for each in read_rollouts(tmp_path / "run"):
        if each.kind == "training":
            groups.setdefault((each.iteration, each.group), []).append(each)
    advantages = [each.advantage for group in groups.values() for each in group]
    if limits:
        assert {each.ended_by for group in groups.values() for each in group} <= set(CUTS)
        assert set(advantages) == {None}
        return
    assert any(advantages)
    for group in groups.values():
        learned = [sum(min(0.5 * turn.reward, 0.3) for turn in each.turns) for each in group]
        mean = sum(learned) / len(learned)
        assert [each.advantage for each in group] == pytest.approx([x - mean for x in learned])
        returns = [each.episode_return for each in group]
        assert group[0].group_mean == pytest.approx(sum(returns) / len(returns))


@pytest.mark.quick_cases("ddp-2", "env_workers-3")
@pytest.mark.parametrize(
    ("topology", "world_size"), [("ddp", 2), ("sync_actors", 3), ("multi_learner", 4), ("env_workers", 3)]
)
def test_the_records_are_the_same_whatever_rank_acts(alone, tmp_path, topology, world_size):
    how = [f"distributed={topology}", f"dist.world_size={world_size}"]
    result = door(*TINY, *KINDS["grpo"], *ALL, *how, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    expected, found = of_run(alone), of_run(tmp_path / "run")
    for each in (*expected, *found):
        for key in ("group_mean", "advantage"):
            each[key] = None if each[key] is None else round(each[key], 12)
    assert found == expected
    folders = {path.name for path in (tmp_path / "run" / "rollouts").iterdir()}
    acting = {"ddp": {0, 1}, "sync_actors": {1, 2}, "multi_learner": {1, 3}, "env_workers": {0}}[topology]
    assert {f"rank_{rank}" for rank in acting} <= folders


def test_a_resumed_run_has_the_records_of_one_without_interruption(tmp_path):
    settings = [*TINY, *KINDS["grpo"], "checkpoint.keep=1"]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for run_dir, steps in ((whole, 120), (parted, 60)):
        assert door(*settings, f"ppo.total_steps={steps}", run_dir=run_dir).code == 0
    # Records of iterations after the checkpoint, of a start that was killed: by this rank, and by one that is gone.
    late = record(0, iteration=900)
    for rank in (0, 3):
        write_records(parted / f"rollouts/rank_{rank}/iteration_00000900.jsonl", [late])
    result = door(f"resume={parted}", "ppo.total_steps=120", "log.progress=none", run_dir=parted)
    assert result.code == 0, result.stderr
    assert of_run(parted) == of_run(whole)


def test_a_run_may_record_nothing_and_a_task_of_numbers_has_nothing_to_record(tmp_path):
    result = door(*TINY, *KINDS["grpo"], "log.rollouts=none", "ppo.total_steps=20", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert not (tmp_path / "run" / "rollouts").exists()
    result = door(*TINY, "env=cartpole", "log.rollouts=all", run_dir=tmp_path / "other")
    assert result.code == 2
    assert "log.rollouts=all has no effect with model.name=mlp" in result.stderr


def test_the_report_of_a_run_shows_the_best_and_the_worst_rollout_of_each_tier(tmp_path):
    late = [
        record(5, kind="evaluation", env_steps=90, group=None, tier="expert", episode_return=0.25 * i, seed=i)
        for i in range(3)
    ]
    found = excerpts(run_of(tmp_path, *MANY, *late))
    assert [heading for heading, _ in found] == [
        "warm-up: the best of 2 rollouts of training", "warm-up: the worst of 2 rollouts of training",
        "expert: the best of 3 rollouts of the evaluation after 90 steps",
        "expert: the worst of 3 rollouts of the evaluation after 90 steps",
    ]  # fmt: skip
    assert [text.split("\n")[1].strip().split(",")[0] for _, text in found] == [
        "return 0.5", "return 0", "return 0.5", "return 0"
    ]  # fmt: skip
    assert excerpts(tmp_path / "none") == []
