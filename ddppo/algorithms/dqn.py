"""DQN: Mnih et al. 2015 ("Human-level control through deep reinforcement learning", Nature 518), with double
Q-learning (van Hasselt et al. 2016, arXiv:1509.06461) and n-step returns (Hessel et al. 2018, arXiv:1710.02298).

Acts epsilon-greedily. For each update a batch is drawn from the replay buffer, and Q(s, a) moves towards

    R + gamma^m Q_target(s', argmax_a' Q(s', a'))         R: the rewards of m <= n_step steps, which lead to s'

where nothing follows a terminal state. Q_target is a copy of Q, made every target_period_updates updates.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from ddppo.algorithms.contract import Acted, Algorithm, Part, Step, Transitions
from ddppo.algorithms.replay import Batch, ReplayBuffer
from ddppo.config.model_settings import LayerSettings, ModelSettings
from ddppo.config.replay_settings import DqnSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, Obs, linear
from ddppo.models.distributions import Categorical
from ddppo.models.on_trunk import TRUNKS, make_trunk
from ddppo.spaces import EnvSpec, each, leaves


class EpsilonGreedy(Categorical):
    """The action of the largest value, or with probability epsilon one of the allowed actions, all equally likely."""

    def __init__(self, values: torch.Tensor, mask: torch.Tensor | None, epsilon: float) -> None:
        super().__init__(values, mask)  # a forbidden choice has the smallest value: it is never the largest
        self._mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
        self._epsilon = epsilon

    @property
    def probabilities(self) -> torch.Tensor:
        allowed = self._mask.to(self.logits.dtype)
        uniform = allowed / allowed.sum(dim=-1, keepdim=True)
        greedy = F.one_hot(self.mode(), self.logits.shape[-1])
        return (1 - self._epsilon) * greedy + self._epsilon * uniform

    @property
    def log_probs(self) -> torch.Tensor:
        return self.probabilities.clamp(min=torch.finfo(self.logits.dtype).tiny).log()

    def sample(self, noise: torch.Tensor) -> torch.Tensor:
        """Return actions from two uniform numbers `[..., 2]` each: whether to explore, and which allowed action."""
        coin, which = noise.unbind(dim=-1)
        mask, greedy = self._mask.cpu(), self.mode().cpu()
        # Among the allowed ones, from 0. A number near 1 may have been rounded to 1.
        number = (which * mask.sum(dim=-1)).long().clamp(max=mask.sum(dim=-1) - 1)
        uniform = (mask.cumsum(dim=-1) <= number.unsqueeze(-1)).sum(dim=-1)
        return torch.where(coin < self._epsilon, uniform, greedy)


def begin_layers_(network: torch.nn.Module, config: LayerSettings) -> None:
    """Initialise linear layers and convolutions as PyTorch does, unless model.orthogonal=true.

    With the orthogonal weights of PPO, which are larger, DQN overestimates: on CartPole it failed in 2 of 3 seeds.
    """
    if getattr(config, "orthogonal", None):  # a setting of model=mlp alone
        return
    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            layer.reset_parameters()


class QNetwork(ActorCritic):
    """Values Q(s, a) of all actions: the trunk that model= names, and a linear head, initialised by `begin_layers_`.

    Action parameters are these values, so that evaluation, export and enjoy take the action of the largest one.
    """

    num_noise = 2

    def __init__(self, spec: EnvSpec, config: LayerSettings, epsilon: float = 0.0) -> None:
        super().__init__(spec, config)
        self.epsilon = epsilon  # of a policy that samples
        self.trunk = make_trunk(spec, config)
        self.head = linear(self.trunk.num_features, spec.action.sizes[0], gain=1.0)
        begin_layers_(self, config)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self._values(self.trunk, obs)

    def portable_params(self, obs: Obs) -> torch.Tensor:
        return self.head(self.trunk.plain(obs))

    def value(self, obs: Obs) -> torch.Tensor:
        return self.action_params(obs).amax(dim=-1)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        values = self.action_params(obs)
        return values, values.amax(dim=-1)

    def distribution(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> EpsilonGreedy:
        return EpsilonGreedy(params, mask, self.epsilon)

    def num_products(self) -> int:
        return self.trunk.num_products + self.head.weight.numel()

    def _values(self, trunk: Callable[[Obs], torch.Tensor], obs: Obs) -> torch.Tensor:
        """Return values for any number of batch dimensions: a trunk takes one."""
        leaf, x = leaves(self.spec.obs)[0], leaves(obs)[0]
        batch = x.shape[: x.dim() - len(leaf.shape)]
        if len(batch) == 1:
            return self.head(trunk(obs))
        rows = each(lambda leaf, x: x.reshape(-1, *leaf.shape), self.spec.obs, obs)
        return self.head(trunk(rows)).unflatten(0, batch)


class Dqn(Algorithm):
    settings_class = DqnSettings
    needs_successors = True
    max_lag = None  # it learns from old transitions anyway
    replay: ReplayBuffer

    def __init__(self, spec: EnvSpec, settings: DqnSettings, model: QNetwork) -> None:
        super().__init__(spec, settings, model)
        self.replay = ReplayBuffer(settings.capacity, settings.gamma, settings.n_step)
        self.target = copy.deepcopy(model).requires_grad_(False)
        self.kept = {name: p.data for name, p in self.target.named_parameters(prefix="target")}
        self.kept |= {name: torch.zeros((), dtype=torch.int64) for name in ("num_rows", "num_updates")}

    @classmethod
    def networks(
        cls, spec: EnvSpec, settings: Any, model: ModelSettings, build: Callable[[], ActorCritic]
    ) -> QNetwork:
        if spec.action.kind != "discrete":
            raise ConfigError(
                f"algorithm={settings.name} values each of n actions, and this task's actions are "
                f"{spec.action.kind}: use algorithm=sac for a Box, or ppo"
            )
        if not isinstance(model, LayerSettings) or model.name not in TRUNKS or model.memory != "none":
            raise ConfigError(
                f"algorithm={settings.name} puts values of actions on the trunk of a model without memory: use "
                f"model={', '.join(TRUNKS)}"
            )
        return QNetwork(spec, model, settings.epsilon_end)

    def parts(self) -> Mapping[str, Part]:
        s = self.settings
        rate = s.learning_rate + (s.learning_rate_end - s.learning_rate) * self.progress
        return {"all": Part(rate, max_grad_norm=s.max_grad_norm)}

    @property
    def epsilon(self) -> float:
        """Share of uniform actions: it falls linearly with the share of total_steps that is done."""
        s = self.settings
        done = min(1.0, self.progress / s.epsilon_fraction) if s.epsilon_fraction else 1.0
        return s.epsilon_start + (s.epsilon_end - s.epsilon_start) * done

    def act(
        self, obs: Obs, mask: torch.Tensor | None, noise: torch.Tensor, memory: torch.Tensor | None
    ) -> Acted:
        return Acted(EpsilonGreedy(self.model.action_params(obs), mask, self.epsilon).sample(noise))

    def learn(self, rollout: Transitions, step: Step) -> Mapping[str, float]:
        settings, sums = self.settings, torch.zeros(2, dtype=torch.float64)
        num_owed = self.replay.receive(rollout, step, self.kept, settings)
        for batch in self.replay.batches(step, num_owed, settings.batch_size):
            loss, values = self.loss(batch)
            step(loss, batch.num_samples)
            sums += torch.stack([loss, values]).detach().cpu().double() / batch.num_samples
            self.kept["num_updates"] += 1
            if self.kept["num_updates"] % settings.target_period_updates == 0:
                self.target.load_state_dict(self.model.state_dict())
        metrics = {"epsilon": self.epsilon, "updates": float(num_owed)}
        if num_owed:
            sums = step.sum(sums) / num_owed
            metrics |= {"q_loss": sums[0].item(), "q_mean": sums[1].item()}
        return metrics

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return sums over the batch: of the Huber loss of Q(s, a), and of Q(s, a)."""
        values = self.model.action_params(batch.obs)
        values = values.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
        return F.smooth_l1_loss(values, self.targets(batch), reduction="sum"), values.sum()

    @torch.no_grad()
    def targets(self, batch: Batch) -> torch.Tensor:
        """Return R + gamma^m Q_target(s', a') `[k]`, a' the best action in s' by Q (double) or by Q_target."""
        next_values = self.target.action_params(batch.next_obs)
        chosen_by = self.model.action_params(batch.next_obs) if self.settings.double else next_values
        best = self.model.distribution(chosen_by, batch.next_mask).mode()
        next_values = next_values.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        return batch.returns.to(next_values) + batch.discounts.to(next_values) * next_values
