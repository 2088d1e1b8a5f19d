"""The trainer under the clock."""

from torch import Tensor

from lldlib.train.trainer import Trainer
from lldlib.types import Batch, Episode

from .timing import timed
from .workload import Workload


class TimedTrainer(Trainer):
    """A `Trainer` that starts every step from the same weights and times its measurements apart."""

    def __init__(self, work: Workload, probe: Batch | None = None):
        super().__init__(work.config, work.policy, work.environment, probe)
        tensors, self.start_state = self.state()
        self.start = {name: value.detach().clone() for name, value in tensors.items()}
        self.handed: tuple[list[Episode], Batch] | None = None
        self.rolling = self.measuring = 0.0  # seconds of the last step's rollout, and of its log

    def restart(self, step: int) -> None:
        """Back to the first weights and an empty optimiser, about to do batch number `step`."""
        self.load_state(self.start, self.start_state | {"step": step})

    def roll_out(self) -> tuple[list[Episode], Batch]:
        """One rollout batch, with its seconds in `rolling`."""
        self.rolling, result = timed(super().collect)
        return result

    def timed_step(self) -> tuple[float, list[Episode]]:
        """One step: seconds of rollout, scoring and updates, and the episodes.

        Where episodes were put in `handed`, it takes them in place of a rollout.
        """
        self.measuring = 0.0
        seconds, (_, episodes) = timed(self.step)
        return seconds - self.measuring, episodes

    def collect(self) -> tuple[list[Episode], Batch]:
        """What was handed, or else a rollout."""
        return self.handed or self.roll_out()

    def _measure_before(self, *args) -> tuple[dict[str, float], tuple[Batch, Tensor] | None]:
        return self._apart(super()._measure_before, *args)

    def _measure_after(self, *args) -> dict[str, float]:
        return self._apart(super()._measure_after, *args)

    def _apart(self, measurement, *args):
        seconds, result = timed(lambda: measurement(*args))
        self.measuring += seconds
        return result
