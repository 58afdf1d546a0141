"""A task tried before training, in a process of its own: what it is, what it does wrong, and how it can be saved.

The process makes the task, resets and steps it once (`probe`), steps it at random for half a second, compares two
environments that are given the same seed and actions, and takes the state of one to another. Nothing that the task
does there reaches the process that asked, not even its end.
"""

import copy
import dataclasses
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.classic_cpp import why_not_batched
from ddppo.envs.backends.gym_vector import make_gym_vector
from ddppo.envs.encoding.gym_spaces import sample_action
from ddppo.envs.guard import leave_alone
from ddppo.envs.make import CheckedEnvs
from ddppo.envs.meaning import differences
from ddppo.envs.probing.probe import find_task, probe, spec_elsewhere, why_unsaved
from ddppo.envs.probing.suitability import kept_over_resets, statistics
from ddppo.envs.saving import packed, unpacked
from ddppo.envs.single import RowEnv, make_row_env, played
from ddppo.envs.vec_env import EnvNames, EnvSpec, check_finite, check_masks
from ddppo.errors import ConfigError, EnvError, EnvOutputError, EnvRaised, in_one_line, place_of
from ddppo.processes.fork_server import FORKS
from ddppo.processes.forking import how_ended
from ddppo.processes.signals import die_with_parent, stop_signals_kill
from ddppo.terminal import warn

_STEPS = 20  # of each part of the trial; of slow tasks fewer, two at least
_SECONDS = 0.5  # of stepping in all, unless two steps of each part take longer
_PARTS = 9  # two episodes, the second of which may be played again, and two more of both environments, twice
_TEXT_STEPS = 5
_START_S = 600.0  # to be made, reset and stepped once, which every run needs
_ENOUGH_S = 30.0  # for the rest; also after which a task that is not made yet is told of
_TOLD = "an environment that went on from another's state, in the midst of its second episode, had"
_UNTRIED = "its further steps, and whether checkpoints hold exactly what environments are in the midst of, are untried"
_NAMES = EnvNames(range(2), rank=None)

Tell = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What is known of a task before training.

    warnings: sentences for the user, each whole. why_inexact: why a checkpoint cannot hold exactly what its
    environments are in the midst of; None where it can, or where nobody knows, which `warnings` says then.
    """

    spec: EnvSpec
    warnings: tuple[str, ...] = ()
    why_inexact: str | None = None


_verdicts: dict[str, str | None] = {}  # of the tasks that this process has tried, by their settings


def dry_run(env: EnvConfig) -> DryRun:
    """Try a task that is not known to work, and return what is known of it; see the module.

    Batched tasks, Atari's and EnvPool's, and those of servers, are only asked for their shapes, in this process.
    Raises ConfigError as probe() does, and where the task breaks its contract or ends its process in the trial.
    """
    found = _tried(env)
    _verdicts[repr(env)] = found.why_inexact
    return found


def why_inexact(env: EnvConfig) -> str | None:
    """Return `dry_run(env).why_inexact`, remembered from this process's trial; None where the trial fails."""
    if repr(env) not in _verdicts:
        with suppress(ConfigError):  # training meets the same, and says so
            dry_run(env)
    return _verdicts.get(repr(env))


def _tried(env: EnvConfig) -> DryRun:
    if (spec := spec_elsewhere(env)) is not None:
        return DryRun(spec, why_inexact=why_unsaved(env))
    find_task(env)
    if env.is_ale:
        return DryRun(probe(env))
    if env.is_envpool:
        return DryRun(probe(env), why_inexact=f"{env.id} is stepped by EnvPool, which hands over no state")
    if env.backend in ("auto", "batched") and why_not_batched(env) is None:
        return DryRun(probe(env))
    try:
        return _in_a_process(env)
    except _Flawed as e:  # it may have met what passes: a port that was taken, a server that was away
        warn(f"{e}: it is tried once more")
    return _in_a_process(env)


# -- the process that asks ------------------------------------------------------------------------------------------


class _Flawed(ConfigError):
    """The task raised, or ended its process, in the trial."""


class _Unknown(Exception):
    """The process of the trial does not know the task, which was registered in the one that asks."""


def _in_a_process(env: EnvConfig) -> DryRun:
    reading, writing = multiprocessing.Pipe(duplex=False)
    with reading:
        with writing:
            end = _forked(env, reading, writing) if FORKS else _started(env, writing)
        try:
            return _heard(env, reading, end)
        except _Unknown:
            untold = f"env.id={env.id} is registered in this process only: its steps are untried"
            return DryRun(probe(env), (untold,))
        finally:
            end()


def _forked(env: EnvConfig, reading: Connection, writing: Connection) -> Callable[[], int]:
    """Fork the trial off this process; return what ends it, if it has not ended, and tells its exit code."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: those here are of libraries, which the trial is told to do without.
        warnings.simplefilter("ignore", DeprecationWarning)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            reading.close()
            _be_the_trial(env, writing)
            code = 0
        os._exit(code)
    codes: list[int] = []

    def end() -> int:
        if not codes:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
                os.killpg(pid, 9)  # what the task started
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return codes[0]

    return end


def _started(env: EnvConfig, writing: Connection) -> Callable[[], int]:
    """Start the trial as a program, where a system's libraries do not fork; return as `_forked`."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(writing.fileno())],
        stdin=subprocess.PIPE, pass_fds=[writing.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert process.stdin is not None
    with process.stdin as its_input:
        its_input.write(pickle.dumps(env))

    def end() -> int:
        process.kill()
        return process.wait()

    return end


def _heard(env: EnvConfig, reading: Connection, end: Callable[[], int]) -> DryRun:
    """Return what a trial tells until it ends, is lost, or has taken too long."""
    spec: EnvSpec | None = None
    said: list[str] = []
    at, began = "when it was made", time.monotonic()
    is_late = False
    while True:
        limit_s = _ENOUGH_S if spec is not None or not is_late else _START_S
        if not reading.poll(max(0.0, began + limit_s - time.monotonic())):
            if spec is not None:
                untried = f"env.id={env.id} was tried for {_ENOUGH_S:g} s, which ended {at}: {_UNTRIED}"
                return DryRun(spec, (*said, untried))
            if is_late:
                raise ConfigError(f"env.id={env.id} does not answer, {at}, within {_START_S:g} s: it hangs")
            warn(f"env.id={env.id} has not answered for {_ENOUGH_S:g} s, {at}; it is given {_START_S:g} s")
            is_late = True
            continue
        try:
            kind, value = reading.recv()
        except EOFError:
            how = how_ended(end())
            raise _Flawed(f"env.id={env.id} cannot be trained on: its process {how}, {at}") from None
        match kind:
            case "at":
                at = value
            case "spec":
                spec, began = value, time.monotonic()
            case "warning":
                said.append(value)
            case "wrong":
                raise ConfigError(value)
            case "flawed":
                raise _Flawed(value)
            case "unknown":
                raise _Unknown
            case "fault":
                if spec is None:
                    raise ConfigError(f"env.id={env.id} cannot be made and started: {value}")
                return DryRun(
                    spec, (*said, f"the trial of env.id={env.id} broke off {at}, by {value}: {_UNTRIED}")
                )
            case _:
                assert kind == "done", kind
                assert spec is not None
                return DryRun(spec, tuple(said), value)


# -- the process of the trial ---------------------------------------------------------------------------------------


def _be_the_trial(env: EnvConfig, writing: Connection) -> None:
    """Try the task and tell what is found, as pairs of a kind and a value that `_heard` knows."""
    os.setsid()
    die_with_parent()
    stop_signals_kill()
    leave_alone()
    # What a task prints here, it prints again in the run.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    os.dup2(sys.stdout.fileno(), 1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # its other threads were left behind by the fork, and would be waited for

    def tell(kind: str, value: Any) -> None:
        writing.send((kind, value))

    try:
        tell("done", _trial(env, tell))
    except ConfigError as e:
        tell("wrong", str(e))
    except EnvOutputError as e:
        tell("wrong", f"env.id={env.id} cannot be trained on: {_said(env, str(e))}")
    except EnvRaised as e:
        place = "" if e.__cause__ is None else place_of(e.__cause__)
        tell("flawed", f"env.id={env.id} cannot be trained on: {_said(env, e.said)}{place}")
    except BaseException as e:
        tell("fault", in_one_line(e))


def _said(env: EnvConfig, of_env: str) -> str:
    return of_env.replace(_NAMES(0), "it").replace(f" (task {env.id})", "")


def _trial(env: EnvConfig, tell: Tell) -> str | None:
    """Tell what a task is, and what is wrong with it; return why its environments cannot be saved exactly."""
    spec = probe(env, at=lambda where: tell("at", where), remark=lambda said: tell("warning", said))
    tell("spec", spec)
    if spec.is_text:
        _speak(env, spec, tell)
        return None  # an episode of text begins anew
    if (why := why_unsaved(env)) is not None:
        return why
    if env.backend == "gym_vector":
        single = probe(dataclasses.replace(env, backend="sync"))  # which evaluation steps
        if apart := differences(spec.spaces, single.spaces):
            raise ConfigError(
                f"env.backend=gym_vector: evaluation steps single environments of {env.id}, and they are not what the "
                f"batch is: {'; '.join(apart)}: use env.backend=sync"
            )
        _step_batch(env, spec, tell)
        return f"{env.id} is stepped by its own batch (env.backend=gym_vector), which hands over no state"
    made: list[RowEnv] = []
    try:
        made.extend(make_row_env(env, spec, _NAMES(i)) for i in range(2))
        return _Pair(env, spec, made, tell).compared()
    except EnvError as e:
        if isinstance(e, (EnvRaised, EnvOutputError)) and str(e).startswith(_NAMES(0)):
            raise  # by itself, whether or not it is saved
        said = " ".join((e.said if isinstance(e, EnvRaised) else str(e)).split())
        return said.replace(_NAMES(0), "an environment").replace(_NAMES(1), "another environment")
    finally:
        for each in made:
            each.close()


def _speak(env: EnvConfig, spec: EnvSpec, tell: Tell) -> None:
    """Step a task of text for a moment."""
    task = played(env, spec, _NAMES(0))
    try:
        task.action_space.seed(1)
        task.reset(seed=1)
        end = time.monotonic() + _SECONDS
        for k in range(_TEXT_STEPS):
            if time.monotonic() > end:
                break
            tell("at", f"in step {k + 1}")
            _, _, terminated, truncated, _ = task.step(task.action_space.sample())
            if terminated or truncated:
                task.reset()
    finally:
        task.close()


def _step_batch(env: EnvConfig, spec: EnvSpec, tell: Tell) -> None:
    """Step a task's own batch for a moment, unless its masks would have to be obeyed."""
    if spec.mask_size is not None:
        return
    envs = CheckedEnvs(make_gym_vector(env, spec, _NAMES, 0.0))
    try:
        envs.reset([1, 2])
        generator, shape = np.random.default_rng(0), (2, *spec.action.shape)
        for k in range(_STEPS):
            tell("at", f"in step {k + 1} of its batch")
            if spec.action.kind == "box":
                envs.step(generator.standard_normal(shape, np.float32))
            else:
                envs.step(
                    generator.integers(
                        0, spec.action.sizes if len(shape) > 1 else spec.action.sizes[0], shape
                    )
                )
    finally:
        envs.close()


class _Answer(NamedTuple):
    observation: bytes
    reward: bytes
    terminated: bool
    truncated: bool


class _Pair:
    """Two environments of a task, of which the second is to do what the first does."""

    def __init__(self, env: EnvConfig, spec: EnvSpec, envs: Sequence[RowEnv], tell: Tell) -> None:
        self._env, self._spec, self._tell = env, spec, tell
        self._one, self._other = envs
        self._space = copy.deepcopy(self._one.action_space)
        self._space.seed(0)
        self._num_steps = 0
        self._num_before = 0  # the last seed
        self._reset_s = math.inf  # that its quickest reset took

    def compared(self) -> str | None:
        """Tell of what is left to chance, and return where a state taken to another environment did not suffice."""
        self._seed(1)
        before = statistics(self._one.env)
        steps = max(2, min(_STEPS, int(_SECONDS / (_PARTS * max(self._played(2), 1e-9)))))
        if what := self._seeded(steps):
            self._tell(
                "warning",
                f"env.id={self._env.id}: two environments that were reset with one seed and did the same actions "
                f"{what}, so a seed does not decide what happens: draw from self.np_random alone, and reset all that "
                "an episode changes",
            )
        self._seed(1)
        if said := kept_over_resets(before, statistics(self._one.env)):
            self._tell("warning", f"env.id={self._env.id}: {said}")
        return self._taken_over(steps)

    def _seeded(self, steps: int) -> str | None:
        """Return what two environments with one seed did otherwise, None if nothing."""
        both = (self._one, self._other)
        if _differ([self._seed(2), self._other.reset(seed=2)[0]]):
            return "observed differently"
        for k in range(steps):
            first, second = self._step(*both)
            if first != second:
                return f"differed in the {_what_differs(first, second)} of step {k + 1}"
            if first.terminated or first.truncated:
                if self._resets_slowly:
                    break
                if _differ([each.reset()[0] for each in both]):
                    return f"observed differently in the reset after step {k + 1}"
        return None

    def _taken_over(self, steps: int) -> str | None:
        """Return where the second, which went on from the state of the first, did otherwise; None if nowhere."""
        one, other = self._one, self._other
        if not self._resets_slowly:  # the last one was a moment ago
            one.reset()  # an episode more than `other` will have had, of which to count them would tell
        self._played(steps)
        one.reset()
        self._played(steps)
        other.restore(unpacked(packed(one.state())))
        for k in range(2 * steps):
            first, second = self._step(one, other)
            if first != second:
                return f"{_TOLD} another {_what_differs(first, second)} {k + 1} step{'s' * (k > 0)} later"
            is_over = first.terminated or first.truncated or k == steps
            if is_over and _differ([each.reset()[0] for each in (one, other)]):
                return f"{_TOLD} another observation in the reset after {k + 1} steps"
            if is_over and self._resets_slowly:
                break
        return None

    def _seed(self, seed: int) -> np.ndarray:
        """Reset the first from a seed, and return its row."""
        self._num_before, began = self._num_steps, time.monotonic()
        row = self._one.reset(seed=seed)[0]
        self._reset_s = min(self._reset_s, time.monotonic() - began)
        return row

    @property
    def _resets_slowly(self) -> bool:
        """Whether each part ends with its first episode, or resets alone would take the time that there is."""
        return self._reset_s > _SECONDS

    def _played(self, num_steps: int) -> float:
        """Step the first so often, and return what the quickest step took, in seconds."""
        took = math.inf
        for _ in range(num_steps):
            began = time.monotonic()
            (answer,) = self._step(self._one)
            took = min(took, time.monotonic() - began)
            if answer.terminated or answer.truncated:
                self._one.reset()
                if self._resets_slowly:
                    break
        return took

    def _check(self, reward: float, *, may_be_stuck: bool) -> None:
        """Raise EnvOutputError where the first answered what nothing can be learned from."""
        one = self._one
        rows, step = one.row[None, None], self._num_steps - self._num_before
        check_finite(_NAMES, step, one.layout.obs(rows), np.full((1, 1), reward), [])
        mask = one.layout.mask(rows)
        if mask is not None and not may_be_stuck:
            check_masks(_NAMES, step, mask, np.ones((1, 1), bool), self._spec.action)

    def _step(self, *envs: RowEnv) -> list[_Answer]:
        self._tell("at", f"after {self._num_steps} steps at random")
        self._num_steps += 1
        mask = self._one.layout.mask(self._one.row)
        action = sample_action(self._space, mask if mask is None or mask.any() else None)
        answers = []
        for each in envs:
            row, reward, terminated, truncated, _ = each.step(copy.copy(action))
            answers.append(
                _Answer(row.tobytes(), np.float64(reward).tobytes(), bool(terminated), bool(truncated))
            )
            if each is self._one:
                self._check(float(reward), may_be_stuck=bool(terminated or truncated))
        return answers


def _differ(rows: Sequence[np.ndarray]) -> bool:
    return rows[0].tobytes() != rows[1].tobytes()


def _what_differs(first: _Answer, second: _Answer) -> str:
    return next(name for name, x, y in zip(_Answer._fields, first, second, strict=True) if x != y)


def main() -> None:
    """Be the trial that `_started` starts."""
    writing, env = Connection(int(sys.argv[1]), readable=False), pickle.load(sys.stdin.buffer)
    try:
        find_task(env)
    except ConfigError:
        writing.send(("unknown", None))
    else:
        _be_the_trial(env, writing)


if __name__ == "__main__":
    main()
