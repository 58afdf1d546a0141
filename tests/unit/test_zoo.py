"""The zoo: settings that a word chooses, and policies that come with ddppo and score what their files say."""

import importlib.util
import re

import pytest

import ddppo
from ddppo.config.presets import presets
from ddppo.enjoy import EnjoyConfig, enjoy
from ddppo.errors import ConfigError
from ddppo.evaluate import EvaluateConfig, evaluate
from ddppo.policies import zoo
from ddppo.policies.loading import trained
from ddppo.policies.scores import evaluated
from tests.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "workloads.md").read_text().partition("## The zoo")[2].partition("\n## ")[0]
NEEDS = {"inverted": ("mujoco", "mujoco"), "reacher": ("mujoco", "mujoco"), "lunarlander": ("Box2D", "box2d")}
EPISODES = 3


def rows():
    """Return the page's table of kept policies: name, then its other cells."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "|" in line
    ]
    return {row[0].strip("`"): row[1:] for row in cells if row[0].startswith("`")}


@pytest.mark.parametrize("name", zoo.names())
def test_a_kept_policy_scores_what_the_page_says(name):
    for prefix, (package, extra) in NEEDS.items():
        if name.startswith(prefix) and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the extra {extra}: pip install '.[{extra}]'")
    score = zoo.score(name)
    # The page has the mean of the 100 episodes of training's last evaluation.
    (shown,) = re.findall(r"^-?[\d,.]+", rows()[name][-1])
    assert float(shown.replace(",", "")) == pytest.approx(score["return_mean"], abs=0.06)
    # The first of these episodes, played again, lie where the hundred lay.
    found = trained(zoo.KEPT / name)
    result = evaluated(found, EPISODES, [score["seed"]], True)
    slack = 1e-3 * max(1.0, abs(score["return_mean"]))
    assert score["return_min"] - slack <= result["return_min"]
    assert result["return_max"] <= score["return_max"] + slack


def test_the_kept_policies_are_small_and_hold_nothing_but_what_plays():
    sizes = {name: sum(p.stat().st_size for p in (zoo.KEPT / name).rglob("*")) for name in zoo.names()}
    assert max(sizes.values()) < 100_000
    assert sum(sizes.values()) < 1_000_000
    for name in zoo.names():
        state = trained(zoo.KEPT / name).state
        assert not {"optimizer", "environments", "streams"} & set(state)


def test_every_preset_of_the_zoo_is_a_row_of_the_page_and_every_policy_has_its_preset():
    names = {name.removeprefix("zoo/") for name in presets("experiment") if name.startswith("zoo/")}
    assert set(rows()) == names
    assert set(zoo.names()) <= names


def test_zoo_plays_by_name_and_from_python(capsys, tmp_path):
    enjoyed = tmp_path / "cartpole.gif"
    pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    enjoy(EnjoyConfig(zoo="mountaincar_continuous", out=str(enjoyed)))
    assert re.search(r"episode 0: return 93\.\d+", capsys.readouterr().out)
    assert enjoyed.stat().st_size > 1000
    assert "mean    500.00" in evaluate(EvaluateConfig(zoo="cartpole", episodes=2))
    assert ddppo.load_policy(zoo.run_folder("", "cartpole"))([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zoo": "cartpol"}, r"zoo=cartpol: there is no such policy \(did you mean cartpole\?\); there are "),
        ({"zoo": "halfcheetah"}, "no trained policy: train one, .*experiment=zoo/halfcheetah"),
        ({"zoo": "cartpole", "run": "outputs/mine"}, "zoo=cartpole and run=outputs/mine: give one of them"),
        ({}, r"run= is missing \(the run folder\): give one, or zoo= with one of acrobot, "),
    ],
)
def test_a_mistake_says_what_to_type(options, said):
    for door, kind in ((enjoy, EnjoyConfig), (evaluate, EvaluateConfig)):
        with pytest.raises(ConfigError, match=said):
            door(kind(**options))


def test_a_video_of_a_kept_policy_is_enjoy_s():
    with pytest.raises(ConfigError, match=r"zoo=cartpole video=true: .* zoo=cartpole out=policy\.mp4"):
        evaluate(EvaluateConfig(zoo="cartpole", video=True))
