"""A short supervised start: learn the solutions of some tasks, and write the model as a folder for model.hf_path.

python experiments/real_model/supervised.py out=/tmp/smollm2_started env=cloud ppo=cloud model=hf \
    model.hf_path=/tmp/smollm2

All words but those of `OWN` are settings of `ddppo.train`, so that the model reads a solution in the same tokens in
which it types in training. Each task is demonstrated twice: its solution is typed at once, and after three hints, the
last of which shows the command. The commands are executed in the simulated cloud, so the answers are its own. The loss
is the mean cross-entropy of typed tokens; prompts and answers are only read. All weights are learned.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoTokenizer

from ddppo.config.settings import Config
from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.text.hf_policy import HuggingFacePolicy
from ddppo.domains.text.tokenizers import begun, make_tokenizer
from ddppo.envs.probing.probe import probe
from ddppo.launch.arguments import composed
from ddppo.models.build import build_model

OWN = {"out": "", "epochs": "7", "learning_rate": "2e-5", "batch": "4", "seed": "0"}
HINTS = (0, 3)  # hints before the solution, in the two demonstrations of a task
TASKS = yaml.safe_load((Path(__file__).parent / "tasks.yaml").read_text())


def arguments(words: Sequence[str], own: dict[str, str]) -> tuple[dict[str, str], Config]:
    """Return the options of a script of this folder, and the settings of ddppo.train among `words`."""
    pairs = [word.partition("=") for word in words]
    options = own | {name: value for name, _, value in pairs if name in own}
    return options, composed([f"{name}={value}" for name, _, value in pairs if name not in own])


def demonstration(env: CloudEnv, tokenizer: Any, task: str, num_hints: int) -> tuple[list[int], list[bool]]:
    """Return the tokens of an episode that asks for hints and types the solution, and which of them are typed."""
    prompt, info = env.reset(seed=0, options={"task": task})
    dialogue = begun(tokenizer, prompt, info)
    tokens, typed = list(dialogue.prompt_tokens), [False] * len(dialogue.prompt_tokens)
    for line in (*num_hints * ["hint"], *env.tasks[task].solution):
        turn = [*tokenizer.tokens.encode(line), tokenizer.end]
        for token in turn:
            assert not dialogue.is_over, f"{task}: {line!r} is longer than model.turn_tokens"
            dialogue.push(token)
        action = dialogue.action()
        assert action == line, f"{task}: {action!r} is read where {line!r} was typed"
        answer, _, terminated, _, info = env.step(line)
        tokens, typed = tokens + turn, typed + [True] * len(turn)
        if not terminated:
            read = dialogue.observe(answer)
            tokens, typed = tokens + read, typed + [False] * len(read)
    assert info["is_success"], f"the solution of {task} does not solve it"
    return tokens, typed


def loss_of(model: HuggingFacePolicy, batch: Sequence[tuple[list[int], list[bool]]]) -> torch.Tensor:
    """Return the mean cross-entropy of the typed tokens of some episodes, at temperature 1."""
    length = max(len(tokens) for tokens, _ in batch)
    tokens = torch.zeros(len(batch), length, dtype=torch.long)
    typed = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, (of_row, is_typed) in enumerate(batch):
        tokens[row, : len(of_row)] = torch.tensor(of_row)
        typed[row, : len(of_row)] = torch.tensor(is_typed)
    # The token at position l + 1 is predicted at position l.
    targets, own = tokens.roll(-1, dims=1), typed.roll(-1, dims=1)
    logits, _ = model.at_own(tokens, targets, own.flatten().nonzero().squeeze(1))
    return torch.nn.functional.cross_entropy(logits * model.temperature, targets[own])


def main(words: Sequence[str]) -> None:
    options, config = arguments(words, OWN)
    spec = probe(config.env)
    config.model.lora_rank = 0
    model, tokenizer = (
        build_model(spec, config.model, config.seed, torch.float32),
        make_tokenizer(spec, config.model),
    )
    assert isinstance(model, HuggingFacePolicy), f"model.name={config.model.name}: use model=hf"
    env = CloudEnv(chaos=False)
    shown = [demonstration(env, tokenizer, task, hints) for task in TASKS["demonstrated"] for hints in HINTS]
    print(
        f"{len(shown)} episodes, {sum(len(t) for t, _ in shown)} tokens, {sum(map(sum, (o for _, o in shown)))} typed"
    )
    optimizer = torch.optim.AdamW(model.lm.parameters(), lr=float(options["learning_rate"]), weight_decay=0.0)
    random, size = np.random.default_rng(int(options["seed"])), int(options["batch"])
    for epoch in range(int(options["epochs"])):
        losses = []
        for part in np.array_split(random.permutation(len(shown)), -(-len(shown) // size)):
            loss = loss_of(model, [shown[i] for i in part])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.lm.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}", flush=True)
    # In float32: rounding to bfloat16 would undo most of the change, which is about 3e-4 a weight.
    model.lm.save_pretrained(options["out"])
    AutoTokenizer.from_pretrained(config.model.hf_path).save_pretrained(options["out"])
    print(f"model.hf_path={options['out']}")


if __name__ == "__main__":
    main(sys.argv[1:])
