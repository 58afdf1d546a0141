"""The command `python -m ddppo.enjoy`: show a trained policy in a window, or write its pictures into a file.

Episodes of a task of text are printed as conversations.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddppo.config.fields import setting
from ddppo.config.settings import eval_seed
from ddppo.errors import ConfigError
from ddppo.options import door, parse
from ddppo.policies.zoo import MEANING as ZOO
from ddppo.policies.zoo import run_folder

if TYPE_CHECKING:
    from ddppo.policies.playing import PlayedEpisode

_USAGE = """python -m ddppo.enjoy outputs/cartpole/<stamp> [episodes=3] [deterministic=false] ...
python -m ddppo.enjoy outputs/cartpole/<stamp> out=policy.gif
python -m ddppo.enjoy zoo=cartpole out=policy.gif                  # a policy that comes with ddppo (docs/workloads.md)
python -m ddppo.enjoy outputs/cage2/<stamp> out=game.html
python -m ddppo.enjoy outputs/cloud/<stamp> episodes=3              # text: prints conversations"""


@dataclass(slots=True)
class EnjoyConfig:
    run: str = setting("", "the run folder")
    zoo: str | None = setting(None, ZOO)
    out: str | None = setting(
        None,
        "file instead of a window: .gif or .mp4 (needs the extra video), or .html for a page with a slider, of "
        "tasks that draw one, such as CAGE 2. null is a window, or an .mp4 where there is no display",
    )
    checkpoint: str = setting("last", "last, best, or the path of a checkpoint file")
    episodes: int = setting(1, "number of episodes to show", low=1)
    seed: int | None = setting(None, "root of the episodes' seeds; null is the run's own", low=0)
    deterministic: bool = setting(
        True, "true takes the likeliest actions, false draws them; searches for circuits draw them always"
    )
    fps: float | None = setting(None, "pictures a second; null is the task's own", low=0.1, high=1000)
    other_spaces: bool = setting(
        False, "play though the task has other observations or actions than the policy was trained on"
    )


@door()
def main() -> None:
    """Run the command line; exit code 0, 1 (the task failed), 2 (a mistake in the command) or 130 (Ctrl-C)."""
    enjoy(parse(EnjoyConfig, sys.argv[1:], path="run", usage=_USAGE))


def enjoy(options: EnjoyConfig) -> None:
    """Show the episodes and print a line, or the conversation, of each. Raises ConfigError if there are no pictures."""
    run = run_folder(options.run, options.zoo)
    out = None if options.out is None else Path(options.out)
    asked = f"out={out}"

    from ddppo.policies.pictures import check_pictures
    from ddppo.policies.playing import check_draws, film_instead_of_window, record, show

    # 1. Can pictures be written? A mistake should cost no episode.
    if out is not None:
        check_pictures(out, asked)
        if not out.parent.is_dir():
            raise ConfigError(f"{asked}: there is no folder {out.parent}")

    from ddppo.loop.evaluation import evaluator_of
    from ddppo.plugins import imported
    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.loading import trained

    # 2. The policy, and the seeds of its episodes: those of its run unless another is given.
    seed = options.seed
    found = trained(run, options.checkpoint, other_spaces=options.other_spaces)
    if seed is None:
        seed = eval_seed(found.config)
    if (told := evaluator_of(found.spec).conversations) is not None:
        for option, value in ((asked, out), (f"fps={options.fps}", options.fps)):
            if value is not None:
                raise ConfigError(
                    f"{option}: {found.config.env.id} is a task of text, without pictures: leave it out"
                )
        texts = imported(told)(found, range(options.episodes), seed, deterministic=options.deterministic)
        for number, text in enumerate(texts):
            print(text if number == 0 else f"\n{text}", flush=True)
        return
    policy = LoadedPolicy(found, 0 if options.seed is None else seed)
    if out is None and (out := film_instead_of_window(policy)) is not None:
        asked = f"out={out}"
        print(
            f"no display: the episodes go to {out} instead of a window (out= names another file)", flush=True
        )
    # 3. Play, in a window or into a file.
    episodes = range(options.episodes)
    played: Iterable[PlayedEpisode]
    if out is None:
        played = show(policy, episodes, seed, deterministic=options.deterministic, fps=options.fps)
    else:
        check_draws(policy, out, asked)
        played = record(
            policy, episodes, seed, out, asked=asked, deterministic=options.deterministic, fps=options.fps
        )
    for episode in played:
        print(
            f"episode {episode.number}: return {episode.episode_return:.2f}, {episode.length} steps",
            flush=True,
        )
    if out is not None:
        print(f"{out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
