"""Compliance and what it is worth: hand-worked repairs, and a slow oracle over random episodes."""

import numpy as np
import pytest

from ddppo.domains.cage2.orders import KIND_REPAIRED, Compliance
from ddppo.errors import ConfigError

DEFENDER, ENTERPRISE, OP_SERVER, OP_HOST, USER = range(5)
ORDER = (OP_SERVER, ENTERPRISE, USER, DEFENDER, OP_HOST)
REMOVE, RESTORE = 15, 132  # and the host
HOST = {DEFENDER: 0, ENTERPRISE: 2, OP_SERVER: 7, OP_HOST: 5, USER: 9}
USER0 = 8
SLEEP, ANALYSE_USER1, DECOY_USER1 = 0, 11, 37


def one_game(rule="state", weight=30.0, order=ORDER):
    compliance = Compliance(1, rule, weight)
    compliance.begin(np.array([0]), np.array([order]))
    return compliance


def judged(compliance, action, *hosts):
    """Return the reward of an action while Red is on `hosts`."""
    compromised = np.zeros((1, 13), np.uint8)
    compromised[0, list(hosts)] = 1
    return compliance.judge(np.array([action]), compromised).item()


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        (DEFENDER, (15, 132)),
        (ENTERPRISE, (16, 17, 18, 133, 134, 135)),
        (OP_HOST, (19, 20, 21, 136, 137, 138)),
        (OP_SERVER, (22, 139)),
        (USER, (23, 24, 25, 26, 27, 140, 141, 142, 143, 144)),
        (-1, (*range(15), *range(28, 132))),
    ],
)
def test_each_action_repairs_the_kind_of_its_host_or_none(kind, actions):
    assert {int(KIND_REPAIRED[action]) for action in actions} == {kind}


@pytest.mark.parametrize("repair", [REMOVE, RESTORE])
def test_by_state_a_repair_complies_unless_a_higher_kind_is_compromised(repair):
    compliance = one_game()
    judged(compliance, repair + HOST[USER], HOST[USER], HOST[OP_HOST])  # nothing higher is
    judged(compliance, repair + HOST[USER], HOST[ENTERPRISE])  # enterprise goes before
    judged(compliance, repair + HOST[OP_SERVER], *range(13))  # the highest
    assert (compliance.num_repairs.item(), compliance.num_compliant.item()) == (3, 2)


def test_by_state_user0_never_counts_as_compromised_but_its_repair_is_one_of_users():
    users_first = one_game(order=(USER, OP_SERVER, ENTERPRISE, DEFENDER, OP_HOST))
    judged(users_first, RESTORE + HOST[OP_HOST], USER0)
    assert users_first.num_compliant.item() == 1
    judged(users_first, RESTORE + HOST[OP_HOST], USER0, 9)
    assert users_first.num_compliant.item() == 1
    last = one_game()
    judged(last, RESTORE + USER0, HOST[OP_SERVER])
    assert (last.num_repairs.item(), last.num_compliant.item()) == (1, 0)


def test_by_history_a_repair_complies_once_all_higher_kinds_were_repaired_whatever_the_state():
    compliance = one_game("history")
    judged(compliance, RESTORE + HOST[ENTERPRISE])  # op_server was not yet
    judged(compliance, RESTORE + HOST[OP_SERVER])
    judged(compliance, REMOVE + HOST[USER], *range(13))  # both are
    judged(compliance, RESTORE + HOST[OP_HOST])  # defender was not
    assert (compliance.num_repairs.item(), compliance.num_compliant.item()) == (4, 2)
    compliance.begin(np.array([0]), np.array([ORDER]))
    judged(compliance, RESTORE + HOST[USER])  # forgotten with the episode
    assert (compliance.num_repairs.item(), compliance.num_compliant.item()) == (1, 0)


def test_alignment_is_paid_by_the_step_and_sums_to_the_weight_times_compliance():
    compliance = one_game()
    assert judged(compliance, SLEEP, *range(13)) == 0
    assert judged(compliance, RESTORE + HOST[OP_SERVER]) == 30
    assert judged(compliance, RESTORE + HOST[USER], HOST[OP_SERVER]) == pytest.approx(-15)
    assert judged(compliance, ANALYSE_USER1) == judged(compliance, DECOY_USER1) == 0
    assert judged(compliance, RESTORE + HOST[USER]) == pytest.approx(30 * (2 / 3 - 1 / 2))
    assert compliance.rates().tolist() == [2 / 3]
    assert compliance.conclude(np.array([0])).tolist() == [0]


def test_an_episode_without_a_repair_complies_by_half_and_is_fined_once_at_its_end():
    compliance = one_game(weight=10.0)
    assert judged(compliance, SLEEP) == judged(compliance, DECOY_USER1) == 0
    assert compliance.rates().tolist() == [0.5]
    assert compliance.conclude(np.array([0])).tolist() == [-2]


def slow(order, rule, episode):
    """Return repairs and compliant ones of [(action, compromised hosts)], kind by kind."""
    repaired, num_repairs, num_compliant = set(), 0, 0
    kinds = [0, 1, 1, 1, 3, 3, 3, 2, 4, 4, 4, 4, 4]
    for action, hosts in episode:
        if not (15 <= action < 28 or action >= 132):
            continue
        kind = kinds[action - 15 if action < 28 else action - 132]
        higher = set(order[: order.index(kind)])
        on = {kinds[host] for host in hosts if host != 8}
        num_repairs += 1
        num_compliant += not (higher & on if rule == "state" else higher - repaired)
        repaired.add(kind)
    return num_repairs, num_compliant


@pytest.mark.parametrize("rule", ["state", "history"])
def test_many_games_at_once_are_each_judged_alone_and_payments_telescope(rule):
    rng, n, steps = np.random.default_rng(3), 40, 30
    orders = np.array([rng.permutation(5) for _ in range(n)])
    repairs = [*range(15, 28), *range(132, 145)]
    actions = np.where(rng.random((steps, n)) < 0.5, rng.choice(repairs, (steps, n)), 0)
    actions[:, 0] = 0  # one never repairs
    compromised = (rng.random((steps, n, 13)) < 0.1).astype(np.uint8) * rng.integers(1, 3, (steps, n, 13))
    compliance = Compliance(n, rule, 30.0)
    compliance.begin(np.arange(n), orders)
    paid = np.zeros(n)
    for t in range(steps):
        if t == steps // 2:  # exact across an interruption
            other = Compliance(n, rule, 30.0)
            other.restore(compliance.state())
            compliance = other
        paid += compliance.judge(actions[t], compromised[t])
    expected = [
        slow(order.tolist(), rule, [(a, np.flatnonzero(c)) for a, c in zip(acted, on, strict=True)])
        for order, acted, on in zip(orders, actions.T, compromised.transpose(1, 0, 2), strict=True)
    ]
    assert list(zip(compliance.num_repairs, compliance.num_compliant, strict=True)) == expected
    assert len({compliant / total for total, compliant in expected if total}) > 3
    rates = [compliant / total if total else 0.5 for total, compliant in expected]
    assert compliance.rates().tolist() == rates
    aligned = [30 * compliant / total if total else 0.0 for total, compliant in expected]
    np.testing.assert_allclose(paid, aligned, atol=1e-9)


def test_games_begin_anew_one_by_one():
    compliance = Compliance(2, "state", 30.0)
    compliance.begin(np.arange(2), np.array([ORDER, ORDER[::-1]]))
    compliance.judge(np.array([RESTORE, RESTORE]), np.zeros((2, 13), np.uint8))
    compliance.begin(np.array([1]), np.array([ORDER]))
    assert compliance.num_repairs.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("settings", "said"), [(("states", 30.0), "compliance=states"), (("state", -1.0), "weight=-1.0")]
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        Compliance(1, *settings)
