"""Servers that lie, of OpenEnv and of ddppo/1: each lie is one sentence of our errors, and nothing hangs."""

import asyncio
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from fastapi import FastAPI, Request, Response, WebSocket  # noqa: E402

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.envs.probing.probe import probe  # noqa: E402
from ddppo.errors import ConfigError, EnvError  # noqa: E402
from ddppo.serve.client import connection, served  # noqa: E402
from ddppo.serve.client.connection import EnvServerFault, RemoteError, dialled  # noqa: E402
from ddppo.serve.client.openenv import OpenEnvConnection, opener_of, task_of  # noqa: E402
from ddppo.serve.client.sessions import AsyncEnvPool, SyncEnvPool  # noqa: E402
from ddppo.serve.protocol import MSGPACK, encoded, plain_spec  # noqa: E402
from tests.serve.openenv_standin import NUMBERS, Standin, app_of, error, running  # noqa: E402
from tests.serve.openenv_standin import openenv as standin_of  # noqa: E402
from tests.serve.test_openenv_client import env_at, pool_of  # noqa: E402
from tests.support import PATIENCE_S  # noqa: E402

# -- servers that lie --------------------------------------------------------------------------------------------------


def observation(**changes):
    data = {"observation": {"lamps": [1.0, 0.0, 0.0], "metadata": {}}, "reward": 1.0, "done": False}
    return {"type": "observation", "data": data | changes}


LIES = {
    "no JSON": ("{", "the message is not JSON"),
    "no text": (b"\x00\xff", "the message is not JSON"),
    "no map": ("[1]", "a message is a map"),
    "nested too deeply": ("[" * 100_000, "the message is not JSON"),
    "no data": ({"type": "observation"}, "has no data"),
    "another type": ({"type": "state", "data": {}}, "of the type 'state', not observation"),
    "NaN as the reward": (observation(reward=float("nan")), "the reward 'nan' is no finite number"),
    "text as the reward": (observation(reward="1"), "the reward '1' is no finite number"),
    "an infinite reward": (observation(reward=float("inf")), "is no finite number"),
    "done as text": (observation(done="yes"), "done is 'yes'"),
    "an observation that is no map": (observation(observation=[1]), "an observation is no map"),
    "no lamps": (observation(observation={}), "the field lamps is missing"),
    "lamps that are text": (
        observation(observation={"lamps": "on"}),
        "of the type str, and the schema says array",
    ),
    "lamps that are words": (observation(observation={"lamps": ["on"]}), "holds no numbers"),
    "lamps of another number": (observation(observation={"lamps": [1.0]}), "must have the shape"),
    "reward parts that are words": (observation(metadata={"reward_parts": {"a": "b"}}), "reward_parts"),
    "a huge answer": ("x" * 300_000, "more than 0 MiB: it is not read"),
    "no answer": ("silence", "gave no answer within 0.5 s"),
    "the end": (None, "ended the session"),
    "an error without words": ({"type": "error", "data": {}}, "http://"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_of_openenv_that_lies_is_named_in_a_sentence(name, monkeypatch):
    told, said = LIES[name]
    with standin_of(lie=lambda message, answer: told if message["type"] == "step" else answer) as (url, _):
        env = env_at(url)
        task_of(env)
        monkeypatch.setattr(connection, "_MOST_BYTES", 200_000)
        patience = {"answer_s": 0.5 if told == "silence" else PATIENCE_S}
        with pool_of(env, **patience) as pool:
            pool.reset([1])
            with pytest.raises(EnvServerFault, match=re.escape(said)) as lost:
                pool.step(np.zeros(1, int))
    assert "\n" not in str(lost.value)
    assert len(str(lost.value)) < 500


async def closes(socket):
    await socket.accept()
    await socket.close()


async def is_silent(socket):
    await socket.accept()
    await socket.receive()
    await socket.receive()


async def says(socket, code):
    await socket.accept()
    await socket.send_text(json.dumps(error("all are taken", code)))
    await socket.receive()


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (closes, "ended the session"),
        (is_silent, r"gave no answer within 0\.5 s"),
        (lambda socket: says(socket, "CAPACITY_REACHED"), r"is full \(CAPACITY_REACHED\): all are taken"),
        (lambda socket: says(socket, "FACTORY_ERROR"), r"gave no session \(FACTORY_ERROR\): all are taken"),
        (lambda socket: socket.send_denial_response(Response("gone", 404)), r"refused \(404\): gone"),
    ],
)
def test_a_session_that_a_server_does_not_give_is_said(behaviour, said):
    app = FastAPI(openapi_url=None)

    async def session(socket: WebSocket):
        await behaviour(socket)

    app.add_api_websocket_route("/ws", session)
    wait_s = 0.5 if "no answer" in said else PATIENCE_S
    with running(app) as url, pytest.raises(EnvError, match=said):
        asyncio.run(OpenEnvConnection.started(url, {}, wait_s))


def test_a_refusal_that_comes_before_the_first_message_is_its_answer():
    async def main(url):
        session = OpenEnvConnection(url, await dialled(url.replace("http", "ws"), {}, PATIENCE_S), {})
        while session._refusal is None:
            await asyncio.sleep(0.01)
        with pytest.raises(RemoteError) as refused:
            await session.sent(PATIENCE_S, {"type": "state"})
        await session.close()
        return refused.value.code

    with running(app_of(Standin(sessions=0))) as url:
        assert asyncio.run(main(url)) == "CAPACITY_REACHED"


def test_two_answers_to_one_request_end_the_session():
    async def main(url, env):
        async with AsyncEnvPool([url], 1, opener=opener_of(env, range(1))) as pool:
            await pool.reset([1])
            with pytest.raises(EnvServerFault, match=r"an answer without a request|two answers"):
                await stepped_for_ever(pool)

    async def stepped_for_ever(pool):
        while True:
            await pool.step(np.zeros(1, int))

    class Twice(Standin):
        async def session(self, socket: WebSocket):
            send = socket.send_text

            async def twice(text):
                await send(text)
                if '"reward": 0.0' in text:
                    await send(text)

            socket.send_text = twice
            await super().session(socket)

    with running(app_of(Twice())) as url:
        asyncio.run(main(url, env_at(url)))


@contextmanager
def lying_http(path, answer):
    """A server that answers GET `path` by `answer`, and is a stand-in for the rest."""
    app = FastAPI(openapi_url=None)

    @app.get(path)
    async def lie(request: Request):
        return answer(request)

    app.mount("/", app_of(Standin()))
    with running(app) as url:
        yield url


HTTP_LIES = {
    "not JSON": (lambda r: Response("<html>"), "with no JSON"),
    "no map": (lambda r: Response("[1]"), "with no map"),
    "nested": (lambda r: Response("[" * 100_000), "with no JSON"),
    "huge": (lambda r: Response(b"1" * 3000), "more than 0 MiB"),
    "elsewhere": (
        lambda r: Response("", 307, {"location": "http://evil.example/schema"}),
        "redirects to http://evil",
    ),
    "broken": (lambda r: Response("", 500), "answered 500"),
    "a token repeated": (
        lambda r: Response("", 302, {"location": f"/{r.headers['authorization'][-20:].replace(' ', '%20')}"}),
        "redirects to",
    ),
    "forbidden": (lambda r: Response("", 403), "refuses the token"),
}


@pytest.mark.parametrize("name", HTTP_LIES)
@pytest.mark.parametrize("backend", ["openenv", "remote"])
def test_a_schema_that_is_none_is_said_before_anything_starts(name, backend, tmp_path, monkeypatch):
    answer, said = HTTP_LIES[name]
    token = "a-secret-of-20-chars"
    (tmp_path / "token").write_text(token)
    if name == "huge":
        monkeypatch.setattr(served, "_MOST_BYTES", 2000)
    with lying_http("/schema", answer) as url:
        env = replace(env_at(url.replace("http", "ws"), tmp_path / "token"), backend=backend)
        with pytest.raises(ConfigError, match=said) as refused:
            probe(env if backend == "openenv" else replace(env, id="served", kwargs={}))
    assert token not in str(refused.value)


def test_a_handshake_that_is_redirected_is_refused_and_the_headers_are_sent_nowhere_else():
    heard = []
    app, other = FastAPI(openapi_url=None), FastAPI(openapi_url=None)

    async def hear(socket: WebSocket):
        heard.append(dict(socket.headers))
        await socket.accept()

    other.add_api_websocket_route("/ws", hear)
    with running(other) as elsewhere:

        async def redirect(socket: WebSocket):
            where = {"location": f"{elsewhere.replace('http', 'ws')}/ws"}
            await socket.send_denial_response(Response("", 307, where))

        app.add_api_websocket_route("/ws", redirect)
        app.get("/schema")(lambda: NUMBERS)
        with running(app) as url, pytest.raises(ConfigError, match=r"redirects to .*, which is not followed"):
            probe(env_at(url))
    assert heard == []


def ddppo_lies():
    """Answers of ddppo/1 to a step, and what is said of each."""
    right = {"id": 3, "obs": np.zeros(4, np.float32).tobytes(), "info": {}, "reward": 1.0}
    right |= {"terminated": False, "truncated": False}
    return {
        "no MessagePack": (b"\xc1", "the message is not MessagePack"),
        "JSON": ("{}", "the message is not MessagePack|a message is a map"),
        "another id": (right | {"id": 99}, "gave no answer within 0.5 s"),
        "no id": ({"obs": b""}, "gave no answer within 0.5 s"),
        "NaN as the reward": (right | {"reward": float("nan")}, "the reward is nan"),
        "text as the reward": (right | {"reward": "1"}, "reward must be a number"),
        "another shape": (right | {"obs": b"1234"}, "must have the shape"),
        "another type": (right | {"obs": "north"}, "must have the shape"),
        "a huge answer": (b"x" * 300_000, "more than 0 MiB: it is not read"),
        "no answer": ("silence", "gave no answer within 0.5 s"),
        "the end": (None, "ended the session"),
        "an error without words": ({"id": 3, "error": 1}, "ws://"),
    }


@pytest.mark.parametrize("name", ddppo_lies())
def test_a_server_of_ddppo_that_lies_is_named_in_a_sentence(name, monkeypatch):
    told, said = ddppo_lies()[name]
    spec = plain_spec(probe(EnvConfig(id="CartPole-v1")))

    async def session(socket: WebSocket):
        await socket.accept()
        for answer in (
            {"id": 1, "protocol": "ddppo/1", "spec": spec},
            {"id": 2, "obs": bytes(16), "info": {}},
            told,
        ):
            await socket.receive()
            if answer is None:
                await socket.close()
            elif isinstance(answer, str) and answer != "silence":
                await socket.send_text(answer)
            elif answer != "silence":
                await socket.send_bytes(answer if isinstance(answer, bytes) else encoded(MSGPACK, answer))
        await socket.receive()

    app = FastAPI(openapi_url=None)
    app.add_api_websocket_route("/ws", session)
    monkeypatch.setattr(connection, "_MOST_BYTES", 200_000)
    is_late = "no answer within" in said
    with running(app) as url:
        url = url.replace("http", "ws")
        with SyncEnvPool([url], 1, answer_s=0.5 if is_late else PATIENCE_S) as pool:
            pool.reset([1])
            with pytest.raises(EnvServerFault, match=said) as lost:
                pool.step(np.zeros(1, int))
    assert "\n" not in str(lost.value)
    assert isinstance(lost.value, EnvError)


def test_a_server_that_speaks_slower_than_its_time_is_left(monkeypatch):
    monkeypatch.setattr(served, "_ANSWER_S", 0.5)
    ended = threading.Event()

    async def drip(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not ended.is_set():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.1)

    with running(drip) as url:
        with pytest.raises(ConfigError, match=r"no answer within 0\.5 s"):
            probe(env_at(url))
        ended.set()


def test_an_error_of_openenv_keeps_the_server_s_code():
    with (
        standin_of(lie=lambda m, a: error("no", "EXECUTION_ERROR") if m["type"] == "step" else a) as (
            url,
            _,
        ),
        pool_of(env_at(url)) as pool,
    ):
        pool.reset([1])
        with pytest.raises(RemoteError) as raised:
            pool.step(np.zeros(1, int))
    assert (raised.value.code, raised.value.said) == ("EXECUTION_ERROR", "no")
