"""Print the tests that took longest, which make test leaves to make test-all: the lines of tests/slow.txt.

.venv/bin/python -m pytest -n 5 --no-loadscope-reorder --durations=0 > outputs/durations.txt
.venv/bin/python -m tests.slowest 1 < outputs/durations.txt > outputs/slow.txt && mv outputs/slow.txt tests/

Seconds are the clock's, with five processes on two cores: two to three times those of a processor. The list also names
tests that are marked slow where they are written.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable

DURATION = re.compile(r"([\d.]+)s (?:call|setup|teardown) +(\S.*)")


def slowest(lines: Iterable[str], least_s: float) -> list[str]:
    """Return the node ids of tests that took at least `least_s` with what they set up, in the order of their names."""
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        if found := DURATION.fullmatch(line.strip()):
            seconds[found[2]] += float(found[1])
    return sorted(node for node, took in seconds.items() if took >= least_s)


if __name__ == "__main__":
    print("\n".join(slowest(sys.stdin, float(sys.argv[1]))))
