"""Training on servers of OpenEnv: schemas, tasks, time-outs, refusals for want of room, restarts, and servers that lie.

The servers are stand-ins (openenv_standin.py); test_openenv_package tries those of the package itself.
"""

import asyncio
import json
import re
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")


from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.domains.text.turns import make_turns  # noqa: E402
from ddppo.envs.make import make_vec_env  # noqa: E402
from ddppo.envs.probing.probe import probe  # noqa: E402
from ddppo.errors import ConfigError, EnvError  # noqa: E402
from ddppo.serve.client.connection import EnvServerRefused  # noqa: E402
from ddppo.serve.client.openenv import headers_of, opener_of  # noqa: E402
from ddppo.serve.client.openenv_schema import BadAction, actions_of  # noqa: E402
from ddppo.serve.client.sessions import AsyncEnvPool, SyncEnvPool  # noqa: E402
from ddppo.serve.server import ServeSettings  # noqa: E402
from ddppo.serve.server import served as served_by_ddppo  # noqa: E402
from tests.serve.openenv_standin import NUMBERS, TEXT, TOOLS, Standin, app_of, error, running  # noqa: E402
from tests.serve.openenv_standin import openenv as standin_of  # noqa: E402
from tests.support import CHECKOUT, PATIENCE_S, TINY, door, summary, wait_until  # noqa: E402

TOKEN = "a secret of 20 chars"


def env_at(url, token_file=None, **kwargs):
    return EnvConfig(
        id="openenv", backend="openenv", urls=[url], token_file=token_file and str(token_file), kwargs=kwargs
    )


@contextmanager
def pool_of(env, num_envs=1, **patience):
    patience = {"answer_s": PATIENCE_S, "open_s": PATIENCE_S} | patience
    with SyncEnvPool(env.urls, num_envs, opener=opener_of(env, range(num_envs)), **patience) as pool:
        yield pool


# -- training ----------------------------------------------------------------------------------------------------------


def run(url, *arguments, run_dir):
    base = ("env=openenv", f"env.url={url}", *TINY, "ppo.total_steps=512", "ppo.rollout_steps=32")
    return door(*base, *arguments, run_dir=run_dir)


@pytest.mark.slow
def test_a_run_on_a_server_is_the_same_to_the_bit_on_one_rank_and_on_two(tmp_path):
    found = []
    with standin_of(sessions=8) as (url, _):
        for world_size in (1, 2):
            folder = tmp_path / str(world_size)
            ranks = (f"dist.world_size={world_size}", "dist.reduction=ordered", "eval.final_episodes=2")
            done = run(url, *ranks, run_dir=folder)
            assert done.code == 0, done.stderr
            found.append((summary(folder)["params_hash"], summary(folder)["eval"]["final"]["return_mean"]))
    assert found[0] == found[1]


def test_episodes_of_text_are_about_the_tasks_of_a_file_each_group_about_one(tmp_path):
    words = tmp_path / "words.jsonl"
    words.write_text("".join(json.dumps({"id": word, "word": word}) + "\n" for word in ("north", "south")))
    text = ("model=token_policy", "ppo=grpo", "model.obs_tokens=8", "model.turn_tokens=4")
    size = ("ppo.rollout_steps=48", "ppo.group_size=2", "env.num_envs=4", "ppo.total_steps=64")
    with standin_of(TEXT) as (url, standin):
        done = run(url, *text, *size, f"env.tasks={words}", run_dir=tmp_path / "run")
        assert done.code == 0, done.stderr
        resets = [data for data in standin.asked if "seed" in data][
            1:
        ]  # without that of the look before the run
    seen = {(data["seed"], data["word"]) for data in resets}
    assert {word for _, word in seen} <= {"north", "south"}
    assert len({seed for seed, _ in seen}) == len(seen) < len(resets)
    assert len({data["episode_id"] for data in resets}) == len(resets)


def test_no_token_is_in_any_file_or_message_of_a_run_even_if_the_server_repeats_it(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")

    def lie(message, answer):
        return error(f"I know {TOKEN}", TOKEN) if message["type"] == "step" else answer

    with standin_of(lie=lie, token=TOKEN) as (url, _):
        done = run(url, f"env.token_file={tmp_path / 'token'}", run_dir=tmp_path / "run")
        assert done.code == 1
        assert "I know ***" in done.stderr
        wrong = run(url, run_dir=tmp_path / "other")
        assert (wrong.code, "needs a token" in wrong.stderr) == (2, True)
    texts = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert texts
    assert TOKEN.encode() not in b"".join([*texts, done.stderr.encode(), done.stdout.encode()])


# -- schemas -----------------------------------------------------------------------------------------------------------


def schema(required=(), **properties):
    return {"type": "object", "properties": {"metadata": {}, **properties}, "required": list(required)}


def actions(schema, form="auto", action=None, choices=None, *, numbers=True):
    return actions_of(schema, None, form, action or {}, choices or {}, observes_numbers=numbers)


WHOLE, REAL, WORD = {"type": "integer"}, {"type": "number"}, {"type": "string"}
LIST = {"type": "array", "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize(
    ("given", "kind", "sizes", "action", "data"),
    [
        (schema(a=WORD | {"enum": ["x", "y"]}), "discrete", (2,), 1, {"a": "y"}),
        (schema(a={"type": "boolean"}), "discrete", (2,), 0, {"a": False}),
        (schema(a=WHOLE | {"minimum": 3, "exclusiveMaximum": 6}), "discrete", (3,), 2, {"a": 5}),
        (schema(["a"], a={"enum": [1, 5]}, b=WORD | {"default": "x"}), "discrete", (2,), 1, {"a": 5}),
        (schema(a={"enum": [1, 5]}, b={"type": "boolean"}), "multi_discrete", (2, 2), [1, 1], {"a": 5, "b": True}),
        (schema(a=LIST | {"items": {"enum": ["l", "r"]}}), "multi_discrete", (2, 2), [1, 0], {"a": ["r", "l"]}),
        (schema(a=REAL | {"minimum": -1, "maximum": 1}), "box", (1,), [3.0], {"a": 1.0}),
        (schema(a=LIST | {"items": REAL}, b=REAL), "box", (3,), [1.0, 2.0, 9.0], {"a": [1.0, 2.0], "b": 9.0}),
        (schema(a={"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}) | {"$defs": {"A": {"enum": [7, 8]}}},
         "discrete", (2,), 0, {"a": 7}),
    ],
)  # fmt: skip
def test_fields_with_choices_or_numbers_are_numbers(given, kind, sizes, action, data):
    found = actions(given)
    assert (found.spec.kind, found.spec.sizes) == (kind, sizes)
    assert found.data(action) == data


def test_a_sole_text_is_text_and_fixed_values_and_choices_settle_other_fields():
    one = schema(["say"], say=WORD | {"maxLength": 9}, how=WHOLE | {"default": 3})
    assert actions(one).spec.sizes == (9,)
    assert actions(one, action={"how": 5}).data("hi") == {"say": "hi", "how": 5}
    assert actions(schema(["move"], move=WHOLE), choices={"move": 4}).data(3) == {"move": 3}
    word = schema(a=WORD | {"enum": ["x", "y"]})
    assert actions(word, numbers=False).data("x") == {"a": "x"}
    called = actions(schema(["code", "file"], code=WORD, file=WORD), form="tool")
    assert called.tools[0]["function"]["parameters"]["required"] == ["code", "file"]
    call = {"name": "act", "arguments": {"code": "1", "file": "a"}}
    assert called.data(json.dumps(call)) == call["arguments"]


@pytest.mark.parametrize("field", ["timeout", "admin", "metadata", "none"])
def test_a_call_of_the_tool_act_cannot_set_fields_that_are_not_the_policys(field):
    given = schema(["code"], code=WORD, timeout=WHOLE, admin={"type": "boolean"}, level=WHOLE)
    called = actions(
        given | {"required": ["code", "level"]}, form="tool", action={"timeout": 30, "admin": False}
    )
    right = {"code": "1", "level": 2}
    assert called.data(json.dumps({"name": "act", "arguments": right})) == {
        "timeout": 30,
        "admin": False,
        **right,
    }
    with pytest.raises(BadAction, match=f"act has no argument '{field}': it takes code, level"):
        called.data(json.dumps({"name": "act", "arguments": {**right, field: 9}}))


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (schema(a=WHOLE), {}),
        (schema(a=WORD, b=WORD), {}),
        (schema(a=WORD), {"form": "numbers"}),
        (schema(a={"type": "boolean"}, b=REAL), {}),
        (schema(a={"type": "array", "items": REAL}), {}),
        (schema(a={"type": "object"}), {}),
        (schema(a={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/A"}}}, {}),
    ],
)
def test_other_schemas_are_shown_with_what_to_set(given, settings):
    with pytest.raises(
        ConfigError, match=r"the schema of the server's actions, .* has no such form: .*env\.choices"
    ):
        actions(given, **settings)


@pytest.mark.parametrize(
    ("schemas", "settings", "said"),
    [
        (TEXT, {"form": "numbers"}, "has no such form"),
        (TEXT, {"action": {"tone": 1}}, "no field tone: use text, loudness"),
        (NUMBERS, {"fields": ["lamp"]}, "the field lamp is missing"),
        (
            NUMBERS | {"observation": TEXT["observation"]},
            {"form": "numbers"},
            "and its observations, .*, are not",
        ),
        (NUMBERS, {"render": "no.such:thing"}, "cannot be imported"),
        (NUMBERS, {"render": "json:decoder"}, "is no function"),
        (NUMBERS, {"form": "words"}, "must be one of auto, numbers"),
        (NUMBERS, {"choices": 3}, "env.choices=3"),
        (NUMBERS, {"colour": 3}, "env=openenv has no such setting"),
        (NUMBERS, {"tasks": []}, "tasks are a list of maps"),
        (NUMBERS, {"tasks": "none.jsonl"}, "no readable file of JSON Lines"),
        (NUMBERS, {"tasks": [{"tier": "expert"}, {"id": 2}]}, "some tasks name a tier"),
        (NUMBERS | {"action": []}, {}, "has no schema of its action"),
    ],
)
def test_what_does_not_fit_a_server_is_said_before_anything_starts(schemas, settings, said):
    if schemas["observation"] is TEXT["observation"] and schemas["action"] is NUMBERS["action"]:
        settings = settings | {"form": "numbers"}
        lie = lambda message, answer: (  # noqa: E731
            {"type": "observation", "data": {"observation": {"text": "hi"}}}
            if message["type"] == "reset"
            else answer
        )
    else:
        lie = lambda message, answer: answer  # noqa: E731
    with standin_of(schemas, lie=lie) as (url, _), pytest.raises(ConfigError, match=said):
        probe(env_at(url, **settings))


def numbers_of_render(observation, task):
    return [*observation["lamps"], float(task["level"])]


def test_a_function_of_the_user_s_shows_an_observation_and_its_task():
    path = f"{__name__}:numbers_of_render"
    with standin_of() as (url, _):
        env = env_at(url, render=path, tasks=[{"level": 7}])
        with pool_of(env) as pool:
            (answer,) = pool.reset([1])
            assert answer.obs.shape == (4,)
            assert answer.obs[-1] == 7.0


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_an_episode_has_its_seed_a_name_of_its_own_and_the_keywords_of_every_reset():
    with standin_of() as (url, standin):
        with pool_of(env_at(url, reset={"level": 3}), 2) as pool:
            first = pool.reset([5, 6])
            for _ in range(4):
                answers = pool.step(np.zeros(2, int))
            assert [answer.terminated for answer in answers] == [True, True]
            assert all(answer.final_obs is not None for answer in answers)
        resets = [data for data in standin.asked if "seed" in data][1:]
    assert [data["seed"] for data in resets[:2]] == [5, 6]
    assert len({data["seed"] for data in resets}) == 4
    assert {data["level"] for data in resets} == {3}
    assert len({data["episode_id"] for data in resets}) == 4
    assert first[0].reward == 0.0  # OpenEnv says null


def test_a_wrong_text_is_answered_by_what_is_wrong_with_it_and_the_episode_goes_on():
    with standin_of(TEXT) as (url, _):
        turns = make_turns(env_at(url, achieved_at=1.0), range(1), 0, PATIENCE_S, max_restarts=1)
        turns.begin(0, 1, {})
        assert turns.ready(None)[0].obs == "north"
        turns.act(0, "")
        (wrong,) = turns.ready(None)
        assert "text: String should have at least 1 character" in wrong.obs
        assert (wrong.is_over, wrong.reward, wrong.info["tool_failed"]) == (False, 0.0, True)
        turns.act(0, "north")
        (right,) = turns.ready(None)
        assert (right.obs, right.reward, right.terminated, right.info["is_success"]) == (
            "yes",
            1.0,
            True,
            True,
        )
        # What the environment raises loses the episode, and the next one begins.
        turns.begin(0, 1, {})
        turns.ready(None)
        turns.act(0, "fail")
        assert turns.ready(None)[0].failed
        turns.begin(0, 2, {})
        assert turns.ready(None)[0].obs == "north"
        turns.close()


def test_tools_that_mcp_lists_are_called_by_the_actions_of_a_language_model():
    with standin_of(TOOLS) as (url, _):
        env = env_at(url)
        assert [tool["function"]["name"] for tool in probe(env).tools] == ["run", "add"]
        turns = make_turns(env, range(1), 0, PATIENCE_S, max_restarts=0)
        for action, said, reward in (
            ({"name": "run", "arguments": {"command": "go"}}, "ran go", 1.0),
            ({"name": "add", "arguments": {"a": 2, "b": 3}}, "5", 0.0),
            ({"name": "fly", "arguments": {}}, "error: there is no tool 'fly': use run, add", 0.0),
            ("fly", "error: an action is JSON", 0.0),
        ):
            turns.begin(0, 1, {})
            turns.ready(None)
            turns.act(0, action if isinstance(action, str) else json.dumps(action))
            (answer,) = turns.ready(None)
            assert (answer.obs.startswith(said), answer.reward) == (True, reward)
        turns.close()


def test_environments_are_spread_over_the_servers_of_one_task():
    with standin_of() as (one, first), standin_of() as (other, second), standin_of(TEXT) as (text, _):
        env = replace(env_at(one), urls=[one, other.upper().replace("HTTP", "WS")])
        with pool_of(env, 4) as pool:
            pool.reset(range(4))
            assert (first.num_held, second.num_held) == (2, 2)
            # A request that keeps a session alive waits for the one under way, as answers have no ids.
            session = pool._pool._sessions[0]

            async def both():
                return await asyncio.gather(
                    session.ask(PATIENCE_S, op="describe"),
                    pool._pool.act(0, 1),
                    session.ask(PATIENCE_S, op="describe"),
                )

            assert pool._loop.done(both())[1].reward in (0.0, 1.0)

            async def cancelled():
                step = asyncio.ensure_future(pool._pool.act(1, 1))
                await asyncio.sleep(0)
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
                return await pool._pool.begin(1, 7)

            assert pool._loop.done(cancelled()).obs.shape == (3,)
            assert pool.num_reconnects == 0
        with pytest.raises(ConfigError, match="have other schemas"):
            probe(replace(env, urls=[one, text]))


def test_a_program_takes_a_server_as_the_page_says():
    page = (CHECKOUT / "docs/openenv.md").read_text()
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    with standin_of() as (url, standin):
        names = {}
        exec(source.replace("http://127.0.0.1:8000", url), names)
        assert [answer.obs.shape for answer in names["observations"]] == [(3,)] * 4
        assert standin.asked[-1]["level"] == 3


def test_a_late_session_is_dropped_and_no_answer_of_it_is_taken_for_another():
    steps = iter(range(100))

    def lie(message, answer):
        return "silence" if message["type"] == "step" and next(steps) == 1 else answer

    with standin_of(lie=lie) as (url, standin), pool_of(env_at(url), answer_s=0.5, max_reconnects=1) as pool:
        pool.reset([1])
        assert not pool.step(np.zeros(1, int))[0].is_lost
        (lost,) = pool.step(np.zeros(1, int))
        assert lost.is_lost
        assert pool.num_reconnects == 1
        wait_until(lambda: standin.num_held == 1)
        assert not pool.step(np.zeros(1, int))[0].is_lost


def test_a_full_server_is_asked_again_until_the_time_is_over():
    with standin_of(sessions=2) as (url, standin):
        env = env_at(url)
        with pool_of(env, 2):
            with pytest.raises(
                EnvServerRefused, match=r"is full \(CAPACITY_REACHED\): .*larger max_concurrent_envs"
            ):
                SyncEnvPool([url], 1, opener=opener_of(env, range(1)))
            assert standin.num_held == 2

            async def wait():
                async with AsyncEnvPool([url], 1, opener=opener_of(env, range(1)), full_s=PATIENCE_S):
                    return standin.num_held

            found = []
            waiting = threading.Thread(target=lambda: found.append(asyncio.run(wait())))
            waiting.start()
        waiting.join()
        assert found == [1]


def test_a_server_that_comes_back_loses_an_episode_and_the_batch_goes_on():
    first = Standin()
    with ExitStack() as stack:
        serving = stack.enter_context(ExitStack())
        url = serving.enter_context(running(app_of(first)))
        env = env_at(url)
        envs = make_vec_env(env, range(2), 0, 1, timeout_s=60.0, max_restarts=1)
        stack.callback(envs.close)
        envs.reset([1, 2])
        assert envs.step(np.zeros(2, int)).valid.all()
        serving.close()
        stack.enter_context(running(app_of(Standin()), port=int(url.rpartition(":")[2])))
        step = envs.step(np.zeros(2, int))
        assert not step.valid.any()
        assert envs.num_lost_episodes == 2
        assert envs.step(np.zeros(2, int)).valid.all()


def test_a_server_that_comes_back_with_another_task_ends_the_run():
    with ExitStack() as stack:
        serving = stack.enter_context(ExitStack())
        url = serving.enter_context(running(app_of(Standin())))
        envs = make_vec_env(env_at(url), range(1), 0, 1, timeout_s=60.0, max_restarts=1)
        stack.callback(envs.close)
        envs.reset([1])
        serving.close()
        stack.enter_context(running(app_of(Standin(TEXT)), port=int(url.rpartition(":")[2])))
        with pytest.raises(EnvError, match="serves other actions or observations"):
            envs.step(np.zeros(1, int))


def test_our_own_server_is_a_server_of_openenv_whose_time_limit_is_no_end():
    with (
        served_by_ddppo(
            ServeSettings(EnvConfig(id="CartPole-v1", max_episode_steps=3), pool=1, port=0)
        ) as url,
        pool_of(env_at(url), full_s=PATIENCE_S) as pool,
    ):
        assert (pool.spec.action.kind, pool.spec.obs.shape) == ("discrete", (4,))
        pool.reset([1])
        for _ in range(3):
            (answer,) = pool.step(np.zeros(1, int))
        assert (answer.reward, answer.terminated, answer.truncated) == (1.0, False, True)


def test_the_token_file_holds_a_token_or_headers(tmp_path):
    file = tmp_path / "token"
    for text, headers in (
        ("hf_secret\n", {"Authorization": "Bearer hf_secret"}),
        ("X-Api-Key: k 1\nX-Team: b\n", {"X-Api-Key": "k 1", "X-Team": "b"}),
    ):
        file.write_text(text)
        assert headers_of(env_at("ws://h", file)) == headers
    for text, said in (
        ("", "is empty"),
        ("X-Api-Key: secret\nsecret", "line 2 is no header"),
        ("sécret", "ASCII"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said) as refused:
            headers_of(env_at("ws://h", file))
        assert "secret" not in str(refused.value)
