"""SAC, soft actor-critic: Haarnoja et al. 2018, arXiv:1812.05905 ("Soft Actor-Critic Algorithms and Applications").

An update draws a batch from the replay buffer and makes three steps, on the critics, the policy and the temperature:

    critics      Q_i(s, a) towards R + gamma^m (min_i Qtarget_i(s', a') - alpha log pi(a'|s')),   a' ~ pi(.|s')
    policy       down alpha log pi(a|s) - min_i Q_i(s, a),   a ~ pi(.|s), through the action
    temperature  alpha so that the entropy of pi is the target entropy

The policy is a tanh of a Gaussian. Target critics follow the critics by an exponential average.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddppo.algorithms.contract import Acted, Algorithm, Part, Step, Transitions
from ddppo.algorithms.dqn import begin_layers_
from ddppo.algorithms.replay import Batch, ReplayBuffer
from ddppo.config.model_settings import LOG_STD_RANGE, MlpSettings, ModelSettings
from ddppo.config.replay_settings import SacSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, Obs, flat_obs, hidden_layers, linear
from ddppo.spaces import EnvSpec

_NOISE = 1  # the number of the stream of normal numbers (Step.stream)


def layers(inputs: int, outputs: int, config: MlpSettings) -> nn.Sequential:
    """Return a network with the hidden layers of model=mlp."""
    sizes = list(config.hidden_sizes)
    found = nn.Sequential(
        *hidden_layers(inputs, sizes, config.activation, layer_norm=config.layer_norm),
        linear(sizes[-1], outputs, gain=1.0),
    )
    begin_layers_(found, config)
    return found


class SacNetworks(ActorCritic):
    """A policy, two critics of observations and actions, and the logarithm of the temperature alpha."""

    middle: torch.Tensor  # [d] of the action's bounds
    width: torch.Tensor  # [d] half of the distance between them

    def __init__(self, spec: EnvSpec, config: MlpSettings) -> None:
        super().__init__(spec, config)
        self.is_squashed = True
        num_dims = spec.action.sizes[0]
        self.policy = layers(spec.obs_size, 2 * num_dims, config)
        self.critics = nn.ModuleList(layers(spec.obs_size + num_dims, 1, config) for _ in range(2))
        self.log_alpha = nn.Parameter(torch.zeros(1))
        low, high = (torch.tensor(x, dtype=torch.float64) for x in (spec.action.low, spec.action.high))
        self.register_buffer("middle", (low + high) / 2, persistent=False)
        self.register_buffer("width", (high - low) / 2, persistent=False)

    def action_params(self, obs: Obs) -> torch.Tensor:
        mean, log_std = self.policy(self._flat(obs)).chunk(2, dim=-1)
        return torch.cat([mean, log_std.clamp(*LOG_STD_RANGE)], dim=-1)

    def q_values(self, obs: Obs, actions: torch.Tensor, critics: nn.ModuleList | None = None) -> torch.Tensor:
        """Return values `[2, ...]` of both critics, by default the model's, for actions as the task gets them."""
        scaled = (actions - self.middle) / self.width  # in [-1, 1], as wide as the tanh
        inputs = torch.cat([self._flat(obs), scaled], dim=-1)
        return torch.stack([critic(inputs).squeeze(-1) for critic in critics or self.critics])

    def sampled(self, obs: Obs, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions of the policy and their log-probabilities, differentiable in the parameters.

        u = mean + std * noise, a = m + h tanh(u), log pi(a) = log N(u) - sum log(h (1 - tanh(u)^2)), by u itself:
        a tanh that rounds to 1 would lose it.
        """
        mean, log_std = self.action_params(obs).chunk(2, dim=-1)
        u = mean + log_std.exp() * noise
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))  # log(1 - tanh(u)^2)
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return self.middle + self.width * u.tanh(), (log_normal - log_slope - self.width.log()).sum(dim=-1)

    def value(self, obs: Obs) -> torch.Tensor:
        """Return the smaller critic's value of the policy's median action."""
        return self.q_values(obs, self.distribution(self.action_params(obs)).mode()).amin(dim=0)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        return self.action_params(obs), self.value(obs)

    def num_products(self) -> int:
        return sum(p.numel() for p in self.policy.parameters() if p.dim() == 2)

    def _flat(self, obs: Obs) -> torch.Tensor:
        return flat_obs(obs, self.spec, self.log_alpha.dtype)


class Sac(Algorithm):
    settings_class = SacSettings
    needs_successors = True
    synchronised = ("policy",)  # critics and temperature stay with the learners
    max_lag = None
    replay: ReplayBuffer
    model: SacNetworks

    def __init__(self, spec: EnvSpec, settings: SacSettings, model: SacNetworks) -> None:
        super().__init__(spec, settings, model)
        self.replay = ReplayBuffer(settings.capacity, settings.gamma, settings.n_step)
        self.target = copy.deepcopy(model.critics).requires_grad_(False)
        self.kept = {name: p.data for name, p in self.target.named_parameters(prefix="target")}
        self.kept |= {name: torch.zeros((), dtype=torch.int64) for name in ("num_rows", "num_updates")}
        num_dims = spec.action.sizes[0]
        self.target_entropy = -float(num_dims) if settings.target_entropy is None else settings.target_entropy

    @classmethod
    def networks(
        cls, spec: EnvSpec, settings: Any, model: ModelSettings, build: Callable[[], ActorCritic]
    ) -> SacNetworks:
        if spec.action.kind != "box" or not spec.action.low:
            raise ConfigError(
                f"algorithm={settings.name} acts in a Box with a finite low < high in every dimension, and this task's "
                f"actions are {spec.action.kind if spec.action.kind != 'box' else 'a Box without them'}: use "
                "algorithm=dqn for n choices, or ppo"
            )
        if not isinstance(model, MlpSettings) or model.name != "mlp" or model.memory != "none":
            raise ConfigError(
                f"algorithm={settings.name} has hidden layers of its own: use model=mlp without memory"
            )
        if model.distribution != "gaussian":
            raise ConfigError(
                f"model.distribution={model.distribution} with algorithm={settings.name}, which has a Gaussian policy "
                "squashed by tanh: leave it out"
            )
        return SacNetworks(spec, model)

    def parts(self) -> Mapping[str, Part]:
        s = self.settings
        return {
            "critic": Part(s.critic_learning_rate, ("critics",)),
            "policy": Part(s.learning_rate, ("policy",)),
            "alpha": Part(s.temperature_learning_rate, ("log_alpha",)),
        }

    def act(
        self, obs: Obs, mask: torch.Tensor | None, noise: torch.Tensor, memory: torch.Tensor | None
    ) -> Acted:
        s = self.settings
        if round(self.progress * s.total_steps) < s.uniform_steps:
            # erf(z / sqrt 2) of a standard normal z is uniform on (-1, 1): the same noise serves both.
            uniform = torch.erf(noise / math.sqrt(2))
            return Acted(self.model.middle.cpu() + self.model.width.cpu() * uniform)
        return Acted(self.model.distribution(self.model.action_params(obs)).sample(noise))

    def learn(self, rollout: Transitions, step: Step) -> Mapping[str, float]:
        settings, sums = self.settings, torch.zeros(4, dtype=torch.float64)
        num_owed = self.replay.receive(rollout, step, self.kept, settings)
        stream = step.stream(_NOISE)
        for batch in self.replay.batches(step, num_owed, settings.batch_size):
            # The same noise on all learners, each of which takes that of its samples.
            noise = stream.standard_normal((2, batch.num_samples, *self.spec.action.shape))[:, batch.places]
            sums += (
                self._update(batch, torch.from_numpy(noise).to(self.model.log_alpha), step)
                / batch.num_samples
            )
            self.kept["num_updates"] += 1
        metrics = {"updates": float(num_owed), "alpha": self.model.log_alpha.exp().item()}
        if num_owed:
            names = ("q_loss", "q_mean", "policy_loss", "entropy")
            metrics |= dict(zip(names, (step.sum(sums) / num_owed).tolist(), strict=True))
        return metrics

    def _update(self, batch: Batch, noise: torch.Tensor, step: Step) -> torch.Tensor:
        """Move critics, policy, temperature and targets; return sums of the losses, values and entropies."""
        n = batch.num_samples
        q_loss, values = self.critic_loss(batch, noise[0])
        step(q_loss, n, "critic")
        policy_loss, logprobs = self.policy_loss(batch.obs, noise[1])
        step(policy_loss, n, "policy")
        step(self.alpha_loss(logprobs), n, "alpha")
        with torch.no_grad():
            targets: list[torch.Tensor] = [*self.target.parameters()]
            critics: list[torch.Tensor] = [*self.model.critics.parameters()]
            torch._foreach_lerp_(targets, critics, self.settings.tau)
        return torch.stack([q_loss, values, policy_loss, -logprobs.sum()]).detach().cpu().double()

    def critic_loss(self, batch: Batch, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sums over the batch: of half the squared errors of both critics, and of their mean value."""
        values = self.model.q_values(batch.obs, batch.actions)  # [2, k]
        return 0.5 * (values - self.targets(batch, noise)).square().sum(), values.mean(dim=0).sum()

    @torch.no_grad()
    def targets(self, batch: Batch, noise: torch.Tensor) -> torch.Tensor:
        """Return R + gamma^m (min_i Qtarget_i(s', a') - alpha log pi(a'|s')) `[k]`."""
        actions, logprobs = self.model.sampled(batch.next_obs, noise)
        next_values = self.model.q_values(batch.next_obs, actions, self.target).amin(dim=0)
        soft_values = next_values - self.model.log_alpha.exp() * logprobs
        return batch.returns.to(soft_values) + batch.discounts.to(soft_values) * soft_values

    def policy_loss(self, obs: Obs, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of alpha log pi(a|s) - min_i Q_i(s, a), and log pi(a|s) `[k]`."""
        actions, logprobs = self.model.sampled(obs, noise)
        values = self.model.q_values(obs, actions).amin(dim=0)
        return (self.model.log_alpha.detach().exp() * logprobs - values).sum(), logprobs

    def alpha_loss(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Return the sum of -alpha (log pi(a|s) + target entropy): alpha grows while the entropy is too small."""
        return -(self.model.log_alpha.exp() * (logprobs.detach() + self.target_entropy)).sum()
