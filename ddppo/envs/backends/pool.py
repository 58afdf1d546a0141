"""The processes of a pool, and others that take the places of those that are lost.

They fork from a server that has imported what they need; they end with the rank however it ends, and leave nothing.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool_memory import (
    DONE,
    RESET,
    STEP,
    Memory,
    Past,
    Replay,
    Shape,
    Task,
    ToMeasure,
    create,
    hear,
    tell,
)
from ddppo.envs.backends.pool_process import PoolWorker, choose_num_workers, lost_server
from ddppo.envs.backends.sync import Answers, SameStepEnvs
from ddppo.envs.encoding.observations import RowLayout
from ddppo.envs.vec_env import EnvNames, EnvSpec, Options
from ddppo.errors import EnvError, EnvWorkerLost
from ddppo.processes import limits
from ddppo.processes.forking import ForkServer, ForkServerLost
from ddppo.terminal import warn

_CLOSE_S = 5.0  # for environments to close
_MEASURE_S = 10.0  # for an environment to be made and stepped a few times
_NUM_YIELDS = 500  # before who waits sleeps: longer than a rank acts; none where processes exceed cores
# fork_server comes last: until then a signal ends the server, which has nothing to lose.
_IMPORTS = ("ddppo.envs.backends.pool", "ddppo.envs.backends.pool_memory")


class _CameElsewhere(Exception):
    """Who takes a lost one's place does not come to where that was."""


class Crew:
    """Processes that step a batch of environments. Raises EnvWorkerLost where one dies or does not answer.

    Not the first max_restarts times: then another takes its place, and its environments come to where they were by what
    they were told since they were last saved (`Past`), so that nothing is seen of it. Where that leads elsewhere, or
    to another loss, they start from other seeds, the step under way becomes a pseudo-step, and the episodes are cut
    before it (`EnvStep`). num_restarts: of processes; num_env_restarts: of environments; num_lost_episodes: cut so.
    """

    answers: Answers
    action_space: gym.Space

    def __init__(
        self,
        env: EnvConfig,
        spec: EnvSpec,
        names: EnvNames,
        timeout_s: float,
        cores: int,
        max_restarts: int = 0,
    ) -> None:
        self._env = env
        self._spec = spec
        self._names = names
        self._timeout_s = timeout_s
        self._num_yields = 0
        self._memory: Memory | None = None
        self._file: int | None = None  # of the memory
        self._doing = RESET
        self._options: list[dict[str, Any]] | None = None
        self.valid = np.ones(len(names.indices), bool)
        self._max_restarts = max_restarts
        self.num_restarts = self.num_env_restarts = self.num_lost_episodes = 0
        self._pasts: list[Past] | None = None
        self._made_anew: list[int] = []
        self.workers: list[PoolWorker] = []
        self.server = ForkServer.forked() or ForkServer.started()
        try:
            self.server.have_imported(_IMPORTS)
            num_workers = env.num_workers or self._fitting_num_workers(env, spec, cores)
            self._num_yields = _NUM_YIELDS if num_workers <= cores else 0
            self._start(num_workers)
        except ForkServerLost as e:
            self.close()
            raise self._lost_server(e) from None
        except OSError as e:
            self.close()
            raise _refused(e)(f"{names.all()} cannot be made: {limits.why(e)}") from e
        except BaseException:
            self.close()
            raise

    def _fitting_num_workers(self, env: EnvConfig, spec: EnvSpec, cores: int) -> int:
        """Measure an environment in a process of its own, which it may end or hang in."""
        num_envs = len(self._names.indices)
        worker = PoolWorker(self.server, self._names, slice(0, 1), self._timeout_s)
        try:
            tell(worker.line, ToMeasure(env, spec))
            worker.answer(time.monotonic() + min(_MEASURE_S, self._timeout_s))
            return choose_num_workers(hear(worker.line)[0], num_envs, cores)
        except (EnvWorkerLost, ConnectionError):
            return min(num_envs, cores)
        finally:
            worker.line.close()
            worker.process.kill()

    def _start(self, num_workers: int) -> None:
        num_envs = len(self._names.indices)
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        for low, high in pairwise(bounds):
            self.workers.append(self._worker(slice(low, high)))
        self._wait_for_all()
        spaces = [hear(worker.line)[0] for worker in self.workers]
        self.action_space = spaces[0]
        self._shape = Shape(
            num_envs, num_workers, RowLayout(self._spec).dtype, self.action_space, self._num_yields
        )
        self._file = create(self._shape)
        self._memory = Memory(self._file, self._shape)
        for k, worker in enumerate(self.workers):
            self._introduce(k, worker)
        self.answers = self._memory.answers
        if self._max_restarts:
            self._pasts = [Past() for _ in self.workers]

    def _worker(self, part: slice) -> PoolWorker:
        worker = PoolWorker(self.server, self._names, part, self._timeout_s)
        names = [worker.names(i) for i in range(part.stop - part.start)]
        with suppress(ConnectionError):  # it is gone, as `answer` finds
            options = None if self._options is None else self._options[part]
            tell(worker.line, Task(self._env, self._spec, names, options))
        return worker

    def _introduce(self, k: int, worker: PoolWorker) -> None:
        """Tell worker `k` of the memory."""
        assert self._memory is not None
        assert self._file is not None
        worker.at, worker.num_yields = self._memory.at[k], self._num_yields
        tell(worker.line, (self._shape, k, worker.part), [self._file])

    def answer(self, k: int, end: float, *, calling: bool = False) -> bool:
        """Wait for the answer of worker `k`, until the time `end` at most.

        Returns False where it was lost and whoever takes its place has not come to the same point yet. Raises EnvError
        for a step that failed; if `calling`, EnvWorkerLost where that one is lost too, or comes elsewhere.
        """
        worker = self.workers[k]
        try:
            if not self._heard(worker, end):
                return False
            if worker.replay is not None and worker.replay.leads_elsewhere(self.answers.rows[worker.part]):
                raise _CameElsewhere
            if worker.replay is not None and worker.replay.told:
                assert self._memory is not None
                worker.tell(worker.replay.told.popleft(), self._memory.actions)
                return False
        except _CameElsewhere:
            self._begin_anew(k, calling=calling)
            return False
        except EnvWorkerLost as lost:
            if calling:
                raise
            self._replace(k, lost, self._replay(k))
            return False
        if worker.replaces is not None and worker.replay is None:
            if worker.replaces == STEP:
                self._cut(worker.part)
            self._made_anew.extend(range(worker.part.start, worker.part.stop))
        worker.replaces = worker.replay = None
        return True

    def _heard(self, worker: PoolWorker, end: float) -> bool:
        """Hear what a worker answers; return whether it is to what it was told. Raises what `answer` handles."""
        is_done = worker.answer(end) == DONE
        said: Any = None if is_done and worker.is_made and not worker.is_called else worker.hear()
        is_call, worker.is_called = worker.is_called, False
        if not is_done:
            if is_call or (worker.replay is not None and worker.replay.told):
                raise _CameElsewhere from said
            raise said
        was_made, worker.is_made = worker.is_made, True
        return was_made

    def _wait_for_all(self) -> None:
        """Wait for an answer of every worker. Raises the error of the first environment, as if stepped in turn."""
        end = time.monotonic() + self._timeout_s
        errors: list[EnvError] = []
        for k in range(len(self.workers)):
            try:
                while not self.answer(k, end):
                    end = time.monotonic() + self._timeout_s  # for who takes its place
            except EnvWorkerLost:
                raise
            except EnvError as e:
                errors.append(e)
        if errors:
            raise errors[0]

    def _come_back(self, k: int, lost: EnvWorkerLost) -> None:
        """Have another come to where worker `k` was when it was called. Raises EnvWorkerLost if that cannot be."""
        rows = self.answers.rows[self.workers[k].part]
        replay = None if self._pasts is None else self._pasts[k].again(rows)
        if replay is None or self.num_restarts == self._max_restarts:
            raise lost
        self._replace(k, lost, replay)
        while not self.answer(k, time.monotonic() + self._timeout_s, calling=True):
            pass

    def _leave(self, worker: PoolWorker, lost: EnvWorkerLost) -> None:
        """Leave a lost worker to the next step, which starts another. Raises `lost` where that may not be."""
        if self.num_restarts == self._max_restarts or not self.server.is_usable:
            raise lost
        worker.replaces = worker.replay = None
        if worker.lives():
            warn(f"{lost}; it is ended")
            worker.process.kill()

    def _replay(self, k: int) -> Replay | None:
        """Return how another comes to where worker `k` was in what it is doing, if that is known."""
        return None if self._pasts is None else self._pasts[k].again(None)

    def _replace(self, k: int, lost: EnvWorkerLost, replay: Replay | None) -> None:
        """Start another process for what worker `k` was doing, without waiting for it. Raises `lost` if not again."""
        if self._memory is None or self.num_restarts == self._max_restarts or not self.server.is_usable:
            raise lost
        assert self._file is not None
        self.num_restarts += 1
        before = self.workers[k]
        self.num_env_restarts += before.part.stop - before.part.start
        where = "with new episodes" if replay is None else "and comes to where it was"
        number = f"restart {self.num_restarts} of {self._max_restarts}"
        warn(f"{lost}; it is started again ({number}), {where}")
        before.line.close()
        try:
            before.process.kill()
            before.process.wait(_CLOSE_S)  # it shares the memory
            self.workers[k] = worker = self._worker(before.part)
            worker.is_made, worker.replaces, worker.replay = False, before.replaces or self._doing, replay
            worker.num_steps = before.num_steps
            with suppress(ConnectionError):  # it is gone, too
                self._introduce(k, worker)
                self._send_reset(k, worker)
        except ForkServerLost as e:
            raise self._lost_server(e) from None
        except OSError as e:
            raise _refused(e)(f"{before.names.all()} cannot be made again: {limits.why(e)}") from e

    def _send_reset(self, k: int, worker: PoolWorker) -> None:
        """Reset its environments, to come to where they were or else by seeds that nobody had."""
        from ddppo.seeding import derived_seed  # brings torch, which the processes of a pool do without

        if worker.replay is None:
            assert self._memory is not None
            seeds = self._memory.seeds[worker.part]
            seeds[:] = [derived_seed(int(seed), "restart", self.num_restarts) for seed in seeds]
            if self._pasts is not None:
                self._pasts[k].began()
        worker.line.send(RESET)

    def _begin_anew(self, k: int, *, calling: bool) -> None:
        """Begin new episodes where playing the past again led elsewhere. Raises EnvWorkerLost if `calling`."""
        worker = self.workers[k]
        assert self._pasts is not None
        self._pasts[k].forget()
        said = f"{worker.names.all()}, started again, do not come to where they were"
        if calling:
            raise EnvWorkerLost(said)
        warn(f"{said}: they begin new episodes")
        worker.replay = None
        with suppress(ConnectionError):  # it is gone, too
            self._send_reset(k, worker)

    def _cut(self, part: slice) -> None:
        """Make the step a pseudo-step that ends episodes, of which nobody knows how they went on."""
        answers = self.answers.part(part)
        answers.final_rows[:] = answers.rows  # of no transition, but numbers
        answers.rewards[:], answers.terminated[:], answers.truncated[:] = 0.0, False, True
        self.valid[part] = False
        self.num_lost_episodes += part.stop - part.start

    def lives(self, k: int) -> bool:
        return self.workers[k].lives()

    def close(self) -> None:
        """Have every worker close its environments, and kill those that have not a few seconds later."""
        for worker in self.workers:
            worker.line.close()
        end = time.monotonic() + _CLOSE_S
        with suppress(ForkServerLost):  # and they with it
            for worker in self.workers:
                worker.process.wait(max(0.0, end - time.monotonic()))
        self.server.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lost_server(self, lost: ForkServerLost) -> EnvError:
        when = self.workers[0].when if self.workers else "when they were made"
        return lost_server(self._names, when, lost)


def _refused(error: OSError) -> type[EnvError]:
    return EnvWorkerLost if limits.may_pass(error) else EnvError


# -- Batches of scalar environments stepped by a few processes (pool): each steps its share of them in turn.
#
# Observations and actions pass through shared memory; the processes are `Crew`'s.


def make_pool(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, cores: int, max_restarts: int = 0
) -> SameStepEnvs:
    """Step environments in env.num_workers processes, or as many as keep `cores` busy. Raises EnvError."""
    return SameStepEnvs(Pool(env, spec, names, timeout_s, cores, max_restarts), spec, names)


class Pool(Crew):
    """A stepper of environments in processes of its own, told what to do all together or one by one."""

    def take_options(self, options: Options) -> None:
        self._options = [dict(each) for each in options]  # for a process that takes a lost one's place
        self.call("take_options", {i: (own,) for i, own in enumerate(self._options)})

    def reset(self, seeds: Sequence[int]) -> None:
        assert self._memory is not None
        self._doing = RESET
        self._memory.seeds[:] = seeds
        for past in self._pasts or ():
            past.began()
        self._ask_all()

    def step(self, actions: np.ndarray) -> None:
        assert self._memory is not None
        self._doing = STEP
        if self._pasts is not None:
            for k, worker in enumerate(self.workers):
                self._note(k, actions[worker.part])
        self._memory.actions[...] = actions
        self._ask_all()

    def ask(self, k: int, actions: np.ndarray) -> None:
        """Have worker `k` step its environments with the task's own actions, and return at once."""
        assert self._memory is not None
        self._doing = STEP
        self._note(k, actions)
        worker = self.workers[k]
        self._memory.actions[worker.part] = actions
        self.valid[worker.part] = True
        self._ask(worker)

    def made_anew(self) -> list[int]:
        found, self._made_anew = self._made_anew, []
        return found

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        asked: dict[int, dict[int, tuple]] = {}
        errors: list[EnvError] = []
        for k, worker in enumerate(self.workers):
            first, end = worker.part.start, worker.part.stop
            mine = {i - first: arguments[i] for i in range(first, end) if i in arguments}
            if mine:
                asked[k] = mine
                with suppress(EnvWorkerLost):  # as is found below
                    worker.call(method, mine)
        for k, mine in asked.items():
            try:
                found = self._called(k, method, mine)
            except EnvError as e:
                if isinstance(e, EnvWorkerLost):
                    raise
                errors.append(e)
            else:
                answers |= {self.workers[k].part.start + i: answer for i, answer in found.items()}
        if errors:
            raise errors[0]
        return answers

    def _called(self, k: int, method: str, mine: dict[int, tuple]) -> dict[int, Any]:
        """Return what worker `k` answers to a call; {} where it was lost, which the next step finds."""
        begun = time.monotonic()
        try:
            try:
                found = self.workers[k].called()
            except EnvWorkerLost as lost:
                self._come_back(k, lost)
                self.workers[k].call(method, mine)
                found = self.workers[k].called()
        except EnvWorkerLost as lost:
            self._leave(self.workers[k], lost)
            return {}
        if self._pasts is not None:
            past, num_envs = self._pasts[k], self.workers[k].part.stop - self.workers[k].part.start
            if method == "state" and len(found) == num_envs:
                past.saved([found[i] for i in range(num_envs)], time.monotonic() - begun)
            elif method == "restore" and len(mine) == num_envs:
                past.saved([mine[i][0] for i in range(num_envs)], 0.0)
            elif method != "state":
                past.called((method, mine))
        return found

    def _note(self, k: int, actions: np.ndarray) -> None:
        """Note that worker `k` is to step with these actions, and save its environments if it is time."""
        if self._pasts is None:
            return
        past, worker = self._pasts[k], self.workers[k]
        if past.is_long:
            every: dict[int, tuple] = dict.fromkeys(range(worker.part.stop - worker.part.start), ())
            try:
                with suppress(EnvWorkerLost):
                    worker.call("state", every)
                self._called(k, "state", every)
            except EnvWorkerLost:
                raise
            except EnvError:
                past.cannot_be_saved()
        past.stepped(actions, self.answers.rows[worker.part])

    def _ask_all(self) -> None:
        self.valid[:] = True
        for worker in self.workers:
            self._ask(worker)
        self._wait_for_all()

    def _ask(self, worker: PoolWorker) -> None:
        worker.num_steps = 0 if self._doing == RESET else worker.num_steps + 1
        with suppress(ConnectionError):  # it is gone, as `answer` finds
            worker.line.send(self._doing)
