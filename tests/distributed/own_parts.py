"""A loss term and metrics of a user's own; imported by name."""


def still(samples):
    """Square of the mean before it is squashed, summed over dimensions."""
    return samples.policy.normal.mean.square().sum(dim=-1)


def push(samples):
    """Square of the mean of a plain normal distribution, summed over dimensions."""
    return samples.policy.mean.square().sum(dim=-1)


def pushes(seen):
    valid = seen.rollout.valid
    return {"push": (seen.rollout.actions[valid].abs().sum(), valid.sum()), "transitions": valid.sum()}


class Longest:
    """Of the first environment, so that other ranks have none to tell of."""

    def __init__(self):
        self.longest = 0

    def __call__(self, seen):
        lengths = [episode.length for episode in seen.episodes if episode.env_index == 0]
        self.longest = max([self.longest, *lengths])
        return {"longest/of_first": (self.longest, 1 if self.longest else 0)}
