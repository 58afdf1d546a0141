"""mjlab's cartpole by env.simulator=isaaclab, for real: last observations are those of the simulator, and a run trains.

    python experiments/devices/mjlab_cartpole.py [cpu|cuda]

It needs mjlab (README.md beside this file). On a CPU its first use compiles kernels for some ten minutes; Warp keeps
them. Exits with an error if something is not as it should be, so it can run every night.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

NUM_ENVS, LIMIT = 4, 3


def make(num_envs, device, seed, task="Mjlab-Cartpole-Balance", limit=None):
    """Return mjlab's environment, as env.id names this function."""
    import mjlab.tasks  # noqa: F401 (registers the tasks)
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks.registry import load_env_cfg

    cfg = load_env_cfg(task)
    cfg.scene.num_envs, cfg.seed = num_envs, seed
    if limit is not None:
        cfg.episode_length_s = limit * cfg.decimation * cfg.sim.mujoco.timestep
    return ManagerBasedRlEnv(cfg=cfg, device=str(device))


def check_final_observations(device):
    """Step beyond a time limit, and compare the adapter's last observations with the simulator's own state."""
    from ddppo.envs.simulators.torch_simulators import IsaacLabEnvs
    from ddppo.envs.vec_env import EnvNames

    made = make(NUM_ENVS, device, seed=0, limit=LIMIT)
    envs = IsaacLabEnvs(made, NUM_ENVS, torch.device(device), EnvNames(range(NUM_ENVS), 0), 0)
    print(f"spec: {envs.spec}", flush=True)
    obs = envs.reset(torch.arange(NUM_ENVS))
    size, reset, seen = envs.spec.action.sizes[0], made.reset, []

    def keeping(*args, **kwargs):  # the simulator's state before the reset, read past the adapter
        seen.append(made.observation_manager.compute()["actor"].clone())
        return reset(*args, **kwargs)

    made.reset = keeping
    for t in range(1, 2 * LIMIT + 1):
        step = envs.step(torch.zeros(NUM_ENVS, size, device=device))
        is_end = t % LIMIT == 0
        assert step.truncated.tolist() == [is_end] * NUM_ENVS, (t, step.truncated)
        assert not step.terminated.any()
        policy = step.obs if torch.is_tensor(step.obs) else next(iter(step.obs.values()))
        final = step.final_obs if torch.is_tensor(step.final_obs) else next(iter(step.final_obs.values()))
        if is_end:
            torch.testing.assert_close(final, seen[-1], rtol=1e-4, atol=1e-4)
            assert (final - policy).abs().max() > 1e-4, "the next episode begins in the last observation"
        assert torch.isfinite(policy).all()
    assert len(seen) == 2, len(seen)
    assert obs is not None
    envs.close()
    print("last observations are the simulator's own", flush=True)


def train(device, folder):
    """Train and evaluate by the commands that users type."""
    here = Path(__file__).resolve()
    command = [
        *(sys.executable, "-m", "ddppo.train", "env=gym", "env.backend=device", "env.simulator=isaaclab"),
        *(f"env.id={here.stem}:make", "+env.kwargs.limit=20", "env.num_envs=16", "ppo.rollout_steps=8"),
        *("ppo.total_steps=512", "ppo.num_minibatches=2", "ppo.lr_schedule=adaptive", f"device={device}"),
        *("eval.final_episodes=4", "eval.every_steps=0", f"hydra.run.dir={folder}/run"),
        *("+env.simulator_options.init_at_random_ep_len=true", "resume_state=approximate"),
    ]
    subprocess.run(command, cwd=here.parent, check=True)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    begun = time.perf_counter()
    check_final_observations(device)
    with tempfile.TemporaryDirectory() as folder:
        train(device, folder)
    print(f"mjlab's cartpole ran on {device}, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
