"""Trackers are told what TensorBoard shows, go on with their run when it is resumed, and end no run."""

import dataclasses
import importlib.machinery
import json
import sys
import types

import pytest

from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.records.metrics import IterationReport
from ddppo.records.recorder import Recorder, ResumePoint
from ddppo.records.trackers import check_installed, open_tracker


def config(*names):
    result = Config()
    result.env.id = "CartPole-v1"
    result.log.trackers = list(names)
    result.log.tensorboard, result.log.progress = False, "none"
    return result


def report(iteration, **metrics):
    ranks = tuple({"time/t_iter": t, "rollout/local_fps": 10.0} for t in (0.5, 1.5))
    return IterationReport(
        iteration, 100 * iteration, 0.5 * iteration, ranks, {"rollout/fps": 20.0, **metrics}
    )


def recorder(config, run_dir, iteration=0):
    resume_point = ResumePoint(iteration, 100 * iteration, 0.5 * iteration)
    return Recorder(config, validate(config), run_dir, {}, resume_point)


def end(recorder, status="completed"):
    recorder.close(status, params_hash="0", compiled_from=None, best={}, target={})


class FakeWandb(types.ModuleType):
    """What of wandb is used."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None, origin="fake")
        self.begun, self.logged, self.ended = [], [], []
        self.summary = {}
        self.broken = False

    def Settings(self, **settings):
        return settings

    def init(self, **arguments):
        self.begun.append(arguments)
        return self

    def define_metric(self, *arguments, **more):
        pass

    def log(self, values):
        if self.broken:
            raise OSError("the service is gone")
        self.logged.append(values)

    def finish(self, exit_code):
        self.ended.append(exit_code)


class FakeMlflow(types.ModuleType):
    """What of mlflow is used."""

    def __init__(self):
        super().__init__("mlflow")
        self.__spec__ = importlib.machinery.ModuleSpec("mlflow", None, origin="fake")
        self.uris, self.runs, self.metrics, self.params, self.status = [], [], [], {}, {}

    def MlflowClient(self, tracking_uri):
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment, run_name):
        self.runs.append((experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"run{len(self.runs)}"))

    def update_run(self, run_id, status):
        self.status[run_id] = status

    def get_metric_history(self, run_id, name):
        of_run = [
            (step, value) for run, metric, value, step in self.metrics if (run, metric) == (run_id, name)
        ]
        return [types.SimpleNamespace(step=step, value=value) for step, value in of_run]

    def set_terminated(self, run_id, status):
        self.status[run_id] = status

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.metrics += [(run_id, *metric) for metric in metrics]
        self.params |= dict(params)


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    return fake


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, at, step: (name, value, step)
    entities.Param = lambda name, value: (name, value)
    monkeypatch.setitem(sys.modules, "mlflow", fake := FakeMlflow())
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return fake


def test_wandb_is_told_every_iteration_offline_in_the_run_folder(wandb, tmp_path):
    run = recorder(config("wandb"), tmp_path)
    run.record(report(1, **{"rollout/return_mean": 7.0}), [], is_last=False)
    run.record(report(2, **{"eval/return_mean": 9.0}), [], is_last=True)
    end(run)
    (begun,) = wandb.begun
    assert (begun["mode"], begun["dir"], begun["resume"]) == ("offline", str(tmp_path), "allow")
    assert begun["config"]["ppo.gamma"] == 0.99
    assert wandb.logged[0]["env_steps"] == 100
    assert wandb.logged[0]["rollout/return_mean"] == 7.0
    assert wandb.logged[0]["time/t_iter"] == 1.0  # mean over ranks
    assert "rollout/local_fps" not in wandb.logged[0]
    assert wandb.summary["final/return_mean"] == 9.0
    assert wandb.summary["status"] == "completed"
    assert wandb.ended == [0]


def test_mlflow_is_told_the_settings_every_iteration_and_the_end(mlflow, tmp_path):
    run = recorder(config("mlflow"), tmp_path)
    run.record(report(1, **{"train/approx_kl": float("nan")}), [], is_last=False)
    end(run, "failed")
    assert mlflow.uris == [(tmp_path / "mlflow").as_uri()]
    assert mlflow.params["ppo.gamma"] == "0.99"
    assert ("run1", "time/t_iter", 1.0, 100) in mlflow.metrics
    assert not [name for _, name, _, _ in mlflow.metrics if "approx_kl" in name]
    assert mlflow.status == {"run1": "FAILED"}


def test_a_resumed_run_is_the_same_run_there_and_one_that_begins_anew_another(wandb, mlflow, tmp_path):
    def played(iteration):
        run = recorder(config("wandb", "mlflow"), tmp_path, iteration)
        run.record(report(iteration + 1), [], is_last=False)
        end(run, "stopped")

    played(0)
    played(1)
    assert wandb.begun[0]["id"] == wandb.begun[1]["id"]
    assert len(mlflow.runs) == 1
    assert mlflow.status == {"run1": "KILLED"}
    played(0)
    assert wandb.begun[2]["id"] != wandb.begun[0]["id"]
    assert len(mlflow.runs) == 2


def test_what_is_done_again_after_a_kill_is_not_told_again(wandb, mlflow, tmp_path):
    for first, last in ((0, 3), (1, 2), (1, 5)):  # killed after 3 and after 2, its checkpoint was of 1
        run = recorder(config("wandb", "mlflow"), tmp_path, first)
        for iteration in range(first + 1, last + 1):
            run.record(report(iteration), [], is_last=False)
        run.trackers["mlflow"]._flush()
        run.metrics.close()
    end(run)
    steps = [100, 200, 300, 400, 500]
    assert [values["env_steps"] for values in wandb.logged] == steps
    assert [step for _, name, _, step in mlflow.metrics if name == "wall_s"] == steps


def test_identities_that_are_damaged_are_made_anew(wandb, tmp_path):
    (tmp_path / "trackers.json").write_text("{")
    tracker = open_tracker("wandb", config("wandb"), tmp_path, resumed=True)
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": tracker.id}


def test_a_tracker_that_fails_is_warned_of_once_and_the_run_goes_on(wandb, mlflow, tmp_path, capsys):
    run = recorder(config("wandb", "mlflow"), tmp_path)
    wandb.broken = True
    for iteration in range(1, 4):
        run.record(report(iteration), [], is_last=False)
    end(run)
    warned = capsys.readouterr().err
    assert (
        warned.count("wandb failed and is switched off, the run goes on: OSError: the service is gone") == 1
    )
    assert "mlflow" not in warned
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"
    assert mlflow.status == {"run1": "FINISHED"}


def test_a_tracker_that_cannot_begin_is_warned_of_once(wandb, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wandb, "init", lambda **arguments: 1 / 0)
    run = recorder(config("wandb"), tmp_path)
    run.record(report(1), [], is_last=True)
    end(run)
    assert capsys.readouterr().err.count("wandb failed and is switched off") == 1


def test_the_modes_of_the_environment_are_respected(wandb, mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    end(recorder(config("wandb", "mlflow"), tmp_path))
    assert wandb.begun[0]["mode"] == "online"
    assert mlflow.uris == ["http://tracking:5000"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["wandbb"], r"log.trackers=\[wandbb\]: wandbb is none of wandb, mlflow \(did you mean wandb\?\)"),
        (["tensorboard"], "TensorBoard is log.tensorboard"),
        (["wandb", "wandb"], r"log.trackers=\[wandb,wandb\] names one twice"),
    ],
)
def test_a_tracker_that_is_none_is_a_mistake(names, said):
    wrong = dataclasses.replace(config(*names))
    with pytest.raises(ConfigError, match=said):
        validate(wrong)


def test_all_that_is_missing_is_named_at_once_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as e:
        check_installed(["wandb", "mlflow"])
    assert "wandb by pip install 'wandb" in str(e.value)
    assert "mlflow by pip install 'mlflow-skinny" in str(e.value)
    check_installed([])


# -- with the packages themselves ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_the_package_itself_takes_what_it_is_told(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip(name, reason=f"the extra {name} is not installed")
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    for iteration, status in ((0, "stopped"), (1, "completed")):
        run = recorder(config(name), tmp_path, iteration)
        run.record(report(iteration + 1, **{"eval/return_mean": 9.0}), [], is_last=iteration == 1)
        end(run, status)
    assert "switched off" not in capsys.readouterr().err
    if name == "wandb":
        assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    else:
        import mlflow

        client = mlflow.MlflowClient((tmp_path / "mlflow").as_uri())
        run_id = json.loads((tmp_path / "trackers.json").read_text())["mlflow"]
        assert client.get_run(run_id).info.status == "FINISHED"
        assert [point.step for point in client.get_metric_history(run_id, "time/t_iter")] == [100, 200]
