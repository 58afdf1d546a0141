"""How the gradient of a loss that is a local sum over a global count becomes the gradient over all ranks: a sum."""

import hashlib
import inspect
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddppo.collectives.group import Group, OrderedSum, Record
from ddppo.errors import CollectiveError
from ddppo.models.actor_critic import ActorCritic, EvaluateActions
from ddppo.ppo.learner import GradientSync

# -- A model's parameters and gradients as two flat vectors.


class FlatParameters:
    """Views every parameter and gradient of a model into two contiguous vectors `[num_parameters]`.

    One vector makes the gradient one collective, the clipping one norm, the optimizer one kernel and the comparison
    of replicas one hash. `vector` is a Parameter whose `.grad` is `gradient`, so any torch optimizer takes it.
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
            offset = 0
            for p in parameters:
                end = offset + p.numel()
                p.data = self.vector.data[offset:end].view_as(p)
                p.grad = self.gradient[offset:end].view_as(p)
                offset = end

    def digest(self) -> str:
        """Return a hash of the parameters' bytes: equal if and only if they are equal to the bit."""
        data = self.vector.detach().cpu().numpy().tobytes()
        return hashlib.blake2b(data, digest_size=16).hexdigest()


_HAS_FORWARD_SYNC = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if _HAS_FORWARD_SYNC else "broadcast_buffers": False  # renamed in torch 2.13
}
FLAT_BELOW = 1_000_000  # parameters; beyond it overlapping buckets with backward begins to pay


class FlatSync:
    """One sum of the flat gradient after backward. At W = 1 nothing is communicated."""

    name = "flat"

    def __init__(self, model: ActorCritic, parameters: FlatParameters, group: Group | OrderedSum) -> None:
        self.model = EvaluateActions(model)
        self.parameters = parameters
        self.group = group

    def backward_(self, loss: torch.Tensor) -> None:
        self.parameters.gradient.zero_()
        loss.backward()
        self.group.sum_(self.parameters.gradient)


class OrderedSync(FlatSync):
    """The sum of the gradients of all shards, in an order that follows from their number alone.

    A rank calls `backward_` for each of its `num_shards` in turn; the last call leaves the sum.
    """

    name = "ordered"

    def __init__(
        self, model: ActorCritic, parameters: FlatParameters, group: Group, *, num_shards: int
    ) -> None:
        super().__init__(model, parameters, OrderedSum(group, num_shards, parameters.gradient))


class BucketSync:
    """DistributedDataParallel: buckets of gradients are reduced while backward still computes the others.

    A communication hook sums instead of averaging, and notes when each bucket was ready and done. What the step lost
    to communication is the time from the last bucket's readiness to the end of backward; the rest was hidden.
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
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_cap_mb,
            process_group=group.process_group,
            **_NO_BUFFERS,
        )
        self.model.register_comm_hook(None, self._sum_bucket)
        self._lost_peers = False
        self._ready: list[float] = []
        self._done: list[float] = []

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
        if self.parameters.gradient.is_cuda:
            torch.cuda.synchronize(self.parameters.gradient.device)
        end = time.perf_counter()
        last_ready = max(self._ready, default=end)
        total = sum(done - ready for ready, done in zip(self._ready, self._done, strict=False))
        exposed = end - last_ready
        hidden = max(0.0, total - exposed)
        self.group.record(Record(last_ready, end, hidden=hidden, num_bytes=self.parameters.gradient.nbytes))

    def _sum_bucket(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._ready.append(time.perf_counter())
        self._lost_peers = True  # if what follows raises
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
    """Return the sync that dist.grad_sync names; auto takes ddp for a million parameters on CPUs over Gloo, else flat.

    ddp needs a process group of torch.distributed over the group's ranks, besides whatever `group` speaks.
    """
    if kind == "auto":
        # On a GPU the host's stamps of overlapped buckets tell nothing of when the device was done with them.
        is_large = parameters.gradient.numel() >= FLAT_BELOW and not parameters.gradient.is_cuda
        kind = "ddp" if is_large and group.name == "gloo" else "flat"
    if kind == "flat" or group.world_size == 1:
        return FlatSync(model, parameters, group)
    return BucketSync(model, parameters, group, bucket_cap_mb=bucket_cap_mb)
