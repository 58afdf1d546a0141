"""Settings of tasks of text and of models of tokens that cannot be: command lines with what is said of them."""

import pytest

from tests.conf.wrong_command_lines import Case, Playground

_TASK = "env=gym env.id=tests.domains.text.text_tasks:tests/Repeat-v0"
_RUN = f"{_TASK} model=token_policy ppo.rollout_steps=64 model.obs_tokens=16 ppo.group_size=4"
_PARTS = _RUN.replace("tests/Repeat", "tests/PartsRepeat")
_LONG = f"{_TASK} model=token_policy ppo.rollout_steps=999"
_ALONE = "tests.domains.text.text_tasks:tests/AloneRepeat-v0"

LINES = {
    _TASK: "model.name=mlp with a task of text, and it takes no text: use model=token_policy",
    "model=token_policy": "with a task that is not of text, and it takes nothing else: use model=mlp",
    f"{_RUN} model.obs_tokens=64": "a prompt may leave none to type: use a ppo.rollout_steps of at least 128",
    f"{_RUN} model.token_heads=5": "each head needs the same even number of units: use a multiple of 10",
    f"{_RUN} model.token_width=12 model.token_heads=4": "use a multiple of 8",
    f"{_RUN} model.top_p=1.1": "model.top_p=1.1: must be at most 1",
    f"{_RUN} model.top_p=0": "model.top_p=0.0: must be greater than 0",
    f"{_RUN} model.sampling_temperature=0": "must be greater than 0",
    f"{_RUN} model.hidden_sizes=[32]": "no setting model.hidden_sizes with model.name=token_policy: it is of model=mlp",
    f"{_RUN} ppo.normalize_obs=true": "tokens are names, not numbers",
    f"{_TASK} model.name=ddppo.models.actor_critic:MLP ppo.normalize_obs=true": "observes text; its tokens are names",
    f"{_RUN} env.backend=pool": "is a task of text, and this backend steps arrays",
    f"{_RUN} model.name=tests.domains.text.policies:KeepsToItsRank distributed=env_workers dist.world_size=3": (
        "tests.domains.text.policies:OwnCollector, has no over_ranks"
    ),
    f"{_RUN} distributed=async_actors dist.world_size=3": "its episodes are compared in groups of one policy",
    f"{_RUN} env.id={_ALONE} env.backend=sync": "Repeat-v0 only, and a rank would step 8: use env.backend=remote",
    f"{_RUN} env.max_turns=0": "env.max_turns=0: must be at least 1",
    f"{_RUN} env.reward_weights={{right:1}}": (
        'tests/Repeat-v0 returned no info["reward_parts"], and env.reward_weights weighs the parts of a reward'
    ),
    f"{_PARTS} env.reward_weights={{rihgt:1,short:0}}": (
        "returned the parts right, short of its reward, and env.reward_weights names rihgt, short: give each part a "
        "weight, 0 to leave it out"
    ),
    f"{_PARTS} env.reward_weights={{right:nan,short:0}}": "reward_weights.right=nan: a weight must be a finite number",
    "env.reward_weights={right:1}": "has no effect with CartPole-v1, as its actions are no text",
    "model=hf": "model.name=hf needs model.hf_path, a folder with a causal language model",
    "model=hf model.hf_path=x model.lora_rank=0 model.lora_alpha=4": "model.lora_alpha with model.lora_rank=0",
    "model=hf model.hf_path=x model.lora_rank=0 model.lora_targets=[x]": "lora_targets with model.lora_rank=0",
    "model=hf model.hf_path=x model.precision=float16": "must be one of float32, bfloat16",
    "model=hf model.hf_path=x model.precision=bfloat16 dtype=float64": "use dtype=float32",
    "model.lora_rank=4": "no setting model.lora_rank with model.name=mlp: it is of model=hf",
    "env.max_turns=3": "env.max_turns=3 has no effect with CartPole-v1, as its actions are no text",
    "model.token_width=32": "no setting model.token_width with model.name=mlp: it is of model=token_policy",
    "model.top_p=0.5": "no setting model.top_p with model.name=mlp: it is of model=token_policy or hf",
    f"{_LONG} ppo.group_size=3": "ppo.group_size=3 does not divide the 8 environments of all ranks",
    f"{_LONG} ppo.num_minibatches=9": "exceeds the 8 episodes of an iteration",
    f"{_LONG} ppo.rollout_steps=100": "a prompt may leave none to type",
    "curriculum=tiers": "set one of curriculum.name, curriculum.settings",
    "curriculum.name=tires": "must be one of auto, tiers, uniform (did you mean tiers?), or null",
    "curriculum.name=tiers": "env.id=CartPole-v1 is no task of text",
    "curriculum.name=no_such_pkg.curricula:Mine": "cannot be made: ModuleNotFoundError",
    "curriculum.settings={window:3}": "has no effect with curriculum.name=auto and env.id=CartPole-v1",
    f"{_LONG} curriculum.name=null curriculum.settings={{window:3}}": "has no effect with curriculum.name=null",
    f"{_LONG} curriculum.settings={{windw:3}}": "there is no setting windw (did you mean window?)",
    f"{_LONG} curriculum.settings={{window:0}}": "curriculum.settings.window=0: must be at least 1",
    f"{_LONG} curriculum.settings={{tiers:[{{name:easy}}]}}": "is of tier warm-up: must be one of easy",
    f"{_LONG} curriculum.name=uniform curriculum.settings={{window:3}}": "unexpected keyword argument 'window'",
}


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    return Playground(tmp_path_factory.mktemp("playground"))


@pytest.mark.parametrize("line", LINES)
def test_text_that_cannot_be_is_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert LINES[line] in answer
