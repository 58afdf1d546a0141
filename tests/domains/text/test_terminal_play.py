"""A person at `python -m ddppo.play`: what is shown, what can be typed, and how it ends."""

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.text.terminal_play import HELP, OVER, Player, PlayOptions, play
from ddppo.domains.text.turns import make_turns
from ddppo.errors import ConfigError
from tests.support import CHECKOUT, PATIENCE_S

OBEY = EnvConfig(id="tests.domains.text.group_tasks:tests/Obey-v0", backend="sync")


def shown(*lines, env=OBEY, **options):
    """Type the lines, and return what was printed, in pieces, with the prompts that were answered."""
    left, found = list(lines), []

    def read(prompt):
        if not left:
            raise EOFError
        found.append(f"{prompt}{left[0]}")
        return left.pop(0)

    with closing(make_turns(env, range(1), 0, PATIENCE_S, 100)) as turns:
        Player(turns, PlayOptions(**options), read, found.append).run()
    return found


def test_an_episode_shows_prompt_answers_rewards_and_what_changes_in_the_state():
    found = shown("0.5 fail", "0.5 end", "more", task="fly", seed=3)
    assert "fly (beginner), seed 3; :help" in found[0]
    assert found[1].startswith("fly ")
    assert found[2:] == [
        "1 > 0.5 fail", "1: 0.5 fail", "[reward +0.5: given +0.5; the command failed; score 0.5]",
        "2 > 0.5 end", "2: 0.5 end", "[reward +0.5: given +0.5; score 1; is_success true]",
        f"\nReturn 1 in 2 turns, achieved. {OVER}", "> more", OVER, "",
    ]  # fmt: skip


def test_commands_begin_with_a_colon_and_actions_with_two():
    found = shown(":help", ":state", ":tasks", ":nxet", "::cut", ":again", ":quit", "0", task="walk", seed=3)
    said = dict(pairwise(found))
    assert said["1 > :help"] == HELP
    assert re.search(r"score +0\nis_success +false\nturns +0\nreturn +0$", said["1 > :state"])
    assert said["1 > :tasks"] == "warm-up   walk, run\nbeginner  fly"
    assert said["1 > :nxet"].startswith("there is no :nxet (did you mean :next?)")
    assert said["1 > ::cut"] == "1: :cut"
    assert said["2 > :again"].strip().startswith("walk (warm-up), seed 3")
    assert found[-1] == "1 > :quit"


def test_the_next_episode_may_be_of_another_task_and_its_name_is_checked():
    found = shown(":next run", ":next rnu", ":next", seed=3)
    headings = [line.strip().split(";")[0] for line in found if "seed" in line]
    assert headings[1] == "run (warm-up), seed 4"
    assert headings[2].endswith("seed 5")
    assert any("no such task (did you mean run?)" in line for line in found)


def test_an_environment_that_raises_ends_the_episode_and_not_the_command(capsys):
    found = shown("raise", ":again", "end", task="walk", seed=3)
    assert f"The environment failed. {OVER}" in found
    assert "it broke" in capsys.readouterr().err
    assert found[-2] == f"\nReturn 0 in 1 turn, not achieved. {OVER}"


def test_control_characters_are_shown_as_escapes():
    assert r"1: \x1b[2J" in shown("\x1b[2J", seed=3)


def test_a_solution_is_shown_when_it_is_asked_for_and_ends_the_episode():
    found = shown("0.5", ":solution", "0.5", seed=3)
    at = found.index("2 > :solution")
    assert found[at + 1 :] == ["the environment tells no solution", OVER, "> 0.5", OVER, ""]


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        (EnvConfig(id="CartPole-v1"), {}, "env.id=CartPole-v1 is no task of text"),
        (OBEY, {"task": "wlak"}, r"task=wlak: .* no such task \(did you mean walk\?\)"),
    ],
)
def test_what_cannot_be_played_is_refused(env, options, said):
    with pytest.raises(ConfigError, match=said):
        play(PlayOptions(**options), env, PATIENCE_S)


# -- The command, with the cloud, and behind an address.


@contextmanager
def typing(*arguments):
    """The command on a terminal of its own; yields its process, the terminal, and a function that waits for a text."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddppo.play", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=CHECKOUT,
        start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    seen = bytearray()

    def wait_for(text):
        while text not in seen:
            seen.extend(os.read(ours, 4096))
        found = bytes(seen)
        seen.clear()
        return found.decode()

    try:
        yield process, ours, wait_for
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # a shell ignores it in what runs in the background, such as tests


def test_the_cloud_is_played_on_a_terminal_and_ctrl_d_leaves():
    for needed in ("moto", "boto3", "msgpack", "websockets", "uvicorn", "fastapi"):
        pytest.importorskip(needed, reason="needs the extras cloud,serve: pip install '.[cloud,serve]'")
    with typing("env=cloud", "task=s3_make_bucket", "seed=3") as (process, terminal, wait_for):
        assert "s3_make_bucket (beginner), seed 3" in wait_for(b"1 > ")
        os.write(terminal, b"hint\r")
        assert "hint 1: " in wait_for(b"2 > ")
        os.write(terminal, b":solution\r")
        assert "aws s3 mb s3://holiday-photos" in wait_for(OVER.encode() + b"\r\n> ")
        os.write(terminal, b"\x04")
        assert process.wait(PATIENCE_S) == 0


def test_ctrl_c_leaves_while_the_environment_works_and_nothing_is_left():
    pytest.importorskip("fastapi", reason="needs the extra serve: pip install '.[serve]'")
    from tests.serve.test_serve import health, world
    from tests.support import wait_until

    with world(1, EnvConfig(id=OBEY.id)) as url:
        with typing("env=remote", f"env.urls=[{url}]", "task=walk") as (process, terminal, wait_for):
            wait_for(b"1 > ")
            assert health(url)["held"] == 1
            os.write(terminal, b"hang\r")
            wait_for(b"hang\r\n")
            process.send_signal(signal.SIGINT)
            assert "left" in wait_for(b"left")
            assert process.wait(PATIENCE_S) == 130
        wait_until(lambda: health(url)["held"] == 0)
