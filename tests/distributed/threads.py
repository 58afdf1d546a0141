"""A model that checks in the rank itself how many threads torch uses."""

import os

import torch

from ddppo.models.actor_critic import MLP


class Model(MLP):
    def value(self, obs):
        if "RANK" in os.environ:
            expected = int(os.environ["THREADS_EXPECTED"])
            assert torch.get_num_threads() == expected, (
                f"{torch.get_num_threads()} threads, expected {expected}"
            )
        return super().value(obs)
