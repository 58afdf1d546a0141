"""The short float64 runs whose numbers are kept in this folder."""

from pathlib import Path

from tests.support import TINY, door, lines

FOLDER = Path(__file__).resolve().parent
TASKS = ("cartpole", "pendulum")
NAMES = (
    "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl", "train/clip_fraction",
    "train/ratio_outliers", "train/explained_variance", "train/grad_norm", "train/learning_rate", "train/epochs",
    "rollout/episodes", "rollout/return_mean", "rollout/length_mean",
)  # fmt: skip
# Written out, not taken from presets: tuning these must not change the numbers.
SETTINGS = (
    "ppo=default", "env.num_envs=4", "ppo.rollout_steps=64", "ppo.total_steps=1280", "ppo.num_epochs=3",
    "ppo.num_minibatches=4", "ppo.learning_rate=1e-3", "ppo.gamma=0.98", "ppo.gae_lambda=0.9",
    "ppo.entropy_coef=0.01", "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.clip_value_coef=0.5",
    "model.hidden_sizes=[16,16]", "model.activation=tanh", "dtype=float64", "seed=7", "env.backend=sync",
)  # fmt: skip


def measure(task: str, run_dir: Path, *more: str, **environ: str) -> list[dict[str, float]]:
    """Run a task for 5 iterations and return NAMES of each; a name without a value yet is absent."""
    result = door(*TINY, f"env={task}", *SETTINGS, *more, run_dir=run_dir, **environ)
    assert result.code == 0, result.stderr
    return [
        {name: line[name] for name in NAMES if name in line} for line in lines(run_dir) if line["rank"] == 0
    ]
