"""The trial of algorithms: each mistake is one sentence before any process starts."""

import random
import threading
import time

import numpy as np
import pytest
import torch

from ddppo.algorithms.trial import check_algorithm
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.launch.checks import sync_of_one
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

HERE = "tests.unit.bad_algorithms"
OBS = ArraySpec((4,))
DISCRETE = EnvSpec(OBS, ActionSpec("discrete", (3,)))
MASKED = EnvSpec(OBS, ActionSpec("multi_discrete", (3, 2)), mask_size=5)
BOX = EnvSpec(OBS, ActionSpec("box", (2,)))
BOUNDED = EnvSpec(OBS, ActionSpec("box", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)))
BITS = EnvSpec(OBS, ActionSpec("multi_binary", (3,)))
PIXELS = EnvSpec(
    {"image": ArraySpec((84, 84, 4), "uint8"), "speed": ArraySpec((1,))}, ActionSpec("discrete", (6,))
)
SPECS = {"Maskless": MASKED, "InfiniteActions": BOX}


def check(name, spec=None, *, num_envs=4, rollout_steps=32, **model):
    """Try an algorithm of bad_algorithms.py, or one of ours."""
    algorithm = settings_of("algorithm", name=name if name.islower() else f"{HERE}:{name}")
    config = Config(env=EnvConfig("Some-v0"), algorithm=algorithm, model=settings_of("model", **model))
    shape = BatchShape(num_envs, rollout_steps, 1, 1, 1)
    return check_algorithm(config, spec or SPECS.get(name, DISCRETE), shape, sync_of_one)


SAID = {
    "NoLearn": "NoLearn does not define learn",
    "Handsome": "Handsome.hands_over='games': must be one of steps, episodes, groups",
    "NoNames": "NoNames.synchronised is 'policy_head': it must be a tuple of names of parameters",
    "NegativeLag": "NegativeLag.max_lag is -1: it must be a number of updates, or None",
    "NoAlgorithm": "must be a subclass of ddppo.algorithms.contract.Algorithm",
    "Refuses": "Refuses.check raised KeyError: 'spec', in check",
    "UndecoratedSettings": "its settings_class: Undecorated is not decorated, so that learning_rate is no setting: "
    "write @dataclass above the class",
    "Clashing": "its settings_class: ClashingSettings.total_steps is of type str, and the setting total_steps of"
    " all is of type int: use another name for it",
    "Unset": "its settings_class: UnsetSettings.gamma has no default: write gamma: ... = <value>",
    "NoNetworks": "NoNetworks.networks returned a Linear: it must return an ActorCritic "
    "(ddppo.models.actor_critic)",
    "RaisingNetworks": "RaisingNetworks.networks raised KeyError: 'q', in networks",
    "RaisingInit": "RaisingInit.__init__ raised ValueError: no target, in __init__",
    "NoSuper": "NoSuper.kept must be a dict of tensors by name: call super().__init__, and add to it",
    "UnknownSynchronised": "UnknownSynchronised.synchronised names policy, and no parameter has a name that begins so: "
    "use policy_trunk, value_trunk, policy_head, value_head",
    "UnknownRecords": "UnknownRecords.records is ('values',): it must be ('logprobs',), or () for nothing",
    "NoPart": "NoPart.parts must return at least one Part by name, as {'all': Part(1e-3)}",
    "UnknownPart": "UnknownPart.parts: all names critic, and no parameter has a name that begins so: use "
    "policy_trunk, value_trunk, policy_head, value_head",
    "Overlapping": "Overlapping.parts has value_head.bias, value_head.weight in both all and critic: a parameter "
    "has one Adam",
    "OtherPart": "OtherPart.learn moved the part critic, and OtherPart.parts has all",
    "NoActed": "NoActed.act returned a tensor [8]: it must return Acted(actions, extras, memory)",
    "ColumnOfActions": "ColumnOfActions.act returned a tensor [8, 1] as actions of 8 environments: they must be a "
    "tensor [8]",
    "FloatingActions": "FloatingActions.act returned actions of torch.float32: discrete actions must be integers",
    "OutsideActions": "OutsideActions.act returned actions from 1 to 3, outside the action space: it has 3 choices, "
    "numbered from 0",
    "InfiniteActions": "InfiniteActions.act returned actions that are not finite",
    "Maskless": "Maskless.act returned actions that the mask forbids: pass it to model.distribution",
    "RowExtras": "RowExtras.act returned a tensor [] as the extra scale of 8 environments: it must be a tensor "
    "[8, ...]",
    "NumberExtras": "NumberExtras.act returned a float as the extra scale of 8 environments: it must be a tensor [8,"
    " ...]",
    "ChangingNames": "ChangingNames.act recorded early in one call and late in another: extras have the same names, "
    "shapes and types in every call",
    "ChangingShapes": "ChangingShapes.act recorded all [n, 8] of torch.float32 in one call and [n, 4] of torch.float32"
    " in another: extras have the same names, shapes and types in every call",
    "ChangesObs": "ChangesObs.act changes the observations, mask, noise or memory that it gets: compute on a copy",
    "RaisingAct": "RaisingAct.act raised for 8 environments: IndexError: no camera, in act",
    "RaisingLearn": "RaisingLearn.learn raised for a rollout of 32 steps of 4 environments: KeyError: 'values', in "
    "learn",
    "Nothing": "Nothing.learn returned a NoneType: it must return numbers by name, as {'policy_loss': 0.1}, or "
    "{}",
    "Words": "Words.learn returned a str as loss: it must return numbers by name",
    "Vectors": "Vectors.learn returned a tensor [32, 4] as loss: it must return numbers by name",
    "NaNs": "NaNs.learn computes a loss that is not finite, from random rollouts",
    "Unreduced": "Unreduced.learn gave step a tensor [32, 4] as its loss: it must be a scalar tensor, the sum of "
    "the losses of this learner's samples",
    "Detached": "Detached.learn gave step a loss without a gradient: it must depend on the parameters, outside "
    "torch.no_grad() and without .detach()",
    "Successorless": "rollout.successors() has none, for successors travel with a rollout only if the algorithm needs"
    " them: add needs_successors = True to its class",
    "Replacing": "Replacing.learn replaces tensors in kept: change them in place, as self.kept['x'].copy_(y)",
    "OwnCalls": "OwnCalls.learn makes other calls of step on one of two learners: every learner makes the same calls",
    "OneMoreCall": "OneMoreCall.learn makes other calls of step on one of two learners: every learner makes the same "
    "calls",
    "FailingSecond": "FailingSecond.learn raised on one of two learners: KeyError: 'second', in learn",
}


@pytest.mark.parametrize("name", SAID)
def test_a_mistake_is_a_sentence(name):
    with pytest.raises(ConfigError) as raised:
        check(name)
    said, _, place = str(raised.value).partition(
        f" ({__file__.replace('test_algorithm_trial', 'bad_algorithms')}:"
    )
    assert said == f"algorithm={HERE}:{name}: {SAID[name]}"
    assert bool(place) == said.endswith(
        (", in act", ", in learn", ", in networks", ", in __init__", ", in check")
    )


SUSPECTED = {
    "Drawing": "act returns other actions or extras for the same observations and noise, so that results depend on "
    "dist.world_size: draw nothing, and take randomness from noise alone",
    "Mixing": "act lets observations of a batch mix, so that results depend on dist.world_size: compute each action "
    "from its own observation and noise alone",
    "MeanLoss": "learn computes another gradient with two learners than with one, so that results depend on "
    "dist.world_size: give step the sum of this learner's losses and their count over all learners, and use "
    "step.sum, step.normalized and step.minibatches",
    "LocalAdvantages": "learn computes another gradient with two learners than with one, so that results depend on "
    "dist.world_size: give step the sum of this learner's losses and their count over all learners, and use "
    "step.sum, step.normalized and step.minibatches",
    "OwnNumberOfSteps": "learn makes 2 steps with two learners and 4 with one, so that results depend on "
    "dist.world_size: give step the sum of this learner's losses and their count over all learners, and use "
    "step.sum, step.normalized and step.minibatches",
}


@pytest.mark.parametrize("name", SUSPECTED)
def test_results_that_would_depend_on_the_number_of_ranks_are_warned_of(name):
    assert check(name) == f"algorithm={HERE}:{name}: {name}.{SUSPECTED[name]}"


@pytest.mark.parametrize("spec", [DISCRETE, MASKED, BOX, BITS], ids=["discrete", "masked", "box", "bits"])
@pytest.mark.parametrize("name", ["Good", "reinforce"])
def test_an_algorithm_without_mistakes_passes(name, spec):
    assert check(name, spec) is None
    assert check(name, spec, num_envs=1) is None


# Two learners have unequal shares of an odd number of environments.
@pytest.mark.parametrize("num_envs", [3, 5])
@pytest.mark.parametrize(
    ("name", "spec"), [("Good", DISCRETE), ("reinforce", MASKED), ("dqn", DISCRETE), ("sac", BOUNDED)]
)
def test_an_odd_number_of_environments_is_no_reason_for_a_warning(name, spec, num_envs):
    assert check(name, spec, num_envs=num_envs) is None


def test_two_learners_wait_for_each_other_however_long_one_computes(monkeypatch):
    # A wait with a limit of time runs out at once.
    wait = threading.Condition.wait
    monkeypatch.setattr(
        threading.Condition,
        "wait",
        lambda condition, timeout=None: wait(condition) if timeout is None else False,
    )
    assert check("Good") is None


def test_one_with_memory_passes():
    assert check("Remembers", memory="gru", memory_size=8) is None


def test_a_model_with_memory_is_refused_where_the_algorithm_takes_none():
    with pytest.raises(ConfigError) as raised:
        check("Good", memory="gru")
    assert str(raised.value) == (
        f"algorithm={HERE}:Good with model.memory=gru: Good has takes_memory=False, so it learns without memory: use a "
        "model without it"
    )


def test_memory_that_act_forgets_is_a_sentence():
    with pytest.raises(
        ConfigError, match=r"Forgets\.act returned a NoneType as memory: it must be a tensor \[8, 8\]"
    ):
        check("Forgets", memory="gru", memory_size=8)


def test_a_task_of_text_is_refused():
    text = EnvSpec(ArraySpec((100,), "text"), ActionSpec("text", (100,)))
    with pytest.raises(
        ConfigError, match="reinforce with Some-v0, a task of text: only ppo and grpo learn from text"
    ):
        check("reinforce", text)


def test_the_trial_leaves_no_trace_in_random_streams():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    check("Drawing")
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_long_rollouts_of_images_are_tried_in_a_moment():
    start = time.process_time()
    check("reinforce", PIXELS, num_envs=64, rollout_steps=4096, hidden_sizes=[16])
    assert time.process_time() - start < 10


def test_a_billion_steps_are_tried_in_a_moment():
    start = time.process_time()
    check("reinforce", rollout_steps=10**9)
    assert time.process_time() - start < 10
