"""Write the golden numbers anew: `python -m tests.golden.regenerate`. The commit that does so says why they changed."""

import json
import tempfile
from pathlib import Path

from tests.golden.recipe import FOLDER, TASKS, measure

if __name__ == "__main__":
    for task in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            numbers = measure(task, Path(folder) / "run")
        (FOLDER / f"{task}.json").write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{task}: {len(numbers)} iterations")
