"""What was seen of a script besides its steps, and how long its training is."""

from __future__ import annotations

import math

import msgspec

from breakeven.capture import LoaderUse, PlainRun
from breakeven.errors import Caveat
from breakeven.verdict import ProgramFacts, ProgramPart


class TrainingLength(msgspec.Struct, frozen=True, kw_only=True):
    """How long a training is, as the user tells it; by default it is not known.

    Args:
        num_steps: Steps.
        num_epochs: Passes over the data set, where steps are not told.
    """

    num_steps: int | None = None
    num_epochs: int | None = None

    def steps(self, loader: LoaderUse | None) -> int | None:
        """Return the number of steps; None where it is not known.

        Args:
            loader: The DataLoader that feeds the steps.
        """
        if self.num_epochs is None or loader is None or not loader.num_samples:
            return self.num_steps
        samples_per_step = loader.batch_size * loader.batches_per_step
        return self.num_epochs * math.ceil(loader.num_samples / samples_per_step)

    def caveats(self, loader: LoaderUse | None) -> tuple[Caveat, ...]:
        """Return why epochs do not tell the steps, where they do not.

        Args:
            loader: The DataLoader that feeds the steps.
        """
        if self.num_epochs is None or self.steps(loader) is not None:
            return ()
        message = (
            "no DataLoader of a known length feeds the steps, so that epochs do not tell how many "
            "there are: say it by --steps"
        )
        return (Caveat(code="epochs-unknown", message=message),)


UNKNOWN_LENGTH = TrainingLength()


def program_facts(run: PlainRun) -> ProgramFacts:
    """Return what is known of the script besides its steps.

    Args:
        run: Of the script as it is.
    """
    step_ns = run.measurement.median_ns
    data_ns = min(run.loader.wait_ns, step_ns) if run.loader else 0.0
    other = run.other
    if other is None:
        return ProgramFacts(startup_ns=run.startup_ns, data_ns=data_ns)
    return ProgramFacts(
        startup_ns=run.startup_ns,
        data_ns=data_ns,
        other_ns=other.value_ns,
        other_low_ns=other.low_ns,
        other_high_ns=other.high_ns,
        parts=tuple(
            ProgramPart(
                file=work.location.file,
                line=work.location.line,
                function=work.location.function,
                time_ns=work.share * other.value_ns,
            )
            for work in run.other_work
        ),
    )
