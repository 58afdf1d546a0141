"""The replay buffer against a slow oracle: lists of the steps that each environment took."""

import threading

import numpy as np
import pytest
import torch

from ddppo.algorithms.contract import Share
from ddppo.algorithms.replay import ReplayBuffer
from ddppo.ppo.rollout import Transitions
from ddppo.seeding import stream

GAMMA = 0.9


class AllRows:
    """A generator that draws every row once, the oldest of the first environment first."""

    def integers(self, high, size):
        return np.arange(high)[None]


class Alone:
    """The step of a learner that is alone, or one of several in threads of this process."""

    def __init__(self, envs, run_envs=None, meeting=None, generator=None):
        self.envs = torch.tensor(envs)
        self.share = Share(self.envs, run_envs or len(envs), torch.ones(len(envs), dtype=torch.bool))
        self.meeting = meeting
        self.generator = generator or AllRows

    def sum(self, x):
        x = torch.as_tensor(x, dtype=torch.float64)
        return x if self.meeting is None else self.meeting(x)

    def stream(self, *numbers):
        return self.generator()


class Meeting:
    """Adds up what threads bring."""

    def __init__(self, num_threads):
        self.barrier, self.brought = threading.Barrier(num_threads, timeout=60), {}

    def __call__(self, x):
        self.brought[threading.get_ident()] = x
        self.barrier.wait()
        total = sum(self.brought.values())
        self.barrier.wait()
        return total


class World:
    """Environments that observe (environment, number of the step in the run), with random ends."""

    def __init__(self, num_envs, seed=0, *, pseudo_steps=False, p_end=0.15):
        self.num_envs, self.pseudo_steps, self.p_end = num_envs, pseudo_steps, p_end
        self.random = np.random.default_rng(seed)
        self.clock = np.zeros(num_envs)  # grows with every observation, so that no two are equal
        self.starts = np.ones(num_envs, bool)
        self.just_ended = np.zeros(num_envs, bool)
        self.steps = [[] for _ in range(num_envs)]  # the oracle: (obs, reward, terminated, ended, next_obs)

    def obs(self, i):
        return np.array([i, self.clock[i]])

    def rollout(self, num_steps, lost=()):
        """Return a rollout of all environments. lost: (row, environment) where the process of one is lost."""
        shape = (num_steps, self.num_envs)
        obs, rewards = np.zeros((*shape, 2)), self.random.normal(size=shape).round(3)
        terminated, truncated, valid, starts = (np.zeros(shape, bool) for _ in range(4))
        actions, ends, finals = self.random.integers(3, size=shape), [], []
        for t in range(num_steps):
            for i in range(self.num_envs):
                obs[t, i], starts[t, i], self.starts[i] = self.obs(i), self.starts[i], False
                self.clock[i] += 1
                if self.just_ended[i]:  # an autoreset pseudo-step, which returns nonsense
                    rewards[t, i], self.just_ended[i], self.starts[i], starts[t, i] = -99, False, True, False
                    continue
                if (t, i) in lost:  # the row is no step; the last step is followed by nothing
                    truncated[t, i], self.starts[i] = True, True
                    ends.append((t, i))
                    finals.append(obs[t, i])
                    if self.steps[i]:
                        self.steps[i][-1]["ended"] = True
                    self.clock[i] += 1
                    continue
                valid[t, i] = True
                next_obs = self.obs(i)
                if self.random.random() < self.p_end:
                    kind = terminated if self.random.random() < 0.5 else truncated
                    kind[t, i] = True
                    ends.append((t, i))
                    finals.append(next_obs)
                    self.clock[i] += 1
                    self.just_ended[i], self.starts[i] = self.pseudo_steps, not self.pseudo_steps
                ended = bool(terminated[t, i] or truncated[t, i])
                self.steps[i].append({
                    "obs": obs[t, i], "reward": rewards[t, i], "terminated": terminated[t, i], "ended": ended,
                    "next_obs": next_obs, "action": actions[t, i],
                })  # fmt: skip
        return Transitions(
            obs=torch.tensor(obs), actions=torch.tensor(actions), rewards=torch.tensor(rewards),
            terminated=torch.tensor(terminated), truncated=torch.tensor(truncated), valid=torch.tensor(valid),
            episode_start=torch.tensor(starts), action_mask=None, raw_obs=torch.tensor(obs),
            last_obs=torch.tensor(np.stack([self.obs(i) for i in range(self.num_envs)])),
            final_obs=torch.tensor(np.array(finals).reshape(-1, 2)),
            ends=torch.tensor(ends, dtype=torch.int64).reshape(-1, 2),
        )  # fmt: skip

    def expected(self, n_step, size):
        """Return what all stored rows give, computed step by step from the lists."""
        found = []
        for steps in self.steps:
            for k in range(max(0, len(steps) - size), len(steps)):
                total, factor = 0.0, 1.0
                for step in steps[k : k + n_step]:
                    total += factor * step["reward"]
                    factor *= GAMMA
                    if step["ended"]:
                        break
                factor = 0.0 if step["terminated"] else factor
                found.append([*steps[k]["obs"], steps[k]["action"], total, factor, *step["next_obs"]])
        return np.array(found)


def part(rollout, columns):
    """Return the rollout of some environments."""
    position = {c: k for k, c in enumerate(columns)}
    own = [k for k, (_, i) in enumerate(rollout.ends.tolist()) if i in position]
    arrays = {
        name: getattr(rollout, name)[:, columns]
        for name in ("obs", "actions", "rewards", "terminated", "truncated", "valid", "episode_start")
    }
    ends = torch.tensor([[t, position[i]] for t, i in rollout.ends[own].tolist()], dtype=torch.int64)
    return Transitions(
        **arrays, action_mask=None, raw_obs=arrays["obs"], last_obs=rollout.last_obs[columns],
        final_obs=rollout.final_obs[own], ends=ends.reshape(-1, 2),
    )  # fmt: skip


def columns_of(batch):
    return torch.cat([
        batch.obs, batch.actions.unsqueeze(1), batch.returns.unsqueeze(1), batch.discounts.unsqueeze(1), batch.next_obs
    ], dim=1).numpy()  # fmt: skip


def all_rows(replay, step):
    (batch,) = replay.batches(step, 1, 1)
    return columns_of(batch)


@pytest.mark.parametrize("pseudo_steps", [False, True])
@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_returns_and_successors_are_those_of_the_steps_that_were_taken(n_step, pseudo_steps):
    world, replay, step = (
        World(3, pseudo_steps=pseudo_steps),
        ReplayBuffer(3 * 17, GAMMA, n_step),
        Alone([0, 1, 2]),
    )
    for _ in range(9):  # the rings are full after four rollouts
        num_before = sum(map(len, world.steps))
        rollout = world.rollout(5)
        assert replay.add(rollout, step) == sum(map(len, world.steps)) - num_before
        np.testing.assert_allclose(all_rows(replay, step), world.expected(n_step, 17), atol=1e-12)


def test_a_truncated_episode_is_followed_by_its_own_last_observation_and_a_terminated_one_by_nothing():
    step, replay = Alone([0]), ReplayBuffer(8, 0.5)
    obs = torch.arange(4.0).reshape(4, 1, 1)
    flags = torch.zeros(4, 1, dtype=torch.bool)
    terminated, truncated = flags.clone(), flags.clone()
    truncated[0], terminated[2] = True, True
    replay.add(
        Transitions(
            obs=obs, actions=torch.zeros(4, 1), rewards=torch.ones(4, 1), terminated=terminated, truncated=truncated,
            valid=~flags, episode_start=flags, action_mask=None, raw_obs=obs, last_obs=torch.tensor([[4.0]]),
            final_obs=torch.tensor([[70.0], [72.0]]), ends=torch.tensor([[0, 0], [2, 0]]),
        ),
        step,
    )  # fmt: skip
    (batch,) = replay.batches(step, 1, 4)
    assert batch.next_obs.flatten().tolist() == [70.0, 2.0, 72.0, 4.0]  # never the observation of a reset
    assert batch.discounts.tolist() == [0.5, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("n_step", [1, 4])
def test_an_environment_that_was_lost_is_not_joined_to_the_one_that_took_its_place(n_step):
    world, replay, step = World(2, p_end=0.0), ReplayBuffer(40, GAMMA, n_step), Alone([0, 1])
    for lost in [(), ((2, 0),), ((0, 1),), ()]:
        replay.add(world.rollout(4, lost), step)
        np.testing.assert_allclose(all_rows(replay, step), world.expected(n_step, 20), atol=1e-12)


def test_rollouts_between_which_steps_are_missing_are_not_joined():
    world, replay, step = World(2, p_end=0.0), ReplayBuffer(40, GAMMA, 3), Alone([0, 1])
    replay.add(world.rollout(4), step)
    for steps in world.steps:
        steps[-1]["ended"] = True
    world.clock += 1  # a refused rollout: nothing tells of it but `share.follows`
    step.share = step.share._replace(follows=torch.zeros(2, dtype=torch.bool))
    replay.add(world.rollout(4), step)
    np.testing.assert_allclose(all_rows(replay, step), world.expected(3, 20), atol=1e-12)


def test_two_rollouts_of_one_environment_in_an_update_go_one_behind_the_other():
    world, replay, step = World(2), ReplayBuffer(40, GAMMA, 3), Alone([0, 1])
    first, second = world.rollout(4), world.rollout(4)
    ends = torch.cat([first.ends, second.ends + torch.tensor([0, 2])])
    both = Transitions(**{
        name: torch.cat([getattr(first, name), getattr(second, name)], dim=dim)
        for name, dim in {
            "obs": 1, "actions": 1, "rewards": 1, "terminated": 1, "truncated": 1, "valid": 1, "episode_start": 1,
            "raw_obs": 1, "last_obs": 0, "final_obs": 0,
        }.items()
    }, action_mask=None, ends=ends)  # fmt: skip
    step.envs = torch.tensor([0, 1, 0, 1])
    step.share = step.share._replace(follows=torch.ones(4, dtype=torch.bool))
    replay.add(both, step)
    np.testing.assert_allclose(all_rows(replay, step), world.expected(3, 20), atol=1e-12)


def drawn(shares, num_rollouts=6, before=(), capacity=7 * 12):
    """Return three batches of 16 that learners with these shares of 7 environments draw, by place."""
    world, meeting, replays = World(7, pseudo_steps=True), Meeting(len(shares)), []
    rollouts = [world.rollout(5) for _ in range(num_rollouts)]
    batches = np.zeros((3, 16, 7))

    def learn(envs, state):
        replay = ReplayBuffer(capacity, GAMMA, 3)
        replays.append(replay)
        step = Alone(envs, 7, meeting, lambda: stream(0, "learn", 0, 1))
        if state is not None:
            replay.load(state)
        for rollout in rollouts[0 if state is None else 3 :]:
            replay.add(part(rollout, envs), step)
        for k, batch in enumerate(replay.batches(step, 3, 16)):
            assert batch.num_samples == 16
            batches[k, batch.places] = columns_of(batch)

    first, threads = 0, []
    for share in shares:
        envs = list(range(first, first + share))
        threads.append(threading.Thread(target=learn, args=(envs, before or None)))
        first += share
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return batches, replays


@pytest.mark.parametrize("shares", [(3, 2, 2), (5, 2), (1,) * 7])
def test_samples_are_the_same_for_any_number_of_learners(shares):
    np.testing.assert_array_equal(drawn(shares)[0], drawn((7,))[0])


@pytest.mark.parametrize("shares", [(7,), (2, 3, 2)])
def test_a_state_is_dealt_anew_to_another_number_of_learners(shares):
    _, halfway = drawn((4, 3), num_rollouts=3)
    state = ReplayBuffer.merged([replay.state() for replay in halfway])
    assert state["envs"].tolist() == list(range(7))
    resumed, replays = drawn(shares, before=state)
    whole, (one,) = drawn((7,))
    np.testing.assert_array_equal(resumed, whole)
    after = ReplayBuffer.merged([replay.state() for replay in replays])
    for name, x in one.state().items():
        torch.testing.assert_close(after[name], x, rtol=0, atol=0)


def test_every_row_is_equally_likely_though_rings_are_unequal():
    world = World(2, p_end=0.0)
    step = Alone([0, 1], generator=lambda: np.random.default_rng(0))
    replay = ReplayBuffer(2000, GAMMA)
    replay.add(world.rollout(30), step)
    step.envs, step.share = torch.tensor([0]), step.share._replace(follows=torch.tensor([True]))
    replay.add(part(world.rollout(90), [0]), step)
    (batch,) = replay.batches(step, 1, 30_000)
    share = (batch.obs[:, 0] == 0).double().mean().item()
    assert share == pytest.approx(120 / 150, abs=0.01)
    counts = np.unique(columns_of(batch)[:, :2], axis=0, return_counts=True)[1]
    assert len(counts) == 150
    assert counts.min() > 130
