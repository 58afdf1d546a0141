"""Settings of models of pixels and encoders that cannot be: command lines with what is said of them."""

_MIXED = "env=gym env.id=tests.unit.seen_tasks:seen/Mixed-v0"

LINES = {
    "model=resnet": "takes images, a Box of 3 dimensions, but the task observes [4]: use model=mlp",
    f"{_MIXED} model=resnet": "observes a dict of camera, cards.0, cards.1, state: use model=dict",
    f"{_MIXED} model=dict model.encoders={{lidar:mlp}}": "the task observes camera, cards.0, cards.1, state: use one",
    f"{_MIXED} model=dict model.encoders={{state:cnn}}": "takes images, of 3 dimensions, and state is [2, 2]: use mlp",
    f"{_MIXED} model=dict model.encoders={{state:gru}}": "an encoder is one of cnn, resnet, resnet18, resnet50, mlp",
    f"{_MIXED} model=dict model.conv_layers=[[8,9,1]]": "a kernel of 9 x 9 does not fit into 8 x 8",
    f"{_MIXED} model=ddppo": "halves images 6 times, and these are 8 x 8: use images of at least 32 x 32",
    "model=dict model.image_encoder=vgg": "must be one of cnn, resnet, resnet18, resnet50",
    "model=dict model.vector_sizes=[]": "model.vector_sizes=[]: needs one or more sizes, each at least 1, e.g. [64]",
    "model=dict model.image_features=0": "model.image_features=0: must be at least 1",
    "model=dict model.pixel_max=0": "model.pixel_max=0.0: must be greater than 0",
    "model=dict model.image_layout=nchw": "model.image_layout=nchw: must be one of chw, hwc, auto",
    "model=resnet model.resnet_channels=[16,0]": "model.resnet_channels=[16, 0]: needs one or more sizes",
    "model=dict model.precision=bfloat16 dtype=float64": "model.precision=bfloat16 with dtype=float64",
    "model.resnet_channels=[8]": "with model.name=mlp: it is of model=resnet or dict",
    "model.encoders={a:mlp}": "no setting model.encoders with model.name=mlp: it is of model=dict",
    "env=atari env.kwargs.noop_max=many": "env.kwargs.noop_max=many: must be at least 0, and whole",
    "env=atari env.kwargs.noop_max=-1": "env.kwargs.noop_max=-1: must be at least 0",
    "env=atari env.kwargs.frameskip=0": "env.kwargs.frameskip=0: must be at least 1",
    "env=atari env.kwargs.stack_num=0": "env.kwargs.stack_num=0: must be at least 1",
    "env=atari_sticky env.kwargs.repeat_action_probability=2": "probability=2: must be between 0 and 1",
    "env=atari env.kwargs.reward_clipping=true": "set ppo.reward_clip",
}
