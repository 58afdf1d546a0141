"""When a run takes a step in machine code: ours from the first iteration, or torch's once it is compiled for all ranks.

compilation = Compilation(...)
compilation.begin()                 # from the cache if it is there; else one process of this machine makes it
...
ready = compilation.is_ready()      # at the end of an iteration; the ranks exchange it
learner.step = compilation.step     # once all are, at the same iteration
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from ddppo.collectives import Group
from ddppo.collectives.group import OrderedSum
from ddppo.config import Config
from ddppo.errors import TrainingError
from ddppo.models import MLP, ActorCritic, flat_obs, random_obs
from ddppo.native import why_not as why_not_library
from ddppo.native.compiling import NotCompiled, cache_folder
from ddppo.ppo.compiled.step import CompiledStep, Recipe, agrees, is_made, remove
from ddppo.ppo.learning.learner import Learner
from ddppo.ppo.native.network import (
    NativeNetwork,
    is_faster_in_torch,
    rows_are_independent,
    why_not_native,
)
from ddppo.ppo.native.step import NativeStep
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn

# Of compile=auto. A step of a small model takes .15 ms compiled and .6 ms eager; compiling takes 30 to 60 s of a core.
_PAYS_FROM_STEPS = 100_000
_USED_FROM_STEPS = (
    1_000  # where it is there already; shorter runs keep their bits, whatever others left in the cache
)
_POLL_S = 0.1
_TRIED_ROWS = 111  # whole tiles and their remainders, in one block of rows and the next
_HOW_MUCH_SLOWER = "Small networks take 3 to 8 times as long (docs/performance.md)"


def why_not_cpp(config: Config, model: ActorCritic, device: torch.device, sync_name: str) -> str | None:
    """Return why this rank cannot take the step in C++, in half a sentence, or None; compiles the library."""
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile}"
    if config.ppo.algorithm != "ppo":
        return f"ppo.algorithm={config.ppo.algorithm} has no step in C++"
    if config.ppo.losses:
        return "ppo.losses adds terms of your own to the loss"
    if config.ppo.learning_rates:
        return "ppo.learning_rates gives parts of the model step sizes of their own"
    if config.dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={config.dist.threads_per_rank}, and it knows one thread"
    if sync_name == "ddp":
        return "dist.grad_sync=ddp sums gradients inside backward"
    return why_not_native(model, device)


class Compilation:
    """What one rank knows of the step in machine code that its learner may take.

    learners: the ranks whose gradients are summed, of those in `group`. num_steps: optimizer steps that the run has
    left. goes_on: it was resumed and took such steps before. idle: this rank only steps environments, and is ready for
    whatever step the others take.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, model: ActorCritic, learner: Learner, group: Group, *,
        learners: Group, sync_name: str, num_steps: int, goes_on: bool, idle: bool = False,
    ) -> None:  # fmt: skip
        self.step: NativeStep | CompiledStep | None = None
        self._config = config
        self._spec = spec
        self._model = model
        self._learner = learner
        self._group, self._learners = group, learners
        self._says = group.rank == 0
        self._compiles = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self._process: subprocess.Popen[str] | None = None
        self._folder: Path | None = None
        self._gave_up, self._must, self._reason = True, False, ""
        self._is_idle = idle
        self._why_not_cpp = (
            "" if idle else why_not_cpp(config, model, learner.parameters.device, sync_name)
        )  # None: this rank can take our own step
        self._num_shards = learner.shape.local_num_shards
        self._is_ordered = learner.shape.num_shards > 0
        if config.compile == "off" or config.ppo.algorithm == "grpo" or config.ppo.losses:
            return
        if config.compile == "auto" and self._is_ordered:
            return  # torch's would be taken once it is compiled, at an iteration that no two runs share
        self._must = config.compile != "auto" or goes_on
        if idle:
            self._gave_up = False
            return
        if not self._must and num_steps < _USED_FROM_STEPS:
            return
        if model.stays_eager is not None:
            if config.compile != "auto":
                self._give_up(model.stays_eager)
            return
        if config.compile == "auto" and not model.compiles_by_itself:
            return
        if sync_name == "ddp":
            self._give_up("dist.grad_sync=ddp sums inside backward")
            return
        self._pays = self._must or num_steps >= _PAYS_FROM_STEPS
        p = next(model.parameters())
        self._recipe = Recipe(
            spec, config.model, config.dtype, config.ppo.clip_value_coef is not None, p.device.type,
            torch.get_num_threads(),
        )  # fmt: skip
        try:
            self._folder = cache_folder() / f"step-{self._recipe.key(model)}"
        except (NotCompiled, OSError) as e:
            self._give_up(f"there is no folder to keep it in: {e}")
        self._gave_up = self._folder is None

    def begin(self) -> bool:
        """Load the step or have it compiled, and wait for that where the run must not begin without it.

        Every rank calls it before its first iteration. Returns whether all ranks are ready. Raises TrainingError where
        compile=on or torch asks for what cannot be.
        """
        if self.begin_native():
            return True
        if self._folder is not None and not is_made(self._folder) and self._compiles and self._pays:
            self._start(self._folder)
        while True:
            states = self._group.gather(torch.tensor([self.is_ready(), self._gave_up], dtype=torch.float64))
            ready, gave_up = (states > 0).unbind(dim=1)
            if not ready.all() and gave_up.any() and self._config.compile in ("on", "torch"):
                reason = self._reason or f"rank {gave_up.nonzero()[0].item()} says why"
                raise TrainingError(
                    f"compile={self._config.compile}: the step cannot be compiled: {reason}; use compile=auto"
                )
            if ready.all() or gave_up.any() or not self._must:
                return bool(ready.all())
            time.sleep(_POLL_S)

    @property
    def kind(self) -> str:
        """Of `step`: native, compiled or eager."""
        if self.step is None:
            return "eager"
        return "native" if isinstance(self.step, NativeStep) else "compiled"

    def begin_native(self) -> bool:
        """Take our own step if every rank can, and return whether; all that a rank which only acts has use for."""
        step, learner, why_not = None, self._learner, self._why_not_cpp
        if self._config.compile not in ("auto", "on"):
            return False
        if why_not is None:
            assert isinstance(self._model, MLP)
            network = NativeNetwork(self._model, self._spec, learner.parameters)
            num_shards = self._num_shards if self._is_ordered else 0
            step = NativeStep(network, self._config.ppo, learner.optimizer, self._learners, num_shards)
            why_not = self._fault_of(step)
        can = torch.tensor([why_not is None or self._is_idle], dtype=torch.float64)
        words = self._group.gather(can).flatten()
        if words.all():
            self.step = step
            return True
        if self._group.rank == int((words == 0).nonzero()[0]) and self._leaves_cpp():
            warn(f"acting and learning run in PyTorch, not in C++: {why_not}. {_HOW_MUCH_SLOWER}")
        return False

    def _fault_of(self, step: NativeStep) -> str | None:
        """Return what our own step computes wrongly on this machine, or None."""
        if not agrees(step, self._spec, self._model, self._config.ppo):
            return "its gradient is not autograd's here"
        p, generator = next(self._model.parameters()), torch.Generator().manual_seed(0)
        obs = flat_obs(random_obs(self._spec, _TRIED_ROWS, p.dtype, generator), self._spec, p.dtype)
        if not rows_are_independent(step.network, obs):
            return (
                "what it computes of an observation depends on the batch here, so results would depend on W"
            )
        return None

    def _leaves_cpp(self) -> bool:
        """Whether this run is slower for want of our own step: another built-in network never has one."""
        if self._learner.parameters.device.type != "cpu" or self._config.compile != "auto":
            return False
        is_mlp_or_own = type(self._model) is MLP or not type(self._model).__module__.startswith("ddppo.")
        return why_not_library() is not None or (is_mlp_or_own and not is_faster_in_torch(self._model))

    def is_ready(self) -> bool:
        """Return whether this rank can take the compiled step, which then is `step`; loads it once it is there."""
        if self.step is None and not self._gave_up and not self._is_idle:
            assert self._folder is not None
            if is_made(self._folder):
                self._load(self._folder)
            elif self._process is not None and self._process.poll() is not None:
                assert self._process.stdout is not None
                said = self._process.stdout.read().strip()
                self._give_up(
                    said or f"the compiling process ended with exit code {self._process.returncode}"
                )
        return self.step is not None or self._is_idle

    def close(self) -> None:
        """End what still compiles."""
        if self._process is None:
            return
        if is_unfinished := self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(OSError), self._process:  # which closes its pipes and waits for it
            pass
        if is_unfinished and self._folder is not None:
            shutil.rmtree(_unfinished(self._folder), ignore_errors=True)

    def _load(self, folder: Path) -> None:
        try:
            parameters = self._learner.parameters
            summing: Group | OrderedSum = self._learners
            if self._is_ordered:
                summing = OrderedSum(self._learners, self._num_shards, parameters.data)
            step = CompiledStep(
                folder, self._config.ppo, self._model, parameters, self._learner.optimizer, summing.sum_,
                self._learner.scale, self._num_shards,
            )  # fmt: skip
            if agrees(step, self._spec, self._model, self._config.ppo):
                self.step = step
                return
            reason = "its gradient is not the eager step's"
        except RuntimeError as e:  # of another torch, or damaged
            reason = " ".join(str(e).split())[:200]
        remove(folder)
        self._give_up(f"{reason}; {folder} was removed, and the next run compiles anew")

    def _start(self, folder: Path) -> None:
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            self._give_up("there is no C++ compiler (g++, or what CXX names)")
            return
        environ = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(_unfinished(folder)),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ddppo.ppo.compiled.compiler"], env=environ, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        request = {"folder": str(folder), "recipe": self._recipe.to_json(), "nice": 0 if self._must else 19}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()  # and stays open: its end tells the process that this one has ended

    def _give_up(self, reason: str) -> None:
        self._gave_up, self._reason = True, reason
        if self._says and self._config.compile == "auto":
            warn(f"compile={self._config.compile}: the step stays eager: {reason}")


def _unfinished(folder: Path) -> Path:
    return folder.with_suffix(".unfinished")
