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
        "how environments are stepped: sync (in turn, in the rank), batched (all at once, in the rank: "
        "classic control and synthetic), pool (in a few processes, by shared memory), native (the task's "
        "own batch, whose random stream depends on W, except for ALE/... and envpool/...), remote (behind"
        " an address, see env.urls), auto (batched where it can be; native for ALE/... and envpool/...; "
        "else sync or pool by measured step time; for text sync, or remote if a process can hold only "
        "one). sync, batched, pool and remote give the same numbers",
    )
    urls: list[str] = setting(
        meaning="backend=remote: addresses of servers (python -m ddppo.serve), e.g. [ws://127.0.0.1:8000]; "
        "environments take them in turn. []: each rank starts a server of its own, which ends with the "
        "rank",
        factory=list,
    )
    token_file: str | None = setting(None, "file whose first line is the token for env.urls")
    batch_wait_ms: float | None = setting(
        None,
        "tasks of text: how long a batch of generation waits for further environments after the first "
        "answer; null waits for all, so that the run can be repeated to the bit",
        low=0,
        high=60_000,
    )
    num_workers: int | None = setting(
        None,
        "backend=pool: processes of a rank. null: the rank's cores, or more if environments wait instead "
        "of compute. For ALE/... and envpool/...: threads of a rank; null is its cores",
        low=1,
    )
    max_episode_steps: int | None = setting(
        None, "truncate episodes here instead of at the task's limit", low=1
    )
    context: int | None = setting(
        None,
        "length of a context that is observed beside everything else and given to each episode in the "
        "options of reset, as a search over orders does; null is none (docs/design.md)",
        low=1,
        high=65_536,
    )
    kwargs: dict[str, Any] = setting(
        meaning="keyword arguments of the environment; a keyword that its preset names may be set as "
        "env.<keyword>",
        factory=dict,
    )
    max_turns: int | None = setting(
        None,
        "tasks of text: turns after which an episode is truncated; null leaves it to the task",
        low=1,
    )
    slow_ranks: dict[int, float] = setting(
        meaning="slowness for studies: {rank: seconds slept at every vectorised step}", factory=dict
    )

    @property
    def is_ale(self) -> bool:
        """Whether ale-py's batch steps this task, as it does an id ALE/... unless another backend is asked for."""
        return self.id.startswith("ALE/") and self.backend in ("auto", "native")

    @property
    def is_envpool(self) -> bool:
        """Whether EnvPool steps this task, as it does an id envpool/... unless another backend is asked for."""
        return self.id.startswith("envpool/") and self.backend in ("auto", "native")
