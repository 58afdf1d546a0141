"""`python -m ddppo.export`: write the policy of a run as a file, after a check that the file acts the same."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

import ddppo
from ddppo.config.fields import setting
from ddppo.errors import ConfigError, in_one_line
from ddppo.files import replacing, stored, write_json
from ddppo.package import install_command
from ddppo.plugins import imported

if TYPE_CHECKING:
    from ddppo.policies.acting import LoadedPolicy
    from ddppo.policies.export.check import ExportAgreement
    from ddppo.policies.export.portable import Arrays

FORMAT, VERSION = "ddppo-policy", 1
_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch": ()}
_MEANINGS = {
    "action": "the likeliest action, in the task's own form",
    "logits": "one for every choice, components one after another; for a bit, the logit of 1",
    "mean": "mean of the normal distribution of actions, before they are clipped or squashed by tanh",
    "log_std": "logarithm of the standard deviation of that distribution",
    "alpha": "first parameter of the Beta distribution of actions, between the bounds of the Box",
    "beta": "its second parameter",
    "params": "parameters of the model's own distribution",
    "next_state": "the memory of the policy: the input `state` of the next step; set it to 0 where an episode starts",
}


@dataclass(slots=True)
class ExportConfig:
    run: str = setting(MISSING, "the run folder")
    format: str | None = setting(
        None,
        "onnx (for any ONNX runtime; needs the extra export), torch (a program of torch.export, which needs torch "
        "alone) or huggingface (a folder, of model=hf alone); null is huggingface for model=hf, else onnx",
        choices=("onnx", "torch", "huggingface"),
    )
    merge: bool = setting(
        False,
        "huggingface: write the whole model with its tokenizer, LoRA's adapters merged into its weights",
    )
    checkpoint: str = setting("last", "last, best, or the path of a checkpoint file")
    out: str | None = setting(
        None,
        "file for the policy, or a new folder of format=huggingface; null is policy.onnx, policy.pt2, adapters or "
        "merged in the run folder. A .json beside a file describes the policy",
    )
    other_spaces: bool = setting(
        False, "write the file even if the task's spaces differ from those in training"
    )


def export(options: ExportConfig) -> str:
    """Write the file and its description; return the text to print.

    Raises ConfigError, and TrainingError if the file and the policy disagree.
    """
    # 1. Check the options, before torch is imported. A model may have an exporter of its own.
    if options.format in (None, "huggingface"):
        from ddppo.models.build import model_class
        from ddppo.policies.loading import config_of

        config = config_of(options.run)
        if (exporter := model_class(config.model).exporter) is not None:
            return str(imported(exporter)(options))
        if options.format == "huggingface":
            raise ConfigError(
                f"format=huggingface: the run's model.name={config.model.name} is none of Hugging Face: use format=onnx"
            )
        options = dataclasses.replace(options, format="onnx")
    assert options.format is not None
    if options.merge:
        raise ConfigError(f"merge=true with format={options.format} has no effect: leave it out")
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
    from ddppo.policies.loading import refuse_text, trained

    # 2. Load the policy, and refuse models that no file can hold.
    found = trained(options.run, options.checkpoint, other_spaces=options.other_spaces)
    refuse_text(found, f"format={options.format}")
    if found.config.model.name == "gnn":
        raise ConfigError(
            f"format={options.format}: model.name=gnn finds what its choices depend on in C++, which no such file "
            "holds: use ddppo.load_policy, ddppo.enjoy or ddppo.evaluate"
        )
    # 3. Export the network, with observations of the task as the example inputs.
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
    # 4. Load the file back and compare it with the policy. Only then write it.
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
    """Return the description of the file, for programs that use it (docs/policies.md)."""
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
        # The interface of the file.
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
