"""Environments behind a socket: the server (`python -m ddppo.serve`), and its clients, env.backend=remote."""

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
        )
    },
)
