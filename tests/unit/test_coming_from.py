"""What the page for those who come from other libraries says is there: every setting, every command, the Python."""

import re

import pytest

from ddppo.config.settings import Config
from ddppo.config.stored import from_omegaconf
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, keys_of, known
from experiments.coming_from.count import programs
from tests.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "coming_from.md").read_text()
HERE = [row.split(" | ")[-1] for row in PAGE.splitlines() if row.startswith("| ") and " | " in row]
SETTING = re.compile(
    r"(?<![\w.:/<-])((?:ppo|env|dist|model|eval|checkpoint|log|run|algorithm)\.[a-z_]+)(?![\w.:(])"
)
FREE = {"run.stop", "run.metrics"}  # of a callback's argument


def settings():
    """Return every setting of every variant."""
    config = Config()
    found = {
        f"{section}.{name}"
        for section in ("env", "eval", "checkpoint", "log", "run")
        for name in type(getattr(config, section)).__dataclass_fields__
    }
    for section, variants in SECTIONS_WITH_VARIANTS.items():
        kinds = [variants.base, *known(section).values()]
        found |= {f"{section}.{name}" for kind in kinds for name in keys_of(kind)}
    return found


def test_every_setting_of_the_tables_exists():
    named = {name for cell in HERE for name in SETTING.findall(cell)} - FREE
    assert len(named) > 50
    assert named - settings() == set()


def test_every_task_of_the_first_week_has_its_row():
    assert [int(n) for n in re.findall(r"^\| (\d+)\. ", PAGE, re.MULTILINE)] == list(range(1, 21))


def test_the_lines_of_each_task_are_those_that_are_there():
    tasks = dict(re.findall(r"^\| (\d+)\. (.*)$", PAGE, re.MULTILINE))
    table = PAGE[PAGE.index("## The lines that they need") :]
    rows = re.findall(r"^\| (\d+) \| (\d+)[^|]* \| (\d+|none)[^|]* \| [^|]+ \|$", table, re.MULTILINE)
    assert [number for number, *_ in rows] == list(tasks)
    counted = programs()
    for number, ours, theirs in rows:
        assert (0 if theirs == "none" else int(theirs)) == len(counted[int(number)]), number
        # A command is a line; tasks 3, 15 and 20 have lines of Python too.
        if number not in ("3", "15", "20"):
            assert int(ours) == tasks[number].count("python -m ddppo"), number
    said = (CHECKOUT / "experiments/coming_from/README.md").read_text()
    assert ", ".join(str(len(lines)) for lines in counted.values()) in said
    assert (
        f"{sum(map(len, counted.values()))} lines in Stable-Baselines3, {sum(int(ours) for _, ours, _ in rows)} "
        in said
    )


@pytest.mark.parametrize("library", ["Stable-Baselines3", "CleanRL", "Sample Factory", "rsl_rl", "RLlib"])
def test_every_argument_of_ppo_has_a_row_for_every_library(library):
    chapter = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (own,) = [text for text in chapter if text.startswith(library)]
    for setting in (
        "ppo.rollout_steps", "ppo.num_epochs", "ppo.num_minibatches", "ppo.clip_coef", "ppo.clip_value_coef",
        "ppo.entropy_coef", "ppo.value_coef", "ppo.learning_rate",
    ):  # fmt: skip
        assert setting in own, setting


def test_the_settings_of_the_cells_compose():
    """Cells that are settings alone, as `ppo.normalize_obs=true ppo.normalize_rewards=true`, are taken as they are."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from ddppo.config.compose import register
    from ddppo.config.presets import conf_dir
    from ddppo.launch.arguments import prepared_arguments

    words = {code for cell in HERE for code in re.findall(r"`([^`<]+)`", cell)}
    given = [
        each
        for each in sorted(words)
        if re.fullmatch(r"((ppo|model|eval|log|run|checkpoint)\.[a-z_]+=\S+ ?)+", each)
    ]
    given = [each for each in given if "my_pkg" not in each and "=..." not in each]
    assert len(given) > 10
    register()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            for each in given:
                more = ["model=lstm"] if "model.memory" in each else []
                prepared = prepared_arguments(["env=pendulum", *more, *each.split()])
                from_omegaconf(compose("config", [w for w in prepared if not w.startswith("-")]))
    finally:
        GlobalHydra.instance().clear()


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    quiet = '"log.progress=none", "eval.final_episodes=1", "log.tensorboard=false", "device=cpu"]'
    names: dict = {}
    exec(code.replace('"ppo.total_steps=2048"]', f'"ppo.total_steps=2048", {quiet}'), names)
    assert names["summary"]["status"] == "completed"
    assert names["scores"]["episodes"] == 5
    assert len(names["best"]) == names["summary"]["iterations"]
    assert callable(names["policy"])
