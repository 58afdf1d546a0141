"""env.backend=pool: environments stepped by a few processes, each of which steps its part of the batch in turn.

Observations and actions pass through shared memory, commands through a socket to each process (pool_memory.py). The
processes fork from a server that has imported what they need. They end when the rank ends, in any way.
A process that dies or hangs can be replaced (max_restarts): the new one repeats what the lost one did since its
environments were last saved, so that training goes on as if nothing had happened.

pool_process.py has the rank's view of one process, pool_worker.py the program of the process.
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
    ArraysShape,
    History,
    MeasureTask,
    Replay,
    SharedArrays,
    WorkerTask,
    create,
    receive_object,
    send_object,
)
from ddppo.envs.backends.pool_process import PoolWorker, choose_num_workers, lost_server
from ddppo.envs.backends.sync import Answers, SameStepEnvs
from ddppo.envs.encoding.observations import RowLayout
from ddppo.envs.vec_env import EnvNames, EnvSpec, Options
from ddppo.errors import EnvError, EnvWorkerLost
from ddppo.processes import limits
from ddppo.processes.forking import ForkServer, ForkServerLost
from ddppo.terminal import warn

_CLOSE_S = 5.0  # limit for environments to close
_MEASURE_S = 10.0  # limit for one environment to be made and stepped a few times
# Seconds for which a waiting process asks again before it sleeps, about as long as waking up takes. 0 if processes
# exceed cores: another one may need this very core.
_SPIN_S = 50e-6
# pool_memory comes last: it makes the server ignore signals, and before that the server has nothing to lose.
_IMPORTS = ("ddppo.envs.backends.pool",)


class _ReplayFailed(Exception):
    """The process that replaces a lost one got other observations from the same commands."""


def make_pool(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, cores: int, max_restarts: int = 0
) -> SameStepEnvs:
    """Make a batch that env.num_workers processes step, by default as many as keep `cores` busy. Raises EnvError."""
    return SameStepEnvs(Pool(env, spec, names, timeout_s, cores, max_restarts), spec, names)


class Pool:
    """A `Stepper` of environments in other processes.

    If a process dies or does not answer, it is replaced, at most max_restarts times; then EnvWorkerLost is raised. The
    new process repeats the commands since its environments were last saved (`History`). If that gives other
    observations, or loses the process again, the environments start from new seeds: the current step becomes one that
    is no transition, and their episodes end before it (EnvStep.valid).
    """

    answers: Answers
    action_space: gym.Space
    num_restarts: int  # processes that were replaced
    num_env_restarts: int  # environments in them
    num_lost_episodes: int  # episodes that could not be continued

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
        self._spin_s = 0.0
        self._arrays: SharedArrays | None = None
        self._file: int | None = None  # of the shared memory
        self._doing = RESET  # the command that runs, RESET or STEP
        self._options: list[dict[str, Any]] | None = None
        self.valid = np.ones(len(names.indices), bool)
        self._max_restarts = max_restarts
        self.num_restarts = self.num_env_restarts = self.num_lost_episodes = 0
        self._histories: list[History] | None = None  # of each process; None without restarts
        self._made_anew: list[int] = []
        self.workers: list[PoolWorker] = []
        # Processes fork from a small server and not from the rank, which has torch and its threads.
        self.server = ForkServer.forked() or ForkServer.started()
        try:
            self.server.have_imported(_IMPORTS)
            self.server.leave_signals()
            num_workers = env.num_workers or self._fitting_num_workers(env, spec, cores)
            self._spin_s = _SPIN_S if num_workers <= cores else 0.0
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

    def take_options(self, options: Options) -> None:
        self._options = [dict(each) for each in options]  # a process that replaces a lost one gets them too
        self.call("take_options", {i: (own,) for i, own in enumerate(self._options)})

    def reset(self, seeds: Sequence[int]) -> None:
        assert self._arrays is not None
        self._doing = RESET
        self._arrays.seeds[:] = seeds
        for history in self._histories or ():
            history.began()
        self._ask_all()

    def step(self, actions: np.ndarray) -> None:
        assert self._arrays is not None
        self._doing = STEP
        if self._histories is not None:
            for k, worker in enumerate(self.workers):
                self._record(k, actions[worker.part])
        self._arrays.actions[...] = actions
        self._ask_all()

    def ask(self, k: int, actions: np.ndarray) -> None:
        """Tell worker k to step its environments with the task's own actions, and return at once (see observers.py)."""
        assert self._arrays is not None
        self._doing = STEP
        self._record(k, actions)
        worker = self.workers[k]
        self._arrays.actions[worker.part] = actions
        self.valid[worker.part] = True
        self._ask(worker)

    def made_anew(self) -> list[int]:
        found, self._made_anew = self._made_anew, []
        return found

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        asked: dict[int, dict[int, tuple]] = {}  # worker -> arguments by index within its part
        errors: list[EnvError] = []
        # Send all calls first, so that the processes work at the same time; then receive the results.
        for k, worker in enumerate(self.workers):
            first, end = worker.part.start, worker.part.stop
            own = {i - first: arguments[i] for i in range(first, end) if i in arguments}
            if own:
                asked[k] = own
                with suppress(EnvWorkerLost):  # receiving finds the loss again
                    worker.call(method, own)
        for k, own in asked.items():
            try:
                found = self._results(k, method, own)
            except EnvError as e:
                if isinstance(e, EnvWorkerLost):
                    raise
                errors.append(e)
            else:
                answers |= {self.workers[k].part.start + i: answer for i, answer in found.items()}
        if errors:
            raise errors[0]
        return answers

    def _results(self, k: int, method: str, own: dict[int, tuple]) -> dict[int, Any]:
        """Return the results of a call of worker k; {} if it was lost, which the next step finds again."""
        begun = time.monotonic()
        try:
            try:
                found = self.workers[k].call_results()
            except EnvWorkerLost as lost:
                self._replace_and_replay(k, lost)
                self.workers[k].call(method, own)
                found = self.workers[k].call_results()
        except EnvWorkerLost as lost:
            self._leave(self.workers[k], lost)
            return {}
        if self._histories is not None:
            # A state of all environments starts the history anew; any other call belongs to it.
            history, num_envs = self._histories[k], self.workers[k].part.stop - self.workers[k].part.start
            if method == "state" and len(found) == num_envs:
                history.saved([found[i] for i in range(num_envs)], time.monotonic() - begun)
            elif method == "restore" and len(own) == num_envs:
                history.saved([own[i][0] for i in range(num_envs)], 0.0)
            elif method != "state":
                history.called((method, own))
        return found

    def _record(self, k: int, actions: np.ndarray) -> None:
        """Record that worker k steps with these actions; first save its environments if its history is long."""
        if self._histories is None:
            return
        history, worker = self._histories[k], self.workers[k]
        # A long history would make a replay slow, so start it anew from saved states.
        if history.is_long:
            every: dict[int, tuple] = dict.fromkeys(range(worker.part.stop - worker.part.start), ())
            try:
                with suppress(EnvWorkerLost):
                    worker.call("state", every)
                self._results(k, "state", every)
            except EnvWorkerLost:
                raise
            except EnvError:
                history.cannot_be_saved()
        history.stepped(actions, self.answers.rows[worker.part])

    def _ask_all(self) -> None:
        self.valid[:] = True
        for worker in self.workers:
            self._ask(worker)
        self._wait_for_all()

    def _ask(self, worker: PoolWorker) -> None:
        worker.num_steps = 0 if self._doing == RESET else worker.num_steps + 1
        with suppress(ConnectionError):  # it is gone: `answer` finds that
            worker.line.send(self._doing)

    def lives(self, k: int) -> bool:
        return self.workers[k].lives()

    def close(self) -> None:
        """Let every process close its environments; the server kills those that have not ended after a few seconds."""
        # A closed socket asks a process to end.
        for worker in self.workers:
            worker.line.close()
        end = time.monotonic() + _CLOSE_S
        with suppress(ForkServerLost):  # the processes are gone with it
            for worker in self.workers:
                worker.process.wait(max(0.0, end - time.monotonic()))
        self.server.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # -- Starting the processes.

    def _fitting_num_workers(self, env: EnvConfig, spec: EnvSpec, cores: int) -> int:
        """Choose the number of processes by measuring one environment, in a process that it may end or hang."""
        num_envs = len(self._names.indices)
        worker = PoolWorker(self.server, self._names, slice(0, 1), self._timeout_s)
        try:
            send_object(worker.line, MeasureTask(env, spec))
            worker.answer(time.monotonic() + min(_MEASURE_S, self._timeout_s))
            return choose_num_workers(receive_object(worker.line)[0], num_envs, cores)
        except (EnvWorkerLost, ConnectionError):
            return min(num_envs, cores)
        finally:
            worker.line.close()
            worker.process.kill()

    def _start(self, num_workers: int) -> None:
        num_envs = len(self._names.indices)
        # Parts of nearly equal size, in order.
        bounds = [num_envs * k // num_workers for k in range(num_workers + 1)]
        for low, high in pairwise(bounds):
            self.workers.append(self._worker(slice(low, high)))
        # Each process reports the action space of its task, which decides the layout of the memory.
        self._wait_for_all()
        spaces = [receive_object(worker.line)[0] for worker in self.workers]
        self.action_space = spaces[0]
        self._shape = ArraysShape(
            num_envs, num_workers, RowLayout(self._spec).dtype, self.action_space, self._spin_s
        )
        self._file = create(self._shape)
        self._arrays = SharedArrays(self._file, self._shape)
        for k, worker in enumerate(self.workers):
            self._send_arrays(k, worker)
        self.answers = self._arrays.answers
        if self._max_restarts:
            self._histories = [History() for _ in self.workers]

    def _worker(self, part: slice) -> PoolWorker:
        worker = PoolWorker(self.server, self._names, part, self._timeout_s)
        names = [worker.names(i) for i in range(part.stop - part.start)]
        with suppress(ConnectionError):  # it is gone: `answer` finds that
            options = None if self._options is None else self._options[part]
            send_object(worker.line, WorkerTask(self._env, self._spec, names, options))
        return worker

    def _send_arrays(self, k: int, worker: PoolWorker) -> None:
        """Send the shared memory to worker k."""
        assert self._arrays is not None
        assert self._file is not None
        worker.at, worker.spin_s = self._arrays.at[k], self._spin_s
        send_object(worker.line, (self._shape, k, worker.part), [self._file])

    # -- Waiting for answers, and replacing lost processes.

    def answer(self, k: int, end: float, *, calling: bool = False) -> bool:
        """Wait for the answer of worker k, until the time `end` at most.

        Returns False if it was lost and the process that replaces it has not come to the same point yet. Raises
        EnvError for a step that failed. With `calling`, raises EnvWorkerLost if the replacement is lost too or gives
        other observations.
        """
        worker = self.workers[k]
        try:
            if not self._received(worker, end):
                return False
            # A replacement: compare its observations, send its next command, or let it begin new episodes.
            if worker.replay is not None and worker.replay.differs(self.answers.rows[worker.part]):
                raise _ReplayFailed
            if worker.replay is not None and worker.replay.commands:
                assert self._arrays is not None
                worker.repeat(worker.replay.commands.popleft(), self._arrays.actions)
                return False
        except _ReplayFailed:
            self._begin_anew(k, calling=calling)
            return False
        except EnvWorkerLost as lost:
            if calling:
                raise
            self._replace(k, lost, self._replay(k))
            return False
        # The replacement has begun new episodes: the row of this step is no transition.
        if worker.replaces is not None and worker.replay is None:
            if worker.replaces == STEP:
                self._cut(worker.part)
            self._made_anew.extend(range(worker.part.start, worker.part.stop))
        worker.replaces = worker.replay = None
        return True

    def _received(self, worker: PoolWorker, end: float) -> bool:
        """Receive an answer; return False if it only says that the process is made. Raises what `answer` handles."""
        is_done = worker.answer(end) == DONE
        # A value follows the byte DONE after a start or a call, and always FAILED.
        value: Any = None if is_done and worker.is_made and not worker.is_called else worker.receive()
        is_call, worker.is_called = worker.is_called, False
        if not is_done:
            if is_call or (worker.replay is not None and worker.replay.commands):
                raise _ReplayFailed from value
            raise value
        was_made, worker.is_made = worker.is_made, True
        return was_made

    def _wait_for_all(self) -> None:
        """Wait for the answers of all workers. Raises the error of the first environment, as if stepped in turn."""
        end = time.monotonic() + self._timeout_s
        errors: list[EnvError] = []
        for k in range(len(self.workers)):
            try:
                while not self.answer(k, end):
                    end = time.monotonic() + self._timeout_s  # for the process that replaces it
            except EnvWorkerLost:
                raise
            except EnvError as e:
                errors.append(e)
        if errors:
            raise errors[0]

    def _replace_and_replay(self, k: int, lost: EnvWorkerLost) -> None:
        """Replace worker k and replay its history up to the call. Raises EnvWorkerLost if that is impossible."""
        rows = self.answers.rows[self.workers[k].part]
        replay = None if self._histories is None else self._histories[k].replay(rows)
        if replay is None or self.num_restarts == self._max_restarts:
            raise lost
        self._replace(k, lost, replay)
        while not self.answer(k, time.monotonic() + self._timeout_s, calling=True):
            pass

    def _leave(self, worker: PoolWorker, lost: EnvWorkerLost) -> None:
        """Leave the replacement of a lost worker to the next step. Raises `lost` if no replacement is allowed."""
        if self.num_restarts == self._max_restarts or not self.server.is_usable:
            raise lost
        worker.replaces = worker.replay = None
        if worker.lives():
            warn(f"{lost}; it is ended")
            worker.process.kill()

    def _replay(self, k: int) -> Replay | None:
        """Return the commands that lead worker k's replacement to the command that runs, None if they are unknown."""
        return None if self._histories is None else self._histories[k].replay(None)

    def _replace(self, k: int, lost: EnvWorkerLost, replay: Replay | None) -> None:
        """Start a process in place of worker k, and do not wait for it. Raises `lost` if no restart is left."""
        if self._arrays is None or self.num_restarts == self._max_restarts or not self.server.is_usable:
            raise lost
        assert self._file is not None
        # Kill the old process, start a new one with the same environments, and send it the first reset.
        self.num_restarts += 1
        before = self.workers[k]
        self.num_env_restarts += before.part.stop - before.part.start
        where = "with new episodes" if replay is None else "and repeats its steps"
        number = f"restart {self.num_restarts} of {self._max_restarts}"
        warn(f"{lost}; it is started again ({number}), {where}")
        before.line.close()
        try:
            before.process.kill()
            before.process.wait(_CLOSE_S)  # it still writes into the shared memory
            self.workers[k] = worker = self._worker(before.part)
            worker.is_made, worker.replaces, worker.replay = False, before.replaces or self._doing, replay
            worker.num_steps = before.num_steps
            with suppress(ConnectionError):  # it is gone, too: `answer` finds that
                self._send_arrays(k, worker)
                self._send_reset(k, worker)
        except ForkServerLost as e:
            raise self._lost_server(e) from None
        except OSError as e:
            raise _refused(e)(f"{before.names.all()} cannot be made again: {limits.why(e)}") from e

    def _send_reset(self, k: int, worker: PoolWorker) -> None:
        """Reset its environments: with their seeds for a replay, else with new ones."""
        from ddppo.seeding import derived_seed  # it imports torch, and the processes of a pool do without

        if worker.replay is None:
            assert self._arrays is not None
            seeds = self._arrays.seeds[worker.part]
            seeds[:] = [derived_seed(int(seed), "restart", self.num_restarts) for seed in seeds]
            if self._histories is not None:
                self._histories[k].began()
        worker.line.send(RESET)

    def _begin_anew(self, k: int, *, calling: bool) -> None:
        """Begin new episodes after a replay with other observations. Raises EnvWorkerLost if `calling`."""
        worker = self.workers[k]
        assert self._histories is not None
        self._histories[k].forget()
        what = f"{worker.names.all()}, started again, do not come to where they were"
        if calling:
            raise EnvWorkerLost(what)
        warn(f"{what}: they begin new episodes")
        worker.replay = None
        with suppress(ConnectionError):  # it is gone, too: `answer` finds that
            self._send_reset(k, worker)

    def _cut(self, part: slice) -> None:
        """End the episodes of these environments with a row that is no transition: their continuation is unknown."""
        answers = self.answers.part(part)
        answers.final_rows[:] = answers.rows  # valid numbers, never learned from
        answers.rewards[:], answers.terminated[:], answers.truncated[:] = 0.0, False, True
        self.valid[part] = False
        self.num_lost_episodes += part.stop - part.start

    def _lost_server(self, lost: ForkServerLost) -> EnvError:
        when = self.workers[0].when if self.workers else "when they were made"
        return lost_server(self._names, when, lost)


def _refused(error: OSError) -> type[EnvError]:
    return EnvWorkerLost if limits.may_pass(error) else EnvError
