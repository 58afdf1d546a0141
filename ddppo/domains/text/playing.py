"""A trained policy of text for use in any program, and its episodes as conversations (docs/policies.md).

policy = load_policy("outputs/cloud/<stamp>")
obs, info = env.reset(options={"task": "s3_make_bucket"})
policy.reset(info)
obs, reward, terminated, truncated, info = env.step(policy(obs))
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ddppo.domains.text.collector import nucleus
from ddppo.domains.text.evaluation import TextEvaluator, own_collector
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.rollout_views import in_full
from ddppo.domains.text.settings import text_settings
from ddppo.domains.text.tokenizers import Dialogue, NoAction, begun, make_tokenizer
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.loading import Trained
from ddppo.seeding import stream


class TextPolicy(LoadedPolicy):
    """The policy of a checkpoint, in one episode at a time: it remembers what it has read and typed since `reset`."""

    def __init__(self, trained: Trained, seed: int = 0) -> None:
        self.trained = trained
        self._stream = stream(seed, "action")
        self._tokenizer = make_tokenizer(trained.spec, trained.config.model)
        self.reset()

    def reset(self, starts: Mapping[str, Any] | None = None) -> None:
        """Begin an episode: the next observation is its prompt.

        starts: the info of the environment's reset; a language model may read system message and examples in it.
        """
        model = self.trained.policy.model
        assert isinstance(model, TokenActorCritic)
        self._info = dict(starts or {})
        self._dialogue: Dialogue | None = None
        self._cache = model.cache(1, self.trained.config.training.rollout_steps)
        self._num_tokens, self._last = 0, -1  # tokens read and typed, and the last of these

    def __call__(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return the line that the policy types after the prompt, or after the answer to its last line.

        If a message of the policy holds no command, it is told so, and types again. Raises ValueError if `obs` is no
        text, and if the tokens of an episode in training, ppo.rollout_steps, are used up.
        """
        if not isinstance(obs, str) or mask is not None:
            raise ValueError(
                f"a policy of text is given one text, and no mask: it was given {type(obs).__name__}"
            )
        action: str | NoAction = NoAction(obs)
        while isinstance(action, NoAction):
            action = self._turn(action.message, deterministic)
        return action

    @torch.inference_mode()
    def _turn(self, text: str, deterministic: bool) -> str | NoAction:
        """Read a text and type a turn."""
        # 1. The tokens to read: of the prompt, or the last typed one and those of the answer.
        if self._dialogue is None:
            self._dialogue = begun(self._tokenizer, text, self._info)
            tokens = self._dialogue.prompt_tokens
            self._num_tokens = len(tokens)
        else:
            answer = self._dialogue.observe(text)
            tokens = [self._last, *answer]
            self._num_tokens += len(answer)
        # 2. Type until the turn is over.
        section, most = self.trained.config.training.section, self.trained.config.training.rollout_steps
        while not self._dialogue.is_over:
            if self._num_tokens > most:
                raise ValueError(
                    f"the episode has used up {section}.rollout_steps={most} tokens, after which it ended in training: "
                    "call reset() before the next one"
                )
            params = self._cache.extend(np.array([0]), np.array([tokens]), np.array([len(tokens)]))
            self._last = self._choose(params, self._dialogue.allowed()[None], deterministic)
            self._dialogue.push(self._last)
            self._num_tokens += 1
            tokens = [self._last]
        return self._dialogue.action()

    def _choose(self, params: torch.Tensor, allowed: np.ndarray, deterministic: bool) -> int:
        """Return the next token."""
        model, top_p = self.trained.policy.model, text_settings(self.trained.config.model).top_p
        if top_p < 1.0 and not deterministic:
            allowed = nucleus(params.numpy(force=True), allowed, top_p)
        policy = model.distribution(params, torch.from_numpy(allowed).to(params.device))
        if deterministic:
            return int(policy.mode().item())
        noise = torch.from_numpy(self._stream.random((1, model.num_noise))).to(params.dtype)
        return int(policy.sample(noise).item())


def conversations(
    trained: Trained, episodes: Sequence[int], seed: int, *, deterministic: bool = True
) -> Iterator[str]:
    """Play the episodes with these numbers in turn, and yield each as a conversation as soon as it is over.

    Raises TrainingError.
    They are the episodes of an evaluation with this seed. Nothing is written.
    """
    with own_collector(trained.policy, trained.config, 1) as collector:
        evaluator = TextEvaluator(trained.policy, trained.config, collector, keeps=True)
        for number in episodes:
            evaluator.play([[number]], 1, seed, deterministic=deterministic)
            for record in evaluator.rollouts:
                record.env_steps, record.policy = trained.state["env_steps"], trained.state["iteration"]
                yield in_full(record)
