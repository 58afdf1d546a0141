"""The door `python -m ddppo.evaluate`: play a trained policy deterministically and report its scores."""

import dataclasses
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from ddppo import config as configuration
from ddppo.config import Config, setting
from ddppo.errors import ConfigError, RunFolderError
from ddppo.files import stored
from ddppo.options import door, parse
from ddppo.package import install_command

if TYPE_CHECKING:
    from ddppo.run.evaluation import Policy, Scores

_USAGE = "python -m ddppo.evaluate outputs/cartpole/<stamp> [episodes=100] [video=true] [json=true] ..."


@dataclass(slots=True)
class EvaluateConfig:
    run: str = setting(MISSING, "the run folder")
    checkpoint: str = setting("last", "last, best, or the path of a checkpoint file")
    episodes: int = setting(
        100, "how many episodes to play; of text the next multiple of the number of tasks", low=1
    )
    seed: int | None = setting(None, "root of the episodes' seeds; the run's own if null", low=0)
    video: bool = setting(False, "record one episode (needs the extra video)")
    video_format: str = setting("mp4", "format of the video", choices=("mp4", "gif"))
    json: bool = setting(False, "print one JSON object instead of text")
    device: str = setting("cpu", "where the policy runs", choices=("auto", "cpu", "cuda"))


@door()
def main() -> None:
    """Run the command line; exit code 0, 1 (the evaluation failed), or 2 (a mistake in the command)."""
    print(evaluate(parse(EvaluateConfig, sys.argv[1:], path="run", usage=_USAGE)))


def evaluate(options: EvaluateConfig) -> str:
    """Play the episodes and return what to print. Raises ConfigError for a folder or checkpoint that is none."""
    run_dir = Path(options.run)
    if options.video_format != "mp4" and not options.video:
        raise ConfigError(
            f"video_format={options.video_format} has no effect without a video: add video=true"
        )
    if not (run_dir / "config.yaml").is_file():
        raise RunFolderError(f"run={options.run}: not a run folder, it has no config.yaml")
    config = configuration.load(run_dir / "config.yaml")
    config = dataclasses.replace(config, device=options.device)

    from ddppo.run import checkpoint
    from ddppo.run.evaluation import load_policy
    from ddppo.run.records.summary import evaluation_metrics
    from ddppo.run.text_evaluation import success_rates

    if options.video and importlib.util.find_spec("imageio") is None:
        raise ConfigError(f"video=true needs packages that are not installed: {install_command('video')}")
    if options.video and config.env.is_ale:
        raise ConfigError(
            f"video=true: {config.env.id} is stepped by ale-py's batch, which draws no pictures"
        )
    path = checkpoint.chosen(options.checkpoint, run_dir)
    state = checkpoint.load(path)
    policy = load_policy(config, state)
    if options.video and policy.spec.is_text:
        raise ConfigError(f"video=true: {config.env.id} is a task of text, which draws no pictures")
    seed = config.seed if options.seed is None else options.seed
    scores = _played(config, policy, options.episodes, seed, state.get("options"))
    metrics = evaluation_metrics(scores.returns, scores.lengths, 0.0) | success_rates(scores)
    result: dict[str, Any] = {
        "run": str(run_dir),
        "checkpoint": path.name,
        "env_steps": state["env_steps"],
        "env": config.env.id,
        "seed": seed,
        **{k.removeprefix("eval/"): v for k, v in metrics.items() if k != "eval/t_eval"},
        **_quartiles(scores.returns),
    }
    if options.video:
        from ddppo.run.video import record_episode

        video = _free_path(run_dir / "videos", f"steps_{state['env_steps']}", options.video_format)
        result["video_return"] = record_episode(policy, config.env, seed, video)
        result["video"] = str(video)
    if options.json:
        of_text = {"achieved": scores.achieved, "tiers": scores.tiers} if policy.spec.is_text else {}
        return json.dumps({**result, "returns": scores.returns, "lengths": scores.lengths, **of_text})
    return _text(result, "tokens" if policy.spec.is_text else "steps")


def _played(
    config: Config, policy: "Policy", num_episodes: int, seed: int, options: dict[str, Any] | None
) -> "Scores":
    """Play the episodes 0 to num_episodes - 1, begun with `options`; of text as many more as make it as many of every
    task.
    """
    from ddppo.envs import make_eval_env
    from ddppo.run.evaluation import play_episodes
    from ddppo.run.text_evaluation import play_alone

    if policy.spec.is_text:
        return play_alone(policy, config, num_episodes, seed)
    env = make_eval_env(config.env, min(num_episodes, 64))
    try:
        return play_episodes(policy, env, range(num_episodes), seed, options)
    finally:
        env.close()


def _quartiles(returns: tuple[float, ...]) -> dict[str, float]:
    import numpy as np

    low, high = np.percentile(returns, (25, 75))
    return {"return_p25": float(low), "return_p75": float(high)}


def _free_path(folder: Path, stem: str, suffix: str) -> Path:
    with stored(folder):
        folder.mkdir(exist_ok=True)
    number, path = 1, folder / f"{stem}.{suffix}"
    while path.exists():
        number += 1
        path = folder / f"{stem}_{number}.{suffix}"
    return path


def _text(r: dict[str, Any], unit: str) -> str:
    lines = [
        f"{r['env']}, {r['checkpoint']} at {r['env_steps']:,} steps, {r['episodes']:.0f} episodes, seed {r['seed']}",
        f"mean    {r['return_mean']:.2f} (std {r['return_std']:.2f}, {r['return_min']:.2f} to {r['return_max']:.2f})",
        f"median  {r['return_median']:.2f}",
        f"IQR     {r['return_p25']:.2f} to {r['return_p75']:.2f}, mean inside {r['return_iqm']:.2f}",
        f"length  {r['length_mean']:.1f} {unit}",
    ]
    if "success_rate" in r:
        of_tiers = {k.removeprefix("success_rate_"): v for k, v in r.items() if k.startswith("success_rate_")}
        by_tier = ", ".join(f"{tier} {rate:.2f}" for tier, rate in of_tiers.items())
        lines.append(f"success {r['success_rate']:.2f}" + (f" ({by_tier})" if by_tier else ""))
    if "video" in r:
        lines.append(f"video   {r['video']} (return {r['video_return']:.2f})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
