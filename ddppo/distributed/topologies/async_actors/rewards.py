"""Normalised rewards of actors at their own pace: an environment's running return goes on where its last ended."""

from collections.abc import Hashable, Sequence

import torch

from ddppo.ppo.normalization import Gather, RewardNormalizer


class RewardsByActor(RewardNormalizer):
    """A normaliser of rollouts of `num_envs` environments each, which actors sent in their own order.

    With one rollout of each actor it is the normaliser of all their environments. One more of the same actor comes
    after it, with the moments that it left. Steps of a rollout that was refused are missing in the running returns.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        super().__init__(0, gamma, device)
        self._num_envs = num_envs
        self._carried: dict[Hashable, torch.Tensor] = {}
        self._device = device
        self._actors: Sequence[Hashable] = ()

    def expect(self, actors: Sequence[Hashable]) -> None:
        """Say whose rollouts the next ones are, in the order in which they lie side by side.

        An actor that begins its episodes anew is another.
        """
        self._actors = actors

    def __call__(
        self, rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, gather: Gather
    ) -> torch.Tensor:
        scaled, left = torch.empty_like(rewards), list(range(len(self._actors)))
        while left:
            places = {self._actors[k]: k for k in reversed(left)}  # the first rollout left of each actor
            ordered = sorted(places.values())
            columns = torch.cat([torch.arange(self._num_envs) + k * self._num_envs for k in ordered])
            columns = columns.to(self._device)
            actors = [self._actors[k] for k in ordered]
            zeros = torch.zeros(self._num_envs, dtype=torch.float64, device=self._device)
            self.discounted = torch.cat([self._carried.get(actor, zeros) for actor in actors])
            scaled[:, columns] = super().__call__(
                rewards[:, columns], ended[:, columns], valid[:, columns], gather
            )
            self._carried.update(zip(actors, self.discounted.split(self._num_envs), strict=True))
            left = [k for k in left if k not in ordered]
        return scaled
