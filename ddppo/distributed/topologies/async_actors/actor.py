"""An actor of async_actors: it acts, sends, and goes on when it is answered."""

import socket
import time

import torch
import torch.distributed as dist

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import OwnPace, leave_word
from ddppo.distributed.topologies.actors import RolloutMessage
from ddppo.distributed.topologies.async_actors.line import Wire, connect
from ddppo.distributed.topologies.async_actors.messages import (
    ANSWER,
    END,
    SENT,
    Answer,
    Parameters,
    Sent,
    as_bytes,
    episode_rows,
)
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.envs.vec_env import VecEnv
from ddppo.errors import CollectiveError, first_sentence
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.processes.signals import StopRequest


class AsyncActor(Topology):
    """Acts with the parameters it was last given, until the learner has finished."""

    def __init__(self, context: RankContext) -> None:
        assert isinstance(context.group, OwnPace)
        self._context, self._group = context, context.group
        self.env: VecEnv = context.envs()
        self.collector: Collector = context.collector(self.env, context.env_indices.start)
        self.learners = Group()  # of one
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, 0, self.sync)
        self._rollouts = RolloutMessage(
            context.spec, context.shape.rollout_steps, context.shape.local_num_envs,
            getattr(torch, context.config.dtype),
            with_raw_obs=context.obs_normalizer is not None,
        )  # fmt: skip
        self._parameters = Parameters(context.parameters, context.obs_normalizer)
        self._number = 0  # of the last rollout

    def serve(self, stop: StopRequest) -> None:
        timeout_s = self._context.config.dist.timeout_s
        try:
            wire = connect(self._group.store, self._group.rank, timeout_s)
        except (OSError, dist.DistError) as e:
            raise CollectiveError(self._lost("could not reach", e)) from e
        start = time.perf_counter()
        try:
            while (answer := Answer(*wire.unpack(ANSWER))) != END:
                self._parameters.receive(wire)
                if answer.first >= 0:
                    self.reset(self._context.sampler.sample(answer.first))
                    self._number = answer.first
                    wire.forget()  # others were being built
                    start = time.perf_counter()
                self._number += 1
                acted = time.perf_counter()
                collected = self._context.act(self.collector, self._context.env_indices, self._number)
                now = time.perf_counter()
                self._send(wire, collected, answer.version, stop, (now - start, now - acted))
                start = now
        except TimeoutError as e:
            leave_word(self._group.store, self._group.rank, f"for {timeout_s:.1f} s")
            raise CollectiveError(self._lost("had no answer from", e)) from e
        except ConnectionError as e:
            raise CollectiveError(self._lost("lost", e)) from e
        finally:
            wire.close()

    def _send(
        self, wire: Wire, collected: Collected, version: int, stop: StopRequest, seconds: tuple[float, float]
    ) -> None:
        """Send a rollout; the time that sending takes is told with the next."""
        episodes = episode_rows(collected.episodes)
        sent = Sent(
            self._number, version, collected.num_steps, len(episodes), stop.requested, self._num_restarts(),
            wire.num_sends, wire.num_bytes, *seconds, wire.waited_s, wire.moved_s,
        )  # fmt: skip
        wire.forget()
        wire.send(SENT.pack(*sent), as_bytes(self._rollouts.pack(collected.rollout)), episodes.tobytes())

    def _num_restarts(self) -> int:
        return int(self._context.restarts(self.env).get("dist/restarts", 0))

    def _lost(self, how: str, error: Exception) -> str:
        limit = f"limit dist.timeout_s={self._context.config.dist.timeout_s:g}"
        who, why = f"rank {self._group.rank} on {socket.gethostname()}", first_sentence(error)
        return f"{who} {how} rank 0, the learner ({limit}): {why}"

    def reset(self, sample: TaskSample) -> None:
        with self._context.guarded():
            self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        raise NotImplementedError("it serves")

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        return NO_UPDATE

    def close(self) -> None:
        self.env.close()
