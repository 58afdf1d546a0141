"""What `train` returns: the run's summary.json, and where it is."""

import json
from pathlib import Path
from typing import Any

from ddppo.errors import TrainingError


class Summary(dict[str, Any]):
    """summary.json as a dict, whose repr is a line; run_dir is the run folder."""

    run_dir: Path

    @classmethod
    def read(cls, run_dir: Path) -> "Summary":
        """Read a run folder's. Raises TrainingError where there is none."""
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
