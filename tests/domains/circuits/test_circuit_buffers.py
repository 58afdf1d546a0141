import gc
import itertools
import json
import random
import tracemalloc

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import RZ, Circuit, Gate, H
from ddppo.domains.circuits.task import CircuitEnv, confirmed
from ddppo.domains.circuits.task.board import ROUND, LengthCap, Start
from ddppo.domains.circuits.task.buffer import GraphBuffer, chances
from ddppo.domains.circuits.task.lineage import ORIGINAL, Lineage
from ddppo.domains.circuits.task.settings import BufferSettings, EpisodeSettings
from ddppo.errors import EnvStateError
from tests.domains.circuits.circuit_play import at_random, downhill, qasm, steps

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

UNLIMITED = 1e9


def circuit_of(num_gates, angle=1):
    """Return one of many circuits of so many gates."""
    return Circuit.from_gates(2, [Gate(RZ, (0,), angle), *[Gate(H, (1,))] * (num_gates - 1)])


def buffer_of(original=20, max_bytes=UNLIMITED, **rules):
    return GraphBuffer(
        Start("mine", circuit_of(original), float(original)), BufferSettings(**rules), max_bytes
    )


def filled(buffer, counts):
    """Add so many circuits of each cost, each by a rewrite of the original; return the buffer."""
    for cost, number in counts.items():
        for k in range(number):
            step = buffer.lineage.add(ORIGINAL, k, 0)
            buffer.note(circuit_of(cost, 2 + k), float(cost), step)
            buffer.add(circuit_of(cost, 2 + k), float(cost), step)
            buffer.lineage.release(step)
    return buffer


# -- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "weight"), [("power", lambda c: c**-4), ("greedy", lambda c: 1 / (c - 9.8))]
)
def test_levels_are_drawn_in_proportion_to_their_weight_and_their_circuits_alike(draw, weight):
    buffer = filled(buffer_of(draw=draw), {10: 3, 13: 5, 17: 1})
    rng, num_draws = np.random.default_rng(0), 6000
    seen = {}
    for _ in range(num_draws):
        circuit, cost, _ = buffer.draw(rng)
        assert len(circuit) == cost
        key = (len(circuit), int(circuit.angles.max()))
        seen[key] = seen.get(key, 0) + 1
    sizes = {10: 3, 13: 5, 17: 1, 20: 1}
    total = sum(map(weight, sizes))
    expected = {c: num_draws * weight(c) / total / n for c, n in sizes.items()}
    assert len(seen) == sum(sizes.values())
    chi_square = sum((n - expected[c]) ** 2 / expected[c] for (c, _), n in seen.items())
    assert chi_square < 21.7  # 9 degrees of freedom: exceeded by one seed in a hundred


def test_costs_of_0_and_below_are_drawn_like_a_cost_of_1():
    assert chances(np.array([-3.0, 0.0, 1.0, 2.0]), "power") == pytest.approx(np.array([16, 16, 16, 1]) / 49)


def test_the_original_is_all_there_is_where_it_is_asked_for():
    buffer = filled(buffer_of(draw="original"), {10: 5})
    assert buffer.num_circuits == 1
    assert buffer.draw(np.random.default_rng(0))[0] == circuit_of(20)
    assert buffer.best().cost == 10


# -- what is kept ---------------------------------------------------------------------------------------------------


def test_a_circuit_is_kept_once_and_none_that_costs_more_than_the_original():
    buffer = filled(buffer_of(), {12: 2, 20: 1, 21: 3})
    assert (buffer.num_circuits, buffer.num_levels) == (4, 2)
    size = buffer.nbytes
    filled(buffer, {12: 2})
    assert (buffer.num_circuits, buffer.nbytes) == (4, size)


def test_what_was_kept_before_goes_on_from_the_fewest_rewrites():
    buffer = filled(buffer_of(), {12: 1})
    lineage, held = buffer.lineage, len(buffer.lineage)
    step = ORIGINAL
    for node in range(3):  # a long way to the circuit of 12 gates
        following = lineage.add(step, node, 5)
        lineage.release(step)
        step = following
    step = buffer.add(circuit_of(12, 2), 12.0, step)
    assert lineage.rewrites(step) == ((0, 0),)
    assert len(lineage) == held
    step = lineage.add(step, 7, 7)
    assert buffer.add(circuit_of(20), 20.0, step) == ORIGINAL  # back at the beginning


def test_a_full_level_gives_up_its_oldest_but_never_the_original():
    buffer = filled(buffer_of(level_size=3), {20: 7, 15: 7})
    drawn = {
        (len(c), int(c.angles.max()))
        for c, *_ in map(buffer.draw, itertools.repeat(np.random.default_rng(0), 300))
    }
    assert drawn == {(20, 1), (20, 7), (20, 8), (15, 6), (15, 7), (15, 8)}
    alone = filled(buffer_of(level_size=1), {20: 4})
    assert alone.draw(np.random.default_rng(0))[0] == circuit_of(20)


def test_beyond_the_byte_cap_the_costliest_go_and_never_the_original():
    whole = filled(buffer_of(), {20: 4, 15: 4, 10: 4})
    buffer = filled(buffer_of(max_bytes=whole.nbytes / 2), {20: 4, 15: 4, 10: 4})
    assert buffer.nbytes <= whole.nbytes / 2
    drawn = {
        (len(c), int(c.angles.max()))
        for c, *_ in map(buffer.draw, itertools.repeat(np.random.default_rng(0), 300))
    }
    assert drawn == {(20, 1), (15, 4), (15, 5), (10, 2), (10, 3), (10, 4), (10, 5)}
    least = filled(buffer_of(max_bytes=0), {20: 3, 10: 3})
    assert least.num_circuits == 1
    assert least.draw(np.random.default_rng(0))[0] == circuit_of(20)
    assert least.best().rewrites == ((0, 0),)  # the best is kept beside


def test_bytes_are_those_that_python_takes_to_a_quarter():
    gc.collect()
    tracemalloc.start()
    buffer = filled(buffer_of(60), {50: 700})
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken == pytest.approx(buffer.nbytes, rel=0.25)


def test_a_lineage_keeps_what_is_held_and_nothing_else():
    rng, lineage, made, held = random.Random(0), Lineage(), {ORIGINAL: ()}, []
    for number in range(2000):
        parent = rng.choice([ORIGINAL, *held])
        step = lineage.add(parent, number, number % 7)
        made[step] = (*made[parent], (number, number % 7))
        held.append(step)
        while held and rng.random() < 0.49:
            lineage.release(held.pop(rng.randrange(len(held))))
        for some in held[:: max(1, len(held) // 3)]:
            assert lineage.rewrites(some) == made[some]
    alive = {made[step][:k] for step in held for k in range(1, len(made[step]) + 1)}
    assert len(lineage) == len(alive)
    for step in held:
        lineage.release(step)
    assert len(lineage) == 0


# -- in the environment ---------------------------------------------------------------------------------------------


def test_episodes_go_round_robin_over_the_circuits_wherever_they_begin():
    env = CircuitEnv(["tof_3", "mod5_4", "barenco_tof_3"])
    firsts = set()
    for seed in range(6):
        _, info = env.reset(seed=seed)
        names = [info["circuit"]]
        for _ in range(11):
            while not any(env.step(0)[2:4]):
                pass
            names.append(env.reset()[1]["circuit"])
        assert all(names.count(start.name) == 4 for start in env.starts)
        assert all(
            one == other for one, other in itertools.pairwise([names[k : k + 3] for k in (0, 3, 6, 9)])
        )
        firsts.add(names[0])
    assert len(firsts) > 1


def test_circuits_on_the_way_are_kept_until_the_last_step_and_start_episodes():
    env = CircuitEnv("tof_3", episode={"min_steps": 40})
    starts, infos = set(), []
    for obs, _, (*_, info) in steps(env, 800):
        if info:
            infos.append(info)
        if not obs["fresh"].any():
            starts.add(int(obs["num_nodes"][0]))
    assert min(starts) < 45
    assert infos[-1]["buffer_circuits"] > 100
    assert infos[-1]["buffer_levels"] > 3
    assert infos[0]["buffer_bytes"] < infos[-1]["buffer_bytes"] < 32e6


def test_a_circuit_whose_episode_ended_there_is_not_kept():
    env = CircuitEnv("tof_3", episode={"min_steps": 1, "max_steps": 1})
    assert {info["buffer_circuits"] for *_, (*_, info) in steps(env, 40)} == {1}


def test_rewrites_are_forgotten_with_the_episodes_that_led_nowhere():
    env = CircuitEnv("tof_3", buffer={"draw": "original"})
    assert sum(bool(info) for *_, (*_, info) in steps(env, 300)) > 10
    env.reset()
    lineage = env.state()["buffers"][0]["lineage"]
    assert len(lineage["table"]) - len(lineage["free"]) == len(env.best()[0].rewrites) > 0


def test_a_seed_begins_anew():
    env = CircuitEnv("tof_3")
    first = [answer[1] for *_, answer in steps(env, 300)]
    assert [answer[1] for *_, answer in steps(env, 300)] == first


@pytest.mark.parametrize("choose", [at_random, downhill])
def test_a_state_goes_through_json_and_goes_on_to_the_bit(choose):
    kwargs = {
        "circuit": ["tof_3", "mod5_4"],
        "episode": {"min_steps": 7, "nop": "nodes"},
        "buffer": {"level_size": 30, "megabytes": 0.1},
    }
    one, other = CircuitEnv(**kwargs), CircuitEnv(**kwargs)
    for number, (_, _, (obs, _, terminated, truncated, _)) in enumerate(steps(one, 400, choose=choose)):
        if number % 80 == 79 and not (terminated or truncated):
            state = json.loads(json.dumps(one.state()))  # plain values only
            other.reset(seed=99)
            again, _ = other.restore(state)
            assert all(np.array_equal(again[key], obs[key]) for key in obs)
            assert other.state() == one.state() == state
            followed(one, other, again, choose)
            one.restore(state)
    assert all(len(found.rewrites) for found in other.best() if found.circuit != found.original)
    assert all(confirmed(found, one.rewriter).is_equal for found in other.best())


def followed(one, other, obs, choose):
    """Play both alike for 60 steps, over ends and resets, and compare all that they say."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        action = choose(one, obs, rng)
        mine, theirs = one.step(action), other.step(action)
        assert mine[1:] == theirs[1:]
        if mine[2] or mine[3]:
            mine, theirs = one.reset(), other.reset()
            assert mine[1] == theirs[1]
        assert all(np.array_equal(mine[0][key], theirs[0][key]) for key in mine[0])
        obs = mine[0]
    assert one.state() == other.state()


def test_a_state_of_another_task_and_one_before_a_reset_are_refused(tmp_path):
    env = CircuitEnv("tof_3")
    with pytest.raises(EnvStateError, match="no state before its first reset"):
        env.state()
    env.reset(seed=0)
    for kwargs in (
        {"circuit": "mod5_4"},
        {"circuit": "tof_3", "cost": "depth"},
        {"circuit": "tof_3", "episode": {"slack": 5}},
        {"circuit": qasm(tmp_path, "h q[0];")},
    ):
        with pytest.raises(EnvStateError, match="of other circuits, rules or settings"):
            CircuitEnv(**kwargs).restore(env.state())


# -- how long an episode may be -------------------------------------------------------------------------------------


def rounds(cap, *lengths):
    """Return the cap after rounds of episodes, the longest of each being given."""
    found = []
    for longest in lengths:
        for _ in range(ROUND - 1):
            cap.note(1)
        cap.note(longest if longest is not None else cap.cap)
        found.append(cap.cap)
    return found


def test_the_length_cap_grows_by_half_then_by_a_fifth_where_episodes_are_cut():
    cap = LengthCap(EpisodeSettings(min_steps=20, max_steps=100))
    assert rounds(cap, *[None] * 8) == [30, 45, 54, 65, 78, 94, 100, 100]


def test_the_length_cap_shrinks_where_no_episode_comes_near():
    cap = LengthCap(EpisodeSettings(min_steps=20, max_steps=600))
    rounds(cap, None, None, None)
    assert rounds(cap, 50, 45, 44, 10, 10, 10, 10) == [54, 45, 45, 38, 26, 20, 20]


def test_the_cap_truncates_an_episode_in_its_last_step():
    env = CircuitEnv("tof_3", episode={"min_steps": 5, "max_steps": 5, "slack": 100})
    lengths, length = [], 0
    for *_, (_, _, terminated, truncated, _) in steps(env, 50):
        length += 1
        if terminated or truncated:
            assert truncated
            lengths.append(length)
            length = 0
    assert lengths == [5] * 10
