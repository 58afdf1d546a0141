"""A task of text, small enough to be learned by chance, and a tokenizer for it; processes import both by name."""

import os
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from tests.support import wait_until

WORDS = ("north", "east", "south", "west")
FAR = ("up", "down")
TIERS = dict.fromkeys(WORDS, "warm-up") | dict.fromkeys(FAR, "beginner")


class RepeatEnv(gym.Env):
    """Say in every turn the word that the prompt names; the episode is over after `turns`.

    reset(options={"task": word}) names it; else it is drawn. A right word is worth a half, in all turns a success;
    with `pays` a turn is worth what stands there. A task that `fails` raises in its second step. At odd seeds a step
    ends only once the file `gate` exists and `meets` environments have begun it.
    """

    tokens = "tests.domains.text.text_tasks:WordTokenizer"
    task_tiers = TIERS | dict.fromkeys(os.environ.get("TESTS_MORE_WORDS", "").split(), "beginner")
    observation_space = Text(64, min_length=0)
    action_space = Text(16, min_length=0)

    def __init__(self, turns=2, fails=(), gate=None, meets=1, truncates=False, pays=None):
        self.turns, self.fails, self.truncates = turns, tuple(fails), truncates
        self.gate, self.meets, self.pays = gate and Path(gate), meets, pays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = list(TIERS)[int(self.np_random.integers(len(TIERS)))]
        self.task = (options or {}).get("task", drawn)
        self.waits_as = seed if seed is not None and seed % 2 else None
        self.num_steps = self.num_right = 0
        return f"say {self.task}", self.info()

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 2 and self.task in self.fails:
            raise RuntimeError(f"cannot hear {action}")
        if self.gate is not None and self.waits_as is not None:
            self.gate.with_name(f"step {self.num_steps} of {self.waits_as}").touch()
            wait_until(lambda: self.gate.exists() and self._num_met() >= self.meets)
        is_right = action.strip() == self.task
        self.num_right += is_right
        is_over = self.num_steps == self.turns
        said = "right again" if is_right else "wrong again"
        reward = 0.5 * is_right if self.pays is None else float(self.pays[self.num_steps - 1])
        return said, reward, is_over and not self.truncates, is_over and self.truncates, self.info()

    def _num_met(self):
        return len(list(self.gate.parent.glob(f"step {self.num_steps} of *")))

    def info(self):
        return {"task": self.task, "tier": TIERS[self.task], "is_success": self.num_right == self.turns}


class BytesRepeatEnv(RepeatEnv):
    """The same without a tokenizer of its own."""

    tokens = None


class SilentRepeatEnv(RepeatEnv):
    """The same, never telling whether the task is achieved."""

    def info(self):
        return {}


class PartsRepeatEnv(RepeatEnv):
    """The same with named parts of its reward. An empty turn is a tool that failed. `adds` replaces parts."""

    def __init__(self, *, adds=None, **kwargs):
        super().__init__(**kwargs)
        self.adds = {name: float(part) for name, part in (adds or {}).items()}

    def step(self, action):
        said, right, *ends, info = super().step(action)
        parts = {"right": right, "short": -0.01 * len(action), **self.adds}
        return said, sum(parts.values()), *ends, {**info, "reward_parts": parts, "tool_failed": not action}


class BytesPartsRepeatEnv(PartsRepeatEnv):
    """The same without a tokenizer of its own."""

    tokens = None


class AloneRepeatEnv(RepeatEnv):
    """The same, of which a process can hold only one."""

    one_a_process = True
    held = 0

    def reset(self, *, seed=None, options=None):
        if not hasattr(self, "task"):
            AloneRepeatEnv.held += 1
            assert AloneRepeatEnv.held == 1, "this process holds one already"
        return super().reset(seed=seed, options=options)

    def close(self):
        AloneRepeatEnv.held -= hasattr(self, "task")


class WordTokenizer:
    """A token for each word that is said in the task; a turn is a word and `end`, or `end` alone."""

    words = ("<pad>", "<end>", *WORDS, *FAR, "say", "right", "wrong", "again", "?")
    size = len(words)
    pad, end = 0, 1

    def __init__(self, turn_tokens, obs_tokens):
        self.turn_tokens, self.obs_tokens = turn_tokens, obs_tokens
        self.first = np.array([word == "<end>" or word in TIERS for word in self.words])
        self.then = np.array([word == "<end>" for word in self.words])

    def begin(self, prompt):
        return WordDialogue(self, prompt)


class WordDialogue:
    def __init__(self, tokenizer, prompt):
        self.tokenizer, self.typed = tokenizer, []
        self.prompt_tokens = self.observe(prompt)

    @property
    def is_over(self):
        typed = self.typed
        return len(typed) == self.tokenizer.turn_tokens or (bool(typed) and typed[-1] == self.tokenizer.end)

    def allowed(self):
        return self.tokenizer.then if self.typed else self.tokenizer.first

    def push(self, token):
        assert self.allowed()[token], (self.typed, token)
        self.typed.append(token)

    def action(self):
        words = [self.tokenizer.words[token] for token in self.typed if token != self.tokenizer.end]
        self.typed = []
        return " ".join(words)

    def observe(self, text):
        known = self.tokenizer.words
        tokens = [known.index(word if word in known else "?") for word in text.split()]
        return tokens[: self.tokenizer.obs_tokens] or [known.index("?")]


for name in ("Repeat", "BytesRepeat", "SilentRepeat", "PartsRepeat", "BytesPartsRepeat", "AloneRepeat"):
    gym.register(
        f"tests/{name}-v0",
        entry_point=f"tests.domains.text.text_tasks:{name}Env",
        order_enforce=False,
        disable_env_checker=True,
    )
