"""Functions that tests call in processes with the stand-in accelerator, and test_cuda.py on a GPU."""

import tempfile
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir

from ddppo.collectives.group import Group
from ddppo.config import rules
from ddppo.config.compose import register
from ddppo.config.presets import conf_dir
from ddppo.config.stored import from_omegaconf, to_yaml
from ddppo.device import resolve, set_numerics
from ddppo.loop import compute
from ddppo.loop.iteration import Loop
from ddppo.loop.rank import Rank
from ddppo.ppo import compiled
from ddppo.ppo.acting import TensorActing
from ddppo.ppo.device_collector import DeviceCollector
from ddppo.ppo.learner import EagerStep
from ddppo.ppo.recorded_rollout import RecordedActing
from tests.device.standin import Sim, counted, refusing_waits
from tests.support import lines


def losses(device):
    """Return 20 losses of a small network that learns on the device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)).to(device)
    x, y = torch.randn(256, 4).to(device), torch.randn(256, 2).to(device)
    adam, found = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(20):
        loss = ((model(x) - y) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()


def refused():
    """Return what the device answers to all that CUDA refuses."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x, y, numbers = torch.ones(3, device="sim"), torch.ones(3), torch.Generator()
    attempts = {
        "numpy": lambda: x.numpy(),
        "np.asarray": lambda: np.asarray(x),
        "address": lambda: x.data_ptr(),
        "share_memory_": lambda: x.share_memory_(),
        "two devices": lambda: x + y,
        "out": lambda: torch.add(x, x, out=y),
        "cat": lambda: torch.cat([x, y]),
        "values": lambda: x.__setitem__(torch.tensor([0, 1, 2]), y),
        "indices": lambda: y[torch.arange(2, device="sim")],
        "generator": lambda: torch.randn(3, device="sim", generator=numbers),
        "gloo": lambda: dist.all_reduce(x),
    }
    answers = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, TypeError) as e:
            answers[name] = str(e)
    dist.all_reduce(x.cpu())
    return {name: answers.get(name, "allowed") for name in attempts}


def waits():
    """Return the operations of which the host waits, of each line."""
    x, y = torch.arange(4.0, device="sim"), torch.ones(4, device="sim")
    mask = x > 1
    lines = {
        "item": lambda: x.sum().item(),
        "if": lambda: bool(mask.any()),
        "cpu": lambda: x.cpu(),
        "to": lambda: x.to("cpu", torch.float64),
        "copy_": lambda: torch.zeros(4).copy_(x),
        "rows by mask": lambda: x[mask],
        "nonzero": lambda: mask.nonzero(),
        "fill": lambda: y.__setitem__(mask, 0.0),
        "where": lambda: torch.where(mask, x, y),
        "compute": lambda: (x * y).sum().clamp(max=1).sqrt(),
        "from the host": lambda: torch.ones(4).to("sim"),
        "copy_ from the host": lambda: y.copy_(torch.ones(4)),
        "numbers": lambda: torch.tensor([1.0, 2.0], device="sim"),
        "from the host, not waited for": lambda: torch.ones(4).to("sim", non_blocking=True),
        "scalars": lambda: torch.full((), 2.0, device="sim") * torch.tensor(3.0),
    }
    found = {}
    for name, line in lines.items():
        with counted() as copies:
            line()
        found[name] = [each.op for each in copies]
    return found


def place_of_item():
    with counted() as copies:
        torch.ones(1, device="sim").item()
    return copies[0].where


def float64():
    return torch.zeros(2, dtype=torch.float64, device="sim").tolist()


# -- Runs of one rank in this process, on the CPU and on the stand-in.

QUIET = (
    "eval.final_episodes=0",
    "log.progress=none",
    "log.tensorboard=false",
    "compile=off",
    "env.num_envs=4",
)
LEARNED = ("train/", "rollout/return", "loss/", "algorithm/", "eval/return")


def composed(*overrides):
    register()  # no door has run in this process
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = from_omegaconf(compose("config", [*QUIET, *overrides]))
    rules.validate(config)
    set_numerics(config.matmul_precision, deterministic=config.deterministic)
    return config


def trained(config, folder):
    """Train as one rank.

    Returns its parameters, its metrics of each iteration, the host copies of each, and what was recorded.
    """
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    rank = Rank(config, folder, Group(), resolve(config.device))
    iterate, copies = Loop.iterate, []

    def counting(loop, stop):
        with counted() as found:
            result = iterate(loop, stop)
        copies.append(found)
        return result

    with mock.patch.object(Loop, "iterate", counting):
        rank.run()
    vector = rank.context.parameters.vector.detach().cpu().double()
    return vector, lines(folder), copies, rank.context.derived.get("graphs")


@contextmanager
def recording():
    """Let the CPU and the stand-in record kernels: a graph is then the function itself, called once more.

    torch has no compiler for the stand-in, so what it would compile runs as it stands.
    """

    def record(function):
        function()
        return function

    with (
        mock.patch.object(compiled, "record", record),
        mock.patch.object(compiled, "compiled", lambda function, *_: function),
        mock.patch.object(compiled, "has_graphs", return_value=True),
        mock.patch.object(compute, "has_graphs", return_value=True),
        mock.patch.object(Sim, "data_ptr", lambda x: x.raw.data_ptr()),  # it is compared, not read
    ):
        yield


def trained_without_waiting(*overrides):
    """Train on the accelerator; a step of a rollout, or an epoch, at which the host waits, raises.

    Returns how often the host waited in the last iteration, as far as the device tells.
    """
    waits = []

    def refusing(function):
        def called(*args, **kwargs):
            with no_waits():
                return function(*args, **kwargs)

        return called

    def counting(loop, stop):
        with counted_waits() as found:
            result = iterate(loop, stop)
        waits.append(len(found))
        return result

    iterate, config = Loop.iterate, composed(*overrides)
    with ExitStack() as patches:
        for owner, name in (
            (TensorActing, "act"), (RecordedActing, "act"), (DeviceCollector, "_step"), (EagerStep, "epoch"),
            (compiled.CompiledStep, "epoch"),
        ):  # fmt: skip
            patches.enter_context(mock.patch.object(owner, name, refusing(getattr(owner, name))))
        patches.enter_context(mock.patch.object(Loop, "iterate", counting))
        folder = Path(patches.enter_context(tempfile.TemporaryDirectory())) / "run"
        trained(config, folder)
    return waits[-1]


@contextmanager
def no_waits():
    """Raise RuntimeError where the host waits for the accelerator."""
    if not torch.cuda.is_available():
        with refusing_waits():
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    _at_waits("error")
    try:
        yield
    finally:
        _at_waits(before)


def _at_waits(mode):
    """Have torch do nothing, warn or raise where the host waits for CUDA. The first call warns that it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def counted_waits():
    """List where the host waits in the enclosed block; the list is complete when the block ends."""
    if not torch.cuda.is_available():
        with counted() as found:
            yield found
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _at_waits("warn")
        found = []
        try:
            yield found
        finally:
            _at_waits("default")
    found += [one for one in said if "synchronizing" in str(one.message)]


def recorded_without_waiting(*overrides):
    with recording():
        return trained_without_waiting(*overrides, "compile=torch")


def compared_when_recorded(*overrides):
    """Do as `compared`, with recorded kernels on the stand-in and eager ones on the CPU."""
    with recording():
        return compared("compile=torch", *overrides, of_cpu={"compile": "off"})


def compared(*overrides, of_cpu=None):
    """Train the same on the CPU, perhaps with other settings `of_cpu`, and on the stand-in.

    Returns the largest relative difference of parameters and of each metric of learning, the lines of the last
    iteration at which the host waits, with how often, and how many iterations there were.
    """
    config = composed(*overrides)
    with tempfile.TemporaryDirectory() as folder:
        on_cpu, cpu_metrics, none, _ = trained(
            replace(config, device="cpu", **of_cpu or {}), Path(folder) / "cpu"
        )
        on_sim, sim_metrics, copies, graphs = trained(config, Path(folder) / "sim")
    assert not any(none), none
    apart = {}
    for cpu, sim in zip(cpu_metrics, sim_metrics, strict=True):
        assert cpu.keys() == sim.keys() - {"dist/device_memory"}
        for name in cpu:
            if name.startswith(LEARNED):
                difference = (
                    0.0 if cpu[name] == sim[name] else abs(cpu[name] - sim[name]) / (abs(cpu[name]) + 1e-3)
                )
                apart[name] = max(apart.get(name, 0.0), difference)
    return {
        "parameters": float((on_cpu - on_sim).abs().max() / on_cpu.abs().max()),
        "metrics": apart,
        "copies": Counter(f"{each.op} {each.where}" for each in copies[-1]),
        "num_iterations": len(copies),
        "graphs": graphs,
        "memory": all("dist/device_memory" in each for each in sim_metrics),
    }
