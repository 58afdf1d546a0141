"""Atari games, stepped by ale-py's own batch (`AtariEnvs`), and the journal from which they are restored.

ale-py's batch cannot save its games. `GameJournal` keeps the last seed of each game and the actions since; a game is
restored by replaying them, which is exact. To keep the replay short, a game that ends starts the next one with a new
seed if the last one is RESEED_AFTER steps ago. A seed makes ale-py load the game anew, which takes as long as about 300
steps: 1 % of RESEED_AFTER.
"""

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import action_spec, decode_actions
from ddppo.envs.meaning import spaces_described
from ddppo.envs.vec_env import (
    EnvNames,
    EnvSpec,
    EnvStep,
    Options,
    explained,
    no_options,
    other_state,
    when_asked,
    when_reset,
    when_stepped,
)
from ddppo.errors import ConfigError, EnvStateError
from ddppo.spaces import ArraySpec

RESEED_AFTER = 32_768  # steps of a game


class GameJournal:
    """The last seeds of E games, and their actions `[E, *shape]` since."""

    def __init__(self, num_envs: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.num_envs = num_envs
        self._seeds = [0] * num_envs  # of the batch's last reset
        self._num_seedings = np.zeros(num_envs, np.int64)  # new seeds since that reset
        self._starts = np.zeros(num_envs, np.int64)  # first row of each game since its last seed
        self._rows = np.zeros((256, num_envs, *shape), dtype)
        self._num_rows = 0

    def begin(self, seeds: list[int]) -> None:
        """Start again: every game is reset with a seed."""
        self._seeds = seeds
        self._num_seedings[:] = self._starts[:] = self._num_rows = 0

    def append(self, actions: np.ndarray) -> None:
        if self._num_rows == len(self._rows):
            self._make_room()
        self._rows[self._num_rows] = actions
        self._num_rows += 1

    def _make_room(self) -> None:
        """Drop the rows that no game needs, or double the array."""
        # Rows before the earliest start of any game are not needed.
        first = int(self._starts.min())
        kept = self._rows[first : self._num_rows]
        if 2 * len(kept) > len(self._rows):
            self._rows = np.concatenate([kept, np.zeros_like(self._rows)])
        else:
            self._rows[: len(kept)] = kept
        self._num_rows = len(kept)
        self._starts -= first

    def lengths(self) -> np.ndarray:
        """Return the number of steps since each game's last seed `[E]`."""
        return self._num_rows - self._starts

    def seed(self, which: np.ndarray) -> np.ndarray:
        """Return new seeds for the games `which` (bool `[E]`), and start their rows here."""
        self._num_seedings[which] += 1
        self._starts[which] = self._num_rows
        return self.seeds()[which]

    def seeds(self) -> np.ndarray:
        """Return the last seed of each game, of 31 bits, as ale-py takes it."""
        pairs = zip(self._seeds, self._num_seedings.tolist(), strict=True)
        keys = [[seed, count] if count else [seed] for seed, count in pairs]
        return np.array([np.random.SeedSequence(key).generate_state(1)[0] >> 1 for key in keys], np.int64)

    def state(self) -> list[dict[str, Any]]:
        """Return for each game the seed and the actions that lead to its present state."""
        return [
            {
                "seed": self._seeds[i],
                "num_seedings": int(self._num_seedings[i]),
                "actions": self._rows[self._starts[i] : self._num_rows, i].copy(),
            }
            for i in range(self.num_envs)
        ]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Continue from the states of these games."""
        # Games have rows of different lengths; align them at the end.
        lengths = [len(state["actions"]) for state in states]
        self._seeds = [state["seed"] for state in states]
        self._num_seedings[:] = [state["num_seedings"] for state in states]
        self._num_rows = max(lengths)
        self._starts[:] = self._num_rows - np.array(lengths)
        self._rows = np.zeros((self._num_rows + 256, *self._rows.shape[1:]), self._rows.dtype)
        for i, state in enumerate(states):
            self._rows[self._starts[i] : self._num_rows, i] = state["actions"]

    def replay(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for every step of the replay (games to reset with their seeds before it, bool `[E]`; its actions).

        All games end together, so longer ones start earlier. Before its start, a game gets action 0. The last entry
        only resets: it has no actions.
        """
        steps = [(self._starts == k, self._rows[k]) for k in range(self._num_rows)]
        return [*steps, (self._starts == self._num_rows, self._rows[0][:0])]


# -- The batch of ale-py: games are emulated, preprocessed and reset in C++, each with a seed of its own.
#
# The details of published PPO (Huang et al. 2022, "The 37 implementation details of PPO", Atari) and where they are:
# - ale-py: up to 30 no-ops at the start, each action for 4 frames, the maximum of the last two frames, 84 x 84 grey
#   pixels, 4 frames stacked.
# - ale-py and here: a lost life ends an episode for learning, FIRE starts every episode.
# - ppo.reward_clip clips rewards to [-1, 1]; model=cnn scales pixels to [0, 1] and shares features.
# Returns are those of whole games, with the game's own rewards.


if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

_HOW = "games"  # marks states of this backend
_FIRE = 1  # the index of FIRE in every game that has it
ATARI_OURS = {  # keyword of ale-py's batch -> the setting to use instead
    "reward_clipping": "set ppo.reward_clip, which clips rewards for learning only",
    "max_num_frames_per_episode": "set env.max_episode_steps",
    "num_threads": "set env.num_workers",
    "batch_size": "set env.num_envs",
    "autoreset_mode": "leave it out",
    "life_loss_info": "set env.kwargs.episodic_life",
}
_LEAST = {"noop_max": 0, "frameskip": 1, "stack_num": 1, "img_height": 1, "img_width": 1}


def atari_spec(env: EnvConfig) -> EnvSpec:
    """Return the spec of a preprocessed game. Raises ConfigError for a keyword in ATARI_OURS."""
    ale = _make_ale(env, 1, 1)
    try:
        return _spec(ale)
    finally:
        ale.close()


def make_atari(
    env: EnvConfig,
    spec: EnvSpec,
    names: EnvNames,
    timeout_s: float,
    *,
    cores: int = 1,
    whole_games: bool = False,
) -> "AtariEnvs":
    """Make a batch of games that env.num_workers threads step, by default as many as the rank has cores.

    The number of threads changes no result. whole_games: for evaluation, a lost life ends no episode. timeout_s is
    unused: nothing waits.
    """
    num_envs = len(names.indices)
    try:
        ale = _make_ale(env, num_envs, min(env.num_workers or cores, num_envs))
        lives_end, fires = env.kwargs.get("episodic_life", False), env.kwargs.get("use_fire_reset", True)
        return AtariEnvs(ale, spec, names, lives_end=lives_end and not whole_games, fires=lives_end and fires)
    except (Exception, SystemExit) as e:
        raise explained(names.all(), "when they were made", e) from e


def _make_ale(env: EnvConfig, num_envs: int, num_threads: int) -> "AtariVectorEnv":
    from ale_py.vector_env import AtariVectorEnv

    for key, remedy in ATARI_OURS.items():
        if key in env.kwargs:
            raise ConfigError(f"env.kwargs.{key} is no setting of the game: {remedy}")
    _check_ranges(env.kwargs)
    # max_episode_steps counts steps, ale-py counts frames.
    kwargs = {key: value for key, value in env.kwargs.items() if key != "episodic_life"}
    if env.max_episode_steps is not None:
        kwargs["max_num_frames_per_episode"] = env.max_episode_steps * kwargs.get("frameskip", 4)
    return AtariVectorEnv(
        gym.registry[env.id].kwargs["game"],
        num_envs,
        num_threads=num_threads,
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        reward_clipping=False,
        **kwargs,
    )


def _check_ranges(kwargs: dict[str, Any]) -> None:
    """Raise ConfigError for numbers that ale-py accepts but with which no game can be played."""
    for key, least in _LEAST.items():
        value = kwargs.get(key, least)
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"env.kwargs.{key}={value}: must be at least {least}, and whole")
    chance = kwargs.get("repeat_action_probability", 0)
    if not (isinstance(chance, (int, float)) and 0 <= chance <= 1):
        raise ConfigError(f"env.kwargs.repeat_action_probability={chance}: must be between 0 and 1")


def _spec(ale: "AtariVectorEnv") -> EnvSpec:
    space, actions = ale.single_observation_space, ale.single_action_space
    assert space.shape is not None
    spaces = spaces_described(space, actions, has_mask=False)
    return EnvSpec(ArraySpec(space.shape, "uint8"), action_spec(actions), spaces=spaces)


class AtariEnvs:
    """A `VecEnv` over ale-py's batch. The random stream of a game depends on its own seed alone.

    Args:
        lives_end: a lost life ends an episode for learning, while the game continues.
        fires: the step after a lost life plays FIRE instead of the action, as ale-py does at the start of a game; else
            games such as Breakout wait forever. This row is no transition, unless it brings a reward or an end.
    """

    def __init__(
        self, ale: "AtariVectorEnv", spec: EnvSpec, names: EnvNames, *, lives_end: bool, fires: bool
    ) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = ale.num_envs
        self._ale = ale
        self._lives_end = lives_end
        # Only games with a FIRE action wait for it.
        self._fires = fires and [action.name for action in ale.ale.get_action_set()][_FIRE:][:1] == ["FIRE"]
        self._lives = np.zeros(self.num_envs, np.int32)
        # Games in which the next step plays FIRE.
        self._to_fire = np.zeros(self.num_envs, bool)
        self._num_steps = 0
        self._obs = np.zeros(0, np.uint8)
        self._next: dict[str, Any] | None = None
        space = ale.single_action_space
        # A byte per action keeps long journals small.
        dtype = np.uint8 if isinstance(space, Discrete) else space.dtype
        self._journal = GameJournal(self.num_envs, space.shape or (), np.dtype(dtype))

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        if self._next is not None:
            state, self._next = self._next, None
            return self.restore(state)
        self._num_steps = 0
        self._to_fire = np.zeros(self.num_envs, bool)
        self._journal.begin([int(seed) for seed in seeds])
        try:
            obs, infos = self._ale.reset(seed=self._journal.seeds())
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_reset(0), e) from e
        self._lives, self._obs = infos["lives"], obs
        return obs, None

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._num_steps += 1
        try:
            return self._step(decode_actions(self._ale.single_action_space, actions))
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _step(self, actions: np.ndarray) -> EnvStep:
        fired = self._to_fire  # games that lost a life in the last step
        if self._fires:
            actions[fired] = _FIRE
        # The journal gets the actions as played, with FIRE.
        self._journal.append(actions)
        obs, rewards, terminated, truncated, infos = self._ale.step(actions)
        rewards = rewards.astype(np.float64)
        over, lives = terminated | truncated, infos["lives"]  # lives: of the next game, if one is over
        # Some games run on for a while with no life left (baselines' EpisodicLifeEnv): that end is the game's own.
        lost = ~over & (lives > 0) & (lives < self._lives)
        valid = ~fired | over | (rewards != 0)
        if self._fires:
            self._to_fire = lost
        ends = over
        # A lost life is a transition even if the step played FIRE: its end is learned from.
        if self._lives_end:
            terminated, ends = terminated | lost, over | lost
            valid |= lost
        (ended,) = ends.nonzero()
        is_over = over[ended]
        # The last observation of a game is in the infos; after a lost life it is the present one.
        final_obs = obs[ended]
        if is_over.any():
            final_obs[is_over] = infos["final_obs"][ended[is_over]]
            # A game that is over anyway gets a new seed if its replay has become long.
            due = over & (self._journal.lengths() >= RESEED_AFTER)
            if due.any():
                obs, infos = self._ale.reset(seed=self._journal.seed(due), options={"reset_mask": due})
                lives = infos["lives"]
        self._lives, self._obs = lives, obs
        return EnvStep(
            obs=obs,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            ended=ended,
            final_obs=final_obs,
            action_mask=None,
            is_life_loss=None if is_over.all() else ~is_over,
        )

    def state(self) -> dict[str, Any]:
        envs = [
            {
                "how": _HOW,
                **played,
                "lives": int(self._lives[i]),
                "to_fire": bool(self._to_fire[i]),
                "num_steps": self._num_steps,
                "obs_crc": zlib.crc32(self._obs[i].tobytes()),
            }
            for i, played in enumerate(self._journal.state())
        ]
        return {"envs": envs}

    def restore(self, state: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
        envs = state["envs"]
        assert len(envs) == self.num_envs, (len(envs), self.num_envs)
        for i, env in enumerate(envs):
            if env.get("how") != _HOW:
                raise other_state(self.names(i), env.get("how"), _HOW)
        self._journal.restore(envs)
        self._num_steps = max(env["num_steps"] for env in envs)
        self._to_fire = np.array([env["to_fire"] for env in envs])
        try:
            obs, infos = self._replay()
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_asked("restore", self._num_steps), e) from e
        self._lives, self._obs = infos["lives"], obs
        # The checksum of the pixels shows whether the replay led to the same state.
        for i, env in enumerate(envs):
            if (zlib.crc32(obs[i].tobytes()), self._lives[i]) != (env["obs_crc"], env["lives"]):
                raise EnvStateError(
                    f"{self.names(i)} cannot go on from its state: its games, replayed, came to other pixels: "
                    "resume with the env.kwargs and the version of ale-py that it was saved with"
                )
        return obs, None

    def _replay(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Replay all games up to the end of the journal; the longest one decides the time."""
        journal, seeds = self._journal, self._journal.seeds()
        obs, infos = self._ale.reset()  # ale-py resets some games only after a reset of all
        for begins, actions in journal.replay():
            if begins.any():
                obs, infos = self._ale.reset(seed=seeds[begins], options={"reset_mask": begins})
            if len(actions):
                obs, _, _, _, infos = self._ale.step(actions.astype(self._ale.single_action_space.dtype))
        return obs, infos

    def go_on_from(self, state: dict[str, Any]) -> None:
        self._next = state

    def close(self) -> None:
        self._ale.close()
