"""Random numbers by arithmetic of int64 tensors (ddppo/device_random.py)."""

import math

import pytest
import torch

from ddppo.device_random import action_noise, bits, normal, stream, uniform, uniform_pairs

CPU = torch.device("cpu")


def noise(envs, steps=64, numbers=3, seed=0, iteration=1, *, is_normal=False, dtype=torch.float64):
    return action_noise(seed, iteration, envs, steps, numbers, normal=is_normal, dtype=dtype, device=CPU)


def test_a_stream_is_that_of_splitmix64():
    # Numbers that the authors' C program prints for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    from ddppo import device_random

    streams = device_random._absorbed(1234567, torch.arange(4))
    assert [x % 2**64 for x in streams.tolist()] == published


def test_integers_and_tensors_are_hashed_alike():
    as_integers = bits(5, "action", 7, torch.tensor([3]))
    as_tensors = bits(torch.tensor([5]), "action", torch.tensor([7]), torch.tensor([3]))
    assert torch.equal(as_integers, as_tensors)
    assert torch.equal(
        bits(2**62 + 1, "action", torch.tensor([3])), bits(torch.tensor([2**62 + 1]), "action", 3)
    )


@pytest.mark.parametrize("is_normal", [False, True])
@pytest.mark.parametrize("sizes", [[16], [1] * 16, [5, 11], [8, 8]])
def test_an_environment_has_the_same_noise_in_any_batch(sizes, is_normal):
    whole = noise(range(16), is_normal=is_normal)
    first, parts = 0, []
    for size in sizes:
        parts.append(noise(range(first, first + size), is_normal=is_normal))
        first += size
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_each_counter_changes_the_numbers():
    first = noise(range(4))
    assert not torch.isclose(first, noise(range(4), seed=1)).any()
    assert not torch.isclose(first, noise(range(4), iteration=2)).any()
    assert len(set(first.flatten().tolist())) == first.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_at_least_0_and_below_1(dtype):
    extremes = torch.tensor(
        [0, -1, 2**63 - 1, -(2**63)]
    )  # all bits off, all on, all but the first, the first alone
    assert uniform(extremes, dtype).tolist() == pytest.approx([0, 1, 0.5, 0.5], abs=1e-7)
    assert (uniform(extremes, dtype) < 1).all()
    assert normal(extremes, dtype).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_those_of_the_distributions(dtype):
    n = 128 * 256 * 8
    x = noise(range(128), 256, 8, dtype=dtype).double()
    z = noise(range(128), 256, 8, is_normal=True, dtype=dtype).double()
    # Each sum is within 4 of its standard deviations.
    assert abs(x.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / n)
    assert abs((x - 0.5).square().mean() - 1 / 12) < 4 * math.sqrt(1 / 180 / n)
    for power, expected, deviation in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(z.pow(power).mean() - expected) < 4 * math.sqrt(deviation / n), power


@pytest.mark.parametrize("shift", [0, 16, 48])
def test_all_parts_of_the_bits_are_uniform_by_chi_square(shift):
    x = bits(3, "episode", torch.arange(1000)[:, None], torch.arange(100))
    counts = torch.bincount(((x >> shift) & 255).flatten(), minlength=256).double()
    expected = x.numel() / 256
    chi_square = ((counts - expected).square() / expected).sum().item()
    assert abs(chi_square - 255) < 4 * math.sqrt(2 * 255)


@pytest.mark.parametrize("is_normal", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_neighbouring_steps_environments_and_numbers_are_not_correlated(dim, is_normal):
    x = noise(range(128), 256, 8, is_normal=is_normal)
    x = (x - x.mean()) / x.std()
    size = x.shape[dim] - 1
    products = x.narrow(dim, 0, size) * x.narrow(dim, 1, size)
    assert abs(products.mean()) < 4 / math.sqrt(products.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_numbers_of_the_same_bits_are_uniform_and_not_correlated(dtype):
    keys = bits(torch.arange(500), "episode")
    x = uniform_pairs(stream(keys[:, None], torch.arange(200)), dtype).double().unflatten(1, (2, -1)) - 0.5
    n = x[:, 0].numel()
    assert x.abs().max() <= 0.5
    assert x.mean(dim=(0, 2)).abs().max() < 4 * math.sqrt(1 / 12 / n)
    assert (x.square().mean(dim=(0, 2)) - 1 / 12).abs().max() < 4 * math.sqrt(1 / 180 / n)
    assert abs((x[:, 0] * x[:, 1]).mean()) < 4 / 12 / math.sqrt(n)
    assert abs((x[:, :, 1:] * x[:, :, :-1]).mean()) < 4 / 12 / math.sqrt(2 * n)
