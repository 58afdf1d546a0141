import pytest

from ddppo.study.predict import collective_cost as cost

ALPHA, BETA = 1e-5, 1e-9  # 10 us, 1 GB/s


def test_a_ring_of_four_takes_six_latencies_and_one_and_a_half_times_the_bytes():
    assert cost.ring(4, 1000.0) == cost.Messages(6, 1500.0)
    assert cost.ring(4, 1e6).seconds(ALPHA, BETA) == pytest.approx(60e-6 + 1.5e-3)


def test_a_gather_passes_every_rank_s_bytes_around_once():
    assert cost.gather(4, 1000.0) == cost.Messages(3, 3000.0)


@pytest.mark.parametrize("algorithm", [cost.gather, cost.ring, cost.shared_memory])
def test_one_rank_communicates_nothing(algorithm):
    assert algorithm(1, 1e6) == cost.NOTHING


def test_small_sums_on_the_cpu_are_gathers_and_others_rings():
    assert cost.own_sum(4, 40_000, "gloo") == cost.gather(4, 40_000)
    assert cost.own_sum(128, 40_000, "gloo") == cost.ring(128, 40_000)
    assert cost.own_sum(4, 40_000, "nccl") == cost.ring(4, 40_000)
    assert cost.own_sum(4, 40_000, "shm") == cost.shared_memory(4, 40_000)


def test_through_memory_bytes_are_copied_in_and_out_and_ranks_count_themselves_in():
    assert cost.shared_memory(1, 1000) == cost.NOTHING
    assert cost.shared_memory(4, 1000) == cost.Messages(3, 3000)
    assert cost.own_sum(4, 1000, "shm") == cost.Messages(3, 3000)


def test_over_hosts_a_sum_is_one_inside_one_between_leaders_and_a_broadcast_inside():
    inside, between, back = cost.shared_memory(4, 1000), cost.gather(2, 1000), cost.Messages(3, 2000)
    assert cost.own_sum(8, 1000, "shm+gloo", num_hosts=2) == inside.plus(between).plus(back)
    assert cost.own_sum(2, 1000, "shm+gloo", num_hosts=2) == between
