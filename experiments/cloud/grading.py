"""What does grading cost, and how many right ways and near misses are judged wrongly?

python -m experiments.cloud.grading times cases
python -m experiments.cloud.grading times cases endpoint_url=http://127.0.0.1:5000       # at a server of moto

The times are CPU times, so that other work on the machine counts less: of each task the least of three solutions.
`times` alone runs in older checkouts, too, for a comparison.
"""

import dataclasses
import sys
import time

import numpy as np

from ddppo.domains.cloud.env import CloudEnv


def main(wanted: list[str]) -> None:
    url = next((word.partition("=")[2] for word in wanted if word.startswith("endpoint_url=")), None)
    there = {"backend_cloud": "aws", "endpoint_url": url, "allow_real_cloud": True} if url else {}
    env = CloudEnv(chaos=False, **there)
    if "times" in wanted:
        resets, steps = zip(*(times(env, name) for name in env.tasks), strict=True)
        print(
            f"CPU time: reset {1e3 * np.mean(resets):.2f} ms, step {1e3 * np.mean(steps):.2f} ms", flush=True
        )
    if "times" in wanted and url:
        resets, steps = requests(env)
        print(
            f"requests: reset {np.mean(resets):.1f}, step {np.mean(steps):.1f} (at most {max(steps)})",
            flush=True,
        )
    if "cases" in wanted:
        cases(env)
    env.close()


def cases(env: CloudEnv) -> None:
    """Count the cases of tests/domains/cloud/graded that are judged wrongly."""
    from tests.domains.cloud.graded_cases import files_of, near_misses, right_ways

    # All of a drift at once, so that every line of a solution is needed.
    env.tasks = {
        name: dataclasses.replace(task, num_drifts=len(task.drifts), files=files_of(task))
        for name, task in env.tasks.items()
    }
    for kind, ways, right in (
        ("right ways refused", right_ways, True),
        ("near misses passed", near_misses, False),
    ):
        ends = [
            ends_well(env, name, lines) for name, task in env.tasks.items() for lines in ways(task).values()
        ]
        print(f"{kind}: {sum(end is not right for end in ends)} of {len(ends)}", flush=True)


def timed(function, *arguments, **options):
    begun = time.process_time()
    result = function(*arguments, **options)
    return time.process_time() - begun, result


def times(env: CloudEnv, name: str) -> tuple[float, float]:
    """Return the least seconds of a reset, and of a step of the solution on average."""
    resets, steps = [], []
    for _ in range(3):
        resets.append(timed(env.reset, seed=0, options={"task": name})[0])
        taken = []
        for line in env.tasks[name].solution:
            seconds, result = timed(env.step, line)
            taken.append(seconds)
            if result[2]:
                break
        steps.append(np.mean(taken))
    return min(resets), min(steps)


def requests(env: CloudEnv) -> tuple[list[int], list[int]]:
    """Count the requests of each reset, with its cleaning up, and of each step of the solutions."""
    made: list[str] = []
    for client in env._world._clients.values():
        client.meta.events.register_first("before-send", lambda request, **_: made.append(request.url))
    resets, steps = [], []
    for name, task in env.tasks.items():
        made.clear()
        env.reset(seed=0, options={"task": name})
        resets.append(len(made))
        for line in task.solution:
            made.clear()
            _, _, terminated, _, _ = env.step(line)
            steps.append(len(made))
            if terminated:
                break
    return resets, steps


def ends_well(env: CloudEnv, name: str, lines: list[str]) -> bool:
    env.reset(seed=0, options={"task": name})
    for line in lines:
        *_, terminated, truncated, info = env.step(line)
        if terminated or truncated:
            break
    return info["is_success"]


if __name__ == "__main__":
    main(sys.argv[1:] or ["times", "cases"])
