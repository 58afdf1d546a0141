"""docs/sandboxes.md and docs/compose.yaml: what they say to type is taken by the doors.

Compose itself is not here: its file is held against what of its specification it uses.
"""

import os
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.options import parse, parted  # noqa: E402
from ddppo.serve.__main__ import ServeOptions  # noqa: E402
from ddppo.serve.client.sessions import SyncEnvPool  # noqa: E402
from tests.support import CHECKOUT, door  # noqa: E402

PAGE = (CHECKOUT / "docs/sandboxes.md").read_text()
COMPOSE = yaml.safe_load((CHECKOUT / "docs/compose.yaml").read_text())
OF_A_SERVICE = {  # of the Compose specification, what is used here, and of what type
    "build": dict, "command": str, "secrets": list, "networks": list, "cap_drop": list, "cap_add": list,
    "security_opt": list, "read_only": bool, "tmpfs": list, "pids_limit": int, "mem_limit": str, "cpus": int,
    "init": bool, "healthcheck": dict, "volumes": list, "depends_on": dict,
}  # fmt: skip


def test_the_file_has_the_form_that_compose_knows():
    assert set(COMPOSE) == {"name", "services", "networks", "secrets"}
    for service in COMPOSE["services"].values():
        assert all(type(value) is OF_A_SERVICE[key] for key, value in service.items())
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        assert set(service["build"]) == {"context", "dockerfile_inline"}
        for name, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert COMPOSE["services"][name]["healthcheck"]["test"][0] == "CMD"


def test_the_image_installs_an_extra_that_there_is_from_files_that_there_are():
    folder = CHECKOUT / "docs" / COMPOSE["services"]["worlds"]["build"]["context"]
    recipe = COMPOSE["services"]["worlds"]["build"]["dockerfile_inline"]
    assert "-c requirements.lock '.[serve]'" in recipe
    assert (folder / "requirements.lock").exists()
    assert "\nserve = [" in (folder / "pyproject.toml").read_text()


def test_the_server_s_command_is_one_that_its_door_takes():
    program, *arguments = shlex.split(COMPOSE["services"]["worlds"]["command"])[2:]
    assert program == "ddppo.serve"
    own, overrides = parted(ServeOptions, arguments)
    options = parse(ServeOptions, own, usage="")
    assert overrides == ["env=cartpole"]
    assert options.host == "0.0.0.0"
    assert options.token_file == "/run/secrets/" + COMPOSE["services"]["worlds"]["secrets"][0]
    assert options.pool * (options.max_processes + 1) < COMPOSE["services"]["worlds"]["pids_limit"]


def test_the_trainer_s_command_is_one_that_its_door_takes(tmp_path):
    program, *arguments = shlex.split(COMPOSE["services"]["trainer"]["command"])[2:]
    assert program == "ddppo.train"
    told = door(*arguments, "--cfg", "job", run_dir=tmp_path)
    assert told.code == 0
    assert yaml.safe_load(told.stdout)["env"]["urls"] == ["ws://worlds:8000"]


@pytest.mark.parametrize("name", ["worlds", "trainer"])
def test_no_container_has_more_rights_than_it_needs(name):
    service = COMPOSE["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert COMPOSE["networks"] == {"inside": {"internal": True}}


def test_the_page_s_own_environment_is_served_in_ten_lines(tmp_path):
    code = re.search(r"```python\n(.+?)```", PAGE, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) <= 10
    (tmp_path / "my_tasks.py").write_text(code)
    command = re.search(r"^python (-m ddppo\.serve .+) pool=8 port=8000$", PAGE, re.MULTILINE)[1]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)])}
    with subprocess.Popen(
        [sys.executable, *shlex.split(command), "pool=1", "port=0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as server:
        try:
            url = next(line for line in server.stderr if "serving" in line).split()[-1]
            with SyncEnvPool([url], 1) as pool:
                pool.reset([1])
                (answer,) = pool.step(np.array([1]))
            assert (answer.reward, answer.terminated) == (1.0, True)
        finally:
            server.send_signal(signal.SIGTERM)


def test_the_limits_that_the_page_names_are_the_server_s():
    defaults = ServeOptions()
    named = re.findall(r"`([a-z_]+)=(\d+)`", PAGE)
    assert {"pool", "messages_per_s", "idle_s", "step_s", "max_files", "max_file_mb"} <= {
        name for name, _ in named
    }
    for name, value in named:
        assert name == "first_uid" or getattr(defaults, name) == float(value), name
