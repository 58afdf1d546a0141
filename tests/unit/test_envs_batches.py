import time

import gymnasium as gym
import numpy as np
import pytest
from test_envs_tasks import task

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool_process import StepCost, choose_num_workers, measure, pool_pays
from ddppo.envs.make import choose_backend, make_eval_env, make_vec_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.envs.tasks.synthetic import SyntheticEnv
from ddppo.envs.vec_env import EnvStep
from ddppo.spaces import ArraySpec, leaves

SHORT = {"id": "CartPole-v1", "max_episode_steps": 15}


@pytest.fixture
def batch():
    """Make batches that are closed after the test."""
    made = []

    def make(env, num_envs, **more):
        made.append(make_vec_env(env, range(num_envs), **{"rank": 0, "cores": 1, **more}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_batch_gives_bit_for_bit_what_its_scalar_environments_give(batch, backend):
    seeds = [3, 1, 4]
    envs = batch(EnvConfig(backend=backend, **SHORT), 3)
    scalars = [gym.make("CartPole-v1", max_episode_steps=15) for _ in seeds]
    obs, mask = envs.reset(np.array(seeds))  # np.int64 too
    assert mask is None
    np.testing.assert_array_equal(
        obs, [env.reset(seed=seed)[0] for env, seed in zip(scalars, seeds, strict=True)]
    )
    num_ended = {"terminated": 0, "truncated": 0}
    actions = np.random.default_rng(0).integers(0, 2, (400, 3))
    for row in actions:
        step = envs.step(row)
        expected_obs, final = [], {}
        for i, env in enumerate(scalars):
            one, reward, terminated, truncated, _ = env.step(row[i])
            assert (step.rewards[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            if terminated or truncated:
                final[i] = one
                one, _ = env.reset()
            num_ended["terminated"] += terminated
            num_ended["truncated"] += truncated
            expected_obs.append(one)
        np.testing.assert_array_equal(step.obs, expected_obs)
        assert step.ended.tolist() == list(final)
        assert step.final_obs.shape == (len(final), 4)
        if final:
            np.testing.assert_array_equal(step.final_obs, list(final.values()))
        assert step.valid.all()
        assert (step.obs.dtype, step.final_obs.dtype, step.rewards.dtype) == (
            np.float32,
            np.float32,
            np.float64,
        )
    assert min(num_ended.values()) > 5, num_ended


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_final_observation_survives_a_task_that_writes_its_reset_into_the_same_buffer(batch, backend):
    envs = batch(task("Counting", backend=backend), 2)
    envs.reset([0, 1])
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert steps[-1].ended.tolist() == [0, 1]
    assert steps[-1].final_obs.tolist() == [[3], [3]]
    assert steps[-1].obs.tolist() == [[0], [0]]


def masks_of(envs):
    _, mask = envs.reset([0] * envs.num_envs)
    masks = [mask.copy()]
    for _ in range(4):
        step = envs.step(np.zeros((envs.num_envs, *envs.spec.action.shape), np.int64))
        masks.append(step.action_mask.copy())
    assert step.ended.tolist() == [0, 1]
    assert [x.tolist() for x in leaves(step.final_obs)] == [[[4], [4]]]
    return np.stack(masks)[:, 0].astype(int).tolist()


FIRST, SECOND, THIRD, ALL = [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_masks_from_infos_belong_to_the_observation_to_act_on_next(batch, backend):
    envs = batch(task("Mask", backend=backend), 2)
    assert masks_of(envs) == [
        FIRST,
        SECOND,
        ALL,
        FIRST,
        FIRST,
    ]  # no mask after 2 steps; the last is the reset's


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_masks_are_taken_out_of_dict_observations(batch, backend):
    envs = batch(task("Mask", backend=backend, kwargs={"where": "dict"}), 2)
    assert envs.spec.obs == {"position": ArraySpec((1,))}
    assert masks_of(envs) == [FIRST, SECOND, THIRD, FIRST, FIRST]


def test_masks_that_only_steps_give_are_found_and_resets_allow_everything(batch):
    envs = batch(task("Mask", kwargs={"where": "late"}), 2)
    assert masks_of(envs) == [ALL, SECOND, ALL, FIRST, ALL]


def test_masks_of_several_components_are_joined(batch):
    envs = batch(task("Mask", kwargs={"action": "multi_discrete"}), 2)
    even, odd = [1, 1, 0], [1, 0, 1]
    assert masks_of(envs) == [even, odd, ALL, odd, even]


def test_a_scalar_environment_hands_its_mask_over_in_the_info():
    env = make_env(task("Mask", kwargs={"where": "dict"}))
    obs, info = env.reset(seed=0)
    assert obs["position"].tolist() == [0]
    assert info["action_mask"].tolist() == [True, False, False]
    assert env.step(np.int64(0))[-1]["action_mask"].tolist() == [False, True, False]


def test_measuring_a_step_plays_only_allowed_actions():
    env = task("Mask", kwargs={"where": "dict"})
    tries = (measure(env, probe(env), measure_s=0.001).total_s for _ in range(5))
    assert any(0 < total_s < 0.1 for total_s in tries)  # others may have had the core meanwhile


def test_native_flags_the_step_after_an_end_as_no_transition(batch):
    envs = batch(EnvConfig(backend="gym_vector", **SHORT), 4)
    envs.reset([1, 2, 3, 4])
    rng = np.random.default_rng(0)
    just_ended, num_pseudo = np.zeros(4, bool), 0
    for _ in range(200):
        step = envs.step(rng.integers(0, 2, 4))
        np.testing.assert_array_equal(step.valid, ~just_ended)
        np.testing.assert_array_equal(step.rewards, step.valid.astype(float))
        assert not (step.terminated | step.truncated)[just_ended].any()
        assert (np.abs(step.obs[just_ended]) <= 0.05).all()  # CartPole starts there
        just_ended = step.terminated | step.truncated
        assert step.ended.tolist() == np.nonzero(just_ended)[0].tolist()
        np.testing.assert_array_equal(step.final_obs, step.obs[just_ended])
        num_pseudo += (~step.valid).sum()
    assert num_pseudo > 20


def test_native_repeats_itself_from_the_same_seeds_and_differs_for_others(batch):
    def first_obs(seeds):
        return batch(EnvConfig(backend="gym_vector", **SHORT), 2).reset(seeds)[0].tolist()

    assert first_obs([1, 2]) == first_obs([1, 2])
    assert first_obs([1, 2]) != first_obs([1, 3])


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_native_tasks_that_reset_at_once_or_leave_it_to_us_look_the_same(batch, mode):
    envs = batch(task("Native", backend="gym_vector", kwargs={"mode": mode}), 2)
    obs, mask = envs.reset([0, 1])
    assert (obs.tolist(), mask.tolist()) == ([[0], [0]], [[True, False], [True, False]])
    seen = []
    for _ in range(3):
        step = envs.step(np.zeros(2, np.int64))
        assert step.valid.all()
        seen.append(
            (step.obs.tolist(), step.ended.tolist(), step.final_obs.tolist(), step.action_mask[:, 0].tolist())
        )
    assert seen == [
        ([[1], [1]], [], [], [False, False]),
        ([[0], [2]], [0], [[2]], [True, True]),
        ([[1], [0]], [1], [[3]], [False, True]),
    ]


def test_native_next_step_tasks_act_on_the_final_observation_once(batch):
    envs = batch(task("Native", backend="gym_vector", kwargs={"mode": "NEXT_STEP", "masks": False}), 1)
    envs.reset([0])
    step = [envs.step(np.zeros(1, np.int64)) for _ in range(2)][-1]
    assert (step.ended.tolist(), step.final_obs.tolist(), step.action_mask) == ([0], [[2]], None)
    assert envs.step(np.zeros(1, np.int64)).valid.tolist() == [False]


def synthetic(**kwargs):
    return EnvConfig(id="ddppo/Synthetic-v0", kwargs=kwargs)


def test_auto_takes_processes_only_where_they_save_more_than_they_cost(monkeypatch):
    def chosen(env, seconds, num_envs, cores):
        monkeypatch.setattr("ddppo.envs.make.measure", lambda env, spec: StepCost(seconds, seconds))
        env = choose_backend(env, probe(env), num_envs, cores)
        return env.backend, env.num_workers

    slow, fast = synthetic(step_time_s=0.002, busy=True), task("Counting")
    assert chosen(slow, 0.002, num_envs=8, cores=2) == ("pool", 2)
    assert chosen(slow, 0.002, num_envs=8, cores=1) == ("sync", None)
    assert chosen(slow, 0.002, num_envs=1, cores=2) == ("sync", None)
    assert chosen(fast, 5e-6, num_envs=2, cores=2) == ("sync", None)


def test_what_is_computed_and_what_is_slept_of_a_step_is_measured():
    asleep = synthetic(step_time_s=0.02)
    cost = measure(asleep, probe(asleep))
    assert cost.total_s >= 0.02 > 2 * cost.busy_s


def test_a_tail_leaves_the_mean_time_of_steps_and_changes_no_observation():
    even, heavy = SyntheticEnv(step_time_s=0.0), SyntheticEnv(step_time_s=0.002, tail=2.5)
    assert (even.reset(seed=3)[0] == heavy.reset(seed=3)[0]).all()
    times = np.array([heavy._random_time(2.5) for _ in range(20_000)])
    assert times.mean() == pytest.approx(0.002, rel=0.05)
    assert times.max() > 20 * np.median(times)
    heavy._wait = lambda seconds: None
    assert (even.step(0)[0] == heavy.step(0)[0]).all()
    with pytest.raises(ValueError, match="above 1"):
        SyntheticEnv(tail=1.0)


def test_environments_that_sleep_get_a_process_each_be_there_one_core_only():
    env = synthetic(step_time_s=0.02)
    settled_env = choose_backend(env, probe(env), 8, 1)
    assert (settled_env.backend, settled_env.num_workers) == ("pool", 8)


def test_a_pool_has_as_many_processes_as_keep_the_cores_busy():
    half_asleep = StepCost(total_s=0.002, busy_s=0.001)
    assert choose_num_workers(half_asleep, num_envs=100, cores=2) == 4
    assert choose_num_workers(half_asleep, num_envs=3, cores=2) == 3
    computing = StepCost(total_s=0.001, busy_s=0.00102)
    assert choose_num_workers(computing, num_envs=100, cores=2) == 2
    assert choose_num_workers(computing, num_envs=1, cores=2) == 1
    asleep = StepCost(total_s=0.001, busy_s=0.0)
    assert choose_num_workers(asleep, num_envs=100, cores=2) == 100
    assert pool_pays(computing, num_envs=100, num_workers=2)
    assert not pool_pays(computing, num_envs=100, num_workers=1)


def test_a_slow_rank_takes_longer_for_every_step_and_no_other_rank_does(batch, monkeypatch):
    env = EnvConfig(backend="sync", slow_ranks={1: 0.05}, **SHORT)
    fast, slow = batch(env, 2, rank=0), batch(env, 2, rank=1)
    slept = {}
    for name, envs in (("fast", fast), ("slow", slow), ("eval", make_eval_env(env, 2))):
        envs.reset([0, 1])
        monkeypatch.setattr(time, "sleep", slept.setdefault(name, []).append)
        for _ in range(5):
            assert isinstance(envs.step(np.zeros(2, np.int64)), EnvStep)
    assert slept == {"fast": [], "slow": [0.05] * 5, "eval": []}
