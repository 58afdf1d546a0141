"""Served tasks of all kinds: what they return wrongly is said as elsewhere, and no checkpoint can hold their state."""

import json
import re

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.envs.probing.dry_run import dry_run  # noqa: E402
from ddppo.envs.probing.probe import probe  # noqa: E402
from ddppo.envs.vec_env import ActionSpec, EnvSpec  # noqa: E402
from ddppo.serve.protocol import JSON, plain_spec, spec_of  # noqa: E402
from ddppo.serve.slots.world import ServedWorld  # noqa: E402
from ddppo.spaces import ArraySpec  # noqa: E402
from tests.unit.test_task_returns import returning  # noqa: E402


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("terminated", "list", r"\[False\] of type list as terminated in step 1, it must be True or False"),
        ("reward", "text number", "'1.5' of type str as the reward in step 1, it must be one number"),
    ],
)
def test_a_served_task_answers_with_the_same_sentence(field, value, said):
    env = returning(field, value, at=1)
    world = ServedWorld(env, plain_spec(EnvSpec(ArraySpec((2,)), ActionSpec("discrete", (2,)))))
    assert world.answer(JSON, b'{"id": 1, "op": "reset", "seed": 0}')[0] == JSON
    kind, content = world.answer(JSON, b'{"id": 2, "op": "step", "action": 0}')
    assert kind != JSON
    assert re.search(f"the environment returned {said}", json.loads(content)["error"]["message"])


def test_what_a_server_tells_of_its_task_is_compared_too_and_taken_for_nothing_where_it_is_odd():
    spec = probe(EnvConfig(id="tests.unit.policy_tasks:policies/ChosenEnv-v0"))
    told = json.loads(json.dumps(plain_spec(spec), allow_nan=False))
    assert spec_of(told).spaces == spec.spaces
    for odd in (None, 7, "spaces", [], {}, {"observations": 3}, {"observations": {}, "actions": {}}):
        assert spec_of(told | {"spaces": odd}).spaces is None


def test_that_a_session_hands_over_no_state_is_said():
    assert "env.backend=remote" in dry_run(EnvConfig(id="CartPole-v1", backend="remote")).why_inexact
