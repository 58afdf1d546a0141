"""Exceptions that users meet. Each message names the cause and the remedy."""

import signal

LOST_PEERS = 3  # exit code of a rank that ended only because another one had


class ConfigError(ValueError):
    """A setting that cannot work; raised before any process starts."""


class RunFolderError(ConfigError):
    """A folder or checkpoint that is not what it should be."""


class TrainingError(RuntimeError):
    """A fault that ends a run that had started."""


class NonFiniteError(TrainingError):
    """A loss or gradient became NaN or infinite; no parameter was touched by it."""


class ReplicaMismatchError(TrainingError):
    """Parameters that must be identical on all ranks are not."""


class CollectiveError(TrainingError):
    """A rank was lost or late while others waited for it in a collective."""


class EnvWorkerLost(TrainingError):
    """A process that steps an environment died, failed or hangs."""


class ClusterError(TrainingError):
    """SLURM is not installed, not running, does not answer, or refused."""


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop; `remedy` says how to go on. Like Ctrl-C, no handler of errors catches it."""

    def __init__(self, number: int = signal.SIGINT, remedy: str = "") -> None:
        super().__init__(number, remedy)
        self.number = number
        self.remedy = remedy
