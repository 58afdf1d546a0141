"""Each task is solved by its solution, by nothing less, and through chaos and drift."""

from collections import Counter

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.tasks import StateGoal, load, own_tasks, task_of
from ddppo.domains.cloud.world import TIERS, Strike
from ddppo.errors import ConfigError, EnvStateError

TASKS = own_tasks()
SHAKEN = [(task, fault) for task in TASKS.values() for fault in task.chaos]


@pytest.fixture(scope="module")
def env():
    env = CloudEnv(chaos=False)
    yield env
    env.close()


def play(env, lines):
    """Type lines until the episode ends; return its rewards and how it ended."""
    rewards, terminated, info = [], False, {}
    for line in lines:
        _, reward, terminated, truncated, info = env.step(line)
        rewards.append(reward)
        if terminated or truncated:
            break
    return rewards, terminated, info


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_solution_solves_the_task(env, name, seed):
    env.reset(seed=seed, options={"task": name})
    rewards, terminated, info = play(env, TASKS[name].solution)
    assert terminated
    assert info["is_success"]
    assert sum(rewards) == pytest.approx(1.0)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not task.drifts])
def test_no_step_of_a_solution_can_be_left_out(env, name):
    for left_out in range(len(TASKS[name].solution)):
        env.reset(seed=0, options={"task": name})
        lines = [line for at, line in enumerate(TASKS[name].solution) if at != left_out]
        rewards, terminated, _ = play(env, lines)
        assert not terminated
        assert sum(rewards) < 1.0


@pytest.mark.parametrize("name", TASKS)
def test_saying_the_solution_earns_nothing(env, name):
    env.reset(seed=0, options={"task": name})
    for line in TASKS[name].solution:
        for said in (
            f"echo {line}",
            f"# {line}",
            f"{line} --dry-run",
            f"{line} --generate-cli-skeleton",
            "done",
        ):
            _, reward, terminated, truncated, _ = env.step(said)
            assert reward == 0.0
            assert not terminated
            if truncated:
                return


@pytest.mark.parametrize(
    ("task", "fault"), SHAKEN, ids=[f"{task.name}-{task.chaos.index(fault)}" for task, fault in SHAKEN]
)
def test_chaos_breaks_something_and_the_solution_typed_again_survives_it(env, task, fault):
    env.reset(seed=3, options={"task": task.name})
    env._fault = Strike(1, fault)  # as drawn; a seed that draws it would hide which fault this is
    rewards, terminated, info = play(env, (task.solution * task.max_steps)[: task.max_steps])
    assert info["chaos_struck"]
    assert terminated
    assert sum(rewards) == pytest.approx(1.05)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.drifts])
def test_every_drift_is_a_goal_and_is_mended(env, name):
    task, seen = TASKS[name], set()
    for seed in range(12):
        env.reset(seed=seed, options={"task": name})
        assert len(env._grader.goals) == task.num_drifts
        seen.add(tuple(goal.read for goal in env._grader.goals))
        assert play(env, task.solution)[1]
    assert len(seen) > 1


def test_there_are_tasks_of_every_tier_and_of_at_least_six_services():
    assert {task.tier for task in TASKS.values()} == set(TIERS)
    services = {line.split()[1].replace("s3api", "s3") for task in TASKS.values() for line in task.solution}
    assert services == {"s3", "dynamodb", "sqs", "sns", "iam", "ssm", "secretsmanager"}
    num = Counter(task.tier for task in TASKS.values())
    assert len(TASKS) >= 60
    assert num["warm-up"] >= 12
    assert num["beginner"] >= 14


GOOD = {
    "tier": "beginner",
    "prompt": "Make a bucket named aaa.",
    "goals": [{"read": "aws s3api list-buckets --query Buckets[].Name", "contains": "aaa"}],
    "hints": ["a", "b", "c"],
    "solution": ["aws s3 mb s3://aaa"],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tier": "hard"}, "tier='hard' is none of warm-up"),
        ({"prompt": ""}, "prompt says"),
        ({"goal": []}, r"unknown key 'goal' \(did you mean goals"),
        ({"goals": []}, "goals and solution each need"),
        ({"goals": [{"read": "aws s3api list-buckets"}]}, "one of equals, contains, error"),
        ({"goals": [{"read": "aws s3 mb s3://aaa", "equals": 1}]}, "would change the world"),
        ({"goals": [{"read": "aws sqs purge-queue --queue-url q", "equals": 1}]}, "would change the world"),
        ({"goals": [{"call": "aws s3api list-buckets"}]}, "are for the warm-up tier"),
        ({"reads_only": True}, "no goal of the state can come to hold"),
        ({"reads_only": "yes"}, "reads_only is true or false"),
        ({"hints": ["a"]}, "hints are 3"),
        (
            {"solution": ["aws s3 mbb s3://aaa"]},
            "solution: aws s3 mbb s3://aaa: tasks have no operation mbb of s3",
        ),
        (
            {"setup": ["aws ec2 describe-vpcs"]},
            "setup: aws ec2 describe-vpcs: tasks have no service ec2, but s3, s3api",
        ),
        (
            {"chaos": [["aws iam list-user"]]},
            r"tasks have no operation list-user of iam \(did you mean list-users",
        ),
        (
            {"goals": [{"read": "aws kms list-keys", "equals": 1}]},
            "read: aws kms list-keys: tasks have no service kms",
        ),
        (
            {"goals": [{"call": "aws sqs list-queue"}]},
            "call: aws sqs list-queue: tasks have no operation list-queue",
        ),
        ({"setup": "aws s3 ls"}, "setup is a list"),
        ({"max_steps": 16}, "max_steps=16 is not from 1"),
        ({"drift": {"draw": 2, "of": [["aws s3 mb s3://bbb"]]}}, "drift.draw=2 is not from 1 to 1"),
        ({"drift": {"of": []}}, "drift has the two keys"),
        ({"chaos": ["aws s3 ls"]}, "chaos is a list of lists"),
        ({"system": 3}, "system=3 is not a text"),
        ({"shots": ["aws s3 ls"]}, "shots: 'aws s3 ls' is not a shot"),
        ({"shots": [["list buckets"]]}, "shots: .* is not a shot"),
    ],
)
def test_a_wrong_task_is_named_with_its_key(change, said):
    with pytest.raises(ConfigError, match=f"^task wrong: .*{said}"):
        task_of("wrong", GOOD | change)


def test_a_file_that_is_no_yaml_or_no_mapping_is_named(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    path.write_text("- a")
    with pytest.raises(ConfigError, match="task odd: a task is a mapping"):
        load(path)
    path.write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setup": ["aws s3 mb s3://aaa"]}, "what is asked must be new"),
        ({"keep": [{"read": "aws s3api head-bucket --bucket bbb", "error": ""}]}, "to be kept is not there"),
        ({"setup": ["aws s3 rb s3://bbb"]}, "a task's command failed"),
    ],
)
def test_a_task_that_its_own_start_settles_or_spoils_is_refused(env, change, said):
    env.tasks["wrong"] = task_of("wrong", GOOD | change)
    with pytest.raises(EnvStateError, match=said):
        env.reset(seed=0, options={"task": "wrong"})
    del env.tasks["wrong"]


def test_goals_compare_lists_without_regard_to_order(env):
    env.reset(seed=0, options={"task": "s3_list_buckets"})
    read = "aws s3api list-buckets --query Buckets[].Name"
    assert StateGoal(read, equals=["records-2025", "records-2024"]).holds(env._world)
    assert not StateGoal(read, equals=["records-2024"]).holds(env._world)
    assert not StateGoal("aws s3api get-bucket-policy --bucket none", equals=None).holds(env._world)


def test_drift_is_drawn_by_the_seed_alone(env):
    def goals(seed):
        env.reset(seed=seed, options={"task": "ssm_settings_drift"})
        return env._grader.goals

    assert goals(5) == goals(5)


RIGHT = (
    '\'{"RedrivePolicy":"{\\"deadLetterTargetArn\\":\\"arn:aws:sqs:us-east-1:123456789012:failed\\",%s}"}\''
)
NEAR_MISSES = {
    "sqs_dead_letters": [RIGHT % '\\"maxReceiveCount\\":5', RIGHT % '\\"maxReceiveCount\\":\\"4\\"'],
    "sqs_create_queue": ["VisibilityTimeout=600", "VisibilityTimeout=6"],
    "s3_put_object": ["hello!", "Hello"],
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_nearly_right_is_not_enough(env, name):
    solution = TASKS[name].solution
    for wrong in NEAR_MISSES[name]:
        env.reset(seed=0, options={"task": name})
        env.unwrapped._world.folder.write(wrong, wrong.encode())
        option = {"s3_put_object": "--body "}.get(name, "--attributes ")
        last = solution[-1].partition(option)[0] + option + wrong
        _, terminated, info = play(env, (*solution[:-1], last))
        assert not terminated
        assert info["progress"] < 1.0


def test_a_number_within_json_may_be_a_text(env):
    env.reset(seed=0, options={"task": "sqs_dead_letters"})
    solution = TASKS["sqs_dead_letters"].solution
    last = solution[-1].partition("--attributes ")[0] + "--attributes " + RIGHT % '\\"maxReceiveCount\\":3'
    assert play(env, (solution[0], last))[1]
