"""The model."""

from dataclasses import dataclass

from ddppo.config.fields import setting


@dataclass(slots=True)
class ModelConfig:
    name: str = setting(
        "mlp",
        "mlp, cnn, resnet, dict, a name that a plugin brings, or an import path such as my_pkg.models:MyModel",
    )
    hidden_sizes: list[int] = setting(meaning="units of each hidden layer", factory=lambda: [64, 64])
    conv_layers: list[list[int]] = setting(
        meaning="cnn and dict: [filters, kernel, stride] of each convolution in front of the hidden layers; dict "
        "with [] chooses by image size",
        factory=list,
    )
    resnet_channels: list[int] = setting(
        meaning="resnet, and resnets of dict: filters of each block, which halves height and width",
        factory=lambda: [16, 32, 32],
    )
    image_encoder: str = setting(
        "cnn",
        "dict: encoder of images: cnn, resnet (IMPALA's), resnet18 or resnet50 (DD-PPO's: half the "
        "filters, group normalisation)",
        choices=("cnn", "resnet", "resnet18", "resnet50"),
    )
    encoders: dict[str, str] = setting(
        meaning="dict: encoders other than those chosen by shape, by key of the observation: mlp or a "
        "model.image_encoder, as {camera: resnet}",
        factory=dict,
    )
    vector_sizes: list[int] = setting(
        meaning="dict: units of each layer behind an array that is no image", factory=lambda: [64]
    )
    image_features: int = setting(256, "dict: units behind each image", low=1)
    image_layout: str = setting(
        "auto",
        "order of image dimensions: chw (channels, height, width, or a stack of frames), hwc (channels "
        "last), auto (by the shape, which is said at the start; refused where it does not tell, as 3 x 3 x 3)",
        choices=("chw", "hwc", "auto"),
    )
    pixel_max: float = setting(
        255.0,
        "images of uint8: the value that becomes 1, e.g. 10 if pixels are category numbers",
        above=0,
    )
    precision: str = setting(
        "float32",
        "images: float32 is dtype; bfloat16 multiplies in 8 bits, 2 to 3 times as fast on CPUs with AMX "
        "or AVX512-BF16, and results agree over W to about 2 digits only",
        choices=("float32", "bfloat16"),
    )
    activation: str = setting(
        "tanh", "nonlinearity between layers", choices=("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")
    )
    shared_trunk: bool = setting(False, "policy and value function share the hidden layers")
    orthogonal: bool = setting(
        True,
        "mlp: true begins with orthogonal weights and biases of 0; false with torch's own, both uniform "
        "in +-1 / sqrt(inputs)",
    )
    log_std_init: float = setting(0.0, "initial log standard deviation of Gaussian actions")
    log_std: str = setting(
        "parameter",
        "log standard deviation of Gaussian actions: parameter (one number per action dimension), state "
        "(an output of the policy for each observation, cut to [-20, 2])",
        choices=("parameter", "state"),
    )
    squash: str = setting(
        "none",
        "Gaussian actions: none (the environment cuts them to the bounds of its Box), tanh (squashed into"
        " the bounds, with corrected log probabilities)",
        choices=("none", "tanh"),
    )
    memory: str = setting(
        "none",
        "mlp, cnn, resnet and dict: recurrent layers behind the others, so that the policy remembers its "
        "episode: none, lstm or gru (model=lstm and model=gru are mlp with these)",
        choices=("none", "lstm", "gru"),
    )
    memory_size: int = setting(128, "memory: units of each recurrent layer", low=1, high=65_536)
    memory_layers: int = setting(1, "memory: number of recurrent layers", low=1, high=64)
    graph_conv: str = setting(
        "qgnn",
        "gnn: convolution: qgnn (Quarl's: linear messages over typed edges), gin (graph isomorphism "
        "network), attention (4 heads)",
        choices=("qgnn", "gin", "attention"),
    )
    graph_layers: int = setting(
        4, "gnn: number of convolutions; a gate is informed by gates up to this far away", low=1, high=64
    )
    graph_width: int = setting(
        128, "gnn: units of each convolution and of the critic; the actor has twice as many", low=4
    )
    graph_prior: float = setting(
        3.0,
        "gnn: before learning, a rule that adds n gates is e^(-graph_prior n) times as likely as one that"
        " adds none; 0 makes all equal",
        low=0,
        high=20,
    )
    temperature: float | None = setting(
        None,
        "gnn: gates are drawn by exp(value / temperature). null follows the number of gates N, 1 / ln(9 "
        "(N - 1)): a gate worth 1 more than all others is then drawn 9 times in 10",
        above=0,
    )
    token_width: int = setting(64, "token_policy: units of each token in each layer", low=8)
    token_layers: int = setting(2, "token_policy: layers of attention and of units", low=1, high=64)
    token_heads: int = setting(
        4, "token_policy: heads of attention, of token_width / token_heads units each", low=1
    )
    turn_tokens: int = setting(64, "policies of text: most tokens of a turn that the policy writes", low=1)
    obs_tokens: int = setting(
        256, "policies of text: most tokens of the prompt, and of each answer, that the policy reads", low=1
    )
    hf_path: str | None = setting(
        None, "hf: causal language model of Hugging Face, a folder or a name that its library finds"
    )
    lora_rank: int = setting(
        8, "hf: rank of the learned change to each linear layer; 0 learns all weights", low=0
    )
    sampling_temperature: float = setting(
        1.0, "policies of text: logits are divided by this, in acting and in learning", above=0
    )
    top_p: float = setting(
        1.0,
        "policies of text: tokens are drawn from the likeliest ones whose probabilities reach this sum, "
        "and learned from as such; 1 is all",
        above=0,
        high=1,
    )
