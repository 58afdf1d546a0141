"""The rules of environments behind an address: env.backend=remote."""

import re

from ddppo.config.settings import Config
from ddppo.errors import ConfigError

SERVED = "served"  # env.id where it is the servers' to say: env=remote
_ADDRESS = re.compile(r"wss?://(\[[\da-f:.]+\]|[^/\s:@[\]]+)(:\d{1,5})?/?", re.IGNORECASE)


def check_served(config: Config) -> None:
    """Raise ConfigError where env.urls and its kin have no effect, or cannot work."""
    env = config.env
    if env.backend != "remote":
        for key in ("urls", "token_file"):
            if value := getattr(env, key):
                raise ConfigError(
                    f"env.{key}={value} has no effect with env.backend={env.backend}: set env.backend=remote "
                    "(env=remote takes whatever is served), or leave it out"
                )
        return
    for url in env.urls:
        if not _ADDRESS.fullmatch(url):
            raise ConfigError(
                f"env.urls={env.urls}: {url} is no address such as ws://127.0.0.1:8000, or ws://[::1]:8000"
            )
    if not env.urls:
        if env.id == SERVED:
            raise ConfigError(
                "env=remote needs env.urls, the addresses of servers, e.g. env.urls=[ws://127.0.0.1:8000] of "
                "python -m ddppo.serve env=cartpole; a task that is known here is served by env.backend=remote alone"
            )
        if env.token_file is not None:
            raise ConfigError(
                f"env.token_file={env.token_file} has no effect with env.urls=[], for a server that a rank starts has "
                "a token of its own: give env.urls, or leave it out"
            )
        return
    for key in ("kwargs", "max_episode_steps"):
        if value := getattr(env, key):
            raise ConfigError(
                f"env.{key}={value} has no effect with env.urls, whose servers decide what they serve: give it to "
                "python -m ddppo.serve, and leave it out here (env=remote)"
            )
