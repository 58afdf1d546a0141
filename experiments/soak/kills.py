"""What is left when a process of a run is killed at any instant? README.md says what to call.

Every trial starts a short run with checkpoints, evaluation and TensorBoard, kills one of its processes by SIGKILL, and
looks how long something is left, what, whether the message names who was killed, and whether resume= completes the run.
What a trial does follows from seed and its number. Writes a line per trial and exits with 1 if anything did not hold.
"""

import argparse
import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from traces import Traces, adopt_orphans, end_all, living, role

from tests.support import Fork

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_S = 10.0  # from the kill until nothing is left
STEPS = 12 * 16  # of an iteration
ITERATIONS = 40
WORK = [
    "env=cartpole", "env.num_envs=12", "ppo.rollout_steps=16", "ppo.num_epochs=2", "ppo.num_minibatches=2",
    f"ppo.total_steps={ITERATIONS * STEPS}", f"checkpoint.every_steps={2 * STEPS}", f"eval.every_steps={8 * STEPS}",
    "eval.episodes=4", "eval.final_episodes=8", "log.progress=none",
]  # fmt: skip
MOMENTS = ("start", "training", "checkpoint", "end")


@dataclass(frozen=True, slots=True)
class Trial:
    """Who is killed, and when: `delay_s` after the moment `after` (0: the start; k: iteration k is recorded)."""

    number: int
    world_size: int
    collective: str
    victim: str
    moment: str
    after: int
    delay_s: float


@dataclass(slots=True)
class Outcome:
    killed_s: float | None = None  # since the start; None if the run had ended
    gone_s: float = 0.0  # from the kill until nothing was left
    exit_code: int | None = None
    resumed: str = ""
    problems: str = ""


def draw(seed: int, number: int, more: list[str]) -> Trial:
    rng = random.Random(f"{seed} {number}")
    world_size, moment = rng.choice((2, 3, 4)), rng.choice(MOMENTS)
    ranks = [f"rank {rank}" for rank in range(world_size)]
    others = ("environments", "pool") if "env.backend=pool" in more else ()
    victim = rng.choice(("door", "server", *ranks, rng.choice(ranks), *others))
    after, delay_s = {
        "start": (0, rng.uniform(0.0, 4.0)),
        "training": (rng.randint(1, ITERATIONS - 2), rng.uniform(0.0, 0.1)),
        "checkpoint": (
            2 * rng.randint(1, ITERATIONS // 2 - 1),
            rng.uniform(0.0, 0.01),
        ),  # written after the record
        "end": (ITERATIONS - rng.randint(0, 1), rng.uniform(0.0, 0.1)),
    }[moment]
    collective = rng.choice(("shm", "shm", "gloo"))
    return Trial(number, world_size, collective, victim, moment, after, round(delay_s, 4))


def run(trial: Trial, folder: Path, more: list[str], *, resume: bool, forked: bool) -> Outcome:
    """Start, kill, look, and go on."""
    run_dir, temporary, outcome = folder / "run", folder / "temporary", Outcome()
    temporary.mkdir()
    traces = Traces(temporary)
    ranks = [f"dist.world_size={trial.world_size}", f"dist.collective={trial.collective}"]
    with (folder / "stderr.txt").open("w") as stderr:
        start = time.monotonic()
        process = train([*WORK, *ranks, *more, f"hydra.run.dir={run_dir}"], traces, stderr, forked=forked)
        try:
            pid = wait_for_victim(trial, process, run_dir)
            if pid is not None:
                outcome.killed_s = round(time.monotonic() - start, 2)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=6 * LIMIT_S)
            left, _ = traces.left(patience_s=max(2.0, killed + LIMIT_S - time.monotonic()))
            outcome.gone_s = round(time.monotonic() - killed, 2)
            outcome.exit_code = process.poll()
        finally:
            end_all()
            process.wait()
    completed = is_complete(run_dir)  # perhaps by ranks that outlived the door for an instant
    problems = wrong(trial, outcome, left, (folder / "stderr.txt").read_text(), completed=completed)
    if resume and not completed and (run_dir / "config.yaml").exists():
        outcome.resumed = go_on(run_dir, traces, folder / "resumed.txt", forked=forked)
        if outcome.resumed != "completed":
            problems.append(f"resume: {outcome.resumed}")
    outcome.problems = "; ".join(problems)
    return outcome


def wrong(trial: Trial, outcome: Outcome, left: list[str], said: str, *, completed: bool) -> list[str]:
    """Return what should not be so after the end of a run."""
    found = []
    if left:
        found.append(f"left: {', '.join(left)}")
    if outcome.exit_code is None:
        found.append("hangs")
    elif outcome.gone_s > LIMIT_S and not completed:
        found.append(f"something was left for {outcome.gone_s} s")
    if outcome.killed_s is not None and not is_told(trial, outcome.exit_code, said, completed=completed):
        found.append(f"does not name {trial.victim}: {' | '.join(said.splitlines()[-3:])}")
    if "Traceback" in said:
        found.append("shows a traceback")
    return found


def train(arguments: list[str], traces: Traces, stderr: TextIO, *, forked: bool) -> subprocess.Popen:
    command = [sys.executable, "-m", "ddppo.train", *arguments]
    start = Fork if forked else subprocess.Popen
    return start(command, cwd=CHECKOUT, env=traces.environ(), stdout=subprocess.DEVNULL, stderr=stderr)


def wait_for_victim(trial: Trial, process: subprocess.Popen, run_dir: Path) -> int | None:
    """Wait for the moment, and for the victim to be there; return its process id, None if the run ended before."""
    if not wait(lambda: num_iterations(run_dir) >= trial.after, process):
        return None
    time.sleep(trial.delay_s)
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in living() if role(pid) == trial.victim]
        return bool(found)

    return found[0] if wait(is_there, process) else None


def wait(condition: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Wait until a condition holds; whether it did before the process had ended."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def num_iterations(run_dir: Path) -> int:
    with suppress(OSError):
        whole = (run_dir / "metrics.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
        return json.loads(whole[-1])["iteration"] if whole else 0
    return 0


def is_complete(run_dir: Path) -> bool:
    with suppress(OSError, ValueError):
        return json.loads((run_dir / "summary.json").read_text())["status"] == "completed"
    return False


def is_told(trial: Trial, code: int | None, text: str, *, completed: bool) -> bool:
    """Return whether the run ended as it should, naming who was killed.

    A run ends well if who was killed had done its part, or was a server from which nothing had forked yet.
    """
    if trial.victim == "door":
        return code in (-signal.SIGKILL, 0)
    if code == 0:
        return completed
    if trial.victim == "server":
        return code == 1 and "forked from ended with signal 9" in text
    if trial.victim in ("environments", "pool"):
        return code == 1 and "ended (exit code -9)" in text
    return code == 1 and f"{trial.victim} of {trial.world_size} ended with signal 9" in text


def go_on(run_dir: Path, traces: Traces, log: Path, *, forked: bool) -> str:
    """Resume, and return "completed" if every iteration is then recorded once, else what is wrong."""
    with log.open("w") as stderr:
        process = train([f"resume={run_dir}"], traces, stderr, forked=forked)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            left, _ = traces.left(patience_s=2)
            end_all()
            process.wait()
    if process.returncode != 0 or not is_complete(run_dir):
        return f"exit code {process.returncode}: {' | '.join(log.read_text().splitlines()[-3:])}"
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = [record["iteration"] for record in records if record["rank"] == 0]
    if found != list(range(1, ITERATIONS + 1)):
        return f"records {found}"
    return f"left: {', '.join(left)}" if left else "completed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of trials, to repeat them")
    parser.add_argument("--resume-every", type=int, default=4, help="resume the run of every n-th trial")
    parser.add_argument(
        "--forked", action="store_true", help="doors fork from a process that has torch already"
    )
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("settings", nargs="*", help="more settings of the runs")
    options = parser.parse_args()
    adopt_orphans()
    outcomes: list[tuple[Trial, Outcome]] = []
    with options.out.open("w", newline="") as file:
        writer = None
        for number in options.only or itertools.count(options.first):
            if sum(outcome.killed_s is not None for _, outcome in outcomes) == options.kills:
                break
            trial = draw(options.seed, number, options.settings)
            with tempfile.TemporaryDirectory() as folder:
                resume = number % options.resume_every == 0
                outcome = run(trial, Path(folder), options.settings, resume=resume, forked=options.forked)
            outcomes.append((trial, outcome))
            row = asdict(trial) | asdict(outcome)
            writer = writer or csv.DictWriter(file, fieldnames=row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            if outcome.problems:
                print(f"{trial}: {outcome}", flush=True)
    killed = [(trial, outcome) for trial, outcome in outcomes if outcome.killed_s is not None]
    seconds = sorted(outcome.gone_s for _, outcome in killed)
    resumed = Counter(outcome.resumed for _, outcome in outcomes if outcome.resumed)
    num_wrong = sum(bool(outcome.problems) for _, outcome in outcomes)
    print(
        f"{len(killed)} kills in {len(outcomes)} runs, {num_wrong} with a problem; seconds until nothing was left: "
        f"median {seconds[len(seconds) // 2]}, at most {seconds[-1]}; resumed: {dict(resumed)}; victims: "
        f"{dict(Counter(trial.victim for trial, _ in killed))}; moments: {dict(Counter(t.moment for t, _ in killed))}"
    )
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
