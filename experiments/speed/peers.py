"""Measure ddppo and its peers on the same work in the same rounds, one thing at a time, each in a process of its own.

python -m experiments.speed.peers torch=<python> [jax=<python>] [workloads=W1,W2,W4,W5,W6,W7,W8,W9] [rounds=3]
    [seconds=3] [before=<commit>] [out=experiments/speed/peers.csv, whose rows of other workloads stay]
python -m experiments.speed.peers table=true     # medians of the CSV, and how many times the better sb3's they are

torch= names a Python with torch, sb3-contrib and what the task needs; jax= one with rejax. Steps/s are
of training after the first two iterations. Peers of torch have torch's default threads, then one. W3 is Pong with
Stable-Baselines3's AtariWrapper and VecFrameStack in float32; ours is in bfloat16, as the workload says, and float32.

CleanRL is a collection of programs, which no package for today's Gymnasium holds: its row is CLEANRL below, which does
in our words what its ppo.py, ppo_continuous_action.py and ppo_atari_lstm.py do. PureJaxRL's design is that of rejax,
which pip installs. In W7 sb3-contrib's LSTM has no layer in front of it, where ours and CleanRL's have one of 64 units.
"""

import csv
import inspect
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ddppo.launch.arguments import composed
from ddppo.study.bench import own
from ddppo.study.bench.measured import Clock, Code, measure, other_code, this_code
from ddppo.study.bench.workloads import Configuration, fixed

HERE = Path(__file__).resolve().parent
OPTIONS = {
    "torch": "",
    "jax": "",
    "workloads": "W1,W2,W4,W5,W6,W7,W8,W9",
    "rounds": "3",
    "seconds": "3",
    "before": "",
    "out": str(HERE / "peers.csv"),
}
# What the programs of peers in torch begin with. W5's term and W8's task are those of
# ddppo.study.bench.own; W9 is W1 to them.
COMMON = f"""
import json, math, sys, time
import gymnasium as gym
import numpy as np
import torch

sizes = json.loads(sys.argv[1])
num_envs, rollout_steps, num_epochs = sizes["num_envs"], sizes["rollout_steps"], sizes["num_epochs"]
minibatch, has_term = sizes["minibatch"], sizes["workload"] == "W5"
if sizes["threads"]:
    torch.set_num_threads(sizes["threads"])


def undecided(params):
    log_probs = params.log_softmax(dim=-1)
    return -math.log(log_probs.shape[-1]) - log_probs.mean(dim=-1)


{inspect.getsource(own.Hovering)}

class Masked(gym.ObservationWrapper):
    def __init__(self, render_mode=None):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, obs):
        return obs[::2]


gym.register("Hovering-v0", Hovering)
gym.register("Masked-v0", Masked)
env_id = {{"W7": "Masked-v0", "W8": "Hovering-v0"}}.get(sizes["workload"], sizes["env_id"])
has_memory = sizes["workload"] == "W7"
times = []


def is_over():
    return len(times) >= 5 and time.perf_counter() - times[2] > sizes["seconds"]


def report():
    print(num_envs * rollout_steps * (len(times) - 3) / (times[-1] - times[2]))
"""
SB3 = (
    COMMON
    + """
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecFrameStack


class Clock(BaseCallback):
    def _on_rollout_start(self):
        times.append(time.perf_counter())

    def _on_step(self):
        return not is_over()


class WithTerm(ActorCriticPolicy):
    # PPO subtracts ent_coef times the mean of the third: the way to a term of one's own without a copy of its train().
    def evaluate_actions(self, obs, actions):
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        params = self.get_distribution(obs).distribution.logits
        return values, log_prob, entropy - undecided(params)


if env_id.startswith("ALE/"):
    import ale_py

    unskipped = {"frameskip": 1, "repeat_action_probability": 0.0}  # AtariWrapper skips
    env = VecFrameStack(make_atari_env(env_id, n_envs=num_envs, env_kwargs=unskipped), n_stack=4)
else:
    env = make_vec_env(env_id, n_envs=num_envs)
policy = "CnnPolicy" if env_id.startswith("ALE/") else WithTerm if has_term else "MlpPolicy"
model_sizes = None
if has_memory:
    from sb3_contrib import RecurrentPPO as PPO

    policy = "MlpLstmPolicy"
    model_sizes = dict(lstm_hidden_size=128, net_arch=[], shared_lstm=True, enable_critic_lstm=False)
model = PPO(
    policy, env, n_steps=rollout_steps, batch_size=minibatch, n_epochs=num_epochs, device="cpu", seed=0,
    ent_coef=0.1 if has_term else 0.0, policy_kwargs=model_sizes,
)
model.learn(10**9, callback=Clock())
report()
"""
)
CLEANRL = (
    COMMON
    + """
from torch import nn
from torch.distributions import Categorical, Normal


def layer(inputs, outputs, gain=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def stack(inputs, outputs, gain):
    return nn.Sequential(
        layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain)
    )


def task():
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))
    if isinstance(env.action_space, gym.spaces.Box):
        env = gym.wrappers.NormalizeObservation(gym.wrappers.ClipAction(env))
        env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
        env = gym.wrappers.TransformReward(gym.wrappers.NormalizeReward(env), lambda r: np.clip(r, -10, 10))
    return env


envs = gym.vector.SyncVectorEnv([task] * num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
inputs = int(np.prod(envs.single_observation_space.shape))
continuous = isinstance(envs.single_action_space, gym.spaces.Box)
outputs = envs.single_action_space.shape[0] if continuous else int(envs.single_action_space.n)
if has_memory:
    trunk, lstm = nn.Sequential(layer(inputs, 64), nn.Tanh()), nn.LSTM(64, 128)
    actor, critic = layer(128, outputs, 0.01), layer(128, 1, 1.0)
    parts = [trunk, lstm, actor, critic]
else:
    actor, critic = stack(inputs, outputs, 0.01), stack(inputs, 1, 1.0)
    parts = [actor, critic]
log_std = nn.Parameter(torch.zeros(1, outputs))
parameters = [each for part in parts for each in part.parameters()] + ([log_std] if continuous else [])
optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)


def features(obs, state, done):
    # of rows of all steps, for as many environments as the state has
    if not has_memory:
        return obs, state
    rows, number = [], state[0].shape[1]
    for x, ended in zip(trunk(obs).view(-1, number, 64), done.view(-1, number)):
        kept = (1 - ended).view(1, -1, 1)
        out, state = lstm(x.unsqueeze(0), (kept * state[0], kept * state[1]))
        rows.append(out)
    return torch.cat(rows).flatten(0, 1), state


def policy(obs, action=None):
    params = actor(obs)
    chosen = Normal(params, log_std.expand_as(params).exp()) if continuous else Categorical(logits=params)
    if action is None:
        action = chosen.sample()
    log_prob, entropy = chosen.log_prob(action), chosen.entropy()
    if continuous:
        log_prob, entropy = log_prob.sum(1), entropy.sum(1)
    return action, log_prob, entropy, critic(obs).flatten(), params


shape = (rollout_steps, num_envs)
all_obs = torch.zeros((*shape, inputs))
all_actions = torch.zeros((*shape, *envs.single_action_space.shape))
log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
obs, done = torch.as_tensor(envs.reset(seed=0)[0], dtype=torch.float32), torch.zeros(num_envs)
batch = np.arange(rollout_steps * num_envs)
state = (torch.zeros(1, num_envs, 128), torch.zeros(1, num_envs, 128))
while not is_over():
    times.append(time.perf_counter())
    begun = state
    for step in range(rollout_steps):
        all_obs[step], dones[step] = obs, done
        with torch.no_grad():
            seen, state = features(obs, state, done)
            action, log_probs[step], _, values[step], _ = policy(seen)
        all_actions[step] = action
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        rewards[step] = torch.as_tensor(reward)
        obs = torch.as_tensor(obs, dtype=torch.float32)
        done = torch.as_tensor(terminated | truncated, dtype=torch.float32)
    with torch.no_grad():
        next_value = critic(features(obs, state, done)[0]).flatten()
        advantages, last = torch.zeros(shape), 0.0
        for step in reversed(range(rollout_steps)):
            is_last = step == rollout_steps - 1
            goes_on = 1.0 - (done if is_last else dones[step + 1])
            following = next_value if is_last else values[step + 1]
            delta = rewards[step] + 0.99 * following * goes_on - values[step]
            advantages[step] = last = delta + 0.99 * 0.95 * goes_on * last
        returns = (advantages + values).flatten()
    flat_obs, flat_actions = all_obs.flatten(0, 1), all_actions.flatten(0, 1)
    flat_log_probs, flat_advantages = log_probs.flatten(), advantages.flatten()
    flat_values = values.flatten()
    for _ in range(num_epochs):
        if has_memory:  # whole environments, each with all its steps
            drawn = np.random.permutation(num_envs).reshape(-1, minibatch // rollout_steps)
            groups = [np.arange(len(batch)).reshape(shape)[:, envs_of].ravel() for envs_of in drawn]
        else:
            np.random.shuffle(batch)
            drawn = groups = batch.reshape(-1, minibatch)
        for envs_of, rows in zip(drawn, groups):
            first = tuple(each[:, envs_of] for each in begun) if has_memory else None
            seen, _ = features(flat_obs[rows], first, dones.flatten()[rows])
            _, new_log_prob, entropy, value, params = policy(seen, flat_actions[rows])
            ratio = (new_log_prob - flat_log_probs[rows]).exp()
            with torch.no_grad():
                kl = ((ratio - 1) - ratio.log()).mean()
                clipped = ((ratio - 1).abs() > 0.2).float().mean().item()
            advantage = flat_advantages[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            near = flat_values[rows] + (value - flat_values[rows]).clamp(-0.2, 0.2)
            worse = torch.max((value - returns[rows]) ** 2, (near - returns[rows]) ** 2)
            loss = loss + 0.25 * worse.mean() - 0.01 * entropy.mean()
            if has_term:
                loss = loss + 0.1 * undecided(params).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
report()
"""
)
REJAX = """
import json, sys, time
import jax
from rejax import PPO

sizes = json.loads(sys.argv[1])
batch = sizes["num_envs"] * sizes["rollout_steps"]


def seconds(iterations):
    steps = batch * iterations
    ppo = PPO.create(
        env="CartPole-v1", num_envs=sizes["num_envs"], num_steps=sizes["rollout_steps"],
        num_epochs=sizes["num_epochs"], num_minibatches=batch // sizes["minibatch"], total_timesteps=steps,
        eval_freq=steps, skip_initial_evaluation=True, agent_kwargs={"activation": "tanh"},
    )
    ppo = ppo.replace(eval_callback=lambda *_: ())  # evaluations are not measured
    train = jax.jit(ppo.train)
    jax.block_until_ready(train(jax.random.PRNGKey(0)))  # compiles
    start = time.perf_counter()
    jax.block_until_ready(train(jax.random.PRNGKey(1)))
    return time.perf_counter() - start


few = 50
took = seconds(few)
many = max(2 * few, int(few * sizes["seconds"] / took))
print(batch * many / seconds(many))
"""


def peer(python: str, program: str, configured: Configuration, threads: int, seconds: float) -> float:
    """Return steps/s of a peer's program on the work of `configured`; threads 0 leaves torch's default."""
    config = composed(configured.overrides)
    training: Any = config.training
    sizes = {
        "workload": configured.workload.name,
        "env_id": config.env.id,
        "num_envs": config.env.num_envs,
        "rollout_steps": training.rollout_steps,
        "num_epochs": training.num_epochs,
        "minibatch": config.env.num_envs * training.rollout_steps // training.num_minibatches,
        "threads": threads,
        "seconds": seconds,
    }
    command = [python, "-W", "ignore", "-c", program, json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def ours(name: str) -> dict[str, Configuration]:
    """Return the configurations of a workload that are measured."""
    found = {f"ddppo W={w}": Configuration(fixed(name), w, "strong") for w in (1, 2)}
    if "dist.reduction=fast" in fixed(name).overrides:  # a preset of before ordered sums were the default
        default = fixed(name, ["dist.reduction=auto"])
        found |= {f"ddppo W={w} ordered": Configuration(default, w, "strong") for w in (1, 2)}
    if name == "W3":
        found["ddppo W=1 float32"] = Configuration(fixed(name, ["model.precision=float32"]), 1, "strong")
    return found


def one_round(name: str, options: Mapping[str, str], before: Code | None) -> dict[str, float]:
    """Return steps/s of everybody on a workload, each measured once."""
    configurations, seconds = ours(name), float(options["seconds"])
    clock, first = Clock(0.5, seconds), next(iter(ours(name).values()))
    row = {}
    if before is not None and name in ("W1", "W2", "W4"):
        # A number of threads of a batched task; the commit before it had none of MuJoCo and refuses the setting.
        theirs = [each for each in first.overrides if not each.startswith("env.num_workers=")]
        row["before W=1"] = measure(before, theirs, clock)["fps"]
    row |= {who: measure(this_code(), each.overrides, clock)["fps"] for who, each in configurations.items()}
    programs = {"sb3": SB3} if name == "W3" else {"sb3": SB3, "cleanrl": CLEANRL}
    for who, program in programs.items():
        row[who] = peer(options["torch"], program, first, 0, seconds)
        row[f"{who} one thread"] = peer(options["torch"], program, first, 1, seconds)
    if options["jax"] and name in ("W1", "W2"):
        row["rejax"] = peer(options["jax"], REJAX, first, 0, seconds)
    return row


def main(arguments: list[str]) -> None:
    given = dict(argument.partition("=")[::2] for argument in arguments)
    options, out = OPTIONS | given, Path(given.get("out", OPTIONS["out"]))
    if given.keys() <= {"table", "out"} and "table" in given:
        print(table(out))
        return
    if not given.keys() <= OPTIONS.keys() or "torch" not in given:
        raise SystemExit(__doc__)
    with ExitStack() as stack:
        before = stack.enter_context(other_code(options["before"])) if options["before"] else None
        commit = f"{this_code().commit or '?':.8}{' and more' if this_code().dirty else ''}"
        for name in options["workloads"].split(","):
            rounds, rows = [], []
            for number in range(int(options["rounds"])):
                rounds.append(one_round(name, options, before))
                print(name, {who: round(fps) for who, fps in rounds[-1].items()}, flush=True)
                rows += [
                    {
                        "workload": name,
                        "round": number,
                        "who": who,
                        "steps_per_s": round(fps),
                        "commit": commit,
                    }
                    for who, fps in rounds[-1].items()
                ]
            for who in rounds[0]:
                over = [row[who] / max(row["sb3"], row["sb3 one thread"]) for row in rounds]
                fps = statistics.median(row[who] for row in rounds)
                print(
                    f"{name} {who:<20}{fps:10,.0f} steps/s, {statistics.median(over):6.2f} of the better SB3 "
                    f"({min(over):.2f} to {max(over):.2f})"
                )
            write(out, name, rows)


def table(out: Path) -> str:
    """Return the medians of a CSV, a row for each of us and the peers; behind them, how many times the better SB3's."""
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["workload"] for row in rows})
    of = {(row["workload"], row["who"], row["round"]): float(row["steps_per_s"]) for row in rows}
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for who in dict.fromkeys(row["who"] for row in rows):
        cells = []
        for name in names:
            rounds = [number for (each, other, number) in of if (each, other) == (name, who)]
            over = [
                of[name, who, number] / max(of[name, "sb3", number], of[name, "sb3 one thread", number])
                for number in rounds
            ]
            speed = statistics.median(of[name, who, number] for number in rounds) if rounds else 0.0
            cells.append(f"{speed:,.0f}: {statistics.median(over):.2g}" if rounds else "")
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Put the rows of a workload into a CSV in place of those that it has, in the order of the workloads."""
    others = []
    if out.exists():
        with out.open(newline="") as file:
            others = [row for row in csv.DictReader(file) if row["workload"] != name]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(sorted([*others, *rows], key=lambda row: row["workload"]))


if __name__ == "__main__":
    main(sys.argv[1:])
