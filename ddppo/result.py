"""What `ddppo.api.train` returns: the summary of a run, with its policy, its metrics, a plot and a recording.

    run = ddppo.train(["env=cartpole", "ppo.total_steps=1e5"])
    run.metrics["rollout/return_mean"]
    run.plot()
    run.policy(obs)
    run.enjoy()

Each reads the run folder when it is asked for, so `Summary.read(folder)` of an earlier run has them too.
"""

import base64
import json
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddppo.errors import TrainingError
from ddppo.plugins import imported

if TYPE_CHECKING:
    from ddppo.policies.acting import LoadedPolicy


class Summary(dict[str, Any]):
    """A run: summary.json as a dict, printed in one line. It stands for its folder where a path is asked for."""

    run_dir: Path  # the run folder

    @classmethod
    def read(cls, run_dir: str | Path) -> "Summary":
        """Read the summary in a run folder. Raises TrainingError if there is none."""
        run_dir = Path(run_dir)
        try:
            found = cls(json.loads((run_dir / "summary.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise TrainingError(f"{run_dir} has no summary.json that can be read: {e}") from e
        found.run_dir = run_dir
        return found

    def __repr__(self) -> str:
        final = (self.get("eval") or {}).get("final") or {}
        score = f", return {final['return_mean']:.2f}" if final.get("return_mean") is not None else ""
        return f"<{self['status']}: {self['env_steps']:,} steps{score}, in {self.run_dir}>"

    def __fspath__(self) -> str:
        return str(self.run_dir)

    def __getstate__(self) -> dict[str, Any]:
        return {"run_dir": self.run_dir}  # without what the properties have read

    @cached_property
    def policy(self) -> "LoadedPolicy":
        """The policy after training, as ddppo.load_policy(run) loads it; "best" is load_policy(run, "best")."""
        from ddppo.policies.acting import load_policy

        return load_policy(self.run_dir)

    @cached_property
    def metrics(self) -> Any:
        """All numbers of metrics.jsonl, a row for each iteration: columns iteration, env_steps, wall_s and the metrics.

        A pandas.DataFrame if pandas is installed, else a dict of lists. A number that an iteration lacks is NaN.
        Metrics of single ranks, such as time/t_rollout, are means over ranks; docs/metrics.md explains all.
        """
        from ddppo.records.jsonl import read_reports

        rows = [
            {
                "iteration": report.iteration,
                "env_steps": report.env_steps,
                "wall_s": report.wall_s,
                **report.scalars(),
            }
            for report in read_reports(self.run_dir / "metrics.jsonl")
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name, math.nan) for row in rows] for name in names}
        try:
            import pandas
        except ImportError:
            return columns
        return pandas.DataFrame(columns)

    def plot(
        self, metric: str | None = None, *, x: str = "steps", window: int = 1, file: str | Path | None = None
    ) -> "RunPicture":
        """Return the curve of a metric as a picture, which a notebook shows.

        Args:
            metric: its name; None for the evaluations, or the training return of a run with one evaluation.
            x: steps or hours.
            window: each point is the mean of so many points up to it.
            file: .png, .svg or .html, which is written too.

        Several runs in one picture: `python -m ddppo.runs plot`. Raises ConfigError.
        """
        draw = imported("ddppo.study.runs.plot:plot_of_run")
        return RunPicture(draw(self.run_dir, metric, x=x, window=window, file=file))

    def enjoy(self, out: str | Path | None = None, **options: Any) -> "Recording":
        """Play episodes of the policy, write them as .gif or .mp4, and return the file, which a notebook shows.

        out: the file; None is enjoy.gif in the run folder. options: episodes, seed, checkpoint and the others of
        `python -m ddppo.enjoy --help`. Needs the extra video. Raises ConfigError if the task draws no pictures, or is
        one of text (`python -m ddppo.enjoy` prints its episodes).
        """
        from ddppo.enjoy import EnjoyConfig, enjoy
        from ddppo.options import filled

        path = self.run_dir / "enjoy.gif" if out is None else Path(out)
        enjoy(filled(EnjoyConfig, {"run": str(self.run_dir), "out": str(path), **options}))
        return Recording(path)


class RunPicture:
    """A curve as SVG."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def __repr__(self) -> str:
        return (
            f"<picture: {len(self.svg):,} characters of SVG; a notebook shows it, plot(file=...) writes it>"
        )

    def _repr_svg_(self) -> str:
        return self.svg


class Recording:
    """A film of episodes, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<recording: {self.path}>"

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        kind = {".gif": "image/gif", ".mp4": "video/mp4"}.get(self.path.suffix)
        if kind is None:  # a page of its own
            return self.path.read_text(encoding="utf-8")
        data = f"data:{kind};base64,{base64.b64encode(self.path.read_bytes()).decode()}"
        return f'<video controls src="{data}"></video>' if kind == "video/mp4" else f'<img src="{data}">'
