"""OpenEnv's dialect: its routes without a session, tasks, tools, and what a server says of itself.

test_openenv_package has the clients of openenv itself.
"""

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from ddppo.config.settings import EnvConfig  # noqa: E402
from tests.serve.served_tasks import EXIT, HANG, MARK, RAISE  # noqa: E402
from tests.serve.test_serve import get, health, metric, world  # noqa: E402
from tests.support import PATIENCE_S, wait_until  # noqa: E402

TOKEN = "a secret of 20 chars"


def post(url, path, content, headers=None):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    asked = urllib.request.Request(url.replace("ws", "http", 1) + path, body, headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.loads(e.read())


def test_a_request_without_a_session_has_a_world_of_its_own_that_is_gone_after_it():
    with world(2) as url:
        for _ in range(2):
            status, told = post(url, "/step", {"action": {"action": MARK}, "seed": 3})
            assert (status, told["observation"]["obs"][0], told["reward"], told["done"]) == (
                200,
                1.0,
                0.0,
                False,
            )
        status, told = post(url, "/reset", {"seed": 3, "episode_id": "mine"})
        assert (status, told["observation"]["obs"][0], told["reward"], told["done"]) == (
            200,
            0.0,
            None,
            False,
        )
        assert post(url, "/reset", b"")[0] == 200
        assert json.loads(get(url, "/state")[1]) == {"episode_id": None, "step_count": 0}
        wait_until(lambda: health(url)["free"] == 2)


@pytest.mark.parametrize(
    ("path", "content", "status", "code"),
    [
        ("/reset", b"{", 422, "INVALID_JSON"),
        ("/reset", [], 422, "VALIDATION_ERROR"),
        ("/reset", {"seed": -1}, 422, "VALIDATION_ERROR"),
        ("/reset", {"options": [1]}, 422, "VALIDATION_ERROR"),
        ("/step", {}, 422, "VALIDATION_ERROR"),
        ("/step", {"action": 1}, 422, "VALIDATION_ERROR"),
        ("/step", {"action": {"action": 99}}, 422, "VALIDATION_ERROR"),
        ("/reset", b'{"seed": NaN}', 422, "VALIDATION_ERROR"),
        ("/step", {"action": {"type": "call_tool", "tool_name": "act", "arguments": {"action": "x"}}}, 422,
         "VALIDATION_ERROR"),
        ("/step", {"action": {"type": "call_tool", "tool_name": "act", "arguments": {"action": RAISE}}, "seed": 1},
         500, "EXECUTION_ERROR"),
        ("/step", {"action": {"action": RAISE}, "seed": 1}, 500, "EXECUTION_ERROR"),
        ("/step", {"action": {"action": EXIT}, "seed": 1}, 500, "SESSION_ERROR"),
        ("/step", {"action": {"action": HANG}, "seed": 1}, 500, "SESSION_ERROR"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_without_a_session_is_said(url, path, content, status, code):
    answer = post(url, path, content)
    assert (answer[0], answer[1]["code"]) == (status, code)
    wait_until(lambda: health(url)["free"] == 1)


def test_requests_without_a_session_are_bounded_as_sessions_are():
    with world(1, token=TOKEN, max_message_bytes=1000) as url:
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert post(url, "/reset", {})[0] == get(url, "/state")[0] == 401
        assert post(url, "/reset", {}, right | {"Origin": "http://evil.example"})[0] == 403
        assert post(url, "/reset", b" " * 2000, right)[0] == 413
        assert post(url, "/reset", {}, right)[0] == 200
        assert metric(url, "slots", right) == 1


def test_the_schema_describes_actions_and_observations():
    with world(1, EnvConfig(id="Pendulum-v1")) as url:
        told = json.loads(get(url, "/schema")[1])
    bounded = {"type": "array", "items": {"type": "number"}}
    assert told["action"]["properties"] == {"action": bounded | {"minItems": 1, "maxItems": 1}}
    assert told["observation"]["properties"] == {"obs": bounded | {"minItems": 3, "maxItems": 3}}
    assert set(told["state"]["required"]) == {"episode_id", "step_count"}


# -- tasks, tools, and what the server says of itself ------------------------------------------------------------------

TEXT = EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0", backend="sync")


@contextmanager
def talking(url, path="/ws"):
    """Yield a function that sends a message to a session and returns the answer."""
    with asyncio.Runner() as loop:
        dial = connect(url + path, proxy=None, open_timeout=PATIENCE_S)
        socket = loop.run(_awaited(dial))

        async def asked(message):
            await socket.send(json.dumps(message))
            return json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))

        try:
            yield lambda kind, **data: loop.run(asked({"type": kind, "data": data}))
        finally:
            loop.run(_awaited(socket.close()))


async def _awaited(what):
    return await what


@pytest.fixture(scope="module")
def url():
    with world(1, step_s=1.0) as url:
        yield url


def rpc(url, method, headers=None, **params):
    asked = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    status, answer = post(url, "/mcp", asked, headers)
    assert (status, answer["jsonrpc"], answer["id"]) == (200, "2.0", 5)
    return answer.get("result", answer.get("error"))


def test_a_reset_takes_a_task_and_an_episode_id_and_refuses_what_it_does_not_know():
    with world(1, TEXT) as url, talking(url) as ask:
        for task in ("west", "down"):
            assert ask("reset", seed=1, task=task, episode_id=task)["data"]["observation"] == {
                "obs": f"say {task}"
            }
            assert ask("state")["data"] == {"episode_id": task, "step_count": 0}
        for wrong, said in (
            ({"task": "wset"}, "there is no task 'wset' (did you mean west"),
            ({"task": 7}, "there is no task '7'"),
            ({"task": "west", "options": {"task": "east"}}, "its task the task of the reset"),
            ({"tusk": "west"}, "reset has no 'tusk' here: it takes seed, episode_id, options, task"),
            ({"episode_id": "x" * 256}, "at most 255 characters"),
        ):
            answer = ask("reset", **wrong)
            assert answer["data"]["code"] == "VALIDATION_ERROR"
            assert said in answer["data"]["message"]
        assert "an action has no field 'act'" in ask("step", act="west")["data"]["message"]
        told = json.loads(get(url, "/metadata")[1])
        assert (told["name"], told["reset"][-1], told["tools"]) == (TEXT.id, "task", ["run_command"])
        assert "west" in told["tasks"]
    with world(1) as url, talking(url) as ask:
        assert "reset has no 'task' here" in ask("reset", task="west")["data"]["message"]


def test_a_tool_of_a_session_is_called_over_http_and_its_rewards_are_those_of_steps():
    with world(1, TEXT) as url:
        session = rpc(url, "openenv/session/create")["session_id"]
        with talking(url, f"/ws?session_id={session}") as ask:
            ask("reset", seed=1, task="west")
            called = rpc(
                url, "tools/call", session_id=session, name="run_command", arguments={"command": "west"}
            )
            assert (called["data"], called["structuredContent"]["reward"], called["isError"]) == (
                "right again",
                0.5,
                False,
            )
            step = ask("step", type="call_tool", tool_name="run_command", arguments={"command": "west"})[
                "data"
            ]
            assert step["observation"]["result"]["content"] == [{"type": "text", "text": "right again"}]
            assert (step["reward"], step["done"]) == (0.5, True)
            assert ask("state")["data"]["step_count"] == 2
        # The session outlives its WebSocket, and its slot is free once it is closed.
        assert rpc(url, "tools/list", session_id=session)["tools"][0]["name"] == "run_command"
        assert health(url)["held"] == 1
        assert rpc(url, "openenv/session/create")["data"] == {"active_sessions": 1, "max_sessions": 1}
        assert rpc(url, "openenv/session/close", session_id=session)["closed"]
        assert "no such session_id" in rpc(url, "tools/list", session_id=session)["message"]
        wait_until(lambda: health(url)["free"] == 1)


def test_tools_are_listed_and_called_without_a_session_too():
    with world(1, EnvConfig(id="CartPole-v1")) as url:
        (tool,) = rpc(url, "tools/list")["tools"]
        assert (tool["name"], tool["inputSchema"]["properties"]["action"]["maximum"]) == ("act", 1)
        assert (
            rpc(url, "tools/call", name="act", arguments={"action": 1})["structuredContent"]["reward"] == 1.0
        )
        with talking(url) as ask:
            listed = ask("step", type="list_tools")["data"]["observation"]["tools"]
            assert listed[0]["input_schema"] == tool["inputSchema"]
            call = {"name": "act", "arguments": {"action": 1}}
            told = ask("mcp", jsonrpc="2.0", id="a", method="tools/call", params=call)
            assert (told["type"], told["data"]["id"], len(told["data"]["result"]["data"])) == ("mcp", "a", 4)
            assert ask("state")["data"]["step_count"] == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b"", -32700),
        ({}, -32600),
        ([], -32600),
        ({"jsonrpc": "2.0", "method": 1}, -32600),
        ({"jsonrpc": "2.0", "method": "tools/list", "params": []}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/list", "id": []}, -32600),
        ({"jsonrpc": "2.0", "method": "tools/fly"}, -32601),
        ({"jsonrpc": "2.0", "method": "tools/list", "params": {"session_id": "mine"}}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/list", "params": {"session_id": {}}}, -32602),
        ({"jsonrpc": "2.0", "method": "openenv/session/close"}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "fly"}}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act"}}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": 1}}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": {"action": 99}}}, -32602),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": {"action": RAISE}}}, -32603),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": {"action": EXIT}}}, -32603),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": {"action": HANG}}}, -32603),
    ],
)  # fmt: skip
def test_a_request_of_json_rpc_that_cannot_be_answered_is_an_error_with_its_code(url, content, code):
    status, answer = post(url, "/mcp", content)
    assert (status, answer["error"]["code"]) == (200, code)
    wait_until(lambda: health(url)["free"] == 1)


def test_sessions_over_http_are_bounded_as_others_are():
    right = {"Authorization": f"Bearer {TOKEN}"}
    with world(2, token=TOKEN, max_message_bytes=1000, idle_s=0.5, step_s=1.0) as url:
        for path in ("/metadata", "/openapi.json"):
            assert (get(url, path)[0], get(url, path, right)[0]) == (401, 200)
        assert post(url, "/mcp", {})[0] == 401
        assert post(url, "/mcp", {}, right | {"Origin": "http://evil.example"})[0] == 403
        assert post(url, "/mcp", b" " * 2000, right)[0] == 413
        # A session without requests ends, and so does one whose world is lost or hangs.
        for action in (None, EXIT, HANG):
            session = rpc(url, "openenv/session/create", right)["session_id"]
            if action is not None:
                call = {"name": "act", "arguments": {"action": action}}
                answer = rpc(url, "tools/call", right, session_id=session, **call)
                # A call that waits for its answer is no session without requests.
                assert action != HANG or "no answer within 1 s" in answer["message"]
            wait_until(lambda: health(url)["held"] == 0)
            assert "no such session_id" in rpc(url, "tools/list", right, session_id=session)["message"]


def test_a_session_is_shared_by_one_websocket_and_ends_with_its_world():
    with world(1) as url:
        session = rpc(url, "openenv/session/create")["session_id"]
        path = f"/ws?session_id={session}"
        with talking(url, path) as ask:
            ask("reset", seed=1)
            with pytest.raises(InvalidStatus, match="409"), talking(url, path):
                pass
            with pytest.raises(ConnectionClosed):
                ask("step", action=EXIT)
        with pytest.raises(InvalidStatus, match="404"), talking(url, path):
            pass
        wait_until(lambda: health(url)["free"] == 1)


def test_paths_and_version_are_those_by_which_openenv_tells_its_servers():
    with world(1) as url:
        told = json.loads(get(url, "/openapi.json")[1])
    assert told["info"]["version"].startswith("1.")
    assert {"/reset", "/step", "/state", "/schema", "/health", "/metadata", "/mcp"} <= told["paths"].keys()
