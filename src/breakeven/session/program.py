"""What was seen of a script besides its steps, and how long its training is."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

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
        if self.num_epochs is None or loader is None or not loader.batches_per_epoch:
            return self.num_steps
        batches_per_step = loader.batches_per_step * loader.fetching_fraction
        return round(self.num_epochs * loader.batches_per_epoch / batches_per_step)

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


def program_facts(as_set: PlainRun, best: PlainRun) -> ProgramFacts:
    """Return what is known of the script besides its steps.

    Args:
        as_set: A run of the script as it is.
        best: A run on the number of threads that suits it: for a short time, which hardly sees what
            comes rarely.
    """
    run = best if as_set.other is None else as_set
    step_ns = run.measurement.median_ns
    facts = ProgramFacts(
        startup_ns=as_set.startup_ns,
        data_ns=min(as_set.loader.wait_ns, step_ns) if as_set.loader else 0.0,
        unevenness=max(1.0, run.measurement.mean_ns / step_ns),
    )
    if run.other is None:
        return facts
    return replace(
        facts,
        other_ns=run.other.value_ns,
        other_low_ns=run.other.low_ns,
        other_high_ns=run.other.high_ns,
        parts=tuple(
            ProgramPart(
                file=work.location.file,
                line=work.location.line,
                function=work.location.function,
                time_ns=work.share * run.other.value_ns,
            )
            for work in run.other_work
        ),
    )
