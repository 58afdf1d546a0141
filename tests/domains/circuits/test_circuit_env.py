import copy
import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ddppo.config.settings import EnvConfig
from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum import RZ
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.circuit import TURN
from ddppo.domains.circuits.task import CircuitEnv, confirmed, replayed
from ddppo.domains.circuits.task.board import NO_NODE, growth_of
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from tests.domains.circuits.circuit_oracle import distance, matrix_of
from tests.domains.circuits.circuit_play import at_random, choices_of, downhill, qasm, steps
from tests.domains.circuits.circuit_slow import listed, observed
from tests.support import TINY, door

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

NOP = 0  # where it is offered once
ARRAYS = ("kinds", "wires", "angles")
FIXED = {"min_steps": 30, "max_steps": 30}


# -- one rewrite, one transition ------------------------------------------------------------------------------------


def test_gymnasium_finds_nothing_wrong():
    check_env(gym.make("ddppo/Circuit-v0", circuit=["tof_3", "mod5_4"]).unwrapped, skip_render_check=True)


def test_an_episode_replayed_from_its_choices_is_the_same_circuit_and_unitary():
    env = CircuitEnv("tof_3", episode=FIXED)
    chosen = [tuple(obs["pairs"][action].tolist()) for obs, action, _ in steps(env, 29)]
    again = replayed(env.rewriter, benchmark("tof_3"), chosen)
    assert again.digest() == env.circuit.digest()
    assert distance(matrix_of(again), matrix_of(benchmark("tof_3"))) < 1e-8


def test_rewards_of_an_episode_sum_to_the_cost_that_it_saved():
    for cost in ("gate_count", "cx_count", "cx_weighted", "depth"):
        env = CircuitEnv("tof_3", cost=cost, episode={"slack": 100})
        saved, before = 0.0, env.reset(seed=0)[1]["cost"]
        for _, _, (_, reward, terminated, truncated, info) in steps(env, 100):
            saved += reward
            if terminated or truncated:
                assert saved == before - info["cost"]
                break
        else:
            raise AssertionError("no end")


def test_random_play_on_tof_3_stays_within_its_spaces_and_its_best_is_confirmed():
    env = CircuitEnv("tof_3")
    ends = 0
    for obs, action, (_, reward, terminated, truncated, info) in steps(env, 400, choose=at_random):
        assert env.observation_space.contains(obs)
        assert obs["action_mask"][action] == 1
        assert not (terminated and truncated)
        assert bool(info) == (terminated or truncated)
        assert reward > -3
        ends += bool(info)
    assert ends > 10
    (found,) = env.best()
    assert found.cost <= 45
    assert confirmed(found, env.rewriter).is_equal


def test_the_best_circuit_comes_with_rewrites_that_make_it_and_is_equal():
    env = CircuitEnv("tof_3", episode={"min_steps": 60})
    infos = [info for *_, (*_, info) in steps(env, 1500) if info]
    (found,) = env.best()
    assert found.cost == len(found.circuit) == infos[-1]["best_gates"] <= 40
    assert len(found.rewrites) == infos[-1]["best_rewrites"] > 5
    assert confirmed(found, env.rewriter).is_equal
    assert distance(matrix_of(found.circuit), matrix_of(benchmark("tof_3"))) < 1e-8
    with pytest.raises(ConfigError, match="lead to another circuit"):
        confirmed(found._replace(circuit=found.original), env.rewriter)
    with pytest.raises(ConfigError, match=r"^rewrite 1: .*does not match"):
        confirmed(found._replace(rewrites=((44, 7), *found.rewrites)), env.rewriter)


# -- what is observed -----------------------------------------------------------------------------------------------


def test_the_observation_is_the_graph_of_the_circuit():
    env = CircuitEnv("mod5_4", sizes={"max_nodes": 80, "max_pairs": 300})
    for obs, *_ in list(steps(env, 40))[::8]:
        n, edges = int(obs["num_nodes"][0]), obs["edges"][: obs["num_edges"][0]]
        assert (obs["kinds"][n:] == -1).all()
        assert (obs["edges"][len(edges) :] == -1).all()
        assert (obs["pairs"][obs["num_pairs"][0] :] == -1).all()
        assert obs["action_mask"].sum() == obs["num_pairs"][0]
        assert obs["num_rules"] == env.observation_space["num_rules"].high == env.rewriter.num_rules
        assert [a.shape for a in (obs["kinds"], obs["edges"], obs["pairs"])] == [(80,), (160, 4), (300, 2)]
    last, expected = {}, []
    for i, gate in enumerate(env.circuit):
        for port, wire in enumerate(gate.wires):
            if wire in last:
                expected.append((*last[wire], i, port))
            last[wire] = (i, port)
    obs = env.restore(env.state())[0]
    assert obs["edges"][: obs["num_edges"][0]].tolist() == sorted(map(list, expected))
    for i, gate in enumerate(env.circuit):
        assert obs["kinds"][i] == gate.kind
        turn = gate.angle * 2 * math.pi / TURN
        assert obs["angles"][i].tolist() == pytest.approx(
            [math.sin(turn), math.cos(turn)] if gate.kind == RZ else [0, 0], abs=1e-7
        )


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"episode": {"nop": "nodes"}, "sizes": {"max_pairs": 72}},
        {"episode": {"nop": "never", "slack": 20}, "sizes": {"max_nodes": 46, "max_pairs": 20}},
        {"episode": {"nop": "nodes", "mask": False}},
        {"cost": "depth", "episode": {"mask": False}},
    ],
)
def test_what_is_observed_is_to_the_bit_what_numpy_makes_of_the_circuit(tmp_path, kwargs):
    gates = "".join(
        f"rz({0.37 * k}) q[{k % 3}]; h q[{k % 2}]; cx q[{k % 3}], q[{(k + 1) % 3}];" for k in range(8)
    )
    env = CircuitEnv(["tof_3", qasm(tmp_path, gates)], **kwargs)
    sizes = [env.observation_space[name].shape[0] for name in ("kinds", "pairs")]
    rng, (obs, _) = np.random.default_rng(0), env.reset(seed=0)
    fresh = ()
    for _ in range(300):
        pairs, _, _ = listed(env.rewriter, env.circuit, *sizes, env._episode)
        expected = observed(env, pairs, fresh)
        assert {name: (array.dtype, array.tobytes()) for name, array in obs.items()} == {
            name: (array.dtype, array.tobytes()) for name, array in expected.items()
        }
        before, action = env.circuit, int(rng.integers(len(pairs)))
        node, rule = pairs[action]
        obs, _, terminated, truncated, _ = env.step(action)
        if rule < env.rewriter.nop:
            after, fresh = env.rewriter.apply(before, node, rule)
            assert all((getattr(after, name) == getattr(env.circuit, name)).all() for name in ARRAYS)
            assert (env.circuit.depth, env.circuit.digest()) == (after.depth, after.digest())
        else:
            fresh = (node,) if rule == env.rewriter.nop and node >= 0 else ()
        if terminated or truncated:
            assert obs["fresh"].nonzero()[0].tolist() == list(fresh)
            (obs, _), fresh = env.reset(), ()


def test_fresh_are_the_next_nodes_of_the_rewrite_and_none_after_a_reset():
    env = CircuitEnv("tof_3", episode=FIXED)
    circuit = benchmark("tof_3").canonical()
    for number, (obs, action, (after, *_)) in enumerate(steps(env, 29)):
        assert number or not obs["fresh"].any()
        circuit, next_nodes = env.rewriter.apply(circuit, *obs["pairs"][action].tolist())
        assert np.flatnonzero(after["fresh"]).tolist() == next_nodes.tolist()


# -- choices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nop", ["once", "nodes"])
def test_what_is_listed_is_all_that_matches_and_all_of_it_can_be_applied(nop):
    env = CircuitEnv("tof_3", episode={"nop": nop})
    for obs, *_ in list(steps(env, 60, choose=at_random if nop == "once" else downhill))[::6]:
        pairs = choices_of(obs)
        assert sorted(map(tuple, pairs.tolist())) == list(map(tuple, pairs.tolist()))
    pairs = choices_of(env.restore(env.state())[0])
    expected = np.argwhere(env.rewriter.matches(env.circuit)).tolist()  # with NOP, at every node
    if nop == "once":
        expected = [[NO_NODE, env.rewriter.nop], *(pair for pair in expected if pair[1] != env.rewriter.nop)]
    assert pairs.tolist() == expected
    for node, rule in pairs.tolist():
        if node != NO_NODE:
            assert (
                len(env.rewriter.apply(env.circuit, node, rule)[0]) <= env.observation_space["kinds"].shape[0]
            )


def test_rewrites_that_would_not_fit_are_left_out_and_counted():
    wide, tight = CircuitEnv("tof_3"), CircuitEnv("tof_3", sizes={"max_nodes": 45}, episode={"slack": 50})
    growth = growth_of(wide.rewriter)
    every, listed = choices_of(wide.reset(seed=0)[0]), choices_of(tight.reset(seed=0)[0])
    too_large = growth[every[:, 1]] > 0
    assert listed.tolist() == every[~too_large].tolist()
    assert tight.step(NOP)[4]["pairs_too_large"] == too_large.sum() > 0
    assert all(obs["num_nodes"] <= 45 for obs, *_ in steps(tight, 200, choose=at_random))


def test_of_too_many_choices_those_stay_that_add_the_fewest_gates():
    wide, narrow = CircuitEnv("tof_3"), CircuitEnv("tof_3", sizes={"max_pairs": 12}, episode=FIXED)
    every = choices_of(wide.reset(seed=0)[0])[1:]
    kept = choices_of(narrow.reset(seed=0)[0])
    assert len(kept) == 12
    assert kept[0].tolist() == [NO_NODE, wide.rewriter.nop]
    growth = growth_of(wide.rewriter)
    by_growth = sorted(every.tolist(), key=lambda pair: (growth[pair[1]], pair[1], pair[0]))
    assert kept[1:].tolist() == sorted(by_growth[:11])
    infos = [info for *_, (*_, info) in steps(narrow, 60) if info]
    assert sum(info["pairs_without_room"] for info in infos) > 500


# -- ends -----------------------------------------------------------------------------------------------------------


def test_nop_changes_nothing_and_ends_the_episode_if_it_shall():
    env = CircuitEnv("tof_3")
    obs, _ = env.reset(seed=0)
    after, reward, terminated, truncated, info = env.step(NOP)
    assert (reward, terminated, truncated, info["episode_rewrites"]) == (0, True, False, 0)
    assert all((after[key] == obs[key]).all() for key in obs)
    env = CircuitEnv("tof_3", episode={"nop_stop": False, "min_steps": 3, "max_steps": 3})
    env.reset(seed=0)
    assert [env.step(NOP)[1:4] for _ in range(3)] == [(0, False, False), (0, False, False), (0, False, True)]


def test_nop_of_a_node_leaves_that_node_fresh():
    env = CircuitEnv("tof_3", episode={"nop": "nodes", "nop_stop": False})
    obs, _ = env.reset(seed=0)
    action = choices_of(obs).tolist().index([17, env.rewriter.nop])
    assert np.flatnonzero(env.step(action)[0]["fresh"]).tolist() == [17]


def test_an_episode_ends_where_its_cost_is_too_far_above_its_least():
    env = CircuitEnv("tof_3", episode={"slack": 2, **FIXED}, buffer={"draw": "original"})
    cost = least = 45
    num_too_far = 0
    for _, action, (_, reward, terminated, truncated, _) in steps(env, 300, choose=at_random):
        cost -= reward
        least = min(least, cost)
        assert terminated == (cost > least + 2 or action == NOP)
        num_too_far += cost > least + 2
        if terminated or truncated:
            cost = least = 45
    assert num_too_far > 10


def test_an_empty_circuit_ends_an_episode_that_has_no_node_left_to_choose(tmp_path):
    path = qasm(tmp_path, "h q[0]; h q[0];")
    for nop in ("once", "nodes"):
        env = CircuitEnv(path, episode={"nop": nop})
        obs, _ = env.reset(seed=0)
        obs, reward, terminated, _, _ = env.step(downhill(env, obs, np.random.default_rng(0)))
        assert (reward, terminated, int(obs["num_nodes"][0])) == (2, nop == "nodes", 0)


def test_a_copy_is_refused_for_its_state_goes_into_another_environment():
    env = CircuitEnv("tof_3")
    with pytest.raises(TypeError, match="cannot be copied or pickled: make another one, and restore"):
        copy.deepcopy(env)


def test_an_action_that_is_no_row_costs_1_and_ends_the_episode():
    env = CircuitEnv("tof_3")
    env.reset(seed=0)
    assert env.step(env.action_space.n - 1)[1:4] == (-1.0, True, False)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(NOP)


# -- under the trainer ----------------------------------------------------------------------------------------------


def test_batches_hand_over_graphs_and_masks_alike_in_turn_and_in_a_pool():
    task = {"id": "ddppo/Circuit-v0", "kwargs": {"circuit": ["tof_3", "mod5_4"]}}
    spec = probe(EnvConfig(**task))
    assert spec.mask_size == spec.action.sizes[0] == spec.obs["pairs"].shape[0]
    seen = []
    for backend in ("sync", "pool"):
        envs = make_vec_env(EnvConfig(**task, backend=backend), range(3), rank=0, cores=1)
        rng, rewards = np.random.default_rng(0), []
        try:
            obs, mask = envs.reset([1, 2, 3])
            for _ in range(60):
                assert (mask.sum(1) == obs["num_pairs"][:, 0]).all()
                step = envs.step(np.array([rng.choice(np.flatnonzero(row)) for row in mask]))
                obs, mask = step.obs, step.action_mask
                assert not obs["fresh"][step.ended].any()
                rewards.append(step.rewards.tolist())
        finally:
            envs.close()
        seen.append((rewards, obs["pairs"].tolist()))
    assert seen[0] == seen[1]


def test_the_trainer_trains_any_masked_policy_on_it(tmp_path):
    tiny = ("env=circuit", "env.num_envs=2", "env.backend=sync", "ppo.total_steps=64", "ppo.rollout_steps=16")
    finished = door(*TINY, *tiny, run_dir=tmp_path / "run")
    assert finished.code == 0, finished.stderr


# -- bad input ------------------------------------------------------------------------------------------------------


def bad_cost(circuit):
    return float("nan")


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"circuit": "tof3"}, r"tof3 \(did you mean tof_3 or tof_5 or tof_4\?\)"),
        (
            {"circuit": []},
            r"circuit=\[\]: give a benchmark's name, the path of a QASM file, or a list of these",
        ),
        ({"circuit": 7}, "circuit=7: give a benchmark's name"),
        ({"circuit": ["tof_3", "tof_3"]}, "circuit=tof_3,tof_3: tof_3 is there twice: name each once"),
        ({"cost": "gates"}, "cost=gates.*is no cost in nam: give one of gate_count"),
        ({"cost": f"{__name__}:bad_cost"}, "returned nan; a cost is a finite number"),
        ({"rules": "none.rules"}, "rules=none.rules: cannot be read"),
        ({"sizes": {"max_nodes": 44}}, "sizes.max_nodes=44: tof_3 has 45 gates: raise it to 53, or leave"),
        ({"sizes": {"max_pairs": 1}}, "sizes.max_pairs=1: has to be 2 or more"),
        (
            {"sizes": {"max_pairs": 50}, "episode": {"nop": "nodes"}},
            "sizes.max_pairs=50: has to be 57 or more, .*beside the 1 at each of 56 nodes",
        ),
        ({"sizes": {"nodes": 9}}, r"sizes.nodes.*: sizes has the settings max_nodes, max_pairs"),
        ({"sizes": 99}, "sizes=99: give its settings by name, as sizes.<setting>=<value>"),
        ({"sizes": {"max_nodes": 50.5}}, "sizes.max_nodes=50.5: has to be a whole number, 1 or more"),
        ({"episode": {"min_steps": 9, "max_steps": 8}}, "episode.min_steps=9 exceeds episode.max_steps=8"),
        ({"episode": {"nop": "no"}}, "episode.nop=no: has to be one of once, nodes, never"),
        ({"episode": {"nop_stop": 2}}, "episode.nop_stop=2: has to be one of true, false"),
        ({"episode": {"slack": -1}}, "episode.slack=-1: has to be a number, 0 or more"),
        ({"episode": {"mask": 0}}, "episode.mask=0: has to be one of true, false"),
        (
            {"episode": {"nop": "nodes", "mask": False}, "sizes": {"max_pairs": 112}},
            "sizes.max_pairs=112: has to be 113 or more, .*beside the 2 at each of 56 nodes",
        ),
        ({"buffer": {"share": -1}}, "buffer.share=-1: has to be a whole number, 0 or more"),
        ({"buffer": {"draw": "powr"}}, "buffer.draw=powr: has to be one of power, greedy, original"),
        ({"buffer": {"level_size": 0}}, "buffer.level_size=0: has to be a whole number, 1 or more"),
    ],
)
def test_bad_input_is_named_with_its_rule_and_a_remedy(kwargs, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CircuitEnv(**{"circuit": "tof_3"} | kwargs)


def test_a_circuit_without_gates_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="it has no gates, so there is nothing to rewrite"):
        CircuitEnv(qasm(tmp_path, ""))


def test_a_circuit_that_no_rule_matches_is_refused_where_that_leaves_nothing_to_choose(tmp_path):
    path = qasm(tmp_path, "h q[0];")
    with pytest.raises(
        ConfigError, match=r"episode.nop=never: no rule matches .*mine.qasm, so there is nothing"
    ):
        CircuitEnv(["tof_3", path], episode={"nop": "never"})
    assert CircuitEnv(path).reset(seed=0)[0]["num_pairs"] == 1


def test_the_probe_says_which_setting_was_wrong():
    with pytest.raises(ConfigError, match=r"env.id=ddppo/Circuit-v0: circuit=7: give"):
        probe(EnvConfig(id="ddppo/Circuit-v0", kwargs={"circuit": 7}))
    with pytest.raises(ConfigError, match=r"env.kwargs.costs: .*did you mean cost.*it accepts circuit, cost"):
        probe(EnvConfig(id="ddppo/Circuit-v0", kwargs={"circuit": "tof_3", "costs": "depth"}))
