"""The gradient over all ranks: every rank divides its local loss sum by the global sample count, and ranks add up.

The loss of a minibatch is sum_i(loss_i) / n over the n samples of all ranks. Each rank knows n and computes the
gradient of its own samples' terms. The sum over ranks is then the gradient of one process with the same samples. An
average over ranks would be wrong as soon as two ranks hold different numbers of samples.

One iteration of distributed=ddp makes these collectives, on every rank in this order (settings in brackets add one;
W = 1 makes none; tests/distributed/test_collectives_of_an_iteration.py checks the list):

 1. barrier after the rollout; a rank waits here for the slowest rollout          loop/iteration.py
 2. gather of reward moments [ppo.normalize_rewards]                              ppo/normalization.py
 3. gather of rollout statistics: sample counts, moments of advantages, returns
    and observations. Advantages are normalised over ranks with these             ppo/rollout_stats.py
 4. gather of advantage moments [ppo.normalize_advantages=minibatch]              ppo/rollout_stats.py
 5. sum of the gradient, once a minibatch: num_epochs * num_minibatches times     this file; for a step in C++
                                                                                  native/src/learn.cpp
 6. gather of the KL divergence, once an epoch [ppo.target_kl, or
    ppo.lr_schedule=adaptive]: all ranks stop at the same epoch                   ppo/learner.py
 7. gather of the report: times, losses, stop requests, and every
    dist.check_every iterations a hash of the parameters                          records/reporting.py
 8. gather of finished episodes, if any rank has one                              records/reporting.py

dist.reduction=ordered replaces each sum of 5 by a gather where the group does not add ranks in pairs, or V / W is no
power of two. Tasks add gathers between 6 and 7: one of episode results, if environments report them, and the messages
of environments that publish; so do metrics of log.metrics. ppo=grpo gathers the statistics of its groups between 2 and
3. Evaluations and checkpoints come after 8.

Two things are called ddp. distributed=ddp is the topology of W equal workers (topologies/ddp.py). dist.grad_sync=ddp is
`BucketSync` below, which makes sum 5 by torch's DistributedDataParallel. Either works without the other.
"""

import hashlib
import inspect
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddppo.collectives.group import CollectiveTiming, Group, OrderedSum
from ddppo.device import synchronize
from ddppo.errors import CollectiveError
from ddppo.models.actor_critic import ActorCritic, EvaluateActions
from ddppo.ppo.learner import GradientSync

# -- A model's parameters and gradients as two flat vectors, made once, before the first iteration.


class FlatParameters:
    """Two contiguous vectors `[num_parameters]`; every parameter of the model, and its gradient, is a view into them.

    So the gradient is one collective, clipping is one norm, Adam is one kernel, and comparing replicas is one hash.
    `vector` is a Parameter, and its `.grad` is `gradient`, so any torch optimizer accepts it.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        kinds = {(p.dtype, p.device) for p in parameters}
        assert len(kinds) == 1, f"parameters of several types or devices: {kinds}"
        with torch.no_grad():
            flat = torch.cat([p.detach().reshape(-1) for p in parameters])
            self.vector = nn.Parameter(flat)
            self.gradient = torch.zeros_like(flat)
            self.vector.grad = self.gradient
            # From here on the model reads and writes the vectors. Backward adds into `gradient`, because it keeps a
            # gradient tensor that exists.
            offset = 0
            self._ranges: dict[str, tuple[int, int]] = {}  # of each parameter, by name
            for name, p in model.named_parameters():
                end = offset + p.numel()
                self._ranges[name] = (offset, end)
                p.data = self.vector.data[offset:end].view_as(p)
                p.grad = self.gradient[offset:end].view_as(p)
                offset = end

    def slices(self, prefixes: Sequence[str]) -> list[tuple[int, int]]:
        """Return the slices (start, end) of the vectors that hold the parameters with these prefixes, ascending.

        A prefix is a whole name or ends at a dot of one: "critic" is critic.0.weight's, and not critic2.weight's.
        """
        found: list[tuple[int, int]] = []
        for name in self.names(prefixes):
            start, end = self._ranges[name]
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found

    def names(self, prefixes: Sequence[str]) -> list[str]:
        """Return the names of the parameters with these prefixes, in the order of the vectors."""
        return [
            name
            for name in self._ranges
            if any(prefix in ("", name) or name.startswith(f"{prefix}.") for prefix in prefixes)
        ]

    def digest(self, prefixes: Sequence[str] = ("",), also: Iterable[torch.Tensor] = ()) -> str:
        """Return a hash of the bytes of the parameters with these prefixes, and of other tensors.

        Ranks compare it: replicas are equal to the bit, or the run stops.
        """
        found = hashlib.blake2b(digest_size=16)
        for start, end in self.slices(prefixes):
            found.update(self.vector.detach()[start:end].cpu().numpy().tobytes())
        for x in also:
            found.update(x.detach().cpu().numpy().tobytes())
        return found.hexdigest()


# -- Three ways to sum gradients (`GradientSync`, ppo/learner.py). `RankContext.sync` chooses one.


_HAS_FORWARD_SYNC = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if _HAS_FORWARD_SYNC else "broadcast_buffers": False  # renamed in torch 2.13
}
# Number of parameters from which overlapping communication with backward pays.
FLAT_BELOW = 1_000_000


class FlatSync:
    """Backward, then one sum of the flat gradient over ranks. At W = 1 the sum does nothing."""

    name = "flat"

    def __init__(self, model: ActorCritic, parameters: FlatParameters, group: Group | OrderedSum) -> None:
        self.model = EvaluateActions(model)
        self.parameters = parameters
        self.group = group

    def backward_(self, loss: torch.Tensor) -> None:
        self.parameters.gradient.zero_()
        loss.backward()  # d loss / d parameters of this rank's samples, into the flat gradient
        self.group.sum_(self.parameters.gradient)  # the collective of this minibatch


class OrderedSync(FlatSync):
    """dist.reduction=ordered: adds the gradients of V shards in a fixed order, so that results do not depend on W.

    A floating-point sum depends on the order of its additions, and W ranks would each add up a different set first. So
    the minibatch is cut into V shards for any W, V / W per rank, and `OrderedSum` adds them in pairs. A rank calls
    `backward_` once for each of its shards; the last call leaves the sum. docs/ordered.md lists the other conditions.
    """

    name = "ordered"

    def __init__(
        self, model: ActorCritic, parameters: FlatParameters, group: Group, *, num_shards: int
    ) -> None:
        super().__init__(model, parameters, OrderedSum(group, num_shards, parameters.gradient))


class BucketSync:
    """dist.grad_sync=ddp: torch's DistributedDataParallel sums buckets of gradients while backward computes others.

    A communication hook sums instead of averaging, and records when each bucket was ready and when it was done. The
    time from the last bucket's readiness to the end of backward is exposed communication; the rest was hidden behind
    computation.
    """

    name = "ddp"

    def __init__(
        self,
        model: ActorCritic,
        parameters: FlatParameters,
        group: Group,
        *,
        bucket_cap_mb: float | None,
    ) -> None:
        self.parameters = parameters
        self.group = group
        device = parameters.gradient.device
        self.model = DistributedDataParallel(
            EvaluateActions(model),
            device_ids=[device.index] if device.type != "cpu" else None,
            bucket_cap_mb=bucket_cap_mb,
            process_group=group.process_group,
            **_NO_BUFFERS,
        )
        self.model.register_comm_hook(None, self._sum_bucket)
        self._lost_peers = False  # whether a bucket's collective, not the model, raised the error in backward
        self._ready: list[float] = []  # when each bucket's gradients were computed, in the order of backward
        self._done: list[float] = []  # when each bucket's sum had arrived

    def backward_(self, loss: torch.Tensor) -> None:
        self.parameters.gradient.zero_()
        self._ready.clear()
        self._done.clear()
        start = time.perf_counter()
        try:
            loss.backward()
        except RuntimeError as e:
            if self._lost_peers:
                raise CollectiveError(self.group.lost("gradient sum", time.perf_counter() - start)) from e
            raise
        synchronize(self.parameters.gradient.device)
        # Split communication into exposed and hidden time, for time/t_comm and time/t_comm_total.
        end = time.perf_counter()
        last_ready = max(self._ready, default=end)
        total = sum(done - ready for ready, done in zip(self._ready, self._done, strict=False))
        exposed = end - last_ready
        hidden = max(0.0, total - exposed)
        self.group.record(
            CollectiveTiming(last_ready, end, hidden=hidden, num_bytes=self.parameters.gradient.nbytes)
        )

    def _sum_bucket(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._ready.append(time.perf_counter())
        self._lost_peers = True  # in case the next line raises
        work = dist.all_reduce(bucket.buffer(), group=self.group.process_group, async_op=True)
        self._lost_peers = False

        def finished(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            self._done.append(time.perf_counter())
            try:
                return future.value()[0]
            except RuntimeError:
                self._lost_peers = True
                raise

        return work.get_future().then(finished)


def make_gradient_sync(
    kind: str, model: ActorCritic, parameters: FlatParameters, group: Group, *, bucket_cap_mb: float | None
) -> GradientSync:
    """Return the sync that dist.grad_sync names; auto is ddp for a million parameters on CPUs over Gloo, else flat.

    ddp needs a process group of torch.distributed over the group's ranks, also if `group` itself uses shared memory.
    """
    if kind == "auto":
        # On a GPU the host's timestamps of overlapped buckets do not say when the device finished them.
        is_large = parameters.gradient.numel() >= FLAT_BELOW and parameters.gradient.is_cpu
        kind = "ddp" if is_large and group.name == "gloo" else "flat"
    if kind == "flat" or group.world_size == 1:
        return FlatSync(model, parameters, group)
    return BucketSync(model, parameters, group, bucket_cap_mb=bucket_cap_mb)
