"""Probes as jobs of a SLURM cluster: a short sweep over W and seeds, read as any other."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ddppo.config import batch_shape
from ddppo.errors import ConfigError, TrainingError
from ddppo.study.advise.candidates import Candidate, Question, W
from ddppo.study.advise.probe import QUIET, Slice, temporary_folder
from ddppo.study.advise.race import Entrant
from ddppo.study.read.record import PARTS, Run
from ddppo.study.read.run_folders import read_runs

_SEEDS = 3  # a round each
_ITERATIONS = 12  # of which warm-up is left out, as in any run


def through_slurm(asked: Question, todo: Sequence[Candidate]) -> list[Entrant]:
    """Submit, wait, and return what the jobs did; a round is a seed. Raises ConfigError, TrainingError.

    The folder is one below the current, which nodes must share, and is gone afterwards.
    """
    if others := asked.axes.keys() - {W}:
        raise ConfigError(f"{min(others)}: only {W} may have several values on SLURM")
    if not asked.names(W):
        raise ConfigError(f"hydra/launcher=slurm probes the W that are given: add {W}=1,2,4,8")
    if todo[0].config.scaling.rule == "weak":
        raise ConfigError(
            "scaling=weak learns otherwise at every W, which steps/s do not tell: make a whole sweep"
        )
    with temporary_folder(Path.cwd()) as folder:
        runs = _runs(asked, todo, folder)
    return [_entrant(each, [run for run in runs if run.world_size == each.world_size]) for each in todo]


def _runs(asked: Question, todo: Sequence[Candidate], folder: str) -> list[Run]:
    steps = _ITERATIONS * batch_shape(todo[0].config).batch_size
    mine = [f"{W}={','.join(str(c.world_size) for c in todo)}", f"ppo.total_steps={steps}", f"sweep={folder}"]
    if not asked.names("seed"):
        mine.append(f"seed=range({_SEEDS})")
    if not asked.names("hydra.launcher.one_at_a_time"):
        mine.append("hydra.launcher.one_at_a_time=true")
    command = [sys.executable, "-m", "ddppo.train", "-m", *asked.fixed, *QUIET, *mine]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            process.wait()
        except KeyboardInterrupt:  # which it has met too, and cancels its jobs
            process.wait()
    found = read_runs(Path(folder))
    if not found.runs:
        why = f": {found.left_out[0].reason}" if found.left_out else ""
        raise TrainingError(f"no probe came to its end on SLURM{why}; its own words are above")
    return found.runs


def _entrant(candidate: Candidate, runs: Sequence[Run]) -> Entrant:
    rounds = {}
    for run in runs:
        t_iter = run.times["t_iter"].mean()
        rounds[run.seed] = Slice(run.fps, {part: float(run.times[part].mean() / t_iter) for part in PARTS})
    return Entrant(candidate, rounds=rounds, out="" if rounds else "no job of it came to its end")
