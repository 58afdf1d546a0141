"""The actor of async_actors: receive parameters, act for one rollout, send it, and again until the run ends."""

import socket
import time

import torch.distributed as dist

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import OwnPace, leave_word
from ddppo.distributed.topologies.async_actors.connections import (
    END,
    REPLY_HEADER,
    ParameterReply,
    PeerConnection,
    ReplyHeader,
    RolloutHeader,
    connect,
    send_rollout,
)
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.envs.vec_env import VecEnv
from ddppo.errors import CollectiveError, first_sentence
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.processes.signals import StopRequest


class AsyncActor(Topology):
    """A rank that acts with the parameters of the learner's last reply. It runs `serve`, not the loop."""

    def __init__(self, context: RankContext) -> None:
        assert isinstance(context.group, OwnPace)
        self._context, self._group = context, context.group
        self.env: VecEnv = context.envs()
        self.collector: Collector = context.collector(self.env, context.env_indices.start)
        # The contract asks for a learner; this one only holds the parameters that the actor acts with.
        self.learners = Group()
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)
        self._rollouts = context.rollout_message()
        self._parameters = ParameterReply(context.parameters, context.obs_normalizer, context.synchronised)
        self._number = 0  # of the last rollout

    def serve(self, stop: StopRequest) -> None:
        timeout_s = self._context.config.dist.timeout_s
        try:
            learner = connect(self._group.store, self._group.rank, timeout_s)
        except (OSError, dist.DistError) as e:
            raise CollectiveError(self._lost("could not reach", e)) from e
        start = time.perf_counter()
        try:
            # 1. Receive parameters, or the end of the run.
            while (header := ReplyHeader(*learner.unpack(REPLY_HEADER))) != END:
                self._parameters.receive(learner)
                self._context.algorithm.progress = header.progress
                # In the first reply, and in the first one after a restart, the learner says where to begin.
                sampler = self._context.sampler
                if header.first >= 0:
                    if not sampler.every_iteration:
                        self.reset(sampler.sample(header.first))
                    self._number = header.first
                    # Until now this rank waited for others that were still being built: that counts for no rollout.
                    learner.reset_counters()
                    start = time.perf_counter()
                # 2. Act.
                self._number += 1
                act_start = time.perf_counter()
                if sampler.every_iteration:  # whole episodes: every rollout begins new ones
                    self.reset(sampler.sample(self._number))
                collected = self._context.act(self.collector, self._context.env_indices, self._number)
                now = time.perf_counter()
                # 3. Send the rollout.
                self._send(learner, collected, header.version, stop, (now - start, now - act_start))
                start = now
        except TimeoutError as e:
            leave_word(self._group.store, self._group.rank, f"for {timeout_s:.1f} s")
            raise CollectiveError(self._lost("had no answer from", e)) from e
        except ConnectionError as e:
            raise CollectiveError(self._lost("lost", e)) from e
        finally:
            learner.close()

    def _send(
        self,
        learner: PeerConnection,
        collected: Collected,
        version: int,
        stop: StopRequest,
        seconds: tuple[float, float],
    ) -> None:
        """Send a rollout. The header counts the time and bytes since the last one, so those of this send come next."""
        t_iter, t_rollout = seconds
        header = RolloutHeader(
            number=self._number,
            version=version,
            num_steps=collected.num_steps,
            asks_to_stop=stop.requested,
            num_restarts=self._num_restarts(),
            num_sends=learner.num_sends,
            num_bytes=learner.num_bytes,
            t_iter=t_iter,
            t_rollout=t_rollout,
            t_wait=learner.waited_s,
            t_comm=learner.moved_s,
        )
        learner.reset_counters()
        send_rollout(learner, header, self._rollouts.pack(collected.rollout), collected.episodes)

    def _num_restarts(self) -> int:
        return int(self._context.restarts(self.env).get("dist/restarts", 0))

    def _lost(self, how: str, error: Exception) -> str:
        """Return an error message: "rank 2 on host lost rank 0, the learner (limit ...): ..."."""
        limit = f"limit dist.timeout_s={self._context.config.dist.timeout_s:g}"
        this_rank, why = f"rank {self._group.rank} on {socket.gethostname()}", first_sentence(error)
        return f"{this_rank} {how} rank 0, the learner ({limit}): {why}"

    def reset(self, sample: TaskSample) -> None:
        with self._context.guarded():
            self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        raise NotImplementedError("an actor serves")

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        return NO_UPDATE

    def close(self) -> None:
        self.env.close()
