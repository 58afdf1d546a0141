"""Print the test files nearest to what changed since a commit: `python tests/touched.py [commit]`, by default HEAD.

Those are the changed tests themselves, and the unit and property tests that import a changed module, those named after
it first; at most 12 files, so that `make check` takes less than a minute. `make test` runs all.
"""

import ast
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
_MOST = 12


def changed(commit: str) -> list[Path]:
    """Return the Python files that differ from the commit, or are new."""
    listed: list[str] = []
    for command in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
        found = subprocess.run(["git", *command], cwd=CHECKOUT, capture_output=True, text=True, check=True)
        listed += found.stdout.splitlines()
    return [Path(name) for name in listed if name.endswith(".py") and (CHECKOUT / name).is_file()]


def imported(path: Path) -> set[str]:
    """Return the modules of ddppo that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def touched(paths: list[Path]) -> list[Path]:
    """Return the test files, nearest first, relative to the checkout."""
    tests = [path for path in paths if path.parts[0] == "tests" and path.name.startswith("test_")]
    modules = {".".join(p.with_suffix("").parts) for p in paths if p.parts[0] == "ddppo"}
    names = {module.rpartition(".")[2] for module in modules}
    near: list[tuple[bool, int, Path]] = []
    for kind in ("unit", "property"):
        for path in sorted((CHECKOUT / "tests" / kind).glob("test_*.py")):
            if hits := len(imported(path) & modules):
                is_named_after = any(name in path.stem for name in names)
                near.append((not is_named_after, -hits, path.relative_to(CHECKOUT)))
    tests += [path for *_, path in sorted(near) if path not in tests]
    return tests


if __name__ == "__main__":
    files = touched(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))
    if len(files) > _MOST:
        print(f"the {_MOST} nearest of {len(files)} test files; make test runs all", file=sys.stderr)
    print(*files[:_MOST], sep="\n")
