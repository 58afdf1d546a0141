"""The check of an exported file: it must compute the policy's distributions and actions on many observations.

`observed` collects observations, `inputs_of` turns them into inputs of the file, `check` compares.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.envs.encoding.gym_spaces import MASK, decode_actions
from ddppo.errors import TrainingError
from ddppo.loop.evaluation import PolicyMemory
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.export.files import Run
from ddppo.policies.export.portable import ACTION, NEXT_STATE, STATE, Arrays, Portable, described
from ddppo.policies.playing import blamed_on, task_of
from ddppo.seeding import derived_seed

_NUM_RANDOM, _NUM_REAL = 64, 128  # observations drawn from the space, and met in episodes
_STEPS = 4  # compared for a policy with memory; each takes all observations as a batch
_TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.05}  # by the type in which the policy computes


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations in the task's own form."""

    observations: list[Any]
    infos: list[dict[str, Any]]  # of each observation; {} for a drawn one
    num_drawn: int  # the first ones are drawn from the space


@dataclass(frozen=True, slots=True)
class ExportAgreement:
    """The result of a check that passed."""

    largest_difference: float  # between a parameter of the file's distributions and the policy's
    outputs: Arrays  # of the file


def observed(policy: LoadedPolicy, seed: int) -> Observed:
    """Return observations drawn from the space, then observations of episodes. Raises TrainingError."""
    space, config = policy.observation_space, policy.trained.config
    space.seed(seed)
    observations = [space.sample() for _ in range(_NUM_RANDOM)]
    infos: list[dict[str, Any]] = [{}] * _NUM_RANDOM
    # Play with likeliest and sampled actions in turn, to meet more of the task.
    task = task_of(config.env)
    try:
        with blamed_on(config.env.id):
            options, ended = policy.trained.state.get("options"), True
            for step in range(_NUM_REAL):
                if ended:
                    obs, info = task.reset(seed=derived_seed(seed, "eval", step), options=options)
                    policy.reset()
                observations.append(obs)
                infos.append(info)
                action = policy(obs, info.get(MASK), deterministic=bool(step % 2))
                obs, _, terminated, truncated, info = task.step(action)
                ended = terminated or truncated
    finally:
        task.close()
    return Observed(observations, infos, _NUM_RANDOM)


def inputs_of(policy: LoadedPolicy, portable: Portable, seen: Observed) -> tuple[Arrays, np.ndarray]:
    """Return the file's inputs, and ddppo's rows, for the same observations."""
    rows = policy.rows(seen.observations, seen.infos)
    mask, sizes = policy.layout.mask(rows), policy.trained.spec.action.sizes
    if mask is not None:
        # Drawn observations get drawn masks, with at least one choice allowed in each component.
        rng, ends = np.random.default_rng(0), np.cumsum(sizes)
        mask[: seen.num_drawn] = rng.random((seen.num_drawn, ends[-1])) < 0.5
        for first, end in zip(ends - sizes, ends, strict=True):
            mask[np.arange(seen.num_drawn), rng.integers(first, end, seen.num_drawn)] = True
    return portable.named(seen.observations, mask), rows


def check(policy: LoadedPolicy, run: Run, inputs: Arrays, rows: np.ndarray) -> ExportAgreement:
    """Compare the file, on `inputs` `[n, ...]`, with the policy, on `rows` `[n]`. Raises TrainingError if they differ.

    Parameters of distributions may differ by rounding. Actions must be the likeliest under the file's own parameters.
    A policy with memory is compared over several steps: the file gets its own state back, and in each step every third
    row starts an episode.
    """
    # Without memory one step is enough.
    remembered = policy.trained.policy.memory(len(rows))
    if remembered is None:
        return _step(policy, run, inputs, rows, None)
    agreement, largest = None, 0.0
    for k in range(_STEPS):
        starts = (np.arange(len(rows)) + k) % 3 == 0
        if agreement is not None:
            # Shift the observations, so that every row meets another one in each step.
            inputs = {name: np.roll(x, 1, axis=0) for name, x in inputs.items()}
            rows = np.roll(rows, 1, axis=0)
            state = agreement.outputs[NEXT_STATE].copy()
            state[starts] = 0
            inputs[STATE] = state
            remembered.forget(starts)
        agreement = _step(policy, run, inputs, rows, remembered)
        largest = max(largest, agreement.largest_difference)
    assert agreement is not None
    return ExportAgreement(largest, agreement.outputs)


def _step(
    policy: LoadedPolicy, run: Run, inputs: Arrays, rows: np.ndarray, remembered: PolicyMemory | None
) -> ExportAgreement:
    """Compare one step, and advance `remembered`, the policy's memory."""
    # The policy's distribution, and the file's outputs: for all rows, and for the first row alone.
    of, mask = policy.trained.policy, policy.layout.mask(rows)
    params = of.params(policy.layout.obs(rows), remembered)
    wanted = described(of.distribution(params, mask), params)
    found = run(inputs)
    alone = run({name: x[:1] for name, x in inputs.items()})
    # Parameters, and the memory after the step.
    tolerance, largest = _TOLERANCES[_precision(policy)], 0.0
    after = {} if remembered is None else {NEXT_STATE: remembered.state}
    for name, tensor in (wanted | after).items():
        expected = tensor.numpy(force=True)
        # A file that mixes rows up would differ between the two.
        for got in (found[name], alone[name]):
            distance = np.abs(got - expected[: len(got)])
            _refuse_where(~(distance <= tolerance * (1 + np.abs(expected[: len(got)]))), name, distance)
            largest = max(largest, float(distance.max(initial=0)))
    # Actions.
    own = torch.cat([torch.from_numpy(found[name]) for name in wanted], dim=-1)
    actions = decode_actions(policy.action_space, of.distribution(own, mask).mode().numpy(force=True))
    apart = np.abs(found[ACTION].astype(np.float64) - actions)
    is_whole = actions.dtype.kind in "iu"
    _refuse_where(~(apart <= (0 if is_whole else tolerance * (1 + np.abs(actions)))), ACTION, apart)
    return ExportAgreement(largest, found)


def _precision(policy: LoadedPolicy) -> str:
    config = policy.trained.config
    precision = getattr(config.model, "precision", "float32")  # a setting of image models
    return "bfloat16" if precision == "bfloat16" else config.dtype


def _refuse_where(is_wrong: np.ndarray, name: str, distance: np.ndarray) -> None:
    if is_wrong.any():
        row = int(np.argwhere(is_wrong)[0][0])
        raise TrainingError(
            f"the file is not the policy: its {name} of observation {row} is {distance[row].max():.3g} away from the "
            "policy's, which is more than rounding. Nothing was written"
        )
