"""Make this folder's files: `python -m tests.kept.make of=<commit>` runs the code of that commit, in a copy of it.

They are what ddppo wrote before its settings moved to what they set: run folders, each with its checkpoint (one also
with policies as files), what became of them when that ddppo went on with them, and the configuration of every preset.
tests/unit/test_kept_runs.py has the ddppo of today read them. They are made once: what a later ddppo writes belongs
beside them, in files of another name.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.golden.same_parameters import code_of

HERE = Path(__file__).resolve().parent
SMALL = (
    "dtype=float64", "log.progress=none", "log.tensorboard=false", "device=cpu", "eval.final_episodes=0",
    "checkpoint.keep=1", "dist.timeout_s=300", "env.num_envs=4", "ppo.rollout_steps=8", "ppo.total_steps=96",
    "ppo.num_epochs=2", "ppo.num_minibatches=2",
)  # fmt: skip
LONGER = ("ppo.total_steps=192",)
TEXT = (
    "env=gym", "env.id=tests.golden.golden_parts:golden/Say-v0", "model=token_policy", "model.token_width=8",
    "model.token_layers=1", "model.token_heads=1", "model.obs_tokens=8", "model.turn_tokens=3", "ppo=grpo",
    "ppo.group_size=2", "ppo.rollout_steps=24", "compile=off",
)  # fmt: skip
SEARCH = (
    "experiment=workflows", "env.num_envs=2", "model.hidden_sizes=[8]", "ppo.rollout_steps=20", "ppo.total_steps=160",
    "search.budget_episodes=8", "search.max_episodes_per_order=2", "search.gate_compliance=0.5",
    "search.settle_iterations=0",
)  # fmt: skip
MLP = ("env=cartpole", "model.hidden_sizes=[8]")
EVERYTHING = (
    "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.target_kl=0.01", "ppo.lr_schedule=adaptive",
    "ppo.clip_value_coef=0.2",
)  # fmt: skip
# By name, how a run is trained and how it goes on.
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mlp": (MLP, LONGER),
    "gym_vector": ((*MLP, "env.backend=native"), (*LONGER, "resume_state=approximate")),
    "ordered": (
        ("env=pendulum", "model.hidden_sizes=[8]", *EVERYTHING, "dist.reduction=ordered", "dist.shards=2",
        "dist.world_size=2"), LONGER,
    ),
    "env_workers_hetero": (
        (*MLP, "distributed=env_workers_hetero", "dist.world_size=3", "dist.env_shares=[3,1]"), LONGER,
    ),
    "async_actors": (
        (*MLP, "distributed=async_actors", "dist.world_size=2", "dist.max_lag=0"),
        (*LONGER, "resume_state=approximate"),
    ),
    "grpo": ((*MLP, "ppo=grpo", "ppo.group_size=2", "ppo.kl_coef=0.1", "ppo.rollout_steps=20", "compile=off"), LONGER),
    "dict": (
        ("env=gym", "env.id=tests.golden.golden_parts:golden/Seen-v0", "model=dict", "model.image_features=8",
        "model.conv_layers=[[2,8,4]]", "model.hidden_sizes=[8]", "model.vector_sizes=[4]", "compile=off"), LONGER,
    ),
    "gru": (
        ("env=cartpole_masked", "model=gru", "model.memory_size=4", "model.hidden_sizes=[4]", "compile=off"), LONGER,
    ),
    "circuit": (
        ("env=circuit", "model=gnn", "env.num_envs=2", "model.graph_width=4", "model.graph_layers=1",
        "ppo.total_steps=48", "env.buffer.level_size=20", "compile=off"), ("ppo.total_steps=96",),
    ),
    "text": (TEXT, LONGER),
    "search": (SEARCH, ("search.budget_episodes=16", "ppo.total_steps=320")),
}  # fmt: skip
EVALUATED_EPISODES = 3
EXPORTED = {"mlp": ("torch", "onnx"), "gru": ("torch",)}  # policies as files, in the run folder
SCRUBBED = {"hostname": "a-machine", "cpu": "a CPU", "platform": "Linux"}
PRESETS = """
import json, sys
from pathlib import Path
from ddppo.benchmark.workloads import composed
from ddppo.config import to_yaml

conf = Path("conf")
needs = {
    "model=hf": ["model.hf_path=a-model"], "env=gym": ["env.id=CartPole-v1"], "ppo=a3c": ["distributed=async_actors"],
    "env=remote": ["env.urls=[ws://127.0.0.1:8000]"],
}
found = {"": to_yaml(composed([]))}
for path in sorted(conf.glob("*/**/*.yaml")):
    group, _, option = path.relative_to(conf).with_suffix("").as_posix().partition("/")
    if group != "hydra" and not option.startswith("tune/"):
        name = f"{group}={option}"
        found[name] = to_yaml(composed([name, *needs.get(name, [])]))
json.dump(found, sys.stdout)
"""


def flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings by their full names; what a task's own keywords say is one setting."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        is_section = isinstance(value, dict) and not prefix
        found |= flat(value, f"{key}.") if is_section else {f"{prefix}{key}": value}
    return found


def parameters(run_dir: Path) -> list[float]:
    """Return the sum of the parameters of a run's last checkpoint, and that of their squares."""
    import torch

    path = sorted((run_dir / "checkpoints").glob("iteration_*.pt"))[-1]
    model = torch.load(path, weights_only=True)["model"]
    vector = torch.cat([x.flatten().double() for x in model.values()])
    return [float(vector.sum()), float(vector.square().sum())]


def scrub(value: Any) -> Any:
    """Return what a JSON file says, without what it says of the machine."""
    if isinstance(value, dict):
        return {
            key: SCRUBBED.get(key, scrub(x)) if isinstance(x, str) else scrub(x) for key, x in value.items()
        }
    return [scrub(x) for x in value] if isinstance(value, list) else value


def archived(run_dir: Path) -> bytes:
    """Return the run folder as an archive that tells nothing of who made it, and when."""

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz", preset=9) as archive:
        archive.add(run_dir, ".", filter=anonymous)
    return content.getvalue()


def make(code: Path) -> None:
    """Write all files with the code in this folder."""

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=code, env=os.environ | {"PYTHONPATH": str(code)}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    expected: dict[str, Any] = {}
    for name, (arguments, then) in RUNS.items():
        folder = f"outputs/{name}"  # below the copy, so that no path of this machine is written
        run("-m", "ddppo.train", *SMALL, *arguments, f"hydra.run.dir={folder}")
        for format in EXPORTED.get(name, ()):
            run("-m", "ddppo.export", folder, f"format={format}")
        for file in [*Path(code, folder).glob("*.json")]:
            file.write_text(json.dumps(scrub(json.loads(file.read_text())), indent=1) + "\n")
        Path(HERE / f"{name}.tar.xz").write_bytes(archived(code / folder))
        scores = json.loads(
            run("-m", "ddppo.evaluate", folder, f"episodes={EVALUATED_EPISODES}", "json=true")
        )
        run("-m", "ddppo.train", f"resume={folder}", "log.progress=none", *then)
        summary = json.loads((code / folder / "summary.json").read_text())
        expected[name] = {
            "resumed_with": then,
            "returns": scores["returns"],
            "env_steps": summary["env_steps"],
            "parameters": parameters(code / folder),
        }
        print(name, len((HERE / f"{name}.tar.xz").read_bytes()), expected[name], flush=True)
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")

    write_presets(json.loads(run("-c", PRESETS)))


def write_presets(texts: dict[str, str]) -> None:
    """Write the default configuration, and by what each preset differs from it."""
    import yaml

    presets = {name: flat(yaml.safe_load(text)) for name, text in texts.items()}
    default = presets.pop("")
    differing = {
        name: {key: value for key, value in settings.items() if value != default[key] and key != "sweep"}
        for name, settings in presets.items()
    }
    kept = {"default": default | {"sweep": "outputs/sweeps/a_sweep"}, "presets": differing}
    (HERE / "presets.json").write_text(json.dumps(kept, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    options = dict(each.partition("=")[::2] for each in arguments)
    if list(options) != ["of"]:
        print(__doc__, file=sys.stderr)
        return 2
    with code_of(options["of"]) as code:
        make(code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
