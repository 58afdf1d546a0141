"""What packages add to ddppo is found by their entry points; what is wrong with one is a sentence."""

import functools
import os
import subprocess
import sys

import pytest

from ddppo import plugins
from ddppo.config import presets, variants
from ddppo.config.model_settings import ModelSettings
from ddppo.config.settings import Config, EnvConfig
from ddppo.errors import ConfigError
from ddppo.launch import checks
from ddppo.plugins import Plugin
from tests.support import CHECKOUT, PATIENCE_S


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install packages, as their names and the code of their __init__.py: `installed(mine="PLUGIN = ...")`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "plugins", functools.cache(plugins.plugins.__wrapped__))

    def install(**packages):
        for name, code in packages.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(code)
            (tmp_path / f"{name}-1.dist-info").mkdir()
            (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
            (tmp_path / f"{name}-1.dist-info" / "entry_points.txt").write_text(
                f"[ddppo.plugins]\n{name} = {name}:PLUGIN\n"
            )
        return tmp_path

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("own_")]:
        del sys.modules[name]


def code(**fields):
    more = "".join(f", {name}={value!r}" for name, value in fields.items())
    return f"from ddppo.plugins import Plugin\nPLUGIN = Plugin(package=__name__{more})\n"


def test_our_domains_are_plugins_of_the_shape_of_anybody_s():
    folders = (CHECKOUT / "ddppo" / "domains").glob("*/__init__.py")
    names = {plugin.package for plugin in plugins.plugins()}
    assert {f"ddppo.domains.{path.parent.name}" for path in folders} <= names
    for plugin in plugins.plugins():
        assert isinstance(plugin, Plugin)


def test_what_a_package_adds_is_found_by_its_entry_point(installed):
    installed(own_a=code(models={"own_net": "own_a.models:Net"}), own_b=code())
    assert [plugin.package for plugin in plugins.plugins()][-2:] == ["own_a", "own_b"]
    assert plugins.added("models")["own_net"] == "own_a.models:Net"


def test_a_plugin_that_cannot_be_imported_is_named_with_its_package_and_the_reason(installed):
    installed(own_broken="import nowhere_to_be_found")
    said = (
        r"the plugin own_broken of own_broken, own_broken:PLUGIN, cannot be imported: .*nowhere_to_be_found.*: "
        "mend it, or uninstall"
    )
    with pytest.raises(ConfigError, match=said):
        plugins.plugins()


def test_what_is_no_plugin_is_said_to_be_none(installed):
    installed(own_dict="PLUGIN = {}")
    with pytest.raises(
        ConfigError, match=r"own_dict:PLUGIN, is of type dict: must be a ddppo\.plugins\.Plugin"
    ):
        plugins.plugins()


@pytest.mark.parametrize(
    ("what", "name"), [("models", "gnn"), ("models", "own_net"), ("tasks", "ddppo/CAGE2-v0")]
)
def test_two_plugins_that_bring_one_name_are_both_named(what, name, installed):
    installed(own_a=code(**{what: {name: "x:y"}}), own_b=code(**{what: {name: "x:y"}}))
    with pytest.raises(
        ConfigError, match=rf"the plugins .* both bring {name} among their {what}: rename one"
    ):
        plugins.added(what)


def test_two_presets_of_one_name_are_both_named(installed, monkeypatch):
    folder = installed(own_a=code())
    (folder / "own_a" / "conf" / "env").mkdir(parents=True)
    (folder / "own_a" / "conf" / "env" / "cartpole.yaml").touch()
    monkeypatch.setattr("ddppo.config.presets.plugins", plugins.plugins)
    with pytest.raises(
        ConfigError, match=r"env/cartpole\.yaml and .*own_a/conf/env/cartpole\.yaml are both env="
    ):
        presets.presets("env")


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("import nowhere_to_be_found", "cannot be imported"),
        ("PLUGIN = {}", "is of type dict"),
        (code(models={"own_net": "x:y"}), "both bring own_net"),  # found once a model is asked for
    ],
)
def test_a_command_says_in_one_line_which_plugin_is_wrong(package, said, installed):
    folder = installed(own_wrong=package, own_other=code(models={"own_net": "x:y"}))
    environ = os.environ | {"PYTHONPATH": f"{folder}:{CHECKOUT}"}
    command = [sys.executable, "-m", "ddppo.train", "env=cartpole", "model.name=none", "log.progress=none"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the plugin"), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_cpp_of_a_task_s_or_model_s_package_is_compiled_before_ranks_start_or_a_warning_says_why_not(
    installed, monkeypatch, tmp_path
):
    folder = installed(own_cpp=code(tasks={"own_cpp/Mine-v0": {}}, models={"own_net": "own_cpp.models:Net"}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "plugins", plugins.plugins)
    (folder / "own_cpp" / "src").mkdir()
    source = folder / "own_cpp" / "src" / "mine.cpp"
    source.write_text("this is no C++")
    mine, other = EnvConfig(id="own_cpp/Mine-v0"), EnvConfig(id="CartPole-v1")
    assert checks._compile_plugins(Config(env=other)) is None
    said = checks._compile_plugins(Config(env=mine))
    assert said is not None
    assert said.startswith("the C++ of own_cpp is not compiled: ")
    assert said.endswith("; Python computes in its place, slower")
    for name in ("own_net", "own_cpp.models:Net"):
        assert checks._compile_plugins(Config(env=other, model=ModelSettings(name=name))) == said
    assert checks._compile_plugins(Config(env=EnvConfig(id="own_cpp_other:Mine-v0"))) is None


OWN_ALGORITHM = """
from dataclasses import dataclass
from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.fields import setting

@dataclass
class Settings(AlgorithmSettings):
    tilt: float = setting(0.5, "how far it leans", low=0)

class Leaning:
    settings_class = Settings
"""


@pytest.mark.parametrize("named", [{}, {"settings": {"algorithm/own_leaning": "own_a.algos:Settings"}}])
def test_a_package_may_bring_an_algorithm_with_its_settings(installed, named):
    folder = installed(own_a=code(algorithms={"own_leaning": "own_a.algos:Leaning"}, **named))
    (folder / "own_a" / "algos.py").write_text(OWN_ALGORITHM)
    assert variants.algorithm_at("own_leaning").__name__ == "Leaning"
    made = variants.settings_of("algorithm", name="own_leaning", tilt=0.25)
    assert (made.name, made.tilt, made.total_steps) == ("own_leaning", 0.25, 100_000)
    assert ("own_leaning" in variants.known("algorithm")) == bool(named)
    with pytest.raises(ConfigError, match=r"no setting algorithm.tild \(did you mean algorithm.tilt\?\)"):
        variants.settings_of("algorithm", name="own_leaning", tild=1)
