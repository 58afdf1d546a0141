"""The list of every setting: names, types, defaults, units, meanings, and the rule of each by itself."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from ddppo.config.fields import setting


@dataclass(slots=True)
class EnvConfig:
    id: str = setting(MISSING, "Gymnasium id, e.g. CartPole-v1 or my_pkg.envs:MyEnv-v0")
    num_envs: int = setting(
        8, "environments N of all ranks (scaling=strong) or of one rank (scaling=weak)", low=1
    )
    backend: str = setting(
        "auto",
        "who steps them: batched (all at once in the rank: classic control and synthetic, the numbers of sync), sync "
        "(in turn in the rank), pool (a few processes, shared memory), native (the task's own batched implementation; "
        "its random stream depends on W, but not that of ALE/..., which ale-py preprocesses), remote (each served by a "
        "process of its own behind an address, the numbers of sync: see env.urls), auto (batched, native for ALE/..., "
        "or sync or pool by measured step time; of text remote where a process can hold one only, else sync)",
        choices=("auto", "batched", "sync", "pool", "native", "remote"),
    )
    urls: list[str] = setting(
        meaning="backend=remote: addresses of servers (python -m ddppo.serve), which environments take in turn, e.g. "
        "[ws://127.0.0.1:8000]; [] starts one for each rank, which ends with it",
        factory=list,
    )
    token_file: str | None = setting(None, "a file whose first line is the token that env.urls ask for")
    batch_wait_ms: float | None = setting(
        None,
        "of a task of text: how long a batch of generation waits for further environments once one has answered; null "
        "for all, with which a run can be repeated to the bit",
        low=0,
        high=60_000,
    )
    num_workers: int | None = setting(
        None,
        "processes of a rank with backend=pool; null takes as many as keep the rank's cores busy: its cores, more "
        "where environments wait rather than compute. For ALE/... threads of a rank; null is its cores",
        low=1,
    )
    max_episode_steps: int | None = setting(
        None, "truncate episodes here instead of at the task's limit", low=1
    )
    context: int | None = setting(
        None,
        "numbers of a context that is observed beside all else, and given to every episode by a reset's options, as a "
        "search over orders does; null is none (docs/design.md)",
        low=1,
        high=65_536,
    )
    kwargs: dict[str, Any] = setting(
        meaning="keyword arguments of the environment; those that its preset names may be set as env.<keyword>",
        factory=dict,
    )
    max_turns: int | None = setting(
        None,
        "of a task of text: turns of an episode before it is truncated; null leaves it to the task",
        low=1,
    )
    slow_ranks: dict[int, float] = setting(
        meaning="injected slowness for studies: {rank: seconds slept at every vectorised step}", factory=dict
    )

    @property
    def is_ale(self) -> bool:
        """Whether ale-py's batch steps this task, as it does an id ALE/... unless another backend is asked for."""
        return self.id.startswith("ALE/") and self.backend in ("auto", "native")


@dataclass(slots=True)
class ModelConfig:
    name: str = setting(
        "mlp", "a key of ddppo.models.MODELS, or an import path such as my_pkg.models:MyModel"
    )
    hidden_sizes: list[int] = setting(meaning="units of each hidden layer", factory=lambda: [64, 64])
    conv_layers: list[list[int]] = setting(
        meaning="of cnn and dict, in front of the hidden layers: [filters, kernel, stride] of each convolution; of "
        "dict [] is what suits each image's size",
        factory=list,
    )
    resnet_channels: list[int] = setting(
        meaning="of resnet and of dict's resnets: filters of each block, which halves height and width",
        factory=lambda: [16, 32, 32],
    )
    image_encoder: str = setting(
        "cnn",
        "of dict, what images are given to: cnn, resnet (IMPALA's), or resnet18, resnet50 (DD-PPO's, of half the "
        "filters and group normalisation)",
        choices=("cnn", "resnet", "resnet18", "resnet50"),
    )
    encoders: dict[str, str] = setting(
        meaning="of dict, by key of what is observed, another encoder than its shape suggests: mlp or one of "
        "model.image_encoder's, as {camera: resnet}",
        factory=dict,
    )
    vector_sizes: list[int] = setting(
        meaning="of dict: units of each layer behind an array that is no image", factory=lambda: [64]
    )
    image_features: int = setting(256, "of dict: units behind each image", low=1)
    image_layout: str = setting(
        "chw",
        "of images, what their dimensions are: channels, height, width (a stack of frames), channels last, or by which "
        "of the first and the last is smaller (auto)",
        choices=("chw", "hwc", "auto"),
    )
    pixel_max: float = setting(
        255.0,
        "of images of uint8: what counts as 1, e.g. 10 where pixels name things, as Minigrid's",
        above=0,
    )
    precision: str = setting(
        "float32",
        "of images: float32 is dtype; bfloat16 multiplies in 8 bits, 2 to 3 times as fast on CPUs with AMX or "
        "AVX512-BF16; then independence of W holds to about 2 digits",
        choices=("float32", "bfloat16"),
    )
    activation: str = setting(
        "tanh", "nonlinearity between layers", choices=("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")
    )
    shared_trunk: bool = setting(False, "policy and value function share the hidden layers")
    orthogonal: bool = setting(
        True,
        "of mlp: weights begin orthogonal, biases 0; false is torch's own way, both uniform in +-1 / sqrt(inputs)",
    )
    log_std_init: float = setting(0.0, "initial log standard deviation of Gaussian actions")
    log_std: str = setting(
        "parameter",
        "log standard deviation of Gaussian actions: a parameter of its own for each dimension, or an output of the "
        "policy that depends on the observation (state), cut to [-20, 2]",
        choices=("parameter", "state"),
    )
    squash: str = setting(
        "none",
        "Gaussian actions: cut to the bounds of the task's Box by the environment (none), or squashed into them, log "
        "probabilities corrected (tanh)",
        choices=("none", "tanh"),
    )
    memory: str = setting(
        "none",
        "of mlp, cnn, resnet and dict: recurrent layers behind the others, so that the policy remembers its episode: "
        "none, lstm or gru (model=lstm and model=gru bring them behind those of mlp)",
        choices=("none", "lstm", "gru"),
    )
    memory_size: int = setting(128, "of memory: units of each recurrent layer", low=1, high=65_536)
    memory_layers: int = setting(1, "of memory: recurrent layers", low=1, high=64)
    graph_conv: str = setting(
        "qgnn",
        "of gnn, its convolutions: that of Quarl (linear messages over typed edges), a graph isomorphism network, or "
        "attention of 4 heads",
        choices=("qgnn", "gin", "attention"),
    )
    graph_layers: int = setting(
        4, "of gnn: convolutions, so how many gates away what happens still counts", low=1, high=64
    )
    graph_width: int = setting(
        128, "of gnn: units of each convolution and of the critic; the actor has twice as many", low=4
    )
    graph_prior: float = setting(
        3.0,
        "of gnn: before anything is learned, a rule that adds n gates is e^(-graph_prior n) as likely as one that adds "
        "none; 0 makes all alike",
        low=0,
        high=20,
    )
    temperature: float | None = setting(
        None,
        "of gnn: a gate is drawn by its value over this; null follows the number of gates N, 1 / ln(9 (N - 1)), so "
        "that one worth 1 more than all others is drawn 9 times in 10",
        above=0,
    )
    token_width: int = setting(64, "of token_policy: units of each token in each layer", low=8)
    token_layers: int = setting(2, "of token_policy: layers of attention and of units", low=1, high=64)
    token_heads: int = setting(
        4, "of token_policy: heads of attention, of token_width / token_heads units", low=1
    )
    turn_tokens: int = setting(64, "tokens that a policy of text types in a turn at most", low=1)
    obs_tokens: int = setting(
        256, "tokens that a policy of text is given of the prompt, and of each answer, at most", low=1
    )
    hf_path: str | None = setting(
        None, "of hf: a causal language model of Hugging Face, a folder or a name that its library finds"
    )
    lora_rank: int = setting(
        8, "of hf: rank of the changes that are learned to each linear layer; 0 learns all weights", low=0
    )
    sampling_temperature: float = setting(
        1.0, "logits of tokens are divided by this, in acting and in learning", above=0
    )
    top_p: float = setting(
        1.0,
        "a token is drawn from the likeliest whose probabilities reach this sum, and learned from as one of them; 1 is "
        "all",
        above=0,
        high=1,
    )


@dataclass(slots=True)
class PPOConfig:
    algorithm: str = setting(
        "ppo",
        "ppo (advantages by a value function), or grpo (by the returns of a group of rollouts from one seed; an "
        "iteration is one whole episode of every environment; docs/grpo.md)",
        choices=("ppo", "grpo"),
    )
    group_size: int = setting(
        8,
        "of grpo and of tasks of text: rollouts G of a group, from one seed; env.num_envs is a multiple of it",
        low=1,
    )
    divide_by_std: bool = setting(
        True, "of grpo: advantages in units of the group's standard deviation; false is Dr. GRPO's"
    )
    token_mean: str = setting(
        "tokens",
        "of grpo, what the loss is a mean over: all tokens, or steps, alike (tokens); episodes, of the mean over each "
        "one's own (episodes, as in GRPO); episodes, of the sum over rollout_steps (constant, as in Dr. GRPO)",
        choices=("tokens", "episodes", "constant"),
    )
    kl_coef: float = setting(
        0.0,
        "of grpo: weight beta of the divergence from the policy that the run began with; 0 is none",
        low=0,
    )
    total_steps: int = setting(100_000, "environment steps of all ranks until the run ends", low=1)
    rollout_steps: int = setting(
        128, "steps T per environment and iteration; of whole episodes, at most", low=1
    )
    rollouts_per_update: int | None = setting(
        None,
        "distributed=async_actors: rollouts that an update learns from, each of one actor's environments; null is as "
        "many as there are actors, 1 is A3C's",
        low=1,
    )
    sequence_length: int | None = setting(
        None,
        "of policies with memory: steps in a row L that are learned from at once, and that gradients go back; divides "
        "rollout_steps, which null takes. Shorter ones are learned faster",
        low=1,
    )
    num_epochs: int = setting(4, "passes K over the batch per iteration", low=1, high=1_000_000)
    num_minibatches: int = setting(4, "minibatches M per epoch, over all ranks", low=1)
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    clip_coef: float = setting(0.2, "epsilon of the clipped surrogate at the start", above=0)
    clip_schedule: str = setting(
        "none", "of clip_coef: none, or linear (to 0 at total_steps)", choices=("none", "linear")
    )
    clip_value_coef: float | None = setting(None, "clip range of the value loss; null does not clip", above=0)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    losses: dict[str, Any] = setting(
        meaning="loss terms of your own, by the names that they are reported under: {still: {term: "
        "my_pkg.losses:still, coef: 0.01}} (docs/guide/loss.md). With any, the step stays eager",
        factory=dict,
    )
    learning_rate: float = setting(3e-4, "Adam step size at the start", above=0)
    learning_rates: dict[str, float] = setting(
        meaning="other step sizes of parts of the model, by name, as {value_head: 1e-3}; schedules multiply all "
        "alike. With any, torch computes what C++ would",
        factory=dict,
    )
    warmup_steps: int = setting(
        0, "environment steps over which step sizes rise linearly to what they would be; 0 is none", low=0
    )
    lr_schedule: str = setting(
        "linear",
        "linear (to 0 at total_steps), none, adaptive (by approx_kl around adaptive_kl)",
        choices=("linear", "none", "adaptive"),
    )
    adaptive_kl: float | None = setting(
        None, "approx_kl in nats that lr_schedule=adaptive aims at (0.01 if null)", above=0
    )
    adam_eps: float = setting(1e-5, "epsilon of Adam", above=0)
    max_grad_norm: float = setting(
        0.5, "gradients are scaled down to this norm, over all parameters", above=0
    )
    target_kl: float | None = setting(
        None, "stop the epochs of an iteration once approx_kl exceeds this", above=0
    )
    normalize_advantages: str = setting(
        "global",
        "by moments over all ranks (global), over those of each minibatch (minibatch), over one rank's samples (local: "
        "depends on W), or not (none)",
        choices=("global", "minibatch", "local", "none"),
    )
    normalize_obs: bool = setting(False, "scale observations, but pixels, by running moments over all ranks")
    normalize_rewards: bool = setting(False, "scale rewards by the running deviation of discounted returns")
    reward_scale: float = setting(
        1.0,
        "learn from rewards times this, before reward_clip; returns are reported as the task gave them",
        above=0,
    )
    reward_clip: float | None = setting(
        None,
        "learn from rewards cut to [-reward_clip, reward_clip]; null does not; returns are reported uncut",
        above=0,
    )


@dataclass(slots=True)
class DistConfig:
    world_size: int = setting(1, "ranks W", low=1, high=1_000_000)
    topology: str = setting(
        "ddp",
        "who steps environments, acts and learns: ddp, ddp_preempt, sync_actors, async_actors, multi_learner, "
        "env_workers, env_workers_hetero, central_inference, device, or the import path of your own, "
        "my_pkg.topologies:Ring (docs/topologies.md)",
    )
    num_learners: int | None = setting(
        None,
        "topology=multi_learner: learners L in data parallel, each fed by W / L - 1 actors; null is as many as W "
        "allows, W / 2 with one actor each if it is even",
        low=1,
    )
    env_shares: list[int] = setting(
        meaning="topology=env_workers_hetero: environments of rank 1, 2, ..., env.num_envs in all; [] deals them as "
        "evenly as goes",
        factory=list,
    )
    observers: int | None = setting(
        None,
        "topology=central_inference: processes that step an agent's environments, each as many; null as many as "
        "env.num_workers says",
        low=1,
    )
    max_wait_ms: float | None = setting(
        None,
        "topology=central_inference: how long a forward waits for further observers once one is there; null for all",
        low=0,
        high=60_000,
    )
    max_lag: int | None = setting(
        None,
        "topology=async_actors: updates between the parameters that acted and those that learn, at most; what is older "
        "is refused. 0 is in step; null the least with which no actor waits for an update to end",
        low=0,
    )
    correction: str = setting(
        "clip",
        "topology=async_actors: of what other parameters acted: clip (advantages by truncated importance ratios), "
        "vtrace (also the values' targets), none (what PPO's own clipping does)",
        choices=("clip", "vtrace", "none"),
    )
    preempt_rule: str = setting(
        "fraction",
        "topology=ddp_preempt: for how many ranks' rollouts to wait before others end theirs early: fraction "
        "(sync_frac of them), throughput (so many that steps / (rollout + learn time) is highest by the speeds of the "
        "last iterations)",
        choices=("fraction", "throughput"),
    )
    sync_frac: float = setting(
        0.6,
        "topology=ddp_preempt: once this share of the ranks have ended their rollouts the others end theirs",
        above=0,
        high=1,
    )
    min_frac: float = setting(
        0.25,
        "topology=ddp_preempt: share of its steps that a rank does in any case before it ends a rollout early",
        low=0,
        high=1,
    )
    rollout_time_cap_s: float | None = setting(
        None,
        "topology=ddp_preempt: seconds after which a rank that has min_frac of its steps ends its rollout, whatever "
        "others do; null is no limit",
        above=0,
        high=2_000_000,
    )
    max_world_size: int | None = setting(None, "largest world_size this option allows", low=1)
    grad_sync: str = setting(
        "auto",
        "ddp (DistributedDataParallel: buckets, overlapped), flat (one sum), auto (ddp with dist.collective=gloo "
        "on CPUs from 1 M parameters, else flat)",
        choices=("auto", "ddp", "flat"),
    )
    reduction: str = setting(
        "fast",
        "fast (results depend on W by the order of floating-point sums), or ordered (the same bits at any W that "
        "divides dist.shards, on CPUs; slower, docs/ordered.md)",
        choices=("fast", "ordered"),
    )
    shards: int | None = setting(
        None,
        "reduction=ordered: shards V of the environments, each computed by itself and summed in an order that follows "
        "from V; divides env.num_envs. null is 8",
        low=1,
    )
    bucket_cap_mb: float | None = setting(
        None, "bucket size of grad_sync=ddp in MB (torch's default if null)", above=0
    )
    collective: str = setting(
        "auto",
        "how ranks exchange: shm (shared memory inside a machine, Gloo between machines), gloo or nccl "
        "(torch.distributed), auto (nccl where every rank has a GPU of its own, else shm)",
        choices=("auto", "shm", "gloo", "nccl"),
    )
    check_every: int = setting(
        10, "iterations between comparisons of the parameters' hash; 0 is never", low=0
    )
    timeout_s: float = setting(
        600.0, "seconds a rank waits for another before it gives up", above=0, high=2_000_000
    )
    on_lost: str = setting(
        "stop",
        "when a process is killed by a signal or does not answer for timeout_s: stop (all ranks end), or restart (a "
        "process of environments, a session with a server of them, and a killed rank that acts at its own pace, is "
        "started again; for any other rank all end and go on from the last checkpoint). So it is with a rank whose "
        "environment raised or that ran out of memory; any other exception always stops",
        choices=("stop", "restart"),
    )
    max_restarts: int = setting(
        3,
        "with on_lost=restart, how often ranks, one rank's processes, or one environment's session are started again",
        low=1,
    )
    min_workers: int | None = setting(
        None,
        "with on_lost=restart: where ranks were lost, or could not be started, twice without a checkpoint in between, "
        "fewer go on: the most below world_size, but no fewer than these, that the batch can be dealt to; null: never",
        low=1,
    )
    oversubscribe: str = setting(
        "warn",
        "more ranks on this machine than it has cores (or GPUs): warn and go on, or refuse",
        choices=("warn", "refuse"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of one rank; null takes cores / W where a minibatch is work enough, else 1, and 1 with "
        "reduction=ordered, where another number gives other bits",
        low=1,
        high=1024,
    )

    @property
    def allowed_restarts(self) -> int:
        """How often what steps environments may be lost and started again."""
        return self.max_restarts if self.on_lost == "restart" else 0


@dataclass(slots=True)
class ScalingConfig:
    rule: str = setting(
        "strong", "strong keeps the global batch, weak keeps one rank's", choices=("strong", "weak")
    )
    learning_rate_rule: str = setting(
        "none", "learning rate against W under rule=weak", choices=("none", "linear", "sqrt")
    )


@dataclass(slots=True)
class CurriculumConfig:
    name: str | None = setting(
        "auto",
        "of tasks of text that the environment tells the tiers of, which comes next: tiers (those not mastered first, "
        "docs/curriculum.md), uniform (all alike), the import path of your own (my_pkg.curricula:Mine), null (the "
        "environment chooses), auto (tiers, null where it tells none)",
    )
    settings: dict[str, Any] = setting(
        meaning="its keyword arguments; of tiers its rules, as {window: 20} (docs/curriculum.md lists them)",
        factory=dict,
    )


@dataclass(slots=True)
class SearchConfig:
    name: str | None = setting(
        None,
        "of a task that is given an order at every reset, which order comes next: orders (upper confidence bounds of a "
        "Gaussian process over all 120, docs/search.md), the import path of your own (my_pkg.searches:make), null (no "
        "search)",
    )
    budget_episodes: int = setting(100_000, "episodes of all environments until the search ends", low=1)
    max_episodes_per_order: int = setting(
        100, "episodes of each environment after which a trial of an order ends, whatever came of it", low=1
    )
    gate_compliance: float = setting(
        0.95, "compliance of an iteration, mean over its episodes, at which a trial ends", low=0, high=1
    )
    gate_repairs: int = setting(10, "repairs of an iteration, below which the gate stays shut", low=0)
    plateau: int | None = setting(
        None,
        "iterations without compliance rising by 0.01 after which a trial ends; null is none",
        low=1,
    )
    settle_iterations: int = setting(
        10,
        "iterations for which the mean return of the last search.score_iterations must not have risen by 1 % before a "
        "trial ends at its gate; 0: it ends there at once",
        low=0,
    )
    inherit: str = setting(
        "nearest",
        "whose policy a trial begins with: nothing (parameters as at the start), shared (the trial's before), same "
        "(the last of the same order, else nothing), nearest (of the order at the least Kendall distance)",
        choices=("nothing", "shared", "same", "nearest"),
    )
    beta: float = setting(2.0, "weight of the deviation in the upper confidence bound", low=0)
    score_iterations: int = setting(
        5, "last iterations of a trial whose mean environment return is its score", low=1
    )
    shortfall_weight: float = setting(
        30.0,
        "what a trial that failed its gate loses of its score, per unit of compliance that it lacks",
        low=0,
    )


@dataclass(slots=True)
class EvalConfig:
    every_steps: int = setting(
        0, "environment steps between evaluations during training; 0 is only the last", low=0
    )
    episodes: int = setting(
        20,
        "episodes of an evaluation during training; of text the next multiple of the number of tasks, if it tells them",
        low=1,
    )
    final_episodes: int = setting(100, "episodes of the evaluation at the end; 0 is none", low=0)


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int = setting(50_000, "environment steps between checkpoints; 0 is only at the end", low=0)
    every_minutes: float = setting(
        0.0, "minutes of training between checkpoints, by rank 0's clock; 0 is never", low=0, high=1_000_000
    )
    environments: bool = setting(
        True,
        "hold what every environment is in the midst of, so that a resumed run is the one that was not interrupted; "
        "megabytes of each of circuits. false: they start new episodes, and hear what the run folder knows",
    )
    keep: int = setting(2, "how many of the newest checkpoints stay, besides the best", low=1)


@dataclass(slots=True)
class RunConfig:
    max_minutes: float | None = setting(
        None,
        "minutes since the command began after which all ranks finish the iteration, save it and end, to be started "
        "again; null is no limit",
        above=0,
        high=10_000_000,
    )
    requeue_exit_code: int = setting(
        75,
        "exit code of a command that SIGTERM, SIGUSR1, SIGUSR2 or run.max_minutes ended and that saved what to go on "
        "from: start it again (docs/faults.md)",
        low=0,
        high=255,
    )


@dataclass(slots=True)
class LogConfig:
    tensorboard: bool = setting(True, "write TensorBoard event files")
    trackers: list[str] = setting(
        meaning="services that are told the same numbers, in files of the run folder: wandb, mlflow",
        factory=list,
    )
    metrics: list[str] = setting(
        meaning="import paths of metrics of your own, functions of what each rank collected, which are reduced over "
        "ranks by count: [my_pkg.metrics:pushed_left] (docs/guide/metric.md)",
        factory=list,
    )
    progress: str = setting(
        "auto",
        "live display (rich), one line every few seconds (plain), nothing (none), by terminal (auto)",
        choices=("auto", "rich", "plain", "none"),
    )
    episode_window: int = setting(100, "episodes in the mean of rollout/return_mean", low=1)
    warmup_iterations: int = setting(
        2, "iterations left out of the means and percentiles in summary.json", low=0
    )
    profile_iterations: int = setting(
        0,
        "after warm-up, iterations of rank 0 to trace and then to profile, into the run folder's profile/; 0 is none",
        low=0,
        high=1000,
    )


@dataclass(slots=True)
class SlurmLauncherConfig:
    """Settings of hydra/launcher=slurm; resolved for each job, so that a value may follow ${dist.world_size}."""

    _target_: str = setting("hydra_plugins.ddppo_slurm.SlurmLauncher", "")
    ranks_per_node: int = setting(
        8, "ranks on one node at most; nodes = W / ranks_per_node, rounded up", low=1
    )
    cpus_per_rank: int = setting(1, "CPUs of one rank", low=1)
    gpus_per_rank: int = setting(0, "GPUs of one rank", low=0)
    learner_gpus: int | None = setting(
        None,
        "GPUs of rank 0, where it learns or acts for all others (distributed=env_workers, sync_actors, ...); any "
        "learner_* makes it a component of its own of a heterogeneous job",
        low=0,
    )
    learner_cpus: int | None = setting(None, "CPUs of rank 0, as learner_gpus; else cpus_per_rank", low=1)
    learner_partition: str | None = setting(None, "partition of rank 0, as learner_gpus; else partition")
    mem_gb_per_rank: float | None = setting(
        None, "memory of one rank in GB; the partition's default if null", above=0
    )
    timeout_min: int = setting(
        60, "time limit in minutes; a run that needs longer saves, requeues and goes on", low=1
    )
    signal_s: int = setting(
        120, "seconds before the time limit at which all ranks save and the job requeues", low=1
    )
    max_num_timeout: int = setting(50, "how often a job may requeue because of its time limit", low=0)
    partition: str | None = setting(None, "sbatch --partition")
    account: str | None = setting(None, "sbatch --account")
    qos: str | None = setting(None, "sbatch --qos")
    constraint: str | None = setting(None, "sbatch --constraint")
    exclusive: bool = setting(False, "nodes are shared with no other job, as a measurement needs")
    setup: list[str] = setting(meaning="shell lines before the run, e.g. ['module load cuda']", factory=list)
    additional_parameters: dict[str, Any] = setting(meaning="any other options of sbatch", factory=dict)
    array_parallelism: int = setting(256, "jobs of one array that run at once", low=1)
    one_at_a_time: bool = setting(
        False, "jobs of the sweep run one after another, so that measurements do not disturb each other"
    )
    interface: str | None = setting(
        None, "network interface of Gloo and NCCL, e.g. ib0; their own choice if null"
    )
    local_cluster: bool = setting(False, "use the fake-node cluster that `make slurm-up` started")
    wait: bool = setting(True, "stay until all jobs have ended; false returns, `ddppo.jobs` looks later")
    poll_s: float = setting(3.0, "seconds between two looks at the queue", above=0)


@dataclass(slots=True)
class GpUcbSweeperConfig:
    """Settings of hydra/sweeper=gp_ucb, named as Optuna's where these mean the same."""

    _target_: str = setting("hydra_plugins.ddppo_gp_ucb.GpUcbSweeper", "")
    direction: str = setting(
        "maximize",
        "of the objective; minimize for objective=time_to_target",
        choices=("maximize", "minimize"),
    )
    n_trials: int = setting(20, "runs in all; fewer where no other values are left", low=1)
    n_jobs: int = setting(
        1, "runs at once, where the launcher can; the search learns from all of them together", low=1
    )
    beta: float = setting(
        2.0, "deviations above the mean by which a point is judged: more explores more", low=0
    )
    num_random: int = setting(4, "runs with values drawn by seed, before the first that are chosen", low=1)
    seed: int = setting(0, "of these draws and of ties; not the seed of the runs", low=0)
    params: dict[str, Any] | None = setting(
        None, "what is searched, {key: interval(...), ...}, beside what the command says"
    )


@dataclass(slots=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)
    seed: int = setting(0, "root of every random stream", low=0)
    device: str = setting("auto", "auto takes a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = setting("float32", "floating-point type of the model", choices=("float32", "float64"))
    compile: str = setting(
        "auto",
        "the learner's step in machine code: auto (ddppo's own for model=mlp on CPUs, for others torch's compiler, "
        "in the background if the run is long or at once if an earlier one did), on (any model before the first "
        "iteration), torch (as on, always by torch's compiler), off",
        choices=("auto", "on", "torch", "off"),
    )
    on_nonfinite: str = setting(
        "stop",
        "where a loss, a gradient or what was learned is not finite: stop (all ranks end), skip_batch (all take back "
        "what the iteration's batch taught them), or restore (all go back to the last checkpoint, with smaller steps)",
        choices=("stop", "skip_batch", "restore"),
    )
    on_nonfinite_max: int = setting(
        10, "of skip_batch, batches skipped in a row, of restore, ways back, after which all ranks end", low=1
    )
    on_nonfinite_factor: float = setting(
        0.5, "of restore, what step sizes are multiplied by with every way back", above=0, high=0.99
    )
    target_return: float | None = setting(
        None, "evaluation return whose first reaching gives time-to-target and steps-to-target"
    )
    resume: str | None = setting(
        None,
        "a run folder to go on from; auto: begin in hydra.run.dir, or go on with the same run there, whichever applies",
    )
    resume_state: str = setting(
        "exact",
        "resume= where a checkpoint does not hold what environments are in the midst of: refuse (exact), or go on with "
        "new episodes (approximate)",
        choices=("exact", "approximate"),
    )
    init_from: str | None = setting(
        None,
        "a run folder (its last checkpoint) or a checkpoint whose parameters and normalisers, as far as they fit, a "
        "new run begins with",
    )
    sweep: str | None = setting(
        None,
        "folder of the runs of -m; the same command with the same folder skips the complete and redoes the others",
    )
    objective: str = setting(
        "eval_return",
        "what a sweeper such as gp_ucb is told: the final evaluation's mean return, or seconds to target_return",
        choices=("eval_return", "time_to_target"),
    )


SECTIONS = {
    "env": EnvConfig,
    "model": ModelConfig,
    "ppo": PPOConfig,
    "distributed": DistConfig,
    "scaling": ScalingConfig,
}
