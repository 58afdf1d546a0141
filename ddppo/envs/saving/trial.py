"""Whether a task's environments can be saved exactly: tried, before any process starts."""

import copy
import math
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.encoding.codec import sample_action
from ddppo.envs.saving.packing import packed, unpacked
from ddppo.errors import EnvError, EnvOutputError, EnvRaised
from ddppo.processes.signals import die_with_parent, stop_signals_kill

if TYPE_CHECKING:
    from ddppo.envs.scalar.row_env import RowEnv
    from ddppo.spaces import EnvSpec

_STEPS = 20  # of each part of the trial; of slow ones fewer, two at least
_SECONDS = 0.5  # of stepping in all, unless two steps of each part take longer
_PARTS = 7  # two episodes, the second of which may be played again, and two more of both environments
_HANGS_S = 30.0  # after which it is not waited for
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
    and be rewarded the same, to the bit, in that episode and the next. steps: of each part; fewer where all would take
    longer than `seconds`, but two at least, and the resets. Batched tasks and Atari's batch are known to, and tasks of
    text go on from nothing. Raises ConfigError as probe() does.
    """
    from ddppo.envs.batched import why_not_batched
    from ddppo.envs.probing import probe

    spec = probe(env)
    if spec.is_text or env.is_ale:
        return None
    if env.backend == "remote":
        return f"{env.id} is stepped by servers (env.backend=remote), and a session hands over no state"
    if env.is_envpool:
        return f"{env.id} is stepped by EnvPool, which hands over no state"
    if env.backend == "native":
        return f"{env.id} is stepped by its own batch (env.backend=native), which hands over no state"
    if env.backend in ("auto", "batched") and why_not_batched(env) is None:
        return None
    return _in_a_child(lambda: _tried(env, spec, steps, seconds))


def _tried(env: EnvConfig, spec: "EnvSpec", steps: int, seconds: float) -> str | None:
    from ddppo.envs.scalar.row_env import make_row_env

    made: list[RowEnv] = []
    try:
        made.extend(make_row_env(env, spec, name) for name in (_ONE, "another environment"))
        return _parted(made[0], made[1], steps, seconds)
    except EnvError as e:
        if isinstance(e, (EnvRaised, EnvOutputError)) and str(e).startswith(_ONE):
            return None  # by itself, whether or not it is saved: the run meets it, and says so
        return " ".join((e.said if isinstance(e, EnvRaised) else str(e)).split())
    finally:
        for each in made:
            each.close()


def _in_a_child(trial: Callable[[], str | None]) -> str | None:
    """Return what `trial` returns in a process forked off this one; None if that ends otherwise, or hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of Python 3.12: threads here are of libraries that it
        pid = os.fork()  # does not call
    if pid == 0:
        code = 1
        with suppress(BaseException):
            die_with_parent()
            stop_signals_kill()
            os.close(reading)
            os.write(writing, ("why " + why if (why := trial()) is not None else "none").encode())
            code = 0
        os._exit(code)
    os.close(writing)
    try:
        answered, _, _ = select.select([reading], [], [], _HANGS_S)
        said = os.read(reading, 65_536).decode() if answered else ""
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return said.removeprefix("why ") if said.startswith("why ") else None


def _parted(one: "RowEnv", other: "RowEnv", steps: int, seconds: float) -> str | None:
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

    def played(num_steps: int) -> float:
        """Step `one` so often, and return what the quickest step took, in seconds."""
        took = math.inf
        for _ in range(num_steps):
            began = time.monotonic()
            (answer,) = step(one)
            took = min(took, time.monotonic() - began)
            if answer.terminated or answer.truncated:
                one.reset()
        return took

    one.reset(seed=1)
    one.reset()  # an episode more than `other` will have had, of which to count them would tell
    step_s = played(2)
    steps = max(2, min(steps, int(seconds / (_PARTS * max(step_s, 1e-9)))))
    played(steps - 2)
    one.reset()
    played(steps)
    other.restore(unpacked(packed(one.state())))
    for k in range(2 * steps):
        first, second = step(one, other)
        if first != second:
            return _what_differs(k + 1, first, second)
        if first.terminated or first.truncated or k == steps:
            rows = [each.reset()[0].tobytes() for each in (one, other)]
            if rows[0] != rows[1]:
                return f"{_TOLD} another observation in the reset after {k + 1} steps"
    return None


def _what_differs(num_steps: int, first: _Answer, second: _Answer) -> str:
    what = next(name for name, x, y in zip(_Answer._fields, first, second, strict=True) if x != y)
    return f"{_TOLD} another {what} {num_steps} step{'s' * (num_steps > 1)} later"
