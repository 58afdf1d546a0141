"""Algorithms with one mistake each, for the trial before a run. `Good` has none."""

import math
import random
from dataclasses import dataclass

import torch

from ddppo.algorithms.contract import Acted, Algorithm, AlgorithmSettings, Part


@dataclass
class GoodSettings(AlgorithmSettings):
    learning_rate: float = 1e-3


class Good(Algorithm):
    """A2C of one step: the reward is the return."""

    settings_class = GoodSettings

    def act(self, obs, mask, noise, memory):
        policy = self.model.distribution(self.model.action_params(obs), mask)
        actions = policy.sample(noise)
        return Acted(actions, {"logprobs": policy.log_prob(actions)})

    def loss(self, rollout, step):
        valid = rollout.valid
        params, values = self.model(rollout.obs[valid])
        mask = None if rollout.action_mask is None else rollout.action_mask[valid]
        policy = self.model.distribution(params, mask)
        rewards = rollout.rewards[valid]
        advantages = (rewards - values).detach()
        return (values - rewards).square().sum() - (
            advantages * policy.log_prob(rollout.actions[valid])
        ).sum()

    def learn(self, rollout, step):
        count = step.sum(rollout.valid.sum())
        loss = self.loss(rollout, step)
        step(loss, count)
        return {"loss": step.sum(loss) / count}


# -- The class.


class NoLearn(Algorithm):
    settings_class = GoodSettings


class Handsome(Good):
    hands_over = "games"


class NoNames(Good):
    synchronised = "policy_head"


class NegativeLag(Good):
    max_lag = -1


class NoAlgorithm:
    settings_class = GoodSettings


class Refuses(Good):
    @classmethod
    def check(cls, spec, settings):
        raise KeyError("spec")


class Undecorated(AlgorithmSettings):
    learning_rate: float = 1e-3


class UndecoratedSettings(Good):
    settings_class = Undecorated


@dataclass
class ClashingSettings(AlgorithmSettings):
    total_steps: str = "many"


class Clashing(Good):
    settings_class = ClashingSettings


@dataclass
class UnsetSettings(AlgorithmSettings):
    gamma: float


class Unset(Good):
    settings_class = UnsetSettings


# -- Networks and parts.


class Remembers(Good):
    """Learns by unrolling whole rollouts from a memory of 0."""

    takes_memory = True

    def act(self, obs, mask, noise, memory):
        return Algorithm.act(self, obs, mask, noise, memory)

    def loss(self, rollout, step):
        state = torch.zeros(rollout.rewards.shape[1], self.model.state_size)
        params, values = self.model.unroll(rollout.obs, state, rollout.episode_start)
        logprobs = self.model.distribution(params).log_prob(rollout.actions)
        return ((values - rollout.rewards).square() - logprobs)[rollout.valid].sum()


class Forgets(Remembers):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions)


class NoNetworks(Good):
    @classmethod
    def networks(cls, spec, settings, model, build):
        return torch.nn.Linear(4, 2)


class RaisingNetworks(Good):
    @classmethod
    def networks(cls, spec, settings, model, build):
        return {}["q"]


class RaisingInit(Good):
    def __init__(self, spec, settings, model):
        raise ValueError("no target")


class NoSuper(Good):
    def __init__(self, spec, settings, model):
        self.spec, self.settings, self.model = spec, settings, model


class UnknownSynchronised(Good):
    synchronised = ("policy",)


class UnknownRecords(Good):
    records = ("values",)


class NoPart(Good):
    def parts(self):
        return {}


class UnknownPart(Good):
    def parts(self):
        return {"all": Part(1e-3, ("critic",))}


class Overlapping(Good):
    def parts(self):
        return {"all": Part(1e-3), "critic": Part(1e-3, ("value_head",))}


class OtherPart(Good):
    def learn(self, rollout, step):
        step(self.loss(rollout, step), 1, "critic")
        return {}


# -- Acting.


class NoActed(Good):
    def act(self, obs, mask, noise, memory):
        return super().act(obs, mask, noise, memory).actions


class ColumnOfActions(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions.unsqueeze(1))


class FloatingActions(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions.float())


class OutsideActions(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions + 1)


class InfiniteActions(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions / 0)


class Maskless(Good):
    def act(self, obs, mask, noise, memory):
        return super().act(obs, None, noise, memory)


class RowExtras(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions, {"scale": torch.ones(())})


class NumberExtras(Good):
    def act(self, obs, mask, noise, memory):
        return Acted(super().act(obs, mask, noise, memory).actions, {"scale": 1.0})


class ChangingNames(Good):
    def act(self, obs, mask, noise, memory):
        actions = super().act(obs, mask, noise, memory).actions
        return Acted(actions, {"late" if self.progress > 0.5 else "early": torch.zeros(len(obs))})


class ChangingShapes(Good):
    def act(self, obs, mask, noise, memory):
        actions = super().act(obs, mask, noise, memory).actions
        return Acted(actions, {"all": torch.zeros(len(obs), len(obs))})


class ChangesObs(Good):
    def act(self, obs, mask, noise, memory):
        acted = super().act(obs, mask, noise, memory)
        obs.zero_()
        return acted


class RaisingAct(Good):
    def act(self, obs, mask, noise, memory):
        raise IndexError("no camera")


class Drawing(Good):
    def act(self, obs, mask, noise, memory):
        acted = super().act(obs, mask, noise, memory)
        random.random()
        return Acted(acted.actions, {"logprobs": acted.extras["logprobs"] + torch.rand(len(obs))})


class Mixing(Good):
    def act(self, obs, mask, noise, memory):
        acted = super().act(obs, mask, noise, memory)
        return Acted(acted.actions, {"logprobs": acted.extras["logprobs"] - acted.extras["logprobs"].mean()})


# -- Learning.


class RaisingLearn(Good):
    def learn(self, rollout, step):
        return rollout.extras["values"]


class Nothing(Good):
    def learn(self, rollout, step):
        super().learn(rollout, step)


class Words(Good):
    def learn(self, rollout, step):
        return {"loss": "small"}


class Vectors(Good):
    def learn(self, rollout, step):
        return {"loss": rollout.rewards}


class NaNs(Good):
    def loss(self, rollout, step):
        return super().loss(rollout, step) * math.nan


class Unreduced(Good):
    def loss(self, rollout, step):
        return self.model(rollout.obs)[1]


class Detached(Good):
    def loss(self, rollout, step):
        return super().loss(rollout, step).detach()


class Successorless(Good):
    def loss(self, rollout, step):
        return self.model(rollout.successors())[1].sum()


class Replacing(Good):
    def __init__(self, spec, settings, model):
        super().__init__(spec, settings, model)
        self.kept["updates"] = torch.zeros(())

    def learn(self, rollout, step):
        self.kept["updates"] = self.kept["updates"] + 1
        return super().learn(rollout, step)


class MeanLoss(Good):
    def learn(self, rollout, step):
        step(self.loss(rollout, step) / rollout.valid.sum(), 1)
        return {}


class LocalAdvantages(Good):
    def loss(self, rollout, step):
        values = self.model(rollout.obs)[1]
        return (values - rollout.rewards + rollout.rewards.mean()).square().sum()


class OwnNumberOfSteps(Good):
    def learn(self, rollout, step):
        for _ in range(rollout.rewards.shape[1]):
            super().learn(rollout, step)
        return {}


class OwnCalls(Good):
    def learn(self, rollout, step):
        if 0 in step.envs:
            step.sum(1.0)
        return super().learn(rollout, step)


class OneMoreCall(Good):
    def learn(self, rollout, step):
        found = super().learn(rollout, step)
        if 0 in step.envs:
            step.sum(1.0)
        return found


class FailingSecond(Good):
    def learn(self, rollout, step):
        if 0 not in step.envs:
            raise KeyError("second")
        return super().learn(rollout, step)
