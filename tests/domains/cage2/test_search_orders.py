"""Orders of priority and Kendall's distance between them."""

import numpy as np
import pytest

from ddppo.domains.cage2.search import orders
from ddppo.domains.cage2.search.orders import KENDALL, KINDS, ORDERS, PRESETS
from ddppo.errors import ConfigError


def by_neighbours(start):
    """Count the swaps of neighbours from one order to each other by walking: what Kendall's distance is."""
    swaps = {start: 0}
    shell = [start]
    while shell:
        reached = []
        for order in shell:
            for i in range(len(order) - 1):
                other = (*order[:i], order[i + 1], order[i], *order[i + 2 :])
                if other not in swaps:
                    swaps[other] = swaps[order] + 1
                    reached.append(other)
        shell = reached
    return swaps


def test_an_orders_id_is_its_place_in_the_lexicographic_list():
    assert ORDERS[0] == (0, 1, 2, 3, 4)
    assert ORDERS[1] == (0, 1, 2, 4, 3)
    assert ORDERS[119] == (4, 3, 2, 1, 0)
    assert [orders.order_id(order) for order in ORDERS] == list(range(120))
    assert sorted(ORDERS) == list(ORDERS)


@pytest.mark.parametrize("start", [(0, 1, 2, 3, 4), (2, 0, 4, 3, 1)])
def test_kendalls_distance_is_the_swaps_of_neighbours_that_lead_from_one_order_to_the_other(start):
    swaps = by_neighbours(start)
    assert {order: orders.kendall(start, order) for order in ORDERS} == swaps
    assert [int(KENDALL[orders.order_id(start), i]) for i in range(120)] == [swaps[order] for order in ORDERS]


def test_the_mallows_kernel_is_positive_definite_on_all_orders():
    for theta in (0.001, 0.1, 1.0, 10.0):
        assert np.linalg.eigvalsh(np.exp(-theta * KENDALL)).min() > 0


def test_the_nearest_of_equals_is_the_one_of_the_lowest_id():
    own = (0, 1, 2, 3, 4)
    far, one, another = (4, 3, 2, 1, 0), (0, 1, 2, 4, 3), (1, 0, 2, 3, 4)
    assert orders.nearest(own, [far, another, one]) == one
    assert orders.nearest(own, [far]) == far
    assert orders.nearest(own, [far, own, one]) == own


def test_a_code_has_the_kind_of_each_position():
    code = orders.code((2, 0, 1, 3, 4))
    assert code.shape == (25,)
    assert code.dtype == np.float32
    assert np.flatnonzero(code).tolist() == [0 * 5 + 2, 1 * 5 + 0, 2 * 5 + 1, 3 * 5 + 3, 4 * 5 + 4]


def test_presets_are_the_six_orders_of_the_published_system():
    assert PRESETS["critical_first"] == (2, 0, 1, 3, 4)
    assert PRESETS["reverse"] == (4, 3, 1, 0, 2)
    assert len(set(PRESETS.values())) == 6


def test_an_order_is_read_as_it_is_written():
    assert orders.parse("critical_first") == (2, 0, 1, 3, 4)
    assert orders.parse("user, op_host,enterprise,defender,op_server") == (4, 3, 1, 0, 2)
    assert orders.parse("4,3,1,0,2") == (4, 3, 1, 0, 2)
    assert all(orders.parse(orders.words(order)) == order for order in ORDERS)


@pytest.mark.parametrize(
    "text", ["", "critical", "0,1,2,3", "0,1,2,3,3", "0,1,2,3,5", "user>user>user>user>user"]
)
def test_what_is_no_order_is_refused_with_what_one_is(text):
    with pytest.raises(ConfigError, match=r"must be one of critical_first.*each of defender") as error:
        orders.parse(text)
    assert f"order={text}" in str(error.value)
    assert all(kind in str(error.value) for kind in KINDS)


def test_ids_are_of_orders_alone():
    with pytest.raises(ValueError, match="no order of 5 kinds"):
        orders.order_id((0, 1, 2, 3, 3))
