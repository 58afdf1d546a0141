"""What `python -m ddppo.export` does: write a run's policy as a file, once it is seen to act the same."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

import ddppo
from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.files import replacing, stored, write_json
from ddppo.package import install_command
from ddppo.tracebacks import in_one_line

if TYPE_CHECKING:
    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.export.check import ExportAgreement
    from ddppo.policies.export.portable import Arrays

FORMAT, VERSION = "ddppo-policy", 1
_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch": ()}
_MEANINGS = {
    "action": "the likeliest action, as the task takes it",
    "logits": "of every choice, end to end over the components; of a bit, of its being 1",
    "mean": "of the normal distribution that an action is drawn from, before it is clipped, or squashed by tanh",
    "log_std": "logarithm of that distribution's standard deviation",
    "params": "of the model's own distribution",
    "next_state": "what the policy remembers: the input state of the next step, 0 where an episode starts",
}


@dataclass(slots=True)
class ExportConfig:
    run: str = setting(MISSING, "the run folder")
    format: str = setting(
        "onnx",
        "onnx (for any ONNX runtime; needs the extra export) or torch (a program of torch.export, which "
        "needs torch alone)",
        choices=("onnx", "torch"),
    )
    checkpoint: str = setting("last", "last, best, or the path of a checkpoint file")
    out: str | None = setting(
        None,
        "file for the policy; null is policy.onnx or policy.pt2 in the run folder. A .json beside it "
        "describes the policy",
    )
    other_spaces: bool = setting(
        False, "write though the task's observations or actions are not what the policy was trained on"
    )


def export(options: ExportConfig) -> str:
    """Write the files and return what to print. Raises ConfigError, and TrainingError where file and policy part."""
    missing = [name for name in _PACKAGES[options.format] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"format={options.format} needs packages that are not installed: {install_command('export')}"
        )
    suffix = _SUFFIXES[options.format]
    out = Path(options.out or Path(options.run) / f"policy{suffix}")
    if out.suffix != suffix:
        raise ConfigError(f"out={out}: a file of format={options.format} ends in {suffix}")

    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.export.check import check, inputs_of, observed
    from ddppo.policies.export.files import FORMATS, written
    from ddppo.policies.export.portable import Portable
    from ddppo.policies.loading import no_text, trained

    found = trained(options.run, options.checkpoint, other_spaces=options.other_spaces)
    no_text(found, f"format={options.format}")
    if found.config.model.name == "gnn":
        raise ConfigError(
            f"format={options.format}: model.name=gnn finds what its choices depend on in C++, which no such file "
            "holds: use ddppo.load_policy, ddppo.enjoy or ddppo.evaluate"
        )
    policy = LoadedPolicy(found)
    portable = Portable(found.policy, policy.observation_space, policy.action_space)
    inputs, rows = inputs_of(policy, portable, observed(policy, found.config.seed))
    try:
        content = written(portable, options.format, inputs)
    except Exception as e:  # an exporter raises many kinds
        raise ConfigError(
            f"format={options.format}: model.name={found.config.model.name} does what no such file holds: "
            f"{in_one_line(e):.300}"
        ) from e
    agreement = check(policy, FORMATS[options.format].load(content), inputs, rows)
    with stored(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out, "wb") as file:
        file.write(content)
    description = out.with_name(f"{out.name}.json")
    write_json(description, _described(policy, options.format, out, portable.inputs, agreement, len(rows)))
    return _text(policy, out, description, agreement, inputs)


def _described(
    policy: "LoadedPolicy",
    format: str,
    out: Path,
    inputs: Mapping[str, tuple[Any, tuple[int, ...]]],
    agreement: "ExportAgreement",
    num_observations: int,
) -> dict[str, Any]:
    """Return what who uses the file needs to know: see docs/policies.md."""
    from ddppo.envs.registration import missions_of

    found, missions = policy.trained, missions_of(policy.observation_space)
    is_normalized = found.policy.normalizer is not None
    return {
        "format": FORMAT,
        "version": VERSION,
        "file": out.name,
        "written_as": format,
        "env": found.config.env.id,
        "model": found.config.model.name,
        "run": found.run_dir.name,
        "checkpoint": found.checkpoint.name,
        "env_steps": found.state["env_steps"],
        "observation_space": str(policy.observation_space),
        "action_space": str(policy.action_space),
        "spaces": found.spec.spaces,
        **({} if missions is None else {"missions": missions.sentences}),
        "inputs": [
            {"name": name, "dtype": dtype.name, "shape": ["n", *shape]}
            for name, (dtype, shape) in inputs.items()
        ],
        "outputs": [
            {"name": name, "dtype": x.dtype.name, "shape": ["n", *x.shape[1:]], "meaning": _MEANINGS[name]}
            for name, x in agreement.outputs.items()
        ],
        "observations_are_normalized_in_the_file": is_normalized,
        "checked": {"observations": num_observations, "largest_difference": agreement.largest_difference},
        "versions": {"ddppo": ddppo.__version__, "torch": version("torch")},
    }


def _text(
    policy: "LoadedPolicy", out: Path, description: Path, agreement: "ExportAgreement", inputs: "Arrays"
) -> str:
    found = policy.trained
    rows = len(next(iter(inputs.values())))
    return "\n".join(
        [
            f"{found.config.env.id}, {found.checkpoint.name} at {found.state['env_steps']:,} steps",
            f"file     {out} ({out.stat().st_size:,} bytes), described in {description.name}",
            f"inputs   {', '.join(f'{name} {x.dtype}{[*x.shape[1:]]}' for name, x in inputs.items())}",
            f"outputs  {', '.join(agreement.outputs)}",
            f"checked  on {rows} observations, real and drawn: the same actions, parameters within "
            f"{agreement.largest_difference:.2g}",
        ]
    )
