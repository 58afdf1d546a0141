"""The command `python -m ddppo.export`: write a trained policy as a file that acts the same without ddppo."""

import sys

from ddppo.options import door, parse
from ddppo.policies.export.command import ExportConfig, export

_USAGE = """python -m ddppo.export outputs/cartpole/<stamp> [format=onnx] [checkpoint=last] [out=policy.onnx]
python -m ddppo.export outputs/cartpole/<stamp> format=torch out=policy.pt2"""


@door()
def main() -> None:
    """Run the command line; exit code 0, 1 (the file acts differently, or a full disk), or 2 (a mistake)."""
    print(export(parse(ExportConfig, sys.argv[1:], path="run", usage=_USAGE)))


if __name__ == "__main__":
    main()
