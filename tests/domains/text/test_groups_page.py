"""docs/groups.md and docs/groups.ipynb: their programs run as they stand."""

import ast
import asyncio
import inspect
import json
import re

import pytest

for needed in ("moto", "boto3", "msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extras cloud,serve: pip install '.[cloud,serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.domains.text.groups import AsyncGroupPool  # noqa: E402
from ddppo.serve.__main__ import ServeOptions  # noqa: E402
from tests.serve.test_serve import world  # noqa: E402
from tests.support import CHECKOUT  # noqa: E402

PAGE = (CHECKOUT / "docs/groups.md").read_text()
NOTEBOOK = json.loads((CHECKOUT / "docs/groups.ipynb").read_text())
PROGRAMS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def url():
    with world(8, EnvConfig(id="ddppo/Cloud-v0")) as found:
        yield found


def test_the_programs_of_the_page_have_ten_lines_and_play_groups(url, capsys):
    assert len(PROGRAMS) == 2
    for program in PROGRAMS:
        assert len([line for line in program.splitlines() if line.strip()]) <= 10
        exec(program.replace("ws://127.0.0.1:8000", url), {})
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[-1] == f"s3_make_bucket {[1.0] * 8}"


def test_the_settings_that_the_page_names_exist():
    table = PAGE[PAGE.index("| `num_envs=16`") : PAGE.index("| event |")]
    named = set(re.findall(r"`(\w+)=\d*`", table))
    known = set(inspect.signature(AsyncGroupPool.__init__).parameters)
    from ddppo.serve.client.sessions import Patience

    assert named >= {"num_envs", "curriculum", "seed", "max_reconnects", "answer_s"}
    assert named <= known | set(Patience.__slots__) | {"token"}
    assert "playground=true" in PAGE
    assert ServeOptions().playground is False


def test_the_cells_of_the_notebook_run_in_one_event_loop(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

    async def main():  # as a notebook does: every cell in the loop that runs already, with `await` at the top
        names = {}
        for cell in cells:
            done = eval(compile(cell, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(done):
                await done
        return names

    names = asyncio.run(main())
    assert [group.number for group in names["groups"]] == [5, 6]
    assert len(names["advantages"]) == 4
    said = capsys.readouterr().out
    assert "round 6, tier" in said
    assert "member" in said


def test_the_notebook_has_no_outputs():
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
