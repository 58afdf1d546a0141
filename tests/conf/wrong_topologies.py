"""Topologies that cannot be: command lines with what is said of them, and some of a user's own."""

from ddppo.distributed.topologies.contract import Layout, Message, Role, TopologySpec

LINES = {
    "distributed=sync_actors dist.world_size=1": "takes at least 2 ranks",
    "distributed=env_workers dist.world_size=1": "takes at least 2 ranks",
    "distributed=sync_actors dist.world_size=12 ppo.rollout_steps=64": "11, the ranks that step environments",
    "distributed=sync_actors dist.world_size=1e12": "must be at most 1000000",
    "distributed=sync_actor": "did you mean sync_actors or async_actors?",
    "distributed=devise": "did you mean device?",
    "dist.topology=sync-actors": "did you mean sync_actors or async_actors?",
    "dist.topology=": "one of your own goes by its import path",
    "dist.topology=:": "cannot be imported: ValueError",
    "distributed=no_such_pkg.topologies:Ring": "cannot be imported: ModuleNotFoundError",
    "distributed=ddppo.distributed.topologies.known:nothing": "cannot be imported: AttributeError",
    "distributed=ddppo.distributed.topologies.contract:Role": "is of type type, no TopologySpec (ddppo.dist",
    "distributed=tests.conf.unimportable:Ring": "cannot be imported: ZeroDivisionError",
    "distributed=tests.conf.wrong_topologies:Failing": "its layout of 1 ranks failed with KeyError",
    "distributed=tests.conf.wrong_topologies:Partial": "every rank from 0 on needs one role",
    "distributed=tests.conf.wrong_topologies:Idle": "where no rank learns",
    "distributed=tests.conf.wrong_topologies:Astray": "name two of its roles, worker",
    "distributed=tests.conf.wrong_topologies:Small dist.world_size=2": "gives 1 ranks roles",
    "distributed=tests.conf.wrong_topologies:Unrunnable": "its implementation tests.conf.nothing:X cannot be imported",
    "distributed=tests.conf.wrong_topologies:NoTopology": "is no subclass of",
    "distributed=central_inference env.backend=sync": "which steps environments by env.backend=pool",
    "distributed=central_inference env.backend=gym_vector": "which steps environments by env.backend=pool",
    "distributed=central_inference env=atari": "which steps environments by env.backend=pool",
    "distributed=central_inference dist.max_wait_ms=-1": "must be at least 0",
    "distributed=central_inference env.num_workers=99": "exceeds the 8 environments",
    "distributed=central_inference env.slow_ranks={0:0.1}": "has no effect with distributed=central_inference",
    "distributed=sync_actors dist.max_wait_ms=1": "it is of distributed=central_inference",
    "distributed=sync_actors dist.grad_sync=ddp": "where one rank learns and no gradients travel",
    "distributed=env_workers dist.grad_sync=ddp": "where one rank learns and no gradients travel",
    "distributed=sync_actors env.slow_ranks={0:0.1}": "name one of 1, 2",
    "distributed=env_workers dist.collective=nccl": "only step environments and have no GPU",
    "distributed=env_workers env.slow_ranks={3:0.1}": "has ranks 0 to 2",
    "distributed=device env=synthetic": "is not stepped in C++",
    "distributed=device env.backend=pool": "which steps environments by env.backend=batched",
    "distributed=device env.num_workers=2": "which steps environments by env.backend=batched: leave the number out",
    "distributed=multi_learner dist.num_learners=5": "use at most 2 learners, or at least 10 ranks",
    "distributed=multi_learner dist.num_learners=0": "must be at least 1",
    "dist.num_learners=2": "with distributed=ddp: it is of distributed=multi_learner",
    "distributed=env_workers_hetero dist.env_shares=[4,5]": "set env.num_envs=9",
    "distributed=env_workers_hetero dist.env_shares=[4,2,2]": "has 3 numbers: one is needed for each of the 2",
    "distributed=env_workers_hetero dist.env_shares=[8,0]": "every rank steps at least 1",
    "distributed=env_workers_hetero env.num_envs=1 ppo.rollout_steps=63": "use at most 1",
    "distributed=env_workers dist.env_shares=[4,4] scaling=weak": "leave dist.env_shares out, or use scaling=strong",
    "dist.env_shares=[4,4]": "env_workers",
    "dist.topology=env_workers_hetero": "use that; shares of your own are dist.env_shares",
    "distributed=single dist.world_size=2": "which is one rank: use distributed=ddp",
    "distributed=async_actors dist.world_size=1": "takes at least 2 ranks",
    "distributed=async_actors dist.max_lag=-1": "must be at least 0",
    "distributed=async_actors dist.correction=vtrase": "did you mean vtrace?",
    "distributed=async_actors dist.collective=gloo": "which has no collectives",
    "distributed=async_actors dist.grad_sync=ddp": "where one rank learns and no gradients travel",
    "distributed=sync_actors dist.max_lag=1": "with distributed=sync_actors: it is of distributed=async_actors",
    "dist.correction=none": "with distributed=ddp: it is of distributed=async_actors",
    "ppo=a3c": "ppo.rollouts_per_update=1 has no effect with distributed=ddp, which learns from all rollouts",
    "distributed=single dist.topology=sync_actors": "takes at least 2 ranks",
    "resume={run} dist.topology=sync_actors": "takes at least 2 ranks",
    "distributed=central_inference dist.observers=3 dist.world_size=3": "exceeds the 2 environments of an agent",
    "distributed=central_inference dist.observers=0": "must be at least 1",
    "distributed=central_inference dist.observers=4 env.num_workers=2": "leave one of them out",
    "distributed=ddp_preempt dist.sync_frac=0": "dist.sync_frac=0.0: must be greater than 0",
    "distributed=ddp_preempt dist.sync_frac=1.1": "must be at most 1",
    "distributed=ddp_preempt dist.min_frac=-0.1": "must be at least 0",
    "distributed=ddp_preempt dist.min_frac=2": "must be at most 1",
    "distributed=ddp_preempt dist.reduction=ordered dist.world_size=4": "only equal workers own shards",
    "distributed=ddp_preempt dist.min_frac=1": "so no rollout could end early",
    "distributed=ddp_preempt experiment=workflows": "orders are compared by whole episodes: use distributed=ddp",
    "distributed=ddp_preempt dist.rollout_time_cap_s=0": "must be greater than 0",
    "distributed=ddp_preempt dist.preempt_rule=throughputs": "did you mean throughput?",
    "distributed=ddp_preempt dist.preempt_rule=throughput dist.sync_frac=.5": "chooses for how many ranks to wait",
    "distributed=ddp_preempt ppo=grpo": "the return of a cut episode says nothing: use distributed=ddp",
    "dist.sync_frac=.5": "no setting dist.sync_frac with distributed=ddp: it is of distributed=ddp_preempt",
    "dist.rollout_time_cap_s=1": "with distributed=ddp: it is of distributed=ddp_preempt",
    "dist.observers=4": "with distributed=ddp: it is of distributed=central_inference",
    "distributed=async_actors dist.world_size=3 env=gym env.id=tests.distributed.telling:tests/Telling-v0": (
        "its environments exchange messages after every iteration"
    ),
}

_WORKER = "ddppo.distributed.topologies.ddp:Ddp"


def role(ranks, *, learns=True):
    return Role("worker", ranks, steps=True, acts=True, learns=learns, does=())


def topology(layout, implementation=_WORKER):
    return TopologySpec("mine", "W workers", layout, implementation)


Failing = topology(lambda world_size, sizes: {}["roles"])
Partial = topology(lambda world_size, sizes: Layout((role((1,)),), ()))
Idle = topology(lambda world_size, sizes: Layout((role((0,), learns=False),), ()))
Astray = topology(
    lambda world_size, sizes: Layout((role((0,)),), (Message("x", "worker", "actor", "sum", 1, 8),))
)
Small = topology(lambda world_size, sizes: Layout((role((0,)),), ()))
Unrunnable = topology(Small.layout, "tests.conf.nothing:X")
NoTopology = topology(Small.layout, "ddppo.distributed.topologies.contract:Role")
