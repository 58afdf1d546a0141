"""`python -m ddppo.export` for model=hf: folders that transformers and peft load without ddppo."""

from pathlib import Path
from typing import Any

import torch

from ddppo.domains.text.hf_policy import HuggingFacePolicy
from ddppo.errors import ConfigError, TrainingError
from ddppo.files import stored
from ddppo.policies.export.command import ExportConfig
from ddppo.policies.loading import trained

_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}  # of logits, as a share of their spread


def export(options: ExportConfig) -> str:
    """Write LoRA's adapters in the layout of peft, or with merge=true the whole model; return the text to print.

    Raises ConfigError, and TrainingError if the files and the policy disagree.
    """
    import peft
    import transformers
    from safetensors.torch import save_file

    found = trained(options.run, options.checkpoint, other_spaces=options.other_spaces)
    policy = found.policy.model
    assert isinstance(policy, HuggingFacePolicy)
    is_whole = options.merge or not policy.config.lora_rank
    out = Path(options.out or Path(options.run) / ("merged" if is_whole else "adapters"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out}: it exists: name a folder that does not, or remove it")
    base = str(policy.config.hf_path)
    if Path(base).is_dir():
        base = str(Path(base).resolve())  # the adapters name it
    dtype = getattr(torch, policy.config.precision)
    learned = {_name(name): p.detach().cpu().contiguous() for name, p in policy.lm.named_parameters()}
    lm = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    with stored(out):
        out.mkdir(parents=True, exist_ok=True)
        if policy.config.lora_rank:
            # peft wraps a model twice, and its names say so.
            adapters = out / "adapters" if is_whole else out
            adapters.mkdir(exist_ok=True)
            save_file(
                {f"base_model.model.{name}": p for name, p in learned.items()},
                adapters / "adapter_model.safetensors",
                metadata={"format": "pt"},
            )
            described = policy.lm.peft_config["default"]
            described.base_model_name_or_path, described.task_type = base, "CAUSAL_LM"
            described.inference_mode = True
            described.save_pretrained(str(adapters))
            lm = peft.PeftModel.from_pretrained(lm, str(adapters))
            if is_whole:
                lm = lm.merge_and_unload()
                for file in adapters.iterdir():
                    file.unlink()
                adapters.rmdir()
        else:
            lm.load_state_dict(learned, strict=False)
        if is_whole:
            lm.save_pretrained(out)
            transformers.AutoTokenizer.from_pretrained(base).save_pretrained(out)  # and its chat template
            lm = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=dtype)
    off = _difference(policy, lm)
    if not off <= _TOLERANCES[policy.config.precision]:
        raise TrainingError(
            f"out={out}: loaded again, its logits differ from the policy's by {off:.2g} of their spread"
        )
    size = sum(file.stat().st_size for file in out.iterdir())
    what = "a whole model and its tokenizer" if is_whole else f"adapters for {base}"
    return "\n".join(
        [
            f"{found.config.env.id}, {found.checkpoint.name} at {found.state['env_steps']:,} steps",
            f"folder   {out} ({size:,} bytes): {what}",
            f"sampled  with temperature {policy.temperature:g} and top_p {policy.config.top_p:g} in training",
            f"checked  loaded by {'transformers' if is_whole else 'peft'}: logits within {off:.2g} of their spread",
        ]
    )


def _name(name: str) -> str:
    """Return the name of a parameter in the library's own model."""
    return name.replace(".parametrizations.", ".").removesuffix(".original").replace(".default.", ".")


@torch.inference_mode()
def _difference(policy: HuggingFacePolicy, lm: Any) -> float:
    """Return by how much logits differ on random tokens, as a share of their spread."""
    tokens = torch.randint(policy.num_params, (2, 16), generator=torch.Generator().manual_seed(0))
    ours = policy(tokens)[0].cpu() * policy.temperature
    its = lm.eval()(input_ids=tokens).logits.flatten(0, 1).to(ours.dtype)
    return float((ours - its).abs().max() / ours.std())
