"""Write dqn.json and sac.json: scores, evaluations and replay ratio of each run of replay.sh.

PYTHONPATH=. python experiments/algorithms/replay.py outputs/sweeps

A run that has not ended counts with what it has: its evaluations so far, and no score.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent


def best_of(run_dir: Path) -> float | None:
    """Return the score of the run's best policy in the sweep's best.json; None if there is none."""
    path = run_dir.parent / "best.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    found = [run["return_mean"] for run in runs if Path(run["run"]).name == run_dir.name]
    return found[0] if found else None


def row(run_dir: Path) -> dict[str, Any]:
    """Return the results of one run."""
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    text = (run_dir / "metrics.jsonl").read_text()
    whole = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    lines = [line for line in whole if line["rank"] == 0]
    updates = [line.get("algorithm/updates") or 0.0 for line in lines]
    began = next((k for k, n in enumerate(updates) if n), len(lines))
    return {
        "env": config["env"]["id"],
        "algorithm": config["algorithm"]["name"],
        "topology": config["dist"]["topology"],
        "world_size": config["dist"]["world_size"],
        "seed": config["seed"],
        "hidden_sizes": config["model"]["hidden_sizes"],
        "env_steps": lines[-1]["env_steps"],
        "settings": {
            name: config["algorithm"][name]
            for name in ("learning_rate", "updates_per_step", "target_period_updates")
            if name in config["algorithm"]
        },
        "score": summary.get("eval", {}).get("final", {}).get("return_mean"),
        "score_of_best": best_of(run_dir),
        "evaluations": {
            str(line["env_steps"]): round(line["eval/return_mean"], 1)
            for line in lines
            if "eval/return_mean" in line
        },
        # Their quotient is algorithm.updates_per_step.
        "updates": int(sum(updates)),
        "rows_that_owe_updates": int(sum(line["rollout/steps"] for line in lines[began:])),
        "wall_s": round(lines[-1]["wall_s"], 1),
        "git_commit": summary.get("git_commit"),
    }


def main(sweeps: Path) -> None:
    for algorithm in ("dqn", "sac"):
        runs = sorted(sweeps.glob(f"algorithms_{algorithm}*/*/metrics.jsonl"))
        rows = [row(path.parent) for path in runs]
        rows.sort(key=lambda r: (r["env"], r["topology"], r["seed"]))
        text = ",\n".join(json.dumps(r) for r in rows)
        (HERE / f"{algorithm}.json").write_text(f"[\n{text}\n]\n")
        for r in rows:
            print(
                r["env"],
                r["topology"],
                r["seed"],
                r["env_steps"],
                r["score"],
                r["score_of_best"],
                r["updates"],
                r["wall_s"],
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
