"""A layout as programs: `python -m ddppo.fragments out=<folder>` writes a short Python file for each role of a run.

`write_programs` fills the templates in ddppo/templates/fragments: a folder for each topology, with a file for each role
and the role's whole story in it; sync_actors and multi_learner share one. A template is a program with {{ values }} and
lines `#: if`, which choose what this run needs. The files import what topologies consist of (environments, collectors,
learners, messages, collectives), and no `Topology`; so they are what a topology of one's own can start from
(docs/guide/topology.md).
"""

import ast
import re
import shlex
import sys
import textwrap
from collections import Counter
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddppo import native
from ddppo.algorithms.build import algorithm_class, build_networks
from ddppo.algorithms.task_sampler import hands_over, make_sampler
from ddppo.config.rank_rules import batch_shape
from ddppo.config.settings import Config
from ddppo.config.stored import to_yaml
from ddppo.device import takes_accelerator
from ddppo.distributed.join import THREADS_PAY_FROM
from ddppo.distributed.topologies.contract import Layout
from ddppo.distributed.topologies.drawing import as_text, ranks_in_words, size_in_words
from ddppo.distributed.topologies.known import find
from ddppo.distributed.topologies.settings import AsyncActorsSettings
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.files import stored
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.recurrent import Core
from ddppo.package import command
from ddppo.ppo.cpp.network import why_not_cpp
from ddppo.scaling import BatchShape

_TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "fragments"
_WIDTH = 118  # of comments


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless programs can be written into `folder`."""
    if folder.is_file():
        raise ConfigError(
            f"out={folder} is a file: name a new folder for programs, or add format=svg for the picture"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"out={folder} exists and holds other files: name a new folder, or an empty one")


def write_programs(config: Config, layout: Layout, folder: Path, arguments: list[str]) -> list[Path]:
    """Write the programs of a run's roles into `folder`, and return the paths of the files.

    arguments: the settings on the command line. Raises ConfigError if there are no programs for this run.
    """
    check_folder(folder)
    if reason := _why_none(config):
        raise ConfigError(f"{reason}: for this run there is only the picture, which is drawn without out=")
    jinja = Environment(
        loader=FileSystemLoader(_TEMPLATES), line_statement_prefix="#:", undefined=StrictUndefined,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    values = _values(config, layout, [*arguments, f"out={folder}"])
    texts = {path.name: jinja.get_template(path.name).render(values) for path in _TEMPLATES.glob("*.*")}
    folder_of = _folder_of(config.dist.topology)
    for path in sorted((_TEMPLATES / folder_of).glob("*.py")):
        text = jinja.get_template(f"{folder_of}/{path.name}").render(values)
        # jinja takes the blank lines around an `#: if` away.
        texts[path.name] = without_unused_imports(re.sub(r"\n+(# \d\. )", r"\n\n\1", text))
    texts["config.yaml"] = to_yaml(config)
    with stored(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _folder_of(topology: str) -> str:
    """Return the folder of a topology's templates: sync_actors is multi_learner with one learner."""
    return "sync_actors" if topology == "multi_learner" else topology


def _why_none(config: Config) -> str | None:
    """Return why there are no programs for this run, as the beginning of a sentence; None if there are."""
    dist, spec = config.dist, probe(config.env)
    known = sorted(["multi_learner", *(path.name for path in _TEMPLATES.iterdir() if path.is_dir())])
    if dist.topology not in known:
        return f"distributed={dist.topology}: programs are written for {', '.join(known)}"
    if isinstance(dist, AsyncActorsSettings) and dist.max_lag != 0:
        return "distributed=async_actors: its programs go in step: add dist.max_lag=0"
    # Tasks with more than seeds and steps.
    if spec.is_text:
        return f"env.id={config.env.id}: programs do not know tasks of text"
    if spec.journal is not None:
        return f"env.id={config.env.id}: programs do not know environments that send one another messages"
    if name := make_sampler(config, spec, config.env.num_envs).name:
        return f"programs do not know a {name}, which chooses the tasks of episodes"
    # Settings that the loop or the launcher carries out.
    others = {
        f"resume={config.resume}": config.resume is not None,
        f"init_from={config.init_from}": config.init_from is not None,
        f"on_nonfinite={config.on_nonfinite}": config.on_nonfinite != "stop",
        "dist.reduction=ordered": dist.reduction == "ordered",
        "dist.grad_sync=ddp": dist.grad_sync == "ddp",
        f"dist.on_lost={dist.on_lost}": dist.on_lost != "stop",
        f"{config.training.section}.rollouts_per_update": config.training.rollouts_per_update is not None,
    }
    given = [name for name, is_given in others.items() if is_given]
    return f"programs do not know {' and '.join(given)}" if given else None


def _values(config: Config, layout: Layout, arguments: list[str]) -> dict[str, Any]:
    """Return the values that the templates name."""
    spec, shape = probe(config.env), batch_shape(config)
    model, kind, training = build_networks(config, spec), algorithm_class(config), config.training
    own_learner = kind.learner_class  # of PPO and GRPO
    # The code that computes, as the run would choose it (loop/compute.py); torch.compile is left out.
    may_use_cpp = (
        own_learner is not None and config.compile in ("auto", "on") and not takes_accelerator(config.device)
    )
    in_cpp = may_use_cpp and why_not_cpp(config, model, torch.device("cpu"), "flat") is None
    work = 0 if in_cpp else model.num_products() * shape.minibatch_size // len(layout.learning)
    has_memory = any(isinstance(module, Core) for module in model.modules())
    has_whole_episodes = hands_over(config, spec) != "steps"
    episode_rows = ", episode_rows=T" if has_whole_episodes else ""
    # Of each kind of message, by the first word of its name.
    ways, sizes = {"gradients": "one rank alone: nothing travels"}, {}
    for message in layout.messages:
        name, size = message.what.split()[0], size_in_words(message.num_bytes)
        times = "once" if message.times == 1 else f"{message.times} times"
        ways[name], sizes[name] = f"{message.how}, {times}, {size}", size
    return {
        # run_settings.py
        "seed": config.seed,
        "total_steps": training.total_steps,
        "rollout_steps": shape.rollout_steps,
        "envs": repr({rank: shape.env_indices(place) for place, rank in enumerate(layout.stepping)}),
        "shape": _literal(shape.over(len(layout.learning))),
        "num_learning": len(layout.learning),
        # sync_actors and multi_learner: ranks are ordered learner, its actors, next learner, its actors, ...
        "several": config.dist.topology == "multi_learner",  # learners
        "learning": list(layout.learning),
        "teams": [list(range(*ends)) for ends in pairwise((*layout.learning, layout.world_size))],
        # main.py and run.sh
        "world_size": config.dist.world_size,
        "roles": "{" + ", ".join(f'"{role.name}": {role.ranks}' for role in layout.roles) + "}",
        "picture": as_text(layout, f"{config.dist.topology}: {find(config.dist.topology).meaning}"),
        "python": "python" if command("ddppo").startswith("python ") else shlex.quote(sys.executable),
        # Comments.
        "made_by": _wrapped(f"Made by: {command('ddppo.fragments', *arguments)}"),
        "ranks": {role.name: ranks_in_words(role.ranks) for role in layout.roles},
        "messages": ways,
        "sizes": sizes,
        "networks": _networks(model),
        "parameter_bytes": size_in_words(sum(p.numel() * p.element_size() for p in model.parameters())),
        # What the run needs.
        "algorithm": own_learner is None,
        "learner_class": "AlgorithmLearner" if own_learner is None else own_learner.__name__,
        "synchronised": repr(kind.synchronised),
        "whole_episodes": has_whole_episodes,
        "collector_class": "EpisodeCollector" if has_whole_episodes else "Collector",
        "rollout_message": f"RolloutMessage(with_raw_obs={training.normalize_obs}{episode_rows})",
        "sizes_vary": has_whole_episodes or kind.needs_successors,
        "normalize_obs": training.normalize_obs,
        "obs_normalizer": "obs_normalizer" if training.normalize_obs else "None",
        "normalize_rewards": training.normalize_rewards,
        "cpp": in_cpp,
        "work": work,  # multiplications of a minibatch: with many, or by dist.threads_per_rank, several threads compute
        "threads": config.dist.threads_per_rank is not None or work >= THREADS_PAY_FROM,
        "recurrence_in_cpp": may_use_cpp and has_memory and native.why_not() is None,
    }


def _literal(shape: BatchShape) -> str:
    """Return the call that makes `shape`, with T for its rollout_steps."""
    words = ["rollout_steps=T"]
    for f in fields(shape):
        value = getattr(shape, f.name)
        if f.name != "rollout_steps" and (f.default is MISSING or value != f.default):
            words.append(f"{f.name}={value!r}")
    return f"BatchShape({', '.join(words)})"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _networks(model: ActorCritic) -> str:
    """Return the class of the networks, and the numbers of their parameters by the first word of the names."""
    counts: Counter[str] = Counter()
    for name, p in model.named_parameters():
        counts[name.partition(".")[0]] += p.numel()
    parts = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    return f"{type(model).__name__}, parameters: {parts}"


def without_unused_imports(text: str) -> str:
    """Return a program without the names that it imports and does not use: a template imports for all its variants."""
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = text.splitlines(keepends=True)
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom):
            kept = [alias.name for alias in node.names if alias.name in used]
            line = f"from {node.module} import {', '.join(kept)}\n"
            if len(line) > _WIDTH:
                line = f"from {node.module} import (\n" + "".join(f"    {name},\n" for name in kept) + ")\n"
            lines[node.lineno - 1 : node.end_lineno] = [line] if kept else []
    return "".join(lines)
