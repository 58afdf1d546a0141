"""The command `python -m ddppo.evaluate`: play trained policies, and report their scores.

`main` prints, `evaluate` returns the text (for ddppo.api), and both call `_evaluated`.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddppo import Command, device
from ddppo.config.fields import setting
from ddppo.config.settings import eval_seed
from ddppo.errors import AfterTrainingError, ConfigError, StorageError, TrainingError, in_one_line
from ddppo.files import jsonable, stored, write_json
from ddppo.options import door, parse
from ddppo.package import command
from ddppo.policies.zoo import MEANING as ZOO
from ddppo.policies.zoo import run_folder
from ddppo.processes.signals import is_program
from ddppo.terminal import printed_to_stderr, warn

if TYPE_CHECKING:
    from ddppo.policies.loading import Trained

_USAGE = """python -m ddppo.evaluate outputs/cartpole/<stamp> [episodes=100] [video=true] [json=true] ...
python -m ddppo.evaluate outputs/cartpole/* seeds=[0,1] out=scores.json
python -m ddppo.evaluate zoo=cartpole                  # a policy that comes with ddppo (docs/workloads.md)"""


@dataclass(slots=True)
class EvaluateConfig:
    run: str = setting("", "the run folder")
    zoo: str | None = setting(None, ZOO)
    others: list[str] = setting(
        meaning="further run folders: words without a name, or run=[a,b]", factory=list
    )
    checkpoint: str = setting("last", "last, best, or the path of a checkpoint file")
    episodes: int = setting(
        100, "number of episodes; for text the next multiple of the number of tasks", low=1
    )
    seed: int | None = setting(None, "root of the episodes' seeds; null is the run's own", low=0)
    seeds: list[int] = setting(
        meaning="several roots, e.g. [0,1,2]; `episodes` episodes for each", factory=list
    )
    deterministic: bool = setting(True, "take the likeliest action; false draws it, as training does")
    video: bool = setting(False, "record one episode (needs the extra video)")
    video_format: str = setting("mp4", "format of the video", choices=("mp4", "gif"))
    json: bool = setting(False, "print one JSON object instead of text")
    out: str | None = setting(None, "file that also receives the JSON object")
    device: str | None = setting(
        None,
        f"where the policy runs: {device.MEANING}. null is the CPU, or for environments that live on a device "
        "(env.backend=device) that of the run",
    )
    other_spaces: bool = setting(
        False, "play though the task has other observations or actions than the policy was trained on"
    )

    def check(self) -> None:
        if self.device is not None:
            device.check_name(self.device)


@door()
def main() -> None:
    """Run the command line.

    Exit codes: 0; 1 the evaluation failed; 2 a mistake in the command; 5 the scores are printed, but the video or the
    file `out` failed.
    """
    options = parse(EvaluateConfig, sys.argv[1:], path="run", more="others", usage=_USAGE)
    with printed_to_stderr() if options.json else nullcontext():  # a task may print
        report = _evaluated(options)
    print(report.text, flush=True)
    if options.json and is_program("ddppo.evaluate"):
        os.dup2(2, 1)  # a task may also print while this process ends
    if report.is_interrupted:
        raise KeyboardInterrupt
    if report.failed:
        raise AfterTrainingError("; ".join(report.failed))


def evaluate(options: EvaluateConfig) -> str:
    """Play the episodes and return the text of their scores. Raises ConfigError for a wrong folder or checkpoint."""
    report = _evaluated(options)
    if report.is_interrupted:
        raise KeyboardInterrupt
    for each in report.failed:
        warn(each)
    return report.text


class _Report(NamedTuple):
    text: str  # the scores, as text or JSON
    failed: list[str]  # steps that failed after there were scores, as sentences
    is_interrupted: bool  # by Ctrl-C: the scores are those until then


def _evaluated(options: EvaluateConfig) -> _Report:
    folders = _check(options)

    from ddppo.loop.evaluation import evaluator_of
    from ddppo.policies.loading import trained
    from ddppo.policies.scores import by_task, evaluated

    # 1. Read all runs before the first is played: a mistake in the last one costs no minutes.
    found = [
        trained(folder, options.checkpoint, options.device, other_spaces=options.other_spaces)
        for folder in folders
    ]
    for each in found:
        if options.video:
            _check_video(each, options)
    # 2. Play. With several runs, one that fails does not cost the scores of the others.
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    is_interrupted = False
    for each in found:
        seeds = options.seeds or [eval_seed(each.config) if options.seed is None else options.seed]
        try:
            results.append(evaluated(each, options.episodes, seeds, options.deterministic))
        except TrainingError as e:
            if len(found) == 1:
                raise
            failed.append(f"{each.run_dir} has no scores: {e}")
            continue
        except KeyboardInterrupt:
            is_interrupted = True
            break
        if options.video:
            try:
                results[-1] |= _recorded(each, seeds[0], options)
            except KeyboardInterrupt:
                is_interrupted = True
                break
            if why := results[-1].get("video_failed"):
                again = _again(each, seeds[0], options)
                failed.append(
                    f"the scores of {each.run_dir} stand, but its video failed: {why}; repeat it by: {again}"
                )
    if not results:
        raise KeyboardInterrupt if is_interrupted else TrainingError("; ".join(failed))
    # 3. Report: one run as it is, several as a table with intervals for each task.
    tasks = by_task(results)
    whole = results[0] if len(found) == 1 else {"runs": results, "tasks": tasks}
    if options.out is not None:
        try:
            write_json(Path(options.out), whole)
        except StorageError as e:
            failed.append(f"the scores stand, but {e}")
    if options.json:
        return _Report(json.dumps(jsonable(whole)), failed, is_interrupted)
    if len(found) == 1:
        return _Report(_text(results[0], evaluator_of(found[0].spec).unit), failed, is_interrupted)
    return _Report(_table(results, tasks), failed, is_interrupted)


def _check(options: EvaluateConfig) -> list[Path]:
    """Return the run folders that the options name. Raises ConfigError."""
    if options.video_format != "mp4" and not options.video:
        raise ConfigError(
            f"video_format={options.video_format} has no effect without a video: add video=true"
        )
    if options.seeds and options.seed is not None:
        raise ConfigError(f"seed={options.seed} and seeds={options.seeds}: give one of them")
    if any(seed < 0 for seed in options.seeds) or len(set(options.seeds)) < len(options.seeds):
        raise ConfigError(f"seeds={options.seeds}: different numbers, each at least 0")
    if options.zoo is not None and options.video:
        raise ConfigError(
            f"zoo={options.zoo} video=true: a video belongs to a run folder: use "
            f"{command('ddppo.enjoy', f'zoo={options.zoo}', 'out=policy.mp4')}"
        )
    run = run_folder(options.run, options.zoo)
    # run=[a,b] is a list, unless a folder has that name.
    is_list = run.startswith("[") and run.endswith("]") and not Path(run).exists()
    given = [word.strip() for word in run[1:-1].split(",")] if is_list else [run]
    given += options.others
    folders = [Path(folder) for folder in given]
    for i, folder in enumerate(folders):
        if folder.resolve() in [earlier.resolve() for earlier in folders[:i]]:
            raise ConfigError(f"run={folder} is given twice: name every run once")
    if len(folders) > 1 and options.checkpoint not in ("last", "best"):
        raise ConfigError(
            f"checkpoint={options.checkpoint} is one run's, and {len(folders)} runs are given: use last or best"
        )
    if options.out is not None and (Path(options.out).is_dir() or not Path(options.out).parent.is_dir()):
        raise ConfigError(f"out={options.out}: a file, in a folder that is there")
    return folders


def _check_video(each: "Trained", options: EvaluateConfig) -> None:
    """Raise ConfigError or TrainingError if a video would fail, before the episodes for the scores are played."""
    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.loading import refuse_text
    from ddppo.policies.pictures import check_pictures
    from ddppo.policies.playing import check_draws

    refuse_text(each, "video=true")
    check_pictures(Path(f"x.{options.video_format}"), "video=true")
    check_draws(LoadedPolicy(each), _video_path(each, options), "video=true")


def _recorded(each: "Trained", seed: int, options: EvaluateConfig) -> dict[str, Any]:
    """Record episode 0; return its file and its return, or why it failed. A failed video must not cost the scores."""
    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.playing import record
    from ddppo.seeding import derived_seed

    policy = LoadedPolicy(each, derived_seed(seed, "eval", 0))  # draws the same actions as the evaluation
    try:
        path = _video_path(each, options)
        (episode,) = record(
            policy, range(1), seed, path, asked="video=true", deterministic=options.deterministic
        )
    except (Exception, SystemExit) as e:  # the user's task and the encoder may raise anything
        why = str(e) if isinstance(e, (ConfigError, TrainingError)) else in_one_line(e)
        return {"video": None, "video_failed": why}
    return {"video_return": episode.episode_return, "video": str(path)}


def _video_path(each: "Trained", options: EvaluateConfig) -> Path:
    return _free_path(each.run_dir / "videos", f"steps_{each.state['env_steps']}", options.video_format)


def _again(each: "Trained", seed: int, options: EvaluateConfig) -> str:
    """Return the command that records only the video."""
    words = [
        f"run={each.run_dir}",
        f"checkpoint={options.checkpoint}",
        "episodes=1",
        f"seed={seed}",
        "video=true",
    ]
    words += [f"video_format={options.video_format}"] * (options.video_format != "mp4")
    words += ["deterministic=false"] * (not options.deterministic)
    return command("ddppo.evaluate", *words)


def _free_path(folder: Path, stem: str, suffix: str) -> Path:
    with stored(folder):
        folder.mkdir(exist_ok=True)
    number, path = 1, folder / f"{stem}.{suffix}"
    while path.exists():
        number += 1
        path = folder / f"{stem}_{number}.{suffix}"
    return path


def _text(r: dict[str, Any], unit: str) -> str:
    seeds = f"seed {r['seed']}" if "seed" in r else f"seeds {', '.join(map(str, r['seeds']))}"
    seeds += "" if r["deterministic"] else ", drawn actions"
    lines = [
        f"{r['env']}, {r['checkpoint']} at {r['env_steps']:,} steps, {r['episodes']:.0f} episodes, {seeds}",
        f"mean    {r['return_mean']:.2f} (std {r['return_std']:.2f}, {r['return_min']:.2f} to {r['return_max']:.2f})",
        f"median  {r['return_median']:.2f}",
        f"IQR     {r['return_p25']:.2f} to {r['return_p75']:.2f}, mean inside {r['return_iqm']:.2f}",
        f"95 %    mean {_interval(r['return_mean_interval'])}, mean inside {_interval(r['return_iqm_interval'])}",
        f"length  {r['length_mean']:.1f} {unit}",
    ]
    if "success_rate" in r:
        # Tasks of text may report the rate of success, also by tier.
        of_tiers = {k.removeprefix("success_rate_"): v for k, v in r.items() if k.startswith("success_rate_")}
        by_tier = ", ".join(f"{tier} {rate:.2f}" for tier, rate in of_tiers.items())
        lines.append(f"success {r['success_rate']:.2f}" + (f" ({by_tier})" if by_tier else ""))
    if r.get("video"):
        lines.append(f"video   {r['video']} (return {r['video_return']:.2f})")
    return "\n".join(lines)


def _table(results: Sequence[dict[str, Any]], tasks: dict[str, dict[str, Any]]) -> str:
    """Return a line for each run, with an interval over episodes, and for each task, with intervals over runs."""
    rows = [("run", "task", "steps", "episodes", "mean", "95 %", "IQM")]
    for r in results:
        numbers = (f"{r['return_mean']:.2f}", _interval(r["return_mean_interval"]), f"{r['return_iqm']:.2f}")
        rows.append((r["run"], r["env"], f"{r['env_steps']:,}", f"{r['episodes']:.0f}", *numbers))
    # Columns as wide as their longest entry.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    for env, of in tasks.items():
        if of["runs"] == 1:
            continue
        mean, inside = (
            f"{of[name]:.2f} (95 % {_interval(of[f'{name}_interval'])})"
            for name in ("return_mean", "return_iqm")
        )
        lines.append(f"{env}, {of['runs']} runs: mean {mean}, IQM {inside}")
    lines += [f"video   {r['video']} (return {r['video_return']:.2f})" for r in results if r.get("video")]
    return "\n".join(lines)


def _interval(interval: tuple[float, float]) -> str:
    low, high = interval
    return "unknown of so few" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


sys.modules[__name__].__class__ = Command  # ddppo.evaluate(...) is a call of ddppo.api

if __name__ == "__main__":
    main()
