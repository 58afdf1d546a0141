"""Deterministic evaluation: the mode of the policy, frozen normalisers, fixed-seed environments of their own.

Episode j starts from seed (seed, "eval", j) whoever plays it, so scores do not depend on W, nor on what training did.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddppo.collectives.group import gather_bytes
from ddppo.config.settings import Config
from ddppo.distributed.join import resolve_device
from ddppo.distributed.topologies.base import RankContext
from ddppo.distributed.topologies.known import find
from ddppo.envs.make import make_eval_env
from ddppo.envs.meaning import differences
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import ObsArrays, VecEnv
from ddppo.errors import (
    CollectiveError,
    EnvRaised,
    EvaluationFailed,
    RunFolderError,
    Stopped,
    TrainingError,
    in_one_line,
    own_traceback,
)
from ddppo.files import move_aside, stored
from ddppo.models.actor_critic import ActorCritic, raw_dtype
from ddppo.models.build import build_model
from ddppo.models.distributions import ActionDistribution
from ddppo.plugins import added, imported
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import RolloutCollector
from ddppo.processes.signals import StopRequest
from ddppo.records import checkpoint
from ddppo.records.summary import evaluation_metrics
from ddppo.seeding import derived_seed, stream
from ddppo.spaces import ArraySpec, EnvSpec, each

_LONGEST_EPISODE = 300_000  # steps; a policy that never ends its task would be evaluated for ever


@dataclass(frozen=True, slots=True)
class Scores:
    """Undiscounted returns and lengths (steps; tokens typed, of text) of episodes, in the order of their numbers.

    Where the evaluator is told, also whether each achieved what was asked, 1 or 0, NaN where the environment does not
    tell, and the tier of its task, "" where it has none.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    achieved: tuple[float, ...] = ()
    tiers: tuple[str, ...] = ()


class PolicyMemory:
    """What a policy remembers of E environments that it acts in: `state` `[E, S]`, 0 where episodes start."""

    def __init__(self, model: ActorCritic, num_envs: int) -> None:
        self.state = next(model.parameters()).new_zeros(num_envs, model.state_size)

    @torch.inference_mode()
    def forget(self, envs: np.ndarray) -> None:
        """Forget what was of some environments, by their indices or as `[E]` bool: new episodes start there."""
        self.state[torch.from_numpy(envs)] = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its observation normaliser.

    What a model with memory says follows from what it `remembered`; without, each observation starts an episode.
    """

    model: ActorCritic
    normalizer: ObsNormalizer | None
    spec: EnvSpec

    def memory(self, num_envs: int) -> PolicyMemory | None:
        """Return what it remembers at the start of episodes, None of a model without memory."""
        return PolicyMemory(self.model, num_envs) if self.model.state_size else None

    @torch.inference_mode()
    def act(
        self, obs: ObsArrays, mask: np.ndarray | None, remembered: PolicyMemory | None = None
    ) -> np.ndarray:
        """Return the mode of the policy for obs `[E, *shape]` as actions `[E, *action.shape]`."""
        return self.distribution(self.params(obs, remembered), mask).mode().cpu().numpy()

    def noise(self, streams: Sequence[np.random.Generator]) -> np.ndarray:
        """Draw the noise `[E, model.num_noise]` of a step, of each environment by its own stream."""
        size, is_normal = self.model.num_noise, self.spec.action.kind == "box"
        return np.stack([s.standard_normal(size) if is_normal else s.random(size) for s in streams])

    @torch.inference_mode()
    def sample(
        self,
        obs: ObsArrays,
        mask: np.ndarray | None,
        noise: np.ndarray,
        remembered: PolicyMemory | None = None,
    ) -> np.ndarray:
        """Return actions drawn by noise `[E, model.num_noise]`, of the law that `ActionDistribution.sample` names."""
        params = self.params(obs, remembered)
        return self.distribution(params, mask).sample(torch.from_numpy(noise)).numpy()

    @torch.inference_mode()
    def params(self, obs: ObsArrays, remembered: PolicyMemory | None = None) -> torch.Tensor:
        """Return the action parameters `[E, P]` for obs `[E, *shape]`, and have `remembered` go on."""
        parameter = next(self.model.parameters())

        def tensor(leaf: ArraySpec, array: np.ndarray) -> torch.Tensor:
            kind = raw_dtype(leaf, parameter.dtype, is_normalized=self.normalizer is not None)
            return torch.from_numpy(array).to(parameter.device, kind)

        x = each(tensor, self.spec.obs, obs)
        given = x if self.normalizer is None else self.normalizer(x)
        if remembered is None:
            return self.model.action_params(given)
        params, _, remembered.state = self.model.step(given, remembered.state)
        return params

    def distribution(self, params: torch.Tensor, mask: np.ndarray | None) -> ActionDistribution:
        """Return the distribution that action parameters `[E, P]` describe, of what `mask` `[E, mask_size]` allows."""
        allowed = None if mask is None else torch.from_numpy(mask).to(params.device)
        return self.model.distribution(params, allowed)


def load_policy(config: Config, state: dict[str, Any]) -> Policy:
    """Return the policy of a checkpoint's `state` for the task and model that `config` names.

    Raises RunFolderError if its parameters are those of another model or task, be it that they fit: unless
    config.other_spaces says that this is meant.
    """
    spec, device, dtype = probe(config.env), resolve_device(config.device), getattr(torch, config.dtype)
    if not config.other_spaces and (said := differences(state.get("spaces"), spec.spaces)):
        raise RunFolderError(
            f"{config.env.id} is not the task that the checkpoint of iteration {state['iteration']} was trained on: "
            f"{'; '.join(said)}: make it as it was, or add other_spaces=true if this is meant"
        )
    model = build_model(spec, config.model, config.seed, dtype).to(device)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as e:  # names every parameter, on as many lines
        raise RunFolderError(
            f"the checkpoint of iteration {state['iteration']} does not fit {config.env.id} and model.name="
            f"{config.model.name} as config.yaml of this run describes them: it is another run's"
        ) from e
    normalizer = None
    if "obs_moments" in state:
        normalizer = ObsNormalizer(spec.obs, device, dtype)
        normalizer.load(state["obs_moments"])
    return Policy(model, normalizer, spec)


def play_episodes(
    policy: Policy, env: VecEnv, episodes: Sequence[int], seed: int, options: dict[str, Any] | None = None,
    *, deterministic: bool = True, check_stop: Callable[[], None] = lambda: None,
) -> Scores:  # fmt: skip
    """Play the episodes of these numbers, as many side by side as `env` has environments.

    options: that each begins with, if any. deterministic: by the mode, else actions are drawn, of each episode by a
    stream of its own. check_stop: called before every step; what it raises ends the episodes.
    """
    of_all = None if options is None else [options] * env.num_envs
    returns = np.zeros(len(episodes))
    lengths = np.zeros(len(episodes), dtype=np.int64)
    for first in range(0, len(episodes), env.num_envs):
        wave = episodes[first : first + env.num_envs]
        numbers = [
            wave[i % len(wave)] for i in range(env.num_envs)
        ]  # a short last wave repeats episodes, unread
        seeds = [derived_seed(seed, "eval", j) for j in numbers]
        streams = [] if deterministic else [stream(of_episode, "action") for of_episode in seeds]
        obs, mask = env.reset(seeds, of_all)
        playing, remembered = np.arange(env.num_envs) < len(wave), policy.memory(env.num_envs)
        steps = 0
        while playing.any():
            steps += 1
            if steps > _LONGEST_EPISODE:
                raise TrainingError(
                    f"evaluation episode {wave[int(np.flatnonzero(playing)[0])]} has not ended after "
                    f"{_LONGEST_EPISODE:,} steps: set env.max_episode_steps for a task without a limit of its own"
                )
            check_stop()
            if deterministic:
                actions = policy.act(obs, mask, remembered)
            else:
                actions = policy.sample(obs, mask, policy.noise(streams), remembered)
            step = env.step(actions)
            counted = playing & step.valid
            index = first + np.flatnonzero(counted)
            returns[index] += step.rewards[counted]
            lengths[index] += 1
            playing[step.ended] = False
            if remembered is not None:
                remembered.forget(step.terminated | step.truncated | ~step.valid)
            obs, mask = step.obs, step.action_mask
    return Scores(tuple(returns.tolist()), tuple(int(n) for n in lengths))


class Evaluator:
    """Plays the episodes of an evaluation, here in batches of environments that it makes for each.

    A plugin names a subclass for actions of a kind that no such batch takes (`Plugin.evaluators`, `evaluator_of`).
    num_columns: numbers that it tells of an episode, the return first. unit: of the lengths of episodes.
    in_training_envs: while a run trains, the rank's own environments are played in, which lie idle then.
    """

    num_columns = 2
    unit = "steps"
    in_training_envs = False

    def __init__(self, policy: Policy, config: Config, collector: RolloutCollector | None = None) -> None:
        """collector: of the rank that trains; None where a policy is evaluated by itself."""
        self.policy = policy
        self.config = config
        self.collector = collector

    def num_episodes(self, asked: int) -> int:
        """Return how many episodes are played where so many are asked for."""
        return asked

    def play(
        self, lots: Sequence[Sequence[int]], num_envs: int, seed: int, options: dict[str, Any] | None = None,
        *, deterministic: bool = True, check_stop: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Play lots of episodes by their numbers, one lot after another; return their numbers, `[n, num_columns]` each.

        num_envs: environments that an own batch may have. Else as `play_episodes`.
        """
        found: list[torch.Tensor] = []
        env = make_eval_env(self.config.env, num_envs)
        try:
            for lot in lots:
                scores = play_episodes(
                    self.policy, env, lot, seed, options, deterministic=deterministic, check_stop=check_stop
                )
                rows = list(zip(scores.returns, scores.lengths, strict=True))
                found.append(torch.tensor(rows, dtype=torch.float64, device="cpu"))  # a task may set another
        finally:
            env.close()
        return found

    def scores(self, columns: Sequence[Sequence[float]]) -> Scores:
        """Return the scores of episodes of which `columns` hold the numbers. Raises TrainingError if there are none."""
        returns, lengths = columns
        return Scores(tuple(returns), tuple(int(n) for n in lengths))

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Return metrics of the evaluation besides those of returns and lengths."""
        return {}


def evaluator_of(spec: EnvSpec) -> type[Evaluator]:
    """Return the class that evaluates policies in tasks of this kind."""
    path = added("evaluators").get(spec.action.kind)
    if path is None:
        return Evaluator
    found: type[Evaluator] = imported(path)
    return found


# -- Evaluation while a run trains: who plays which episode, the best scores so far, and when the target was reached.


_MAX_EVAL_ENVS = 64


class RunEvaluator:
    """What evaluations have said so far, the same on all ranks; empty dicts where there was none, or no such.

    best: metrics of the best evaluation, and its env_steps. target: when target_return was first reached.
    num_shards: lots of episodes that each rank plays one by one; where results are to be the same bits at any W, there
    are as many of all ranks.
    """

    def __init__(self, context: RankContext) -> None:
        self.config = context.config
        policy = Policy(context.model, context.obs_normalizer, context.spec)
        self.evaluator = evaluator_of(context.spec)(policy, context.config, context.topology.collector)
        self.group = context.group
        self.eval_ranks = list(context.eval_ranks)  # ranks that can play: they hold the parameters
        self.num_shards = context.shape.local_num_shards
        self.best: dict[str, float] = {}
        self.target: dict[str, float] = {}

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from a checkpoint's state, with the best policy that it names in its place in `folder`.

        A crash may have undone the iteration of a later one, which goes by another name then. Where there is none, as
        after damage, the best scores are forgotten.
        """
        self.best, self.target, is_there = state["best"], state["target"], False
        if self.group.rank == 0:
            is_there = _best_is_there(folder, self.best.get("env_steps"))
        if not self.group.gather(torch.tensor([is_there], dtype=torch.float64))[0].item():
            self.best = {}

    def score(
        self,
        num_episodes: int,
        env_steps: int,
        wall_s: float,
        *,
        is_last: bool = False,
        options: dict[str, Any] | None = None,
        stop: StopRequest | None = None,
    ) -> tuple[dict[str, Any], bool]:
        """Evaluate after env_steps and wall_s of training; return eval/* metrics, and whether it is the best so far.

        options: that episodes begin with, where the evaluator gives none of its own. stop: whose signal cuts the
        evaluation short. Raises EvaluationFailed, on all ranks alike, where one rank came to no scores; the best so far
        stays that.
        """
        start = time.perf_counter()

        def check_stop() -> None:
            if (
                stop is not None and stop.signal is not None
            ):  # the end of run.max_minutes does not count: see Loop
                raise Stopped(stop.signal)

        scores = self._play(num_episodes, self._most_envs(is_last=is_last), options, check_stop)
        if not math.isfinite(total := sum(scores.returns)):  # nothing would ever be better than NaN
            raise EvaluationFailed(f"the mean return of {self.config.env.id} is {total:g}")
        metrics = evaluation_metrics(scores.returns, scores.lengths, time.perf_counter() - start)
        metrics |= self.evaluator.metrics(scores)
        mean = metrics["eval/return_mean"]
        is_best = not self.best or mean > self.best["return_mean"]
        if is_best:
            self.best = {k.removeprefix("eval/"): v for k, v in metrics.items()}
            self.best["env_steps"] = env_steps
        target = self.config.target_return
        if target is not None and not self.target and mean >= target:
            self.target = {"time_to_target_s": wall_s, "steps_to_target": env_steps}
        return metrics, is_best

    def _most_envs(self, *, is_last: bool) -> int:
        """Return how many environments a player may have: served ones are only as many as there are slots."""
        env = self.config.env
        if not env.urls:
            return _MAX_EVAL_ENVS
        if is_last and not find(self.config.dist.topology).own_pace:  # those of training have been given back
            return max(1, min(_MAX_EVAL_ENVS, env.num_envs // self._num_lots))
        return 1

    def _play(
        self,
        num_episodes: int,
        most_envs: int,
        options: dict[str, Any] | None,
        check_stop: Callable[[], None],
    ) -> Scores:
        """Play episodes 0 to num_episodes - 1, dealt to the players in turn; all ranks return all scores."""
        evaluator, num_episodes = self.evaluator, self.evaluator.num_episodes(num_episodes)
        lots = [lot for lot in self._lots(num_episodes) if lot]
        num_envs = min(self._most_of_a_lot(num_episodes), most_envs)

        def play_mine() -> list[torch.Tensor]:
            if not lots:
                return []
            return evaluator.play(lots, num_envs, self.config.seed, options, check_stop=check_stop)

        columns = self._of_all(self._agreed(play_mine), evaluator.num_columns, num_episodes)
        try:
            return evaluator.scores(columns)
        except TrainingError as e:  # all episodes were lost, which all ranks see alike
            raise EvaluationFailed(str(e)) from e

    def _agreed(self, play_mine: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return what `play_mine` returns, once all ranks have told that theirs did. Raises EvaluationFailed on all.

        A rank whose episodes fail says so here instead of leaving the others to wait for its scores.
        """
        parts: list[torch.Tensor] = []
        fault: BaseException | None = None
        try:
            parts = play_mine()
        except CollectiveError:  # nothing can be told
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as e:  # of the user's task: anything
            fault = e
        said = b"" if fault is None else json.dumps(_in_words(fault)).encode()
        told, _ = gather_bytes(self.group, said)
        for rank, words in enumerate(told):
            if words:
                sentence, signal = json.loads(words)
                where = f"rank {rank}: " if len(told) > 1 and signal is None else ""
                cause = fault or CollectiveError(f"an evaluation failed: {where}{sentence}")
                raise EvaluationFailed(where + sentence, _trace_of(fault), signal) from cause
        return parts

    @property
    def _num_lots(self) -> int:
        return len(self.eval_ranks) * self.num_shards

    def _most_of_a_lot(self, num_episodes: int) -> int:
        return -(-num_episodes // self._num_lots)

    def _lots(self, num_episodes: int) -> list[range]:
        """Return the numbers of this rank's episodes in each of its lots."""
        if self.group.rank not in self.eval_ranks:
            return []
        first = self.eval_ranks.index(self.group.rank) * self.num_shards
        return [range(first + s, num_episodes, self._num_lots) for s in range(self.num_shards)]

    def _of_all(self, lots: Sequence[torch.Tensor], num_columns: int, num_episodes: int) -> list[list[float]]:
        """Return numbers of all episodes by episode, of rows `[n, k]` of this rank's lots, as k lists."""
        most = self._most_of_a_lot(num_episodes)
        own = torch.full((self.num_shards, most, num_columns), math.nan, dtype=torch.float64)
        for of_lot, rows in zip(own, lots, strict=False):
            of_lot[: len(rows)] = rows
        # [W, S, n/L, k] -> [L, n/L, k] -> [n/L, L, k] -> by episode, L lots of all P players
        dealt = self.group.gather(own)[self.eval_ranks].flatten(0, 1).transpose(0, 1).flatten(0, 1)
        return dealt[:num_episodes].T.tolist()


def _in_words(fault: BaseException) -> tuple[str, int | None]:
    """Return what ended a rank's episodes in a sentence, and the number of the signal if it was one."""
    if isinstance(fault, KeyboardInterrupt):
        stopped = fault if isinstance(fault, Stopped) else Stopped()
        return stopped.what, stopped.number
    if isinstance(fault, EnvRaised):
        return fault.said, None
    return (str(fault) if isinstance(fault, TrainingError) else in_one_line(fault)), None


def _trace_of(fault: BaseException | None) -> str:
    """Return the user's own part of a traceback, "" where the sentence says all."""
    if isinstance(fault, EnvRaised):
        return fault.trace
    if fault is None or isinstance(fault, (TrainingError, KeyboardInterrupt)):
        return ""
    return own_traceback(fault)


def _best_is_there(folder: Path, env_steps: float | None) -> bool:
    """Return whether best.pt is that of `env_steps`, once the one before has its place back if that is."""
    best, previous = folder / checkpoint.BEST, folder / checkpoint.PREVIOUS
    if _is_of(best, env_steps):
        return True
    move_aside(best)
    if not _is_of(previous, env_steps):
        return False
    with stored(best):
        previous.rename(best)
    return True


def _is_of(path: Path, env_steps: float | None) -> bool:
    return checkpoint.is_whole(path) and bool(checkpoint.load(path)["env_steps"] == env_steps)
