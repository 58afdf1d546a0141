"""What a hostile client costs a server: refusals that are counted and logged, and nobody else is the worse for it."""

import asyncio
import base64
import json
import logging
import os
import random
import re
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.errors import ConfigError  # noqa: E402
from ddppo.serve.client.connection import Connection, EnvServerLost  # noqa: E402
from ddppo.serve.limits import Confinement  # noqa: E402
from ddppo.serve.protocol import MSGPACK, encoded  # noqa: E402
from ddppo.serve.server import ServeSettings, check  # noqa: E402
from ddppo.serve.slots.line import HEAD, framed  # noqa: E402
from tests.serve.served_tasks import BABBLE, HANG, MARK  # noqa: E402
from tests.serve.test_serve import acted, get, health, metric, opened, world  # noqa: E402
from tests.serve.test_serve_slots import WORLD  # noqa: E402
from tests.support import PATIENCE_S, wait_until  # noqa: E402

TOKEN = "a secret of 20 chars"
GOOD = [
    {"id": 1, "op": "describe"},
    {"id": 2, "op": "reset", "seed": 7},
    {"id": 3, "op": "step", "action": 1, "goes_on": True},
    {"type": "reset", "data": {"seed": 7}},
    {"type": "step", "data": {"action": 1}},
    {"type": "state"},
    {"type": "step", "data": {"type": "call_tool", "tool_name": "act", "arguments": {"action": 1}}},
    {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "act"}}},
]
ODD = [
    None,
    True,
    -1,
    2**63,
    1e308,
    "",
    "\0",
    "../../etc/passwd",
    "{{7*7}}",
    [],
    {},
    [[]],
    "x" * 300,
    {"id": 1},
]


def mutated(drawn):
    """A message that was right, changed somewhere: in its values, its keys or its bytes; as text or as bytes."""
    message = json.loads(json.dumps(drawn.choice(GOOD)))
    for _ in range(drawn.randrange(3)):
        key = drawn.choice([*message, "id", "op", "type", "data", "more"])
        message[key] = drawn.choice(ODD)
    if drawn.random() < 0.5:
        try:
            content = encoded(MSGPACK, message)
        except (OverflowError, ValueError):
            content = b"\xc1"
    else:
        content = json.dumps(message).encode()
    for _ in range(drawn.choice([0, 0, 1, 5])):
        at = drawn.randrange(len(content) + 1)
        content = content[:at] + drawn.randbytes(drawn.randrange(3)) + content[at + drawn.randrange(3) :]
    if drawn.random() < 0.5:
        return content
    return content.decode(errors="replace")


def fuzzed(num, seed):
    async def main(url):
        drawn = random.Random(seed)
        good = await Connection.opened(url, None, PATIENCE_S)
        answers, reasons = Counter(), set()
        fuzzing = await opened(url)
        for k in range(num):
            await fuzzing.send(mutated(drawn))
            try:
                answer = await asyncio.wait_for(fuzzing.recv(), PATIENCE_S)
                answers[b"error" in (answer.encode() if isinstance(answer, str) else answer)] += 1
            except ConnectionClosed as ended:
                reasons.add(ended.rcvd.reason)
                fuzzing = await opened(url)
            if k % 500 == 0:
                assert (await acted(good, MARK))["reward"] == 0.0
        await fuzzing.close()
        await good.close()
        assert reasons <= {"as the client asked"}  # "close" came out of it
        return answers

    with world(2) as url:
        answers = asyncio.run(main(url))
        assert answers[True] > num / 4
        assert answers[False] > num / 100
        assert metric(url, "worlds_lost_total") == 0
        wait_until(lambda: health(url)["free"] == 2)


def test_messages_mutated_at_random_are_answered_and_lose_no_world():
    fuzzed(1_000, 0)


@pytest.mark.slow
def test_10_000_messages_mutated_at_random_are_answered_and_lose_no_world():
    fuzzed(10_000, 1)


def address(url):
    host, _, port = url.removeprefix("ws://").rpartition(":")
    return host, int(port)


def raw(url, content):
    """Send bytes to the port; return what is answered until the server ends the connection."""
    with socket.create_connection(address(url), timeout=PATIENCE_S) as line:
        line.sendall(content)
        answer = b""
        try:
            while part := line.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def handshaken(url):
    """A connection after its handshake, to speak frames by hand."""
    line = socket.create_connection(address(url), timeout=PATIENCE_S)
    key = base64.b64encode(os.urandom(16)).decode()
    line.sendall(
        f"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += line.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return line


def ended(line):
    try:
        while line.recv(65536):
            pass
    except ConnectionResetError:
        pass
    line.close()


def frame(opcode, content=b"", fin=True):
    return bytes([(0x80 if fin else 0) | opcode, 0x80 | len(content)]) + bytes(4) + content


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_the_server_lives(content):
    with world(1, request_s=3.0) as url:
        answer = raw(url, content)
        assert re.match(rb"HTTP/1.1 4\d\d |$", answer)
        assert health(url)["free"] == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x81\x01x",  # not masked
        frame(0x3),  # a kind that there is not
        bytes([0xF1, 0x80]) + bytes(4),  # bits that nobody agreed on
        frame(0x0, b"x"),  # goes on with what never began
        frame(0x1, b"\xff\xfe"),  # text that is none
        bytes([0x81, 0xFF]) + b"\xff" * 8 + bytes(4),  # 2^64 bytes
        frame(0x9, fin=False),  # a ping in parts
    ],
)
def test_frames_that_break_the_rules_end_their_session_alone(sent):
    async def good(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        assert (await acted(connection, MARK))["reward"] == 0.0
        await connection.close()

    with world(2) as url:
        line = handshaken(url)
        line.sendall(sent)
        asyncio.run(good(url))
        ended(line)
        wait_until(lambda: health(url)["free"] == 2)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(0x9) * 100, "pings"),
        (frame(0x1, b"x", fin=False) + frame(0x0, fin=False) * 3000, "fragments"),
    ],
)
def test_frames_that_keep_the_rules_and_cost_too_much_end_their_connection_and_are_counted(sent, reason):
    with world(1) as url:
        line = handshaken(url)
        line.sendall(sent)
        ended(line)
        assert dropped(url, reason) == 1
        wait_until(lambda: health(url)["free"] == 1)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (framed(b"m", b"\x80") * 3, "sent an answer without a request"),
        (framed(b"?", b""), "sent an answer without a request"),
        (HEAD.pack(b"m", 2**31), "an answer has 2147483648 bytes"),
    ],
)
def test_a_world_that_says_what_it_should_not_ends_its_session_alone(said, why):
    env = EnvConfig(id=WORLD.id, kwargs={"babble": list(said)})

    async def for_ever(connection):
        while True:
            await acted(connection, BABBLE)

    async def main(url):
        babbling, good = [await Connection.opened(url, None, PATIENCE_S) for _ in range(2)]
        with pytest.raises(EnvServerLost, match=why):
            await for_ever(babbling)
        await babbling.close()
        assert (await acted(good, MARK))["reward"] == 0.0
        await good.close()

    with world(2, env) as url:
        asyncio.run(main(url))
        wait_until(lambda: health(url)["free"] == 2)
        assert metric(url, "worlds_lost_total") == 1


def test_who_connects_and_asks_nothing_is_dropped_and_counted():
    half = (
        b"",
        b"GET /health HTTP/1.1\r\nHost: ",
        b"POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
    )
    with world(1, request_s=3.0) as url, ThreadPoolExecutor() as clients:
        assert list(clients.map(lambda content: raw(url, content), half)) == [b""] * 3
        assert dropped(url, "late") == 3


def test_more_connections_than_there_is_room_for_are_dropped_and_counted():
    with world(1, max_connections=4) as url:
        lines = [socket.create_connection(address(url), timeout=PATIENCE_S) for _ in range(4)]
        assert raw(url, b"") == b""
        for line in lines:
            line.close()
        wait_until(lambda: dropped(url, "crowd") == 1)


def dropped(url, reason):
    text = get(url, "/metrics")[1]
    return int(re.search(rf'connections_dropped_total{{reason="{reason}"}} (\d+)', text)[1])


def test_100_clients_on_50_slots_are_50_sessions_and_50_refusals():
    start, told, held, refused = threading.Barrier(100), threading.Barrier(101), [], []
    looked = threading.Event()  # until then no session ends

    def client(url):
        start.wait(PATIENCE_S)
        try:
            with connect(f"{url}/ws", proxy=None, open_timeout=PATIENCE_S) as session:
                session.send('{"id": 1, "op": "reset", "seed": 1}')
                held.append(json.loads(session.recv(PATIENCE_S))["obs"][2])
                told.wait(PATIENCE_S)
                looked.wait(PATIENCE_S)
        except InvalidStatus as e:
            refused.append((e.response.status_code, json.loads(e.response.body)["size"]))
            told.wait(PATIENCE_S)

    with world(50) as url:
        threads = [threading.Thread(target=client, args=(url,)) for _ in range(100)]
        for thread in threads:
            thread.start()
        told.wait(PATIENCE_S)
        assert health(url)["held"] == 50
        looked.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(set(held)) == len(held) == 50
        assert refused == [(503, 50)] * 50
        wait_until(lambda: health(url)["held"] == 0)


def test_a_refusal_is_a_line_of_json_in_the_log(caplog):
    caplog.set_level(logging.WARNING, "ddppo.serve.app")
    with world(1, token=TOKEN) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with (
                pytest.raises(InvalidStatus),
                connect(f"{url}/ws", proxy=None, open_timeout=PATIENCE_S, additional_headers=headers),
            ):
                pass
        get(url, "/reset", {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"})
        get(url, "/schema", {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"})
    told = [json.loads(record.getMessage()) for record in caplog.records]
    assert [(each["event"], each["status"], each["reason"], each["path"]) for each in told] == [
        ("refused", 401, "token", "/ws"), ("refused", 401, "token", "/ws"), ("refused", 403, "origin", "/schema"),
    ]  # fmt: skip
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", each["client"]) for each in told)
    assert TOKEN not in caplog.text


def parsed(text):
    """Prometheus's text format 0.0.4, strictly; the value of every sample by its name and labels."""
    samples, kinds, helped = {}, {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if match := re.fullmatch(r"# HELP ([a-z_]+) (.+)", line):
            assert match[1] not in helped
            helped.add(match[1])
        elif match := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge)", line):
            assert match[1] in helped
            kinds[match[1]] = match[2]
        else:
            match = re.fullmatch(r'([a-z_]+)(\{[a-z_]+="[^"\\\n]*"\})? ([0-9.e+-]+)', line)
            assert match, line
            assert kinds[match[1]] == "gauge" or match[1].endswith("_total")
            assert (match[1], match[2]) not in samples
            samples[match[1], match[2]] = float(match[3])
    return samples


def test_metrics_are_of_prometheus_s_format_and_count():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        await acted(connection, MARK)
        samples = parsed(get(url, "/metrics")[1])
        await connection.close()
        return samples

    with world(2) as url:
        before = parsed(get(url, "/metrics")[1])
        samples = asyncio.run(main(url))
        wait_until(lambda: parsed(get(url, "/metrics")[1])["ddppo_sessions_ended_total", None] == 1)
    assert (before["ddppo_slots", None], before["ddppo_messages_total", None]) == (2, 0)
    assert samples["ddppo_slots_held", None] == 1
    assert samples["ddppo_messages_total", None] == 3  # describe, reset, step
    assert samples["ddppo_answer_seconds_total", None] > 0.0


def test_metrics_are_what_prometheus_s_own_parser_reads():
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    with world(1) as url:
        families = {
            each.name: each.type for each in parser.text_string_to_metric_families(get(url, "/metrics")[1])
        }
    assert families["ddppo_slots"] == "gauge"
    assert families["ddppo_messages"] == "counter"


def test_a_session_ends_with_its_client_also_while_its_world_works():
    async def main(url):
        connection = await Connection.opened(url, None, PATIENCE_S)
        asked = asyncio.ensure_future(acted(connection, HANG))
        await asyncio.to_thread(wait_until, lambda: metric(url, "messages_total") == 2)
        connection.abort()
        await asyncio.gather(asked, return_exceptions=True)

    with world(1) as url:
        asyncio.run(main(url))
        wait_until(lambda: health(url)["held"] == 0)


def test_users_for_worlds_take_a_server_that_is_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"first_uid=20000 .* this one is user 1000: leave it out"):
        check(ServeSettings(WORLD, confinement=Confinement(first_uid=20000)))


def test_a_server_whose_slots_are_not_kept_is_unhealthy(monkeypatch):
    with world(1) as url:
        assert get(url, "/health")[0] == 200
        monkeypatch.setattr("ddppo.serve.slots.pool._STUCK_S", 0.0)
        status, told = get(url, "/health")
        assert (status, json.loads(told)["status"]) == (503, "unhealthy")
