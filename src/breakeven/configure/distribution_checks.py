"""The tests of their arguments that probability distributions make."""

from __future__ import annotations

from torch.distributions import Distribution

from breakeven.configure.patching import Patches


class skipped_distribution_checks(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, `torch.distributions` tests its arguments only where a script asks for it.

    Each distribution otherwise compares every parameter, and every value of ``log_prob``, with
    what it may be. The numbers are the same; a parameter that is not allowed raises no error.
    """

    @property
    def num_applied(self) -> int:
        """Return 1 as long as the script has not asked for the tests by itself."""
        return int(not Distribution._validate_args)

    def __enter__(self) -> skipped_distribution_checks:
        super().__enter__()
        self.callback(Distribution.set_default_validate_args, Distribution._validate_args)
        Distribution.set_default_validate_args(False)
        return self
