"""Whether a task's environments can be saved exactly: tried, before any process starts."""

import copy
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.codec import sample_action
from ddppo.envs.saving.packing import packed, unpacked
from ddppo.errors import EnvError, EnvOutputError, EnvRaised

if TYPE_CHECKING:
    from ddppo.envs.scalar import RowEnv

_STEPS = 20  # of each part of the trial; fewer where they are slow
_SECONDS = 3.0  # after which each part has two steps at most
_TOLD = "an environment that went on from another's state, in the midst of its second episode, had"


class _Answer(NamedTuple):
    observation: bytes
    reward: bytes
    terminated: bool
    truncated: bool


_ONE = "an environment"


def reason_why_not(env: EnvConfig, steps: int = _STEPS, seconds: float = _SECONDS) -> str | None:
    """Return why a checkpoint cannot hold exactly what environments are in the midst of; None where it can.

    Of one environment the state is taken in its second episode, and given to another: both must then observe the same
    and be rewarded the same, to the bit, in that episode and the next. Batched tasks and Atari's batch are known to,
    and tasks of text go on from nothing. Raises ConfigError as probe() does.
    """
    from ddppo.envs.batched import why_not_batched
    from ddppo.envs.probe import probe
    from ddppo.envs.scalar import make_row_env

    spec = probe(env)
    if spec.is_text or env.is_ale:
        return None
    if env.backend == "remote":
        return f"{env.id} is stepped by servers (env.backend=remote), and a session hands over no state"
    if env.backend == "native":
        return f"{env.id} is stepped by its own batch (env.backend=native), which hands over no state"
    if env.backend in ("auto", "batched") and why_not_batched(env) is None:
        return None
    made: list[RowEnv] = []
    try:
        made.extend(make_row_env(env, spec, name) for name in (_ONE, "another environment"))
        return _parted(made[0], made[1], steps, time.monotonic() + seconds)
    except EnvError as e:
        if isinstance(e, (EnvRaised, EnvOutputError)) and str(e).startswith(_ONE):
            return None  # by itself, whether or not it is saved: the run meets it, and says so
        return " ".join((e.said if isinstance(e, EnvRaised) else str(e)).split())
    finally:
        for each in made:
            each.close()


def _parted(one: "RowEnv", other: "RowEnv", steps: int, end: float) -> str | None:
    """Return where `other`, which went on from the state of `one`, did not do as it did; None if it always did."""
    space = copy.deepcopy(one.action_space)
    space.seed(0)

    def step(*envs: "RowEnv") -> list[_Answer]:
        mask = one.layout.mask(one.row)
        action = sample_action(space, mask if mask is None or mask.any() else None)
        answers = []
        for each in envs:
            row, reward, terminated, truncated, _ = each.step(copy.copy(action))
            reward_bits = np.float64(reward).tobytes()
            answers.append(_Answer(row.tobytes(), reward_bits, bool(terminated), bool(truncated)))
        return answers

    one.reset(seed=1)
    for _ in range(2):
        one.reset()
        for k in range(steps):
            (answer,) = step(one)
            if answer.terminated or answer.truncated:
                one.reset()
            if k and time.monotonic() > end:
                break
    other.restore(unpacked(packed(one.state())))
    for k in range(2 * steps):
        first, second = step(one, other)
        if first != second:
            return _what_differs(k + 1, first, second)
        if first.terminated or first.truncated or k == steps:
            rows = [each.reset()[0].tobytes() for each in (one, other)]
            if rows[0] != rows[1]:
                return f"{_TOLD} another observation in the reset after {k + 1} steps"
        if k and time.monotonic() > end:
            break
    return None


def _what_differs(num_steps: int, first: _Answer, second: _Answer) -> str:
    what = next(name for name, x, y in zip(_Answer._fields, first, second, strict=True) if x != y)
    return f"{_TOLD} another {what} {num_steps} step{'s' * (num_steps > 1)} later"
