import json

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum.rewriting import digest
from ddppo.domains.circuits.task import CircuitEnv, confirmed, replayed
from ddppo.domains.circuits.task.board import ROUND, LengthCap
from ddppo.domains.circuits.task.buffer import GraphBuffer
from ddppo.domains.circuits.task.lineage import decode_messages
from ddppo.domains.circuits.task.settings import BufferSettings, EpisodeSettings, unpacked_rewrites
from ddppo.errors import EnvStateError
from tests.domains.circuits.circuit_play import Together, at_random, choices_of
from tests.domains.circuits.test_circuit_buffers import buffer_of, circuit_of, filled

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

NOP = 0


def told(news):
    """Return every circuit that was told of."""
    return [told for each in decode_messages(tuple(news)) for of in each.starts for told in of.circuits]


def state_of(env):
    return json.loads(json.dumps(env.state()))


# -- circuits -------------------------------------------------------------------------------------------------------


def test_what_one_environment_found_starts_episodes_of_the_others_and_comes_with_its_rewrites():
    run = Together(2)
    finder, other = run.envs
    run.play(700)
    other.reset(seed=5)  # which forgets all
    news = [other.publish(), finder.publish()]
    other.receive(news)
    assert other.best()[0].cost == finder.best()[0].cost < 45
    assert confirmed(other.best()[0], other.rewriter).is_equal
    costs = {other.reset()[1]["cost"] for _ in range(200)}
    assert costs == {45.0, *(each.cost for each in told(news))}


@pytest.mark.slow
def test_all_that_is_kept_after_many_exchanges_can_be_repeated_from_the_original():
    run = Together(3, circuit=["tof_3", "mod5_4"], buffer={"level_size": 20})
    for _ in range(10):
        run.play(40)
        run.exchange()
    lengths = []
    for env in run.envs:
        for start, buffer in zip(env.starts, env._buffers, strict=True):
            for kept in buffer._kept.values():
                rewrites = buffer.lineage.rewrites(kept.step)
                assert len(rewrites) == buffer.lineage.length(kept.step)
                assert digest(replayed(env.rewriter, start.circuit, rewrites)) == kept.digest
                lengths.append(len(rewrites))
    assert max(lengths) > 20


def test_told_circuits_are_the_least_costly_new_ones_and_the_best():
    buffer = filled(buffer_of(share=3), {12: 2, 15: 3, 10: 1})
    first = buffer.publish()
    assert [each.cost for each in first] == [10, 12, 12]
    assert all(each.is_start for each in first)
    assert buffer.publish() == ()
    filled(buffer, {15: 4, 12: 2})  # one of them is new
    assert [each.cost for each in buffer.publish()] == [15]
    alone = filled(buffer_of(draw="original"), {12: 2, 10: 1})
    assert [(each.cost, each.is_start) for each in alone.publish()] == [(10, False)]


def test_a_best_whose_episode_ended_there_is_told_of_but_starts_no_episodes():
    one, other = buffer_of(), buffer_of()
    step = one.lineage.add(-1, 0, 0)
    one.note(circuit_of(9), 9.0, step)
    for each in one.publish():
        other.receive(each)
    assert (other.best_cost, other.num_circuits) == (9, 1)


@pytest.mark.parametrize(("buffer", "num_told"), [({"share": 0}, 1), ({"draw": "original"}, 1), ({}, 4)])
def test_environments_that_share_nothing_tell_the_best_alone(buffer, num_told):
    run = Together(2, buffer=buffer)
    run.play(300)
    before = [state["buffers"][0]["levels"] for state in map(state_of, run.envs)]
    news = run.exchange()
    assert len(told(news)) <= 2 * (num_told + 1)
    assert min(each.cost for each in told(news)) == min(env.best()[0].cost for env in run.envs)
    after = [state["buffers"][0]["levels"] for state in map(state_of, run.envs)]
    assert (after == before) == (num_told == 1)


def test_what_is_told_is_taken_by_the_rules_of_what_was_found():
    teller, taker = filled(buffer_of(share=9), {20: 2, 12: 3}), buffer_of(level_size=2)
    every = teller.publish()
    for each in (*every, *every, *(each._replace(cost=21.0, digest=b"dear") for each in every)):
        taker.receive(each)
    assert (taker.num_circuits, taker.num_levels) == (4, 2)  # two of 12, and of 20 the original and one
    assert taker.publish() == ()  # all know it


def test_a_graft_begins_at_the_nearest_circuit_that_both_know():
    one, other = buffer_of(share=1), buffer_of(share=1)
    step, sizes = -1, []
    for number in range(300):
        step = one.lineage.add(step, number, 7)
        one.add(circuit_of(19, 2 + number), 19.0, step)
        if number % 10 == 9:
            for each in one.publish():
                one.receive(each)
                other.receive(each)
                assert len(unpacked_rewrites(each.rewrites)) == number - 8
            sizes.append(other.nbytes)
    growth = np.diff(sizes)
    assert max(growth) < 1.1 * min(growth)  # though what is told gets longer each time
    last = max(other._kept.values(), key=lambda kept: other.lineage.length(kept.step))
    assert other.lineage.rewrites(last.step) == tuple((k, 7) for k in range(291))


def test_what_was_forgotten_can_be_told_of_again_and_nothing_of_it_stays_behind():
    teller = filled(buffer_of(share=50), {12: 5, 15: 5})
    taker = GraphBuffer(teller.start, BufferSettings(), 1e9)
    for each in teller.publish():
        taker.receive(each)
    for cost in (12, 15):
        while taker._drop_oldest(float(cost)):
            if cost not in taker._levels:
                break
    assert len(taker.lineage) == 1  # the best's
    assert taker.lineage.nbytes < 500


def test_memory_stays_within_its_cap_whatever_is_told():
    run = Together(3, buffer={"megabytes": 0.05, "share": 20}, choose=at_random)
    for _ in range(25):
        run.play(20)
        run.exchange()
        assert all(
            env._buffers[0].nbytes <= 0.052e6 for env in run.envs
        )  # an episode's own steps come on top
    assert all(env._buffers[0].nbytes > 0.04e6 for env in run.envs)


# -- the same for all, and again --------------------------------------------------------------------------------------


def test_what_follows_does_not_depend_on_who_handed_the_news_over():
    kwargs = {"circuit": ["tof_3", "mod5_4"], "episode": {"nop": "nodes"}, "buffer": {"level_size": 30}}
    one, other = Together(4, **kwargs), Together(4, **kwargs)
    for _ in range(6):
        one.play(40)
        other.play(40)
        said = one.exchange()
        again = [env.publish() for env in other.envs]
        assert again == said
        for env in reversed(other.envs):  # in another order, by bytes that came over a wire
            decode_messages.cache_clear()
            env.receive([bytes(bytearray(news)) for news in again])
    assert list(map(state_of, one.envs)) == list(map(state_of, other.envs))


def test_a_state_between_exchanges_goes_on_to_the_bit():
    run = Together(2, buffer={"level_size": 50})
    for _ in range(4):
        run.play(30)
        run.exchange()
    run.play(17)
    copy = Together(2, buffer={"level_size": 50})
    for k, env in enumerate(run.envs):
        copy.obs[k] = copy.envs[k].restore(state_of(env))[0]
        copy.rngs[k].bit_generator.state = run.rngs[k].bit_generator.state
    for _ in range(3):
        run.play(30)
        copy.play(30)
        assert copy.exchange() == run.exchange()
    assert list(map(state_of, copy.envs)) == list(map(state_of, run.envs))


def test_before_its_first_reset_an_environment_says_nothing_and_can_be_told_nothing():
    env = CircuitEnv("tof_3")
    assert env.publish() == b""
    with pytest.raises(EnvStateError, match=r"before its first reset: call reset\(\) first"):
        env.receive([])
    assert decode_messages((b"", b"")) == ()


# -- length caps ------------------------------------------------------------------------------------------------------


def caps_of(num_envs):
    return [LengthCap(EpisodeSettings(min_steps=20, max_steps=600)) for _ in range(num_envs)]


def end_round(cap, longest):
    for _ in range(ROUND):
        cap.note(longest)


def test_the_length_cap_is_the_largest_of_all_environments():
    caps = caps_of(3)
    end_round(caps[1], 20)
    for cap in caps:
        cap.receive([each.own for each in caps])
    assert [cap.cap for cap in caps] == [30, 30, 30]
    end_round(caps[0], 30)
    assert [cap.cap for cap in caps] == [45, 30, 30]


def test_the_length_cap_shrinks_when_the_last_environment_needs_no_more():
    caps = caps_of(2)
    for cap in caps:
        end_round(cap, 20)
    for shrinking, expected in ((0, 30), (1, 20)):
        for cap in caps:
            cap.receive([each.own for each in caps])
        end_round(caps[shrinking], 3)
        for cap in caps:
            cap.receive([each.own for each in caps])
        assert [cap.cap for cap in caps] == [expected] * 2


def test_environments_agree_on_the_length_cap_by_their_news():
    run = Together(3, episode={"slack": 100, "nop": "never"}, choose=at_random)
    run.play(20 * ROUND)
    assert {env._caps[0].cap for env in run.envs} == {30}
    run.envs[1]._caps[0].own = 77
    run.exchange()
    assert {env._caps[0].cap for env in run.envs} == {77}


# -- counts -----------------------------------------------------------------------------------------------------------


def test_counts_are_of_what_happened_since_the_last_call():
    run = Together(1, choose=at_random)
    run.play(300)
    (first,) = decode_messages((run.envs[0].publish(),))
    totals, rules = first.counts["totals"], first.counts["rules"]
    assert totals["steps"] == 300
    assert totals["rewrites"] == totals["lowered"] + totals["kept"] + totals["raised"]
    offered_of = {rule: offered for rule, offered, _, _ in rules}
    assert sum(applied for _, _, applied, _ in rules) == totals["rewrites"]
    assert offered_of[run.envs[0].rewriter.nop] == totals["nothing_changed"] > 0
    assert all(offered >= applied for _, offered, applied, _ in rules)
    assert sum(offered for _, offered, _, _ in rules) > 1.5 * totals["steps"]
    assert 300 - totals["rewrites"] == totals["nothing_changed"]
    (second,) = decode_messages((run.envs[0].publish(),))
    assert set(second.counts["totals"].values()) == {0}
    assert second.counts["rules"] == []


def test_a_rule_that_is_offered_matches_at_the_node_of_the_choice():
    env = CircuitEnv("mod5_4")
    obs, _ = env.reset(seed=0)
    pairs = choices_of(obs).tolist()
    node, rule = pairs[-1]
    _, reward, *_ = env.step(len(pairs) - 1)
    (news,) = decode_messages((env.publish(),))
    assert news.counts["rules"] == [
        [each, 1, int(each == rule), reward if each == rule else 0.0] for at, each in pairs if at == node
    ]


# -- choices that are always there, and that never are ---------------------------------------------------------------


def test_to_change_nothing_may_never_be_offered():
    env = CircuitEnv("tof_3", episode={"nop": "never"})
    obs, _ = env.reset(seed=0)
    assert env.rewriter.nop not in choices_of(obs)[:, 1]
    expected = [
        pair
        for pair in np.argwhere(env.rewriter.matches(env.circuit)).tolist()
        if pair[1] != env.rewriter.nop
    ]
    assert choices_of(obs).tolist() == expected


def test_without_a_mask_every_node_offers_all_that_does_not_match_which_costs_1_and_ends_the_episode():
    masked, env = CircuitEnv("tof_3"), CircuitEnv("tof_3", episode={"mask": False})
    assert env.observation_space.contains(env.reset(seed=0)[0])
    pairs, more = choices_of(masked.reset(seed=0)[0]).tolist(), choices_of(env.reset(seed=0)[0]).tolist()
    none = env.rewriter.num_rules
    assert [pair for pair in more if pair[1] != none] == pairs
    assert [node for node, rule in more if rule == none] == list(range(45))
    assert more == sorted(more)
    assert env.step(more.index([17, none]))[1:4] == (-1.0, True, False)
    (news,) = decode_messages((env.publish(),))
    assert news.counts["totals"]["not_a_choice"] == 1
