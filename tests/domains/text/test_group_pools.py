"""Groups of members that a policy plays behind an address: who steps, what is recorded, what is refused."""

import asyncio
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.domains.text.curriculum.contract import UniformCurriculum  # noqa: E402
from ddppo.domains.text.curriculum.shared import SharedCurriculum  # noqa: E402
from ddppo.domains.text.group_records import EpisodeGroup  # noqa: E402
from ddppo.domains.text.groups import AsyncGroupPool, SyncGroupPool  # noqa: E402
from ddppo.domains.text.rollout_views import RolloutsConfig, view  # noqa: E402
from ddppo.domains.text.rollouts import read_rollouts  # noqa: E402
from ddppo.errors import ConfigError, EnvError  # noqa: E402
from ddppo.serve.client.connection import EnvServerLost, EnvServerRefused  # noqa: E402
from ddppo.serve.client.sessions import EnvAnswer  # noqa: E402
from tests.serve.test_serve import health, world  # noqa: E402
from tests.serve.test_serve_slots import WORLD  # noqa: E402
from tests.support import PATIENCE_S, wait_until  # noqa: E402

OBEY = EnvConfig(id="tests.domains.text.group_tasks:tests/Obey-v0")
SILENT = EnvConfig(id=OBEY.id, kwargs={"says": False})
END = "1 end"


@pytest.fixture(scope="module")
def url():
    with world(8, OBEY) as found:
        yield found


@contextmanager
def pool(url, group_size, **settings):
    with SyncGroupPool([url], group_size, **({"answer_s": PATIENCE_S} | settings)) as found:
        yield found


class Script:
    """A policy that gives each member its lines in turn, and keeps the dialogues that it was shown."""

    def __init__(self, *lines_of_members):
        self.lines = [list(lines) for lines in lines_of_members]
        self.seen = []

    def __call__(self, dialogues):
        self.seen.append(dialogues)
        # Members are known by what they typed before.
        left = [lines for lines in self.lines if lines]
        assert len(left) == len(dialogues)
        return [lines.pop(0) for lines in left]


# -- A group by hand.


def test_members_step_until_each_is_over_and_those_that_are_over_stand_still(url):
    script = Script(["0.5", "0.5 fail", END], [END], ["0.25", "cut"])
    with pool(url, 3) as groups:
        group = groups.run_group("walk", script, seed=7)
    assert [len(dialogues) for dialogues in script.seen] == [3, 2, 1]
    assert [m.rewards for m in group.members] == [[0.5, 0.5, 1.0], [1.0], [0.25, 0.0]]
    assert group.returns == [2.0, 1.0, 0.25]
    assert [m.ended_by for m in group.members] == ["terminated", "terminated", "time_limit"]
    assert [m.is_success for m in group.members] == [True, True, False]
    assert [m.score for m in group.members] == [2.0, 1.0, 0.25]
    assert group.mean_return == pytest.approx(3.25 / 3)
    assert group.success_rate == pytest.approx(2 / 3)
    first = group.members[0]
    assert [(t.action, t.answer, t.tool_failed) for t in first.turns] == [
        ("0.5", "1: 0.5", False), ("0.5 fail", "2: 0.5 fail", True), (END, f"3: {END}", False),
    ]  # fmt: skip
    assert first.reward_parts == {"given": 2.0}
    assert first.info["score"] == 2.0
    assert (first.task, first.tier, first.seed, first.env) == ("walk", "warm-up", 7, 0)


def test_all_members_begin_the_same_and_a_policy_reads_what_it_typed_and_what_was_answered(url):
    script = Script(["0.5", "cut"], ["0.25", "cut"])
    with pool(url, 2) as groups:
        group = groups.run_group("fly", script)
        again = groups.run_group("fly", Script(["cut"], ["cut"]), seed=group.seed)
    (prompt,) = {m.prompt for m in group.members}
    assert prompt.startswith("fly ")
    assert [m.prompt for m in again.members] == [prompt, prompt]
    assert script.seen[0] == [[{"role": "user", "content": prompt}]] * 2
    assert script.seen[1][1] == [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": "0.25"},
        {"role": "user", "content": "1: 0.25"},
    ]
    assert group.dialogues[1][-1] == {"role": "user", "content": "2: cut"}


def test_a_dialogue_opens_with_the_environment_s_system_message_and_examples(url):
    script = Script(["cut"])
    with pool(url, 1) as groups:
        group = groups.run_group("walk", script, options={"opens": True})
    (dialogue,) = script.seen[0]
    assert [(m["role"], m["content"]) for m in dialogue] == [
        ("system", "Obey."), ("user", "Q"), ("assistant", "A"), ("user", "fine\n\nR"), ("assistant", "B"),
        ("user", group.members[0].prompt),
    ]  # fmt: skip
    assert group.members[0].system == "Obey."


def test_an_episode_of_max_turns_is_cut(url):
    with pool(url, 2, max_turns=2) as groups:
        group = groups.run_group("walk", Script(["0.5", "0.5"], ["0", END]))
    assert [m.ended_by for m in group.members] == ["max_turns", "terminated"]
    assert group.returns == [1.0, 1.0]


# -- Members that fail.


def test_a_member_whose_environment_raises_has_failed_and_the_others_play_on(url):
    with pool(url, 3) as groups:
        group = groups.run_group("walk", Script(["0", END], ["raise"], ["0", "0", "cut"]))
        after = groups.run_group("walk", Script([END], [END], [END]))
    assert [m.ended_by for m in group.members] == ["terminated", "failed", "time_limit"]
    assert "it broke" in group.members[1].error
    assert group.returns == [1.0, None, 0.0]
    assert (group.mean_return, group.success_rate) == (0.5, 0.5)  # of the two that did not fail
    assert after.returns == [1.0] * 3


def test_a_session_that_is_lost_in_a_group_is_opened_again_for_the_next_one():
    with world(2, OBEY) as own, pool(own, 2, reconnect_s=PATIENCE_S) as groups:
        group = groups.run_group("walk", Script(["exit"], ["0.5", END]))
        assert [m.ended_by for m in group.members] == ["failed", "terminated"]
        assert "ended the session" in group.members[0].error
        assert groups.run_group("walk", Script([END], [END])).returns == [1.0, 1.0]
    with world(2, OBEY) as own, pool(own, 2, max_reconnects=0) as groups:
        groups.run_group("walk", Script(["exit"], [END]))
        with pytest.raises(EnvError, match="member 0 of group 2 cannot begin"):
            groups.run_group("walk", Script([END], [END]))


def test_a_member_that_gives_no_answer_in_time_has_failed():
    with world(2, OBEY) as own, pool(own, 2, answer_s=1.0) as groups:
        group = groups.run_group("walk", Script([END], ["hang"]))
    assert [m.ended_by for m in group.members] == ["terminated", "failed"]
    assert "no answer within 1 s" in group.members[1].error


def test_a_reward_that_is_no_number_is_a_failure_of_its_member():
    group = EpisodeGroup(1, "walk", 3, [], [])
    group.begin(EnvAnswer("walk 1", None, info={"task": "walk"}), {})
    group.step(0, "go", EnvAnswer("gone", None, math.nan), None)
    assert (group.members[0].ended_by, group.returns, group.mean_return) == ("failed", [None], None)
    assert "nan as the reward" in group.members[0].error


def test_a_group_whose_members_cannot_begin_is_none_and_its_sessions_are_free_again(url):
    with pool(url, 2) as groups:
        with pytest.raises(EnvError, match=r"member 0 of group 1 cannot begin: .*no power"):
            groups.run_group("walk", Script(), options={"raises": True})
        assert groups.run_group("walk", Script([END], [END])).returns == [1.0, 1.0]


# -- Policies.


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([END], "1 lines for 2 dialogues"),
        ([END] * 3, "3 lines for 2 dialogues"),
        ("ab", "the policy returned str"),
        (None, "the policy returned NoneType"),
        ([END, 3], "int as line 1"),
    ],
)
def test_a_policy_that_returns_no_line_for_each_dialogue_is_told_so(lines, said, url):
    with pool(url, 2) as groups:
        with pytest.raises(ConfigError, match=f"{said}: a policy returns"):
            groups.run_group("walk", lambda dialogues: lines)
        assert groups.run_group("walk", Script([END], [END])).returns == [1.0, 1.0]


def test_an_error_of_the_policy_is_raised_and_the_sessions_are_free_again(url):
    def broken(dialogues):
        raise ZeroDivisionError("mine")

    with pool(url, 2) as groups:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="mine"):
                groups.run_group("walk", broken)


def test_a_synchronous_policy_is_called_in_the_thread_of_the_program(url):
    threads = []

    def policy(dialogues):
        threads.append(threading.current_thread())
        return [END]

    with pool(url, 1) as groups:
        groups.run_group("walk", policy)
    assert threads == [threading.current_thread()]


def scripted(number):
    """What a policy of an even mind types in the group of this number: a function of the dialogues alone."""

    def lines(dialogues):
        return ["cut" if len(d) > 2 * number else f"0.{len(d[-1]['content'])}" for d in dialogues]

    return lines


def played_sync(url):
    with pool(url, 2, seed=5) as groups:
        found = []
        for number in (1, 2, 3):
            found.append(groups.run_group(None, scripted(number)))
            groups.record_group_result(found[-1])
        return found, groups.curriculum.state()


async def played_async(url, is_async):
    async with AsyncGroupPool([url], 2, seed=5, answer_s=PATIENCE_S) as groups:
        found = []
        for number in (1, 2, 3):
            policy = scripted(number)

            async def late(dialogues, policy=policy):
                await asyncio.sleep(0)
                return policy(dialogues)

            found.append(await groups.run_group(None, late if is_async else policy))
            groups.record_group_result(found[-1])
        return found, groups.curriculum.state()


def test_groups_are_the_same_with_and_without_an_event_loop_and_by_steps_of_one_s_own(url):
    found, state = played_sync(url)
    assert [len(g.members[0].turns) for g in found] == [2, 3, 4]
    assert len({g.task for g in found}) > 1
    for is_async in (False, True):
        others, other_state = asyncio.run(played_async(url, is_async))
        assert list(map(asdict, others)) == list(map(asdict, found))
        assert other_state == state
    with pool(url, 2, seed=5) as groups, groups.group() as group:
        while group.playing:
            groups.step_group(group, scripted(1)(group.observed()))
        assert group.members == found[0].members
    with pytest.raises(EnvError, match="the pool is closed"):
        groups.step_group(group, [])
    with pool(url, 1) as groups:
        with groups.group() as group:
            pass
        with pytest.raises(EnvError, match="group 1 has ended"):
            groups.step_group(group, [END])


def test_a_group_that_is_cancelled_in_a_step_leaves_its_sessions_for_the_next_one(url):
    async def main():
        async with AsyncGroupPool([url], 2, answer_s=PATIENCE_S) as groups:
            playing = asyncio.ensure_future(groups.run_group("walk", lambda dialogues: ["slow"] * 2))
            while all(session.is_idle for session in groups._pool._sessions):
                await asyncio.sleep(0.001)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            # The answers that are still under way are not taken for those of this group.
            return await groups.run_group("run", Script(["0.5", END], [END]))

    group = asyncio.run(main())
    assert [m.rewards for m in group.members] == [[0.5, 1.0], [1.0]]
    assert all(m.prompt.startswith("run ") for m in group.members)


def test_ctrl_c_in_a_policy_leaves_the_sessions_for_the_next_group(url):
    def stopped(dialogues):
        raise KeyboardInterrupt

    with pool(url, 2) as groups:
        with pytest.raises(KeyboardInterrupt):
            groups.run_group("walk", stopped)
        assert groups.run_group("walk", Script([END], [END])).returns == [1.0, 1.0]


# -- Groups at once.


def test_generation_is_one_at_a_time_and_groups_step_at_the_same_time(url):
    calls, at_once = [], []

    async def policy(dialogues):
        calls.append(len(dialogues))
        at_once.append(sum(1 for _ in calls) - len(ended))
        await asyncio.sleep(0.01)
        ended.append(None)
        return ["slow 0.5" if len(d) < 5 else END for d in dialogues]

    ended = []

    async def main():
        async with AsyncGroupPool([url], 2, num_envs=4, answer_s=PATIENCE_S) as groups:
            found = await asyncio.gather(*(groups.run_group(None, policy) for _ in range(4)))
            for group in found:
                groups.record_group_result(group)
            return found, groups.curriculum

    found, curriculum = asyncio.run(main())
    assert max(at_once) == 1
    assert [g.number for g in found] == [1, 2, 3, 4]
    assert found[0].task != found[1].task  # they were played at once
    assert curriculum.curriculum.metrics()["round"] == 4


class Absent(UniformCurriculum):
    """Forgets, without a lock, a result that comes while another is recorded."""

    def record(self, rates):
        before = self._round
        time.sleep(0.001)
        self._round = before + 1


def test_no_result_of_groups_in_several_threads_and_pools_is_lost(url):
    shared = SharedCurriculum(Absent({"walk": "warm-up", "run": "warm-up"}))

    def play(groups):
        for _ in range(10):
            groups.record_group_result(groups.run_group(None, lambda dialogues: [END] * len(dialogues)))

    with (
        pool(url, 1, num_envs=2, curriculum=shared) as one,
        pool(url, 1, num_envs=2, curriculum=shared) as other,
        ThreadPoolExecutor(4) as threads,
    ):
        for done in [threads.submit(play, groups) for groups in (one, one, other, other)]:
            done.result(PATIENCE_S)
    assert shared.state() == {"num_groups": 40, "curriculum": {"round": 40}}


def test_a_curriculum_goes_on_from_its_state(url):
    def tasks(groups, number):
        found = []
        for _ in range(number):
            group = groups.run_group(None, lambda dialogues: [END])
            groups.record_group_result(group)
            found.append((group.number, group.task, group.seed))
        return found

    with pool(url, 1) as groups:
        found = tasks(groups, 3)
        state = groups.curriculum.state()
        later = tasks(groups, 3)
        assert "round 6" in groups.curriculum.table()
    with pool(url, 1) as groups:
        groups.curriculum.restore(state)
        assert tasks(groups, 3) == later
    assert [number for number, _, _ in found + later] == [1, 2, 3, 4, 5, 6]


def test_all_members_step_at_the_same_time(url, tmp_path):
    with pool(url, 8) as groups:
        meeting = {"folder": str(tmp_path), "meets": 8}  # a step ends once all eight have begun it
        group = groups.run_group("walk", Script(*[["meet", "meet end"]] * 8), options=meeting)
    assert [m.ended_by for m in group.members] == ["terminated"] * 8


def test_eight_members_of_six_turns_of_50_ms_step_at_the_same_time(url):
    # One after another they take 2.4 s. On a machine of its own a group takes .31 to .33 s; others may use this one.
    found = [math.inf]
    with pool(url, 8) as groups:
        while min(found) > 1.2 and len(found) < 20:
            began = time.perf_counter()
            group = groups.run_group("walk", lambda ds: ["slow end" if len(d) == 11 else "slow" for d in ds])
            found.append(time.perf_counter() - began)
            assert [len(m.turns) for m in group.members] == [6] * 8
    assert 0.3 <= min(found) <= 1.2, found


# -- Connecting and closing.


@contextmanager
def dying_server(others_begin):
    """A server whose connection dies in the handshake, while others connect."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def die():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                wait_until(others_begin)

        thread = threading.Thread(target=die)
        thread.start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(PATIENCE_S)


def test_all_members_are_connected_or_none_and_the_first_error_is_raised():
    with world(4, OBEY) as own:
        with (
            dying_server(lambda: health(own)["held"] > 0) as dying,
            pytest.raises(EnvServerLost, match=dying),
        ):
            SyncGroupPool([own, own, own, dying], 4, open_s=PATIENCE_S)
        wait_until(lambda: health(own)["held"] == 0)
        with pytest.raises(EnvServerRefused, match="all 4 slots are held"):
            SyncGroupPool([own], 5)  # the server's pool is smaller than the group
        wait_until(lambda: health(own)["free"] == 4)
        with pool(own, 4) as groups:
            assert groups.run_group("walk", Script(*[[END]] * 4)).returns == [1.0] * 4


def test_a_second_connect_does_nothing_and_a_closed_pool_says_so(url):
    async def main():
        groups = AsyncGroupPool([url], 2, answer_s=PATIENCE_S)
        with pytest.raises(EnvError, match="connect"):
            await groups.run_group("walk", Script())
        await asyncio.gather(groups.connect(), groups.connect())
        curriculum = groups.curriculum
        await groups.connect()
        assert groups.curriculum is curriculum
        held = await asyncio.to_thread(lambda: health(url)["held"])
        group = await groups.begin_group("walk")
        waiting = asyncio.ensure_future(groups.run_group("walk", Script()))
        await asyncio.sleep(0)
        await groups.close()
        await groups.close()
        with pytest.raises(EnvError, match="was closed while a group waited"):
            await waiting
        groups.end_group(group)
        with pytest.raises(EnvError, match="connect"):
            await groups.run_group("walk", Script())
        return held

    wait_until(lambda: health(url)["held"] == 0)
    assert asyncio.run(main()) == 2
    wait_until(lambda: health(url)["held"] == 0)


def test_closing_takes_no_longer_than_it_may_though_a_member_hangs():
    with world(2, OBEY) as own:

        async def main():
            groups = AsyncGroupPool([own], 2)
            await groups.connect()
            playing = asyncio.ensure_future(groups.run_group("walk", lambda dialogues: ["hang", "hang"]))
            while not any(not session.is_idle for session in groups._pool._sessions):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await groups.close()
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            return time.monotonic() - began

        assert asyncio.run(main()) < 10.0


# -- What is refused.


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"group_size": 8, "num_envs": 4}, "num_envs=4 sessions hold no whole groups of group_size=8"),
        ({"group_size": 4, "num_envs": 6}, "num_envs=6 sessions hold no whole groups of group_size=4"),
        ({"group_size": 0}, "group_size=0"),
        ({"group_size": 1, "max_turns": 0}, "max_turns=0: at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_a_session_is_opened(sizes, said):
    with pytest.raises(ConfigError, match=said):
        SyncGroupPool(["ws://127.0.0.1:9"], **sizes)


def test_a_task_of_numbers_is_refused_and_keeps_no_session():
    with world(2) as own:
        with pytest.raises(ConfigError, match=r"serves no task of text .*: use AsyncEnvPool or SyncEnvPool"):
            SyncGroupPool([own], 2)
        wait_until(lambda: health(own)["held"] == 0)
    assert WORLD.id


def test_a_task_among_the_options_is_refused_for_the_curriculum_would_choose_another(url):
    with pool(url, 1) as groups, pytest.raises(ConfigError, match="without the task: give that as task="):
        groups.run_group(None, lambda dialogues: ["go"] * len(dialogues), options={"task": "walk"})


def test_an_unknown_task_is_refused_with_the_near_one(url):
    with pool(url, 1) as groups, pytest.raises(ConfigError, match=r"no such task \(did you mean walk\?\)"):
        groups.run_group("wlak", Script())


def test_a_result_is_recorded_once_of_a_group_that_is_over_and_in_its_range(url):
    with pool(url, 2) as groups:
        with (
            groups.group("walk") as group,
            pytest.raises(ConfigError, match=r"members \[0, 1\] of group 1 still"),
        ):
            groups.record_group_result(group)
        group = groups.run_group("walk", Script([END], ["cut"]))
        for rate in (-0.1, 1.1, math.nan):
            with pytest.raises(ConfigError, match="is not in"):
                groups.record_group_result(group, rate)
        groups.record_group_result(group)
        with pytest.raises(ConfigError, match="was recorded before"):
            groups.record_group_result(group)
        assert groups.curriculum.state()["curriculum"]["tasks"]["walk"]["rates"] == [0.5]
        # A group of which nothing is known is left out.
        groups.record_group_result(groups.run_group("walk", Script(["raise"], ["raise"])))
        assert groups.curriculum.state()["curriculum"]["round"] == 1


def test_a_result_that_the_environment_does_not_tell_has_to_be_given():
    with world(1, SILENT) as own, pool(own, 1) as groups:
        group = groups.run_group("walk", Script([END]))
        with pytest.raises(ConfigError, match=r"is_success.*give a rate"):
            groups.record_group_result(group)
        groups.record_group_result(group, group.mean_return)
        assert groups.curriculum.state()["curriculum"]["round"] == 1
    with world(1, SILENT) as own, pool(own, 1, curriculum=None) as groups:
        group = groups.run_group(None, Script([END]))
        assert group.task in ("walk", "run", "fly")  # the seed has drawn it
        with pytest.raises(ConfigError, match="there is no curriculum"):
            groups.record_group_result(group, 1.0)


# -- Records.


def test_a_group_is_written_and_shown_by_the_command_for_rollouts(url, tmp_path):
    with pool(url, 3) as groups:
        group = groups.run_group("walk", Script(["0.5 fail", END], ["raise"], ["cut"]), seed=3)
    group.write(tmp_path)
    assert read_rollouts(tmp_path) == group.members
    listed = view(RolloutsConfig(run=str(tmp_path)), 160)
    assert [line.split()[:2] for line in listed.splitlines()[4:]] == [
        ["g1.0", "walk"],
        ["g1.1", "walk"],
        ["g1.2", "walk"],
    ]
    shown = view(RolloutsConfig(run=str(tmp_path), name="g1.0"))
    assert "return 1.5 (given +1.5), success, score 1.5, ended by terminated" in shown
    assert "member 0 of group 1; seed 3; 2 turns" in shown
    assert "[reward +0.5: given +0.5; the command failed]" in shown
    failed = view(RolloutsConfig(run=str(tmp_path), ended_by="failed", kind="group", group="1"))
    assert "it broke" in failed
    assert "[no answer]" in failed
    view(RolloutsConfig(run=str(tmp_path), html=str(tmp_path / "page.html")))
    view(RolloutsConfig(run=str(tmp_path), inspect=str(tmp_path / "run.eval")))
