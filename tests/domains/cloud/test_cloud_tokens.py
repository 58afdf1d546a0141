"""The cloud's grammar: every solution can be said in it, and nothing that breaks a rule of it."""

import timeit

import numpy as np
import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.config.variants import settings_of
from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.cloud.tokenizer import MISSING, MOST_ANSWERED, CloudTokens, Form, form_of, names_of
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

TASKS = own_tasks()


@pytest.fixture(scope="module")
def tokens():
    return CloudTokens(turn_tokens=8, obs_tokens=64)


@pytest.fixture(scope="module")
def env():
    env = CloudEnv(chaos=False)
    yield env
    env.close()


def say(tokens, dialogue, prompt, line):
    """Type a line of a solution, and return what was typed."""
    names = names_of(prompt)
    form, filling = form_of(line, names)
    wanted = [tokens.operations[form.operation], tokens.form_tokens.get(form)]
    wanted += [tokens.names[names.index(name)] for name in filling]
    typed = []
    for token in wanted:
        if token is not None and not dialogue.is_over and dialogue.allowed()[token]:
            dialogue.push(token)
            typed.append(token)
    return typed


@pytest.mark.parametrize("name", TASKS)
def test_every_solution_is_said_in_tokens_and_solves_its_task(env, tokens, name):
    prompt, _ = env.reset(seed=1, options={"task": name})
    dialogue, terminated = tokens.begin(prompt), False
    for line in TASKS[name].solution:
        assert say(tokens, dialogue, prompt, line)
        assert dialogue.is_over
        action = dialogue.action()
        assert action == line
        observation, _, terminated, _, _ = env.step(action)
        said = dialogue.observe(observation)
        assert said[-1] == tokens.done
        if terminated:  # where something else had drifted
            break
    assert terminated


@pytest.mark.parametrize("name", TASKS)
def test_a_task_names_what_its_solution_needs_in_backticks(name):
    task = TASKS[name]
    names = names_of(task.prompt)
    used = {used for line in task.solution for used in form_of(line, names)[1]}
    assert len(set(names) - used) <= 1  # a task may name what is to be left alone
    assert task.prompt.count("`") % 2 == 0


def test_all_operations_may_begin_a_turn_whatever_the_prompt(tokens):
    openings = [tokens.begin(task.prompt).allowed() for task in TASKS.values()]
    assert all(np.array_equal(opening, openings[0]) for opening in openings)
    assert set(np.flatnonzero(openings[0])) == {tokens.hint, *tokens.operations.values()}


def test_a_turn_is_an_operation_a_form_and_names_that_the_line_has_not_used(tokens):
    dialogue = tokens.begin("Let the queue `mail` forget after `60` seconds, not `90`.\nand more")
    dialogue.push(tokens.operations["aws sqs set-queue-attributes"])
    forms = tokens.forms["aws sqs set-queue-attributes"]
    assert set(np.flatnonzero(dialogue.allowed())) == {tokens.form_tokens[form] for form in forms}
    kept = next(form for form in forms if "DelaySeconds" in str(form.parts))
    dialogue.push(tokens.form_tokens[kept])
    assert list(np.flatnonzero(dialogue.allowed())) == list(tokens.names[:3])
    dialogue.push(tokens.names[0])
    assert list(np.flatnonzero(dialogue.allowed())) == list(tokens.names[1:3])
    assert not dialogue.is_over
    dialogue.push(tokens.names[2])
    assert dialogue.is_over
    assert dialogue.action().endswith("/mail --attributes DelaySeconds=90")
    assert not dialogue.is_over


def test_what_leaves_no_choice_is_no_token(tokens):
    dialogue = tokens.begin("Make a bucket `photos`.")
    dialogue.push(tokens.operations["aws s3 mb"])
    assert dialogue.is_over
    assert dialogue.action() == "aws s3 mb s3://photos"
    dialogue.push(tokens.operations["aws s3 cp"])
    assert dialogue.action() == f"aws s3 cp s3://photos/{MISSING} s3://{MISSING}/{MISSING}"
    dialogue.push(tokens.hint)
    assert dialogue.action() == "hint"


def test_what_is_not_allowed_cannot_be_typed(tokens):
    dialogue = tokens.begin("Make a bucket `photos`.")
    with pytest.raises(AssertionError, match="is not allowed here"):
        dialogue.push(tokens.names[0])
    dialogue.push(tokens.hint)
    with pytest.raises(AssertionError, match="the line is filled"):
        dialogue.push(tokens.hint)


def test_a_line_has_a_blank_for_each_name_wherever_it_stands_by_itself():
    names = names_of("Make `id` and `/a/b`, `a.txt` in `id`, `x y`.")
    assert names == ("id", "/a/b", "a.txt", "x y")
    form, filling = form_of("aws ssm put --id user-id --name /a/b --k id=a.txt,id --v 'x y' /a/bc", names)
    assert filling == ("/a/b", "id", "a.txt", "x y")
    assert form.parts == (
        "aws ssm put --id user-id --name ",
        0,
        " --k ",
        1,
        "=",
        2,
        ",",
        1,
        " --v '",
        3,
        "' /a/bc",
    )
    assert form.num_blanks == 4
    assert form.filled(["A", "B", "C", "D"]) == "aws ssm put --id user-id --name A --k B=C,B --v 'D' /a/bc"
    assert form_of("aws s3 ls", names) == (Form(("aws s3 ls",)), ())


def test_prompts_are_words_and_names_with_their_places(tokens):
    mail, queue, seconds = (tokens.word(word) for word in ("mail", "queue", "seconds"))
    dialogue = tokens.begin("Queue `mail`: `77` seconds\nType one aws command a line.")
    assert dialogue.prompt_tokens == [
        *(queue, tokens.names[0], mail, tokens.names[1], tokens.word("77"), seconds, tokens.asked)
    ]
    refused = "An error occurred (NoSuchBucket) when calling the X operation: mail\nexit status 254"
    assert dialogue.observe(refused) == [tokens.word("nosuchbucket"), tokens.failed]
    unread = dialogue.observe("aws: error: seconds\nexit status 252")
    assert unread[-1] == tokens.failed
    assert seconds in unread
    assert dialogue.observe("mail seconds zzz") == [tokens.names[0], seconds, tokens.word("zzz"), tokens.done]
    assert dialogue.observe("") == [tokens.done]
    assert len(dialogue.observe("word " * 100)) == MOST_ANSWERED + 1


def test_what_is_given_keeps_to_its_limit():
    tokens = CloudTokens(turn_tokens=8, obs_tokens=4)
    dialogue = tokens.begin("one two three four five")
    assert len(dialogue.prompt_tokens) == len(dialogue.observe("one two three four five")) == 4
    assert len(dialogue.observe("An error occurred (A) when")) == 2


def test_the_grammar_of_some_tasks_is_theirs_alone():
    tokens = CloudTokens(turn_tokens=8, obs_tokens=64, tasks=["s3_make_bucket", "sns_to_sqs"])
    assert set(tokens.operations) == {
        "aws s3 mb",
        "aws sns create-topic",
        "aws sqs create-queue",
        "aws sqs set-queue-attributes",
        "aws sns subscribe",
    }


def test_the_task_names_its_tokenizer_and_a_turn_too_short_for_a_line_is_refused(tokens):
    spec = EnvSpec(ArraySpec((4096,), "text"), ActionSpec("text", (2048,)), tokens=CloudEnv.tokens)
    made = make_tokenizer(spec, settings_of("model", name="token_policy"))
    assert isinstance(made, CloudTokens)
    assert made.size == tokens.size
    with pytest.raises(ConfigError, match=r"model.turn_tokens=2: a line in the cloud takes up to \d tokens"):
        make_tokenizer(spec, settings_of("model", name="token_policy", turn_tokens=2))


def test_asking_what_is_allowed_takes_microseconds(tokens):
    dialogue = tokens.begin(TASKS["sqs_create_queue"].prompt)
    dialogue.push(tokens.operations["aws sqs create-queue"])
    dialogue.allowed()
    assert min(timeit.repeat(dialogue.allowed, number=100, repeat=5)) / 100 < 20e-6


def test_random_lines_of_the_grammar_are_always_answered(env, tokens):
    random, num_done = np.random.default_rng(0), 0
    for name in list(TASKS)[::4]:
        prompt, _ = env.reset(seed=2, options={"task": name})
        dialogue, is_over = tokens.begin(prompt), False
        while not is_over:
            while not dialogue.is_over:
                dialogue.push(int(random.choice(np.flatnonzero(dialogue.allowed()))))
            observation, _, terminated, truncated, _ = env.step(dialogue.action())
            assert all(0 <= token < tokens.size for token in dialogue.observe(observation))
            assert "aws: error" not in observation  # every form is a command
            is_over, num_done = terminated or truncated, num_done + 1
    assert num_done > 100
