"""Environments behind an address: who comes in, what a client can do to others, what clients make of losses."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from ddppo.config.settings import Config, EnvConfig  # noqa: E402
from ddppo.envs.make import make_vec_env  # noqa: E402
from ddppo.envs.probing.probe import probe  # noqa: E402
from ddppo.envs.vec_env import EnvNames  # noqa: E402
from ddppo.errors import ConfigError  # noqa: E402
from ddppo.serve.client.backend import make_remote  # noqa: E402
from ddppo.serve.client.connection import (  # noqa: E402
    Connection,
    EnvServerLate,
    EnvServerLost,
    EnvServerRefused,
    RemoteError,
)
from ddppo.serve.client.served import check_served  # noqa: E402
from ddppo.serve.client.sessions import AsyncEnvPool, SyncEnvPool  # noqa: E402
from ddppo.serve.limits import Allowance, Limits  # noqa: E402
from ddppo.serve.protocol import MSGPACK, encoded  # noqa: E402
from ddppo.serve.server import ServeSettings, served  # noqa: E402
from tests.serve.served_tasks import EXIT, HANG, MARK, RAISE  # noqa: E402
from tests.serve.test_serve_slots import SPEC, WORLD, runs  # noqa: E402
from tests.support import CHECKOUT, NEVER_S, PATIENCE_S, wait_until  # noqa: E402

NOWHERE = "ws://127.0.0.1:9"


@contextmanager
def world(pool=2, env=WORLD, token=None, **limits):
    patient = Limits(
        **(dict.fromkeys(("idle_s", "step_s", "send_s", "ready_s", "request_s"), NEVER_S) | limits)
    )
    with served(ServeSettings(env, pool=pool, port=0, token=token, limits=patient)) as url:
        yield url


def get(url, path, headers=None):
    asked = urllib.request.Request(url.replace("ws", "http", 1) + path, headers=headers or {})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def health(url):
    return json.loads(get(url, "/health")[1])


def metric(url, name, headers=None):
    lines = get(url, "/metrics", headers)[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"ddppo_{name} "))


def opened(url, **settings):
    return connect(f"{url}/ws", proxy=None, open_timeout=PATIENCE_S, ping_timeout=None, **settings)


async def acted(connection, action):
    await connection.ask(PATIENCE_S, op="reset")
    return await connection.ask(PATIENCE_S, op="step", action=action)


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_served_environments_give_the_numbers_of_local_ones_to_the_bit(id):
    env = EnvConfig(id=id, backend="sync", max_episode_steps=30)
    spec, drawn = probe(env), np.random.default_rng(0)
    with world(4, env) as url:
        local = make_vec_env(env, range(4), 0, 1)
        remote = make_remote(
            replace(env, backend="remote", urls=[url]), spec, EnvNames(range(4), 0), PATIENCE_S
        )
        assert remote.reset(range(4))[0].tobytes() == local.reset(range(4))[0].tobytes()
        num_ends = 0
        for _ in range(100):
            discrete = spec.action.kind == "discrete"
            actions = drawn.integers(0, 2, 4) if discrete else drawn.normal(size=(4, 1)).astype(np.float32)
            a, b = remote.step(actions), local.step(actions)
            for name in ("obs", "rewards", "terminated", "truncated", "valid", "ended", "final_obs"):
                assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
            num_ends += len(a.ended)
        assert num_ends >= 12
        remote.close()
        local.close()


def test_a_client_beyond_capacity_is_refused_at_the_handshake_with_the_numbers():
    async def main(url):
        async with opened(url), opened(url):
            with pytest.raises(InvalidStatus) as refused:
                await opened(url)
        return refused.value.response

    with world(2) as url:
        refused = asyncio.run(main(url))
        assert refused.status_code == 503
        assert {"held": 2, "size": 2}.items() <= json.loads(bytes(refused.body)).items()
        wait_until(lambda: health(url)["free"] == 2)


def test_where_the_4th_of_8_connects_fails_none_is_kept_and_a_retry_at_once_gets_all():
    async def main(url):
        with pytest.raises(EnvServerLost, match=NOWHERE):
            await AsyncEnvPool([url, url, url, NOWHERE, url, url, url, url], 8).connect()
        async with AsyncEnvPool([url], 8) as pool:
            await pool.connect()  # a second time does nothing
            assert len(await pool.reset(range(8))) == 8
            assert await asyncio.to_thread(lambda: health(url)["held"]) == 8

    with world(8) as url:
        asyncio.run(main(url))
        with pytest.raises(EnvServerRefused, match="all 8 slots are held"):
            SyncEnvPool([url], 9)
        wait_until(lambda: health(url)["held"] == 0)


def test_only_who_knows_the_token_comes_in_and_no_web_page():
    token = "a secret of 20 chars"
    right = {"Authorization": f"Bearer {token}"}

    async def status(url, headers):
        try:
            async with opened(url, additional_headers=headers):
                return 101
        except InvalidStatus as e:
            return e.response.status_code

    with world(1, token=token) as url:
        assert asyncio.run(status(url, {})) == 401
        assert asyncio.run(status(url, {"Authorization": "Bearer wrong"})) == 401
        assert asyncio.run(status(url, right | {"Origin": "http://evil.example"})) == 403
        assert asyncio.run(status(url, right)) == 101
        assert get(url, "/metrics")[0] == get(url, "/schema")[0] == 401
        assert (
            get(url, "/schema", right)[0] == get(url, "/metrics", right)[0] == get(url, "/health")[0] == 200
        )
        with pytest.raises(EnvServerRefused, match="401"):
            SyncEnvPool([url], 1)
        wait_until(lambda: health(url)["free"] == 1)
        SyncEnvPool([url], 1, token=token).close()


def test_the_scheme_of_an_address_may_be_written_large():
    with world(1) as url:
        assert probe(EnvConfig(id="served", backend="remote", urls=[url.replace("ws", "WS")])) == SPEC


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["env=cartpole"], "ddppo.serve needs packages that are not installed: pip install"),
        (["env=cartpole", "port=70000"], "port=70000"),
    ],
)
def test_a_server_that_cannot_be_says_why_in_a_sentence(arguments, said):
    lacking = "import sys; sys.modules['msgpack'] = None; import ddppo.serve.__main__ as door; door.main()"
    command = [sys.executable, "-c", lacking, *arguments]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_other_machines_reach_needs_a_token():
    with (
        pytest.raises(ConfigError, match=r"host=0\.0\.0\.0 .* set token_file="),
        world() as _,
        served(ServeSettings(WORLD, host="0.0.0.0")),
    ):
        pass


def has_ipv6():
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_server_at_an_address_of_ipv6_is_found_there():
    with served(ServeSettings(WORLD, pool=1, host="::1", port=0)) as url:
        assert url.startswith("ws://[::1]:")
        env = replace(WORLD, backend="remote", urls=[url])
        check_served(Config(env=env))
        assert probe(env) == SPEC
        with SyncEnvPool([url], num_envs=1):
            assert health(url)["held"] == 1


def test_garbage_is_refused_and_harms_neither_its_session_nor_another():
    drawn = random.Random(0)

    async def main(url):
        async with opened(url) as garbage:
            good = await Connection.opened(url, None, PATIENCE_S)
            deep = "[" * 100_000
            told = [
                {"id": 1, "op": "step", "action": 0},
                {"id": True, "op": "reset"},
                {"op": "reset"},
                [],
                1,
                None,
            ]
            told += [
                {"id": 1, "op": "reset", "seed": -1},
                {"id": 1, "op": "../../etc"},
                {"id": 1, "op": ["reset"]},
            ]
            told += [{"id": 1, "op": "reset", "more": 1}, {"id": 1, "op": "reset", 5: 1}]
            for k in range(1000):
                kind = k % 4
                if kind == 0:
                    await garbage.send(drawn.randbytes(drawn.randrange(200)))
                elif kind == 1:
                    await garbage.send("".join(map(chr, drawn.choices(range(1, 0xD7FF), k=20))))
                elif kind == 2:
                    await garbage.send(encoded(MSGPACK, drawn.choice(told)))
                else:
                    await garbage.send(deep if k % 100 == 3 else json.dumps(drawn.choice(told[:-1])))
                answer = await asyncio.wait_for(garbage.recv(), PATIENCE_S)
                assert b"error" in (answer.encode() if isinstance(answer, str) else answer)
                if k % 100 == 0:
                    assert (await acted(good, MARK))["reward"] == 0.0
            await garbage.send('{"id": 1, "op": "reset"}')
            assert json.loads(await garbage.recv())["obs"][0] == 0.0
            for action in (10, -1, 0.0, True, [0], None, 2**70):
                with pytest.raises((RemoteError, OverflowError)):
                    await acted(good, action)
            await good.close()

    with world(2) as url:
        asyncio.run(main(url))
        assert metric(url, "errors_total") >= 1000


def test_a_message_that_is_too_large_ends_its_session_alone():
    async def main(url):
        good = await Connection.opened(url, None, PATIENCE_S)
        async with opened(url) as large:
            await large.send("x" * 5000)
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(large.recv(), PATIENCE_S)
            assert closed.value.rcvd.code == 1009
        assert (await acted(good, 0))["reward"] == 0.0
        await good.close()

    with world(2, max_message_bytes=4096) as url:
        asyncio.run(main(url))
        wait_until(lambda: health(url)["free"] == 2)


def test_a_client_that_takes_no_answers_loses_its_slot_and_slows_nobody():
    env = EnvConfig(id=WORLD.id, kwargs={"size": 50_000})

    async def main(url):
        good = await Connection.opened(url, None, PATIENCE_S)
        async with opened(url, max_queue=1) as slow:

            async def asks_for_ever():
                with suppress(ConnectionClosed):
                    while True:
                        await slow.send('{"id": 1, "op": "reset"}')

            asking = asyncio.ensure_future(asks_for_ever())
            await asyncio.to_thread(wait_until, lambda: health(url)["held"] == 1)
            await acted(good, 0)
            slow.transport.abort()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await good.close()

    with world(2, env, send_s=1.0) as url:
        asyncio.run(main(url))


def test_an_idle_session_is_reaped():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        await asyncio.to_thread(wait_until, lambda: health(url)["free"] == 1)
        await connection.ask(PATIENCE_S, op="reset")

    with world(1, idle_s=0.3) as url:
        with pytest.raises(EnvServerLost, match=r"no request within 0\.3 s"):
            asyncio.run(main(url))
        assert metric(url, "sessions_idle_total") == 1


def test_a_world_that_hangs_is_ended_while_another_goes_on():
    async def main(url):
        hanging, good = [await Connection.opened(url, None, PATIENCE_S) for _ in range(2)]
        stuck = asyncio.ensure_future(acted(hanging, HANG))
        while not stuck.done():
            await acted(good, 0)
        with pytest.raises(EnvServerLost, match="no answer within 4 s"):
            await stuck
        await hanging.close()
        await good.close()

    with world(2, step_s=4.0) as url:
        asyncio.run(main(url))
        wait_until(lambda: health(url)["free"] == 2)


def test_what_a_world_raises_is_told_and_the_session_lives():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        with pytest.raises(RemoteError, match="no such bucket") as told:
            await acted(connection, RAISE)
        assert told.value.code == "EXECUTION_ERROR"
        with pytest.raises(RemoteError, match="reset first"):
            await connection.ask(PATIENCE_S, op="step", action=0)
        await acted(connection, 0)
        await connection.close()

    with world(1) as url:
        asyncio.run(main(url))


def test_a_late_answer_is_never_taken_for_the_next_one():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        pid = int(np.frombuffer((await connection.ask(PATIENCE_S, op="reset"))["obs"])[2])
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EnvServerLate):
            await connection.ask(0.05, op="step", action=MARK)
        os.kill(pid, signal.SIGCONT)
        told = await connection.ask(PATIENCE_S, op="describe")
        assert told["protocol"] == "ddppo/1"
        assert "reward" not in told
        assert connection.num_late == 1
        await connection.close()

    with world(1) as url:
        asyncio.run(main(url))


def test_worlds_killed_at_random_are_counted_and_stepping_goes_on():
    drawn = random.Random(0)
    with world(4) as url:
        served = replace(WORLD, backend="remote", urls=[url])
        envs = make_remote(served, SPEC, EnvNames(range(4), 0), PATIENCE_S, max_restarts=100)
        obs, _ = envs.reset(range(1, 5))
        num_kills = num_invalid = 0
        for k in range(60):
            if k % 3 == 0:
                os.kill(int(obs[drawn.randrange(4), 2]), signal.SIGKILL)
                num_kills += 1
            step = envs.step(np.zeros(4, np.int64))
            obs, num_invalid = step.obs.copy(), num_invalid + int((~step.valid).sum())
            assert (step.truncated == ~step.valid).all()
        assert envs.num_restarts == envs.num_lost_episodes == num_invalid == num_kills == 20
        envs.close()
        wait_until(lambda: health(url)["free"] == 4)


def test_without_reconnects_a_lost_world_is_an_error_that_says_so():
    with world(1) as url, SyncEnvPool([url], 1) as pool:
        pool.reset([1])
        with pytest.raises(EnvServerLost, match="the environment's process was lost"):
            pool.step(np.array([EXIT]))


def own_environ():
    paths = os.pathsep.join(map(str, (CHECKOUT, *filter(None, sys.path))))
    return os.environ | {"PYTHONPATH": paths}


@contextmanager
def server_program():
    """Run the door; yields its process and address."""
    command = [sys.executable, "-m", "ddppo.serve", f"env.id={WORLD.id}", "pool=2", "port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own_environ()) as server:
        url = next(line for line in server.stderr if "serving" in line).split()[-1]
        drained = threading.Thread(target=server.stderr.read)
        drained.start()
        try:
            yield server, url
        finally:
            server.kill()
            drained.join(PATIENCE_S)


def test_a_client_of_a_server_that_stands_still_closes_all_the_same():
    with server_program() as (server, url):
        pool = SyncEnvPool([url], 2)
        server.send_signal(signal.SIGSTOP)
        pool.close()
        server.send_signal(signal.SIGCONT)
        wait_until(lambda: health(url)["free"] == 2)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) in (0, -signal.SIGTERM)


def test_a_killed_client_gives_its_slots_back_and_a_killed_server_leaves_no_process():
    client = (
        "import sys; from ddppo.serve.client.sessions import SyncEnvPool\n"
        "pool = SyncEnvPool([sys.argv[1]], 2); [print(int(a.obs[2]), flush=True) for a in pool.reset([1, 2])]\n"
        "while True: pool.reset([1, 2])"
    )
    with server_program() as (server, url):
        pids = []
        for _ in range(3):
            with subprocess.Popen(
                [sys.executable, "-c", client, url], stdout=subprocess.PIPE, text=True, env=own_environ()
            ) as using:
                pids += [int(using.stdout.readline()) for _ in range(2)]
                assert health(url)["held"] == 2
                using.kill()
            wait_until(lambda: health(url)["free"] == 2)
        with SyncEnvPool([url], 2) as pool:
            pids += [int(answer.obs[2]) for answer in pool.reset([1, 2])]
            server.kill()
            with pytest.raises(EnvServerLost):
                pool.reset([1, 2])
    wait_until(lambda: not any(map(runs, pids)))


def test_who_sends_faster_than_allowed_waits():
    allowance = Allowance(2.0)
    assert [allowance.wait_s(0.0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert allowance.wait_s(10.0) == 0.0


def test_two_servers_of_different_tasks_are_no_pool():
    with world(1) as url, world(1, EnvConfig(id="CartPole-v1")) as other:
        with pytest.raises(ConfigError, match="different tasks"):
            SyncEnvPool([url, other], 2)
        wait_until(lambda: health(url)["free"] == health(other)["free"] == 1)


def test_no_address_is_an_error_before_anything_is_opened():
    with pytest.raises(ConfigError, match=r"env\.urls is empty"):
        AsyncEnvPool([], 1)


def test_a_client_of_openenv_is_answered_in_its_dialect():
    async def main(url):
        async with opened(url) as client:

            async def told(message):
                await client.send(message if isinstance(message, str) else json.dumps(message))
                return json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))

            step = {"type": "step", "data": {"action": MARK}}
            assert (await told(step))["data"]["code"] == "NOT_UNDER_WAY"
            first = await told({"type": "reset", "data": {"seed": 3, "episode_id": "mine"}})
            assert first["type"] == "observation"
            assert (first["data"]["reward"], first["data"]["done"]) == (None, False)
            second = await told(step)
            assert second["data"]["observation"]["obs"][0] == 1.0
            assert (second["data"]["reward"], second["data"]["done"]) == (0.0, False)
            assert (await told({"type": "state"}))["data"] == {"episode_id": "mine", "step_count": 1}
            for wrong, code in (
                ({"type": "steer"}, "UNKNOWN_TYPE"),
                ({"type": "step", "data": [1]}, "VALIDATION_ERROR"),
                ({"type": "step", "data": {"action": "1"}}, "VALIDATION_ERROR"),
                ({"type": "step", "data": {"action": RAISE}}, "EXECUTION_ERROR"),
            ):
                answer = await told(wrong)
                assert (answer["type"], answer["data"]["code"]) == ("error", code)
            assert (await told("{"))["data"]["code"] == "INVALID_JSON"
            await client.send('{"type": "close"}')
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(client.recv(), PATIENCE_S)
            assert closed.value.rcvd.code == 1000

    with world(1) as url:
        asyncio.run(main(url))
        assert metric(url, "worlds_lost_total") == 0


def test_a_session_that_asks_faster_than_allowed_is_answered_at_the_allowed_rate():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)  # asks once
        await asyncio.gather(*(connection.ask(PATIENCE_S, op="reset", seed=1) for _ in range(4)))
        await connection.close()

    with world(1, messages_per_s=2.0) as url:
        asyncio.run(main(url))  # two at once, three more at two a second
        assert 1 <= metric(url, "slowed_total") <= 3
