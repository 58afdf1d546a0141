"""Whether an exported file does what the policy does: the same parameters and actions, whatever is observed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.envs.encoding.gym_spaces import MASK, decode_actions
from ddppo.errors import TrainingError
from ddppo.loop.evaluation import Remembered
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.export.files import Run
from ddppo.policies.export.portable import ACTION, NEXT_STATE, STATE, Arrays, Portable, described
from ddppo.policies.playing import blamed_on, task_of
from ddppo.seeding import derived_seed

_NUM_RANDOM, _NUM_REAL = 64, 128
_STEPS = 4  # of a policy with memory, on all observations side by side
_TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.05}  # of what is computed in that type


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations as a task hands them over, what infos come with them, and those drawn of the space first."""

    observations: list[Any]
    infos: list[dict[str, Any]]
    num_drawn: int


@dataclass(frozen=True, slots=True)
class ExportAgreement:
    """How far the parameters of a file and its policy are apart at most, and the file's outputs."""

    largest_difference: float
    outputs: Arrays


def observed(policy: LoadedPolicy, seed: int) -> Observed:
    """Return observations drawn from the space, and those that the policy meets when it plays. Raises TrainingError."""
    space, config = policy.observation_space, policy.trained.config
    space.seed(seed)
    observations = [space.sample() for _ in range(_NUM_RANDOM)]
    infos: list[dict[str, Any]] = [{}] * _NUM_RANDOM
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
    """Return the inputs of a file, and the rows that ddppo makes of the same."""
    rows = policy.rows(seen.observations, seen.infos)
    mask, sizes = policy.layout.mask(rows), policy.trained.spec.action.sizes
    if mask is not None:
        rng, ends = np.random.default_rng(0), np.cumsum(sizes)
        mask[: seen.num_drawn] = rng.random((seen.num_drawn, ends[-1])) < 0.5
        for first, end in zip(ends - sizes, ends, strict=True):  # of every component one choice at least
            mask[np.arange(seen.num_drawn), rng.integers(first, end, seen.num_drawn)] = True
    return portable.named(seen.observations, mask), rows


def check(policy: LoadedPolicy, run: Run, inputs: Arrays, rows: np.ndarray) -> ExportAgreement:
    """Compare what a file makes of inputs `[n, ...]` with what the policy makes of rows `[n]`. Raises TrainingError.

    Parameters may differ by rounding, and actions are to be the likeliest by the file's own. With memory it is several
    steps: the file is given back its own state, and in each step every third row starts an episode.
    """
    remembered = policy.trained.policy.memory(len(rows))
    if remembered is None:
        return _step(policy, run, inputs, rows, None)
    agreement, largest = None, 0.0
    for k in range(_STEPS):
        starts = (np.arange(len(rows)) + k) % 3 == 0
        if agreement is not None:  # the observations of a row change from step to step
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
    policy: LoadedPolicy, run: Run, inputs: Arrays, rows: np.ndarray, remembered: Remembered | None
) -> ExportAgreement:
    """Compare one step, and have `remembered` go on."""
    of, mask = policy.trained.policy, policy.layout.mask(rows)
    params = of.params(policy.layout.obs(rows), remembered)
    wanted = described(of.distribution(params, mask), params)
    found = run(inputs)
    alone = run({name: x[:1] for name, x in inputs.items()})
    tolerance, largest = _TOLERANCES[_precision(policy)], 0.0
    after = {} if remembered is None else {NEXT_STATE: remembered.state}
    for name, tensor in (wanted | after).items():
        expected = tensor.numpy(force=True)
        for got in (found[name], alone[name]):
            distance = np.abs(got - expected[: len(got)])
            _refuse_where(~(distance <= tolerance * (1 + np.abs(expected[: len(got)]))), name, distance)
            largest = max(largest, float(distance.max(initial=0)))
    own = torch.cat([torch.from_numpy(found[name]) for name in wanted], dim=-1)
    actions = decode_actions(policy.action_space, of.distribution(own, mask).mode().numpy(force=True))
    apart = np.abs(found[ACTION].astype(np.float64) - actions)
    is_whole = actions.dtype.kind in "iu"
    _refuse_where(~(apart <= (0 if is_whole else tolerance * (1 + np.abs(actions)))), ACTION, apart)
    return ExportAgreement(largest, found)


def _precision(policy: LoadedPolicy) -> str:
    config = policy.trained.config
    precision = getattr(config.model, "precision", "float32")  # of models of images
    return "bfloat16" if precision == "bfloat16" else config.dtype


def _refuse_where(is_wrong: np.ndarray, name: str, distance: np.ndarray) -> None:
    if is_wrong.any():
        row = int(np.argwhere(is_wrong)[0][0])
        raise TrainingError(
            f"the file is not the policy: its {name} of observation {row} is {distance[row].max():.3g} away from the "
            "policy's, which is more than rounding. Nothing was written"
        )
