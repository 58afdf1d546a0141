"""`ddppo/Cloud-v0` as a Gymnasium environment, and what does not pay in it."""

import json
import subprocess
import sys

import gymnasium as gym
import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

import ddppo.envs.registration  # noqa: F401 (makes ddppo/Cloud-v0 known)
from ddppo.domains.cloud.env import MOST_PRINTED, MOST_TYPED, SHOTS, SYSTEM
from ddppo.domains.cloud.tasks import chosen_tasks
from ddppo.domains.cloud.world import CloudWorld, CommandOutcome
from ddppo.errors import ConfigError, EnvStateError
from tests.support import PATIENCE_S


@pytest.fixture(scope="module")
def env():
    env = gym.make("ddppo/Cloud-v0")
    yield env
    env.close()


def begin(env, name, seed=0):
    return env.reset(seed=seed, options={"task": name})


def test_observations_and_actions_are_texts_of_their_spaces(env):
    observation, info = begin(env, "s3_make_bucket")
    assert "holiday-photos" in observation
    assert env.observation_space.contains(observation)
    assert env.action_space.contains("aws s3 mb s3://holiday-photos")
    assert (info["task"], info["tier"], info["score"]) == ("s3_make_bucket", "beginner", 0.0)
    for action in (env.action_space.sample(), "é\x00", "x" * (MOST_TYPED + 1)):
        observation, reward, terminated, _, _ = env.step(action)
        assert env.observation_space.contains(observation)
        assert reward == 0.0
        assert not terminated


def test_it_says_which_tier_a_task_is_of_and_that_it_needs_a_process(env):
    assert env.unwrapped.task_tiers["s3_make_bucket"] == "beginner"
    assert set(env.unwrapped.task_tiers) == set(env.unwrapped.tasks)
    assert env.unwrapped.one_a_process


def test_a_language_model_is_told_the_form_of_commands_by_examples_that_are_true(env):
    info = begin(env, "s3_make_bucket")[1]
    assert info["system"] == SYSTEM
    assert json.loads(info["shots"]) == [list(shot) for shot in SHOTS]
    assert not {"system", "shots"} & env.step("aws s3 ls")[-1].keys()
    solved = {command for task in env.unwrapped.tasks.values() for command in task.solution}
    world = env.unwrapped._world
    for _, *turns in SHOTS:
        world.reset(0)
        for command, answer in zip(turns[::2], [*turns[1::2], None], strict=False):
            assert command not in solved
            outcome = world.run(command)
            assert outcome.status == 0
            assert answer in (outcome.output, None)


def test_a_task_may_bring_its_own_system_message_and_examples(env, tmp_path):
    path, own = (
        tmp_path / "own.yaml",
        {"system": "Be brief.", "shots": [["List queues.", "aws sqs list-queues"]]},
    )
    goal = {"read": "aws s3api list-buckets --query Buckets[].Name", "contains": "aaa"}
    path.write_text(
        json.dumps(
            {"tier": "beginner", "prompt": "Make aaa.", "goals": [goal], "hints": ["a", "b", "c"]}
            | {"solution": ["aws s3 mb s3://aaa"]}
            | own
        )
    )
    info = env.unwrapped._conversation(chosen_tasks([str(path)])["own"])
    assert (info["system"], json.loads(info["shots"])) == (own["system"], own["shots"])


def test_a_long_answer_is_cut_and_says_so(env):
    begin(env, "s3_put_object")
    env.unwrapped._world.operate(
        tuple(f"aws s3api put-object --bucket desk --key {key * 900}" for key in "abcdef")
    )
    observation = env.step("aws s3api list-objects-v2 --bucket desk")[0]
    assert len(observation) == MOST_PRINTED
    assert observation.endswith("characters in all)")


def test_steps_are_scored_by_hand(env):
    begin(env, "s3_versioned_and_tagged", seed=1)
    lines = [
        ("aws s3 mb s3://ledger", 0.8 / 3 + 0.1),
        ("aws s3api get-bucket-versioning --bucket ledger", 0.8 / 3),
        ("aws s3api get-bucket-versioning --bucket none", 0.4 / 3),
        ("aws s3api put-bucket-versioning --bucket ledger --versioning-configuration Status=Enabled", 1.6 / 3 + 0.1),
        ("aws s3api put-bucket-versioning --bucket ledger --versioning-configuration Status=Suspended", 0.8 / 3 - 0.1),
        ("aws s3api put-bucket-versioning --bucket ledger --versioning-configuration Status=Enabled", 1.6 / 3),
        ("hint", 1.6 / 3 * 0.85),
        ("aws s3api put-bucket-tagging --bucket ledger --tagging TagSet=[{Key=team,Value=finance}]", 0.85),
    ]  # fmt: skip
    env.unwrapped._fault = None
    total = 0.0
    for line, score in lines:
        _, reward, terminated, _, info = env.step(line)
        total += reward
        assert info["score"] == pytest.approx(score), line
        assert sum(info["reward_parts"].values()) == pytest.approx(reward)
        assert info["tool_failed"] == ("none" in line)
        assert total == pytest.approx(score)
    assert terminated
    assert info["num_hints"] == 1


def test_making_what_exists_again_is_a_retry_once(env):
    begin(env, "ssm_put_parameter")
    line = "aws ssm put-parameter --name /shop/currency --value CHF --type String"
    assert env.step(line)[4]["score"] == pytest.approx(0.02)
    assert env.step(line)[4]["score"] == 0.0


def test_reading_again_and_again_pays_no_more(env):
    begin(env, "secretsmanager_read_after_list")
    scores = [env.step("aws secretsmanager list-secrets")[4]["score"] for _ in range(3)]
    assert scores == pytest.approx([0.5, 0.4, 0.4])


def test_ordered_calls_count_in_their_order_alone(env):
    begin(env, "secretsmanager_read_after_list")
    read = "aws secretsmanager get-secret-value --secret-id db-password"
    assert env.step(read)[4]["progress"] == 0.0
    assert env.step("aws secretsmanager list-secrets")[4]["progress"] == 0.5
    assert env.step(read)[2]


def test_leaving_a_task_unfinished_pays_less_than_its_end(env):
    begin(env, "s3_versioned_and_tagged")
    env.unwrapped._fault = None
    total, truncated = 0.0, False
    lines = ["aws s3 mb s3://ledger"] + ["aws s3 ls"] * 20
    while not truncated:
        _, reward, _, truncated, _ = env.step(lines.pop(0))
        total += reward
    assert total == pytest.approx(0.8 / 3)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("aws s3 ls")


def test_losing_what_was_to_be_kept_is_no_success(env):
    begin(env, "s3_make_bucket")
    env.step("aws s3 rb s3://old-photos")
    _, _, terminated, _, info = env.step("aws s3 mb s3://holiday-photos")
    assert not terminated
    assert info["progress"] == 1.0
    assert env.step("aws s3 mb s3://old-photos")[2]


def test_a_task_that_only_reads_forbids_writes(env):
    begin(env, "s3_list_buckets")
    assert "not authorized" in env.step("aws s3 mb s3://new-bucket")[0]
    assert env.step("aws s3 ls")[2]


def test_hints_are_three(env):
    begin(env, "s3_make_bucket")
    said = [env.step("hint")[0] for _ in range(4)]
    assert said[2] == "hint 3: aws s3 mb s3://holiday-photos"
    assert said[3] == "there are no more hints"
    assert env.step("aws s3 mb s3://holiday-photos")[1] == pytest.approx(0.85**3)


def test_a_solution_is_told_to_one_who_asks_for_it_and_changes_nothing_else(env):
    prompt, info = begin(env, "s3_make_bucket")
    assert "solution" not in info
    asked = env.reset(seed=0, options={"task": "s3_make_bucket", "solution": True})
    assert asked == (prompt, info | {"solution": "aws s3 mb s3://holiday-photos"})


def test_the_same_seed_is_the_same_episode_and_a_group_shares_it(env):
    def played(seed):
        begin(env, "iam_role_with_policy", seed)
        return [env.step(line)[:2] for line in env.unwrapped.tasks["iam_role_with_policy"].solution]

    assert played(4) == played(4)
    assert played(4) != played(5)  # identifiers differ


def test_a_stored_episode_goes_on_as_it_would_have(env):
    task = env.unwrapped.tasks["iam_too_much_power"]
    begin(env, task.name, seed=7)
    env.step(task.solution[0])
    state = env.unwrapped.state()
    expected = [env.step(line)[:4] for line in task.solution[1:]]
    drawn = env.reset()[1]["task"]
    begin(env, "s3_make_bucket")
    env.unwrapped.restore(state)
    assert [env.step(line)[:4] for line in task.solution[1:]] == expected
    assert env.reset()[1]["task"] == drawn


def test_chaos_of_the_given_chance_strikes_and_is_stored(env):
    task = env.unwrapped.tasks["secretsmanager_restore"]
    for chance in (0.0, 1.0):
        env.reset(seed=2, options={"task": task.name, "chaos": chance})
        env.step(task.solution[0])
        struck = [env.step("aws secretsmanager list-secrets")[4]["chaos_struck"] for _ in range(4)]
        env.unwrapped.restore(env.unwrapped.state())
        assert struck[-1] is (chance == 1.0)
        assert env.step("aws sqs list-queues")[4]["chaos_struck"] is struck[-1]


def test_tasks_are_chosen_by_name_tier_and_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "tier: beginner\nprompt: Make a bucket aaa.\n"
        "goals: [{read: aws s3api head-bucket --bucket aaa, equals: {}}]\n"
        "hints: [a, b, c]\nsolution: [aws s3 mb s3://aaa]\n"
    )
    assert set(chosen_tasks(["sns_to_sqs", str(path)])) == {"sns_to_sqs", "mine"}
    assert {task.tier for task in chosen_tasks(["expert"]).values()} == {"expert"}
    with pytest.raises(ConfigError, match="did you mean sns_to_sqs"):
        chosen_tasks(["sns_to_sq"])
    with pytest.raises(ConfigError, match="nothing to play"):
        chosen_tasks([])


def test_a_task_that_is_not_there_and_a_state_of_another_are_refused(env):
    with pytest.raises(ConfigError, match="did you mean s3_make_bucket"):
        begin(env, "s3_make_buckets")
    with pytest.raises(EnvStateError, match="does not have"):
        env.unwrapped.restore({"task": "gone"})


WITHOUT = """
import sys
sys.modules["moto"] = None
from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.probe import probe
probe(EnvConfig(id="ddppo/Cloud-v0"))
"""


def test_without_its_packages_the_remedy_is_named():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "env.id=ddppo/Cloud-v0 needs a package that is not installed: pip install 'moto[" in run.stderr


def test_the_grader_looks_again_only_where_the_world_may_have_changed(env, monkeypatch):
    begin(env, "s3_make_bucket")
    world, looked, look = env.unwrapped._world, [], CloudWorld.look
    monkeypatch.setattr(CloudWorld, "look", lambda world, line: looked.append(line) or look(world, line))
    for line in ("aws s3 ls", "hint", "nonsense", "aws s3 rb s3://none", "aws sns get-topic-attributes"):
        env.step(line)
    assert looked == []
    env.step("aws s3 mb s3://other")
    assert len(looked) == 2  # a goal, and what is to be kept
    monkeypatch.setattr(
        world, "run", lambda line: CommandOutcome("", "the simulator failed", 254, broke=True)
    )
    env.step("aws s3 ls")
    assert len(looked) == 4


def test_what_only_shows_what_would_be_done_earns_nothing(env):
    begin(env, "s3_remove_bucket")
    for line in (
        "aws s3 rm s3://old-photos --recursive --dryrun",
        "aws s3api create-bucket --generate-cli-skeleton",
    ):
        assert env.step(line)[1] == 0.0
    begin(env, "s3_read_object")
    for line in (
        "aws s3 cp s3://lobby/welcome.txt x --dryrun",
        "aws s3api list-objects-v2 --bucket lobby --generate-cli-skeleton output",
    ):
        assert env.step(line)[1] == 0.0
    assert env.step("aws s3 cp s3://lobby/welcome.txt x")[1] == 1.0


def test_files_are_those_of_the_episode(env):
    begin(env, "s3_put_object")
    folder = env.unwrapped._world.folder
    assert folder.held() == {"notes.txt": b"hello"}
    env.step("aws s3 cp notes.txt s3://desk/other.txt")
    env.step("aws s3 cp s3://desk/other.txt copy.txt")
    state, held = env.unwrapped.state(), folder.held()
    assert held == {"notes.txt": b"hello", "copy.txt": b"hello"}
    begin(env, "s3_page_restored")  # whose setup needs files
    assert folder.held() == {}
    assert "does not exist" in env.step("aws s3 cp notes.txt s3://site/")[0]
    env.unwrapped.restore(state)
    assert folder.held() == held


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": ["s3_make_bucket"]}, "is none of this environment's"),
        ({"chaos": "x"}, "options chaos='x': the probability of a fault, from 0 to 1"),
        ({"chaos": 5}, "options chaos=5"),
        ({"tasks": "s3_make_bucket"}, r"options tasks \(did you mean task\?\): task, chaos, solution"),
    ],
)
def test_odd_options_of_a_reset_are_a_sentence(env, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        env.reset(seed=0, options=options)
