"""Collectives of NCCL in a group of one rank, and gradients that it sums: flat, and by DistributedDataParallel.

    python experiments/devices/nccl_of_one.py [cuda]

NCCL refuses two ranks on one GPU, so a machine with one can try no more. The group is the one that ranks of a run make
(ddppo/collectives/meeting.py). On a CPU (`cpu`) it is Gloo's, to try the script.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from ddppo.collectives.meeting import Wanted, meet
from ddppo.config.variants import settings_of
from ddppo.device import backend_of, resolve, select
from ddppo.distributed.gradient_sync import BucketSync, FlatParameters, FlatSync
from ddppo.envs.native_tasks import Quadruped
from ddppo.models.build import build_model


def main():
    os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    device = resolve(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    select(device)
    kind = backend_of(device)
    wanted = Wanted(
        kind, device, own_device=device.type != "cpu", timeout_s=60.0, process_group=True, subgroups=True
    )
    group = meet(dist.HashStore(), 0, 1, wanted)
    print(f"group of one rank by {group.name} on {device}, torch {torch.__version__}")
    x = torch.arange(5.0, device=device)
    assert torch.equal(group.sum_(x.clone()), x)
    assert torch.equal(group.broadcast_(x.clone()), x)
    assert torch.equal(group.gather(x), x.cpu()[None])
    assert torch.equal(group.gather_at_root(x), x.cpu()[None])
    group.barrier()
    print("sum, broadcast, gather, gather at the root and barrier give what went in")
    gradients = {}
    for sync_class, more in ((FlatSync, {}), (BucketSync, {"bucket_cap_mb": None})):
        model = build_model(Quadruped(1, "cpu").spec, settings_of("model"), 0, torch.float32).to(device)
        parameters = FlatParameters(model)
        sync = sync_class(model, parameters, group, **more)
        torch.manual_seed(0)
        obs = {name: torch.randn(64, *leaf.shape).to(device) for name, leaf in model.spec.obs.items()}
        for _ in range(2):
            params, values = sync.model(obs, torch.zeros(64, 12, device=device))
            sync.backward_(params.square().mean() + values.square().mean())
        gradients[sync.name] = parameters.vector.grad.clone()
    apart = (gradients["flat"] - gradients["ddp"]).abs().max() / gradients["flat"].abs().max()
    print(f"gradients of flat and ddp are apart by {apart:.1e} of the largest")
    assert apart < 1e-5
    big, start = torch.ones(1_000_000, device=device), time.perf_counter()
    for _ in range(100):
        group.sum_(big)
    print(f"a sum of 4 MB takes {10 * (time.perf_counter() - start):.3f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
