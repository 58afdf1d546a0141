"""Walks that learn which rewrites pay: `circuit optimise learn=true`."""

import json
import math

import numpy as np
import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.commands import run
from ddppo.domains.circuits.optimise import AT_RANDOM, learning_walk, random_walk
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import read
from ddppo.domains.circuits.walk_learning import LearningRule, Steps, WalkLearner
from ddppo.errors import ConfigError

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

NUM_WEIGHTS, SIZES = 7, (3, 1, 4)


def some_steps(learner):
    """Return a few steps by the learner's policy with random features."""
    rng, steps = np.random.default_rng(3), Steps()
    for size in SIZES:
        features = rng.integers(NUM_WEIGHTS, size=(size, 2))
        growth = rng.integers(-2, 3, size=size)
        logits, slopes = learner.logits(features, growth)
        steps.features.append(features)
        steps.chances.append(np.exp(logits) / np.exp(logits).sum())
        steps.slopes.append(slopes)
        steps.actions.append(int(rng.integers(size)))
        steps.statuses.append(growth[:3])
    return steps


def test_the_gradient_is_that_of_finite_differences():
    learner = WalkLearner(NUM_WEIGHTS, LearningRule(prior=0.0))
    learner.weights = np.random.default_rng(1).normal(size=NUM_WEIGHTS)
    steps, advantages = some_steps(learner), np.array([1.0, 2.0, -0.5])

    def objective(weights):
        learner.weights = weights
        total = 0.0
        for features, action, advantage in zip(steps.features, steps.actions, advantages, strict=True):
            logits, _ = learner.logits(features, np.zeros(len(features)))
            total += advantage * (logits[action] - np.log(np.exp(logits).sum()))
        return total / len(advantages)

    learner_weights = learner.weights.copy()
    # Chances without a prior, at these weights.
    for k, features in enumerate(steps.features):
        logits, steps.slopes[k] = learner.logits(features, np.zeros(len(features)))
        steps.chances[k] = np.exp(logits) / np.exp(logits).sum()
    found = learner.gradient(steps, advantages)
    small = 1e-6 * np.eye(NUM_WEIGHTS)
    wanted = [(objective(learner_weights + e) - objective(learner_weights - e)) / 2e-6 for e in small]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_a_choice_that_paid_becomes_likelier_and_none_leaves_the_limit():
    learner = WalkLearner(NUM_WEIGHTS, LearningRule(rate=0.5, limit=2.0, prior=0.0))
    steps, features = Steps(), np.array([[0, 1], [2, 3]])
    for turn in range(256):
        steps.features.append(features)
        steps.chances.append(np.full(2, 0.5))
        steps.slopes.append(np.ones(2))
        steps.actions.append(turn % 2)
        steps.statuses.append(np.zeros(3))
        steps.rewards.append(float(turn % 2))
        steps.ends.append(True)
    for _ in range(40):
        learner.update(steps)
    logits, _ = learner.logits(features, np.zeros(2))
    assert logits[1] - logits[0] > 2
    assert abs(logits).max() <= 2.0


def test_a_walk_depends_on_its_seed_alone_and_without_a_step_size_is_one_at_random():
    keywords = {"circuit": "vbe_adder_3", **AT_RANDOM}
    walks = [learning_walk(keywords, LearningRule(), 0, 5) for _ in range(2)]
    first, second = (walk.go([], 700, math.inf) for walk in walks)
    assert first == second
    at_random = random_walk(keywords, 3.0, 0, 5).go([], 700, math.inf)
    still = learning_walk(keywords, LearningRule(rate=0.0), 0, 5).go([], 700, math.inf)
    assert still.rewrites == at_random.rewrites != first.rewrites


def test_optimise_learns_and_its_circuit_is_the_same_one(tmp_path, capsys):
    out, how = tmp_path / "smaller.qasm", tmp_path / "how.json"
    run(
        [
            "optimise",
            "mod5_4",
            f"out={out}",
            f"rewrites={how}",
            "steps=4000",
            "workers=2",
            "learn=true",
            "start=given",
        ]
    )
    assert "2 workers rewrite and learn for 4,000 steps each" in capsys.readouterr().out
    smaller = read(out).circuit
    assert len(smaller) < 40
    assert verify(benchmark("mod5_4"), smaller).is_equal
    assert len(json.loads(how.read_text())["rewrites"]) > 20


def test_a_run_s_policy_does_not_learn(tmp_path):
    with pytest.raises(ConfigError, match=r"learn=true with run=: .* leave one of both out"):
        run(["optimise", "tof_3", f"out={tmp_path / 'a.qasm'}", f"run={tmp_path}", "learn=true"])
