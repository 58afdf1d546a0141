"""The messages of a step, for environments that other ranks step: actions to all ranks, and results back to rank 0.

`StepMessages` broadcasts all actions from rank 0, and gathers the results there. On rank 0 `RankEnvs` looks like any
other batch of environments.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ddppo.collectives.group import Group
from ddppo.envs.encoding.observations import RowLayout
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep, ObsArrays, Options, Unsaved
from ddppo.spaces import each


class StepMessages:
    """The messages of a step: actions `[N, *shape]` from rank 0, and each stepping rank's results to rank 0.

    All memory is allocated here once, so that stepping allocates nothing.
    """

    def __init__(
        self,
        group: Group,
        spec: EnvSpec,
        env_ranges: Mapping[int, range],  # global indices of the environments of each stepping rank
        dtype: str,
        *,
        ends_early: bool = False,  # whether a rollout may have fewer than T steps
    ) -> None:
        self._group = group
        self._ends_early = ends_early
        # A gather takes messages of one size. So every rank, rank 0 too, sends rows for as many environments as any
        # rank has; `_rows` `[N]` finds the row of each environment among the W * most rows that arrive.
        most = max(map(len, env_ranges.values()))
        rows = [torch.arange(len(envs)) + rank * most for rank, envs in env_ranges.items()]
        self._rows = torch.cat(rows)
        kind = np.dtype(dtype if spec.action.kind == "box" else np.int64)
        # Actions as a vector; behind them a flag, if rollouts end early: 1 says that this one has ended.
        shape = (len(self._rows), *spec.action.shape)
        self._message = torch.from_numpy(np.zeros(int(np.prod(shape)) + ends_early, kind))
        self._actions = self._message[: int(np.prod(shape))].view(shape)
        # One record per environment: packed observation, packed final observation, reward, flags.
        self._layout = RowLayout(spec)
        flags = [(name, bool) for name in ("terminated", "truncated", "valid", "ended", "is_life_loss")]
        fields: list[Any] = [
            ("row", self._layout.dtype),
            ("final_row", self._layout.dtype),
            ("reward", np.float64),
        ]
        message = np.zeros(most, np.dtype([*fields, *flags], align=True))
        self._bytes = torch.from_numpy(message.view(np.uint8))
        self._results = message[: len(env_ranges.get(group.rank, ()))]

    # -- On a rank that steps environments.

    def actions_of(self, rollout_steps: int) -> Iterator[np.ndarray]:
        """Yield the actions of all N environments for each step of a rollout; the caller answers each."""
        actions = self._actions.numpy()
        if not self._ends_early:
            for _ in range(rollout_steps):
                self._group.broadcast_(self._message)
                yield actions
            return
        while self._group.broadcast_(self._message)[-1] == 0:
            yield actions

    def send_reset(self, obs: ObsArrays, mask: np.ndarray | None) -> None:
        self._write("row", obs, mask)
        self._group.gather_at_root(self._bytes)

    def send_step(self, step: EnvStep) -> None:
        results = self._results
        self._write("row", step.obs, step.action_mask)
        results["reward"] = step.rewards
        results["terminated"], results["truncated"], results["valid"] = (
            step.terminated,
            step.truncated,
            step.valid,
        )
        results["ended"] = False
        results["ended"][step.ended] = True
        # Final observations exist only for environments in which an episode ended in this step.
        if len(step.ended):
            finals = self._layout.obs(results["final_row"])
            each(lambda out, x: out.__setitem__(step.ended, x), finals, step.final_obs)
            results["is_life_loss"][step.ended] = False if step.is_life_loss is None else step.is_life_loss
        self._group.gather_at_root(self._bytes)

    def _write(self, field: str, obs: ObsArrays, mask: np.ndarray | None) -> None:
        rows = self._results[field]
        each(lambda out, x: out.__setitem__(..., x), self._layout.obs(rows), obs)
        if mask is not None:
            out = self._layout.mask(rows)
            assert out is not None
            out[...] = mask

    # -- On rank 0.

    def request(self, actions: np.ndarray | None) -> np.ndarray:
        """Send actions and return the results of all environments `[N]`.

        None for a reset: every rank then starts its environments without a message, because it knows their seeds.
        """
        if actions is not None:
            self._actions.numpy()[...] = actions
            self._group.broadcast_(self._message)
        messages = self._group.gather_at_root(self._bytes)
        assert messages is not None
        rows = messages.view(-1, self._results.itemsize).index_select(0, self._rows)
        return rows.numpy().reshape(-1).view(self._results.dtype)

    def send_end(self) -> None:
        """Say that the rollout has ended, if it may end early: every stepping rank then leaves `actions_of`."""
        if self._ends_early:
            self._message[-1] = 1
            self._group.broadcast_(self._message)
            self._message[-1] = 0

    def read(self, rows: np.ndarray) -> tuple[ObsArrays, np.ndarray | None]:
        """Return the observations and action masks in packed rows."""
        return self._layout.obs(rows), self._layout.mask(rows)


class RankEnvs(Unsaved):
    """The `VecEnv` of rank 0: the environments of all other ranks."""

    def __init__(self, messages: StepMessages, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._messages = messages

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        # Seeds and options are not sent: each stepping rank has them from its own task sampler.
        return self._messages.read(self._messages.request(None)["row"])

    def step(self, actions: np.ndarray) -> EnvStep:
        results = self._messages.request(actions)
        obs, mask = self._messages.read(results["row"])
        ended = np.flatnonzero(results["ended"])
        final_obs, _ = self._messages.read(results["final_row"][ended])
        is_life_loss = results["is_life_loss"][ended]
        return EnvStep(
            obs=obs,
            rewards=results["reward"],
            terminated=results["terminated"],
            truncated=results["truncated"],
            valid=results["valid"],
            ended=ended,
            final_obs=final_obs,
            action_mask=mask,
            is_life_loss=is_life_loss if is_life_loss.any() else None,
        )

    def close(self) -> None:
        """Do nothing: the environments belong to the other ranks."""
