"""Every `python -m ddppo.<door>` command in the pages is one: the door understands it, and its settings compose.

Nothing is started. Tests of the guide and of policies run what their pages say; these see to all others.
"""

import importlib
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep

from ddppo import options
from ddppo.config import rules, stored
from ddppo.config.compose import register
from ddppo.config.presets import conf_dir
from ddppo.launch.arguments import prepared_arguments
from tests.support import CHECKOUT

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"-m (ddppo(?:\.\w+)+)((?: |\\\n)[^`\n]*)?")
TRAIN = "ddppo.train"
ALGORITHM = "tests.unit.own_reinforce:Reinforce"  # for one of a page's own
PLUGINS = {
    "hydra/launcher=joblib": "hydra_plugins.hydra_joblib_launcher",
    "experiment=tune/": "hydra_plugins.hydra_optuna_sweeper",
}


def commands():
    """Return each command once, as its module and what stands behind it, with the page that has it first.

    Not those of which a page tells only the name.
    """
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for module, rest in COMMAND.findall(text):
            arguments = words(rest)
            if arguments or module == TRAIN or importlib.util.find_spec(module) is None:
                found.setdefault((module, *arguments), (page.relative_to(CHECKOUT), module, arguments))
    return list(found.values())


def words(rest):
    """Return the arguments of a command up to the end of what the shell would give it; <...> stands for a word."""
    plain = re.sub(r"\[[^\]]*\.\.\.\]", "", rest)  # [key=value ...], of a usage
    plain = re.sub(r"<[^>]*>", "placeholder", re.split(r"\s#|;|\||\)\.|\s&", plain)[0])
    return [
        word.replace("...", "placeholder").replace("=/shared/", "=shared/")  # where not everybody may write
        for word in shlex.split(plain)
        if word not in ("...", "distributed=placeholder")
    ]


FOUND = commands()
IDS = [" ".join((module.removeprefix("ddppo."), *arguments)) for _, module, arguments in FOUND]


class Understood(BaseException):
    """A door has read its command line, and would begin."""


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def assert_composes(settings):
    """Compose and check the first of the runs that `settings` are."""
    single = [first_value(setting) for setting in settings]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = stored.from_omegaconf(compose("config", single))
    rules.validate(config)


def first_value(setting):
    override = OverridesParser.create().parse_override(setting)
    if not override.is_sweep_override():
        return setting
    value = override.value()
    first = value.start if isinstance(value, IntervalSweep) else next(override.sweep_string_iterator())
    return f"{override.input_line.partition('=')[0]}={first}"


def settings_of(arguments, *, runs_several):
    """Return the settings that Hydra is given, without the import paths of a page's own modules."""
    mine = [word for word in arguments if not re.match(r"(distributed|model\.name)=\w+:", word)]
    mine = [re.sub(r"^algorithm=\w+:\w+$", f"algorithm={ALGORITHM}", word) for word in mine]
    for word in mine:
        # Files of the reader's.
        if found := re.fullmatch(r"env\.(?:token_file=|tasks=(?=.*\.jsonl))([\w.]+)", word):
            Path(found[1]).write_text('{"task": "a"}\n')
        if word.startswith("resume=") and word != "resume=auto":
            folder = Path(word.partition("=")[2])
            folder.mkdir(parents=True)
            is_of_own = any(word.startswith("algorithm.") for word in mine)
            (folder / "config.yaml").write_text(f"algorithm: {{name: {ALGORITHM}}}\n" if is_of_own else "")
    prepared = prepared_arguments(["-m", *mine] if runs_several and "-m" not in mine else mine)
    return [word for word in prepared if not word.startswith("-")]


def assert_understood(module, arguments, monkeypatch):
    """Let a door read the arguments, and check what of them are settings of runs."""
    of_runs = []

    def parse_all(*args, **kwargs):
        real(*args, **kwargs)
        raise Understood

    def parted(*args):
        ours, others = options_parted(*args)
        of_runs.extend(others)
        return ours, others

    real, options_parted = options.parse_all, options.parted
    name = f"{module}.__main__" if importlib.util.find_spec(module).submodule_search_locations else module
    door = importlib.import_module(name)
    for where in (options, door):
        if hasattr(where, "parse_all"):
            monkeypatch.setattr(where, "parse_all", parse_all)
    if hasattr(door, "parted"):
        monkeypatch.setattr(door, "parted", parted)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(Understood):
        door.main()
    if of_runs:
        assert_composes(settings_of(of_runs, runs_several=True))


def test_every_test_that_a_page_names_is_there():
    """Pages say of what happens in odd circumstances which test tries it, as `test_limits.py::test_a_full_disk`."""
    files = {path.name: path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py")}
    named = [
        (page.name, *found)
        for page in PAGES
        for found in re.findall(r"(test_\w+\.py)::(\w+)", page.read_text())
    ]
    assert len(named) > 100
    assert [each for each in named if f"def {each[2]}(" not in files.get(each[1], "")] == []


def test_there_are_commands_to_check():
    assert len(FOUND) > 80


@pytest.mark.parametrize(("page", "module", "arguments"), FOUND, ids=IDS)
def test_a_command_of_the_pages_is_understood(page, module, arguments, somewhere, monkeypatch, capsys):
    for start, plugin in PLUGINS.items():
        if any(word.startswith(start) for word in arguments):
            pytest.importorskip(plugin, reason="needs the extra tune")
    assert importlib.util.find_spec(module), f"{page}: there is no {module}"
    is_project_s = any(word.endswith("=my_project") for word in arguments)  # tests/unit/test_new_project.py
    if "--help" in arguments or is_project_s or module.count(".") > 1:
        return
    try:
        if module == TRAIN:
            assert_composes(settings_of(arguments, runs_several=False))
        elif module != "ddppo.collectives":  # it measures, and takes numbers alone
            assert_understood(module, arguments, monkeypatch)
    except SystemExit:
        pytest.fail(f"{page}: {capsys.readouterr().err}")
