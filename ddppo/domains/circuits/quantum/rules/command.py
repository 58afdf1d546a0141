"""`python -m ddppo.domains.circuits.quantum.rules`: searches rules, verifies them, writes the file."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddppo.config import setting
from ddppo.errors import ConfigError
from ddppo.options import parse

_KINDS = ("h", "x", "cx", "rz", "s", "p")
USAGE = """python -m ddppo.domains.circuits rules out=my.rules [key=value ...]
python -m ddppo.domains.circuits rules out=my.rules spaces=3:4:h+x+cx+rz,2:5:h+x+cx+rz steps=2
A space is QUBITS:GATES:KINDS: all circuits up to so many gates out of h, x, cx, and
rz (angles a, b, their sums, and multiples of pi/2), s (multiples of pi/2 only), p (a, b and their sums only).
A rule of your own reads as `x 0; rz(a) 0 -> rz(-a) 0; x 0`: where its left side is, its right side may stand."""


@dataclass(slots=True)
class RulesConfig:
    out: str = setting("nam.rules", "the file of rules to write")
    spaces: str | None = setting(
        "3:5:h+x+cx+rz,3:6:cx+p", "what is searched, QUBITS:GATES:KINDS and so on; null is nothing"
    )
    own: str | None = setting(None, "a text file of rules of your own, one a line, verified and added")
    growth: int = setting(2, "how many gates more than its source a target may have", low=0)
    steps: int = setting(3, "a rule is left out if so many smaller rules make up for it", low=1)
    seed: int = setting(0, "of the random numbers of fingerprints", low=0)


def main(arguments: Sequence[str]) -> int:
    """Search, verify, write, and print what came of it; return 0."""
    options = parse(RulesConfig, arguments, usage=USAGE)
    spaces = [_space(word) for word in options.spaces.split(",")] if options.spaces else []
    if not spaces and options.own is None:
        raise ConfigError("spaces=null leaves no rules: search a space, or name a file of rules, own=my.txt")
    if not Path(options.out).absolute().parent.is_dir():
        raise ConfigError(f"out={options.out}: there is no such folder: make it, or name another")
    from ddppo.domains.circuits.quantum.rules import file, pairs, search
    from ddppo.domains.circuits.quantum.rules.rule import Rule
    from ddppo.domains.circuits.quantum.rules.verify import TOLERANCE, difference

    own = file.read_own(Path(options.own)) if options.own else []
    began = time.monotonic()
    found: set[Rule] = set()
    searched = {}
    for size in spaces:
        space = search.Space(*size)
        searched[str(space)] = sum(search.count(space, options.seed))
        known = len(found)
        for members in search.classes(space, options.seed):
            found.update(pairs.pairs(members, options.growth))
        print(f"{space}: {searched[str(space)]} circuits, {len(found) - known} more pairs", flush=True)
    true = [rule for rule in pairs.by_size(found) if difference(rule) < TOLERANCE]
    print(f"{len(found)} pairs, {len(true)} of them verified", flush=True)
    kept = file.in_order([*pairs.independent(true, options.steps), *own])
    seconds = time.monotonic() - began
    searched_for = options.spaces or "null"
    beside = f" own={Path(options.own).name}" if options.own else ""
    given = f"spaces={searched_for}{beside} growth={options.growth} steps={options.steps} seed={options.seed}"
    made_by = {
        "command": f"python -m ddppo.domains.circuits rules {given} out={Path(options.out).name}",
        "seconds": round(seconds),
        "circuits": searched,
        "pairs": len(found),
        "verified": len(true),
    }
    file.write(Path(options.out), kept, made_by)
    sizes = Counter(max(map(len, rule)) for rule in kept)
    told = ", ".join(f"{count} of {size} gates" for size, count in sorted(sizes.items()))
    print(f"{options.out}: {len(kept)} rules in {seconds:.0f} s ({told})")
    return 0


def _space(word: str) -> tuple[int, int, tuple[str, ...]]:
    """Return what `3:4:h+x+cx+rz` says. Raises ConfigError."""
    parts = word.strip().split(":")
    kinds = tuple(parts[2].split("+")) if len(parts) == 3 else ()
    if not kinds or not set(kinds) <= set(_KINDS) or not all(part.isdigit() for part in parts[:2]):
        raise ConfigError(f"spaces={word}: a space is QUBITS:GATES:KINDS, such as 3:4:h+x+cx+rz")
    qubits, gates = int(parts[0]), int(parts[1])
    if not (1 <= qubits <= 4 and 1 <= gates <= 8):
        raise ConfigError(f"spaces={word}: rules have 1 to 4 qubits and 1 to 8 gates")
    return qubits, gates, kinds
