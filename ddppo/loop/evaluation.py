"""Evaluation: a policy plays episodes with the mode of its distribution and frozen normalisers.

Read from top to bottom: `Policy` is a model that acts, `play_episodes` plays episodes in a batch of environments,
`Evaluator` is the part of it that a kind of task may replace, and `RunEvaluator` splits the episodes of an evaluation
over the ranks of a run. Episode j starts from seed (seed, "eval", j) on whichever rank it is played, and environments
are made for evaluation alone. So scores depend neither on W nor on the random numbers that training has drawn.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from ddppo.algorithms.build import algorithm_class, build_networks
from ddppo.collectives.group import gather_bytes
from ddppo.config.settings import Config, eval_env, eval_seed
from ddppo.device import check_dtype, resolve
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.topologies.base import RankContext, Topology
from ddppo.distributed.topologies.known import find
from ddppo.envs.make import make_eval_env
from ddppo.envs.meaning import differences
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import ObsArrays, VecEnv, take_infos
from ddppo.errors import (
    CollectiveError,
    ConfigError,
    EnvRaised,
    EvaluationFailed,
    RunFolderError,
    Stopped,
    TrainingError,
    in_one_line,
    own_traceback,
)
from ddppo.files import move_aside, stored
from ddppo.models.actor_critic import ActorCritic, flat_obs, raw_dtype
from ddppo.models.distributions import ActionDistribution
from ddppo.plugins import added, imported
from ddppo.ppo.cpp.network import CppNetwork, why_not_cpp
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import RolloutCollector
from ddppo.processes.signals import StopRequest
from ddppo.records import checkpoint
from ddppo.records.metrics import EVAL_ENV_PREFIX, info_metrics
from ddppo.records.summary import evaluation_metrics
from ddppo.seeding import derived_seed, stream
from ddppo.spaces import ArraySpec, EnvSpec, each

# The remedy for simulators that cannot be made beside those of training.
NO_EVALUATION = (
    "If the simulator can be made only once in a process, set eval.final_episodes=0 eval.every_steps=0, and evaluate "
    "after the run by ddppo.evaluate"
)
_LONGEST_EPISODE = 300_000  # steps; a longer episode is an error, because some tasks never end


@dataclass(frozen=True, slots=True)
class Scores:
    """Results of episodes, in the order of their numbers."""

    returns: tuple[float, ...]  # undiscounted
    lengths: tuple[int, ...]  # steps; for tasks of text, tokens that the policy typed
    # Only from evaluators that know it, else empty:
    achieved: tuple[
        float, ...
    ] = ()  # 1 or 0, whether the episode achieved its goal; NaN if the task does not say
    tiers: tuple[str, ...] = ()  # the tier of the episode's task; "" if it has none
    # Numbers in the infos of the episodes' last steps, by name; empty if no episode has any.
    infos: tuple[Mapping[str, float], ...] = ()


# -- A model that acts.


class PolicyMemory:
    """The state of a model with memory in E environments, while its policy acts outside of training."""

    def __init__(self, model: ActorCritic, num_envs: int) -> None:
        # [E, S], 0 at episode starts.
        self.state = next(model.parameters()).new_zeros(num_envs, model.state_size)

    @torch.inference_mode()
    def forget(self, envs: np.ndarray) -> None:
        """Set the state of some environments, by indices or as `[E]` bool, to 0: new episodes start there."""
        self.state[torch.from_numpy(envs)] = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its observation normaliser, which acts on NumPy arrays.

    A model with memory gets a `PolicyMemory`, which each call moves on by a step. Without one, every observation is
    taken as the first of an episode.
    """

    model: ActorCritic
    normalizer: ObsNormalizer | None
    spec: EnvSpec
    # The model in C++, where a run learns in C++: there the action for an observation does not depend on the others.
    network: CppNetwork | None = None

    def memory(self, num_envs: int) -> PolicyMemory | None:
        """Return the memory at the start of episodes; None for a model without memory."""
        return PolicyMemory(self.model, num_envs) if self.model.state_size else None

    @torch.inference_mode()
    def act(self, obs: ObsArrays, mask: np.ndarray | None, memory: PolicyMemory | None = None) -> np.ndarray:
        """Return the mode of the policy for obs `[E, *shape]` as actions `[E, *action.shape]`."""
        return self.distribution(self.params(obs, memory), mask).mode().cpu().numpy()

    def noise(self, streams: Sequence[np.random.Generator]) -> np.ndarray:
        """Draw the action noise `[E, model.num_noise]` of a step, for each environment from its own stream."""
        size, is_normal = self.model.num_noise, self.spec.action.kind == "box"
        return np.stack([s.standard_normal(size) if is_normal else s.random(size) for s in streams])

    @torch.inference_mode()
    def sample(
        self,
        obs: ObsArrays,
        mask: np.ndarray | None,
        noise: np.ndarray,
        memory: PolicyMemory | None = None,
    ) -> np.ndarray:
        """Return actions sampled with noise `[E, model.num_noise]`; `ActionDistribution.sample` is the mapping."""
        params = self.params(obs, memory)
        return self.distribution(params, mask).sample(torch.from_numpy(noise)).numpy()

    @torch.inference_mode()
    def params(self, obs: ObsArrays, memory: PolicyMemory | None = None) -> torch.Tensor:
        """Return the action parameters `[E, P]` for obs `[E, *shape]`, and move `memory` on by this step."""
        parameter = next(self.model.parameters())

        def tensor(leaf: ArraySpec, array: np.ndarray) -> torch.Tensor:
            kind = raw_dtype(leaf, parameter.dtype, is_normalized=self.normalizer is not None)
            return torch.from_numpy(array).to(parameter.device, kind)

        x = each(tensor, self.spec.obs, obs)
        inputs = x if self.normalizer is None else self.normalizer(x)
        if self.network is not None:
            rows = flat_obs(inputs, self.spec, parameter.dtype).contiguous()
            return self.network.policy(rows, rows.new_empty(len(rows), self.network.num_params))
        if memory is None:
            return self.model.action_params(inputs)
        params, _, memory.state = self.model.step(inputs, memory.state)
        return params

    def distribution(self, params: torch.Tensor, mask: np.ndarray | None) -> ActionDistribution:
        """Return the distribution with action parameters `[E, P]`, restricted to actions that `mask` allows.

        mask: `[E, mask_size]` bool.
        """
        allowed = None if mask is None else torch.from_numpy(mask).to(params.device)
        return self.model.distribution(params, allowed)


def load_policy(config: Config, state: dict[str, Any]) -> Policy:
    """Return the policy of a checkpoint's `state`, for the task and model that `config` names.

    Raises RunFolderError if the parameters do not fit, or if the task's spaces differ in meaning from those that the
    policy was trained on. config.other_spaces=true allows such differences.
    """
    spec, device, dtype = (
        probe(config.env, device=config.device),
        resolve(config.device),
        getattr(torch, config.dtype),
    )
    check_dtype(config.dtype, config.device, device)
    if not config.other_spaces and (found := differences(state.get("spaces"), spec.spaces)):
        raise RunFolderError(
            f"{config.env.id} is not the task that the checkpoint of iteration {state['iteration']} was trained on: "
            f"{'; '.join(found)}: make it as it was, or add other_spaces=true if this is meant"
        )
    model = build_networks(config, spec).to(device)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as e:  # torch's message has a line for every parameter
        raise RunFolderError(
            f"the checkpoint of iteration {state['iteration']} does not fit {config.env.id} and model.name="
            f"{config.model.name} as config.yaml of this run describes them: it is another run's"
        ) from e
    normalizer = None
    if "obs_moments" in state:
        normalizer = ObsNormalizer(spec.obs, device, dtype)
        normalizer.load(state["obs_moments"])
    network = None
    learns_by_ppo = algorithm_class(config).learner_class is not None
    if learns_by_ppo and why_not_cpp(config, model, device, "flat") is None:
        network = CppNetwork(model, spec, FlatParameters(model).vector)
        network.refresh()
    return Policy(model, normalizer, spec, network)


# -- Playing episodes.


def play_episodes(
    policy: Policy, env: VecEnv, episodes: Sequence[int], seed: int, options: dict[str, Any] | None = None,
    *, deterministic: bool = True, check_stop: Callable[[], None] = lambda: None,
) -> Scores:  # fmt: skip
    """Play the episodes with these numbers, in waves of one episode for each environment of `env`.

    Args:
        options: reset options of every episode, if any.
        deterministic: act with the mode of the policy; else sample, each episode from its own random stream.
        check_stop: called before every step; an exception that it raises ends the evaluation.
    """
    options_of_all = None if options is None else [options] * env.num_envs
    returns = np.zeros(len(episodes))
    lengths = np.zeros(len(episodes), dtype=np.int64)
    infos: dict[int, Mapping[str, float]] = {}
    take_infos(env)  # those of an evaluation before, which played on behind its last episodes
    for first in range(0, len(episodes), env.num_envs):
        wave = episodes[first : first + env.num_envs]
        # Every environment plays in every wave. In a short last wave, some repeat episodes, unread.
        numbers = [wave[i % len(wave)] for i in range(env.num_envs)]
        seeds = [derived_seed(seed, "eval", j) for j in numbers]
        streams = [] if deterministic else [stream(episode_seed, "action") for episode_seed in seeds]
        obs, mask = env.reset(seeds, options_of_all)
        playing, memory = np.arange(env.num_envs) < len(wave), policy.memory(env.num_envs)
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
                actions = policy.act(obs, mask, memory)
            else:
                actions = policy.sample(obs, mask, policy.noise(streams), memory)
            step = env.step(actions)
            # After its episode an environment steps on in a new one, which is not counted; neither are
            # pseudo-steps, which only reset.
            counted = playing & step.valid
            index = first + np.flatnonzero(counted)
            returns[index] += step.rewards[counted]
            lengths[index] += 1
            for i, (last_info, *_) in take_infos(env).items() if len(step.ended) else ():
                if counted[i]:
                    infos[first + i] = last_info
            playing[step.ended] = False
            if memory is not None:
                memory.forget(step.terminated | step.truncated | ~step.valid)
            obs, mask = step.obs, step.action_mask
    of_episodes = tuple(infos.get(i, {}) for i in range(len(episodes))) if infos else ()
    return Scores(tuple(returns.tolist()), tuple(int(n) for n in lengths), infos=of_episodes)


class Evaluator:
    """Plays the episodes of an evaluation, in batches of environments that it makes for each evaluation.

    A batch of env.backend=device is made once and kept: a simulator may take minutes to start, and JAX to compile.

    A plugin may name a subclass for tasks with actions of its own kind, such as text (`Plugin.evaluators`).
    """

    num_columns = 2  # numbers that `play` returns for each episode; the first is its return
    unit = "steps"  # of the lengths of episodes
    # The class of its policies in programs, an import path: a ddppo.policies.acting.LoadedPolicy; None: that one.
    policy_class: str | None = None
    # A function of (trained, episodes, seed, deterministic=) that plays episodes and yields each as text, an import
    # path; None if episodes are shown as pictures.
    conversations: str | None = None
    reset_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # of every episode
    draws_actions = False  # whether actions are drawn even where the likeliest ones are asked for
    in_training_envs = (
        False  # whether a run is evaluated in the rank's own environments, idle between iterations
    )

    _kept: VecEnv | None = None  # the batch of the evaluation before

    def __init__(
        self,
        policy: Policy,
        config: Config,
        collector: RolloutCollector
        | None = None,  # of the rank, in a run; None when only a policy is evaluated
    ) -> None:
        self.policy = policy
        self.config = config
        self.collector = collector
        self.infos: dict[int, Mapping[str, float]] = {}  # of the last `play`, by the number of the episode

    def num_episodes(self, asked: int) -> int:
        """Return the number of episodes to play if `asked` are asked for."""
        return asked

    def play(
        self, chunks: Sequence[Sequence[int]], num_envs: int, seed: int, options: dict[str, Any] | None = None,
        *, deterministic: bool = True, check_stop: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Play chunks of episodes, one chunk after another; return numbers of the episodes, `[n, num_columns]` a chunk.

        Args:
            chunks: the numbers of the episodes of each chunk.
            num_envs: the most environments to step side by side.
            options, deterministic, check_stop: as for `play_episodes`.
        """
        options, deterministic = self.how(options, deterministic=deterministic)
        results: list[torch.Tensor] = []
        self.infos = {}
        env, self._kept = self._batch(num_envs, derived_seed(seed, "eval", chunks[0][0])), None
        try:
            for chunk in chunks:
                scores = play_episodes(
                    self.policy, env, chunk, seed, options, deterministic=deterministic, check_stop=check_stop
                )
                self.infos |= dict(zip(chunk, scores.infos, strict=False))
                rows = list(zip(scores.returns, scores.lengths, strict=True))
                # device: the user's task may have changed torch's default device.
                results.append(torch.tensor(rows, dtype=torch.float64, device="cpu"))
            if self.config.env.backend == "device":
                self._kept = env
        finally:
            if self._kept is None:
                env.close()
        return results

    @classmethod
    def how(
        cls, options: Mapping[str, Any] | None, *, deterministic: bool
    ) -> tuple[dict[str, Any] | None, bool]:
        """Return the reset options of episodes, and whether the likeliest actions are taken, from what is asked for."""
        return {**(options or {}), **cls.reset_options} or None, deterministic and not cls.draws_actions

    def _batch(self, num_envs: int, seed: int) -> VecEnv:
        """Return the batch that was kept, or make one."""
        env = eval_env(self.config)
        if self._kept is not None and self._kept.num_envs >= num_envs:
            return self._kept
        self.close()
        device = next(self.policy.model.parameters()).device
        try:
            return make_eval_env(env, num_envs, str(device), seed)
        except ConfigError as e:
            if self.collector is None or env.backend != "device":
                raise
            raise ConfigError(f"{e}. {NO_EVALUATION}") from e

    def close(self) -> None:
        """Close the batch that was kept, if any."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def scores(self, columns: Sequence[Sequence[float]]) -> Scores:
        """Return the scores of all episodes, from the columns of `play`. Raises TrainingError if all are lost."""
        returns, lengths = columns
        return Scores(tuple(returns), tuple(int(n) for n in lengths))

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Return metrics of the evaluation beside those of returns and lengths: the means of the task's infos."""
        names = sorted({name for numbers in scores.infos for name in numbers})
        values = {name: [numbers[name] for numbers in scores.infos if name in numbers] for name in names}
        means = {name: math.fsum(xs) / len(xs) for name, xs in values.items()}
        return info_metrics(means, EVAL_ENV_PREFIX, "eval/success_rate")

    def write_rollouts(self, run_dir: Path, iteration: int, env_steps: int, by: str) -> None:
        """Record the episodes of the last `play` in the run folder, if this kind of tasks has records of rollouts.

        iteration, env_steps: of training, before the evaluation. by: part of the file's name: the rank, or the seed.
        Raises StorageError.
        """


def evaluator_of(spec: EnvSpec) -> type[Evaluator]:
    """Return the class that evaluates policies in tasks with this journal, or with this kind of actions."""
    of_plugins = added("evaluators")
    path = of_plugins.get(spec.journal or "") or of_plugins.get(spec.action.kind)
    if path is None:
        return Evaluator
    found: type[Evaluator] = imported(path)
    return found


# -- Evaluation of a run: its ranks share the episodes, and all ranks get all scores.
#
# Episodes are divided into L = len(eval_ranks) * num_shards chunks; chunk c holds the episodes c, c + L, c + 2 L, ...,
# and each rank that evaluates plays its num_shards chunks one after another. With ordered sums in PyTorch, L is the
# same at any W: each chunk is a batch of its own, so that every episode has the same bits at any W. In C++ it has them
# anyway, and a rank has one chunk.


_MAX_EVAL_ENVS = 64  # side by side on a rank


class RunEvaluator:
    """Evaluates a run between iterations and at its end. All ranks call its methods together."""

    def __init__(self, context: RankContext) -> None:
        self.config = context.config
        policy = Policy(context.model, context.obs_normalizer, context.spec)
        self.evaluator = evaluator_of(context.spec)(policy, context.config, context.topology.collector)
        self.group = context.group
        # The ranks that play episodes. They hold the parameters; and they act in training, if they play in its
        # environments, with the help of the others.
        self.eval_ranks = list(context.eval_ranks)
        self._network: CppNetwork | None = None
        self._topology: Topology | None = None
        if self.evaluator.in_training_envs:
            self._topology = context.topology
            self.eval_ranks = [rank for rank in context.eval_ranks if context.layout.role(rank).acts]
        # Chunks of each of them; 1 but for ordered sums in PyTorch.
        self.num_shards = context.shape.local_num_shards
        self.best: dict[
            str, float
        ] = {}  # metrics and env_steps of the best evaluation so far; {} before the first
        # The most episodes of an evaluation for which a batch is kept; 0 if each evaluation makes its own.
        evals = context.config.eval
        self._kept_for = 0
        if context.config.env.backend == "device":
            self._kept_for = max(evals.final_episodes, evals.episodes if evals.every_steps else 0)
        # time_to_target_s and steps_to_target of the first evaluation that reached target_return; {} before.
        self.target: dict[str, float] = {}
        # Of the last evaluation: its mean return, and how many in a row brought no new best.
        self.last_mean = math.nan
        self.evals_without_best = 0

    def use_cpp(self, network: CppNetwork) -> None:
        """Act in C++, where an episode has the same bits whichever episodes are beside it: one chunk for each rank."""
        self._network, self.num_shards = network, 1
        self.evaluator.policy = replace(self.evaluator.policy, network=network)

    def close(self) -> None:
        """Close the environments that evaluations kept."""
        self.evaluator.close()

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from a checkpoint's state, and put the best policy that it names into its place in `folder`.

        A crash may have undone the iteration of a later best.pt, which is renamed. If the file of the named policy is
        lost or damaged, the best scores are forgotten, so that the next evaluation writes a new one.
        """
        self.best, self.target, is_there = state["best"], state["target"], False
        self.evals_without_best = state.get("evals_without_best", 0)
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

        Args:
            is_last: this is the final evaluation, after training.
            options: reset options of the episodes, unless the evaluator chooses its own.
            stop: its signal cuts the evaluation short.

        Raises EvaluationFailed on all ranks together, if the episodes of any rank fail; `best` stays as it was.
        """
        start = time.perf_counter()

        def check_stop() -> None:
            # A signal only: the end of run.max_minutes does not cut the final evaluation short.
            if stop is not None and stop.signal is not None:
                raise Stopped(stop.signal)

        scores = self._all_scores(num_episodes, self._max_envs(is_last=is_last), options, check_stop)
        if not math.isfinite(total := sum(scores.returns)):  # no later mean would be greater than NaN
            raise EvaluationFailed(f"the mean return of {self.config.env.id} is {total:g}")
        metrics = evaluation_metrics(scores.returns, scores.lengths, time.perf_counter() - start)
        metrics |= self.evaluator.metrics(scores)
        # The best policy so far, by mean return. Scores are equal on all ranks, and so is this decision.
        mean = metrics["eval/return_mean"]
        is_best = not self.best or mean > self.best["return_mean"]
        self.last_mean, self.evals_without_best = mean, 0 if is_best else self.evals_without_best + 1
        if is_best:
            self.best = {k.removeprefix("eval/"): v for k, v in metrics.items()}
            self.best["env_steps"] = env_steps
        target = self.config.target_return
        if target is not None and not self.target and mean >= target:
            self.target = {"time_to_target_s": wall_s, "steps_to_target": env_steps}
        return metrics, is_best

    def _max_envs(self, *, is_last: bool) -> int:
        """Return how many environments a rank may step side by side; a server has a limited number of them."""
        env = self.config.env
        if not env.urls:
            return _MAX_EVAL_ENVS
        if is_last and not find(self.config.dist.topology).own_pace:  # training has closed its environments
            return max(1, min(_MAX_EVAL_ENVS, env.num_envs // self._num_chunks))
        return 1

    def _all_scores(
        self,
        num_episodes: int,
        max_envs: int,
        options: dict[str, Any] | None,
        check_stop: Callable[[], None],
    ) -> Scores:
        """Play episodes 0 to num_episodes - 1 on the ranks that evaluate, and return all scores on all ranks."""
        evaluator, num_episodes = self.evaluator, self.evaluator.num_episodes(num_episodes)
        if self._network is not None:
            self._network.refresh()

        # 1. This rank's episodes.
        chunks = [chunk for chunk in self._local_chunks(num_episodes) if chunk]
        num_envs = min(self._chunk_size(max(num_episodes, self._kept_for)), max_envs)

        def play_local() -> list[torch.Tensor]:
            if not chunks:
                return []
            return evaluator.play(chunks, num_envs, eval_seed(self.config), options, check_stop=check_stop)

        def play_with_help() -> list[torch.Tensor]:
            topology = self._topology
            assert topology is not None
            if self.group.rank not in self.eval_ranks:
                topology.assist()
                return []
            try:
                return play_local()
            finally:
                topology.release()

        results = self._unless_any_failed(play_local if self._topology is None else play_with_help)

        # 2. One gather of all results; every rank computes the same scores from them.
        columns = self._gather(results, evaluator.num_columns, num_episodes)
        try:
            scores = evaluator.scores(columns)
        except TrainingError as e:  # all episodes were lost; every rank raises it
            raise EvaluationFailed(str(e)) from e
        return dataclasses.replace(scores, infos=self._gather_infos(evaluator.infos))

    def _gather_infos(self, infos: Mapping[int, Mapping[str, float]]) -> tuple[Mapping[str, float], ...]:
        """Return the infos of all ranks' episodes in their order; () if no episode has any."""
        contents, _ = gather_bytes(self.group, json.dumps(infos).encode() if infos else b"")
        of_all = {
            int(episode): numbers
            for each in contents
            if each
            for episode, numbers in json.loads(each).items()
        }
        return tuple(of_all[episode] for episode in sorted(of_all))

    def _unless_any_failed(self, play_local: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the result of `play_local`, after it has returned on all ranks. Raises EvaluationFailed on all ranks.

        A rank with failed episodes reports it here. Else the other ranks would wait for its scores until a timeout.
        """
        results: list[torch.Tensor] = []
        fault: BaseException | None = None
        try:
            results = play_local()
        except CollectiveError:  # a rank is lost, so nothing can be gathered
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as e:  # the user's task may raise anything
            fault = e
        # Every rank comes here, and learns of all faults by one gather.
        local_report = b"" if fault is None else json.dumps(_in_words(fault)).encode()
        reports, _ = gather_bytes(self.group, local_report)
        for rank, report in enumerate(reports):
            if report:  # all ranks raise the same fault, that of the first rank with one
                sentence, signal = json.loads(report)
                where = f"rank {rank}: " if len(reports) > 1 and signal is None else ""
                cause = fault or CollectiveError(f"an evaluation failed: {where}{sentence}")
                raise EvaluationFailed(where + sentence, _trace_of(fault), signal) from cause
        return results

    @property
    def _num_chunks(self) -> int:
        return len(self.eval_ranks) * self.num_shards

    def _chunk_size(self, num_episodes: int) -> int:
        """Return the number of episodes of the largest chunk."""
        return -(-num_episodes // self._num_chunks)

    def _local_chunks(self, num_episodes: int) -> list[range]:
        """Return the numbers of the episodes in each of this rank's chunks."""
        if self.group.rank not in self.eval_ranks:
            return []
        first = self.eval_ranks.index(self.group.rank) * self.num_shards
        return [range(first + s, num_episodes, self._num_chunks) for s in range(self.num_shards)]

    def _gather(
        self, results: Sequence[torch.Tensor], num_columns: int, num_episodes: int
    ) -> list[list[float]]:
        """Return the k columns of all episodes in their order; `results` are this rank's, `[n, k]` for each chunk."""
        size = self._chunk_size(num_episodes)
        local = torch.full((self.num_shards, size, num_columns), math.nan, dtype=torch.float64)
        for padded, rows in zip(local, results, strict=False):  # a short chunk keeps NaN behind its rows
            padded[: len(rows)] = rows
        # [W, S, n, k] -> [R, S, n, k] of the ranks that evaluate -> [L, n, k] -> [n, L, k] -> [n L, k], by episode
        by_episode = self.group.gather(local)[self.eval_ranks].flatten(0, 1).transpose(0, 1).flatten(0, 1)
        return by_episode[:num_episodes].T.tolist()


def _in_words(fault: BaseException) -> tuple[str, int | None]:
    """Return a sentence about the fault that ended a rank's episodes, and the number of the signal if it was one."""
    if isinstance(fault, KeyboardInterrupt):
        stopped = fault if isinstance(fault, Stopped) else Stopped()
        return stopped.what, stopped.number
    if isinstance(fault, EnvRaised):
        return fault.said, None
    return (str(fault) if isinstance(fault, (ConfigError, TrainingError)) else in_one_line(fault)), None


def _trace_of(fault: BaseException | None) -> str:
    """Return the part of the traceback that is the user's code; "" if the sentence of `_in_words` is enough."""
    if isinstance(fault, EnvRaised):
        return fault.trace
    if fault is None or isinstance(fault, (TrainingError, KeyboardInterrupt)):
        return ""
    return own_traceback(fault)


def _best_is_there(folder: Path, env_steps: float | None) -> bool:
    """Return whether best.pt holds the policy of `env_steps`.

    If it holds a later one, and best.previous.pt is the policy of `env_steps`, the latter gets the name best.pt again.
    """
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
