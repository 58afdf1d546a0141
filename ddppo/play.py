"""The command `python -m ddppo.play`: type the actions of an environment of text yourself, on the terminal."""

import sys

from ddppo.domains.text.terminal_play import PlayOptions, play
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed
from ddppo.options import door, parse, parted

_USAGE = """python -m ddppo.play env=cloud task=s3_make_bucket          a task of the simulated cloud
python -m ddppo.play env=cloud env.tasks=[expert] chaos=1   with a fault
python -m ddppo.play env=remote env.urls=[ws://127.0.0.1:8000]    an environment of a server
python -m ddppo.play env=gym env.id=my_pkg.envs:Shell-v0   one of your own

Settings of env are those of `python -m ddppo.train`. `:help` lists what you can type beside actions; Ctrl-D leaves."""


@door("left")
def main() -> None:
    """Run the command line; exit code 0, 1 (the environment failed), 2 (a mistake) or 130 (Ctrl-C)."""
    arguments, overrides = parted(PlayOptions, sys.argv[1:])
    options = parse(PlayOptions, arguments, usage=_USAGE)
    if not overrides:
        raise ConfigError("env= is missing: give a preset (env=cloud) or env=gym env.id=my_pkg.envs:MyEnv-v0")
    config = composed(overrides)
    play(options, config.env, config.dist.timeout_s)


if __name__ == "__main__":
    main()
