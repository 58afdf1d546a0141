import pytest
import torch

from ddppo.ppo.advantages import gae

REWARDS, VALUES, NEXT_VALUES = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [20.0, 30.0, 40.0]


def column(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def advantages(
    *, gamma, gae_lambda, next_values=NEXT_VALUES, terminated=(0, 0, 0), truncated=(0, 0, 0), valid=(1, 1, 1)
):
    flags = [column(flag, torch.bool) for flag in (terminated, truncated, valid)]
    floats = [column(x) for x in (REWARDS, VALUES, next_values)]
    return gae(*floats, *flags, gamma=gamma, gae_lambda=gae_lambda).flatten().tolist()


def test_deltas_are_summed_with_decay_gamma_lambda():
    # deltas: 1 + 10 - 10 = 1, 2 + 15 - 20 = -3, 3 + 20 - 30 = -7; decay 1/4
    assert advantages(gamma=0.5, gae_lambda=0.5) == [-0.1875, -4.75, -7.0]


def test_a_terminated_step_has_no_value_behind_it_and_cuts_the_trace():
    assert advantages(gamma=0.5, gae_lambda=0.5, terminated=(0, 1, 0)) == [-3.5, -18.0, -7.0]


def test_a_truncated_step_bootstraps_from_its_successor_and_cuts_the_trace():
    result = advantages(gamma=0.5, gae_lambda=0.5, truncated=(0, 1, 0), next_values=[20.0, 8.0, 40.0])
    assert result == [-2.5, -14.0, -7.0]


def test_a_step_that_is_both_terminated_and_truncated_counts_as_terminated():
    result = advantages(gamma=0.5, gae_lambda=0.5, terminated=(0, 1, 0), truncated=(0, 1, 0))
    assert result == [-3.5, -18.0, -7.0]


def test_a_row_that_is_not_valid_gets_zero_and_passes_nothing_back():
    assert advantages(gamma=0.5, gae_lambda=0.5, valid=(1, 0, 1)) == [1.0, 0.0, -7.0]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"gamma": 0.5, "gae_lambda": 0.0}, [1.0, -3.0, -7.0]),  # the TD errors
        ({"gamma": 0.0, "gae_lambda": 0.9}, [-9.0, -18.0, -27.0]),  # reward minus value
        # 1 + 2/2 + 3/4 + 40/8 - 10, and so on: here next_values continue values, so the sum telescopes
        ({"gamma": 0.5, "gae_lambda": 1.0}, [-2.25, -6.5, -7.0]),
    ],
)
def test_lambda_0_is_the_td_error_and_lambda_1_the_discounted_return_minus_the_value(limit, expected):
    assert advantages(**limit) == pytest.approx(expected, abs=1e-12)


def test_environments_do_not_see_one_another():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    zeros, no = torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool)
    result = gae(rewards, zeros, zeros, no, no, ~no, gamma=1.0, gae_lambda=1.0)
    assert result.tolist() == [[2.0, 0.0], [1.0, 0.0]]
    assert result.dtype == rewards.dtype
