"""`ddppo/Cloud-v0`, the environment: a task in a simulated cloud, one command line a step. Read `step` first."""

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from ddppo.domains.cloud.access import Endpoint, endpoint_of
from ddppo.domains.cloud.endpoint import EndpointWorld, check_tasks
from ddppo.domains.cloud.goals import Grader
from ddppo.domains.cloud.tasks import (
    MOST_HINTS,
    CloudTask,
    GradedStep,
    chosen_tasks,
    gain,
    is_retry,
    score,
    score_parts,
)
from ddppo.domains.cloud.world import CHANCE, CloudWorld, CommandOutcome, drawn, drifted
from ddppo.domains.text.settings import wrong_shots
from ddppo.errors import ConfigError, EnvStateError, near

CHARSET = "".join(char for char in string.printable if char not in "\r\x0b\x0c")
MOST_TYPED, MOST_PRINTED = 2048, 4096
OPTIONS = ("task", "chaos", "solution")  # of a reset
HINT = "hint"
GUIDE = f"Type one aws command a line. `{HINT}` gives one of {MOST_HINTS} hints, and costs."

# Of tasks that bring no others: the system message of a language model, and worked examples in an empty cloud. None of
# their commands solves a task that comes with ddppo.
SYSTEM = (
    "You operate a cloud by the AWS command line interface, one command at a time, without explanations. A command is "
    "`aws <service> <operation> --option value ...`, where the service is s3api, s3, dynamodb, sqs, sns, iam, ssm or "
    "secretsmanager. Write names in backticks as they are, without the backticks. You see the output of each command."
)
SHOTS = (
    (
        "Show all roles.",
        "aws iam list-roles",
        '{\n    "Roles": []\n}',
    ),
    (
        "Make a topic `weather` and a queue `forecasts`.",
        "aws sns create-topic --name weather",
        '{\n    "TopicArn": "arn:aws:sns:us-east-1:123456789012:weather"\n}',
        "aws sqs create-queue --queue-name forecasts",
        '{\n    "QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/forecasts"\n}',
    ),
    (
        "Make a bucket `music`, and list what is in it.",
        "aws s3 mb s3://music",
        "make_bucket: music",
        "aws s3api list-objects-v2 --bucket music",
    ),
)

AWS_CLI = {
    "name": "aws_cli",
    "description": "Run one command of the AWS command line interface, and return its output.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": f"A line that begins with `aws`, or `{HINT}`."}
        },
        "required": ["command"],
    },
}


class CloudEnv(gym.Env):
    """Achieve the task of the prompt in a simulated cloud. An action is a command line, an observation its output.

    The reward of a step is the gain of the score (tasks.score), so the rewards of an episode sum to its last score; its
    parts are the gains of the score's parts. An
    episode is terminated when the task is achieved, and truncated when its steps are used up.

    Options of `reset`: "task" names the task, else one is drawn; "chaos" is the probability of a fault, by default
    that of the task's tier, and 0 with `chaos=False`; "solution" adds the task's solution to the info. The seed
    determines drift, faults and identifiers.

    A process holds one environment, because the simulator holds one world per process.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)
    one_a_process = True
    needs_close = False
    tokens = "ddppo.domains.cloud.tokenizer:CloudTokens"
    tools = (AWS_CLI,)
    forked_from: str | None = "ddppo.domains.cloud.warmed"

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        *,
        chaos: bool = True,
        system: str = SYSTEM,  # system message of tasks whose file has none; "" is none
        shots: Sequence[Sequence[str]] = SHOTS,  # worked examples of tasks whose file has none
        backend_cloud: str = "moto",  # simulated in the process; aws: at a real endpoint, by the settings below
        endpoint_url: str | None = None,  # its address; None is AWS itself
        allow_real_cloud: bool = False,  # agree that resources are made and deleted there
        account_id: str
        | int
        | None = None,  # account of the credentials, required but for an endpoint of this machine
        name_prefix: str = Endpoint.name_prefix,  # names of all resources begin with it
    ) -> None:
        self.tasks = chosen_tasks(tasks)
        if (wrong := wrong_shots(shots)) is not None:
            raise ConfigError(f"shots: {wrong}")
        self._system, self._shots = system, [list(shot) for shot in shots]
        self.observation_space = Text(MOST_PRINTED, min_length=0, charset=CHARSET)
        self.action_space = Text(MOST_TYPED, min_length=0, charset=CHARSET)
        self._chaos = chaos
        endpoint = endpoint_of(
            backend_cloud, Endpoint(endpoint_url, allow_real_cloud, account_id, name_prefix)
        )
        if endpoint is None:
            self._world = CloudWorld.take()
        else:
            check_tasks(self.tasks, endpoint)
            self._world = EndpointWorld(endpoint)
            self.forked_from = None  # a simulated world that is ready for forks would be in the way
            self.needs_close = True
        self._is_over = True
        self._task: CloudTask | None = None
        # Share of goals that hold, its maximum so far, and the score of the last step.
        self._progress = self._best = self._score = 0.0
        self._parts: dict[str, float] = {}  # of the score of the last step
        self._num_kept = self._num_hints = 0

    @property
    def task_tiers(self) -> dict[str, str]:
        """The tier of each task, for a curriculum."""
        return {name: task.tier for name, task in self.tasks.items()}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        # The task, and the probability of a fault.
        options = options or {}
        if unknown := [key for key in options if key not in OPTIONS]:
            raise ConfigError(f"options {unknown[0]}{near(str(unknown[0]), OPTIONS)}: {', '.join(OPTIONS)}")
        name = options.get("task")
        if name is None:
            name = list(self.tasks)[int(self.np_random.integers(len(self.tasks)))]
        if not isinstance(name, str) or name not in self.tasks:
            raise ConfigError(
                f"options task={name!r} is none of this environment's{near(str(name), list(self.tasks))}"
            )
        task = self.tasks[name]
        chance = options.get("chaos", CHANCE[task.tier] if self._chaos else 0.0)
        if not isinstance(chance, (bool, int, float)) or not 0 <= chance <= 1:
            raise ConfigError(f"options chaos={chance!r}: the probability of a fault, from 0 to 1")
        observation, info = self._begin(task, int(self.np_random.integers(2**31)), chance)
        info |= self._conversation(task)
        # For a person at the playground, who may ask for it; a policy does not read it.
        if options.get("solution"):
            info["solution"] = "\n".join(task.solution)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._is_over or self._task is None:
            raise gym.error.ResetNeeded("the episode is over: call reset() before the next step()")
        # 1. Execute the line.
        self._lines.append(action)
        printed, failed, retried = self._act(action)
        # 2. Grade the state of the world, and score the step.
        progress, num_kept = self._grader.progress(), self._grader.num_kept()
        achieved = progress == 1.0 and num_kept == len(self._grader.keep)
        graded = GradedStep(
            progress=progress,
            achieved=achieved,
            rose=progress > self._best,
            failed=failed,
            undone=progress < self._progress or num_kept < self._num_kept,
            retried=retried,
            survived=self._struck,
            num_hints=self._num_hints,
        )
        now, parts = score(graded), score_parts(graded)
        reward, self._score = gain(now, self._score), now
        gains = {name: gain(part, self._parts.get(name, 0.0)) for name, part in parts.items()}
        self._parts = parts
        self._best = max(self._best, progress)
        self._progress, self._num_kept = progress, num_kept
        # 3. End the episode, or let a fault strike before the next step.
        truncated = not achieved and len(self._lines) >= self._task.max_steps
        self._is_over = achieved or truncated
        if self._is_over:
            self._world.ended()
        else:
            self._strike()
        info = {**self._info(achieved), "reward_parts": gains, "tool_failed": failed}
        return self._shown(printed), reward, achieved, truncated, info

    def close(self) -> None:
        self._world.close()
        self._is_over = True

    def state(self) -> dict[str, Any]:
        """Return the complete state. moto cannot be saved, so an episode is saved as the lines that were typed."""
        if self._task is None:
            raise EnvStateError("a cloud environment has no state before its first reset: call reset() first")
        random = self.np_random.bit_generator.state
        begun = {"task": self._task.name, "seed": self._seed, "chance": self._chance}
        return begun | {"lines": list(self._lines), "random": random}

    def restore(self, state: Mapping[str, Any]) -> str:
        """Restore a state by typing its lines again; return the observation of that moment."""
        if state["task"] not in self.tasks:
            raise EnvStateError(
                f"the state is of task {state['task']!r}, which this environment does not have"
            )
        self.np_random.bit_generator.state = state["random"]
        observation, _ = self._begin(self.tasks[state["task"]], state["seed"], state["chance"])
        for line in state["lines"]:
            observation = self.step(line)[0]
        return observation

    def _begin(self, task: CloudTask, seed: int, chance: float) -> tuple[str, dict[str, Any]]:
        # 1. An empty world, the task's setup, and its drift.
        random = np.random.default_rng(seed)
        self._world.reset(seed)
        self._world.operate(task.setup, task.setup_files)
        self._world.operate(drifted(task.num_drifts, task.drifts, random), task.setup_files)
        self._world.folder.fill(task.files)
        # 2. Goals are checked before the policy acts: a goal that already holds is no goal.
        self._grader = Grader(self._world, task.goals, task.keep, ordered=task.ordered)
        self._check(task)
        # 3. The state of the episode.
        self._world.reads_only = task.reads_only
        self._task, self._seed, self._chance, self._lines = task, seed, chance, list[str]()
        self._fault = drawn(chance, task.chaos, random)
        self._struck = self._has_retried = self._is_over = False
        self._score, self._num_hints = 0.0, 0
        self._parts = {}
        self._progress = self._best = self._grader.progress()
        self._num_kept = self._grader.num_kept()
        return self._shown(f"{task.prompt}\n{GUIDE}"), self._info(achieved=False)

    def _check(self, task: CloudTask) -> None:
        """Raise EnvStateError if a goal holds at the start of a task without drifts, or a thing to keep is missing."""
        held = len(task.goals) - len(self._grader.goals)
        if not self._grader.goals or (held and not task.drifts):
            raise EnvStateError(
                f"task {task.name}: {held} goals hold at its start: what is asked must be new"
            )
        if self._grader.num_kept() != len(self._grader.keep):
            raise EnvStateError(f"task {task.name}: what is to be kept is not there at its start")

    def _act(self, action: str) -> tuple[str, bool, bool]:
        """Execute a line; return its output, whether it failed, and whether it was an idempotent retry."""
        if action.strip() == HINT:
            return self._hint(), False, False
        if len(action) > MOST_TYPED:
            too_long = f"a command has at most {MOST_TYPED} characters; this one has {len(action)}"
            outcome = CommandOutcome(errors=too_long, status=252)
        else:
            outcome = self._world.run(action)
        self._grader.note(outcome.calls)
        # A call that crashed the simulator may have changed the world.
        if outcome.broke:
            self._grader.look_again()
        # Creating something that exists is a retry, which is rewarded once.
        retried = is_retry(outcome.code, had_before=self._has_retried)
        self._has_retried = self._has_retried or retried
        if outcome.status == 0:
            return outcome.output, False, retried
        return f"{outcome.output}\nexit status {outcome.status}", True, retried

    def _hint(self) -> str:
        assert self._task is not None
        if self._num_hints == len(self._task.hints):
            return "there are no more hints"
        self._num_hints += 1
        return f"hint {self._num_hints}: {self._task.hints[self._num_hints - 1]}"

    def _strike(self) -> None:
        """Execute the fault of the episode at its step; repeat it in later steps until it breaks something.

        The loss of progress is not counted as undone by the policy.
        """
        assert self._task is not None
        if self._fault is None or self._struck or len(self._lines) < self._fault.after:
            return
        self._world.disturb(self._fault.commands, self._task.setup_files)
        self._grader.look_again()
        progress, num_kept = self._grader.progress(), self._grader.num_kept()
        self._struck = progress < self._progress or num_kept < self._num_kept
        self._progress, self._num_kept = progress, num_kept

    def _shown(self, text: str) -> str:
        # The observation space has a character set and a maximum length; a note says how much was cut.
        text = "".join(char if char in CHARSET else "?" for char in text)
        left_out = len(text) - MOST_PRINTED
        if left_out <= 0:
            return text
        note = f"\n... ({len(text)} characters in all)"
        return text[: MOST_PRINTED - len(note)] + note

    def _conversation(self, task: CloudTask) -> dict[str, Any]:
        """Return the system message and the worked examples of a task, for language models (docs/text.md)."""
        system = self._system if task.system is None else task.system
        shots = self._shots if task.shots is None else [list(shot) for shot in task.shots]
        return {"system": system, "shots": json.dumps(shots)}

    def _info(self, achieved: bool) -> dict[str, Any]:
        assert self._task is not None
        return {
            "task": self._task.name,
            "tier": self._task.tier,
            "progress": self._progress,
            "score": self._score,
            "is_success": achieved,
            "num_hints": self._num_hints,
            "chaos_struck": self._struck,
        }
