"""OpenEnv's dialect: its routes without a session, and what its own client makes of a server of ours.

openenv (0.10.0 is what these are written against) brings 474 MB: where it is not installed, a client that is written
from its protocol stands in, in test_serve.
"""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

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
        ("/step", {"action": {"action": RAISE}, "seed": 1}, 500, "EXECUTION_ERROR"),
        ("/step", {"action": {"action": EXIT}, "seed": 1}, 500, "SESSION_ERROR"),
        ("/step", {"action": {"action": HANG}, "seed": 1}, 500, "SESSION_ERROR"),
    ],
)
def test_what_cannot_be_done_without_a_session_is_said(path, content, status, code):
    with world(1, step_s=1.0) as url:
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


def test_openenv_s_own_client_plays_an_episode_and_is_told_what_goes_wrong():
    client_of = pytest.importorskip("openenv.core.generic_client", reason="openenv is not installed")

    async def main(url):
        async with client_of.GenericEnvClient(base_url=url.replace("ws", "http", 1)) as client:
            first = await client.reset(seed=3, episode_id="mine")
            assert (first.observation["obs"][0], first.reward, first.done) == (0.0, None, False)
            second = await client.step({"action": MARK})
            assert (second.observation["obs"][0], second.reward, second.done) == (1.0, 0.0, False)
            assert await client.state() == {"episode_id": "mine", "step_count": 1}
            for wrong in ({"action": 99}, {}, {"action": RAISE}):
                with pytest.raises(RuntimeError):
                    await client.step(wrong)
                await client.reset(seed=3)
            with pytest.raises(ConnectionError, match="503"):
                await client_of.GenericEnvClient(base_url=url).connect()

    with world(1) as url:
        asyncio.run(main(url))
        wait_until(lambda: health(url)["free"] == 1)
        assert metric(url, "worlds_lost_total") == 0


def test_openenv_s_own_client_is_heard_with_a_token_in_its_headers():
    client_of = pytest.importorskip("openenv.core.generic_client", reason="openenv is not installed")

    def played(url, headers):
        with client_of.GenericEnvClient(base_url=url, headers=headers).sync() as client:
            return client.reset(seed=1).observation["obs"][0]

    with world(1, token=TOKEN) as url:
        assert played(url, {"Authorization": f"Bearer {TOKEN}"}) == 0.0
        with pytest.raises(ConnectionError, match="401"):
            played(url, {})
