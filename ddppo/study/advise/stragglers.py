"""Ranks that others wait for at every rollout, and what could be done about it. Imports no torch."""

from statistics import median

from ddppo.package import command
from ddppo.study.advise.candidates import Question
from ddppo.study.advise.race import Entrant
from ddppo.topologies.settings import PreemptSettings

_SLOWER = 1.5  # times as long a rollout as the median of all ranks
_PAYS_FROM = (
    0.2  # of an iteration, waited: experiments/stragglers gains where it is .4 and more, little below
)


def stragglers(chosen: Entrant, asked: Question) -> str:
    """Return which ranks are slow at every rollout, and how to try ending these early; "" where none is.

    It is told from medians over rounds: a rank that is slow by itself, not one that is late now and then, against which
    experiments/stragglers found little to gain.
    """
    rollouts, dist = chosen.rollouts(), chosen.candidate.config.dist
    if dist.topology != "ddp" or len(rollouts) < 2 or chosen.parts()["t_sync"] < _PAYS_FROM:
        return ""
    others = median(sorted(rollouts)[:-1])
    slow = [rank for rank, seconds in enumerate(rollouts) if seconds > _SLOWER * others]
    if not slow:
        return ""
    alone = PreemptSettings(world_size=dist.world_size).awaited_ranks > len(rollouts) - len(slow)
    # Where it would wait for a slow one all the same it needs another rule, which ddp refuses.
    topologies = "ddp_preempt dist.preempt_rule=throughput" if alone else "ddp,ddp_preempt"
    settings = [o for o in (*asked.fixed, *chosen.candidate.overrides) if not o.startswith("distributed=")]
    return (
        f"Others wait {100 * chosen.parts()['t_sync']:.0f} % of an iteration for rank{'s' * (len(slow) > 1)} "
        f"{', '.join(map(str, slow))}, whose rollouts take up to {max(rollouts) / others:,.1f} times as long. "
        "distributed=ddp_preempt ends these early: iterations are shorter, with fewer samples of what is slow, and no "
        "run can be repeated to the bit (docs/topologies.md). To try it: "
        f"{command('ddppo.advise', *settings)} distributed={topologies}"
    )
