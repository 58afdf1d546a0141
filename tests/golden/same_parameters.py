"""Show that a change keeps every number: short runs of all families, here and at another commit, compared to the bit.

    python tests/golden/same_parameters.py against=<commit>      # both sides are run, the commit from a copy of it
    python tests/golden/same_parameters.py keep=/tmp/before.json of=<commit>     # one side, kept ...
    python tests/golden/same_parameters.py against=/tmp/before.json              # ... and compared with this checkout
    python tests/golden/same_parameters.py against=/tmp/before.json only=gnn     # cases whose name contains gnn
    python tests/golden/same_parameters.py list=true                             # cases and their command lines

It prints a line for each case: the hash of its parameters before and after. It exits with 1 where a hash differs, or a
metric that tells what was learned (train/, rollout/, loss/, eval/, curriculum/, ...), and with 2 where a case fails.
Bits belong to a machine, its number of cores and its libraries: a file that `keep` wrote is of use on the machine that
wrote it only, and none is committed. `processes=4` runs more than 2 cases at a time; `folder=/tmp/runs` keeps the run
folders. Cases that need an extra of ddppo that is missing are left out, and named. One side takes about 3 minutes on 2
cores.

A case is a command line of `python -m ddppo.train`. Where settings were renamed, it has several spellings: a side is
run with the first, and where that is refused (exit code 2) with the next.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CHECKOUT = HERE.parents[2]
KEPT = CHECKOUT / "tests" / "kept"
PARTS = HERE.with_name("golden_parts.py")
# First in every command, so that a case can set another value. Short runs are saved once, at their end.
QUIET = (
    "log.progress=none", "log.tensorboard=false", "eval.final_episodes=0", "checkpoint.every_steps=0",
    "dist.check_every=1", "device=cpu",
)  # fmt: skip
# 20 iterations of 128 steps.
SIZES = (
    "env.num_envs=8", "ppo.rollout_steps=16", "ppo.total_steps=2560", "ppo.num_epochs=2", "ppo.num_minibatches=4",
)  # fmt: skip
EAGER = "compile=off"  # else a compiler in the background may have the step ready at any iteration
COMPARED = ("train/", "rollout/", "loss/", "user/", "eval/", "curriculum/", "search/", "task/")
NOT_COMPARED = ("/t_", "fps", "per_s")  # times
LIMIT_S = 900.0  # of one command; the longest takes seconds


@dataclass(frozen=True)
class Case:
    """A run: its settings, what it goes on with once it is complete (resume=), and modules that it needs.

    kept: a run folder of tests/kept, with which it goes on by `arguments`.
    """

    arguments: tuple[str, ...]
    kept: str | None = None
    then: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    also_spelled: tuple[
        tuple[str, ...], ...
    ] = ()  # settings that replace `arguments` on a side that refuses those


def case(*arguments: str, **more: Any) -> Case:
    return Case((*SIZES, *arguments), **more)


EVERYTHING = (
    "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.target_kl=0.002", "ppo.clip_value_coef=0.2",
    "ppo.entropy_coef=0.01", "ppo.lr_schedule=adaptive", "ppo.num_minibatches=7", "model.shared_trunk=true",
    "ppo.normalize_advantages=minibatch",
)  # fmt: skip
CNN = ("model=cnn", "model.conv_layers=[[4,4,2],[8,3,1]]", "model.hidden_sizes=[16]", EAGER)
PICTURE = ("env=gym", "env.id=tests.golden.golden_parts:golden/Picture-v0")
SEEN = (
    "env=gym",
    "env.id=tests.golden.golden_parts:golden/Seen-v0",
    "model=dict",
    "model.image_features=8",
    EAGER,
)
LSTM = ("model=lstm", "model.memory_size=16", "model.hidden_sizes=[16]", EAGER)
GRU = ("model=gru", "model.memory_size=16", "model.hidden_sizes=[16]", EAGER)
CIRCUIT = (
    "env=circuit", "model=gnn", "env.num_envs=4", "model.graph_width=16", "model.graph_layers=2",
    "ppo.rollout_steps=16", "ppo.total_steps=640", "ppo.gamma=0.99", "ppo.entropy_coef=0.02", EAGER,
)  # fmt: skip
CAGE2 = (
    "env=cage2",
    "env.num_envs=8",
    "ppo.rollout_steps=30",
    "env.episode_steps=30",
    "ppo.total_steps=4800",
)
TEXT = (
    "env=gym", "env.id=tests.golden.golden_parts:golden/Say-v0", "model=token_policy", "model.token_width=16",
    "model.token_layers=1", "model.token_heads=2", "model.obs_tokens=8", "model.turn_tokens=3", "ppo.group_size=4",
    "ppo.rollout_steps=24", "ppo.total_steps=600", "ppo.learning_rate=1e-2", EAGER,
)  # fmt: skip
GRPO = ("env=cartpole", "ppo=grpo", "ppo.group_size=4", "ppo.rollout_steps=40", "ppo.total_steps=2000", EAGER)
GRPO_EVERYTHING = (
    *GRPO, "ppo.kl_coef=0.1", "ppo.token_mean=constant", "ppo.entropy_coef=0.01", "ppo.normalize_obs=true",
    "ppo.target_kl=0.02", "dist.world_size=2",
)  # fmt: skip
CLOUD = (
    "env=cloud", "ppo=cloud", "env.num_envs=8", "env.tasks=[warm-up]", "env.max_turns=2", "ppo.group_size=4",
    "ppo.rollout_steps=160", "model.obs_tokens=64", "ppo.total_steps=1500", "model.token_width=16",
    "model.token_layers=1", "model.token_heads=2", EAGER,
)  # fmt: skip
SEARCH = (
    "experiment=workflows", "env.num_envs=8", "ppo.rollout_steps=20", "ppo.num_minibatches=4", "ppo.num_epochs=2",
    "search.budget_episodes=160", "ppo.total_steps=3200", "search.max_episodes_per_order=4",
    "search.gate_compliance=0.5", "search.settle_iterations=0",
)  # fmt: skip
ATARI = (
    "env=atari",
    "env.id=ALE/Pong-v5",
    "env.num_envs=4",
    "ppo.rollout_steps=8",
    "ppo.total_steps=160",
    EAGER,
)
SERVE = ("fastapi", "uvicorn", "websockets", "msgpack")

CASES = {
    # The step in C++, and tasks that are stepped there.
    "C++, cartpole": case("env=cartpole"),
    "C++, pendulum": case("env=pendulum"),
    "C++, acrobot": case("env=acrobot"),
    "C++, mountaincar_continuous": case("env=mountaincar_continuous"),
    "C++, shared trunk, normalisers, target_kl": case("env=pendulum", *EVERYTHING),
    "C++, evaluated": case("env=cartpole", "eval.final_episodes=5", "eval.every_steps=1280", "eval.episodes=3"),
    "C++, device": case("env=cartpole", "distributed=device"),
    "C++, device W=2": case("env=pendulum", "distributed=device", "dist.world_size=2"),
    # Torch's step, tasks by every backend.
    "eager, cartpole": case("env=cartpole", EAGER),
    "eager, float64": case("env=cartpole", "dtype=float64", EAGER),
    "backend sync": case("env=cartpole", "env.backend=sync", EAGER),
    "backend pool": case("env=cartpole", "env.backend=pool", "env.num_workers=2", EAGER),
    "backend gym_vector": case(
        "env=cartpole", "env.backend=gym_vector", EAGER,
        also_spelled=((*SIZES, "env=cartpole", "env.backend=native", EAGER),),
    ),
    "backend remote": case("env=cartpole", "env.backend=remote", "ppo.total_steps=640", EAGER, needs=SERVE),
    # Tasks.
    "lunarlander": case("env=lunarlander", EAGER, needs=("Box2D",)),
    "bipedal, pool": case("env=bipedal", "env.backend=pool", "env.num_workers=2", EAGER, needs=("Box2D",)),
    "halfcheetah": case("env=halfcheetah", "model=mlp_robot", EAGER, needs=("mujoco",)),
    "minigrid, dict": case("env=minigrid", "model=dict", EAGER, needs=("minigrid",)),
    "popgym": case("env=popgym", EAGER, needs=("popgym",)),
    "synthetic": case("env=synthetic", EAGER),
    "masked cartpole, lstm": case("env=cartpole_masked", *LSTM),
    "tmaze, lstm": case("env=tmaze", "env.length=3", *LSTM),
    "a tuple of numbers": case("env=gym", "env.id=Blackjack-v1", EAGER),
    "atari, cnn": case(
        *ATARI, "model=cnn", "model.conv_layers=[[8,8,8],[8,4,2]]", "model.hidden_sizes=[16]", needs=("ale_py",),
    ),
    # Models.
    "mlp_256": case("env=pendulum", "model=mlp_256", EAGER),
    "squashed actions, log_std of the state": case("env=pendulum", "model.squash=tanh", "model.log_std=state", EAGER),
    "cnn": case(*PICTURE, *CNN),
    "cnn, lstm": case(*PICTURE, *CNN, "model.memory=lstm", "model.memory_size=8"),
    "resnet": case(*PICTURE, "model=resnet", "model.resnet_channels=[4,4]", "model.hidden_sizes=[16]", EAGER),
    "resnet, bfloat16": case(
        *PICTURE, "model=resnet", "model.resnet_channels=[4,4]", "model.hidden_sizes=[16]", "model.precision=bfloat16",
        "ppo.total_steps=640", EAGER,
    ),
    "dict": case(*SEEN),
    "dict, encoders, gru": case(
        *SEEN, "model.encoders={camera:resnet}", "model.resnet_channels=[4]", "model.memory=gru", "model.memory_size=8",
    ),
    "ddppo": case(
        *SEEN[:2], "env.kwargs.size=32", "model=ddppo", "model.image_encoder=resnet18", "model.image_features=8",
        "model.memory_size=8",
        "ppo.rollout_steps=4", "ppo.total_steps=96", EAGER,
    ),
    "lstm, sequences": case("env=pendulum", *LSTM, "env.max_episode_steps=20", "ppo.sequence_length=8"),
    "gru": case("env=pendulum", *GRU, "env.max_episode_steps=20"),
    "a model of one's own": case("env=cartpole", "model.name=tests.golden.golden_parts:Own", EAGER),
    # PPO's settings.
    "normalisers, target_kl": case("env=cartpole", *EVERYTHING, EAGER),
    "schedules and step sizes": case(
        "env=pendulum", "ppo.clip_schedule=linear", "ppo.warmup_steps=640", "ppo.learning_rates={value_head:2e-4}",
        "ppo.reward_scale=0.1", "ppo.reward_clip=1", "ppo.normalize_advantages=none", EAGER,
    ),
    "a loss and a metric of one's own": case(
        "env=pendulum", "ppo.losses={still:{term:tests.golden.golden_parts:still,coef:0.3}}",
        "log.metrics=[tests.golden.golden_parts:pushes]", EAGER,
    ),
    "weak scaling W=2": case("env=cartpole", "scaling=weak", "scaling.learning_rate_rule=linear", "dist.world_size=2"),
    "on_nonfinite=skip_batch": case("env=cartpole", "on_nonfinite=skip_batch", EAGER),
    "resumed": case("env=pendulum", EAGER, *EVERYTHING, then=("ppo.total_steps=5120",)),
    "resumed, C++ W=2": case("env=cartpole", "dist.world_size=2", then=("ppo.total_steps=5120",)),
    "resumed, lstm": case("env=cartpole_masked", *LSTM, then=("ppo.total_steps=5120",)),
    # Topologies.
    "ddp W=2": case("env=cartpole", "dist.world_size=2"),
    "ddp W=2, eager, everything": case("env=pendulum", "dist.world_size=2", *EVERYTHING, EAGER),
    "ddp W=2, gloo": case("env=cartpole", "dist.world_size=2", "dist.collective=gloo", EAGER),
    "ddp W=2, buckets": case("env=cartpole", "dist.world_size=2", "dist.collective=gloo", "dist.grad_sync=ddp", EAGER),
    "ddp W=2, local advantages": case("env=cartpole", "dist.world_size=2", "ppo.normalize_advantages=local", EAGER),
    "ddp W=2, cnn": case(*PICTURE, *CNN, "dist.world_size=2"),
    "ddp W=2, lstm": case("env=cartpole_masked", *LSTM, "dist.world_size=2"),
    "ordered W=1": case("env=cartpole", "dist.reduction=ordered"),
    "ordered W=2, eager": case("env=pendulum", "dist.reduction=ordered", "dist.world_size=2", *EVERYTHING, EAGER),
    # Where all ranks wait for all, none ends its rollout early, and the run can be repeated.
    "ddp_preempt W=2": case("env=cartpole", "distributed=ddp_preempt", "dist.world_size=2", "dist.sync_frac=1"),
    "ddp_preempt W=2, eager": case(
        "env=pendulum", "distributed=ddp_preempt", "dist.world_size=2", "dist.sync_frac=1", *EVERYTHING, EAGER,
    ),
    "ddp_preempt W=2, lstm": case(
        "env=cartpole_masked", *LSTM, "distributed=ddp_preempt", "dist.world_size=2", "dist.sync_frac=1",
    ),
    "sync_actors": case("env=cartpole", "distributed=sync_actors"),
    "sync_actors, gru": case("env=pendulum", *GRU, "distributed=sync_actors", "ppo.sequence_length=8"),
    "async_actors in step": case("env=cartpole", "distributed=async_actors", "dist.max_lag=0"),
    "async_actors in step, eager, everything": case(
        "env=pendulum", "distributed=async_actors", "dist.max_lag=0", *EVERYTHING, "dist.correction=vtrace", EAGER,
    ),
    "async_actors in step, a3c": case(
        "env=cartpole", "ppo=a3c", "distributed=async_actors", "dist.world_size=2", "dist.max_lag=0",
    ),
    "multi_learner": case("env=cartpole", "distributed=multi_learner", "dist.num_learners=2"),
    "env_workers": case("env=cartpole", "distributed=env_workers"),
    "env_workers, lstm": case("env=cartpole_masked", *LSTM, "distributed=env_workers", "env.num_envs=8"),
    "env_workers, cnn, evaluated": case(*PICTURE, *CNN, "distributed=env_workers", "eval.final_episodes=5"),
    "env_workers_hetero": case(
        "env=cartpole", "distributed=env_workers_hetero", "dist.world_size=4", "dist.env_shares=[5,1,2]",
        also_spelled=(
            (*SIZES, "env=cartpole", "distributed=env_workers", "dist.world_size=4", "dist.env_shares=[5,1,2]"),
        ),
    ),
    "central_inference": case("env=cartpole", "distributed=central_inference", "dist.world_size=2", EAGER),
    "central_inference, observers": case("env=pendulum", "distributed=central_inference", "dist.observers=2", *GRU),
    # GRPO, tasks of text, curricula.
    "grpo, cartpole": case(*GRPO),
    "grpo W=2, everything": case(
        *GRPO_EVERYTHING, "ppo.scale_by=none",
        also_spelled=((*SIZES, *GRPO_EVERYTHING, "ppo.divide_by_std=false"),),
    ),
    "text, grpo, tiers": case(*TEXT, "ppo=grpo", "ppo.kl_coef=0.1", "model.top_p=0.9", "curriculum.name=tiers"),
    "text, grpo W=2, uniform": case(*TEXT, "ppo=grpo", "curriculum.name=uniform", "dist.world_size=2"),
    "text, values, no curriculum": case(
        *TEXT, "ppo=default", "ppo.gamma=1", "ppo.target_kl=0.05", "curriculum.name=null", "eval.final_episodes=4",
    ),
    "text, resumed": case(*TEXT, "ppo=grpo", "model.sampling_temperature=1.2", then=("ppo.total_steps=900",)),
    "text, remote": case(*TEXT, "ppo=grpo", "env.backend=remote", "ppo.total_steps=200", needs=SERVE),
    "cloud": case(*CLOUD, needs=("moto", "boto3")),
    "cloud W=2": case(*CLOUD, "dist.world_size=2", "ppo.total_steps=600", needs=("moto", "boto3")),
    # Circuits.
    "circuit": case(*CIRCUIT),
    "circuit, buffers shared W=2": case(
        *CIRCUIT, "env.circuit=[tof_3,mod5_4]", "env.buffer.share=2", "dist.world_size=2",
    ),
    "circuit, attention, pool": case(
        *CIRCUIT, "model.graph_conv=attention", "env.buffer.draw=power", "env.cost=depth", "env.backend=pool",
        "env.num_workers=2",
    ),
    "circuit, gin, central_inference": case(
        *CIRCUIT, "model.graph_conv=gin", "distributed=central_inference", "env.num_workers=2",
    ),
    "circuit, resumed": case(*CIRCUIT, then=("ppo.total_steps=1280",)),
    "circuit, env_workers, evaluated": case(*CIRCUIT, "distributed=env_workers", "eval.final_episodes=2"),
    # CAGE 2 and the search over orders.
    "cage2": case(*CAGE2),
    "cage2, meander, eager, sync": case(*CAGE2, "env.red=meander", "env.green=active", "env.backend=sync", EAGER),
    "cage2, an order, pool": case(
        *CAGE2, "model=order_conditioned", "env.order=balanced", "env.backend=pool", "env.num_workers=2",
    ),
    "cage2, sync_actors, evaluated": case(*CAGE2, "distributed=sync_actors", "eval.final_episodes=3"),
    "cage2, ordered W=2": case(*CAGE2, "dist.reduction=ordered", "dist.world_size=2", "ppo.total_steps=2400", EAGER),
    "search": case(*SEARCH),
    "search W=2, eager": case(*SEARCH, "dist.world_size=2", "search.inherit=shared", EAGER),
    "search, resumed": case(*SEARCH, then=("search.budget_episodes=240", "ppo.total_steps=4800")),
}  # fmt: skip


# Runs of an earlier ddppo that go on.
if (KEPT / "expected.json").exists():
    for name, expected in json.loads((KEPT / "expected.json").read_text()).items():
        CASES[f"kept, {name}"] = Case(tuple(expected["resumed_with"]), kept=name)


# One side ---------------------------------------------------------------------------------------------------


def commands(case: Case, arguments: Sequence[str], run_dir: Path) -> list[list[str]]:
    """Return the arguments of `python -m ddppo.train`, one command after the other."""
    if case.kept is not None:
        with tarfile.open(KEPT / f"{case.kept}.tar.xz") as archive:
            archive.extractall(run_dir, filter="data")
        return [[f"resume={run_dir}", "log.progress=none", *arguments]]
    first = [*QUIET, *arguments, f"hydra.run.dir={run_dir}"]
    return [first, [f"resume={run_dir}", "log.progress=none", *case.then]] if case.then else [first]


def numbers(run_dir: Path) -> dict[str, Any]:
    """Return what a run learned: a hash of its parameters, its steps, and a hash of each metric over all iterations."""
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    values: dict[str, list[Any]] = {}
    for line in lines:
        for name, value in line.items():
            is_learned = name.startswith(COMPARED) and not any(part in name for part in NOT_COMPARED)
            if line["rank"] == 0 and is_learned:
                values.setdefault(name, []).append(value)
    final = (summary["eval"] or {}).get("final") or {}
    values |= {f"eval/final/{name}": [value] for name, value in final.items() if not name.startswith("t_")}
    return {
        "params_hash": summary["params_hash"],
        "env_steps": summary["env_steps"],
        "iterations": summary["iterations"],
        "step": summary["derived"]["step"],
        "env_backend": summary["derived"]["env_backend"],
        "metrics": {
            name: hashlib.blake2b(json.dumps(x).encode(), digest_size=6).hexdigest()
            for name, x in values.items()
        },
    }


class Run:
    """One case while its commands run, one after the other; the processes are forks of one that has imported torch."""

    def __init__(self, name: str, folder: Path, start: Any) -> None:
        self.name, self._start = name, start
        self._case = CASES[name]
        self._run_dir = folder / "".join(c if c.isalnum() else "_" for c in name)
        self._spellings = [self._case.arguments, *self._case.also_spelled]
        self._begin_spelling()

    def _begin_spelling(self) -> None:
        self._commands = commands(self._case, self._spellings.pop(0), self._run_dir)
        self._next()

    def _next(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the object
        command = [sys.executable, "-m", "ddppo.train", *self._commands.pop(0)]
        self._process = self._start(command, self._errors)
        self._began = time.monotonic()

    def poll(self) -> dict[str, Any] | None:
        """Return the numbers, or {"error": ...}, once the last command has ended."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._began + LIMIT_S:
                return None
            self._process.kill()
            self._process.wait()
            return {"error": f"took more than {LIMIT_S:g} s"}
        if code == 0 and not self._commands:
            return numbers(self._run_dir)
        if code == 0:
            self._next()
        elif code == 2 and self._spellings:  # refused: an earlier or later word for the same
            self._begin_spelling()
        else:
            self._errors.seek(0)
            return {"error": f"exit code {code}: {self._errors.read().strip()[-1500:]}"}
        return None


def run_here(names: Sequence[str], folder: Path, processes: int) -> None:
    """Run cases with the code of the current folder; print a line of JSON for each as it ends."""
    checkout = Path.cwd()
    sys.path[0] = str(checkout)  # instead of this file's folder
    from tests.support import process_of  # of this side: it knows what to import before it forks

    environ = os.environ | {"PYTHONPATH": str(checkout)}

    def start(command: list[str], errors: Any) -> Any:
        return process_of(
            command, cwd=checkout, env=environ, stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    waiting, running = list(names), []
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(Run(waiting.pop(0), folder, start))
        time.sleep(0.02)
        for each in list(running):
            if (found := each.poll()) is not None:
                running.remove(each)
                print(json.dumps({"case": each.name, **found}), flush=True)


# Both sides -------------------------------------------------------------------------------------------------


@contextmanager
def code_of(commit: str | None) -> Iterator[Path]:
    """Yield a folder with the code of a commit, removed afterwards; None is this checkout as it stands."""
    if commit is None:
        yield CHECKOUT
        return
    with tempfile.TemporaryDirectory(prefix="ddppo-golden-") as folder:
        # Not `git worktree add`: a command that is killed would leave it behind in the repository.
        archive = subprocess.run(["git", "-C", CHECKOUT, "archive", commit], capture_output=True)
        if archive.returncode:
            raise SystemExit(f"{commit} is no commit here: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        Path(folder, "tests", "golden").mkdir(parents=True, exist_ok=True)
        shutil.copy(PARTS, Path(folder, "tests", "golden", PARTS.name))  # that the commit may not have
        yield Path(folder)


def run_side(commit: str | None, names: Sequence[str], options: dict[str, str], side: str) -> dict[str, Any]:
    """Return what cases give with the code of a commit."""
    began, found = time.monotonic(), {}
    with code_of(commit) as checkout, tempfile.TemporaryDirectory(prefix="ddppo-golden-runs-") as folder:
        if "folder" in options:
            folder = str(Path(options["folder"]).resolve() / side)
            if Path(folder).exists():
                raise SystemExit(f"folder={options['folder']} holds runs of before: name another")
        request = {"names": list(names), "folder": folder, "processes": int(options.get("processes", 2))}
        with subprocess.Popen(
            [sys.executable, HERE, "here=" + json.dumps(request)],
            cwd=checkout,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                result = json.loads(line)
                name = result.pop("case")
                found[name] = result
                told = (
                    result.get("error")
                    or f"{result['params_hash']}  {result['step']}, {result['env_backend']}"
                )
                print(f"  {side} {len(found)}/{len(names)}  {name}: {told}", file=sys.stderr, flush=True)
    print(f"  {side}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def compare(before: dict[str, Any], after: dict[str, Any], names: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    code, width = 0, max(map(len, names))
    print(f"{'case':{width}}  {'before':32}  {'after':32}  same")
    for name in names:
        old, new = before.get(name, {"error": "not run"}), after.get(name, {"error": "not run"})
        if "error" in old or "error" in new:
            code, said = 2, "cannot be compared"
        else:
            metrics = [x for x in old["metrics"] if new["metrics"].get(x) != old["metrics"][x]]
            if any(old[x] != new[x] for x in ("params_hash", "env_steps", "iterations")):
                said = "NO"
            else:
                said = f"yes, but other metrics: {', '.join(metrics)}" if metrics else "yes"
            code = code or int(said != "yes")
        columns = [f"{x.get('params_hash', 'none'):32}" for x in (old, new)]
        print(f"{name:{width}}  {'  '.join(columns)}  {said}")
        for side, x in (("before", old), ("after", new)):
            if "error" in x:
                print(f"    {side}: {x['error']}")
    return code


def main(arguments: Sequence[str]) -> int:
    options = dict(each.partition("=")[::2] for each in arguments)
    known = {"against", "keep", "of", "only", "processes", "folder", "list", "here"}
    if unknown := sorted(options.keys() - known):
        print(
            f"{', '.join(unknown)}: no option; they are {', '.join(sorted(known - {'here'}))}",
            file=sys.stderr,
        )
        return 2
    if "here" in options:
        request = json.loads(options["here"])
        run_here(request["names"], Path(request["folder"]), request["processes"])
        return 0

    names = [name for name in CASES if options.get("only", "") in name]
    missing = {
        name: absent
        for name in names
        if (absent := [x for x in CASES[name].needs if importlib.util.find_spec(x) is None])
    }
    names = [name for name in names if name not in missing]
    for name, absent in missing.items():
        print(f"left out: {name}, which needs {', '.join(absent)}", file=sys.stderr)
    if "list" in options:
        print("\n".join(f"{name}: {' '.join(CASES[name].arguments)}" for name in names))
        return 0
    if not names:
        print(f"only={options['only']}: no case's name contains it; list=true prints them", file=sys.stderr)
        return 2

    if "keep" in options:
        commit = options.get("of")
        found = run_side(commit, names, options, "kept")
        kept = Path(options["keep"])
        before = json.loads(kept.read_text()) if kept.is_file() else {}
        if commit is not None and before.get("commit") == commit:  # other cases of the same code stay
            found = before["cases"] | found
        kept.write_text(json.dumps({"commit": commit, "cases": found}, indent=1) + "\n")
        return 2 if any("error" in x for x in found.values()) else 0
    if "against" not in options:
        print(__doc__, file=sys.stderr)
        return 2
    if Path(options["against"]).is_file():
        before = json.loads(Path(options["against"]).read_text())["cases"]
        if "only" not in options:
            names = [name for name in names if name in before] + [
                name for name in names if name not in before
            ]
    else:
        before = run_side(options["against"], names, options, "before")
    return compare(before, run_side(None, names, options, "after"), names)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
