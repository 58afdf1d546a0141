"""The door `python -m ddppo.circuits.rules`."""

import sys

from ddppo.circuits.rules.command import main
from ddppo.options import door

if __name__ == "__main__":
    with door():
        main(sys.argv[1:])
