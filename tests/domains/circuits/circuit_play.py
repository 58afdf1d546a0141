"""Ways to act in the circuit environment, for its tests."""

import numpy as np

from ddppo.domains.circuits.task import CircuitEnv
from ddppo.domains.circuits.task.board import growth_of

HEADER = 'OPENQASM 2.0;\ninclude "qelib1.inc";\nqreg q[3];\n'


def qasm(folder, body, name="mine"):
    """Return the path of a new file with these gates on three qubits."""
    path = folder / f"{name}.qasm"
    path.write_text(HEADER + body)
    return str(path)


def choices_of(obs):
    return obs["pairs"][: obs["num_pairs"][0]]


def at_random(env, obs, rng):
    return int(rng.integers(obs["num_pairs"][0]))


def downhill(env, obs, rng):
    """Return a random choice, of rules that add few gates rather; no NOP but where there is nothing else."""
    pairs = choices_of(obs)
    weights = np.exp(-2.0 * growth_of(env.rewriter)[pairs[:, 1]]) * (pairs[:, 1] != env.rewriter.nop)
    return int(rng.choice(len(pairs), p=weights / weights.sum())) if weights.any() else 0


def steps(env, num_steps, seed=0, choose=downhill):
    """Yield (obs, action, answer) of so many steps from a fresh start, with resets after ends."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    for _ in range(num_steps):
        action = choose(env, obs, rng)
        answer = env.step(action)
        yield obs, action, answer
        obs = env.reset()[0] if answer[2] or answer[3] else answer[0]


class Together:
    """Environments of one run, which play an iteration each and then tell each other what they found."""

    def __init__(self, num_envs, choose=downhill, **kwargs):
        self.envs = [
            CircuitEnv(**{"circuit": "tof_3", "episode": {"min_steps": 60}} | kwargs) for _ in range(num_envs)
        ]
        self.rngs = [np.random.default_rng(k) for k in range(num_envs)]
        self.choose = choose
        self.obs = [env.reset(seed=k)[0] for k, env in enumerate(self.envs)]

    def play(self, num_steps):
        for k, (env, rng) in enumerate(zip(self.envs, self.rngs, strict=True)):
            for _ in range(num_steps):
                answer = env.step(self.choose(env, self.obs[k], rng))
                self.obs[k] = env.reset()[0] if answer[2] or answer[3] else answer[0]

    def exchange(self):
        """Return what was said, in the environments' order."""
        news = [env.publish() for env in self.envs]
        for env in self.envs:
            env.receive(news)
        return news
