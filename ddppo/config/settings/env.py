"""What is played: the environment and who steps it."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from ddppo.config.fields import setting


@dataclass(slots=True)
class EnvConfig:
    id: str = setting(MISSING, "Gymnasium id, e.g. CartPole-v1 or my_pkg.envs:MyEnv-v0")
    num_envs: int = setting(
        8, "environments N of all ranks (scaling=strong) or of one rank (scaling=weak)", low=1
    )
    backend: str = setting(
        "auto",
        "who steps them: batched (all at once in the rank: classic control and synthetic, the numbers of sync), sync "
        "(in turn in the rank), pool (a few processes, shared memory), native (the task's own batched implementation; "
        "its random stream depends on W, but not that of ALE/..., which ale-py preprocesses, or of envpool/...), "
        "remote (each served by a process of its own behind an address, the numbers of sync: see env.urls), auto "
        "(batched, native for these two, or "
        "sync or pool by measured step time; of text remote where a process can hold one only, else sync)",
        choices=("auto", "batched", "sync", "pool", "native", "remote"),
    )
    urls: list[str] = setting(
        meaning="backend=remote: addresses of servers (python -m ddppo.serve), which environments take in turn, e.g. "
        "[ws://127.0.0.1:8000]; [] starts one for each rank, which ends with it",
        factory=list,
    )
    token_file: str | None = setting(None, "a file whose first line is the token that env.urls ask for")
    batch_wait_ms: float | None = setting(
        None,
        "of a task of text: how long a batch of generation waits for further environments once one has answered; null "
        "for all, with which a run can be repeated to the bit",
        low=0,
        high=60_000,
    )
    num_workers: int | None = setting(
        None,
        "processes of a rank with backend=pool; null takes as many as keep the rank's cores busy: its cores, more "
        "where environments wait rather than compute. For ALE/... and envpool/... threads of a rank; null is its cores",
        low=1,
    )
    max_episode_steps: int | None = setting(
        None, "truncate episodes here instead of at the task's limit", low=1
    )
    context: int | None = setting(
        None,
        "numbers of a context that is observed beside all else, and given to every episode by a reset's options, as a "
        "search over orders does; null is none (docs/design.md)",
        low=1,
        high=65_536,
    )
    kwargs: dict[str, Any] = setting(
        meaning="keyword arguments of the environment; those that its preset names may be set as env.<keyword>",
        factory=dict,
    )
    max_turns: int | None = setting(
        None,
        "of a task of text: turns of an episode before it is truncated; null leaves it to the task",
        low=1,
    )
    slow_ranks: dict[int, float] = setting(
        meaning="injected slowness for studies: {rank: seconds slept at every vectorised step}", factory=dict
    )

    @property
    def is_ale(self) -> bool:
        """Whether ale-py's batch steps this task, as it does an id ALE/... unless another backend is asked for."""
        return self.id.startswith("ALE/") and self.backend in ("auto", "native")

    @property
    def is_envpool(self) -> bool:
        """Whether EnvPool steps this task, as it does an id envpool/... unless another backend is asked for."""
        return self.id.startswith("envpool/") and self.backend in ("auto", "native")
