"""Groups of episodes of one task, which a policy of your own plays in sessions of servers (docs/groups.md).

async with AsyncGroupPool(["ws://127.0.0.1:8000"], group_size=8) as pool:
    group = await pool.run_group(None, policy)  # the curriculum chooses the task
    pool.record_group_result(group)

`AsyncGroupPool` is for asyncio, `SyncGroupPool` for all other programs. All members of a group begin the same task from
the same seed. In each turn the policy is called once, for all members that are not over, and they step at the same
time. Calls of the policy never overlap, also if several groups are played at once.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ddppo.domains.text.curriculum.sampler import make_curriculum
from ddppo.domains.text.curriculum.shared import SharedCurriculum
from ddppo.domains.text.group_records import EpisodeGroup, Policy, checked_lines
from ddppo.errors import ConfigError, EnvError, near
from ddppo.serve.client.connection import EnvServerFault, EnvServerLost, RemoteError
from ddppo.serve.client.sessions import AsyncEnvPool, LoopThread, together
from ddppo.spaces import EnvSpec


class AsyncGroupPool:
    """Groups in sessions with the servers at `urls`: as many at once as the sessions hold.

    Args:
        group_size: members G of a group.
        num_envs: sessions, a multiple of G; None: G. All are opened by `connect`, or none.
        curriculum: how the next task is chosen: "tiers", "uniform", an import path, "auto" (tiers if the environment
            names tasks), None (the environment draws a task by the seed), or that of another pool.
        seed: root of the seeds of all groups.
        max_turns: turns of an episode at most; None: until the environment ends it.
        max_reconnects: how often a lost session of a member is opened again.
        settings: `token` of the servers, and the timeouts of `Patience` (serve/client/sessions.py).

    Raises ConfigError for sizes that do not fit; `connect` raises it for a task that is not of text.
    """

    def __init__(
        self, urls: Sequence[str], group_size: int, *, num_envs: int | None = None,
        curriculum: "str | SharedCurriculum | None" = "auto", seed: int = 0, max_turns: int | None = None,
        max_reconnects: int = 3, **settings: Any,
    ) -> None:  # fmt: skip
        num_envs = group_size if num_envs is None else num_envs
        if group_size < 1 or num_envs < group_size or num_envs % group_size:
            raise ConfigError(
                f"num_envs={num_envs} sessions hold no whole groups of group_size={group_size}: use a multiple of it, "
                "so that no session is idle"
            )
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"max_turns={max_turns}: at least 1, or None")
        self.group_size = group_size
        self.max_turns = max_turns
        self._given, self._seed = curriculum, seed
        self._curriculum: SharedCurriculum | None = None
        self._pool = AsyncEnvPool(urls, num_envs, max_reconnects=max_reconnects, **settings)
        self._connecting, self._generating = asyncio.Lock(), asyncio.Lock()
        self._free: asyncio.Queue[range | None] = asyncio.Queue()  # sessions of a group each; None: closed
        self._lent: dict[int, range] = {}  # sessions of the groups that are played, by their numbers
        self._num_waiting = 0  # groups that wait for sessions
        self._is_open = False

    @property
    def spec(self) -> EnvSpec:
        return self._pool.spec

    @property
    def curriculum(self) -> SharedCurriculum:
        """The curriculum of this pool, which other pools may share."""
        assert self._curriculum is not None, "not connected"
        return self._curriculum

    async def connect(self) -> None:
        """Open all sessions; if one fails, close the others and raise its error. A second call does nothing."""
        async with self._connecting:
            if self._is_open:
                return
            await self._pool.connect()
            try:
                self._curriculum = self._made_curriculum()
            except BaseException:
                await self._pool.close()
                raise
            self._free, self._lent = asyncio.Queue(), {}
            for first in range(0, self._pool.num_envs, self.group_size):
                self._free.put_nowait(range(first, first + self.group_size))
            self._is_open = True

    async def close(self) -> None:
        """Close all sessions, within 10 s. A second call does nothing."""
        self._is_open = False
        for _ in range(self._num_waiting):
            self._free.put_nowait(None)
        await self._pool.close()

    async def __aenter__(self) -> "AsyncGroupPool":
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def run_group(
        self,
        task: str | None,
        policy: Policy,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EpisodeGroup:
        """Play a group until all its members are over.

        Args:
            task: None lets the curriculum choose.
            policy: a function or coroutine function; see `Policy`.
            seed: of every member's reset; None: the group's own.
            options: further options of the reset, such as {"chaos": 0}.

        Raises ConfigError for an unknown task and for a policy that returns no line for each dialogue; EnvError if a
        member cannot begin. A member that is lost or raises later has failed, and the others play on.
        """
        async with self.group(task, seed=seed, options=options) as group:
            while group.playing:
                await self.step_group(group, await self._generated(policy, group))
        return group

    @asynccontextmanager
    async def group(
        self, task: str | None = None, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncIterator[EpisodeGroup]:
        """Begin a group for `step_group`, when there are sessions for it, and give these back at the end."""
        group = await self.begin_group(task, seed=seed, options=options)
        try:
            yield group
        finally:
            self.end_group(group)

    async def begin_group(
        self, task: str | None = None, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> EpisodeGroup:
        """Begin a group as `group` does; `end_group` has to follow."""
        # 1. Sessions, and only then a task: the curriculum knows more by then.
        self._check_open()
        if options is not None and (not isinstance(options, Mapping) or "task" in options):
            raise ConfigError(
                f"options={options}: a mapping of options of the reset, without the task: give that as task="
            )
        self._check_task(task)
        sessions = await self._sessions()
        try:
            number, chosen, own_seed = self.curriculum.begin(task)
        except BaseException:  # a curriculum of a user's own may raise anything
            self._free.put_nowait(sessions)
            raise
        self._lent[number] = sessions
        group = EpisodeGroup(number, chosen, own_seed if seed is None else seed, [], [])
        # 2. Reset all members. Without all of them there is no group.
        try:
            self._check_task(chosen)
            asked = dict(options or {}) | ({} if chosen is None else {"task": chosen})
            answers = await together([self._pool.begin(i, group.seed, asked) for i in sessions])
            for answer in answers:
                group.begin(answer, self.spec.tasks or {})
        except BaseException as e:
            self.end_group(group)
            if isinstance(e, EnvServerFault):
                raise EnvError(f"member {e.place} of group {number} cannot begin: {e}") from e
            raise
        # 3. Without a chosen task, the environment has drawn one.
        group.task = group.members[0].task
        return group

    def end_group(self, group: EpisodeGroup) -> None:
        """Give the sessions of a group back, in the event loop's thread. A second call does nothing."""
        self.curriculum.end(group.number)
        if (sessions := self._lent.pop(group.number, None)) is not None:
            self._free.put_nowait(sessions)

    async def step_group(self, group: EpisodeGroup, commands: Sequence[str]) -> None:
        """Step all members that play, at the same time; members that are over stand still.

        Args:
            commands: a line for each member of `group.playing`, in its order.
        """
        self._check_open()
        if (sessions := self._lent.get(group.number)) is None:
            raise EnvError(f"group {group.number} has ended and has no sessions: begin another one")
        lines = checked_lines(commands, len(group.playing))
        steps = zip(group.playing, lines, strict=True)
        await together([self._step(group, i, sessions[i], line) for i, line in steps])

    def record_group_result(self, group: EpisodeGroup, rate: float | None = None) -> None:
        """Record a try of the group's task in the curriculum. Nothing else changes the curriculum.

        Args:
            rate: result of the group in [0, 1]; None: its success rate. If all members failed, nothing is recorded.

        Raises ConfigError if the group still plays or was recorded, and if there is no rate or no curriculum.
        """
        if group.playing:
            raise ConfigError(
                f"record_group_result: members {group.playing} of group {group.number} still play"
            )
        if all(member.ended_by == "failed" for member in group.members):
            return
        found = group.success_rate if rate is None else rate
        if found is None:
            raise ConfigError(
                f'record_group_result: no member of group {group.number} reported info["is_success"]: give a rate in '
                "[0, 1], for example of its mean return"
            )
        if not 0.0 <= found <= 1.0:
            raise ConfigError(f"record_group_result: rate={found} is not in [0, 1]")
        if group.is_recorded:
            raise ConfigError(f"record_group_result: group {group.number} was recorded before")
        self.curriculum.record(group.task, found)
        group.is_recorded = True

    # -- Parts of a turn.

    async def _sessions(self) -> range:
        """Wait for the sessions of a group."""
        self._num_waiting += 1
        try:
            sessions = await self._free.get()
        finally:
            self._num_waiting -= 1
        if sessions is None:
            raise EnvError("the pool was closed while a group waited for sessions")
        return sessions

    async def _generated(self, policy: Policy, group: EpisodeGroup) -> Sequence[str]:
        """Call the policy. Groups that are played at once take turns."""
        async with self._generating:
            lines = policy(group.observed())
            return await lines if inspect.isawaitable(lines) else lines

    async def _step(self, group: EpisodeGroup, i: int, session: int, line: str) -> None:
        try:
            answer = await self._pool.act(session, line)
        except (EnvServerLost, RemoteError) as e:
            group.fail(i, line, str(e))
        else:
            group.step(i, line, answer, self.max_turns)

    # -- Checks.

    def _made_curriculum(self) -> SharedCurriculum:
        spec, given = self.spec, self._given
        if not spec.is_text:
            raise ConfigError(
                f"{self._pool.addresses[0]} serves no task of text (its actions are {spec.action.kind}), and groups "
                "are dialogues: use AsyncEnvPool or SyncEnvPool, which step any environment"
            )
        if isinstance(given, SharedCurriculum):
            return given
        name = ("tiers" if spec.tasks else None) if given == "auto" else given
        if name is not None and not spec.tasks:
            raise ConfigError(
                f"curriculum={name}: {self._pool.addresses[0]} names no tasks: give the environment task_tiers, or "
                "leave it out"
            )
        return SharedCurriculum(None if name is None else make_curriculum(name, spec.tasks or {}), self._seed)

    def _check_task(self, task: str | None) -> None:
        known = self.spec.tasks
        if task is not None and known is not None and task not in known:
            raise ConfigError(f"task={task}: the servers have no such task{near(task, list(known))}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise EnvError("the pool has no sessions: connect() it first, or use it inside its with block")


class SyncGroupPool:
    """An AsyncGroupPool for programs without an event loop. Threads may share it."""

    def __init__(self, urls: Sequence[str], group_size: int, **settings: Any) -> None:
        self._pool = AsyncGroupPool(urls, group_size, **settings)
        self._generating = threading.Lock()
        self._loop = LoopThread()
        try:
            self._loop.done(self._pool.connect())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SyncGroupPool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def spec(self) -> EnvSpec:
        return self._pool.spec

    @property
    def curriculum(self) -> SharedCurriculum:
        return self._pool.curriculum

    def close(self) -> None:
        """Close all sessions and end the thread, within 15 s. A second call does nothing."""
        self._loop.close(self._pool.close())

    def run_group(
        self,
        task: str | None,
        policy: Policy,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> EpisodeGroup:
        """Play a group, as AsyncGroupPool does. The policy is called in this thread, a coroutine in the pool's."""
        with self.group(task, seed=seed, options=options) as group:
            while group.playing:
                with self._generating:
                    lines = policy(group.observed())
                    if inspect.isawaitable(lines):
                        lines = self._loop.done(_awaited(lines))
                self.step_group(group, lines)
        return group

    @contextmanager
    def group(
        self, task: str | None = None, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Iterator[EpisodeGroup]:
        """Begin a group for `step_group`, when there are sessions for it, and give these back at the end."""
        group = self._loop.done(self._pool.begin_group(task, seed=seed, options=options))
        try:
            yield group
        finally:
            self._loop.done(self._ended(group))

    def step_group(self, group: EpisodeGroup, commands: Sequence[str]) -> None:
        self._loop.done(self._pool.step_group(group, commands))

    def record_group_result(self, group: EpisodeGroup, rate: float | None = None) -> None:
        self._pool.record_group_result(group, rate)

    async def _ended(self, group: EpisodeGroup) -> None:
        self._pool.end_group(group)


async def _awaited(lines: Awaitable[Sequence[str]]) -> Sequence[str]:
    return await lines
