"""Best-first search, as Quartz has it, on the benchmarks: least gates against CPU seconds.

PYTHONPATH=. OMP_NUM_THREADS=1 python experiments/circuits/best_first.py seconds=4 > experiments/circuits/best_first.csv

From merged rotations. The cheapest circuit that was not expanded yet, of equal ones the first found, is expanded: all
rewrites of it that lead to at most `slack` gates above the least are kept, each circuit once. slack=0 is Quartz's
choice in all but name (a factor of 1.0001). Nothing is drawn, so that a circuit has one result, which is compared with
the original.
"""

import csv
import heapq
import sys
import time

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.costs import cx_count
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest, merged
from ddppo.domains.circuits.quantum.rules import packaged

CIRCUITS = "tof_3,barenco_tof_3,mod5_4,mod_mult_55,qft_8,vbe_adder_3,barenco_tof_5,gf2^4_mult,gf2^6_mult"
MARKS = (1.0, 4.0, 30.0, 120.0)


def search(
    rewriter: Rewriter, start: Circuit, slack: int, seconds: float
) -> tuple[Circuit, int, dict[float, int]]:
    """Return the smallest circuit, the number of circuits that were expanded, and the least gates at each mark."""
    start = start.canonical()
    best, expanded, number = start, 0, 0
    queue, seen, found = [(len(start), 0, start)], {digest(start)}, {}
    began = time.process_time()
    while queue and (used := time.process_time() - began) < seconds:
        found |= {mark: len(best) for mark in MARKS if mark <= seconds and used < mark}
        gates, _, circuit = heapq.heappop(queue)
        if gates > len(best) + slack:
            break  # the rest of the queue costs more
        expanded += 1
        for node, rule in rewriter.pairs(circuit).tolist():
            if rule == rewriter.nop:
                continue
            after, _ = rewriter.apply(circuit, node, rule)
            if len(after) > len(best) + slack or (key := digest(after)) in seen:
                continue
            seen.add(key)
            number += 1
            heapq.heappush(queue, (len(after), number, after))
            best = min(best, after, key=len)
    used = time.process_time() - began
    return best, expanded, found | {mark: len(best) for mark in MARKS if used < mark <= seconds}


def main() -> None:
    given = {"seconds": "4", "slack": "0,1", "circuits": CIRCUITS} | dict(
        pair.split("=", 1) for pair in sys.argv[1:]
    )
    seconds, rewriter = float(given["seconds"]), Rewriter(packaged().rules)
    marks = [mark for mark in MARKS if mark <= seconds]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["circuit", "slack", *(f"gates_{mark:g}_s" for mark in marks), "cx", "expanded", "verified"])
    for name in given["circuits"].split(","):
        original = benchmark(name)
        for slack in map(int, given["slack"].split(",")):
            best, expanded, found = search(rewriter, merged(original), slack, seconds)
            verdict = verify(original, best)
            assert verdict.is_equal, (name, slack, str(verdict))
            row = [name, slack, *(found[mark] for mark in marks), int(cx_count(best)), expanded, str(verdict)]
            out.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
