from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ddppo.ppo.minibatches import local_minibatches
from ddppo.scaling import BatchShape


@st.composite
def batches(draw):
    """Sizes (N, T, M) of any batch, and some numbers of ranks, which need not divide N."""
    num_envs, steps = draw(st.integers(1, 24)), draw(st.integers(1, 9))
    world_sizes = draw(st.lists(st.integers(1, num_envs), min_size=1, max_size=3, unique=True))
    num_minibatches = draw(st.integers(1, min(num_envs * steps, 40)))
    return num_envs, steps, num_minibatches, world_sizes


def samples_of_minibatches(num_envs, steps, num_minibatches, world_size, seed, epoch):
    """The samples (t, i) in each minibatch `[M]`, over all ranks, i the global number of the environment."""
    shape = BatchShape(num_envs, steps, world_size, num_minibatches, num_epochs=1)
    parts = [[] for _ in range(num_minibatches)]
    for rank in range(world_size):
        local, bounds = local_minibatches(seed, 1, epoch, shape, rank)
        envs = shape.env_indices(rank)
        assert (bounds[0], bounds[-1], len(bounds)) == (0, len(envs) * steps, num_minibatches + 1)
        for m, part in enumerate(parts):
            for sample in local[bounds[m] : bounds[m + 1]].tolist():
                t, local_env = divmod(sample, len(envs))
                part.append((t, envs[local_env]))
    return parts


@given(batches(), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_holds_each_sample_once_over_all_ranks(sizes, seed, epoch):
    num_envs, steps, num_minibatches, world_sizes = sizes
    everything = {(t, i): 1 for t in range(steps) for i in range(num_envs)}
    for world_size in world_sizes:
        parts = samples_of_minibatches(num_envs, steps, num_minibatches, world_size, seed, epoch)
        assert Counter(sample for part in parts for sample in part) == everything
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1


@given(batches(), st.integers(0, 3), st.integers(0, 3))
def test_a_minibatch_holds_the_same_samples_whatever_the_number_of_ranks(sizes, seed, epoch):
    num_envs, steps, num_minibatches, world_sizes = sizes
    alone = samples_of_minibatches(num_envs, steps, num_minibatches, 1, seed, epoch)
    for world_size in world_sizes:
        parts = samples_of_minibatches(num_envs, steps, num_minibatches, world_size, seed, epoch)
        assert [set(part) for part in parts] == [set(part) for part in alone]
