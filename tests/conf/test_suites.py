"""Lists of tasks for sweeps: every id is there."""

import pytest
from hydra import compose, initialize_config_dir

from ddppo.config.compose import register
from ddppo.config.presets import conf_dir


def tasks(experiment):
    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", [f"experiment={experiment}"], return_hydra_config=True)
    return cfg, str(cfg.hydra.sweeper.params["env.id"]).replace(" ", "").split(",")


def test_atari57_is_57_games_that_ale_py_has_with_the_preset_s_convolutions():
    pytest.importorskip("ale_py", reason="needs the extra atari: pip install '.[atari]'")
    import gymnasium

    cfg, ids = tasks("atari57")
    assert len(ids) == len(set(ids)) == 57
    assert not [name for name in ids if name not in gymnasium.registry]
    assert (cfg.model.name, cfg.ppo.reward_clip, cfg.env.kwargs.episodic_life) == ("cnn", 1.0, True)


def test_mujoco_is_all_robots_that_gymnasium_has():
    import gymnasium

    cfg, ids = tasks("mujoco")
    has = {
        name
        for name, spec in gymnasium.registry.items()
        if name.endswith("-v5") and ".mujoco." in str(spec.entry_point)
    }
    assert set(ids) == has
    assert cfg.ppo.normalize_obs
