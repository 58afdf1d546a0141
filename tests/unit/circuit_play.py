"""Ways to act in the circuit environment, for its tests."""

import numpy as np

from ddppo.envs.tasks.circuit.pairs import growth_of

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
