"""The door `python -m ddppo.serve`: environments behind a WebSocket address."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from ddppo.benchmark.workloads import composed
from ddppo.config import setting
from ddppo.errors import ConfigError
from ddppo.options import door, parse, parted
from ddppo.serve.limits import Limits
from ddppo.serve.server import ServeSettings, serve

_USAGE = """python -m ddppo.serve env=cartpole pool=8 port=8000        8 separate worlds at ws://127.0.0.1:8000
python -m ddppo.serve env.id=my_pkg.envs:MyEnv-v0          an environment of your own
python -m ddppo.serve env=cartpole host=0.0.0.0 token_file=secret    for other machines, with a token

Settings of env are those of `python -m ddppo.train`. Ctrl-C ends all sessions and the server.
Exit code 0, 1 where it could not start, or 2 for a mistake in the command."""
_LIMITS = Limits()


@dataclass(slots=True)
class ServeOptions:
    pool: int = setting(8, "slots: worlds that can be held at once, each a process", low=1)
    host: str = setting("127.0.0.1", "the address that is listened on")
    port: int = setting(8000, "its port; 0 takes a free one", low=0)
    token_file: str | None = setting(None, "a file whose first line clients must know")
    max_message_bytes: int = setting(_LIMITS.max_message_bytes, "of a request or an answer", low=256)
    messages_per_s: float = setting(
        _LIMITS.messages_per_s, "of a session; what comes faster waits unread", above=0
    )
    idle_s: float = setting(_LIMITS.idle_s, "a session without a request for so long is ended", above=0)
    step_s: float = setting(_LIMITS.step_s, "a world that does not answer within it is ended", above=0)


@door("stopped")
def main() -> None:
    """Run the command line."""
    arguments, overrides = parted(ServeOptions, sys.argv[1:])
    options = parse(ServeOptions, arguments, usage=_USAGE)
    if not overrides:
        raise ConfigError("env= is missing: give a preset (env=cartpole) or env.id=my_pkg.envs:MyEnv-v0")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    limits = Limits(
        max_message_bytes=options.max_message_bytes,
        messages_per_s=options.messages_per_s,
        idle_s=options.idle_s,
        step_s=options.step_s,
    )
    token = None if options.token_file is None else _token(Path(options.token_file))
    env = composed(overrides).env
    serve(ServeSettings(env, options.pool, options.host, options.port, token, limits))


def _token(path: Path) -> str:
    try:
        token = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"token_file={path} cannot be read: {e}") from e
    if len(token) < 16:
        raise ConfigError(f"token_file={path}: a token has at least 16 characters, this one {len(token)}")
    return token


if __name__ == "__main__":
    main()
