"""Models of tokens are tried before they are trained; what is wrong with one is a sentence."""

import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.token_policy import Cache, TokenPolicy
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import MLP
from ddppo.models.model_check import check_model

REPEAT = "tests.domains.text.text_tasks:tests/Repeat-v0"


def check(name):
    name = name if name == "token_policy" else f"tests.domains.text.test_models_of_tokens:{name}"
    return check_model(
        probe(EnvConfig(id=REPEAT)), settings_of("model", name=name), torch.float32, num_envs=3
    )


class Narrow(TokenPolicy):
    @property
    def num_params(self):
        return self.size - 1

    def forward(self, obs):
        params, values = super().forward(obs)
        return params[:, 1:], values


class OneRow(TokenPolicy):
    def forward(self, obs):
        params, values = super().forward(obs)
        return params[: len(obs)], values[: len(obs)]


class LooksAhead(TokenPolicy):
    def forward(self, obs):
        return super().forward(obs.roll(-1, dims=1))


class ForgetfulCache(Cache):
    def extend(self, rows, tokens, counts):
        self._lengths[:] = 0
        return super().extend(rows, tokens, counts)


class Forgetful(TokenPolicy):
    def cache(self, num_rows, num_tokens):
        return ForgetfulCache(self, num_rows, num_tokens)


class PaddedCache(Cache):
    """Rows go on where the longest ends, behind a gap."""

    def extend(self, rows, tokens, counts):
        self._lengths[:] = self._lengths.max()
        return super().extend(rows, tokens, counts)


class Padded(TokenPolicy):
    def cache(self, num_rows, num_tokens):
        return PaddedCache(self, num_rows, 4 * num_tokens)


class NoCache(TokenPolicy):
    def cache(self, num_rows, num_tokens):
        raise NotImplementedError("of this model")


class OfOthers(TokenPolicy):
    def at_own(self, obs, actions, own):
        return super().at_own(obs, actions, own - 1)


class Mixes(TokenPolicy):
    at_own = TokenActorCritic.at_own

    def forward(self, obs):
        params, values = super().forward(obs)
        return params, values + values.mean()


def test_ours_passes_without_a_warning():
    assert check("token_policy") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Narrow", "num_params is 12, but there are 13 tokens"),
        ("OneRow", "action parameters of shape .* but they must be"),
        ("LooksAhead", "differ by .* must not depend on later tokens"),
        ("Forgetful", "extend returned action parameters that differ by"),
        ("Padded", "extend returned action parameters that differ by"),
        ("OfOthers", "at_own returned .* other than rows .1, 4, 7"),
        ("NoCache", "cache raised.*of this model"),
    ],
)
def test_what_is_wrong_with_another_is_a_sentence(name, said):
    with pytest.raises(ConfigError, match=said):
        check(name)


class OfOldName(MLP):
    takes_sequences = True


def test_a_model_that_says_in_the_old_way_that_it_takes_tokens_is_told_the_new_one():
    with pytest.raises(
        ConfigError, match=r"derive OfOldName from ddppo\.domains\.text\.policy\.TokenActorCritic"
    ):
        check("OfOldName")


def test_rows_that_mix_are_warned_of():
    assert "lets observations of a batch mix" in check("Mixes")
