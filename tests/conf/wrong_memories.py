"""Settings of policies with memory that cannot be: command lines with what is said of them."""

LINES = {
    "model=lstm ppo.num_minibatches=9": "a minibatch consists of whole sequences, and there are 8: use",
    "model=lstm ppo.sequence_length=5": "ppo.sequence_length=5 does not divide the 32 steps of a rollout: use 4 or 8",
    "ppo.sequence_length=4": "ppo.sequence_length=4 has no effect with model.memory=none: use model=lstm or gru",
    "model=gru ppo.sequence_length=4 distributed=ddp_preempt dist.world_size=2": "end after any number of steps: leave",
    "model=mlp model.memory=lstm": "share the recurrent layers and all below them: use model=lstm or model=gru",
    "model=lstm model.memory_size=0": "model.memory_size=0: must be at least 1",
    "model.memory_size=64": "model.memory_size=64 has no effect with model.memory=none: use model.memory=lstm or gru",
    "model.memory_layers=2": "model.memory_layers=2 has no effect with model.memory=none",
    "model=gnn model.memory=gru": "no setting model.memory with model.name=gnn: it is of model=mlp or cnn",
    "model=gru model.memory=gur": "must be one of none, lstm, gru (did you mean gru",
    "model=lstm distributed=async_actors dist.world_size=3 ppo.rollouts_per_update=1 ppo.num_minibatches=5": (
        "a minibatch consists of whole sequences, and there are 4"
    ),
    "model=lstm distributed=device": "distributed=device with model.memory=lstm",
    "model=gru ppo=grpo": "ppo.algorithm=grpo with model.memory=gru: use ppo.algorithm=ppo",
    "model.name=tests.unit.remembering:Counter ppo.num_minibatches=9": "a minibatch consists of whole sequences",
    "model.name=tests.unit.remembering:Sizeless": "Sizeless sets no state_size, so it would remember nothing",
    "model.name=tests.unit.seen_tasks:Looking model.memory=lstm model.shared_trunk=true": "no effect on a model of",
    "model.name=tests.unit.remembering:Forgetful": "parameters that differ from those of Forgetful.step, row after",
}
