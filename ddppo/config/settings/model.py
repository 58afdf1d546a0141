"""The model."""

from dataclasses import dataclass

from ddppo.config.fields import setting


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
        "of images of uint8: what counts as 1, e.g. 10 where pixels name things",
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
