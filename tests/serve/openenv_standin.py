"""A server of OpenEnv 0.10 as its package makes one, without the package; and servers that lie."""

import json
import threading
from contextlib import contextmanager
from random import Random

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from starlette.websockets import WebSocketDisconnect

from tests.support import wait_until

BASE = {
    "metadata": {"type": "object"},
    "done": {"type": "boolean"},
    "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
}
NUMBERS = {
    "action": {"type": "object", "required": ["arm"], "properties": {
        "metadata": BASE["metadata"], "arm": {"type": "string", "enum": ["left", "middle", "right"]}}},
    "observation": {"type": "object", "required": ["lamps"], "properties": {
        **BASE, "lamps": {"type": "array", "items": {"type": "number"}}}},
    "state": {"type": "object"},
}  # fmt: skip
TEXT = {
    "action": {"type": "object", "required": ["text"], "properties": {
        "metadata": BASE["metadata"], "text": {"type": "string"}, "loudness": {"type": "integer", "default": 3}}},
    "observation": {"type": "object", "required": ["text"], "properties": {**BASE, "text": {"type": "string"}}},
    "state": {"type": "object"},
}  # fmt: skip
TOOLS = {
    "action": {"type": "object", "required": ["tool_name"], "properties": {
        "metadata": BASE["metadata"], "type": {"const": "call_tool", "type": "string"},
        "tool_name": {"type": "string"}, "arguments": {"type": "object"}}},
    "observation": {"type": "object", "required": ["tool_name"], "properties": {
        **BASE, "tool_name": {"type": "string"}, "result": {}, "error": {}}},
    "state": {"type": "object"},
}  # fmt: skip
LISTED = [
    {"name": "run", "description": "Run a command.", "inputSchema": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}},
    {"name": "add", "description": "Add.", "inputSchema": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}},
]  # fmt: skip


class Standin:
    """The state of a server: its settings, and what clients have asked.

    Args:
        schemas: NUMBERS, TEXT or TOOLS.
        sessions: at most so many at once; further ones are accepted, and told CAPACITY_REACHED.
        lie: a function(message, answer) that returns what is sent in place of the answer: a map, text, bytes, or None
            to end the connection; "silence" to send nothing.
        token: that clients must send.
    """

    def __init__(self, schemas=NUMBERS, sessions=8, lie=lambda message, answer: answer, token=None):
        self.schemas, self.sessions, self.lie, self.token = schemas, sessions, lie, token
        self.num_held = 0
        self.asked = []  # data of every reset and step, in order

    async def session(self, socket: WebSocket):
        if self.token is not None and socket.headers.get("authorization") != f"Bearer {self.token}":
            await socket.send_denial_response(Response("no", 401))
            return
        await socket.accept()
        if self.num_held >= self.sessions:
            message = f"Server at capacity: {self.num_held}/{self.sessions}"
            await socket.send_text(json.dumps(error(message, "CAPACITY_REACHED")))
            await socket.close()
            return
        self.num_held += 1
        try:
            await self._answer_all(socket)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.num_held -= 1

    async def _answer_all(self, socket):
        world = World(self.schemas)
        while True:
            message = json.loads(await socket.receive_text())
            kind, data = message["type"], message.get("data", {})
            if kind == "close":
                return
            if kind in ("reset", "step"):
                self.asked.append(data)
            answer = self.lie(message, world.answer(kind, data))
            if answer is None:
                await socket.close()
                return
            if isinstance(answer, bytes):
                await socket.send_bytes(answer)
            elif answer != "silence":
                await socket.send_text(answer if isinstance(answer, str) else json.dumps(answer))


class World:
    def __init__(self, schemas):
        self.schemas = schemas
        self.state = {"episode_id": None, "step_count": 0}

    def answer(self, kind, data):
        match kind:
            case "state":
                return {"type": "state", "data": self.state}
            case "mcp":
                return {
                    "type": "mcp",
                    "data": {"jsonrpc": "2.0", "id": data["id"], "result": {"tools": LISTED}},
                }
            case "reset":
                self.state = {"episode_id": data["episode_id"], "step_count": 0}
                self.random, self.word = Random(data["seed"]), data.get("word", "north")
                return self.observed(self.shown(), None)
        self.state["step_count"] += 1
        if self.schemas is NUMBERS:
            right = ["left", "middle", "right"][self.on] == data["arm"]
            return self.observed(self.shown(), float(right), self.state["step_count"] == 4)
        if self.schemas is TEXT:
            if data["text"] == "fail":
                return error("no voice", "EXECUTION_ERROR")
            if not data["text"]:
                detail = {"loc": ["text"], "msg": "String should have at least 1 character"}
                return error("Invalid message", "VALIDATION_ERROR", errors=[detail])
            right = data["text"] == self.word
            return self.observed({"text": "yes" if right else "no"}, right, True)
        name, given = data["tool_name"], data["arguments"]
        said = str(given["a"] + given["b"]) if name == "add" else f"ran {given['command']}"
        result = {"content": [{"type": "text", "text": said}], "data": said, "is_error": False}
        return self.observed(
            {"tool_name": name, "result": result, "error": None}, float(said == "ran go"), True
        )

    def shown(self):
        if self.schemas is NUMBERS:
            self.on = self.random.randrange(3)
            return {"lamps": [float(i == self.on) for i in range(3)]}
        return {"text": self.word} if self.schemas is TEXT else {}

    def observed(self, observation, reward, done=False):
        metadata = {"is_success": bool(reward)} if done else {"hello": "there"}
        data = {"observation": {**observation, "metadata": metadata}, "reward": reward, "done": done}
        return {"type": "observation", "data": data}


def error(message, code, **more):
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def app_of(standin):
    app = FastAPI(openapi_url=None)
    app.add_api_websocket_route("/ws", standin.session)

    @app.get("/schema")
    async def schema(request: Request):
        if standin.token is not None and request.headers.get("authorization") != f"Bearer {standin.token}":
            return Response("no", 401)
        return standin.schemas

    return app


@contextmanager
def running(app, port=0):
    """Serve an ASGI application in a thread; yields the address http://127.0.0.1:<port>."""
    config = uvicorn.Config(
        app, port=port, log_level="critical", ws_max_size=2**30, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@contextmanager
def openenv(schemas=NUMBERS, **settings):
    """Yield the address of a stand-in, and its state."""
    standin = Standin(schemas, **settings)
    with running(app_of(standin)) as url:
        yield url, standin
