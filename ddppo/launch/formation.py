"""How ranks that torchrun started find those that were started with them, and none of an earlier start.

After a fault torchrun forms the group again, of as many nodes as there are, and starts its ranks anew. Its store may be
the one of before, with all that ranks wrote there, and nothing that torchrun tells a rank is the same on all nodes and
new in every start. So rank 0 answers to each rank that lives, by a word that this rank has just made up, with a name
for what they form: under it they meet.
"""

import json
import time
import uuid
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from ddppo.collectives.peers import in_words
from ddppo.errors import CollectiveError, first_sentence

_LOOK_EVERY_S = 0.05
_HERE, _ANSWER, _CAME = "ddppo/here/{}", "ddppo/answer/{}", "ddppo/came/{}"


def lead(store: dist.Store, world_size: int, run_dir: Path, timeout_s: float) -> dist.Store:
    """Tell the other ranks of this start the run folder, as rank 0; return the store that is theirs alone.

    Raises CollectiveError where one has not come after `timeout_s`.
    """
    name = uuid.uuid4().hex
    theirs = dist.PrefixStore(f"ddppo/start/{name}", store)
    try:
        missing = _answer(store, world_size, {"start": name, "run_dir": str(run_dir)}, theirs, timeout_s)
    except dist.DistError as e:
        raise CollectiveError(f"rank 0 lost torchrun's store: {first_sentence(e)}") from e
    if missing:
        raise CollectiveError(
            f"{in_words(missing)} of {world_size} did not come within {timeout_s:g} s of rank 0 (dist.timeout_s)"
        )
    return theirs


def dismiss(store: dist.Store, world_size: int, exit_code: int, timeout_s: float = 30.0) -> None:
    """Tell the other ranks of this start, those that come in time, that there is no run and how rank 0 ends."""
    name = uuid.uuid4().hex
    theirs = dist.PrefixStore(f"ddppo/start/{name}", store)
    _answer(store, world_size, {"start": name, "exit_code": exit_code}, theirs, timeout_s)


def follow(store: dist.Store, rank: int, timeout_s: float) -> tuple[dist.Store, Path]:
    """Return the store of this start's ranks and the run folder, once rank 0 has told it.

    Raises SystemExit if there is no run, CollectiveError where rank 0 says nothing for `timeout_s`.
    """
    word = uuid.uuid4().hex
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        store.set(_HERE.format(rank), word)
        answer = json.loads(store.get(_ANSWER.format(word)))
    except dist.DistError as e:
        raise CollectiveError(
            f"rank {rank} had no answer from rank 0 within {timeout_s:g} s (dist.timeout_s): {first_sentence(e)}"
        ) from e
    theirs = dist.PrefixStore(f"ddppo/start/{answer['start']}", store)
    theirs.set(_CAME.format(rank), word)
    if "exit_code" in answer:
        raise SystemExit(answer["exit_code"])
    return theirs, Path(answer["run_dir"])


def _answer(
    store: dist.Store, world_size: int, answer: dict[str, str | int], theirs: dist.Store, timeout_s: float
) -> list[int]:
    """Answer to every word, also one that replaces an older rank's, until all have come; return who has not."""
    missing, answered = list(range(1, world_size)), set[bytes]()
    end = time.monotonic() + timeout_s
    while missing and time.monotonic() < end:
        for rank in missing:
            if store.check([_HERE.format(rank)]) and (word := store.get(_HERE.format(rank))) not in answered:
                answered.add(word)
                store.set(_ANSWER.format(word.decode()), json.dumps(answer))
        missing = [rank for rank in missing if not theirs.check([_CAME.format(rank)])]
        if missing:
            time.sleep(_LOOK_EVERY_S)
    return missing
