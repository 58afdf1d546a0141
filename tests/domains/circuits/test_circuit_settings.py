"""Settings of env=circuit and model=gnn where the core reads them: the command line, and a policy as a file."""

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.errors import ConfigError
from ddppo.launch.arguments import prepared_arguments
from ddppo.policies.export.command import ExportConfig, export
from tests.unit.policy_tasks import run_folder


def test_a_keyword_that_the_task_s_preset_names_is_a_setting_of_env():
    for given, prepared in {
        ("env=circuit", "env.circuit=my.qasm"): "++env.kwargs.circuit=my.qasm",
        ("env=circuit", "env.episode.slack=3"): "++env.kwargs.episode.slack=3",
        ("env=circuit", "env.buffer={draw: greedy}"): "++env.kwargs.buffer={draw: greedy}",
        ("env=circuit", "+env.cost=depth"): "++env.kwargs.cost=depth",
        ("env=cartpole,circuit", "env.circuit=tof_3,tof_5"): "++env.kwargs.circuit=tof_3,tof_5",
        ("env=circuit", "env.circuit=[tof_3,gf2^4_mult]"): "++env.kwargs.circuit=[tof_3,'gf2^4_mult']",
        ("env=circuit", "env.circuit=tof_3,gf2^4_mult"): "++env.kwargs.circuit=tof_3,'gf2^4_mult'",
        ("env=circuit", 'env.circuit="gf2^4_mult"'): '++env.kwargs.circuit="gf2^4_mult"',
        ("env=circuit", "env.num_envs=4"): "env.num_envs=4",
        ("env=circuit", "env.kwargs.circuit=tof_5"): "++env.kwargs.circuit=tof_5",
    }.items():
        assert prepared_arguments(["-m", *given])[-1] == prepared


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "env=circuit env.circit=tof_3",
            ["env.circit (did you mean env.circuit", "env=circuit also circuit, cost"],
        ),
        (
            "env=circuit env.episode.slak=3",
            ["did you mean env.episode.slack", "episode.slack, episode.min_steps"],
        ),
        ("env=circuit env.num_env=3", ["did you mean env.num_envs", "env has id, num_envs, backend"]),
        ("env.circuit=tof_3", ["no setting env.circuit: env has id,", "env.kwargs.<keyword>"]),
    ],
)
def test_what_is_neither_a_setting_of_env_nor_a_keyword_of_the_task_is_told_with_both_lists(given, said):
    with pytest.raises(ConfigError) as raised:
        prepared_arguments(given.split())
    assert all(part in str(raised.value) for part in said), raised.value


def test_of_a_resumed_run_every_keyword_is_known_and_cannot_change(tmp_path):
    (tmp_path / "config.yaml").touch()
    given = [f"resume={tmp_path}", "env.circuit=tof_3"]
    assert prepared_arguments(given)[1] == "++env.kwargs.circuit=tof_3"


@pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))
def test_a_graph_network_is_refused_with_what_plays_it(tmp_path):
    small = {"graph_width": 8, "graph_layers": 1, "normalized": False}
    run = run_folder(tmp_path, "ddppo/Circuit-v0", name="gnn", kwargs={"circuit": "tof_3"}, **small)
    with pytest.raises(ConfigError, match=r"model\.name=gnn finds what .* in C\+\+.*use ddppo\.load_policy"):
        export(ExportConfig(str(run), format="torch"))
