"""The client of served environments (env.backend=remote)."""
