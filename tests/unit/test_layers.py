"""Imports of ddppo go one way, as the page on the design says."""

import ast
import re
import subprocess
import sys

import pytest

from tests.support import CHECKOUT

# The order of imports: a subject imports itself and those before it. Subjects in one tuple import one another freely.
ORDER = [
    ("__init__", "errors", "plugins", "files", "native", "terminal", "seeding", "device", "device_random",
     "spaces", "package", "statistics", "scaling", "processes"),
    ("config", "declarations"),
    ("options", "collectives", "search"),
    ("envs", "models"),
    ("ppo",),
    ("algorithms",),
    ("distributed",),
    ("records",),
    ("loop",),
    ("policies", "launch"),
    ("serve", "study", "cluster"),
    ("domains",),
    ("commands",),
]  # fmt: skip
# Topologies and algorithms as data: config checks it, so it imports no torch; the programs beside it do.
DECLARATIONS = [
    *(f"distributed.topologies.{name}" for name in ("contract", "known", "settings", "drawing")),
    *(f"algorithms.{name}" for name in ("known", "settings")),
]
PACKAGES = ("distributed", "distributed.topologies", "algorithms")  # of the declarations: they are empty
PLACE = {subject: place for place, subjects in enumerate(ORDER) for subject in subjects}
# Which domain stands on which: the cloud's tasks are of text. Else none imports another.
OF_DOMAINS = {"cloud": {"text"}}
# What the core does without; a command at the root belongs to what it opens.
OUTSIDE = ("domains", "study", "cluster", "serve")
COMMANDS_OF_OUTSIDE = (
    "advise",
    "bench",
    "device_check",
    "jobs",
    "play",
    "predict",
    "report",
    "rollouts",
    "runs",
)
# Rooms of the study, each of which imports only those before it; `report` computes all, `page` shows it.
ROOMS = ["columns", "read", "measure", "predict", "explain", "report", "page"]
MODULES = {
    ".".join(path.relative_to(CHECKOUT / "ddppo").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((CHECKOUT / "ddppo").rglob("*.py"))
}


def subject(module):
    first = module.split(".")[0]
    if module in (*DECLARATIONS, *PACKAGES):
        return "declarations"
    if "._plugins." in module or module.endswith("__main__"):
        return "commands"
    return first if first in PLACE else "commands"


def imports(module):
    """Return the modules of ddppo that `module` imports, also inside functions, except for type checkers."""
    tree = ast.parse(MODULES[module].read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name == "ddppo" or name.startswith("ddppo."):
                inner = name.removeprefix("ddppo").removeprefix(".")
                while inner and inner not in MODULES:
                    inner = inner.rpartition(".")[0]
                found.add(inner or "__init__")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_subjects_before_its_own(module):
    own = subject(module)
    for imported in imports(module):
        other = subject(imported)
        assert PLACE[other] <= PLACE[own], f"ddppo.{module} ({own}) imports ddppo.{imported} ({other})"


def test_the_core_imports_nothing_that_stands_outside():
    core = [m for m in MODULES if m.split(".")[0] not in (*OUTSIDE, *COMMANDS_OF_OUTSIDE)]
    assert [(m, o) for m in core for o in imports(m) if o.split(".")[0] in OUTSIDE] == []


def domain(module):
    return module.split(".")[1]


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("domains.")])
def test_a_domain_imports_no_other_but_one_that_it_stands_on(module):
    for imported in imports(module):
        if imported.startswith("domains."):
            allowed = {domain(module)} | OF_DOMAINS.get(domain(module), set())
            assert domain(imported) in allowed, f"ddppo.{module} imports ddppo.{imported}"


@pytest.mark.parametrize(
    "module",
    [
        module
        for module in MODULES
        if subject(module) == "study" and module.count(".") and module.split(".")[1] in ROOMS
    ],
)
def test_a_room_of_the_study_imports_only_rooms_before_it(module):
    own = ROOMS.index(module.split(".")[1])
    for imported in imports(module):
        if subject(imported) == "study" and imported.count("."):
            assert ROOMS.index(imported.split(".")[1]) <= own, f"ddppo.{module} imports ddppo.{imported}"


def test_no_module_imports_itself_by_a_detour():
    graph = {module: imports(module) - {"__init__"} for module in MODULES}
    finished, path = set(), []

    def visit(module):
        assert module not in path, f"a cycle: {' -> '.join([*path[path.index(module) :], module])}"
        if module not in finished:
            path.append(module)
            for imported in graph[module]:
                visit(imported)
            finished.add(path.pop())

    for module in MODULES:
        visit(module)


WITH_TORCH = ("launch.checks", "launch.local_ranks")  # imported once arguments are right


def test_the_configuration_and_the_door_import_no_torch():
    for module in (
        "train",
        *(module for module in MODULES if module.startswith("launch") and module not in WITH_TORCH),
        "package",
        "plugins",
        "options",
        *(module for module in MODULES if module.startswith("config")),
        "errors",
        "launch.rank",
        "native.compiling",
        "files",
        "processes.fork_server",
        "processes.forking",
        "processes.signals",
        "terminal",
        "scaling",
    ):
        tree = ast.parse(MODULES[module].read_text())
        top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = {a.name for n in top if isinstance(n, ast.Import) for a in n.names} | {
            n.module for n in top if isinstance(n, ast.ImportFrom)
        }
        assert not {name for name in names if name.split(".")[0] in ("torch", "gymnasium", "numpy")}, module


def test_tasks_import_no_torch():
    for module in (
        module for module in MODULES if module.startswith(("envs.tasks", "domains.cloud", "domains.cage2"))
    ):
        assert "import torch" not in MODULES[module].read_text(), module


def test_circuits_without_their_task_and_network_import_numpy_alone():
    for module in (module for module in MODULES if module.startswith("domains.circuits.quantum")):
        text = MODULES[module].read_text()
        assert not [name for name in ("torch", "gymnasium") if f"import {name}" in text], module


@pytest.mark.parametrize(
    "folder", sorted((CHECKOUT / "ddppo").rglob("src")), ids=lambda folder: folder.parent.name
)
def test_the_cpp_of_a_package_includes_none_of_another(folder):
    for path in folder.iterdir():
        for included in re.findall(r'#include "(.*)"', path.read_text()):
            assert (folder / included).parent == folder, f"{path} includes {included}"
            assert (folder / included).is_file(), f"{path} includes {included}"


CHECK_SIGNALS = """
import importlib, signal, sys

before = {number: signal.getsignal(number) for number in signal.valid_signals()}
for module in sys.argv[1:]:
    importlib.import_module(module)
    for number, handler in before.items():
        assert signal.getsignal(number) == handler, f"importing {module} changes what signal {number} does"
"""


def test_importing_a_module_changes_no_signal_handler():
    """A rank imports what its environments' processes run: a handler that they set would make Ctrl-C do nothing."""
    core = [
        f"ddppo.{module}"
        for module in MODULES
        if module.split(".")[0]
        in ("envs", "launch", "loop", "ppo", "distributed", "records", "processes", "collectives")
        and "__main__" not in module
    ]
    result = subprocess.run(
        [sys.executable, "-c", CHECK_SIGNALS, *core], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


# Modules that read the section ppo: those of PPO and GRPO, and rules about the two.
READS_PPO = (
    *("config.algorithm_settings", "config.rank_rules", "config.rules", "config.settings", "config.stored"),
    *("algorithms.known", "algorithms.task_sampler", "launch.checks", "loop.compute", "loop.rank"),
)


def test_code_for_every_algorithm_reads_the_settings_of_the_algorithm_that_trains():
    readers = [module for module, path in MODULES.items() if re.search(r"config\.ppo\b", path.read_text())]
    assert [module for module in readers if module not in READS_PPO and subject(module) != "ppo"] == []
