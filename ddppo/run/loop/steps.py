"""Which optimizer step a rank takes: the eager one, or one in machine code once all ranks have it."""

from ddppo.ppo.acting.collector import Collector
from ddppo.ppo.native.step import NativeStep
from ddppo.run.loop.compilation import Compilation
from ddppo.run.loop.progress import Progress
from ddppo.run.loop.recurrence import begin_recurrence
from ddppo.run.parts import Parts


class Steps:
    """The step of this rank's learner, which is eager until `begin` or `take` says otherwise."""

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._parts = parts
        self._progress = progress
        self._compilation: Compilation | None = None

    def begin(self, *, only_native: bool = False) -> None:
        """Take the step that there is before the first iteration, and have that compiled which is to come.

        All ranks that learn together call it; only_native: of a rank that has use for no other.
        """
        parts, progress = self._parts, self._progress
        begin_recurrence(parts)
        shape, role = parts.shape, parts.layout.role(parts.group.rank)
        iterations = -(-(parts.config.ppo.total_steps - progress.env_steps) // shape.batch_size)
        self._compilation = compilation = Compilation(
            parts.config,
            parts.spec,
            parts.model,
            parts.learner,
            parts.group,
            learners=parts.program.learners,
            sync_name=parts.program.sync.name,
            num_steps=iterations * shape.num_epochs * shape.num_minibatches,
            goes_on=progress.compiled_from is not None,
            idle=not (role.acts or role.learns),
        )
        is_ready = compilation.begin_native() if only_native else compilation.begin()
        if is_ready:
            self.take(progress.iteration + 1)
        else:
            progress.compiled_from = None
        parts.derived["step"] = compilation.kind
        collector = parts.program.collector
        if isinstance(collector, Collector) and isinstance(compilation.step, NativeStep):
            collector.act_by(compilation.step.network)

    def is_ready(self) -> bool:
        """Return whether this rank can take the step in machine code."""
        return self._compilation is not None and self._compilation.is_ready()

    def take(self, iteration: int) -> None:
        """Take it from `iteration` on, now that all ranks can; nothing where they have."""
        if self._compilation is not None and self._compilation.step is not None:
            self._parts.learner.step = self._compilation.step
            self._progress.compiled_from = self._progress.compiled_from or iteration

    def close(self) -> None:
        """End what still compiles."""
        if self._compilation is not None:
            self._compilation.close()
