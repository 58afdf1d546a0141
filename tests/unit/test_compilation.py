"""Which code a run computes with: C++, torch.compile or eager torch, recorded, and the same when it is resumed."""

import shutil

import pytest
import torch

from ddppo import native
from ddppo.collectives.group import Group
from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.distributed import join as launch
from ddppo.errors import TrainingError
from ddppo.loop import compute as backend
from ddppo.loop.rank import Rank
from ddppo.models.actor_critic import MLP
from ddppo.native.compiling import CPP, NotCompiled
from ddppo.ppo import compiled as compiled_step
from ddppo.records import checkpoint
from tests.support import summary


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Own(MLP):
    """A model of a user's own with an operation that C++ does not have, so torch's compiler has to compile it."""

    def _inputs(self, obs, spec):
        return super()._inputs(obs, spec).clamp(-1e6, 1e6)


def settings(**changed):
    config = Config()
    config.model.name = f"{__name__}:Own"
    config.env.id, config.env.num_envs, config.env.backend = "CartPole-v1", 4, "sync"
    config.ppo.total_steps, config.ppo.rollout_steps = 4 * 8 * 5, 8
    config.log.progress, config.log.tensorboard, config.eval.final_episodes = "none", False, 0
    for name, value in changed.items():
        setattr(config, name, value)
    return config


def train(config, run_dir, monkeypatch, *, state=None):
    """Train in this process, where what torch would compile is taken as it stands."""
    run_dir.mkdir(exist_ok=True)
    (run_dir / "config.yaml").write_text(stored.to_yaml(config))
    worker = Rank(config, run_dir, Group(), torch.device("cpu"))
    if state is not None:
        worker.restore(state)
    monkeypatch.setattr(compiled_step, "compiled", lambda function, *_: function)
    worker.run()
    return summary(run_dir), checkpoint.load(checkpoint.last(run_dir / "checkpoints"))


def test_a_long_run_has_torch_compile_the_step_and_a_resumed_one_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "_PAYS_FROM_STEPS", 5 * 16)
    found, state = train(settings(), tmp_path / "run", monkeypatch)
    assert (found["compiled_from"], found["derived"]["step"]) == (1, "compiled")
    assert state["compiled_from"] == 1
    monkeypatch.setattr(backend, "_PAYS_FROM_STEPS", 1_000)
    longer = settings()
    longer.ppo.total_steps *= 2
    found, state = train(longer, tmp_path / "run", monkeypatch, state=state)
    assert (found["compiled_from"], found["derived"]["step"]) == (1, "compiled")


def test_a_run_that_changes_to_compile_torch_says_from_which_iteration_on(tmp_path, monkeypatch):
    _, state = train(settings(), tmp_path / "run", monkeypatch)
    longer = settings(compile="torch")
    longer.ppo.total_steps *= 2
    found, _ = train(longer, tmp_path / "run", monkeypatch, state=state)
    assert (found["compiled_from"], found["derived"]["step"]) == (6, "compiled")


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_ddppos_own_model_takes_the_native_step_from_its_first_iteration_also_when_resumed(
    tmp_path, monkeypatch
):
    config = settings()
    config.model.name = "mlp"
    found, state = train(config, tmp_path / "run", monkeypatch)
    assert (found["compiled_from"], found["derived"]["step"]) == (1, "native")
    config.ppo.total_steps *= 2
    found, _ = train(config, tmp_path / "run", monkeypatch, state=state)
    assert (found["compiled_from"], found["derived"]["step"]) == (1, "native")


@pytest.mark.quick_cases("compile=off")
@pytest.mark.parametrize("instead", ["compile=off", "threads"])
def test_it_does_not_with_compile_off_or_several_threads(instead, tmp_path, monkeypatch):
    config = settings(compile="off" if instead == "compile=off" else "auto")
    config.model.name = "mlp"
    config.dist.threads_per_rank = 2 if instead == "threads" else None
    found, _ = train(config, tmp_path / "run", monkeypatch)
    assert (found["compiled_from"], found["derived"]["step"]) == (None, "eager")


@pytest.mark.quick_cases("auto-expected0")
@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(("compile_", "expected"), [("auto", ("native", 1)), ("off", ("eager", 2))])
def test_work_that_is_enough_for_two_threads_of_torch_is_left_to_one_in_cpp(
    compile_, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "THREADS_PAY_FROM", 1)
    monkeypatch.setattr(launch, "cores_per_rank", lambda local_world_size: 2)
    config = settings(compile=compile_)
    config.model.name = "mlp"
    found, _ = train(config, tmp_path / "run", monkeypatch)
    assert (found["derived"]["step"], found["derived"]["threads_per_rank"]) == expected


def test_nothing_is_compiled_for_a_short_run_and_with_compile_off(tmp_path, monkeypatch):
    for name, config in {"short": settings(), "off": settings(compile="off")}.items():
        found, state = train(config, tmp_path / name, monkeypatch)
        assert found["compiled_from"] is state["compiled_from"] is None
    assert not (tmp_path / "cache" / "ddppo").exists()


def warnings_of(config, folder, monkeypatch, capsys):
    found, _ = train(config, folder, monkeypatch)
    assert (found["status"], found["derived"]["step"]) == ("completed", "eager")
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model.name": f"{__name__}:Own"}, "Own.forward calls clamp (test_compilation.py:"),
        ({"ppo.learning_rates": {"value_head": 1e-3}}, "ppo.learning_rates gives parts"),
        ({"dist.threads_per_rank": 2}, "dist.threads_per_rank=2, and C++ uses one thread"),
    ],
)
def test_a_run_that_cannot_learn_in_cpp_says_why_in_one_line(changed, why, tmp_path, monkeypatch, capsys):
    config = settings()
    config.model.name = "mlp"
    for name, value in changed.items():
        section, name = name.split(".")
        setattr(getattr(config, section), name, value)
    [line] = warnings_of(config, tmp_path / "run", monkeypatch, capsys)
    begins = "acting and learning run in PyTorch, not in C++: "
    if "ppo.learning_rates" in changed:
        begins = "acting and the loss run in PyTorch, only the network in C++: "
    assert line.startswith(f"warning: {begins}")
    assert why in line
    assert "take 3 to 8 times as long" in line
    assert ("compile=torch compiles learning" in line) == ("model.name" in changed)


def test_a_machine_without_a_compiler_says_so_in_one_line_whatever_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(CPP, "_loaded", None)
    monkeypatch.setattr(CPP, "_failure", NotCompiled("there is no C++ compiler"))
    for memory in ("none", "lstm"):
        config = settings()
        config.model.name, config.model.memory = "mlp", memory
        config.model.shared_trunk = memory != "none"
        [line] = warnings_of(config, tmp_path / memory, monkeypatch, capsys)
        assert "not in C++: " in line


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize("check", ["agrees", "rows_are_independent"])
def test_cpp_that_computes_wrongly_on_this_machine_is_not_used(check, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backend, check, lambda *_: False)
    config = settings()
    config.model.name = "mlp"
    [line] = warnings_of(config, tmp_path / "run", monkeypatch, capsys)
    assert "not in C++: " in line


@pytest.mark.parametrize("changed", [{"compile": "off"}, {"model": "wide"}, {"memory": "lstm"}])
def test_a_run_that_loses_nothing_says_nothing(changed, tmp_path, monkeypatch, capsys):
    config = settings(compile=changed.get("compile", "auto"))
    config.model.name, config.model.memory = "mlp", changed.get("memory", "none")
    config.model.shared_trunk = "memory" in changed
    if changed.get("model") == "wide":
        config.model.hidden_sizes = [1024, 600]
    assert warnings_of(config, tmp_path / "run", monkeypatch, capsys) == []


def test_what_compile_asks_for_and_cannot_be_ends_the_run_before_its_first_iteration(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        TrainingError,
        match=r"compile=torch: the step cannot be compiled: there is no C\+\+ compiler .*; use compile=auto",
    ):
        Rank(settings(compile="torch"), tmp_path, Group(), torch.device("cpu")).run()


@pytest.mark.parametrize("compile_", ["torch", "auto"])
def test_a_gradient_that_is_not_the_eager_steps_is_not_used_and_said(compile_, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backend, "_PAYS_FROM_STEPS", 1)
    monkeypatch.setattr(backend, "agrees", lambda *_: False)
    config = settings(compile=compile_)
    if compile_ == "torch":
        with pytest.raises(TrainingError, match=r"compile=torch: .*: its gradient is not the eager step's"):
            train(config, tmp_path / "run", monkeypatch)
        return
    *_, line = warnings_of(config, tmp_path / "run", monkeypatch, capsys)
    assert line == "warning: compile=auto: the step stays eager: its gradient is not the eager step's"


class Random(MLP):
    """A model whose results depend on chance."""

    def forward(self, obs):
        return super().forward(torch.dropout(obs, 0.5, train=True))


def test_a_model_that_cannot_be_compiled_is_named_with_the_reason(tmp_path):
    config = settings(compile="torch")
    config.model.name = "tests.unit.test_compilation:Random"
    worker = Rank(config, tmp_path, Group(), torch.device("cpu"))
    with pytest.raises(TrainingError, match="the step cannot be compiled: it draws random numbers"):
        worker.run()


def test_a_model_that_compiling_would_not_make_faster_stays_eager_for_its_own_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(Own, "stays_eager", "its time is elsewhere")
    monkeypatch.setattr(backend, "_PAYS_FROM_STEPS", 1)
    found, _ = train(settings(), tmp_path / "auto", monkeypatch)
    assert (found["compiled_from"], found["derived"]["step"]) == (None, "eager")
    with pytest.raises(TrainingError, match="the step cannot be compiled: its time is elsewhere"):
        train(settings(compile="on"), tmp_path / "on", monkeypatch)
