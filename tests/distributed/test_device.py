"""distributed=device: all of an iteration in C++, or a sentence; what it learns is what ddp learns there."""

import re
from unittest import mock

import pytest
import torch

from ddppo import native
from ddppo.collectives.group import Group
from ddppo.errors import ConfigError, TrainingError
from ddppo.launch.arguments import composed
from ddppo.launch.checks import check
from ddppo.loop.rank import Rank
from tests.distributed.test_independence import SIZES, largest_difference, state
from tests.support import TINY, door, summary

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))


def test_it_learns_what_ddp_learns_to_the_bit(tmp_path):
    states = []
    for topology in ("ddp", "device"):
        how = [
            *TINY,
            *SIZES,
            "env=pendulum",
            f"distributed={topology}",
            "dist.world_size=2",
            "dist.reduction=fast",
        ]
        result = door(*how, "ppo.normalize_obs=true", run_dir=tmp_path / topology)
        assert result.code == 0, result.stderr
        derived = summary(tmp_path / topology)["derived"]
        assert (derived["step"], derived["env_backend"]) == ("native", "batched")
        states.append(state(tmp_path / topology))
    assert largest_difference(states[0]["model"], states[1]["model"]) == 0
    assert states[0]["window"] == states[1]["window"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["env=synthetic"], "env.id=ddppo/Synthetic-v0 is not stepped in C++, which has CartPole, Acrobot"),
        (["env=synthetic", "env.kwargs.step_time_s=0.01"], "is not stepped in C++"),
        (["env.backend=sync"], "steps environments by env.backend=batched"),
        (["model.hidden_sizes=[1024,1024]"], "has more than 524,288 weights"),
        (["device=cuda"], "device=cuda takes a GPU"),
        (["compile=off"], "compile=off keeps learning in torch"),
        (["compile=torch"], "compile=torch keeps learning in torch"),
        (["dist.threads_per_rank=2"], "C++ uses 1 thread"),
        (["dist.world_size=2", "dist.grad_sync=ddp"], "sums gradients inside torch's backward"),
        (["env.slow_ranks={0:0.1}"], "slows down steps in Python"),
        (["ppo.learning_rates={value_head:1e-3}"], "C++ has one learning rate for all parameters"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_stands_against_it_is_said_before_the_start(arguments, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as e:
        check(composed(["env=cartpole", "distributed=device", *arguments]), local_world_size=2)
    assert "use distributed=ddp" in str(e.value) or "leave one of them out" in str(e.value)


def test_a_gradient_that_is_not_torchs_ends_the_run_instead_of_slowing_it(tmp_path):
    with mock.patch("ddppo.loop.compute.agrees", return_value=False):
        how = [*SIZES, "env=cartpole", "distributed=device", "device=cpu"]
        config = composed(how)
        worker = Rank(config, tmp_path, Group(), torch.device("cpu"))
        with pytest.raises(TrainingError, match="the gradient in C\\+\\+ differs from torch's"):
            worker.run()
