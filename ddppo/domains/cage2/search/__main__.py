"""`python -m ddppo.domains.cage2.search`: ddppo.train with a search, experiment=workflows if none is named."""

import sys

from ddppo.train import main as train


def main() -> None:
    """Run the command line, with exit codes as ddppo.train's."""
    if not any(argument.startswith(("experiment=", "search.name=", "resume=")) for argument in sys.argv[1:]):
        sys.argv.append("experiment=workflows")
    train()


if __name__ == "__main__":
    main()
