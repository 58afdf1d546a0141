"""Run ddppo's device paths on this machine's GPU, part by part, and write what each part found as JSON.

    python experiments/devices/on_gpu.py out=<folder> [minutes=8] [only=<text>] [device=cuda] tests check equal exact
    python experiments/devices/on_gpu.py out=<folder> learn speed numerics profile

Parts are functions below, with a docstring that says what they ask. Every run is a process of its own with a limit of
time, so that one that hangs ends itself alone. Parts of the first line compare numbers, and their runs share the
machine; those of the second are timed, and run one after another. With device=cpu the script rehearses itself.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
QUIET = ("log.progress=none", "log.tensorboard=false")
NO_EVAL = ("eval.final_episodes=0", "eval.every_steps=0")
AT_ONCE = 8  # runs that share the machine
ENVS = (1024, 4096, 16384)


class Machine:
    """Where results go, which device is tried, and when the time is over."""

    def __init__(self, out, device, minutes, only):
        self.out, self.device, self.end = Path(out), device, time.monotonic() + 60 * minutes
        self.only = only  # a part of the names of the runs to try
        self.out.mkdir(parents=True, exist_ok=True)
        self.runs = Path(tempfile.mkdtemp(prefix="on-gpu-"))
        self.environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        }

    def called(self, command, limit_s):
        """Run a command; return its exit code, its seconds and its last lines."""
        limit_s = min(limit_s, self.end - time.monotonic())
        if limit_s <= 0:
            return {"code": None, "seconds": 0.0, "said": "not run: the time was over"}
        start = time.monotonic()
        process = subprocess.Popen(
            command, cwd=HERE, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            code = None
        return {"code": code, "seconds": round(time.monotonic() - start, 1), "said": said[-3000:].strip()}

    def trained(self, name, *overrides, limit_s=150):
        """Train; return what `called` does, with the numbers of the run's summary."""
        folder = self.runs / name.replace(" ", "_").replace(",", "").replace("/", "_")
        command = [sys.executable, "-m", "ddppo.train", *QUIET, *overrides, f"hydra.run.dir={folder}"]
        found = {"settings": " ".join(overrides), **self.called(command, limit_s), "folder": str(folder)}
        if (folder / "summary.json").exists():
            found |= numbers(folder)
        return found

    def write(self, part, found):
        (self.out / f"{part}.json").write_text(json.dumps(found, indent=1) + "\n")


def numbers(folder):
    """Return the numbers of a run that are worth keeping."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    late = lines[len(lines) // 3 :]  # the first iterations load kernels and record graphs

    def median(name):
        values = [line[name] for line in late if name in line]
        return statistics.median(values) if values else None

    t_iter, steps = median("time/t_iter"), median("rollout/steps")
    memory = [line["dist/device_memory"] for line in lines if "dist/device_memory" in line]
    return {
        "steps_per_s": steps / t_iter if t_iter else None,
        **{
            f"ms_{name}": 1000 * (median(f"time/t_{name}") or 0)
            for name in ("iter", "rollout", "learn", "comm")
        },
        "wall_s": summary["wall_s"],
        "memory_mb": max(memory) / 1e6 if memory else None,
        "params_hash": summary["params_hash"],
        "eval": (summary["eval"].get("final") or {}).get("return_mean"),
        "target": summary["target"],
        "step": summary["derived"].get("step"),
        "graphs": summary["derived"].get("graphs"),
        "collective": summary["derived"].get("collective"),
        "device": summary["derived"].get("device"),
        "return": lines[-1].get("rollout/return_mean"),
        "tokens_per_s": median("rollout/tokens_per_s"),
    }


def together(m, jobs):
    """Call functions by name, several at a time, and return their results by name."""
    jobs = {name: job for name, job in jobs.items() if m.only in name}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {name: pool.submit(job) for name, job in jobs.items()}
        return {name: waiting[name].result() for name in jobs}


def say(part, name, **more):
    cells = [
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in more.items()
    ]
    print(f"{part:9}{name:44}{'  '.join(cells)}", flush=True)


# -- Numbers. Runs share the machine.


def tests(m):
    """Do the tests that need a GPU pass?"""
    found = m.called(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            "-n",
            "6",
            "-m",
            "gpu",
            "tests/device",
        ],
        400,
    )
    print(found["said"], flush=True)
    return found


def check(m):
    """What does `python -m ddppo.device_check` say, without its speeds?"""
    found = m.called([sys.executable, "-m", "ddppo.device_check", f"device={m.device}", "speed=false"], 400)
    print(found["said"], flush=True)
    return found


SHORT = (
    "ppo.rollout_steps=16",
    "ppo.total_steps=1536",
    "ppo.num_minibatches=2",
    "ppo.num_epochs=2",
    *NO_EVAL,
)
SMALL = ("env.num_envs=32", *SHORT)  # three iterations
PICTURE = ("env=gym", "env.id=tests.golden.golden_parts:golden/Picture-v0", "model=cnn", "model.hidden_sizes=[16]",
           "model.conv_layers=[[4,4,2],[8,3,1]]")  # fmt: skip
TWO = ("dist.world_size=2", "dist.oversubscribe=warn")
SHARED = "dist.share_device=true"
# Of each: the settings, and those of the CPU that stand in their place. Two ranks share the one GPU.
PATHS = {
    "masks, gru": ("env=cartpole_masked", "model=gru", "model.memory_size=8", *SMALL),
    "lstm": ("env=cartpole", "model=lstm", "model.memory_size=8", *SMALL),
    "pixels": (*PICTURE, *SMALL),
    "quadruped": ("env=quadruped", *SMALL),
    "quadruped, recorded": ("env=quadruped", "compile=torch", *SMALL),
    "quadruped, tf32": ("env=quadruped", "matmul_precision=tf32", *SMALL),
    "quadruped, bf16, recorded": ("env=quadruped", "matmul_precision=bf16", "compile=torch", *SMALL),
    "cartpole on the device, float64": ("env=cartpole_device", "dtype=float64", *SMALL),
    "normalisers, lstm, on the device": (
        "env=cartpole_device", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "model=lstm",
        "model.memory_size=8", *SMALL,
    ),
    "gru on the device": ("env=cartpole_device", "model=gru", "model.memory_size=16", *SMALL),
    "grpo on the device": ("env=cartpole_device", "ppo=grpo", "ppo.group_size=4", "env.max_episode_steps=14", *SMALL),
    "reinforce on the device": (
        "env=cartpole_device", "env.max_episode_steps=14", "env.num_envs=32", "algorithm=reinforce",
        "algorithm.rollout_steps=16", "algorithm.total_steps=1500", *NO_EVAL,
    ),
    "W=2, gloo": ("env=cartpole", *TWO, "dist.collective=gloo", *SMALL),
    "W=2, shm": ("env=cartpole", *TWO, "dist.collective=shm", *SMALL),
    "W=2, gloo, grad_sync=ddp": ("env=cartpole", *TWO, "dist.collective=gloo", "dist.grad_sync=ddp", *SMALL),
    "W=2, cartpole on the device": ("env=cartpole_device", *TWO, *SMALL),
    "W=2, quadruped, recorded acting": ("env=quadruped", *TWO, "compile=torch", *SMALL),
    "W=3, sync_actors": ("env=cartpole", "distributed=sync_actors", "dist.world_size=3", *SMALL),
    "W=3, env_workers": ("env=cartpole", "distributed=env_workers", "dist.world_size=3", *SMALL),
    "W=3, async_actors (runs)": ("env=cartpole", "distributed=async_actors", "dist.world_size=3", *SMALL),
}  # fmt: skip


def equal(m):
    """Does the GPU learn what the CPU does: the largest difference of a parameter over the largest parameter?"""
    sys.path.insert(0, str(HERE))

    def compared(name, overrides):
        shares = (SHARED,) if "dist.world_size" in " ".join(overrides) and "env_workers" not in name else ()
        if m.device == "cpu":
            shares = ()
        with_cpu = [x for x in overrides if not x.startswith(("compile=", "matmul_precision="))]
        on_cpu = m.trained(f"{name} cpu", *with_cpu, "device=cpu")
        on_gpu = m.trained(f"{name} gpu", *overrides, f"device={m.device}", *shares)
        row = {"of": on_gpu, "difference": apart(on_cpu, on_gpu), "cpu_said": on_cpu["said"]}
        say("equal", name, difference=row["difference"], graphs=on_gpu.get("graphs"), s=on_gpu["seconds"])
        if row["difference"] is None:
            print(on_cpu["said"][-600:], "\n", on_gpu["said"][-1500:], flush=True)
        return row

    found = together(m, {name: lambda n=name, o=of: compared(n, o) for name, of in PATHS.items()})

    def one_and_two(env):
        one, two = (
            m.trained(f"{env} of {w}", f"env={env}", *SMALL, f"device={m.device}", f"dist.world_size={w}",
                      *([SHARED] if w == 2 and m.device != "cpu" else []))
            for w in (1, 2)
        )  # fmt: skip
        say("equal", f"{env}: W=1 and W=2", difference=apart(one, two))
        return {"difference": apart(one, two), "said": two["said"]}

    found |= together(
        m, {f"{env}: W=1 and W=2": lambda e=env: one_and_two(e) for env in ("cartpole_device", "quadruped")}
    )
    return found


def apart(one, other):
    """Return how far the last parameters of two runs are apart; None if one run failed."""
    if one["code"] != 0 or other["code"] != 0:
        return None
    from ddppo.records import checkpoint
    from ddppo.study.device_check import difference

    states = [
        checkpoint.load(checkpoint.chosen("last", Path(run["folder"])))["model"] for run in (one, other)
    ]
    return difference(*states)


def exact(m):
    """Is a resumed run the uninterrupted one to the bit? Are two runs equal to the bit, with deterministic=true?"""
    size = ("ppo.rollout_steps=16", "ppo.total_steps=98304", "checkpoint.every_steps=16384", "checkpoint.keep=99",
            "env.num_envs=1024", *NO_EVAL, f"device={m.device}")  # fmt: skip
    cases = {
        "cartpole on the device": ("env=cartpole_device", "compile=off"),
        "cartpole on the device, recorded": ("env=cartpole_device", "compile=torch"),
        "quadruped": ("env=quadruped", "compile=off"),
        "quadruped, recorded": ("env=quadruped", "compile=torch"),
        "quadruped, deterministic": ("env=quadruped", "compile=off", "deterministic=true"),
        "quadruped, recorded, deterministic": ("env=quadruped", "compile=torch", "deterministic=true"),
        "lstm, deterministic": (
            "env=cartpole_device",
            "model=lstm",
            "model.memory_size=16",
            "deterministic=true",
        ),
    }

    def tried(name, overrides):
        whole = m.trained(f"{name} whole", *overrides, *size)
        again = m.trained(f"{name} again", *overrides, *size)
        row = {"of": whole, "twice_equal": None, "resumed_equal": None}
        if whole["code"] == 0 == again["code"]:
            row["twice_equal"] = whole["params_hash"] == again["params_hash"]
            # Make of the second run one that was killed after its third iteration.
            folder = Path(again["folder"])
            (folder / "summary.json").unlink()
            for path in (folder / "checkpoints").glob("iteration_*.pt"):
                if path.name > "iteration_00000003.pt":
                    path.unlink()
            resumed = m.called([sys.executable, "-m", "ddppo.train", f"resume={folder}"], 150)
            row["resume_said"] = resumed["said"]
            if resumed["code"] == 0:
                row["resumed_equal"] = whole["params_hash"] == numbers(folder)["params_hash"]
        else:
            print(whole["said"][-1500:], again["said"][-500:], flush=True)
        say("exact", name, twice_equal=row["twice_equal"], resumed_equal=row["resumed_equal"])
        return row

    found = together(m, {name: lambda n=name, o=of: tried(n, o) for name, of in cases.items()})

    def scored():
        """Is a policy that was trained on the GPU scored equally there and on the CPU? Is it exported?"""
        run = m.trained("scored", "env=cartpole", "ppo.total_steps=8192", f"device={m.device}", *NO_EVAL)
        scores = {
            place: m.called(
                [sys.executable, "-m", "ddppo.evaluate", run["folder"], f"device={place}", "episodes=20"], 120
            )
            for place in ("cpu", m.device)
        }
        exported = m.called(
            [sys.executable, "-m", "ddppo.export", run["folder"], f"out={m.runs}/policy.onnx"], 150
        )
        say("exact", "scores", **{place: one["said"][-200:] for place, one in scores.items()})
        say("exact", "export", code=exported["code"], said=exported["said"][-200:])
        return {"scores": scores, "export": exported}

    return found | together(m, {"scores": scored})


def nccl(m):
    """Do collectives of NCCL work, in a group of one rank, and gradients summed by it, flat and by ddp?"""
    found = m.called([sys.executable, str(Path(__file__).with_name("nccl_of_one.py")), m.device], 120)
    print(found["said"], flush=True)
    return found


# -- Times. One run after another.


def learn(m):
    """How long does it take to an evaluation of 475, and to the end? How fast, with how much memory?"""
    found = {}
    for envs, compiles in ((1024, "off"), (1024, "auto"), *((envs, "torch") for envs in ENVS), (4096, "off")):
        # As many iterations for every number of environments; evaluated after every second one.
        batch = 32 * envs
        of = ("env=cartpole_device", f"env.num_envs={envs}", f"ppo.total_steps={24 * batch}",
              f"eval.every_steps={2 * batch}", "eval.episodes=64", "target_return=475")  # fmt: skip
        name = f"cartpole_device, E={envs}, compile={compiles}"
        found[name] = _timed(m, "learn", name, *of, f"compile={compiles}")
    for compiles in ("off", "torch"):
        name = f"quadruped, E=4096, compile={compiles}"
        of = ("env=quadruped", "env.num_envs=4096", f"ppo.total_steps={100 * 24 * 4096}")
        found[name] = _timed(m, "learn", name, *of, f"compile={compiles}")
    # Environments of the host, and episodes of groups.
    found["cartpole, host"] = _timed(m, "learn", "cartpole, host", "env=cartpole", "ppo.total_steps=100000")
    of = ("env=cartpole_device", "ppo=grpo", "env.num_envs=64", "ppo.group_size=8", "ppo.rollout_steps=200",
          "ppo.total_steps=200000")  # fmt: skip
    found["grpo, cartpole_device"] = _timed(m, "learn", "grpo, cartpole_device", *of)
    of = ("env=cartpole_device", "algorithm=reinforce", "algorithm.total_steps=2000000")
    found["reinforce, cartpole_device"] = _timed(m, "learn", "reinforce, cartpole_device", *of)
    return found


def speed(m):
    """How many steps/s, by task, environments and compile?"""
    found = {}
    for task, rollout, others in (("cartpole_device", 32, ()), ("quadruped", 24, ())):
        for envs in ENVS:
            for compiles in ("off", "torch"):
                name = f"{task}, E={envs}, compile={compiles}"
                of = (
                    f"env={task}",
                    f"env.num_envs={envs}",
                    f"ppo.total_steps={18 * rollout * envs}",
                    *others,
                    *NO_EVAL,
                )
                found[name] = _timed(m, "speed", name, *of, f"compile={compiles}", "checkpoint.every_steps=0")
    for compiles in ("off", "torch"):
        name = f"lstm of 128, cartpole_device, E=4096, compile={compiles}"
        of = (
            "env=cartpole_device",
            "model=lstm",
            "env.num_envs=4096",
            f"ppo.total_steps={12 * 32 * 4096}",
            *NO_EVAL,
        )
        if compiles == "off":
            found[name] = _timed(m, "speed", name, *of)
    of = (*PICTURE, "env.num_envs=256", "ppo.rollout_steps=32", "ppo.total_steps=131072", *NO_EVAL)
    for compiles in ("off", "torch"):
        name = f"pixels of the host, E=256, compile={compiles}"
        found[name] = _timed(m, "speed", name, *of, f"compile={compiles}")
    return found


def numerics(m):
    """What do matmul_precision, deterministic=true and a second rank on the card cost or save, with a wide network?"""
    found = {}
    wide = ("env=quadruped", "env.num_envs=4096", "model.hidden_sizes=[512,512,512]", "ppo.total_steps=2000000",
            "compile=torch", *NO_EVAL)  # fmt: skip
    more = {
        "highest": (), "tf32": ("matmul_precision=tf32",), "bf16": ("matmul_precision=bf16",),
        "deterministic": ("deterministic=true",),
        "W=2, shm": ("dist.world_size=2", SHARED, "dist.collective=shm"),
        "W=2, gloo": ("dist.world_size=2", SHARED, "dist.collective=gloo"),
    }  # fmt: skip
    for name, of in more.items():
        found[name] = _timed(m, "numerics", name, *wide, *of)
    return found


def _timed(m, part, name, *of, limit_s=120):
    if m.only not in name:
        return {}
    found = m.trained(f"{part} {name}".replace("=", ""), *of, f"device={m.device}", limit_s=limit_s)
    shown = (
        "seconds",
        "steps_per_s",
        "ms_iter",
        "ms_rollout",
        "ms_learn",
        "memory_mb",
        "eval",
        "target",
        "graphs",
    )
    say(part, name, **{key: found.get(key) for key in shown})
    if found["code"] != 0:
        print(found["said"][-1500:], flush=True)
    return found


def profile(m):
    """Where does the time of an iteration go: which kernels, how long the GPU is busy, what the host calls?"""
    found = {}
    tasks = {"quadruped": ("env.num_envs=4096", "ppo.total_steps=3000000"),
             "cartpole_device": ("env.num_envs=16384", "ppo.total_steps=10000000")}  # fmt: skip
    for task, compiles in itertools.product(tasks, ("off", "torch")):
        of = (f"env={task}", *tasks[task], "log.profile_iterations=3", *NO_EVAL)
        name = f"{task}, compile={compiles}"
        run = _timed(m, "profile", name, *of, f"compile={compiles}")
        if not run:
            continue
        folder = Path(run["folder"]) / "profile"
        found[name] = run
        if not (folder / "trace.json").exists():
            continue
        shutil.copy(folder / "where_the_time_goes.md", m.out / f"where_the_time_goes_{task}_{compiles}.md")
        found[name]["trace"] = trace = summed(json.loads((folder / "trace.json").read_text())["traceEvents"])
        for kind, rows in trace.items():
            print(f"  {kind}")
            for name, (ms, count) in rows.items():
                print(f"    {ms:10.2f} ms {count:7} {name[:110]}", flush=True)
    return found


def summed(events):
    """Return the milliseconds and the number of a trace's kernels and host calls, largest first, by kind."""
    kinds = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "copies", "cuda_runtime": "host calls",
             "cuda_driver": "host calls", "user_annotation": "phases"}  # fmt: skip
    sums = defaultdict(lambda: defaultdict(lambda: [0.0, 0]))
    for event in events:
        if (kind := kinds.get(event.get("cat", ""))) and "dur" in event:
            row = sums[kind][event["name"]]
            row[0] += event["dur"] / 1000
            row[1] += 1
    return {
        kind: {"all": [sum(ms for ms, _ in rows.values()), sum(n for _, n in rows.values())]}
        | dict(sorted(rows.items(), key=lambda row: -row[1][0])[:14])
        for kind, rows in sums.items()
    }


PARTS = {f.__name__: f for f in (tests, check, equal, exact, nccl, learn, speed, numerics, profile)}


def main():
    words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    m = Machine(
        words["out"], words.get("device", "cuda"), float(words.get("minutes", 8)), words.get("only", "")
    )
    chosen = [word for word in sys.argv[1:] if "=" not in word]
    # Those that share the machine run beside one another.
    shared = [name for name in chosen if name in ("tests", "check", "equal", "exact", "nccl")]
    with ThreadPoolExecutor(max(1, len(shared))) as pool:
        for name in shared:
            pool.submit(_part, m, name)
    for name in chosen:
        if name not in shared:
            _part(m, name)
    shutil.rmtree(m.runs, ignore_errors=True)


def _part(m, name):
    start = time.monotonic()
    try:
        m.write(name, PARTS[name](m))
    except Exception as e:
        print(f"{name} failed: {type(e).__name__}: {e}", flush=True)
    print(f"-- {name}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
