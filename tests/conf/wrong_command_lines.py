"""Command lines that cannot work, drawn from a seed, and what each must cost: one paragraph, and nothing on the disk.

    python -m tests.conf.wrong_command_lines 300          # tries 300; prints each that was answered otherwise
    python -m tests.conf.wrong_command_lines 300 seed=7   # others
    python -m tests.conf.wrong_command_lines 300 show     # prints all of them with their answers

A mistake is put into a command line that would work, among settings that are right, so that nothing but the mistake can
be what is refused. Everything happens in one interpreter, in a folder of its own, and no rank is started.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ddppo.config.presets import schemas
from ddppo.config.settings import config_class
from ddppo.plugins import imported
from tests.conf.wrong_algorithms import LINES as OF_ALGORITHMS
from tests.conf.wrong_memories import LINES as OF_MEMORIES
from tests.conf.wrong_topologies import LINES

SMALL = (
    "ppo.total_steps=64",
    "ppo.rollout_steps=8",
    "log.progress=none",
    "log.tensorboard=false",
    "device=cpu",
)
RIGHT = (
    *("seed=3", "env=pendulum", "env=acrobot", "scaling=weak", "model=mlp", "distributed=ddp", "ppo=default"),
    *(
        "ppo.gamma=0.9",
        "env.num_envs=16",
        "dtype=float64",
        "checkpoint.keep=1",
        "eval.episodes=3",
        "log.episode_window=5",
    ),
)
NOT_A_NUMBER = (
    "many",
    "1.2.3",
    "ten",
    "1e",
    "[1]",
    "{a:1}",
    "true",
    "''",
    "1,2",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1/2",
    "³",
)
NOT_A_WHOLE_NUMBER = (*NOT_A_NUMBER, "1.5", "1e-3", "1.5e0", "1e30", "-0.5")
NOT_A_TRUTH = ("maybe", "2", "[true]", "''", "1.5", "{}", "tru")
UNREADABLE = (
    "[",
    "{",
    "a: b",
    "(",
    "a=b",
    "'",
    '"',
    "${",
    "${nothing}",
    "${oc.env:NO_SUCH_VARIABLE}",
    "[1,",
    "f(x",
    "\\",
    "a]b",
)
WORDS = (
    "foo",
    "ppo",
    "-",
    "=",
    "=3",
    "train",
    "cartpole",
    "a.b.c",
    "..",
    "ppo..gamma=1",
    ".=1",
    "seed",
    "@",
    "a b",
    "ü=1",
    "+",
    "~",
    "%s",
    "{}",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A wrong command line of one door. Paths in braces are of folders that `Playground` makes."""

    door: str
    arguments: tuple[str, ...]
    kind: str

    def __str__(self) -> str:
        return f"ddppo-{self.door} {' '.join(map(repr, self.arguments))}   [{self.kind}]"


# -- what may be wrong ----------------------------------------------------------------------------------------------


def _settings(section: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for item in fields(section):
        inner = item.default_factory
        if isinstance(inner, type) and is_dataclass(inner):
            yield from _settings(inner, f"{prefix}{item.name}.")
        elif item.name != "_target_":
            yield prefix + item.name, item


_OF_TRAIN = [
    (name, item) for name, item in _settings(config_class()) if name not in ("resume", "sweep", "objective")
]
_OF_SLURM = schemas().get("hydra/launcher/slurm_schema")
_OF_LAUNCHER = list(_settings(_OF_SLURM, "hydra.launcher.")) if _OF_SLURM else []


def _misspelt(draw: random.Random, word: str) -> str:
    """Return a word with two letters swapped, one left out, doubled or replaced; never the word itself."""
    while True:
        i = draw.randrange(len(word) - 1)
        other = draw.choice(
            (
                word[:i] + word[i + 1] + word[i] + word[i + 2 :],
                word[:i] + word[i + 1 :],
                word[: i + 1] + word[i:],
                word[:i] + draw.choice("abcxyz_") + word[i + 1 :],
                word.replace("_", "-") if "_" in word else word.upper(),
            )
        )
        if other not in ("", word):
            return other


def _wrong_value(draw: random.Random, item: Any) -> str | None:
    """Return a value that breaks the type or the rule of a setting, None if any text will do for it."""
    rule, kind = item.metadata, item.type
    values: list[str] = []
    if kind in (int, int | None):
        values += NOT_A_WHOLE_NUMBER
    elif kind in (float, float | None):
        values += NOT_A_NUMBER
    elif kind is bool:
        values += NOT_A_TRUTH
    elif kind == list[int]:
        values += ("[]", "[0]", "[64,-1]", "[a]", "[1.5]", "64,64", "{a:1}", "[[1]]", "[null]", "3")
    elif rule["choices"]:
        values += (*(_misspelt(draw, choice) for choice in rule["choices"]), "[]", "{}", "''")
    else:
        return None
    if kind in (int, int | None, float, float | None):
        if rule["low"] is not None:
            values += [str(rule["low"] - 1), "-1e9", "-7"]
        if rule["above"] is not None:
            values += [str(rule["above"]), "-1", "-0.0"]
        if rule["high"] is not None:
            values += [str(rule["high"] + 1), "1e9"]
    if kind in (int, float, bool, str):
        values.append("null")
    return draw.choice(values)


def _train_type_or_range(draw: random.Random) -> list[str]:
    while True:
        name, item = draw.choice(_OF_TRAIN)
        if (value := _wrong_value(draw, item)) is not None:
            return [f"{name}={value}"]


def _train_name(draw: random.Random) -> list[str]:
    name, _ = draw.choice(_OF_TRAIN)
    section, dot, last = name.rpartition(".")
    while True:
        wrong = draw.choice(
            (_misspelt(draw, name), section + dot + _misspelt(draw, last), last if dot else f"ppo.{last}")
        )
        known = {known for known, _ in _OF_TRAIN} | {"env", "ppo"}
        if wrong not in known and not wrong.startswith(
            ("env.kwargs", "env.slow_ranks", "ppo.learning_rates")
        ):
            return [f"{draw.choice(('', '', '+', '++'))}{wrong}=1"]


def _train_option(draw: random.Random) -> list[str]:
    group = draw.choice(("env", "model", "ppo", "distributed", "scaling", "experiment"))
    some = {"env": "cartpole", "model": "mlp", "ppo": "pendulum", "distributed": "ddp", "scaling": "strong"}
    right = some.get(group, "scaling/cartpole")
    values = (
        _misspelt(draw, right),
        "schema",
        "../config",
        "/etc/passwd",
        "[]",
        f"{{{right}:1}}",
        "''",
        "1",
        "a/b",
    )
    return [f"{group}={draw.choice(values)}"]


def _train_unreadable(draw: random.Random) -> list[str]:
    name, item = draw.choice(_OF_TRAIN)
    if item.type in (str, str | None) and not item.metadata["choices"]:
        name = "ppo.gamma"
    return [f"{name}={draw.choice(UNREADABLE)}"]


def _train_word(draw: random.Random) -> list[str]:
    return [draw.choice(WORDS)]


_FLAGS = (
    *(
        "--hlep",
        "--verson",
        "--mult",
        "--multi-run",
        "-x",
        "--cfg",
        "--cfg=jbo",
        "-c",
        "--info=nix",
        "--resolve",
    ),
    *(
        "--package",
        "--package=ppo",
        "--config-name=nix",
        "--config-dir=/no/such/folder",
        "--config-path",
        "-sc",
        "--world_size=2",
    ),
    *(
        "-W",
        "4",
        "--cfg job --info all",
        "--cfg job -m",
        "-m --run",
        "-sc install=tcsh",
        "--experimental-rerun=nix",
        "-r -m",
    ),
    *(
        "--ppo.gamma=0.5",
        "--seed 3",
        "-cd",
        "-cn nix",
        "--package=nix.nix --cfg job",
        "-cp relative",
        "--cfg job ppo.gamma=high",
    ),
)


def _train_flag(draw: random.Random) -> list[str]:
    return draw.choice(_FLAGS).split()


_TOGETHER = (
    "dist.world_size=11",
    "dist.world_size=13 env.num_envs=8",
    "distributed=single dist.world_size=2",
    "dist.bucket_cap_mb=25",
    "dist.bucket_cap_mb=25 dist.grad_sync=flat dist.world_size=2",
    "ppo.adaptive_kl=0.01",
    "ppo.lr_schedule=none ppo.adaptive_kl=0.01",
    "ppo.learning_rates={critic:1e-3}",
    "ppo.learning_rates={value_head:0}",
    "ppo.learning_rates={value_head:.inf}",
    "ppo.learning_rates={value_head:fast}",
    "ppo.learning_rates={value_head:null}",
    "ppo.learning_rates={value_head:{weight:1e-3}}",
    "ppo.learning_rates=[1e-3]",
    "ppo.learning_rates=1e-3",
    "ppo.learning_rates.value=1e-3",
    "ppo.learning_rates.value_head.weight=1e-3",
    "scaling=strong scaling.learning_rate_rule=linear",
    "scaling.rule=weak scaling.learning_rate_rule=cubic",
    "dist.collective=nccl",
    "dist.collective=nccl dist.world_size=2",
    "ppo.num_minibatches=100000",
    "env.slow_ranks={1:0.1}",
    "env.slow_ranks={0:-0.1}",
    "env.slow_ranks={a:0.1}",
    "env.slow_ranks={0:slow}",
    "env.slow_ranks=[1]",
    "env.slow_ranks.7=1",
    "env.slow_ranks={-1:1}",
    "env.slow_ranks={0:.inf}",
    "target_return=1 eval.final_episodes=0",
    "target_return=nan",
    "env.backend=gym_vector env=acrobot ppo=default",
    "env.backend=gym_vector ppo.rollout_steps=1",
    "env.backend=async",
    "env.urls=[ws://127.0.0.1:9]",
    "env.token_file=secret",
    "env.batch_wait_ms=5",
    "env.batch_wait_ms=-1",
    "env=remote",
    "env=remote env.urls=[http://127.0.0.1:9]",
    "env=remote env.urls=[ws://127.0.0.1:9]",
    "env=remote env.urls=[ws://::1:9]",
    "env=remote env.urls=[ws://[::1]:9]",
    "env=remote env.urls=[ws://127.0.0.1:9] env.max_episode_steps=5",
    "env=remote env.urls=[ws://127.0.0.1:9] env.kwargs={a:1}",
    "env=remote env.urls=[ws://127.0.0.1:9] env.token_file=nowhere",
    "env.backend=remote env.token_file=secret",
    "env=openenv",
    "env=openenv env.url=ftp://127.0.0.1",
    "env=openenv env.url=http://me:word@127.0.0.1:9",
    "env=openenv env.url=http://127.0.0.1:99999",
    "env=openenv env.url=http://127.0.0.1:9 env.urls=[http://127.0.0.1:9,http://127.0.0.1:10]",
    "env=openenv env.url=http://127.0.0.1:9 env.form=words",
    "env=openenv env.url=http://127.0.0.1:9 env.max_episode_steps=5",
    "env=openenv env.url=http://127.0.0.1:9 env.token_file=nowhere",
    "env=openenv env.url=http://127.0.0.1:9",
    "env.backend=remote env.num_workers=2",
    "env=circuit env.backend=remote",
    "env.backend=sync env.num_workers=2",
    "env.backend=pool env.num_workers=9",
    "env.kwargs.gravity=1",
    "env.kwargs={}x",
    "env.kwargs=3",
    "env.kwargs=[1]",
    "env.kwargs.num_envs=3",
    "env.kwargs.render_mode=human",
    "env=synthetic env.kwargs.step_time_s=-1",
    "env=synthetic env.kwargs.step_time_s=fast",
    "env=synthetic env.kwargs.obs_size=0",
    "env=synthetic env.kwargs.episode_steps=0",
    "env=synthetic env.kwargs.obs_size=1.5",
    "env=synthetic env.kwargs.busy=perhaps",
    "env=cage2 env.red=b_lin",
    "env=cage2 env.episode_steps=0",
    "env=cage2 env.purple=sleep",
    "env=gym",
    "env=gym env.id=",
    "env=gym env.id=NoSuch-v0",
    "env=gym env.id=CartPole",
    "env=gym env.id=CartPole-v999",
    "env=gym env.id=no.such.module:X-v0",
    "env=gym env.id=os:X-v0",
    "env=gym env.id=:",
    "env=gym env.id=a:b:c",
    "env=gym env.id=../x",
    "env=gym env.id=1",
    "env=gym env.id=null",
    "env.id=[CartPole-v1]",
    "model.name=no.such:Model",
    "model.name=os:path",
    "model.name=torch.nn:Linear",
    "model.name=ddppo.models.actor_critic:nothing",
    "model.name=:",
    "model.name=mlp:",
    "model.name=null",
    "model.name=[]",
    "model=gnn",
    "model=gnn env=pendulum",
    "model=gnn model.hidden_sizes=[64]",
    "model=gnn model.conv_layers=[[8,3,1]]",
    "model=gnn model.graph_conv=gcn",
    "model=gnn model.graph_conv=attention model.graph_width=10",
    "model=gnn model.graph_layers=0",
    "model=gnn model.temperature=0",
    "model=gnn model.graph_prior=-1",
    "model.graph_prior=1",
    "model=gnn ppo.normalize_obs=true",
    "model.graph_width=64",
    "model.temperature=1",
    "model=cnn model.conv_layers=[[8,3,1]] model.graph_layers=2",
    "device=cuda",
    "device=cuda:0",
    "device=gpu",
    "device=7",
    "dist.share_device=true",
    "matmul_precision=high",
    "matmul_precision=tf32",
    "matmul_precision=fp16",
    "dist.collective=xccl dist.world_size=2",
    "dtype=float16",
    "dist.oversubscribe=refuse dist.world_size=512 env.num_envs=512",
    "dist.on_lost=restart",
    "dist.on_lost=go_on",
    "dist.on_lost=restart dist.world_size=2 dist.max_restarts=0",
    "sweep=somewhere",
    "sweep=",
    "objective=eval_return",
    "objective=time_to_target",
    "objective=best",
    "hydra/launcher=slurm",
    "hydra/launcher=joblib",
    "hydra/sweeper=optuna",
    "hydra.launcher.partition=x",
    "hydra.sweeper.n_trials=3",
    "hydra.sweep.subdir=x",
    "hydra.sweep.dir=x",
    "hydra.job.nothing=1",
    "hydra.nothing=1",
    "hydra/nothing=1",
    "hydra.run=3",
    "hydra.run.dir=",
    "hydra.run.dir=null",
    "hydra.run.dir=/proc/nothing",
    "hydra.run.dir={file}",
    "hydra.run.dir={file}/below",
    "hydra.run.dir={run}",
    "hydra.run.dir=${nothing}",
    "hydra.run.dir=" + "x" * 300,
    "hydra.mode=SOMETIMES",
    "hydra.output_subdir=[]",
    "resume=",
    "resume={empty}",
    "resume={file}",
    "resume={missing}",
    "resume={run}",
    "resume={run} seed=5",
    "resume={run} ppo.gamma=0.5",
    "resume={run} env=pendulum",
    "resume={run} ppo.total_steps=many",
    "resume={run} ppo.total_steps=1",
    "resume={run} ppo.total_steps=128 dist.world_size=11",
    "resume={run} ppo.total_steps=128 ++nothing=1",
    "resume={run} ppo.total_steps=128 hydra.run.dir=elsewhere",
    "resume={run} ppo.total_steps=128 experiment=scaling/cartpole",
    "resume={list}",
    "resume={foreign}",
    "resume={damaged} ppo.total_steps=128",
    "resume=[{run}]",
    "resume={run} resume={empty}",
    "~ppo",
    "~ppo.gamma",
    "~env",
    "~seed=0",
    "~nothing",
    "+ppo.gamma=0.5",
    "+env=pendulum",
    "env@ppo=cartpole",
    "env@nothing=cartpole",
    "ppo={gamma:0.5}",
    "ppo=null",
    "env=null",
    "model=null",
    "distributed=null",
    "scaling=null",
    "dist=ddp",
    "dist={world_size:2}",
    "eval=null",
    "log=none",
    "checkpoint=5",
    "dist=null",
    "seed=0,1",
    "env=cartpole,pendulum",
    "seed=range(3)",
    "seed=choice(1,2)",
    "ppo.gamma=interval(0,1)",
    "ppo.gamma=glob(*)",
    "env.num_envs=1000000000000",
    "env.max_episode_steps=0",
    "ppo.rollout_steps=1e15",
    "dist.world_size=1e12 env.num_envs=1e12",
    "model.hidden_sizes=[1e12]",
    "ppo.num_epochs=9223372036854775808",
    "dist.timeout_s=1e300",
    "dist.threads_per_rank=1e9",
    "model.log_std_init=inf",
    "ppo.learning_rate=1e-400",
    *LINES,
    *OF_ALGORITHMS,
    *OF_MEMORIES,
)


def _train_combination(draw: random.Random) -> list[str]:
    return draw.choice(_TOGETHER).split(" ")


_SWEEPS = (
    "sweep=",
    "sweep=null",
    "sweep={file}",
    "sweep={file}/below",
    "sweep=/proc/nothing",
    "experiment=nothing",
    "experiment=scaling/cartpole,scaling/slurm",
    "resume={run}",
    "hydra.run.dir=x",
    "sweep=a hydra.sweep.dir=b",
    "hydra/launcher=slrum",
    "hydra/launcher=schema",
    "hydra/launcher=slurm_schema",
    "hydra/launcher=slurm,basic",
    "hydra/sweeper=basik",
    "hydra/sweeper=optuna hydra.sweeper.direction=minimize",
    "hydra/sweeper=optuna hydra.sweeper.direction=sideways",
    "hydra/sweeper=optuna eval.final_episodes=0",
    "hydra/sweeper=optuna hydra.sweeper.n_trials=many",
    "hydra/sweeper=gp_ucb",
    "hydra/sweeper=gp_ucb ppo.gamma=interval(1,0)",
    "hydra/sweeper=gp_ucb ppo.gamma=interval(0,1) hydra.sweeper.direction=minimize",
    "hydra/sweeper=gp_ucb_schema ppo.gamma=interval(0,1)",
    "hydra.launcher.partition=x",
    "hydra.launcher.n_jobs=2",
    "hydra.sweeper.n_trials=2",
    "hydra.sweeper.params=3",
    "hydra.sweeper.max_batch_size=many",
    "seed=range(",
    "seed=range(a)",
    "seed=range(0)",
    "seed=choice()",
    "ppo.gamma=0.9,",
    "ppo.gama=0.9,0.99",
    "env=cartpole,pendulm",
    "scaling=strong,week",
    "seed=0,one",
    "ppo.total_steps=1.5,2.5",
    "dist.world_size=1,3 env.num_envs=0",
    "--cfg job seed=0,1",
    "dist=ddp,single",
    "seed=0,1 --run",
    "~seed",
    "ppo.gamma=interval(0,1)",
    "ppo.gamma=2,3",
    "env.id=Nope-v0 seed=0,1",
    "seed=0,1 hydra.sweep.subdir=same",
    "seed=0,1 hydra.sweep.subdir=",
    "foo",
    "hydra.sweep.dir=${nothing}",
    "sweep=${nothing}",
    "objective=best",
)


def _train_sweep(draw: random.Random) -> list[str]:
    if draw.random() < 0.25 and _OF_LAUNCHER:
        while True:
            name, item = draw.choice(_OF_LAUNCHER)
            if (value := _wrong_value(draw, item)) is not None:
                return ["-m", "hydra/launcher=slurm", f"{name}={value}", "sweep=new"]
    arguments = draw.choice(_SWEEPS).split(" ")
    has_folder = any(a.startswith(("sweep=", "hydra.sweep.dir=", "resume=")) for a in arguments)
    return ["-m", *arguments, *([] if has_folder else ["sweep=new"])]


# -- the small doors ------------------------------------------------------------------------------------------------

_PATHS = {
    "evaluate": "{run}",
    "enjoy": "{run}",
    "export": "{run}",
    "report": "{study}",
    "predict": "{study}",
    "jobs": "{jobs}",
    "advise": "env=acrobot",  # what makes the rest a command that would do something
    "fragments": "env=acrobot",
}
# Of these the commands that are there: a copy of the core alone has those of no wing.
_PATHS = {door: path for door, path in _PATHS.items() if importlib.util.find_spec(f"ddppo.{door}")}
_OF_OTHERS = (
    "env=cartpole",
    "dist.world_size=2",
    "episodes=3",
    "what_if={}",
    "fit_on=1",
    "tail=x",
    "video=true",
    "wait=true",
)
_SMALL = {
    "fragments": (
        *(line for line in LINES if not line.startswith("resume=")),
        *(
            "format=png",
            "format=",
            "format=svg out=/proc/nothing",
            "format=svg out={empty}",
            "env=nope",
            "foo",
        ),
        *(
            "distributed=ddp,sync_actors",
            "-m distributed=ddp,sync_actors",
            "seed=1,2",
            "--format=svg",
            "{run}",
        ),
    ),
    "evaluate": (
        *(
            "{empty}",
            "{file}",
            "{missing}",
            "{list}",
            "{foreign}",
            "{uncheckpointed}",
            "{damaged}",
            "{run} {run}",
            "",
        ),
        *(
            "{run} checkpoint=nothing",
            "{run} checkpoint={file}",
            "{run} checkpoint={empty}",
            "{run} checkpoint=",
            "{run} seed=1e30",
        ),
        *(
            "{run} device=cuda",
            "{run} device=tpu",
            "{run} video_format=gif",
            "{run} --episodes=3",
            "run={run} run={run}",
        ),
        *(
            "{run} episodes=1_0.5",
            "run=",
            "run=null",
            "{run} checkpoint=null",
            "-m {run}",
        ),
        *(
            "run=[{run},{run}]",
            "run=[{run},{missing}]",
            "{run} others=[{run}]",
            "{run} seeds=[0,0]",
            "{run} seeds=[-1]",
            "{run} seeds=0 seed=1",
            "{run} seeds=many",
            "{run} seeds=[0] seed=1",
            "{run} out=/no/such/x.json",
        ),
    ),
    "enjoy": (
        *(
            "{empty}",
            "{missing}",
            "{foreign}",
            "{uncheckpointed}",
            "{run} {run}",
            "",
            "{run} out=x.png",
            "{run} out=/no/such/x.gif",
            "{run} out=",
        ),
        *(
            "{run} checkpoint=nothing",
            "{run} fps=0",
            "{run} fps=fast",
            "{run} episodes=0",
            "{run} deterministic=perhaps",
            "{run} video=true",
        ),
    ),
    "export": (
        *(
            "{empty}",
            "{missing}",
            "{foreign}",
            "{uncheckpointed}",
            "{damaged}",
            "{run} {run}",
            "",
            "{run} format=pickle",
            "{run} format=torch out=x.onnx",
        ),
        *(
            "{run} format=torch out=x",
            "{run} format=torch checkpoint=nothing",
            "{run} format=torch out=",
            "{run} format=",
            "--format=onnx {run}",
        ),
    ),
    "report": (
        *(
            "{empty}",
            "{file}",
            "{missing}",
            "{study} {study}",
            "",
            "{study} out={file}",
            "{study} out={file}/x",
        ),
        *(
            "{study} env=Nope-v0",
            "{study} rule=weak",
            "{study} columns={a:b}",
            "{study} what_if={nothing:1}",
            "{study} what_if=[1]",
        ),
        *(
            "{study} what_if={latency_s:-1}",
            "{study} what_if={latency_s:slow}",
            "{study} what_if={a",
            "{study} target_return=nan",
        ),
        *(
            "{study} target_return=inf",
            "{study} predict_to=0",
            "{study} out=/proc/nothing",
            "path={missing}",
        ),
        *(
            "{summary}",
            "{csv} columns={fps:nothing}",
            "{csv} columns=[1]",
            "{csv} rule=strange",
            "{text}.csv",
            "{study} out=",
        ),
    ),
    "predict": (
        *(
            "{empty}",
            "{file}",
            "{missing}",
            "{run}",
            "{study} {study}",
            "",
            "{study} world_sizes=0",
            "{study} world_sizes=many",
        ),
        *(
            "{study} world_sizes=[]",
            "{study} world_sizes=1.5",
            "{study} world_sizes=-1",
            "{study} world_sizes={a:1}",
            "{study} fit_on=7",
        ),
        *(
            "{study} fit_on=1,2,4",
            "{study} fit_on=",
            "{study} fit_on=1,2 latency_s=1",
            "{study} published={world_size:2,speedup:1}",
        ),
        *(
            "published={world_size:2}",
            "published=3",
            "published={world_size:a,speedup:b}",
            "published={world_size:0,speedup:1}",
        ),
        *(
            "published={world_size:128,speedup:300}",
            "published={world_size:8,speedup:-1}",
            "published={world_size:8,speedup:.nan}",
        ),
        *(
            "{study} latency_s=pigeon",
            "{study} bandwidth=0",
            "{study} rule=week",
            "{study} env=Nope-v0",
            "{study} fit_rule=weak",
        ),
        *(
            "{study} world_sizes=1e30",
            "{study} num_envs=7 world_sizes=3",
            "{study} slow_factor=0",
            "{study} cores_per_worker=0",
        ),
        *(
            "{study} num_parameters=0",
            "{study} target_return=inf",
            "{study} world_sizes=[1,[2]]",
            "{study} world_sizes=",
        ),
    ),
    "jobs": (
        *(
            "{empty}",
            "{file}",
            "{missing}",
            "{run}",
            "{study}",
            "",
            "{jobs} {jobs}",
            "{jobs} wait=true cancel=true",
            "{jobs} tail=",
        ),
        *(
            "{jobs} tail=nothing",
            "{jobs} lines=0",
            "{jobs} lines=many",
            "{jobs} poll_s=0",
            "{jobs} tail=x cancel=true",
            "{badjobs}",
        ),
        *(
            "{jobs} lines=5",
            "{jobs} poll_s=1",
            "{jobs} poll_s=inf wait=true",
            "{jobs} cancel=perhaps",
            "folder=",
            "--wait {jobs}",
        ),
    ),
    "advise": (
        *(
            "env=acrobot,pendulum",
            "env=nope",
            "env.id=A-v0,B-v0",
            "seed=1,2",
            "dist.world_size=11",
            "dist.world_size=1,11",
            "dist.world_size=1,many",
            "dist.world_size=0",
        ),
        *(
            "sweep=x",
            "resume={run}",
            "hydra.run.dir=x",
            "objective=eval_return",
            "-m env=acrobot",
            "--budget_s=30",
            "hydra/launcher=joblib",
            "hydra.launcher.partition=cpu",
        ),
        *(
            "hydra/launcher=slurm",
            "hydra/launcher=slurm dist.world_size=1,2 scaling=weak",
            "hydra/launcher=slurm dist.world_size=1,2 ppo.gamma=0.9,0.8",
            "predict=",
            "predict=0",
            "predict=many",
            "predict=1.5",
        ),
        *(
            "steps_to_target={missing}",
            "steps_to_target={empty}",
            "steps_to_target={study}",
            "steps_to_target=0",
            "steps_to_target=-5",
            "env.kwargs.x=1,2 dist.world_size=11",
            "ppo.num_minibatches=1e9,2",
        ),
    ),
}


def _options(door: str) -> list[Any]:
    sections = {
        "evaluate": ("ddppo.evaluate:EvaluateConfig",),
        "enjoy": ("ddppo.enjoy:EnjoyConfig",),
        "export": ("ddppo.policies.export.command:ExportConfig",),
        "report": ("ddppo.study.report:ReportOptions",),
        "predict": ("ddppo.study.predict.command:PredictConfig", "ddppo.study.predict.model:WhatIf"),
        "jobs": ("ddppo.cluster.command:JobsConfig",),
        "advise": ("ddppo.study.advise.command:AdviseConfig",),
        "fragments": ("ddppo.fragments:FragmentsConfig",),
    }[door]
    return [item for section in sections for item in fields(imported(section))]


def _small_door(draw: random.Random, door: str) -> tuple[list[str], str]:
    options = _options(door)
    names = [item.name for item in options]
    kind = draw.choice(("type", "name", "special", "special", "other door", "unreadable"))
    if kind == "special":
        return draw.choice(_SMALL[door]).split(" "), kind
    if kind == "other door":
        others = [o for o in _OF_OTHERS if o.partition("=")[0] not in names]
        if door in ("advise", "fragments"):  # which take settings of the train door
            others = [o for o in others if not o.startswith(("env", "dist"))]
        return [_PATHS[door], draw.choice(others)], kind
    if kind == "name":
        name = draw.choice([n for n in names if len(n) > 2])
        while (wrong := _misspelt(draw, name)) in names:
            pass
        return [_PATHS[door], f"{wrong}=1"], kind
    typed = [item for item in options if item.type not in (str, str | None, Any) or item.metadata["choices"]]
    item = draw.choice(typed)
    if kind == "unreadable":
        return [_PATHS[door], f"{item.name}={draw.choice(UNREADABLE)}"], kind
    while (value := _wrong_value(draw, item)) is None:
        item = draw.choice(typed)
    return [_PATHS[door], f"{item.name}={value}"], kind


_TRAIN: dict[str, Callable[[random.Random], list[str]]] = {
    "type or range": _train_type_or_range,
    "name": _train_name,
    "option": _train_option,
    "unreadable": _train_unreadable,
    "word": _train_word,
    "flag": _train_flag,
    "combination": _train_combination,
    "sweep": _train_sweep,
}
_SHARE = {
    "combination": 5,
    "sweep": 3,
    "type or range": 3,
    "name": 1,
    "option": 1,
    "unreadable": 1,
    "word": 1,
    "flag": 1,
}


def cases(number: int, seed: int = 0) -> list[Case]:
    """Return so many different wrong command lines, the same ones for the same seed."""
    draw = random.Random(seed)
    found: dict[tuple[str, ...], Case] = {}
    while len(found) < number:
        door = draw.choices(("train", *_PATHS), (10, *(2 for _ in _PATHS)))[0]
        if door == "train":
            kind = draw.choices(list(_SHARE), list(_SHARE.values()))[0]
            wrong = _TRAIN[kind](draw)
            right = [] if "resume" in " ".join(wrong) else _beside(draw, wrong)
            cut = draw.randint(0, len(right)) if kind not in ("flag", "sweep", "combination") else len(right)
            arguments = [*right[:cut], *wrong, *right[cut:]]
        else:
            arguments, kind = _small_door(draw, door)
        arguments = [a for a in arguments if a]
        found.setdefault((door, *arguments), Case(door, tuple(arguments), kind))
    return list(found.values())


def _beside(draw: random.Random, wrong: list[str]) -> list[str]:
    """Return settings that are right, none of them about what the wrong ones are about."""
    taken = {w.lstrip("+~").partition("=")[0].partition(".")[0] for w in wrong}
    right = [
        r for r in (*SMALL, *draw.sample(RIGHT, 2)) if r.partition("=")[0].partition(".")[0] not in taken
    ]
    return (
        right
        if not any(w.startswith("env") for w in wrong)
        else [r for r in right if not r.startswith("env")]
    )


# -- trying them ----------------------------------------------------------------------------------------------------


class Started(BaseException):
    """Training began: the command line was accepted."""


class Playground:
    """A folder with runs, studies and what is neither, in which doors are called in this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {
            name: name for name in ("run", "empty", "file", "missing", "list", "foreign", "damaged")
        }
        self.paths |= {name: name for name in ("uncheckpointed", "study", "jobs", "badjobs")}
        self.paths |= {"summary": "run/summary.json", "csv": "table.csv", "text": "text"}
        with contextlib.chdir(root), _called("train", [*SMALL, "eval.final_episodes=0", "hydra.run.dir=run"]):
            importlib.import_module("ddppo.train").main()
        (root / "empty").mkdir()
        (root / "file").write_text("no folder\n")
        (root / "table.csv").write_text("world_size,fps\n1,100\n2,180\n")
        for name in ("list", "foreign", "damaged", "uncheckpointed"):
            shutil.copytree(root / "run", root / name)
        (root / "list" / "config.yaml").write_text("- 1\n- 2\n")
        (root / "foreign" / "config.yaml").write_text("version: 2\nservices: {web: {}}\n")
        (checkpoint,) = (root / "damaged" / "checkpoints").glob("iteration_*.pt")
        checkpoint.write_bytes(checkpoint.read_bytes()[:500])
        shutil.rmtree(root / "uncheckpointed" / "checkpoints")
        for world_size in (1, 2) if "report" in _PATHS else ():
            from tests.study.test_prediction_door import write_run

            write_run(root / "study" / f"W{world_size}", world_size, 0.1 / world_size)
        (root / "jobs").mkdir()
        job = {
            "job_id": "12",
            "run": "r",
            "world_size": 1,
            "total_steps": 9,
            "log": "r.log",
            "submitted": "",
        }
        (root / "jobs" / "jobs.json").write_text(json.dumps({"slurm_conf": None, "jobs": [job]}))
        (root / "badjobs").mkdir()
        (root / "badjobs" / "jobs.json").write_text("[1]")

    def faults(self, case: Case) -> tuple[list[str], str]:
        """Call the door; return what its answer lacks, nothing if all is well, and the answer."""
        before = _contents(self.root)
        code, stdout, stderr = self._answer(case)
        lines = stderr.splitlines()
        found = []
        if code in (0, None):
            found.append(f"exit code {code}")
        if "Traceback" in stderr or "Traceback" in stdout:
            found.append("a traceback")
        of_runs = [
            line for line in lines if line.startswith(("-- ", "sweep "))
        ]  # of a sweep, each run is told
        listed = [line for line in lines if line.startswith("  ")]
        said = [line for line in lines if line not in of_runs and line not in listed]
        if len(said) + bool(of_runs) != 1 or not all(line.startswith("error: ") for line in said):
            found.append("not one paragraph that begins with error:")
        if stdout:
            found.append("words on stdout")
        if len(stderr) > 1_000 + 300 * (len(of_runs) + len(listed)):
            found.append(f"{len(stderr)} characters")
        after = _contents(self.root)
        if changed := sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        ):
            found.append(f"changed on disk: {', '.join(changed[:5])}")
        return found, stderr or stdout

    def _answer(self, case: Case) -> tuple[Any, str, str]:
        arguments = [_filled(argument, self.paths) for argument in case.arguments]
        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        with (
            contextlib.chdir(self.root),
            _called(case.door, arguments),
            _no_ranks(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                importlib.import_module(f"ddppo.{case.door}").main()
            except SystemExit as e:
                code = e.code
            except Started:
                err.write("training began\n")
            except BaseException:
                code = 1
                traceback.print_exc(file=err)
        return code, out.getvalue(), err.getvalue()


def _filled(argument: str, paths: dict[str, str]) -> str:
    for name, path in paths.items():
        argument = argument.replace(f"{{{name}}}", path)
    return argument


@contextlib.contextmanager
def _called(door: str, arguments: list[str]) -> Iterator[None]:
    with (
        mock.patch.object(sys, "argv", [f"{door}.py", *arguments]),
        mock.patch.dict(os.environ),
        mock.patch.object(sys, "path", list(sys.path)),
    ):
        yield


@contextlib.contextmanager
def _no_ranks() -> Iterator[None]:
    starts = ["ddppo.loop.rank.train_rank", "ddppo.launch.local_ranks.start_ranks"]
    starts += (
        ["ddppo.study.advise.command.Probes", "ddppo.study.advise.race._runs"] if "advise" in _PATHS else []
    )
    starts += ["ddppo.cluster.submit.submitit.SlurmExecutor"] if "jobs" in _PATHS else []
    with contextlib.ExitStack() as patches:
        for start in starts:
            patches.enter_context(mock.patch(start, side_effect=Started))
        if "jobs" in _PATHS:
            patches.enter_context(mock.patch("ddppo.cluster.slurm.command", return_value="MaxArraySize = 9"))
        yield


def _contents(root: Path) -> dict[str, str]:
    """Return every path below a folder with what it holds."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in root.rglob("*")
    }


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = next((int(a.removeprefix("seed=")) for a in sys.argv if a.startswith("seed=")), 0)
    with tempfile.TemporaryDirectory() as folder:
        playground = Playground(Path(folder))
        failed = 0
        for case in cases(number, seed):
            faults, answer = playground.faults(case)
            failed += bool(faults)
            if faults or "show" in sys.argv:
                print(
                    f"{case}\n    {'; '.join(faults) or 'well answered'}\n    "
                    + answer.strip().replace("\n", "\n    ")
                )
            if any(fault.startswith("changed") for fault in faults):
                shutil.rmtree(playground.root)
                playground.root.mkdir()
                playground = Playground(playground.root)
    print(f"{number} wrong command lines, {failed} of them not answered as they should be")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
