"""A served run goes on whatever of it is killed; `python -m tests.serve.served_kills 100` kills at more instants."""

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from tests.serve.served_kills import Kills  # noqa: E402
from tests.support import free_port, wait_until  # noqa: E402


@pytest.mark.slow
def test_worlds_servers_and_trainers_are_killed_and_nothing_but_their_episodes_is_lost(tmp_path):
    kills = Kills(tmp_path, free_port(), seed=0)
    try:
        for what in ("world", "server", "trainer", "world"):
            kills.kill(what)
    finally:
        kills.close()
    assert kills.lost == 1  # of the trainer that was resumed
    wait_until(lambda: not kills.left, "end of the last world")
