"""Random numbers as arithmetic of int64 tensors: functions of (seed, purpose, counters), the same on any device.

Random generators of devices differ: CPU, CUDA and MPS draw other numbers from the same seed, and the numbers of an
environment depend on its place in the batch. Here a number depends on its counters alone, such as (iteration,
environment, step). So results do not depend on the device, nor on the number of ranks, and drawing needs no state and
no wait for the device.

    h_0 = key(seed, purpose),   h_i = mix(h_{i-1} + (c_i + 1) * gamma)

mix and gamma are those of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators",
doi:10.1145/2660193.2660195); its stream number c from state h is h_i. int64 products wrap around, as in C.
"""

import math

import torch

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL_BITS = 2**64 - 1
_PURPOSES = {"action": 1, "episode": 2}

Counter = int | torch.Tensor  # an int64 tensor, or a Python integer, not negative


def bits(seed: Counter, purpose: str, *counters: Counter) -> torch.Tensor:
    """Return 64 random bits for every combination of counters, which broadcast, as int64 `[...]`.

    seed may be a tensor too: one seed for each environment. At least one counter, or the seed, is a tensor. Counters
    that vary least come first: they are hashed before they are broadcast.
    """
    h = _absorbed(_absorbed(0, _PURPOSES[purpose]), seed)
    for counter in counters:
        h = _absorbed(h, counter)
    assert isinstance(h, torch.Tensor), "one counter has to be a tensor, which says the device"
    return h


def stream(keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the bits at `places`, int64, of the streams with these `keys`, which `bits` made; both broadcast."""
    found = _absorbed(keys, places)
    assert isinstance(found, torch.Tensor)
    return found


def uniform(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return uniform numbers on [0, 1) from `bits`: multiples of 2^-24, or 2^-53 in float64."""
    num_bits = 53 if dtype == torch.float64 else 24
    return _shifted(x, 64 - num_bits).to(dtype).mul_(2.0**-num_bits)


def uniform_pairs(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return two uniform numbers from each of `bits` `[..., n]`, as `[..., 2 n]`: multiples of 2^-24, or 2^-32.

    The first n are made of the first bits, the others of the last. It takes half the time of `uniform`.
    """
    num_bits = 32 if dtype == torch.float64 else 24
    pairs = torch.cat([_shifted(x, 64 - num_bits), x & (2**num_bits - 1)], dim=-1)
    return pairs.to(dtype).mul_(2.0**-num_bits)


def normal(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return standard normal numbers from `bits`, by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v).

    u in (0, 1] and v in [0, 1) are the first and the last 24 bits, or 32 in float64: numbers reach 5.8 or 6.7
    deviations. Devices may round logarithm and cosine differently, in the last digit.
    """
    num_bits = 32 if dtype == torch.float64 else 24
    u = (_shifted(x, 64 - num_bits) + 1).to(dtype).mul_(2.0**-num_bits)
    v = (x & (2**num_bits - 1)).to(dtype).mul_(2.0**-num_bits)
    return u.log_().mul_(-2.0).sqrt_().mul_(v.mul_(2.0 * math.pi).cos_())


def action_noise(
    seed: int, iteration: int, env_indices: range, rollout_steps: int, num_noise: int,
    *, normal: bool, dtype: torch.dtype, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return the action noise `[T, E, num_noise]` of an iteration: standard normal, or uniform on [0, 1).

    Its counters are the iteration, the global index of the environment, the step, and the number.
    """

    def counter(numbers: range) -> torch.Tensor:
        return torch.arange(numbers.start, numbers.stop, numbers.step, device=device)

    envs, steps, numbers = map(counter, (env_indices, range(rollout_steps), range(num_noise)))
    drawn = bits(seed, "action", iteration, envs[:, None], steps[:, None, None], numbers)
    return _normal(drawn, dtype) if normal else uniform(drawn, dtype)


_normal = normal  # the name of a keyword above


# -- The hash.


def _absorbed(h: Counter, counter: Counter) -> Counter:
    """Return mix(h + (counter + 1) * gamma)."""
    if isinstance(h, int) and isinstance(counter, int):
        return _mixed_int((h + (counter + 1) * _GAMMA) & _ALL_BITS)
    if isinstance(counter, int):
        assert isinstance(h, torch.Tensor)
        return _mix_(h + _signed((counter + 1) * _GAMMA))
    return _mix_((counter + 1).mul(_signed(_GAMMA)) + (_signed(h) if isinstance(h, int) else h))


def _mix_(x: torch.Tensor) -> torch.Tensor:
    """Return the finaliser of SplitMix64, written to x."""
    x.bitwise_xor_(_shifted(x, 30)).mul_(_signed(_FIRST))
    x.bitwise_xor_(_shifted(x, 27)).mul_(_signed(_SECOND))
    return x.bitwise_xor_(_shifted(x, 31))


def _mixed_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _ALL_BITS
    x = ((x ^ (x >> 27)) * _SECOND) & _ALL_BITS
    return x ^ (x >> 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Return the bits shifted to the right with zeros behind them; torch repeats the sign."""
    return (x >> by).bitwise_and_(2 ** (64 - by) - 1)


def _signed(x: int) -> int:
    """Return the int64 with the last 64 bits of x."""
    return (x + 2**63) % 2**64 - 2**63
