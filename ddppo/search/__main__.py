"""The command `python -m ddppo.search`: what a search has tried, what it expects of every point, and what comes next.

A folder is that of a search over settings (hydra/sweeper=gp_ucb, with trials.csv) or of a run that searches while it
trains, which the plugin of its task shows.
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, RunFolderError, in_one_line
from ddppo.options import door, parse
from ddppo.plugins import imported, plugins

_USAGE = """python -m ddppo.search outputs/cage2/<stamp>         trials, and all orders by upper confidence bound
python -m ddppo.search outputs/sweeps/<stamp>        the runs of a search over settings
python -m ddppo.search <folder> top=10               only the ten best

To start a search over settings:  python -m ddppo.train -m hydra/sweeper=gp_ucb 'ppo.gamma=interval(0.9,1)'
To start a search over orders:    python -m ddppo.train experiment=workflows
Exit code 0, or 2 for a mistake in the command."""
_TRIALS = "trials.csv"  # of hydra/sweeper=gp_ucb


@dataclass(slots=True)
class SearchOptions:
    folder: str = setting(
        MISSING, "the run folder of a search over orders, or the sweep folder of one over settings"
    )
    top: int | None = setting(None, "rows of the table of predictions; null is all", low=1)


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    print(shown(parse(SearchOptions, sys.argv[1:], path="folder", usage=_USAGE)))


def shown(options: SearchOptions) -> str:
    """Return the text about a search. Raises ConfigError for a folder without one, RunFolderError for a damaged one."""
    folder = Path(options.folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give the run folder or the sweep folder of a search")
    for plugin in plugins():
        for name, path in plugin.searches.items():
            if (folder / name).is_file():
                return str(imported(path)(folder, options.top))
    if (folder / _TRIALS).is_file():
        return _of_settings(folder / _TRIALS, options.top)
    raise ConfigError(
        f"{folder} holds no search: give the run folder of experiment=workflows, or the sweep folder of "
        "hydra/sweeper=gp_ucb"
    )


def _of_settings(path: Path, top: int | None) -> str:
    """Return the runs of a search over settings, as the sweeper wrote them, the best value first."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        found = [row for row in rows if row["value"]]
        direction = _direction(path.parent)
        ranked = sorted(found, key=lambda row: float(row["value"]), reverse=direction != "minimize")
    except (OSError, ValueError, KeyError) as e:
        raise RunFolderError(f"{path} is not as a search writes it: {in_one_line(e)}") from e
    if not rows:
        return f"{path} has no run yet"
    lines = [" ".join(f"{name}={text}" for name, text in row.items() if text) for row in ranked[:top]]
    failed = len(rows) - len(found)
    head = f"{len(rows)} runs, {failed} without a value; {direction}d, the best first"
    return "\n".join([head, *lines])


def _direction(folder: Path) -> str:
    """Return the direction of a sweep, from the multirun.yaml that Hydra writes; maximize without one."""
    from omegaconf import OmegaConf

    path = folder / "multirun.yaml"
    if not path.is_file():
        return "maximize"
    return str(OmegaConf.select(OmegaConf.load(path), "hydra.sweeper.direction") or "maximize")


if __name__ == "__main__":
    main()
