"""The clients of the package openenv with a server of ours; prints "passed". Run in an environment that has it:

python tests/serve/openenv_clients.py http://127.0.0.1:8000     serves tests/BytesRepeat-v0, one slot
"""

import asyncio
import sys

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


async def error_of(call):
    try:
        return f"no error, but {await call}"
    except RuntimeError as e:
        return str(e)


async def main(url, headers):
    async with GenericEnvClient(base_url=url, headers=headers) as client:
        first = await client.reset(seed=3, episode_id="mine", task="west")
        assert (first.observation["obs"], first.reward, first.done) == ("say west", None, False), first
        second = await client.step({"action": "west"})
        assert (second.reward, second.done) == (0.5, False), second
        assert await client.state() == {"episode_id": "mine", "step_count": 1}
        assert "action must be text" in await error_of(client.step({}))
        assert "reset has no" in await error_of(client.reset(seed=3, tusk="west"))
    async with MCPToolClient(base_url=url, headers=headers) as client:
        (tool,) = await client.list_tools()
        assert tool.name == "run_command", tool
        await client.reset(seed=3, episode_id="other", task="east")
        assert await client.call_tool("run_command", command="east") == "right again"
        last = await client.step(CallToolAction(tool_name="run_command", arguments={"command": "east"}))
        assert (last.reward, last.done, last.observation.result["data"]) == (0.5, True, "right again"), last
        assert (await client.state()).episode_id == "other"
        assert "there is no tool" in await error_of(client.call_tool("fly"))
    print("passed")


asyncio.run(main(sys.argv[1], {"Authorization": f"Bearer {sys.argv[2]}"} if sys.argv[2:] else None))
