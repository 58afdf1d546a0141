"""What a curriculum or a search had a run play."""

from ddppo.curriculum.tiers import METRICS as _OF_TIERS
from ddppo.curriculum.tiers import RATE_OF
from ddppo.run.records.metrics.metric import OF_CURRICULUM, OF_SEARCH, Metric

OF_CHOOSING: tuple[Metric, ...] = (
    *(
        Metric(OF_CURRICULUM + name, unit, "same on all ranks", meaning, "docs/curriculum.md")
        for name, (unit, meaning) in {
            **_OF_TIERS,
            f"{RATE_OF}<tier>": ("fraction", "mean rate of the tasks of a tier, 0 of those never tried"),
        }.items()
    ),
    *(
        Metric(OF_SEARCH + name, unit, "same on all ranks", meaning, "docs/search.md")
        for name, unit, meaning in (
            ("trial", "1", "number of the trial that the iteration was of, from 0"),
            ("order_id", "1", "place of its order among all 120"),
            ("return_mean", "reward", "by the environment alone, mean over the iteration's episodes"),
            ("alignment_mean", "reward", "what keeping to the order brought besides, mean over them"),
            (
                "compliance",
                "fraction",
                "of repairs that kept to it, mean over them; 1/2 of one without a repair",
            ),
            ("repairs", "repairs", "of all of them"),
            ("without_repairs", "fraction", "of them that had no repair"),
            ("passed", "trials", "that passed their gate so far"),
            ("episodes", "episodes", "of all environments so far"),
        )
    ),
)
