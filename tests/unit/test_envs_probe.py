import builtins
import subprocess
import sys

import gymnasium as gym
import pytest
from test_envs_tasks import task

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec


@pytest.mark.parametrize("backend", ["auto", "sync", "gym_vector"])
def test_probe_reads_the_shapes_of_cartpole(backend):
    assert probe(EnvConfig(id="CartPole-v1", backend=backend)) == EnvSpec(
        ArraySpec((4,)), ActionSpec("discrete", (2,))
    )


WRONG = {
    "a misspelt name": (EnvConfig(id="CartPoel-v1"), ["env.id=CartPoel-v1", "CartPole-v1"]),
    "a version that does not exist": (EnvConfig(id="CartPole-v7"), ["CartPole-v0, CartPole-v1"]),
    "an id without version": (EnvConfig(id="CartPole"), ["CartPole-v1"]),
    "a malformed id": (EnvConfig(id="Cart Pole!"), ["[module:][namespace/]Name-v0"]),
    "a module that is not there": (EnvConfig(id="no_such.envs:X-v0"), ["module no_such.envs", "install it"]),
    "a name that its module does not register": (task("Countin"), ["test/Counting-v0"]),
    "an unknown keyword": (EnvConfig(id="Pendulum-v1", kwargs={"gg": 9.8}), ["env.kwargs.gg", "accepts g"]),
    "a keyword of ours": (
        EnvConfig(id="CartPole-v1", kwargs={"max_episode_steps": 3}),
        ["env.kwargs.max_episode_steps=3", "set env.max_episode_steps"],
    ),
    "a dependency that is missing": (task("Needy"), ["not installed", "pip install needy"]),
    "a task that raises": (task("Refusing"), ["ValueError: no licence"]),
    "a bad value": (EnvConfig(id="ddppo/Synthetic-v0", kwargs={"obs_size": 0}), ["obs_size=0"]),
    "a text action": (task("Echo", kwargs={"kind": "text"}), ["action space Text", "use Discrete"]),
    "a grid of choices": (task("Echo", kwargs={"kind": "grid"}), ["action space MultiDiscrete"]),
    "a graph to observe": (task("Observe", kwargs={"kind": "graph"}), ["observation space Graph", "use Box"]),
    "a text inside a dict": (task("Observe", kwargs={"kind": "inner text"}), ["observation space Text"]),
    "an empty tuple inside a dict": (task("Observe", kwargs={"kind": "inner empty"}), ["space Tuple()"]),
    "nothing to observe": (task("Observe", kwargs={"kind": "empty"}), ["observation space Dict()"]),
    "a mask of another length": (task("Mask", kwargs={"mask_size": 4}), ["has 4 entries", "need 3"]),
    "a mask of continuous actions": (task("Mask", kwargs={"action": "box"}), ["action_mask", "box"]),
    "native where there is none": (
        EnvConfig(id="Pendulum-v1", backend="gym_vector"),
        ["env.backend=gym_vector", "use env.backend=sync"],
    ),
    "native that observes no Box": (
        task("NativeDiscrete", backend="gym_vector"),
        ["only Box", "env.backend=sync"],
    ),
    "native without an autoreset mode": (
        task("Native", backend="gym_vector", kwargs={"mode": "none"}),
        ["autoreset_mode", "env.backend=sync"],
    ),
    "native that cannot reset one environment": (
        task("Native", backend="gym_vector", kwargs={"mode": "DISABLED", "obeys_reset_mask": False}),
        ["reset_mask", "env.backend=sync"],
    ),
    "native without a time limit": (
        task("Native", backend="gym_vector", max_episode_steps=5, kwargs={"mode": "SAME_STEP"}),
        ["env.max_episode_steps=5", "env.backend=sync"],
    ),
    "sync where only native exists": (
        task("Native", backend="sync"),
        ["is only a batched implementation", "entry_point"],
    ),
}


@pytest.mark.filterwarnings("ignore:.*is not an instance of AutoresetMode")
@pytest.mark.parametrize("mistake", WRONG)
def test_a_task_that_cannot_be_made_is_explained_with_its_remedy(mistake):
    env, needles = WRONG[mistake]
    with pytest.raises(ConfigError) as caught:
        probe(env)
    message = str(caught.value)
    assert "\n" not in message
    for needle in needles:
        assert needle in message, message


def test_lunarlander_without_box2d_names_the_extra(monkeypatch):
    real_import = builtins.__import__

    def without_box2d(name, *args, **kwargs):
        if name.startswith("Box2D"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    for name in list(sys.modules):
        if name.startswith(("Box2D", "gymnasium.envs.box2d")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_box2d)
    with pytest.raises(ConfigError, match=r"pip install 'box2d>="):
        probe(EnvConfig(id="LunarLander-v3"))


def test_make_vec_env_and_make_env_explain_themselves_as_probe_does():
    with pytest.raises(ConfigError, match=r"CartPole-v0, CartPole-v1"):
        make_vec_env(EnvConfig(id="CartPole-v7"), range(2), rank=0, cores=1)
    with pytest.raises(ConfigError, match=r"CartPole-v0, CartPole-v1"):
        make_env(EnvConfig(id="CartPole-v7"))


def test_a_task_that_takes_no_render_mode_is_told_so_where_pictures_are_asked_for(monkeypatch):
    class Blind(gym.Env):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        observation_space = action_space = gym.spaces.Discrete(2)

        def __init__(self):
            pass

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return 0, 0.0, False, False, {}

    monkeypatch.setitem(gym.registry, "Blind-v0", gym.envs.registration.EnvSpec("Blind-v0", Blind))
    with pytest.raises(
        ConfigError, match=r"^env.id=Blind-v0 takes no render_mode, .*: let its __init__ take"
    ):
        make_env(EnvConfig(id="Blind-v0"), render_mode="rgb_array")


def test_importing_the_environments_imports_no_torch():
    code = "import sys, ddppo.envs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_synthetic_task_rewards_the_sign_of_its_first_observation_and_truncates_on_time():
    env = gym.make("ddppo/Synthetic-v0", episode_steps=50, obs_size=3)
    obs, _ = env.reset(seed=3)
    for step in range(1, 51):
        action = int(obs[0] > 0) if step % 2 else int(obs[0] <= 0)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (float(step % 2), False, step == 50)


@pytest.mark.parametrize("busy", [True, False])
def test_the_synthetic_task_takes_the_time_it_is_told(busy):
    import time

    env = gym.make("ddppo/Synthetic-v0", step_time_s=0.01, reset_time_s=0.02, busy=busy)
    start = time.perf_counter()
    env.reset(seed=0)
    middle = time.perf_counter()
    env.step(0)
    assert middle - start >= 0.02
    assert time.perf_counter() - middle >= 0.01


def test_a_scalar_environment_renders_what_the_batch_would_see():
    pytest.importorskip("pygame", reason="needs the extra video: pip install '.[video]'")
    env = make_env(EnvConfig(id="CartPole-v1"), render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (400, 600, 3)
    env.close()
