"""The result of ddppo.train: its metrics, plot, policy and film; and docs/first_run.ipynb, which shows them."""

import json
import math
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import ddppo
from ddppo.errors import ConfigError, TrainingError
from ddppo.result import Summary
from tests.support import CHECKOUT

NOTEBOOK = json.loads((CHECKOUT / "docs/first_run.ipynb").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run that the notebook trains, by its cells."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = {}
        for cell in NOTEBOOK["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        names["run"].run_dir = names["run"].run_dir.resolve()
    return names["run"]


def test_the_notebook_trains_and_its_cells_were_run_in_order():
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert len(json.dumps(NOTEBOOK)) < 60_000


def test_metrics_are_columns_with_a_row_for_each_iteration(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    del vars(run)["metrics"]
    found = run.metrics
    assert found["env_steps"] == sorted(found["env_steps"])
    assert found["env_steps"][-1] == run["env_steps"]
    assert {len(column) for column in found.values()} == {len(found["iteration"])}
    assert math.isnan(found["eval/return_mean"][0])
    assert found["eval/return_mean"][-1] == run["eval"]["final"]["return_mean"]
    # With pandas they are a data frame of the same columns.
    monkeypatch.setitem(
        sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda columns: ("frame", columns))
    )
    del vars(run)["metrics"]
    kind, again = run.metrics
    assert (kind, list(again)) == ("frame", list(found))
    del vars(run)["metrics"]


def test_a_plot_is_svg_and_a_file_and_names_a_metric_that_is_not_there(run, tmp_path):
    picture = run.plot("train/entropy", x="hours", window=3, file=tmp_path / "entropy.png")
    assert "train/entropy" in picture._repr_svg_()
    assert "seconds of training" in picture.svg  # so short a run is in no hours
    assert (tmp_path / "entropy.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"none of the 1 runs has it .did you mean train/entropy"):
        run.plot("train/entropi")
    with pytest.raises(ConfigError, match=r"file=entropy.jpg: a file that ends in .png, .svg or .html"):
        run.plot(file="entropy.jpg")


def test_a_run_is_its_folder_where_a_path_is_asked_for(run):
    assert Path(run) == run.run_dir
    policy = ddppo.load_policy(run)
    obs = np.zeros(4, np.float32)
    assert policy(obs) == run.policy(obs)
    assert run.policy is run.policy
    again = pickle.loads(pickle.dumps(run))  # without the policy, which was loaded
    assert (again, vars(again)) == (run, {"run_dir": run.run_dir})
    assert ddppo.evaluate(run, episodes=1)["episodes"] == 1
    with pytest.raises(TrainingError, match=r"has no summary\.json that can be read"):
        Summary.read(run.run_dir / "checkpoints")


def test_a_film_is_a_file_that_a_notebook_shows(run, tmp_path):
    pytest.importorskip("imageio", reason="needs the extra video")
    pytest.importorskip("pygame", reason="needs the extra video")
    film = run.enjoy(tmp_path / "film.gif", episodes=1)
    assert Path(film).read_bytes().startswith(b"GIF8")
    assert film._repr_html_().startswith('<img src="data:image/gif;base64,')
    with pytest.raises(ConfigError, match=r"there is no setting episode .did you mean episodes"):
        run.enjoy(episode=1)
