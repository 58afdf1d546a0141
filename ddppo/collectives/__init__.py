"""Sums, gathers, broadcasts and barriers over ranks, each recorded with its start and end. Silent at W = 1.

`Group` is one rank in process: every operation is the identity and nothing is recorded. `SharedMemoryGroup` is the
ranks of one machine, `ProcessGroup` those of torch.distributed, `Hierarchy` the first inside machines and the second
between them. Records say when this rank arrived at a collective and when it left; `run/measuring/timing.py` turns the
records of all ranks into waiting and communication.
"""

from ddppo.collectives.group import Group, Record, Wait
from ddppo.collectives.peers import have_met, in_words, last_words, leave_word, note_met

__all__ = ["Group", "Record", "Wait", "have_met", "in_words", "last_words", "leave_word", "note_met"]
