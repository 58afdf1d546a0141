"""Advice: what is tried, in which order, within which time, what is chosen and how sure that is; made-up probes."""

import functools
import math
import os
import random
import signal
import sys
import time
from dataclasses import replace

import pytest

from ddppo import advise
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.advise.candidates import candidates, changes_learning, question, variants, world_sizes
from ddppo.study.advise.probe import OutOfTimeError, Slice, busy_s, used_s
from ddppo.study.advise.race import SLOWER, Entrant, Race, choose, ratio
from ddppo.study.advise.text import Bill, company, predicted, stragglers, sureness, table
from tests.support import CHECKOUT, PATIENCE_S, door, processes, run, started

PARTS = dict.fromkeys(EXCLUSIVE_PARTS, 0.2)
TINY = ("env=cartpole", "env.num_envs=4", "ppo.rollout_steps=8", "ppo.num_epochs=1", "ppo.num_minibatches=1")


def tried(*overrides, cores=2):
    return [each.name for each in candidates(question(overrides), cores)]


class Machine:
    """Made-up probes on a made-up clock: W ranks do `fps(W)` steps/s, give or take `noise`."""

    def __init__(self, fps, *, noise=0.0, start_s=1.0, iteration_s=0.1, seed=0, fails=()):
        self.now = 0.0
        self.fps, self.noise, self.start_s, self.iteration_s = fps, noise, start_s, iteration_s
        self.draw, self.fails = random.Random(seed), fails
        self.weather = 1.0
        self.closed = []

    def start(self, candidate, until):
        if candidate.world_size in self.fails:
            raise ConfigError(f"no W={candidate.world_size}")
        return self.Probe(self, candidate, until)

    class Probe:
        def __init__(self, machine, candidate, until):
            self.machine, self.candidate, self.until = machine, candidate, until
            self.start_up_s, self.iteration_s = machine.start_s, machine.iteration_s / self.speed
            self._spend(self.start_up_s + 2 * self.iteration_s)

        @property
        def speed(self):
            return self.machine.fps[self.candidate.world_size] / self.machine.fps[1]

        def run(self, num_iterations):
            self._spend(num_iterations * self.iteration_s)
            noise = 1 + self.machine.noise * self.machine.draw.gauss(0, 1)
            return Slice(self.machine.fps[self.candidate.world_size] * noise * self.machine.weather, PARTS)

        def close(self):
            self.machine.closed.append(self.candidate.world_size)

        def _spend(self, seconds):
            self.machine.now += seconds
            if self.machine.now > self.until:
                self.machine.now = self.until
                raise OutOfTimeError


@functools.cache
def landers():
    """Return W = 1, 2 and 4."""
    return candidates(question(["env=lunarlander", "env.backend=sync"]), 2)


def raced(machine, budget_s=60.0):
    race = Race(machine.start, budget_s, 0.05, lambda line: None, lambda: machine.now)
    race.enter(landers())
    race.run()
    return race


# -- what is tried ----------------------------------------------------------------------------------------------------


def test_w_are_the_divisors_of_the_environments_up_to_the_cores_and_one_beyond_first_1_then_the_cores():
    assert tried("env=acrobot", "env.num_envs=16") == ["W=1", "W=2", "W=4"]
    assert tried("env=acrobot", "env.num_envs=16", cores=8) == ["W=1", "W=8", "W=4", "W=16", "W=2"]
    assert tried("env=acrobot", "env.num_envs=6", cores=4) == ["W=1", "W=3", "W=6", "W=2"]
    assert tried("env=acrobot", "env.num_envs=16", cores=64) == ["W=1", "W=16", "W=8", "W=4", "W=2"]


def test_who_steps_the_environments_is_tried_where_they_are_no_batch_and_nobody_said():
    sync, pool = (f"env.backend={name}" for name in ("sync", "pool"))
    assert tried("env=lunarlander") == [f"W=1 {sync}", f"W=2 {sync}", f"W=4 {sync}", f"W=1 {pool}"]
    assert tried("env=lunarlander", pool) == ["W=1", "W=2", "W=4"]
    assert tried("env=synthetic", "env.kwargs.step_time_s=0.01", "dist.world_size=2") == [
        f"W=2 {sync}",
        f"W=2 {pool}",
    ]


def test_many_divisors_are_thinned_out_evenly_on_a_scale_of_ratios():
    config = composed(["env=cartpole", "env.num_envs=240"])
    assert world_sizes(config, 120) == [1, 2, 5, 10, 24, 60, 120, 240]


def test_under_weak_scaling_w_are_powers_of_2_and_said_to_change_what_is_learnt():
    asked = question(["env=cartpole", "scaling=weak"])
    found = candidates(asked, 3)
    assert sorted(each.world_size for each in found) == [1, 2, 4]
    assert changes_learning(asked, found[0]) == ["scaling=weak"]


def test_a_setting_with_one_value_is_fixed_and_one_with_several_is_tried_at_each():
    assert tried("env=cartpole", "dist.world_size=4") == ["W=4"]
    assert tried("env=cartpole", "dist.world_size=1,4") == ["W=1", "W=4"]
    asked = question(["env=cartpole", "dist.world_size=1", "env.num_envs=8,16"])
    found = candidates(asked, 2)
    assert [each.name for each in found] == ["W=1 env.num_envs=8", "W=1 env.num_envs=16"]
    assert changes_learning(asked, found[0]) == ["env.num_envs=8,16"]
    assert changes_learning(question(["env=cartpole", "dist.collective=shm,gloo"]), found[0]) == []


def test_variants_are_other_ways_to_do_what_takes_a_tenth_of_an_iteration_and_was_not_given():
    def names(best_parts, *overrides, cores=2):
        asked = question(overrides)
        best = candidates(asked, cores)[1]
        return [each.others for each in variants(best, PARTS | best_parts, asked, cores)]

    low = dict.fromkeys(EXCLUSIVE_PARTS, 0.01)
    gloo, threads = ("dist.collective=gloo",), ("dist.threads_per_rank=2",)
    assert names(low, "env=cartpole") == []
    assert names(low | {"t_comm": 0.2}, "env=cartpole") == [gloo]
    assert names(low | {"t_comm": 0.2}, "env=cartpole", "dist.collective=shm") == []
    assert names(low | {"t_learn": 0.2}, "env=cartpole", cores=16) == []  # a step in C++ knows one thread
    assert names(low | {"t_learn": 0.2}, "env=cartpole", "model=cnn", "dist.world_size=1,8", cores=16) == [
        threads
    ]


# -- the race -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_is_chosen_through_noise_of_a_tenth(seed):
    race = raced(Machine({1: 1000, 2: 1600, 4: 1100}, noise=0.1, seed=seed))
    assert choose(race.entrants, 0.05).candidate.world_size == 2


def test_of_equals_the_one_with_fewer_workers_is_chosen_nine_times_in_ten_through_noise_of_a_twentieth():
    races = [raced(Machine({1: 1000, 2: 1010, 4: 1005}, noise=0.05, seed=seed)) for seed in range(40)]
    assert sum(choose(race.entrants, 0.05).candidate.world_size == 1 for race in races) >= 36


def test_a_noisy_minute_hits_all_alike():
    machine = Machine({1: 1000, 2: 1500, 4: 1100})
    race = Race(machine.start, 60.0, 0.05, lambda line: None, lambda: machine.now)
    race.enter(landers())
    for weather in (1.0, 0.3, 1.2, 0.5, 1.0):
        machine.weather = weather
        race.run(machine.now)  # a round
    one, two = race.entrants[:2]
    assert ratio(two, one).estimate == pytest.approx(1.5)
    assert ratio(two, one).low == pytest.approx(1.5)


def test_who_is_far_behind_is_out_after_three_rounds_and_its_processes_end():
    machine = Machine({1: 1000, 2: 2000, 4: 500})
    race = raced(machine)
    assert {e.candidate.world_size: len(e.rounds) for e in race.entrants} == {1: 3, 2: 5, 4: 3}
    assert machine.closed == [1, 4]


@pytest.mark.parametrize("budget_s", [3.0, 8.0, 20.0, 60.0])
@pytest.mark.parametrize("iteration_s", [0.01, 0.5, 3.0])
def test_the_budget_holds_whatever_an_iteration_takes(budget_s, iteration_s):
    machine = Machine({1: 1000, 2: 1100, 4: 1050}, noise=0.2, iteration_s=iteration_s)
    race = raced(machine, budget_s)
    assert machine.now <= budget_s
    assert len(race.entrants) == 3
    for each in race.entrants:
        assert each.rounds or each.out or not race.entrants[0].rounds


def test_one_that_cannot_be_is_told_and_the_others_run():
    race = raced(Machine({1: 1000, 2: 1500, 4: 1}, fails=(4,)))
    assert choose(race.entrants, 0.05).candidate.world_size == 2
    assert race.entrants[2].out == "cannot be: no W=4"
    with pytest.raises(ConfigError, match="no W=1"):
        raced(Machine({1: 1, 2: 1, 4: 1}, fails=(1, 2, 4)))


def test_more_workers_than_cores_are_not_chosen_where_they_win_by_the_turns_that_others_lose():
    found = entrants({1: [100] * 5, 2: [130] * 5, 4: [160] * 5})
    assert choose(found, 0.05, 2).world_size == 4  # they may wait rather than compute
    found[1].out = SLOWER
    for each in found:
        each.rounds = {number: replace(one, others=0.5) for number, one in each.rounds.items()}
    assert choose(found, 0.05, 2).world_size == 2
    assert "Other programs used up to 50 % of the cores" in company(found)


def test_what_others_use_of_the_cores_is_told_from_what_a_process_uses():
    busy, own = busy_s(), used_s([os.getpid()])
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    own = used_s([os.getpid()]) - own
    assert 0.25 < own < 0.5
    assert busy_s() - busy > own - 0.05


# -- what is said ---------------------------------------------------------------------------------------------------


def entrants(rows):
    """Return entrants of {W: steps/s of each round}."""
    found = {each.world_size: Entrant(each) for each in landers()}
    for w, fps in rows.items():
        found[w].rounds = {number: Slice(x, PARTS) for number, x in enumerate(fps)}
    return [found[w] for w in rows]


def test_the_table_has_speed_efficiency_shares_time_and_cost():
    one, two = entrants({1: [100] * 5, 2: [150] * 5})
    lines = table([one, two], two, Bill(3_600_000, 2.0), {8: 400.0}).splitlines()
    assert "cost" in lines[0]
    cells = [line.split() for line in lines[1:]]
    assert cells[0][:6] + cells[0][-4:] == "W=1 100 100 to 100 5 10 h 10 20".split()  # noqa: SIM905
    assert cells[1][-16:-5] == "150 5 1.50 1.50 to 1.50 0.75 20 20 20 20".split()  # noqa: SIM905
    assert cells[1][:3] + cells[1][-4:] == "-> W=2 150 6.67 h 13.3 26.67".split()  # noqa: SIM905
    assert cells[2] == "W=8 400 predicted 4.00 0.50 2.5 h 20 40".split()  # noqa: SIM905
    assert "cost" not in table([one, two], two, Bill(1), {})


def test_the_sentences_say_how_sure_the_choice_is():
    one, two, four = entrants({1: [100] * 5, 2: [150] * 5, 4: [151, 149, 152, 148, 150]})
    assert sureness([one, two, four], two, 0.05) == [
        "W=1 against W=2: slower (0.67 times as fast, 0.67 to 0.67; 90 % interval of 5 rounds).",
        "W=4 against W=2: as fast, up to 5 % or noise, so fewer workers (1.00 times as fast, 0.99 to 1.01; 90 % "
        "interval of 5 rounds).",
    ]
    assert "all of 2 rounds, 5 have an interval" in sureness(entrants({1: [1, 1], 2: [2, 2]}), one, 0.05)[0]


def test_what_nobody_measured_is_predicted_from_workers_with_a_core_each():
    found = entrants({1: [100.0], 2: [200.0], 4: [150.0]})
    ahead, law = predicted(found, found[1], [8], 2)
    assert ahead == {8: pytest.approx(800.0)}
    assert "fitted to W=1, 2" in law
    ahead, _ = predicted(found, found[1], [8], math.inf)
    assert ahead[8] < 200
    assert predicted(found[:1], found[0], [8], 2) == ({}, predicted(found[:1], found[0], [8], 2)[1])


def waiting(*rollouts, t_sync=0.5, topology="ddp"):
    """Return what is said of a chosen one whose ranks' rollouts take so many seconds in each of three rounds."""
    (candidate,) = candidates(
        question(["env=cartpole", f"distributed={topology}", f"dist.world_size={len(rollouts)}"]), 8
    )
    entrant = Entrant(candidate)
    slices = [Slice(100.0, {**PARTS, "t_sync": t_sync}, 0.0, rollouts)] * 3
    entrant.rounds = dict(enumerate(slices))
    return stragglers(entrant, question(["env=cartpole"]))


def test_a_rank_that_others_wait_for_is_named_with_what_ends_its_rollouts_early():
    said = waiting(1.0, 1.1, 0.9, 5.0)
    assert "Others wait 50 % of an iteration for rank 3, whose rollouts take up to 5.0 times as long." in said
    assert said.endswith("python -m ddppo.advise env=cartpole distributed=ddp,ddp_preempt")
    said = waiting(1.0, 5.0)  # .6 of two ranks are both
    assert said.endswith("distributed=ddp_preempt dist.preempt_rule=throughput")
    assert waiting(1.0, 1.1, 0.9, 1.2) == ""
    assert waiting(1.0, 1.0, 1.0, 5.0, t_sync=0.1) == ""
    assert waiting(1.0, 1.0, 1.0, 5.0, topology="ddp_preempt") == ""
    assert waiting(1.0) == ""
    # 8 environments over 7 ranks: rank 0 has two.
    assert waiting(2.0, *[1.0] * 6) == ""
    assert "for rank 0, whose" in waiting(4.0, *[1.0] * 6)


# -- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("budget=9", ["there is no setting budget (did you mean budget_s?)"]),
        ("budget_s=5", ["budget_s=5", "at least 10"]),
        ("env=cartpole,pendulum", ["env=cartpole,pendulum", "one task"]),
        ("sweep=x", ["sweep=x", "temporary folders"]),
        ("resume=x", ["resume=x", "begin anew"]),
        ("-m", ["-m", "without dashes"]),
        ("ppo.gama=0.9", ["ppo.gama", "ppo.gamma"]),
        ("dist.world_size=11", ["dist.world_size=11", "env.num_envs=8"]),
        ("dist.world_size=1,two", ["dist.world_size=1,two", "numbers of workers"]),
        ("hydra/launcher=joblib", ["hydra/launcher=joblib", "no effect on probes"]),
        ("hydra/launcher=slurm", ["add dist.world_size=1,2,4,8"]),
        (
            "steps_to_target=nowhere",
            ["steps_to_target=nowhere", "neither a number of steps nor a sweep folder"],
        ),
        ("steps_to_target=0", ["steps_to_target=0", "at least 1"]),
        ("predict=many", ["predict=many", "numbers of workers"]),
        ("price_per_worker_hour=-1", ["price_per_worker_hour=-1", "at least 0"]),
    ],
)
def test_a_mistake_costs_one_sentence_and_starts_nothing(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(
        "ddppo.study.advise.command.Probes", lambda fixed: pytest.fail("something was started")
    )
    monkeypatch.setattr("sys.argv", ["advise.py", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        advise.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for words in said:
        assert words in err


def test_advice_from_end_to_end_is_a_table_and_a_command_and_leaves_nothing(tmp_path):
    more = ("budget_s=120", "tolerance=0.5", "dist.world_size=1,2", "predict=8")
    done = door(*TINY, *more, module="ddppo.advise", run_dir=tmp_path, TMPDIR=str(tmp_path))
    assert done.code == 0, done.stderr
    assert "W=2 against W=1" in done.stdout or "W=1 against W=2" in done.stdout
    assert "predicted" in done.stdout
    commands = [line for line in done.stdout.splitlines() if line.startswith("python -m ddppo.train")]
    assert len(commands) == 1
    assert "ppo.rollout_steps=8" in commands[0]
    assert not list(tmp_path.glob(".ddppo*"))
    assert not processes("ddppo.advise W=")


@pytest.mark.slow
def test_ctrl_c_prints_what_is_known_so_far_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "ddppo.advise", *TINY, "dist.world_size=1", "budget_s=600"]
    with started(command, TMPDIR=str(tmp_path)) as process:
        while "round" not in process.stderr.readline():
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert "-> W=1" in stdout
    assert "python -m ddppo.train env=cartpole" in stdout
    assert not list(tmp_path.glob(".ddppo*"))


def test_the_door_answers_help_without_torch():
    script = "try:\n  advise.main()\nfinally:\n  assert 'torch' not in sys.modules"
    done = run([sys.executable, "-c", f"import sys\nfrom ddppo import advise\n{script}", "--help"], CHECKOUT)
    assert done.code == 0, done.stderr
    assert "budget_s=60.0" in done.stdout
