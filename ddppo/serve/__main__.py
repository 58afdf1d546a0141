"""The command `python -m ddppo.serve`: serves environments at a WebSocket address."""

import logging
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed
from ddppo.options import door, parse, parted
from ddppo.package import install_command
from ddppo.serve.client.served import can_serve, token_in
from ddppo.serve.limits import Confinement, Limits

T = TypeVar("T")

_USAGE = """python -m ddppo.serve env=cartpole pool=8 port=8000        8 separate worlds at ws://127.0.0.1:8000
python -m ddppo.serve env.id=my_pkg.envs:MyEnv-v0          an environment of your own
python -m ddppo.serve env=cartpole host=0.0.0.0 token_file=secret    for other machines, with a token
python -m ddppo.serve env=cloud playground=true            type yourself, at http://127.0.0.1:8000/play

Settings of env are those of `python -m ddppo.train`. Ctrl-C ends all sessions and the server.
Exit code 0, 1 where it could not start, or 2 for a mistake in the command."""
_LIMITS, _WORLDS = Limits(), Confinement()


@dataclass(slots=True)
class ServeOptions:
    pool: int = setting(8, "number of worlds that clients can hold at once, each a process", low=1)
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    token_file: str | None = setting(None, "file with the token that clients need in its first line")
    max_message_bytes: int = setting(_LIMITS.max_message_bytes, "largest request or answer", low=256)
    messages_per_s: float = setting(
        _LIMITS.messages_per_s, "most messages of a session per second; further ones wait unread", above=0
    )
    idle_s: float = setting(_LIMITS.idle_s, "a session ends after this time without a request", above=0)
    step_s: float = setting(_LIMITS.step_s, "a world ends if it does not answer within this time", above=0)
    keep_env: list[str] = setting(
        meaning="environment variables that worlds see too, * for any letters: [AWS_*]", factory=list
    )
    playground: bool = setting(False, "a page at /play on which a person types; for environments of text")
    prints: bool = setting(False, "print the output of worlds with the server's own; false drops it")
    max_files: int = setting(_WORLDS.max_files, "most files that a world may have open", low=16)
    max_file_mb: int = setting(_WORLDS.max_file_mb, "largest file that a world may write", low=1)
    max_processes: int | None = setting(
        None, "most processes of the worlds' user, threads included; no limit for root", low=1
    )
    max_memory_mb: int | None = setting(None, "most address space of a world's process", low=64)
    first_uid: int | None = setting(
        None, "the world of slot i runs as the user first_uid + i; the server must be root", low=1
    )


@door("stopped")
def main() -> None:
    """Run the command line."""
    # Words that are options of the server; all others compose the environment, as in ddppo.train.
    arguments, overrides = parted(ServeOptions, sys.argv[1:])
    options = parse(ServeOptions, arguments, usage=_USAGE)
    if not can_serve():
        raise ConfigError(f"ddppo.serve needs packages that are not installed: {install_command('serve')}")

    # Only now: these modules need the packages of the extra.
    from ddppo.serve.server import ServeSettings, serve

    if not overrides:
        raise ConfigError("env= is missing: give a preset (env=cartpole) or env.id=my_pkg.envs:MyEnv-v0")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    limits, confinement = _part(Limits, options), _part(Confinement, options)
    token = None if options.token_file is None else token_in(Path(options.token_file), "token_file")
    env = composed(overrides).env
    serve(ServeSettings(
        env, options.pool, options.host.strip("[]"), options.port, token, limits,
        confinement=confinement, keep_env=tuple(options.keep_env), prints=options.prints,
        playground=options.playground,
    ))  # fmt: skip


def _part(kind: type[T], options: ServeOptions) -> T:
    """Return the dataclass `kind` with the options of the same names."""
    names = {each.name for each in fields(kind)} & {each.name for each in fields(options)}  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names})


if __name__ == "__main__":
    main()
