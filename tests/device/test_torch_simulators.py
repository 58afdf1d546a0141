"""Adapters of simulators in torch: what each simulator does with last observations, limits and logs, told truly."""

import dataclasses
import io
import multiprocessing
import os
import pickle
import sys
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from ddppo import device as devices
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.envs.backends import device as backend
from ddppo.envs.native_tasks import TensorCartPole
from ddppo.envs.simulators.torch_simulators import IsaacLabEnvs, ManiSkillEnvs, RslRlEnvs
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvError, EnvStateError
from ddppo.loop import evaluation
from ddppo.loop.evaluation import Evaluator, Policy
from ddppo.models.build import build_model
from ddppo.ppo.device_collector import DeviceCollector
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each
from tests.device.fake_simulators import (
    LIMIT,
    IsaacLab,
    ManiSkill,
    Mjlab,
    OnlyOne,
    RslRl,
    RslRl1,
    RslRl2,
    oracle,
)
from tests.support import door, lines, summary

E, CPU = 5, torch.device("cpu")
NAMES = EnvNames(range(E), 0)
SEEDS = torch.arange(E)
# Some episodes fail, some reach the limit, and some do both in the same step.
ACTIONS = torch.tensor([[1.5, 0.2, -0.3, 0.9, 0.45]]).repeat(13, 1)


def adapt(form, made, **options):
    return form(made, E, CPU, NAMES, 7, **options)


def rows(envs):
    """Return copies of what the adapter tells of each step of ACTIONS, as the rollout's buffers would keep them."""
    envs.reset(SEEDS)
    told, stepped = [], backend.DeviceEnvs(envs, NAMES)  # which clips actions
    for row in ACTIONS:
        step = stepped.step(row[:, None])
        copies = {name: getattr(step, name).clone() for name in ("rewards", "terminated", "truncated")}
        copies |= {"obs": each(torch.clone, step.obs), "metrics": dict(step.metrics)}
        copies["final_obs"] = None if step.final_obs is None else each(torch.clone, step.final_obs)
        told.append(SimpleNamespace(**copies))
    return told


def as_vectors(obs):
    return torch.cat([x.float() for x in obs.values()], dim=-1) if isinstance(obs, dict) else obs


FORMS = {
    "rsl_rl": (RslRlEnvs, RslRl, {"clip_actions": 1.0}),
    "isaaclab": (IsaacLabEnvs, IsaacLab, {"clip_actions": 1.0}),
    "older isaaclab": (IsaacLabEnvs, lambda n: IsaacLab(n, knows_final_obs=False), {"clip_actions": 1.0}),
    "mjlab": (IsaacLabEnvs, Mjlab, {"clip_actions": 1.0}),
    "mjlab with auto_reset": (IsaacLabEnvs, Mjlab, {"clip_actions": 1.0, "final_obs": False}),
}
EXACT = ("isaaclab", "mjlab", "maniskill")


@pytest.fixture(params=[*FORMS, "maniskill"])
def envs(request):
    form, fake, options = FORMS.get(request.param, (ManiSkillEnvs, ManiSkill, {}))
    envs = adapt(form, fake(E), **options)
    envs.is_exact = request.param in EXACT
    if request.param == "maniskill":  # the age has no dimension of its own there
        groups = envs._groups
        envs._groups = lambda obs: torch.stack([x.reshape(E) for x in groups(obs).values()], dim=-1)
    return envs


def test_each_step_is_what_truly_happened(envs):
    for told, true in zip(rows(envs), oracle(ACTIONS), strict=True):
        assert torch.allclose(as_vectors(told.obs), true.obs, atol=1e-6)
        assert torch.allclose(told.rewards, true.rewards, atol=1e-6)
        assert torch.equal(told.terminated, true.terminated)
        assert torch.equal(told.truncated, true.truncated)


def test_the_last_observation_of_an_episode_is_the_true_one_or_none_is_promised(envs):
    assert envs.has_final_obs == envs.is_exact
    num_ends = 0
    for told, true in zip(rows(envs), oracle(ACTIONS), strict=True):
        if not envs.has_final_obs:
            assert told.final_obs is None
            continue
        ended = true.terminated | true.truncated
        assert torch.allclose(as_vectors(told.final_obs)[ended], true.final_obs[ended], atol=1e-6)
        num_ends += int(ended.sum())
    assert num_ends > 10 or not envs.has_final_obs


def test_results_of_simulators_with_one_stream_are_said_to_depend_on_the_number_of_ranks(envs):
    assert envs.has_own_streams is False
    with pytest.raises(EnvStateError, match="begins new episodes"):
        envs.state()


# -- Observations. ---------------------------------------------------------------------------------------------


def test_a_single_group_is_one_array():
    assert adapt(RslRlEnvs, RslRl(E)).spec.obs == ArraySpec((2,))


def test_the_critic_reads_its_group_the_policy_its_own_and_other_groups_are_left_out():
    envs = adapt(RslRlEnvs, RslRl(E, has_critic=True))
    assert envs.spec.obs == {"policy": ArraySpec((2,)), "critic": ArraySpec((3,))}
    assert (envs.spec.policy_keys, envs.spec.value_keys) == (("policy",), ("critic",))
    assert set(envs.reset(SEEDS)) == {"policy", "critic"}


def test_terms_of_a_group_have_paths_and_keep_their_precision():
    spec = adapt(IsaacLabEnvs, IsaacLab(E, has_critic=True)).spec
    assert spec.obs == {
        "policy": ArraySpec((2,)),
        "critic.all": ArraySpec((2,), "float64"),
        "critic.flag": ArraySpec(()),  # a bool, which networks read as a float
    }
    assert spec.value_keys == ("critic.all", "critic.flag")


def test_without_rsl_rls_names_policy_and_critic_read_everything():
    spec = adapt(ManiSkillEnvs, ManiSkill(E)).spec
    assert spec.obs == {"agent.place": ArraySpec((1,)), "extra.age": ArraySpec(())}
    assert spec.policy_keys is None
    assert spec.value_keys is None


@pytest.mark.parametrize("older", [RslRl1, RslRl2])
def test_older_forms_of_rsl_rl_give_the_critic_its_observations(older):
    envs = adapt(RslRlEnvs, older(E), clip_actions=1.0)
    assert envs.spec.value_keys == ("critic",)
    for told, true in zip(rows(envs), oracle(ACTIONS), strict=True):
        assert torch.allclose(told.obs["critic"], true.obs, atol=1e-6)


def test_the_first_observations_are_taken_once_where_asking_for_them_resets():
    fake = RslRl(E)
    calls = []
    groups = fake.get_observations
    fake.get_observations = lambda: calls.append(1) or groups()
    envs = adapt(RslRlEnvs, fake)
    envs.reset(SEEDS)
    assert len(calls) == 1


# -- Ends. -----------------------------------------------------------------------------------------------------


def test_missing_time_outs_are_refused_in_a_sentence():
    envs = adapt(RslRlEnvs, RslRl(E, has_time_outs=False))
    envs.reset(SEEDS)
    with pytest.raises(
        EnvError, match=r"no extras\[\"time_outs\"\], so a time limit cannot be told from a failure"
    ):
        envs.step(torch.zeros(E, 1))


@pytest.mark.parametrize("cfg", [{"is_finite_horizon": True}, SimpleNamespace(is_finite_horizon=True)])
def test_a_finite_horizon_makes_every_end_terminal(cfg):
    told = rows(adapt(RslRlEnvs, RslRl(E, has_time_outs=False, cfg=cfg), clip_actions=1.0))
    assert not any(row.truncated.any() for row in told)
    true = oracle(ACTIONS)
    assert all(torch.equal(a.terminated, b.terminated | b.truncated) for a, b in zip(told, true, strict=True))


def test_a_finite_horizon_of_isaac_lab_makes_the_time_limit_terminal():
    fake = IsaacLab(E)
    fake.cfg.is_finite_horizon = True
    told = rows(adapt(IsaacLabEnvs, fake, clip_actions=1.0))
    assert any(row.terminated.any() for row in told)
    assert not any(row.truncated.any() for row in told)


def test_time_outs_that_stay_from_an_earlier_end_count_for_no_later_step():
    # legged_gym writes time_outs only when an episode ends.
    fake = RslRl(E)
    step, kept = fake.step, {"time_outs": torch.ones(E)}

    def late(actions):
        obs, rewards, dones, _ = step(actions)
        return obs, rewards, dones, kept

    fake.step = late
    told = rows(adapt(RslRlEnvs, fake, clip_actions=1.0))
    true = oracle(ACTIONS)
    assert all(torch.equal(a.truncated, b.terminated | b.truncated) for a, b in zip(told, true, strict=True))


# -- Logs. -----------------------------------------------------------------------------------------------------


def test_a_log_becomes_scalars_on_the_device_and_counts_once():
    told = rows(adapt(RslRlEnvs, RslRl(E), clip_actions=1.0))
    true = oracle(ACTIONS)
    for row, now in zip(told, true, strict=True):
        ended = now.terminated | now.truncated
        assert bool(row.metrics) == bool(ended.any())  # rsl_rl's tasks leave the old log in extras
        if row.metrics:
            assert set(row.metrics) == {"age", "place", "ends"}
            assert all(x.shape == () and x.dtype == torch.float32 for x in row.metrics.values())
            assert row.metrics["age"] == pytest.approx(now.final_obs[ended][:, 1].mean())
            assert row.metrics["ends"] == ended.sum()


@pytest.mark.parametrize(
    "changed",
    [
        lambda x, t: float(t + 1),
        lambda x, t: torch.full((3,), t + 1.0),
        lambda x, t: torch.zeros(()) if x is None else x.add_(1.0),
    ],
    ids=["a number", "another tensor", "a tensor written to"],
)
def test_entries_of_a_log_that_stays_one_dict_count_when_they_are_written(changed):
    fake, log = IsaacLab(E), {"constant": torch.ones(())}
    step, times = fake.step, iter(range(4))

    def logging(actions):
        found = step(actions)
        t = next(times)
        if t != 2:  # the third step writes nothing
            log["successes"] = changed(log.get("successes"), t)
        return *found[:-1], {"log": log}

    fake.step = logging
    envs = adapt(IsaacLabEnvs, fake)
    envs.reset(SEEDS)
    told = [envs.step(torch.zeros(E, 1)).metrics for _ in range(4)]
    assert [set(row) for row in told] == [{"constant", "successes"}, {"successes"}, set(), {"successes"}]
    assert told[1]["successes"] - told[0]["successes"] == 1


def test_mjlab_logs_its_episodes_in_the_reset_that_follows_a_step():
    told = rows(adapt(IsaacLabEnvs, Mjlab(E), clip_actions=1.0))
    for row, now in zip(told, oracle(ACTIONS), strict=True):
        ended = now.terminated | now.truncated
        if ended.any():
            assert row.metrics["Episode_Reward/place"] == pytest.approx(now.rewards[ended].mean())
        else:
            assert row.metrics == {}


def test_maniskills_scores_are_those_of_the_episodes_that_ended():
    told = rows(adapt(ManiSkillEnvs, ManiSkill(E)))
    for row, now in zip(told, oracle(ACTIONS), strict=True):
        ended = now.terminated | now.truncated
        if ended.any():
            assert row.metrics["return"] == pytest.approx(now.rewards[ended].mean())
            assert row.metrics["success_once"] == pytest.approx(now.terminated[ended].float().mean())


# -- Starts. ---------------------------------------------------------------------------------------------------


def scattered(form, fake, **options):
    return backend.DeviceEnvs(adapt(form, fake(E), **options), NAMES)


@pytest.mark.parametrize(("form", "fake"), [(RslRlEnvs, RslRl), (IsaacLabEnvs, IsaacLab)])
def test_ages_of_the_first_episodes_of_training_are_random_if_a_setting_asks_for_it(form, fake):
    def ages_after_reset(**options):
        envs = scattered(form, fake, **options)
        model = build_model(envs.spec, settings_of("model", hidden_sizes=[4]), 0, torch.float32)
        DeviceCollector(envs, model, None, rollout_steps=2, first_env=0, dtype=torch.float32).reset(range(E))
        return envs.envs._env.episode_length_buf

    assert ages_after_reset().tolist() == [0] * E
    ages = ages_after_reset(init_at_random_ep_len=True)
    assert ages.dtype == torch.long
    assert len(set(ages.tolist())) > 1
    assert 0 <= ages.min() <= ages.max() < LIMIT


@pytest.mark.parametrize(("form", "fake"), [(RslRlEnvs, RslRl), (IsaacLabEnvs, IsaacLab)])
def test_episodes_of_an_evaluation_are_whole_though_those_of_training_begin_at_random_ages(form, fake):
    envs = backend.HostEnvs(scattered(form, fake, init_at_random_ep_len=True))
    for _ in range(2):  # two waves of episodes
        envs.reset(range(E))
        ended = [envs.step(np.zeros((E, 1), np.float32)).ended.tolist() for _ in range(LIMIT)]
        assert ended == [[], [], [], list(range(E))]


def test_a_reset_begins_from_its_seeds_also_the_first_one_after_the_simulator_was_made():
    for first, isaacs in ((7, [7]), (50, [7, 50])):  # made from seed 7
        isaac, maniskill = IsaacLab(E), ManiSkill(E)
        for form, fake in ((IsaacLabEnvs, isaac), (ManiSkillEnvs, maniskill)):
            envs = adapt(form, fake)
            envs.reset(SEEDS + first)
            envs.reset(SEEDS + 100)
        assert isaac.seeds == [*isaacs, 100]
        assert maniskill.seeds[1:] == [(SEEDS + first).tolist(), (SEEDS + 100).tolist()]


def test_a_wrapper_of_rsl_rls_form_that_takes_seeds_gets_them():
    fake, seeds = RslRl(E), []
    fake.seed = seeds.append
    envs = adapt(RslRlEnvs, fake)
    for first in (7, 7, 100):  # made from seed 7
        envs.reset(SEEDS + first)
    assert seeds == [7, 100]


def evaluator_of(task, collector=None):
    env = EnvConfig(id=f"tests.device.fake_simulators:{task}", backend="device", simulator="rsl_rl")
    spec = EnvSpec(ArraySpec((2,)), ActionSpec("box", (1,)))
    model = build_model(spec, settings_of("model", hidden_sizes=[4]), 0, torch.float32)
    return Evaluator(Policy(model, None, spec), Config(env=env), collector)


def test_ranks_play_other_episodes_of_a_simulator_and_so_do_other_seeds_of_an_evaluation():
    def plays(episodes, seed):
        evaluator = evaluator_of("RandomCarts")
        (rows,) = evaluator.play([episodes], len(episodes), seed)
        evaluator.close()
        return rows[:, 0].tolist()

    of_ranks = plays(range(0, 8, 2), 0) + plays(range(1, 8, 2), 0)
    assert len(set(of_ranks)) == 8
    assert plays(range(0, 8, 2), 0) == of_ranks[:4]
    assert not set(plays(range(0, 8, 2), 1)) & set(of_ranks)


# -- Evaluations. ----------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """Return the sizes of the batches that evaluations make; a batch that closes is taken out."""
    sizes, make = [], evaluation.make_eval_env

    def noting(env, num_envs, device, seed):
        envs = make(env, num_envs, device, seed)
        sizes.append(num_envs)
        envs.close = lambda: sizes.remove(num_envs)
        return envs

    monkeypatch.setattr(evaluation, "make_eval_env", noting)
    return sizes


def test_a_simulator_is_made_once_for_all_evaluations_of_a_run(made):
    evaluator = evaluator_of("RandomCarts")
    for num_episodes in (4, 3, 8):  # of 4 environments
        (rows,) = evaluator.play([range(num_episodes)], min(num_episodes, 4), 0)
        assert rows.shape == (num_episodes, 2)
        assert (rows[:, 1] == LIMIT).all()
        assert made == [4]
    evaluator.close()
    assert made == []


def test_a_simulator_of_an_evaluation_that_fails_is_closed_and_made_again(made):
    def stop():
        raise KeyboardInterrupt

    evaluator = evaluator_of("RandomCarts")
    with pytest.raises(KeyboardInterrupt):
        evaluator.play([range(4)], 4, 0, check_stop=stop)
    assert made == []
    evaluator.play([range(4)], 4, 0)
    assert made == [4]


def test_a_simulator_that_cannot_be_made_beside_that_of_training_is_a_sentence_with_the_remedy():
    envs, evaluator = OnlyOne(2, "cpu", 0), evaluator_of("OnlyOne", collector=SimpleNamespace())
    remedy = (
        r"Only one can run.* If .* eval.final_episodes=0 eval.every_steps=0, and evaluate after the run by"
    )
    with pytest.raises(ConfigError, match=remedy):
        evaluator.play([range(2)], 2, 0)
    envs.close()
    evaluator.play([range(2)], 2, 0)
    evaluator.close()


# -- What is refused. ------------------------------------------------------------------------------------------


def refused(form, made, match, **options):
    with pytest.raises(ConfigError, match=match):
        adapt(form, made, **options)


@pytest.mark.parametrize(
    ("form", "fake"), [(RslRlEnvs, RslRl), (IsaacLabEnvs, IsaacLab), (ManiSkillEnvs, ManiSkill)]
)
def test_a_simulator_of_another_device_or_index_is_refused(form, fake):
    made = fake(E)
    made.device = "cuda:1"
    refused(form, made, "the simulator lives on cuda:1, and this rank computes on cpu: let the function")
    made = fake(E)
    made.device = torch.device("cuda:1")
    with pytest.raises(ConfigError, match="on cuda:1, and this rank computes on cuda:0"):
        form(made, E, torch.device("cuda:0"), NAMES, 7)


def test_observations_on_another_device_than_the_simulator_says_are_refused():
    made = RslRl(E)
    made.get_observations = lambda: {"policy": torch.zeros(E, 2, device="meta")}
    refused(RslRlEnvs, made, "lives on meta, and this rank computes on cpu")


@pytest.mark.parametrize(
    ("form", "fake"), [(RslRlEnvs, RslRl), (IsaacLabEnvs, IsaacLab), (ManiSkillEnvs, ManiSkill)]
)
def test_another_number_of_environments_is_refused(form, fake):
    refused(form, fake(E + 1), "the simulator has 6 environments, and this rank steps 5")


def test_objects_of_another_form_are_refused_with_the_setting_that_fits():
    refused(RslRlEnvs, ManiSkill(E), "ManiSkill lacks num_actions, get_observations of rsl_rl's VecEnv")
    refused(IsaacLabEnvs, RslRl(E), "wrapper of rsl_rl's form.*env.simulator=rsl_rl")
    refused(IsaacLabEnvs, SimpleNamespace(), "no environment of Isaac Lab or mjlab")
    refused(ManiSkillEnvs, ManiSkill(E, auto_reset=False), "ManiSkillVectorEnv\\(env, auto_reset=True\\)")


def made_by(monkeypatch, function, simulator="rsl_rl", **settings):
    """Make what env.id names, which is `function`, as a run would."""
    monkeypatch.setitem(sys.modules, "my_tasks", SimpleNamespace(task=function))
    env = EnvConfig(id="my_tasks:task", backend="device", simulator=simulator, **settings)
    return backend.make_device_envs(env, NAMES, CPU, seed=0)


def carts(num_envs, device, seed, gravity=1.0):
    return RslRl(num_envs, device)


def endless(num_envs, device):
    raise AssertionError("it is not called")


@pytest.mark.parametrize(
    ("function", "settings", "match"),
    [
        (
            carts,
            {"simulator_options": {"clip_action": 1}},
            r"env.simulator_options.clip_action: env.simulator=rsl_rl has no such option \(did you mean "
            r"clip_actions\?\); it has init_at_random_ep_len, clip_actions",
        ),
        (
            carts,
            {"simulator_options": {"clip_actions": 0}},
            "clip_actions=0: must be greater than 0, or null",
        ),
        (
            carts,
            {"simulator_options": {"clip_actions": -1}},
            "clip_actions=-1: must be greater than 0, or null",
        ),
        (carts, {"max_episode_steps": 10}, "env.max_episode_steps=10: .* takes no max_episode_steps: let it"),
        (
            carts,
            {"kwargs": {"gravty": 2}},
            r"env.kwargs.gravty: .* does not take this argument \(did you mean gravity\?\); it takes gravity",
        ),
        (endless, {}, r"env.id=my_tasks:task takes no seed: it is called as make\(num_envs"),
    ],
)
def test_an_option_or_an_argument_that_is_not_taken_is_refused_with_those_that_are(
    function, settings, match, monkeypatch
):
    with pytest.raises(ConfigError, match=match):
        made_by(monkeypatch, function, **settings)
    assert made_by(monkeypatch, carts, kwargs={"gravity": 2.0}).num_envs == E


@pytest.mark.parametrize(
    ("obs", "match"),
    [
        (ArraySpec((4,)), "policy_keys of its spec has camera, and its observations are one array"),
        ({"place": ArraySpec((4,))}, "policy_keys of its spec has camera, and its observations are place"),
    ],
)
def test_a_spec_that_names_observations_that_are_not_there_is_refused(obs, match, monkeypatch):
    def task(num_envs, device, seed):
        cartpole = TensorCartPole(num_envs, device, seed)
        cartpole.spec = EnvSpec(obs, cartpole.spec.action, policy_keys=("camera",))
        return cartpole

    with pytest.raises(ConfigError, match=match):
        made_by(monkeypatch, task, "native")


def test_any_fault_of_a_simulator_that_is_probed_comes_back_as_a_sentence(monkeypatch):
    def fails(env, device, then):
        raise TypeError("an odd state")

    reading, writing = multiprocessing.Pipe(duplex=False)
    given = pickle.dumps((EnvConfig(id="my_tasks:task"), None))
    monkeypatch.setattr(backend, "_probe_anywhere", fails)
    monkeypatch.setattr(sys, "argv", ["device", str(os.dup(writing.fileno()))])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
    monkeypatch.setattr(os, "_exit", lambda code: None)
    backend.main()
    fault, found = reading.recv()
    assert fault.startswith("env.id=my_tasks:task cannot be tried: TypeError: an odd state")
    assert found is None
    reading.close()
    writing.close()


def test_arrays_of_numpy_and_single_environments_are_refused():
    made = RslRl(E)
    made.get_observations = lambda: {"policy": torch.zeros(E, 2).numpy()}
    refused(RslRlEnvs, made, "observations of type ndarray: env.backend=device takes torch tensors")
    made.get_observations = lambda: {"policy": torch.zeros(2)}
    refused(RslRlEnvs, made, "shape \\[2\\]: the first dimension has to be the 5 environments")


def test_choices_of_isaac_lab_have_a_dimension_of_their_own():
    fake = IsaacLab(E)
    fake.single_action_space = gym.spaces.Discrete(2, start=-1)
    seen = []
    fake._carts.move = lambda actions: seen.append(actions.clone())
    envs = adapt(IsaacLabEnvs, fake)
    assert envs.spec.action.kind == "discrete"
    envs.reset(SEEDS)
    envs.step(torch.tensor([0, 1, 0, 1, 0]))
    assert seen[0].tolist() == [[-1], [0], [-1], [0], [-1]]


def test_a_simulator_is_tried_on_the_device_of_the_run_else_on_the_accelerator_and_then_on_the_cpu(
    monkeypatch,
):
    # ManiSkill's CPU simulation steps one environment only, and a JAX for the CPU sees no accelerator.
    tried = []

    def probed(env, device, then):
        tried.append(str(device))
        if env in (str(device), "neither"):
            raise ConfigError(f"not on {device}")
        then("found")

    def tries(env, device=None):
        found = []
        tried.clear()
        with suppress(ConfigError):
            backend._probe_anywhere(env, device, lambda *args: found.append(args))
        assert all(what == "found" and str(where) == tried[-1] for what, where in found)
        return [*tried, *["failed"] * (not found)]

    monkeypatch.setattr(backend, "_probe_here", probed)
    monkeypatch.setattr(backend, "select", lambda device: None)
    assert tries("a task") == ["cpu"]  # a machine without one
    assert tries("a task", "cuda") == ["cpu"]  # a run on other machines
    for module in (backend, devices):
        monkeypatch.setattr(module, "accelerators", lambda: ("cuda", 2))
    assert tries("a task") == ["cuda:0"]
    assert tries("cuda:0") == ["cuda:0", "cpu"]
    assert tries("neither") == ["cuda:0", "cpu", "failed"]
    # The run's own device, if it is known, and no other: ranks would fail there.
    assert tries("a task", "cpu") == ["cpu"]
    assert tries("a task", "1") == ["cuda:1"]
    assert tries("a task", "auto") == ["cuda:0"]
    assert tries("cuda:0", "auto") == ["cuda:0", "failed"]


# -- Probing. --------------------------------------------------------------------------------------------------

SHORT = (
    "env=cartpole_device",
    "env.simulator=rsl_rl",
    "+env.simulator_options.clip_actions=1.0",
    "env.num_envs=4",
    "ppo.rollout_steps=4",
    "ppo.num_minibatches=1",
    "ppo.total_steps=32",
    "compile=off",
    "log.tensorboard=false",
    "log.progress=none",
)


@pytest.mark.slow
def test_ranks_take_what_the_command_found_and_start_no_simulator_to_probe_it(tmp_path):
    noted = tmp_path / "processes"
    done = door(
        *SHORT,
        "env.id=tests.device.fake_simulators:noting",
        f"+env.kwargs.file={noted}",
        "dist.world_size=2",
        "eval.every_steps=16",
        "eval.episodes=2",
        "eval.final_episodes=8",
        run_dir=tmp_path / "run",
    )
    assert done.code == 0, done.stderr
    # The process that probes makes a second batch to try it. Each rank makes one for training and one for evaluations.
    assert list(Counter(noted.read_text().split()).values()) == [2, 2, 2]
    assert summary(tmp_path / "run")["eval"]["final"]["episodes"] == 8
    assert [row["eval/episodes"] for row in lines(tmp_path / "run") if "eval/episodes" in row] == [2, 8]


@pytest.mark.parametrize("has_critic", [False, True])
def test_what_the_command_found_comes_to_ranks_as_it_was(has_critic, tmp_path, monkeypatch):
    env = EnvConfig(id="a:task", backend="device", simulator="rsl_rl", kwargs={"x": 0.1})
    spec = adapt(RslRlEnvs, RslRl(E, has_critic=has_critic), clip_actions=1.0).spec
    found = backend.Probed(spec, "it cannot be saved", "only one")
    monkeypatch.setattr(backend, "_probed", {backend._key(env): found})
    backend.hand_on_probed(env, tmp_path)
    backend._probed.clear()
    backend.take_probed(dataclasses.replace(env, kwargs={}), tmp_path)  # another task
    assert backend._probed == {}
    backend.take_probed(env, tmp_path)
    assert backend.probed(env) == found


def test_a_simulator_of_which_a_process_holds_one_is_refused_before_a_run_that_evaluates(tmp_path):
    done = door(*SHORT, "env.id=tests.device.fake_simulators:OnlyOne", run_dir=tmp_path / "run")
    assert done.code == 2
    assert "cannot be made in the process of the first, as evaluations of the run need" in done.stderr
    assert "set eval.final_episodes=0 eval.every_steps=0, and evaluate after the run by" in done.stderr
    assert not (tmp_path / "run").exists()


# -- Runs. -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_cartpole_in_rsl_rls_form_reaches_475(world_size, tmp_path):
    """Seed 0, 655,360 steps of 1,024 environments, 20 deterministic episodes: 10 seconds."""
    arguments = [
        "env=cartpole_device",
        "env.id=tests.device.fake_simulators:RslRlCartPole",
        "env.simulator=rsl_rl",
        f"dist.world_size={world_size}",
        "eval.final_episodes=20",
        "log.tensorboard=false",
        "log.progress=none",
    ]
    result = door(*arguments, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert "this run can be resumed with new episodes only" in result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 475
    # Few episodes reach the limit at first, and most do at last.
    shares = [row["user/time_outs"] for row in lines(tmp_path / "run") if "user/time_outs" in row]
    assert 0 <= shares[0] < shares[-1] < 0.01
