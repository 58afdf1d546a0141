"""The command `python -m ddppo.rollouts`: what the policy of a run typed, what was answered, and what it earned."""

import sys

from ddppo.domains.text.rollout_views import RolloutsConfig, view
from ddppo.options import door, parse

_USAGE = """python -m ddppo.rollouts outputs/cloud/<stamp>                        # lists the newest
python -m ddppo.rollouts outputs/cloud/<stamp> tier=beginner success=false worst=5 full=true
python -m ddppo.rollouts outputs/cloud/<stamp> name=12.5               # one in full
python -m ddppo.rollouts outputs/cloud/<stamp> iteration=100.. html=page.html
python -m ddppo.rollouts outputs/cloud/<stamp> kind=evaluation inspect=run.eval"""


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    options = parse(RolloutsConfig, sys.argv[1:], path="run", usage=_USAGE)
    print(view(options, None if sys.stdout.isatty() else 160))


if __name__ == "__main__":
    main()
