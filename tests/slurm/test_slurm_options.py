"""hydra/launcher=slurm on the command line: completed, and refused where it has no effect or is mistyped."""

import pytest

from tests.unit.test_command_line import completions
from tests.unit.test_train_door import assert_one_paragraph, call, no_ranks  # noqa: F401 (fixtures)


def test_completion_offers_the_launchers_and_no_schema(monkeypatch, capsys):
    launchers = completions("hydra/launcher=", monkeypatch, capsys)
    assert {"hydra/launcher=basic", "hydra/launcher=slurm", "hydra/launcher=slurm_local"} <= set(launchers)
    assert "schema" not in " ".join(launchers)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("hydra/launcher=slurm", ["hydra/launcher=slurm", "no effect on one run", "add -m"]),
        ("hydra/launcher=slurm_local", ["hydra/launcher=slurm_local", "no effect on one run"]),
        ("-m hydra/launcher=slrum", ["hydra/launcher=slrum", "basic", "did you mean slurm"]),
        ("-m hydra/launcher=slurm_schema", ["hydra/launcher=slurm_schema", "slurm, slurm_local"]),
    ],
)
def test_a_mistake_costs_one_paragraph_and_leaves_nothing(call, no_ranks, tmp_path, arguments, said):  # noqa: F811
    code, stderr = call(*arguments.split())
    assert code == 2
    assert_one_paragraph(stderr)
    for words in said:
        assert words in stderr
    assert not list(tmp_path.iterdir())
