"""Every rule, in the order in which their pages are listed."""

from __future__ import annotations

from breakeven.doctor.batch_rules import BATCH_RULES
from breakeven.doctor.copy_rules import COPY_RULES
from breakeven.doctor.cpu_rules import CPU_RULES
from breakeven.doctor.device_rules import DEVICE_RULES
from breakeven.doctor.host_rules import HOST_RULES
from breakeven.doctor.kernel_rules import KERNEL_RULES
from breakeven.doctor.launch_rules import LAUNCH_RULES
from breakeven.doctor.loader_rules import LOADER_RULES
from breakeven.doctor.loop_rules import LOOP_RULES
from breakeven.doctor.optimizer_rules import OPTIMIZER_RULES
from breakeven.doctor.precision_rules import PRECISION_RULES
from breakeven.doctor.rule import Rule
from breakeven.doctor.run_rules import RUN_RULES
from breakeven.doctor.sync_rules import SYNC_RULES
from breakeven.doctor.timing_rules import TIMING_RULES
from breakeven.doctor.wait_rules import WAIT_RULES

_RULES: tuple[Rule, ...] = (
    *DEVICE_RULES,
    *LAUNCH_RULES,
    *BATCH_RULES,
    *LOOP_RULES,
    *SYNC_RULES,
    *WAIT_RULES,
    *COPY_RULES,
    *OPTIMIZER_RULES,
    *LOADER_RULES,
    *HOST_RULES,
    *RUN_RULES,
    *TIMING_RULES,
    *PRECISION_RULES,
    *KERNEL_RULES,
    *CPU_RULES,
)


def all_rules() -> tuple[Rule, ...]:
    """Return every rule; the docstring of its class is its page."""
    return _RULES
