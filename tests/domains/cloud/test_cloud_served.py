"""The cloud behind a socket: a world for each session, and nothing of it for the next."""

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("fastapi", reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig
from ddppo.domains.text.turns import make_turns
from ddppo.serve.server import ServeSettings, served
from tests.support import PATIENCE_S, TINY, door, summary

CLOUD = EnvConfig(id="ddppo/Cloud-v0")


@pytest.fixture(scope="module")
def url():
    with served(ServeSettings(CLOUD, pool=2, port=0)) as url:
        yield url


class Session:
    """One environment of a server, asked and answered in turn."""

    def __init__(self, url):
        env = EnvConfig(id=CLOUD.id, backend="remote", urls=[url])
        self.turns = make_turns(env, range(1), rank=0, timeout_s=PATIENCE_S, max_restarts=0)

    def begun(self, task):
        self.turns.begin(0, 7, {"task": task})
        return self.turns.ready(None)[0]

    def typed(self, line):
        self.turns.act(0, line)
        return self.turns.ready(None)[0]


def test_a_bucket_of_one_session_is_unseen_in_another_and_by_the_next_holder_of_its_slot(url):
    one, other = Session(url), Session(url)
    for session in (one, other):
        assert "holiday-photos" in session.begun("s3_make_bucket").obs
    assert "make_bucket: mine-alone" in one.typed("aws s3 mb s3://mine-alone").obs
    assert "mine-alone" in one.typed("aws s3 ls").obs
    assert "mine-alone" not in other.typed("aws s3 ls").obs
    one.turns.close()
    following = Session(url)  # the other slot is held
    following.begun("s3_make_bucket")
    seen = following.typed("aws s3 ls").obs
    assert "mine-alone" not in seen
    assert "old-photos" in seen
    assert following.typed("aws s3 mb s3://mine-alone").info["score"] == 0.0
    for session in (other, following):
        session.turns.close()


def test_a_session_hears_of_its_task_and_of_success(url):
    session = Session(url)
    assert session.begun("sns_create_topic").info["tier"] == "beginner"
    assert session.turns.spec.tasks["sns_create_topic"] == "beginner"
    turn = session.typed("aws sns create-topic --name deploys")
    assert turn.terminated
    assert turn.reward == 1.0
    assert turn.info["is_success"] is True
    session.turns.close()


@pytest.mark.slow
def test_one_command_trains_on_the_cloud_on_two_ranks_with_pools_of_their_own(tmp_path):
    settings = (
        "env=cloud", "env.tasks=[warm-up]", "env.num_envs=16", "ppo=grpo", "model=token_policy", "dist.world_size=2",
        "ppo.total_steps=200",
    )  # fmt: skip
    done = door(*TINY, *settings, run_dir=tmp_path / "run")
    assert done.code == 0, done.stderr
    assert summary(tmp_path / "run")["status"] == "completed"
