"""The door `python -m ddppo.domains.circuits.quantum.rules`."""

import sys

from ddppo.domains.circuits.quantum.rules.command import main
from ddppo.options import door

if __name__ == "__main__":
    with door():
        main(sys.argv[1:])
