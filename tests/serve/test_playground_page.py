"""The page at /play of a server: who may open a session from a browser, and who may not."""

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from websockets.asyncio.client import connect  # noqa: E402
from websockets.exceptions import InvalidStatus  # noqa: E402

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.errors import ConfigError  # noqa: E402
from ddppo.serve.playground import SUBPROTOCOL  # noqa: E402
from ddppo.serve.server import ServeSettings, check, listening, served  # noqa: E402
from tests.serve.test_serve import get, health, world  # noqa: E402
from tests.serve.test_serve_slots import WORLD  # noqa: E402
from tests.support import PATIENCE_S, wait_until  # noqa: E402

WORDS = EnvConfig(id="tests.domains.text.text_tasks:tests/Repeat-v0")
TOKEN = "a token, of 20 chars"


@contextmanager
def playground(token=None):
    with served(ServeSettings(WORDS, pool=1, port=0, token=token, playground=True)) as url:
        yield url, int(url.rpartition(":")[2])


def handshake(port, origin, host="127.0.0.1", subprotocols=None, headers=()):
    """Return the status of a handshake as a browser makes it for a page of `origin` that asks for `host`."""

    async def status():
        try:
            async with connect(
                f"ws://{host}:{port}/ws", host="127.0.0.1", port=port, origin=origin, proxy=None,
                open_timeout=PATIENCE_S, subprotocols=subprotocols, additional_headers=dict(headers),
            ) as socket:  # fmt: skip
                await socket.send(json.dumps({"id": 1, "op": "describe"}))
                assert "tasks" in json.loads(await socket.recv())["spec"]
                return 101, socket.subprotocol
        except InvalidStatus as e:
            return e.response.status_code, None

    return asyncio.run(status())


def words(token):
    return [SUBPROTOCOL, "token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")]


@pytest.fixture(scope="module")
def open_server():
    with playground() as found:
        yield found


def test_the_page_plays_in_a_session_of_its_own_server_and_no_other_page_can_embed_it(open_server):
    _, port = open_server
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/play")
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        policy, text = answer.headers["content-security-policy"], answer.read().decode()
    assert "frame-ancestors 'none'" in policy
    assert re.search(
        r"default-src 'none'; script-src 'sha256-[\w+/=]+'; style-src 'sha256-[\w+/=]+';", policy
    )
    assert WORDS.id in text
    assert not re.search(r"https?://|\{\{", text)  # it fetches nothing from elsewhere, and has no blanks left
    for name in ("127.0.0.1", "localhost"):
        assert handshake(port, f"http://{name}:{port}", name, [SUBPROTOCOL]) == (101, SUBPROTOCOL)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "127.0.0.1"),
        ("http://127.0.0.1:1", "127.0.0.1"),  # another server of this machine
        ("http://localhost:{port}", "127.0.0.1"),
        ("http://evil.example:{port}", "evil.example"),  # a name that was rebound to this machine
        ("http://127.0.0.1.evil.example:{port}", "127.0.0.1.evil.example"),
        ("http://localhost.evil.example:{port}", "localhost.evil.example"),
        ("file://127.0.0.1:{port}", "127.0.0.1"),
        ("null", "127.0.0.1"),
        ("", "127.0.0.1"),
    ],
)
def test_a_page_of_another_site_is_refused(origin, host, open_server):
    _, port = open_server
    assert handshake(port, None)[0] == 101  # programs send no Origin
    assert handshake(port, origin.format(port=port), host, [SUBPROTOCOL])[0] == 403


def test_the_own_page_may_open_sessions_and_nothing_else(open_server):
    url, port = open_server
    own = {"Origin": f"http://127.0.0.1:{port}"}
    assert [get(url, path, own)[0] for path in ("/metrics", "/schema", "/state")] == [403] * 3
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/reset", b"{}", own, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=PATIENCE_S)
    assert refused.value.code == 403
    refused.value.close()


def test_the_page_is_not_shown_under_a_name(open_server):
    url, _ = open_server
    status, said = get(url, "/play", {"Host": "evil.example"})
    assert status == 403
    assert "by an IP address or localhost" in said
    for host in ("localhost:evil.example", "127.0.0.1:80@evil.example", "1.2.3.4:5:6"):
        assert get(url, "/play", {"Host": host})[0] == 403
    for host in ("localhost:8000", "[::1]:8000", "10.0.0.1"):
        assert get(url, "/play", {"Host": host})[0] == 200


def test_without_playground_there_is_no_page_and_its_origin_is_refused():
    with world(1, WORDS) as url:
        port = int(url.rpartition(":")[2])
        assert get(url, "/play")[0] == 404
        assert handshake(port, f"http://127.0.0.1:{port}", subprotocols=[SUBPROTOCOL])[0] == 403


def test_with_a_token_the_page_has_to_know_it_and_other_pages_are_refused_though_they_know_it():
    with playground(TOKEN) as (url, port):
        own = f"http://127.0.0.1:{port}"
        page = get(url, "/play")[1]
        assert 'data-token="true"' in page
        assert WORDS.id not in page
        assert handshake(port, own, subprotocols=[SUBPROTOCOL])[0] == 401
        assert handshake(port, own, subprotocols=words("wrong"))[0] == 401
        assert handshake(port, own, subprotocols=[SUBPROTOCOL, "token.%"])[0] == 401
        assert handshake(port, own, subprotocols=words(TOKEN)) == (101, SUBPROTOCOL)
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert handshake(port, None, headers=right)[0] == 101
        assert handshake(port, None, subprotocols=words(TOKEN))[0] == 401  # a program sends the header
        assert handshake(port, "http://evil.example", headers=right)[0] == 403
        assert handshake(port, f"http://evil.example:{port}", "evil.example", words(TOKEN))[0] == 401


def test_a_playground_that_others_can_reach_needs_a_token_and_one_of_numbers_is_refused():
    with pytest.raises(ConfigError, match="token_file"):
        check(ServeSettings(WORDS, host="0.0.0.0", playground=True))
    with (
        pytest.raises(ConfigError, match=r"playground=true: .* is no task of text"),
        listening(ServeSettings(WORLD, port=0, playground=True)),
    ):
        pass


# -- In a browser.

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium: apt install chromium-headless-shell"
)


@asynccontextmanager
async def browsing(address, folder):
    """A page in a browser without a window, by the DevTools protocol; yields a function that evaluates JavaScript."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    process = subprocess.Popen(
        [BROWSER, *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        line = next(line for line in process.stderr if "DevTools listening on" in line)
        async with connect(line.split()[-1], proxy=None, max_size=None) as socket:
            ids = itertools.count(1)

            async def call(method, session=None, **params):
                id = next(ids)
                of = {} if session is None else {"sessionId": session}
                await socket.send(json.dumps({"id": id, "method": method, "params": params} | of))
                while (answer := json.loads(await socket.recv())).get("id") != id:
                    pass
                return answer["result"]

            target = await call("Target.createTarget", url=address)
            attached = await call("Target.attachToTarget", targetId=target["targetId"], flatten=True)

            async def evaluate(script):
                found = await call(
                    "Runtime.evaluate", attached["sessionId"], expression=script, returnByValue=True
                )
                return found["result"].get("value")

            yield evaluate
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Debian's command is a script, which starts the browser
        process.wait()
        process.stderr.close()


async def until(evaluate, script):
    """Wait until the script's value is true, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := await evaluate(script)):
            await asyncio.sleep(0.02)
        return value


TYPE = """(() => {{ const line = document.getElementById("line"); if (line.disabled) return false;
  line.value = {text}; document.getElementById("type").requestSubmit(); return true; }})()"""
LOG = 'document.getElementById("log").innerText'


@in_a_browser
def test_a_person_plays_an_episode_on_the_page(tmp_path):
    evil = "<img src=x onerror=document.title='evil'>"

    async def main(port):
        async with browsing(f"http://127.0.0.1:{port}/play", tmp_path) as evaluate:
            await until(evaluate, 'document.getElementById("task").options.length === 7')
            await evaluate(
                'document.getElementById("task").value = "north"; document.getElementById("seed").value = 2'
            )
            await evaluate('document.getElementById("begin").requestSubmit()')
            await until(evaluate, TYPE.format(text=json.dumps(evil[:16])))
            await until(evaluate, TYPE.format(text='"north"'))
            log = await until(evaluate, f'{LOG}.includes("over") && {LOG}')
            state = await evaluate('document.getElementById("state").innerText')
            await evaluate('document.getElementById("reveal").click()')
            await until(evaluate, 'document.getElementById("status").textContent.includes("no solution")')
            return log, state, await evaluate('document.querySelectorAll("#log img").length')

    with playground() as (_, port):
        log, state, num_images = asyncio.run(main(port))
    assert log.split("\n")[0] == "say north"
    assert f"1 > {evil[:16]}" in log
    assert "reward +0.5" in log
    assert log.endswith("The episode is over: not achieved. Return 0.5 in 2 turns.")
    assert re.search(r"return\s+0\.5", state)
    assert num_images == 0


@in_a_browser
def test_the_page_asks_for_the_token_and_says_why_it_is_refused(tmp_path):
    async def main(url, port):
        status = 'document.getElementById("status").textContent'
        token = (
            'document.getElementById("token").value = {}; document.getElementById("begin").requestSubmit()'
        )
        async with browsing(f"http://127.0.0.1:{port}/play", tmp_path) as evaluate:
            await until(evaluate, 'document.getElementById("secret")?.hidden === false')
            await evaluate(token.format('"wrong"'))
            assert await until(evaluate, f'{status}.includes("is the token right?")')
            right = {"Authorization": f"Bearer {TOKEN}"}
            async with connect(f"{url}/ws", proxy=None, additional_headers=right):  # the only world is held
                await evaluate(token.format(json.dumps(TOKEN)))
                assert await until(evaluate, f'{status}.includes("all worlds of the server are held (1)")')
            await asyncio.to_thread(wait_until, lambda: health(url)["free"] == 1)
            await evaluate(token.format(json.dumps(TOKEN)))
            await until(evaluate, f'{status}.includes("seed")')

    with playground(TOKEN) as (url, port):
        asyncio.run(main(url, port))
