"""The step in C++ (ddppo/native/src/learn.cpp): an epoch is one call, which gathers its minibatches itself."""

import ctypes
import math
from collections.abc import Callable, Mapping

import torch

from ddppo.config import PPOConfig
from ddppo.ppo.minibatches import Batch
from ddppo.ppo.native_network import SUM, NativeNetwork, library
from ddppo.ppo.step import STATISTICS, NotFinite, adam_state, constants

_COLUMNS = ("obs", "actions", "logprobs", "values", "advantages", "returns", "weights", "mask")


class NativeStep:
    """A `Step` on a NativeNetwork. sum_: replaces the gradient by its sum over ranks; None where there is one rank."""

    def __init__(
        self,
        network: NativeNetwork,
        config: PPOConfig,
        optimizer: torch.optim.Adam,
        sum_: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        device = torch.device("cpu")
        self.sums = torch.zeros(len(STATISTICS), dtype=torch.float64)
        self.network = network
        self._optimizer = optimizer
        self._norms = torch.zeros((), dtype=torch.float64)
        self._loss = torch.zeros((), dtype=torch.float64)
        self._constants = constants(config, device)
        self._learning_rate = 0.0
        mine = [self._norms, self.sums, self._loss, self._constants]
        self._addresses = (ctypes.c_void_p * 7)(None, None, None, *[x.data_ptr() for x in mine])
        self._fault: BaseException | None = None
        self._sum = SUM(self._sum_gradient) if sum_ is not None else SUM()
        self._sum_ = sum_

    def begin(self, learning_rate: float) -> None:
        self.sums.zero_()
        self._norms.zero_()
        self._learning_rate = learning_rate
        self._optimizer.param_groups[0]["lr"] = learning_rate
        for place, x in enumerate(adam_state(self._optimizer, self.network.parameters)):
            self._addresses[place] = x.data_ptr()

    def epoch(self, batch: Batch, order: torch.Tensor, bounds: list[int], counts: list[int]) -> None:
        columns, addresses = _addresses(batch.fields)
        num_minibatches = len(counts)
        ends, divisors = (ctypes.c_int64 * len(bounds))(*bounds), (ctypes.c_double * num_minibatches)(*counts)
        failed = library().network_epoch(
            self.network.handle, addresses, order.data_ptr(), ends, divisors, num_minibatches,
            self._learning_rate, self._addresses, self._sum,
        )  # fmt: skip
        del columns
        if failed:
            fault, self._fault = self._fault, None
            assert fault is not None
            raise fault

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise NotFinite(self._loss.item())
        return norms

    def gradient(self, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Leave this rank's gradient of the mean loss over a minibatch in the parameters', and return it."""
        rows = len(minibatch["weights"])
        columns, addresses = _addresses(minibatch)
        library().network_gradient(self.network.handle, addresses, None, rows, float(rows), self._addresses)
        del columns
        gradient = self.network.parameters.grad
        assert gradient is not None
        return gradient

    def _sum_gradient(self) -> int:
        """Sum over ranks; called from C++, where no exception may pass."""
        gradient = self.network.parameters.grad
        assert gradient is not None
        assert self._sum_ is not None
        try:
            self._sum_(gradient)
        except BaseException as e:
            self._fault = e
            return 1
        return 0


def _addresses(fields: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], ctypes.Array]:
    """Return the fields, contiguous, which must outlive the call, and their addresses for src/learn.cpp."""
    columns = [fields[name].contiguous() for name in _COLUMNS if name in fields]
    addresses = [x.data_ptr() for x in columns] + [None] * (len(_COLUMNS) - len(columns))
    return columns, (ctypes.c_void_p * len(_COLUMNS))(*addresses)
