"""The simulated cloud behind an address: nothing that is typed leaves its world. (Whose: test_cloud_served.py.)"""

import asyncio

import pytest

for needed in ("moto", "boto3", "msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extras cloud,serve: pip install '.[cloud,serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.serve.client.connection import Connection  # noqa: E402
from tests.serve.test_serve import world  # noqa: E402
from tests.support import PATIENCE_S  # noqa: E402

CLOUD = EnvConfig(id="ddppo/Cloud-v0")


async def session(url):
    connection = await Connection.opened(url, None, PATIENCE_S)
    await connection.ask(PATIENCE_S, op="reset", seed=1)
    return connection


async def typed(connection, line):
    return (await connection.ask(PATIENCE_S, op="step", action=line))["obs"]


@pytest.mark.parametrize(
    "line",
    [
        "aws s3 cp /etc/passwd s3://mine/passwd",
        "aws s3 cp ../../../../etc/passwd s3://mine/passwd",
        "aws lambda invoke --function-name f file:///etc/passwd",
        "aws s3api create-bucket --bucket mine; cat /etc/passwd",
        "aws s3api create-bucket --bucket $(cat /etc/passwd)",
        "aws --endpoint-url http://169.254.169.254/ s3 ls",
        "curl http://127.0.0.1/moto-api/reset",
        "aws s3api create-bucket --bucket mine --cli-input-json file:///etc/passwd",
    ],
)
def test_an_action_that_tries_to_leave_its_world_is_refused(line, cloud):
    async def main():
        connection = await session(cloud)
        await typed(connection, "aws s3api create-bucket --bucket mine")
        answer = await typed(connection, line)
        await connection.close()
        return answer

    answer = asyncio.run(main())
    assert "root:" not in answer
    assert any(word in answer.lower() for word in ("error", "unknown", "not ", "refused")), answer


def test_no_file_outside_the_episode_s_folder_is_read(cloud):
    async def main():
        connection = await session(cloud)
        await typed(connection, "aws s3api create-bucket --bucket mine")
        answer = await typed(
            connection, "aws s3api put-object --bucket mine --key k --body /proc/self/environ"
        )
        await connection.close()
        return answer

    assert "leads out of the folder" in asyncio.run(main())


@pytest.fixture(scope="module")
def cloud():
    with world(2, CLOUD) as url:
        yield url
