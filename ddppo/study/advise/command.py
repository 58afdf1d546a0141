"""`python -m ddppo.advise`: which settings are fastest on this machine? Probe, choose, print. Imports no torch."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from pathlib import Path
from statistics import median

from ddppo import package
from ddppo.config.fields import setting, written_out
from ddppo.config.settings import Config
from ddppo.errors import ConfigError, TrainingError
from ddppo.options import whole_numbers
from ddppo.processes.forking import ForkServerLost
from ddppo.processes.machine import available_cores
from ddppo.study.advise import text
from ddppo.study.advise.candidates import (
    Candidate,
    Question,
    candidates,
    changes_learning,
    question,
    variants,
)
from ddppo.study.advise.probe import Probes
from ddppo.study.advise.race import Entrant, Race, choose, through_slurm
from ddppo.study.advise.text import stragglers
from ddppo.study.measure.speedup import steps_to_target
from ddppo.study.read.run_folders import read_runs
from ddppo.study.read.selection import with_target

_FIRST_STAGE = 0.7  # of the time; the rest is for variants of the best candidate


@dataclass(slots=True)
class AdviseConfig:
    budget_s: float = setting(60.0, "seconds for all probes, except jobs of SLURM", low=10, high=86400)
    steps_to_target: str | None = setting(
        None,
        "environment steps until the target, or a sweep folder whose runs reached it; null is "
        "total_steps of the algorithm, as ppo.total_steps",
    )
    price_per_worker_hour: float | None = setting(
        None, "price of a worker for an hour, in any currency", low=0
    )
    tolerance: float = setting(
        0.05,
        "speeds that differ by no more than this count as equal, and fewer workers win",
        above=0,
        high=0.5,
    )
    predict: str | None = setting(None, "W to predict from those measured, e.g. 64,128")


def advise(options: AdviseConfig, overrides: Sequence[str], began: float) -> None:
    """Probe, choose and print; after Ctrl-C, print the results so far. Raises ConfigError, TrainingError."""
    # 1. The candidates.
    asked, cores = question(overrides), available_cores()
    todo = candidates(asked, cores)
    bill, predict = _bill(options, todo[0].config), whole_numbers("predict", options.predict)
    own_cores = inf if asked.through_slurm else cores
    # 2. Probe them, here or on SLURM.
    stages: list[list[Entrant]] = []
    try:
        if asked.through_slurm:
            stages.append(through_slurm(asked, todo))
        else:
            _race(asked, todo, cores, began + options.budget_s, options.tolerance, stages)
    except ForkServerLost as e:
        raise TrainingError(f"the process that probes fork from {e}") from None
    finally:
        # 3. Print the table and the choice of each stage, then the command of the last choice.
        chosen, waited_for = None, ""
        for number, entrants in enumerate(stages):
            if found := choose(entrants, options.tolerance, own_cores):
                chosen = found.candidate
                ahead, law = text.predicted(entrants, found, [] if number else predict, own_cores)
                print(f"\n{text.table(entrants, found, bill, ahead)}\n")
                print(
                    "\n".join(
                        filter(
                            None,
                            [*text.sureness(entrants, found, options.tolerance), law, text.company(entrants)],
                        )
                    )
                )
                waited_for = stragglers(found, asked)
        if chosen is not None:
            if waited_for:
                print(waited_for)
            _say_command(asked, chosen)
            print(f"{time.monotonic() - began:.0f} s{'' if asked.through_slurm else f' on {cores} cores'}.")
    if chosen is None:
        raise TrainingError(
            f"budget_s={options.budget_s:g} was over before there was a round of probes: give more, or a smaller batch "
            f"(env.num_envs, {todo[0].config.training.section}.rollout_steps)"
        )


def _race(
    asked: Question, todo: Sequence[Candidate], cores: int, until: float, tolerance: float,
    stages: list[list[Entrant]],
) -> None:  # fmt: skip
    """Fill `stages`: first the candidates `todo`, then, all started anew, the best of them and its variants."""
    with Probes(asked.of_run) as probes:
        # First stage: all candidates.
        first = Race(probes.start, until, tolerance, _say)
        stages.append(first.entrants)
        first.enter(todo)
        first.run(time.monotonic() + _FIRST_STAGE * (until - time.monotonic()))
        # Is there time for variants of the best? If not, use it for more rounds.
        best = choose(first.entrants, tolerance, cores)
        more = variants(best.candidate, best.parts(), asked, cores) if best is not None else []
        if best is None or not more or time.monotonic() + 2 * first.seconds_with_one_more() > until:
            first.run()
            return
        for _, probe in first.running:
            probe.close()
        # Second stage: end the others, and race the best against its variants from new starts.
        second = Race(probes.start, until, tolerance, _say)
        stages.append(second.entrants)
        second.enter([best.candidate, *more])
        second.run()


def _say_command(asked: Question, chosen: Candidate) -> None:
    """Print the command of the chosen candidate, and a warning if it may learn less from a step."""
    if changed := changes_learning(asked, chosen):
        print(f"Steps/s were compared; {', '.join(changed)} may change how much is learnt from a step.")
    sweep = ["-m"] if asked.through_slurm else []
    print(f"\n{package.command('ddppo.train', *sweep, *asked.fixed, *chosen.overrides)}\n")


def _bill(options: AdviseConfig, config: Config) -> text.Bill:
    """Return the steps that training needs: as given, as other runs needed, or total_steps. Raises ConfigError."""
    # A number, or a sweep folder.
    given, steps = options.steps_to_target, float(config.training.total_steps)
    if given is not None:
        steps = float(written_out(given)) if written_out(given).isdigit() else _steps_of_runs(given, config)
    if not steps:
        raise ConfigError(f"steps_to_target={given}: must be at least 1")
    return text.Bill(steps, options.price_per_worker_hour)


def _steps_of_runs(folder: str, config: Config) -> float:
    """Return the median steps of a sweep's runs to the target of `config`, or to their own. Raises ConfigError."""
    if not Path(folder).is_dir():
        raise ConfigError(f"steps_to_target={folder}: neither a number of steps nor a sweep folder")
    runs = [run for run in read_runs(Path(folder)).runs if run.env_id == config.env.id]
    took = [steps_to_target(run) for run in with_target(runs, config.target_return)[0]] if runs else []
    if not (known := [steps for steps in took if not isnan(steps)]) or not isfinite(median(known)):
        raise ConfigError(
            f"steps_to_target={folder}: of its {len(runs)} usable runs of {config.env.id} most reached no target; give "
            "a target_return that they did reach, or a number of steps"
        )
    return median(known)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
