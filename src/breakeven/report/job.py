"""The job that starts a training on the best machine: a command of HF Jobs, a SkyPilot file."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from breakeven.errors import BreakevenError, UsageError
from breakeven.report.cost import faster_choices, time_text, usd_text
from breakeven.report.cost_report import CostReport
from breakeven.units import NS_PER_S

# By the name of `--format`: the providers that take such a job.
JOB_CLOUDS = {"hf": ("hf",), "sky": ("aws", "gcp", "azure")}


def job_text(report: CostReport, kind: str, arguments: Sequence[str] = ()) -> str:
    """Return the job for the cheapest machine that is clearly faster than this one.

    Args:
        report: A cost on machines of the job's providers.
        kind: ``hf`` for a command line, ``sky`` for a SkyPilot file.
        arguments: ``sys.argv[1:]`` of the script.

    Raises:
        BreakevenError: If no machine takes the script within the limits.
        UsageError: If the target is a function.
    """
    usable = [row for row in report.rows if row.provider in JOB_CLOUDS[kind] and row.takes_script]
    if not usable:
        raise BreakevenError(
            f"no chosen machine of {', '.join(JOB_CLOUDS[kind])} surely fits step and limits",
            hint="allow a later --deadline or a larger --budget, or reduce the batch",
        )
    row = next((one for one in faster_choices(report.rows) if one in usable), None)
    if row is None:
        raise BreakevenError(
            f"no machine of {', '.join(JOB_CLOUDS[kind])} is clearly faster than this one",
            hint="train on this machine; without --format, breakeven cost lists all",
        )
    if ".py:" in report.target:
        raise UsageError(
            f"a job runs a script, not the function {report.target}", hint="name a script"
        )
    module = () if report.target.endswith(".py") else ("-m",)
    command = shlex.join(("python", *module, report.target, *arguments))
    if kind == "hf":
        # The upper end of the interval holds with 95 %: a job that ends earlier costs less.
        minutes = math.ceil(row.time_ns.high / NS_PER_S / 60)
        flavor = hf_flavor(row.machine)
        return f"hf jobs run --flavor {flavor} --timeout {minutes}m IMAGE {command}\n"
    return (
        f"# {row.device}: {time_text(row)}, {usd_text(row.usd.value)}\n"
        f"resources:\n  infra: {row.provider}\n  instance_type: {row.machine}\n"
        f"workdir: .\nrun: |\n  {command}\n"
    )


def hf_flavor(machine: str) -> str:
    """Return the flavor of a machine of HF Jobs: ``a10g-largex2`` for ``2x A10G large``.

    Source: ``JobHardware`` of huggingface_hub 2.4.
    """
    name = re.sub(r"^(\d+)x (.+)", r"\2x\1", machine).lower().replace(" ", "-")
    return name.replace("a100-largex", "a100x")
