"""`python -m ddppo.export` for model=hf: folders that transformers and peft load without ddppo."""

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from ddppo.domains.text.hf_policy import HuggingFacePolicy
from ddppo.errors import ConfigError, TrainingError
from ddppo.files import stored
from ddppo.policies.export.command import ExportConfig
from ddppo.policies.loading import trained

# Of logits, as a share of their spread. In bfloat16, merging rounds weights that were never rounded in training.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.01}
_MERGED = {"float32": 1e-3, "bfloat16": 0.1}


def export(options: ExportConfig) -> str:
    """Write LoRA's adapters in the layout of peft, or with merge=true the whole model; return the text to print.

    Raises ConfigError, and TrainingError if the files and the policy disagree.
    """
    import peft
    import transformers

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
    learned = {_name(name): p.detach().contiguous() for name, p in policy.lm.named_parameters()}
    lm = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    with stored(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    # Files get their name once they were loaded and compared.
    with stored(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        adapters, merged = (Path(temporary) / name for name in ("adapters", "merged"))
        if policy.config.lora_rank:
            _write_adapters(policy, learned, base, adapters)
            with warnings.catch_warnings():
                # peft 0.21 reads an attribute that transformers 5.24 calls deprecated.
                warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
                lm = peft.PeftModel.from_pretrained(lm, str(adapters))
            off = _compared(policy, lm, _TOLERANCES, out)
            if is_whole:
                lm = lm.float().merge_and_unload().to(dtype)  # rounded once
        else:
            lm.load_state_dict(learned, strict=False)
        if is_whole:
            lm.save_pretrained(merged)
            tokenizer = transformers.AutoTokenizer.from_pretrained(base)
            if policy.config.chat_template is not None:
                tokenizer.chat_template = Path(policy.config.chat_template).read_text(encoding="utf-8")
            tokenizer.save_pretrained(merged)
            lm = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=dtype)
            off = _compared(policy, lm, _MERGED if policy.config.lora_rank else _TOLERANCES, out)
        (merged if is_whole else adapters).replace(out)
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


def _write_adapters(
    policy: HuggingFacePolicy, learned: dict[str, torch.Tensor], base: str, folder: Path
) -> None:
    """Write adapters as peft's own save_pretrained does. peft wraps a model twice, and names of parameters say so."""
    from safetensors.torch import save_file

    described = copy.copy(policy.lm.peft_config["default"])
    described.base_model_name_or_path, described.task_type = base, "CAUSAL_LM"
    described.inference_mode = True
    described.save_pretrained(str(folder))
    named = {f"base_model.model.{name}": p for name, p in learned.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _name(name: str) -> str:
    """Return the name of a parameter in the library's own model."""
    return name.replace(".parametrizations.", ".").removesuffix(".original").replace(".default.", ".")


@torch.inference_mode()
def _compared(policy: HuggingFacePolicy, lm: Any, tolerances: dict[str, float], out: Path) -> float:
    """Return by how much logits differ on random tokens (root mean square), as a share of their spread.

    Raises TrainingError if that is more than the tolerance of the run's precision.
    """
    tokens = torch.randint(policy.num_params, (2, 16), generator=torch.Generator().manual_seed(0))
    ours = policy.lm(input_ids=tokens).logits.float()
    its = lm.eval()(input_ids=tokens).logits.float()
    off = float((ours - its).square().mean().sqrt() / ours.std())
    if not off <= tolerances[policy.config.precision]:
        raise TrainingError(
            f"out={out}: not written: loaded again, its logits differ from the policy's by {off:.2g} of their spread"
        )
    return off
