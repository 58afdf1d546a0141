"""GRPO beside TRL on one small language model: the same task, seeds and hyperparameters.

    python experiments/grpo_beside_trl/study.py model                   # the model's folder, the same for both
    python experiments/grpo_beside_trl/study.py train trl_python=<python with trl>     # curves.json
    python experiments/grpo_beside_trl/study.py draw                    # curves.svg and the tables of README.md

The runs follow one another. TRL's part (`trl` below) runs in a Python of its own, for ddppo does not depend on TRL.
"""

import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODEL = ROOT / "outputs" / "grpo_beside_trl" / "model"
SEEDS = (0, 1, 2, 3)
STEPS = 60  # of the optimizer
BATCH, GROUP = 64, 8  # answers of a step, in groups of one prompt
LEARNING_RATE = 1e-3
WARM_UP = 5  # steps that the clock leaves out


def make_model() -> None:
    """Write a Llama of 0.85 million random parameters, and a tokenizer of 11 words."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sys.path.insert(0, str(ROOT))
    from experiments.grpo_beside_trl.task import LETTERS

    words = ["<eos>", ">", "say", *LETTERS]
    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
    # The line break in front of > is no token, so that no answer contains one: ours would end there, and TRL's not.
    tokens.normalizer = normalizers.Replace("\n", " ")
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<eos>", pad_token="<eos>").save_pretrained(
        MODEL
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=64, eos_token_id=0, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(MODEL)
    print(f"{MODEL}: {sum(p.numel() for p in model.parameters()):,} parameters")


# -- Ours.


def ours(seed: int, steps: int, folder: Path) -> dict[str, object]:
    """Train with ddppo; return mean reward, tokens and seconds of every step."""
    command = [
        sys.executable, "-m", "ddppo.train", "env=gym", "env.id=experiments.grpo_beside_trl.task:study/Say-v0",
        f"env.num_envs={BATCH}", "model=hf", f"model.hf_path={MODEL}", "model.chat=text", "model.lora_rank=0",
        "model.turn_tokens=8", "model.obs_tokens=8", "ppo=grpo", "ppo.rollout_steps=16", f"ppo.group_size={GROUP}",
        "ppo.num_epochs=1", "ppo.num_minibatches=1", "ppo.scale_by=none", "ppo.clip_coef=0.2",
        f"ppo.learning_rate={LEARNING_RATE}", "ppo.lr_schedule=none", "ppo.adam_eps=1e-8", "ppo.max_grad_norm=1.0",
        # A step has at most 512 tokens: so many suffice for all steps, and later ones are left out.
        f"ppo.total_steps={steps * BATCH * 8}", "eval.final_episodes=0", "log.progress=none", "log.tensorboard=false",
        f"seed={seed}", "device=cpu", f"hydra.run.dir={folder}",
    ]  # fmt: skip
    cpu_s = cpu_of(command, ROOT)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "rollout/group_return_mean" in row]
    return {
        "reward": [row["rollout/group_return_mean"] for row in rows],
        "tokens": [row["rollout/steps"] for row in rows],
        "seconds": [row["time/t_iter"] for row in rows],
        "cpu_s": cpu_s,
    }


# -- TRL's.


def theirs(python: str, seed: int, steps: int, folder: Path) -> dict[str, object]:
    """Train with TRL in its own Python; return the same."""
    cpu_s = cpu_of([python, str(Path(__file__)), "trl", str(seed), str(steps), str(folder)], ROOT)
    return {**json.loads((folder / "trl.json").read_text()), "cpu_s": cpu_s}


def trl(seed: int, steps: int, folder: Path) -> None:
    sys.path.insert(0, str(ROOT))
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from experiments.grpo_beside_trl.task import LETTERS, NUM_TOKENS, prompt_of, reward_of

    torch.set_num_threads(1)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            ends.append(time.perf_counter())

    draw = random.Random(seed)
    letters = [draw.choice(LETTERS) for _ in range(steps * BATCH // GROUP)]
    rows = [{"prompt": f"{prompt_of(letter)}\n>", "letter": letter} for letter in letters]

    def reward(completions: list[str], letter: list[str], **kwargs: object) -> list[float]:
        return [reward_of(of, answer) for of, answer in zip(letter, completions, strict=True)]

    settings = GRPOConfig(
        output_dir=str(folder), use_cpu=True, seed=seed, report_to="none", save_strategy="no", logging_steps=1,
        per_device_train_batch_size=BATCH, num_generations=GROUP, max_steps=steps, num_iterations=1,
        max_completion_length=NUM_TOKENS, temperature=1.0, top_p=1.0, top_k=0, loss_type="dapo", scale_rewards="none",
        beta=0.0, epsilon=0.2, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", max_grad_norm=1.0,
        weight_decay=0.0, adam_epsilon=1e-8, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Clock()],
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    found = {
        "reward": [log["reward"] for log in logs],
        "tokens": [log["completions/mean_length"] * BATCH for log in logs],
        "seconds": [b - a for a, b in itertools.pairwise(ends)],
    }
    (folder / "trl.json").write_text(json.dumps(found))


def cpu_of(command: list[str], cwd: Path) -> float:
    """Run a command with one thread; return the CPU seconds that it took."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -- The study.


def folder_of(name: str) -> Path:
    folder = MODEL.parent / f"{name}_{time.strftime('%H%M%S')}"
    folder.mkdir(parents=True)
    return folder


def train(python: str) -> None:
    found: dict[str, list[object]] = {"ours": [], "trl": []}
    for seed in SEEDS:
        found["ours"].append(ours(seed, STEPS, folder_of(f"ours_{seed}")))
        found["trl"].append(theirs(python, seed, STEPS, folder_of(f"trl_{seed}")))
        (HERE / "curves.json").write_text(json.dumps(found) + "\n")


def quantile(num_free: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    return {2: 4.303, 3: 3.182, 4: 2.776, 6: 2.447}[num_free]


def draw() -> None:
    import numpy as np

    from ddppo.study.page.chart import Axis, Chart

    found = json.loads((HERE / "curves.json").read_text())
    picture = Chart(
        "curves", "Mean reward of a step", Axis("optimizer steps"), Axis("reward", shows=(0.0, 1.0))
    )
    curves = {}
    for name, label, colour in (("ours", "ddppo", "blue"), ("trl", "TRL 1.16.0", "orange")):
        runs = np.array([run["reward"][:STEPS] for run in found[name]])
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
        curves[name] = mean, error
        steps = list(range(1, STEPS + 1))
        half = quantile(len(runs) - 1) * error  # 95 %
        picture.band(steps, list(mean - half), list(mean + half), colour)
        picture.line(steps, list(mean), colour, f"{label}, mean of {len(runs)} seeds and 95 %")
    (HERE / "curves.svg").write_text(picture.svg(standalone=True) + "\n", encoding="utf-8")
    num_free = len(found["ours"]) + len(found["trl"]) - 2
    print("| step | ddppo | TRL | difference | 95 % of the difference |\n|---|---|---|---|---|")
    for step in (1, 5, 10, 20, 30, 40, 50, 60):
        (a, da), (b, db) = ((x[0][step - 1], x[1][step - 1]) for x in (curves["ours"], curves["trl"]))
        half = quantile(num_free) * np.hypot(da, db)
        print(f"| {step} | {a:.3f} | {b:.3f} | {a - b:+.3f} | ±{half:.3f} |")
    inside = np.abs(curves["ours"][0] - curves["trl"][0]) <= 2.447 * np.hypot(
        curves["ours"][1], curves["trl"][1]
    )
    print(f"\n{inside.sum()} of {STEPS} steps within the interval")
    print(
        "\n| seed | ddppo tokens/s | TRL tokens/s | ratio | ddppo CPU s | TRL CPU s | tokens/CPU s, ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    for seed, runs in enumerate(zip(found["ours"], found["trl"], strict=True)):
        by_clock = [sum(run["tokens"][WARM_UP:]) / sum(run["seconds"][WARM_UP:]) for run in runs]
        by_cpu = [sum(run["tokens"]) / run["cpu_s"] for run in runs]
        cpu_s = " | ".join(f"{run['cpu_s']:.0f}" for run in runs)
        speeds = f"{by_clock[0]:.0f} | {by_clock[1]:.0f} | {by_clock[0] / by_clock[1]:.2f}"
        print(f"| {seed} | {speeds} | {cpu_s} | {by_cpu[0] / by_cpu[1]:.2f} |")


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    python = dict(x.split("=", 1) for x in given if "=" in x).get("trl_python", sys.executable)
    match name:
        case "model":
            make_model()
        case "trl":
            trl(int(given[0]), int(given[1]), Path(given[2]))
        case "train":
            train(python)
        case "draw":
            draw()
        case _:
            raise SystemExit(__doc__)
