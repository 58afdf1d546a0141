"""Run the trainer again and again, each time with another of its file operations going wrong, and look what is left.

    python -m tests.fault.file_operations <empty folder> [start|resume|sweep] [kill|full] [every=1]

One process imports everything and forks for every trial. A trial runs `ddppo.train` with operation number n ending in
kill -9 (a write is first done by half) or with a disk that is full from there on, then runs the command that goes on,
undisturbed. What does not hold is printed, a line each; exit code 1 if anything was.
"""

import builtins
import errno
import gc
import importlib
import io
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

from ddppo.config.stored import load_config
from ddppo.records.checkpoint import is_whole
from ddppo.records.run_folder import RunFolder
from tests.support import IMPORTED

STEPS = 16  # of an iteration
ITERATIONS = 3
SETTINGS = [
    "env=cartpole", "env.num_envs=2", "ppo.rollout_steps=8", "ppo.num_epochs=1", "ppo.num_minibatches=1",
    f"ppo.total_steps={ITERATIONS * STEPS}", f"checkpoint.every_steps={STEPS}", "checkpoint.keep=1",
    f"eval.every_steps={2 * STEPS}", "eval.episodes=1", "eval.final_episodes=1", "log.progress=none",
    "env.max_episode_steps=20",
]  # fmt: skip
NEEDS_SPACE = {"write", "create", "mkdir", "link"}


class Injector:
    """Counts the operations that change files below `folder`; from number `at` on they go wrong as `action` says."""

    def __init__(self, folder: Path, at: int, action: str) -> None:
        self.folder, self.at, self.action = str(folder), at, action
        self.count = 0

    def concerns(self, path: object) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)

    def strikes(self, kind: str) -> bool:
        """Count one operation; whether it goes wrong."""
        self.count += 1
        if self.action == "kill":
            return self.count == self.at
        return self.count >= self.at and kind in NEEDS_SPACE

    def strike(self, path: object) -> None:
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), None if isinstance(path, int) else path)

    def install(self) -> None:
        for name, kind in (
            ("replace", "rename"), ("rename", "rename"), ("link", "link"), ("unlink", "unlink"), ("remove", "unlink"),
            ("mkdir", "mkdir"), ("rmdir", "unlink"), ("fsync", "fsync"), ("ftruncate", "unlink"),
        ):  # fmt: skip
            setattr(os, name, self._watched(getattr(os, name), kind))
        builtins.open = io.open = self._watched_open(io.open)

    def _watched(self, call, kind):
        def watched(path, *args, **kwargs):
            if self.concerns(path) and self.strikes(kind):
                self.strike(path)
            return call(path, *args, **kwargs)

        return watched

    def _watched_open(self, call):
        def watched(path, mode="r", *args, **kwargs):
            if ("r" in mode and "+" not in mode) or not self.concerns(path):
                return call(path, mode, *args, **kwargs)
            if (not os.path.exists(path) or "w" in mode) and self.strikes("create"):
                self.strike(path)
            return WatchedFile(call(path, mode, *args, **kwargs), self, path)

        return watched


class WatchedFile:
    """A file whose writes count; one that goes wrong is done by half."""

    def __init__(self, file, injector, path) -> None:
        self._file, self._injector, self._path = file, injector, path

    def write(self, content):
        if self._injector.strikes("write"):
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._injector.strike(self._path)
        return self._file.write(content)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __iter__(self):
        return iter(self._file)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *exc):
        return self._file.__exit__(*exc)


def trained(arguments: list[str], log: Path, injector: Injector | None = None) -> int:
    """Run the door in a fork of this process and return its exit code, negative for a signal; stderr goes to `log`."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            hole = os.open(os.devnull, os.O_WRONLY)
            errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(hole, 1)
            os.dup2(errors, 2)
            sys.argv = ["ddppo-train", *arguments]
            from ddppo import train

            if injector is not None:
                injector.install()
            train.main()
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            if injector is not None:
                log.with_suffix(".count").write_text(str(injector.count))
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- scenarios: a command that is disturbed, and the one that goes on ------------------------------------------------


def start(folder: Path) -> tuple[Path, list[str]]:
    run_dir = folder / "run"
    return run_dir, [*SETTINGS, f"hydra.run.dir={run_dir}"]


def resume(folder: Path) -> tuple[Path, list[str]]:
    """A run that was killed one iteration after its last checkpoint, in the middle of a line."""
    run_dir, arguments = start(folder)
    prepared = folder.parent / "prepared"
    if not prepared.exists():
        assert trained(arguments, folder / "prepare.log") == 0, (folder / "prepare.log").read_text()
        longer = [
            f"resume={run_dir}",
            f"ppo.total_steps={2 * ITERATIONS * STEPS}",
            "checkpoint.every_steps=0",
        ]
        reaches_4 = Injector(run_dir, 10**9, "kill")
        reaches_4.strikes = lambda kind: (
            "\n".join(texts(run_dir / "metrics.jsonl")).count('"iteration": 5,') == 1
        )
        assert trained(longer, folder / "prepare.log", reaches_4) == -signal.SIGKILL
        shutil.move(run_dir, prepared)
    shutil.copytree(prepared, run_dir)
    return run_dir, [f"resume={run_dir}"]


def sweep(folder: Path) -> tuple[Path, list[str]]:
    return folder / "sweep" / "run_0", [
        "-m",
        *SETTINGS,
        f"sweep={folder / 'sweep'}",
        "hydra.sweep.subdir=run_${seed}",
    ]


def goes_on(scenario: str, run_dir: Path, arguments: list[str]) -> list[str]:
    """Return the command with which a user goes on; a run without a config.yaml had not begun."""
    if scenario == "sweep" or not (run_dir / "config.yaml").exists():
        return arguments
    return [f"resume={run_dir}"]


# -- what must hold -------------------------------------------------------------------------------------------------


def texts(path: Path) -> list[str]:
    """Return the whole lines of a file, [] if there is none."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def everywhere(run_dir: Path, name: str) -> list[str]:
    """Return the lines of all files of a kind, also those kept under other names or moved aside."""
    found = [line for path in run_dir.glob(f"{name}*.jsonl") for line in texts(path)]
    return found + [line for path in run_dir.parent.glob(f".earlier/*/{name}*.jsonl") for line in texts(path)]


def trial(scenario: str, action: str, at: int, folder: Path) -> tuple[list[str], bool]:
    """Disturb operation `at`; return what does not hold afterwards, and whether there was such an operation."""
    folder.mkdir()
    run_dir, arguments = {"start": start, "resume": resume, "sweep": sweep}[scenario](folder)
    log, wrong = folder / "log", []
    code = trained(arguments, log, Injector(folder / run_dir.relative_to(folder).parts[0], at, action))
    count = log.with_suffix(".count")
    assert code != 2, log.read_text()
    if code == 0 and int(count.read_text()) < at:
        return [], False
    said = log.read_text()
    if action == "full":
        if code not in (0, 1):
            wrong.append(f"exit code {code}")
        if "Traceback" in said or (code == 1 and "cannot be written: No space left on device" not in said):
            wrong.append(f"said {said[-2000:]!r}")
        if leftovers := [str(path) for path in folder.rglob(".*.tmp")]:
            wrong.append(f"left behind {leftovers}")
    if (run_dir / "config.yaml").exists():
        load_config(run_dir / "config.yaml")  # raises if it is not whole
    elif scenario == "resume":
        wrong.append("config.yaml is gone")
    lines, current = everywhere(run_dir, "metrics"), texts(run_dir / "metrics.jsonl")
    saved = [path.name for path in (run_dir / "checkpoints").glob("iteration_*.pt") if is_whole(path)]
    broken = [path.name for path in (run_dir / "checkpoints").glob("*.pt") if not is_whole(path)]
    if broken:
        wrong.append(f"checkpoints are broken: {broken}")
    if not RunFolder(run_dir).is_complete or scenario == "sweep":
        code = trained(goes_on(scenario, run_dir, arguments), log)
        if code != 0:
            return [*wrong, f"going on ended with {code}: {log.read_text()[-2000:]!r}"], True
    elif action == "full" and code != 0:
        wrong.append(f"the run is complete, but exit code {code}")
    total = load_config(run_dir / "config.yaml").ppo.total_steps // STEPS
    summary = json.loads((run_dir / "summary.json").read_text())
    if (summary["status"], summary["iterations"]) != ("completed", total):
        wrong.append(f"summary.json: {summary['status']} after {summary['iterations']} iterations")
    if summary["eval"]["final"] is None:
        wrong.append("no final evaluation")
    final = texts(run_dir / "metrics.jsonl")
    if [json.loads(line)["iteration"] for line in final] != list(range(1, total + 1)):
        wrong.append(f"metrics.jsonl has iterations {[json.loads(line)['iteration'] for line in final]}")
    if lost := set(lines) - set(everywhere(run_dir, "metrics")):
        wrong.append(f"{len(lost)} lines that were written are lost")
    if saved:
        kept = max(int(name[10:18]) for name in saved)
        before = [line for line in current if json.loads(line)["iteration"] <= kept]
        if not set(before) <= set(final):
            wrong.append(f"iterations up to {kept} were saved, and done again all the same")
    if leftovers := [str(path) for path in folder.rglob(".*.tmp")]:
        wrong.append(f"left behind in the end: {leftovers}")
    return wrong, True


def trials(folder: Path, scenario: str, action: str, every: int = 1) -> tuple[int, list[str]]:
    """Try every `every`-th operation; return how many were tried, and what did not hold."""
    at, tried, wrong = 1, 0, []
    while True:
        here = folder / f"{scenario}-{action}" / str(at)
        here.parent.mkdir(exist_ok=True)
        found, was_there = trial(scenario, action, at, here)
        wrong += [f"{scenario}, {action} at operation {at}: {what}" for what in found]
        shutil.rmtree(here)
        if not was_there:
            return tried, wrong
        at, tried = at + every, tried + 1


def preload() -> None:
    """Import what every trial needs, which takes most of its time; nothing that starts a thread."""
    for module in (*IMPORTED, "ddppo.train", "tests.composed_before"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the collector of every fork goes through what is imported here, and so copies it


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    words = sys.argv[2:]
    every = int(next((word.removeprefix("every=") for word in words if word.startswith("every=")), 1))
    scenarios = [word for word in words if word in ("start", "resume", "sweep")] or [
        "start",
        "resume",
        "sweep",
    ]
    actions = [word for word in words if word in ("kill", "full")] or ["kill", "full"]
    os.chdir(folder)
    preload()
    failed = False
    for scenario in scenarios:
        for action in actions:
            tried, wrong = trials(folder, scenario, action, every)
            print(f"{scenario}, {action}: {tried} operations, {len(wrong)} findings", flush=True)
            print("".join(f"  {what}\n" for what in wrong), end="", flush=True)
            failed |= bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
