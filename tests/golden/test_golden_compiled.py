"""The step that torch.compile makes gives the numbers that were kept as well, also on two ranks."""

import functools
import json

import pytest
import torch

from tests.golden.recipe import FOLDER, measure
from tests.support import summary

pytestmark = [
    pytest.mark.slow,  # a minute of a core for each task
    pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler knows no folders with spaces"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder and the numbers of a compiled run, each trained once; the first compiles for all."""
    folder = tmp_path_factory.mktemp("compiled")

    @functools.cache
    def train(task, world_size):
        run_dir = folder / f"{task} W{world_size}"
        settings = ("compile=torch", "dist.check_every=1", f"dist.world_size={world_size}")
        found = measure(task, run_dir, *settings, TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"))
        assert summary(run_dir)["compiled_from"] == 1
        return run_dir, found

    return train


@pytest.mark.parametrize("task", ["cartpole", "pendulum"])
def test_a_short_run_compiled_gives_the_numbers_that_were_kept(task, trained):
    kept = json.loads((FOLDER / f"{task}.json").read_text())
    for k, (expected, numbers) in enumerate(zip(kept, trained(task, 1)[1], strict=True), start=1):
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-6), f"iteration {k}"


def test_two_ranks_learn_the_same(trained):
    """Each rank compiles the code of one; what ranks add up, any number of them, is the eager step's."""
    parameters = {}
    for world_size in (1, 2):
        run_dir, _ = trained("cartpole", world_size)
        state = torch.load(run_dir / "checkpoints" / "iteration_00000005.pt", weights_only=True)
        parameters[world_size] = torch.cat([x.flatten() for x in state["model"].values()])
    assert (parameters[2] - parameters[1]).abs().max() <= 1e-9
