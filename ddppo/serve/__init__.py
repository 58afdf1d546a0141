"""Environments behind a WebSocket: the server (`python -m ddppo.serve`) and its client (env.backend=remote).

Server, in reading order: server.py (start), app.py (routes), session.py (one client), slots/ (one process for each
environment), protocol.py (messages), limits.py. Client: client/served.py (checks before a run), client/connection.py
(one session), client/sessions.py (pools of sessions), client/backend.py (the VecEnv of a rank).
"""

from ddppo.plugins import Backend, Plugin

PLUGIN = Plugin(
    package=__name__,
    backends={
        "remote": Backend(
            make=f"{__name__}.client.backend:make_remote",
            check=f"{__name__}.client.served:check_served",
            spec=f"{__name__}.client.served:served_spec",
            check_run=f"{__name__}.client.served:check_run",
            unsaved="is stepped by servers (env.backend=remote), and a session hands over no state",
        ),
        "openenv": Backend(
            make=f"{__name__}.client.backend:make_remote",
            check=f"{__name__}.client.openenv_task:check_openenv",
            spec=f"{__name__}.client.openenv:openenv_spec",
            unsaved="is stepped by servers (env.backend=openenv), and a session hands over no state",
        ),
    },
)
